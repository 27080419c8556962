"""A fitted model meets graphs that are not quite the one it was trained on."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.data import Data

from fairmp import FMP, PPR, FairClassifier, InputError
from fairmp.datasets import social_network
from fairmp.groups import group_operator
from fairmp.training.alignment import aligned
from fairmp.training.nodes import Names
from fairmp.training.penalties import Regulariser


@pytest.fixture(scope="module")
def data() -> Data:
    return social_network(n=600, average_degree=8, features=6, groups=3, seed=1)


@pytest.fixture(scope="module")
def model(data: Data) -> FairClassifier:
    model = FairClassifier(FMP(3, 2.0), epochs=5, backbone="mlp")
    model.fit(data, bootstrap=0)
    return model


def changed(data: Data, **values: object) -> Data:
    result = data.clone()
    for name, value in values.items():
        result[name] = value
    return result


def test_columns_in_another_order_give_the_same_predictions(data, model) -> None:
    order = [3, 0, 5, 1, 4, 2]
    names = [data.feature_names[k] for k in order]
    other = changed(data, x=data.x[:, order], feature_names=names)
    assert torch.equal(model.predict_proba(other), model.predict_proba(data))
    assert torch.equal(other.x, data.x[:, order])  # the caller's graph is left alone


def test_groups_and_classes_in_another_order_are_translated(data, model) -> None:
    turned = torch.tensor([2, 0, 1])
    other = changed(
        data,
        sens=turned[data.sens],
        group_names=["group 1", "group 2", "group 0"],
        y=1 - data.y,
        class_names=["class 1", "class 0"],
    )
    for mode in ("batch", "per-node"):
        assert torch.equal(
            model.predict_proba(other, mode=mode), model.predict_proba(data, mode=mode)
        )
    assert model.evaluate(other, bootstrap=0) == model.evaluate(data, bootstrap=0)


def test_other_floating_point_types(data, model) -> None:
    double = model.predict_proba(changed(data, x=data.x.double()))
    assert double.dtype == torch.float32
    assert torch.equal(double, model.predict_proba(data))


def test_data_without_names(data, model) -> None:
    bare = Data(x=data.x, edge_index=data.edge_index, sens=data.sens)
    assert torch.equal(model.predict_proba(bare), model.predict_proba(data))
    unnamed = FairClassifier(FMP(3, 2.0), epochs=2, backbone="mlp")
    unnamed.fit(Data(**{k: data[k] for k in ("x", "edge_index", "y", "sens")}), bootstrap=0)
    assert unnamed.predict(data).shape == (600,)


def test_features_without_names(data, tmp_path) -> None:
    fewer = changed(data, x=data.x[:, :-1])
    model = FairClassifier(FMP(3, 2.0), epochs=2, backbone="mlp")
    model.fit(fewer, bootstrap=0)
    assert model.features_ == ["0", "1", "2", "3", "4"]
    again = FairClassifier.load(model.save(tmp_path / "model"))
    assert torch.equal(again.predict_proba(fewer), model.predict_proba(fewer))
    bare = changed(fewer, feature_names=None)
    assert torch.equal(model.predict_proba(bare), model.predict_proba(fewer))
    with pytest.raises(InputError, match="6 features, the model was trained on 5"):
        model.predict(data)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda d: {"feature_names": [*d.feature_names[:5], "f5b"]},
            ["'f5' missing (renamed to 'f5b'?) and 'f5b' not known", "in any order"],
        ),
        (
            lambda d: {"x": d.x[:, :5], "feature_names": d.feature_names[:5]},
            ["5 features, the model was trained on 6: 'f5' missing"],
        ),
        (
            lambda d: {
                "x": torch.cat([d.x, d.x], 1),
                "feature_names": [*d.feature_names, *(f"g{k}" for k in range(6))],
            },
            ["12 features", "'g0' and 5 more not known to it"],
        ),
        (lambda d: {"x": d.x[:, :4], "feature_names": None}, ["4 features, the model was"]),
        (lambda d: {"feature_names": ["f0"] * 6}, ["a name occurs twice"]),
        (lambda d: {"feature_names": ["f0"]}, ["1 names for 6 columns"]),
        (lambda d: {"x": d.x.long()}, ["data.x"]),
        (lambda d: {"x": d.x / 0}, ["not finite", "column 0 'f0'"]),
        (
            lambda d: {"group_names": ["group 0", "group 1", "moon"]},
            ["group 'moon' was not seen in training (seen: group 0, group 1, group 2)"],
        ),
        (lambda d: {"sens": d.sens + 1}, ["group 3 was not seen in training"]),
        (
            lambda d: {"class_names": ["class 0", "later"]},
            ["data.y: class 'later' was not seen in training"],
        ),
        (lambda d: {"y": d.y + 1, "class_names": None}, ["class 2 was not seen"]),
        (
            lambda d: {"sens": torch.ones(600, 2) / 2, "group_names": None},
            ["probabilities of 2 groups, the model was trained on 3"],
        ),
        (
            lambda d: {"sens": torch.ones(600, 3) / 3, "group_names": ["a", "b", "c"]},
            ["no column for group 'group 0'"],
        ),
        (lambda d: {"sens": torch.ones(600, 3)}, ["node 0 sum to 3"]),
    ],
)
def test_unknown_columns_groups_and_classes_are_named(data, model, change, words) -> None:
    with pytest.raises(InputError) as caught:
        model.predict(changed(data, **change(data)))
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def test_evaluate_needs_labels(data, model) -> None:
    with pytest.raises(InputError, match=r"data\.y: missing; an evaluation needs labels"):
        model.evaluate(changed(data, y=None))
    few = model.evaluate(changed(data, y=torch.full((600,), -1), test_mask=None), bootstrap=0)
    assert few.dp >= 0
    assert few.accuracy != few.accuracy


def test_certain_probabilities_are_groups(data, model) -> None:
    soft = torch.nn.functional.one_hot(data.sens, 3).float()
    hard, certain = (
        FairClassifier(FMP(3, 2.0), epochs=5, backbone="mlp").fit(graph, bootstrap=0, split_seed=0)
        for graph in (data, changed(data, sens=soft))
    )
    assert hard.run_.test.groups == certain.run_.test.groups
    torch.testing.assert_close(
        model.predict_proba(changed(data, sens=soft)), model.predict_proba(data)
    )
    order = [1, 2, 0]
    named = [data.group_names[k] for k in order]
    turned = changed(data, sens=soft[:, order], group_names=named)
    torch.testing.assert_close(model.predict_proba(turned), model.predict_proba(data))


@pytest.mark.parametrize("strategy", [None, Regulariser(2.0)])
def test_groups_as_probabilities(data, tmp_path, strategy) -> None:
    generator = torch.Generator().manual_seed(0)
    soft = torch.nn.functional.one_hot(data.sens, 3).float()
    guessed = torch.rand(600, generator=generator) < 0.5
    soft[guessed] = 0.8 * soft[guessed] + 0.2 / 3
    soft[::20] = 0
    graph = changed(data, sens=soft)
    setting = {"epochs": 20, "lr": 0.02, "on": "probabilities"}
    layer = FMP(3, 2.0, temperature=0.1)
    model = FairClassifier(layer, strategy=strategy, **setting, backbone="mlp")
    run = model.fit(graph, bootstrap=0).run_
    unclear = guessed.clone()
    unclear[::20] = True
    assert sum(group.count for group in run.test.groups) < run.test.n
    assert any("whose group is not certain" in note for note in run.test.notes)
    everyone = torch.ones(600, dtype=torch.bool)
    evaluation = model.evaluate(graph, nodes=everyone, bootstrap=0)
    assert sum(group.count for group in evaluation.groups) == int((~unclear).sum())
    assert f"gaps leave out {int(unclear.sum())} of 600 nodes" in evaluation.notes[-1]
    again = FairClassifier.load(model.save(tmp_path / "model"))
    for mode in ("batch", "per-node"):
        assert torch.equal(
            again.predict_proba(graph, mode=mode), model.predict_proba(graph, mode=mode)
        )
    known = soft.sum(1) > 0
    sharp = (model.predict_proba(graph).log() / 0.1).softmax(1)
    assert float(group_operator(soft[known]).gap(sharp[known]).abs().max()) < 1e-4


def test_fit_needs_certain_groups_in_every_part(data) -> None:
    graph = changed(data, sens=torch.full((600, 3), 1 / 3))
    with pytest.raises(InputError, match="fewer than two groups are certain"):
        FairClassifier(PPR(), epochs=1, backbone="mlp").fit(graph)
    soft = torch.nn.functional.one_hot(data.sens, 4).float()
    with pytest.raises(InputError, match="group 3 has no node"):
        FairClassifier(PPR(), epochs=1, backbone="mlp").fit(changed(data, sens=soft))


def test_aligned_copies_nothing_that_is_aligned(data) -> None:
    result = aligned(data, Names.of(data), data.x.dtype)
    assert result.x.data_ptr() == data.x.data_ptr()
    assert result.sens.data_ptr() == data.sens.data_ptr()

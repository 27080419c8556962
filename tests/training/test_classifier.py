from __future__ import annotations

import copy
import json
import math
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV
from torch_geometric.data import Data

from fairmp import FMP, PPR, FairClassifier, InputError
from fairmp.datasets import social_network
from fairmp.datasets.splits import with_split
from fairmp.groups import group_operator
from fairmp.training.fitted import CLOSED_NOTE
from fairmp.training.penalties import Regulariser

SETTING = {"epochs": 30, "lr": 0.02, "eval_every": 5}


@pytest.fixture(scope="module")
def data() -> Data:
    return social_network(n=2000, average_degree=12, seed=2)


@pytest.fixture(scope="module")
def fair(data: Data) -> FairClassifier:
    model = FairClassifier(FMP(5, 3.0, target=0.01), **SETTING, backbone="mlp")
    model.fit(data, seed=0, split_seed=0)
    return model


def test_fair_model_closes_the_gap_at_little_cost(data: Data, fair: FairClassifier) -> None:
    plain = FairClassifier(PPR(5, 3.0), **SETTING, backbone="mlp")
    before, after = plain.fit(data, seed=0, split_seed=0).run_.test, fair.run_.test
    assert before.dp > 0.15
    assert after.dp < 0.03
    assert after.accuracy > before.accuracy - 0.04
    assert (after.mode, before.mode) == ("batch", None)


def test_nodes_as_mask_or_numbers(data: Data, fair: FairClassifier) -> None:
    every = fair.predict_proba(data, mode="per-node")
    numbers = [7, 1999, 0, 7]
    for nodes in (numbers, tuple(numbers), np.array(numbers), torch.tensor(numbers)):
        proba = fair.predict_proba(data, nodes=nodes, mode="per-node")
        torch.testing.assert_close(proba, every[numbers])
    for mask in (data.sens == 1, (data.sens == 1).tolist(), (data.sens == 1).numpy()):
        proba = fair.predict_proba(data, nodes=mask, mode="per-node")
        torch.testing.assert_close(proba, every[data.sens == 1])
    order = torch.randperm(2000, generator=torch.Generator().manual_seed(0))
    evaluation = fair.evaluate(data, nodes=order[:900].tolist(), bootstrap=0)
    mask = torch.zeros(2000, dtype=torch.bool)
    mask[order[:900]] = True
    by_mask = fair.evaluate(data, nodes=mask, bootstrap=0)
    for figure in ("n", "mode", "accuracy", "dp", "eo", "fpr", "impact_ratio"):
        assert getattr(evaluation, figure) == getattr(by_mask, figure)
    # A mean of probabilities depends on their order in its last digits.
    assert evaluation.calibration_error == pytest.approx(by_mask.calibration_error)


def test_fit_returns_the_classifier(data: Data) -> None:
    model = FairClassifier(None, epochs=1, backbone="mlp")
    assert model.fit(data, bootstrap=0) is model
    assert model.run_.history.best.epoch == 1


def test_target_holds_for_the_predicted_nodes(data: Data, fair: FairClassifier) -> None:
    generator = torch.Generator().manual_seed(0)
    for share in (1.0, 0.4):
        nodes = torch.rand(data.num_nodes, generator=generator) <= share
        proba = fair.predict_proba(data, nodes=nodes)
        assert proba.shape == (int(nodes.sum()), 2)
        torch.testing.assert_close(proba.sum(1), torch.ones(len(proba)))
        delta = group_operator(data.sens[nodes])
        decided = delta.gap(torch.nn.functional.one_hot(proba.argmax(1), 2).float())
        one_decision = float(delta.rows.abs().max())
        assert float(decided.abs().max()) <= 0.01 + one_decision


def test_on_probabilities_holds_the_target_at_the_temperature_of_the_layer(data: Data) -> None:
    layer = FMP(5, 3.0, target=0.01, temperature=0.1)
    model = FairClassifier(layer, on="probabilities", **SETTING, backbone="mlp")
    model.fit(data, seed=0, split_seed=0)
    sharp = (model.predict_proba(data).log() / 0.1).softmax(1)
    assert float(group_operator(data.sens).gap(sharp).abs().max()) <= 0.01 + 1e-4


def test_per_node_predictions_do_not_depend_on_other_nodes(
    data: Data, fair: FairClassifier
) -> None:
    everyone = fair.predict_proba(data, mode="per-node")
    single_node = torch.zeros(data.num_nodes, dtype=torch.bool)
    single_node[17] = True
    torch.testing.assert_close(
        fair.predict_proba(data, nodes=single_node, mode="per-node")[0], everyone[17]
    )
    held_out = fair.evaluate(with_split(data, seed=0), mode="per-node", bootstrap=0)
    assert held_out.mode == "per-node"
    assert held_out.dp < 0.15  # 250 nodes of each group
    zeros = torch.zeros_like(single_node)
    zeros[(data.sens == 0).nonzero()[:3]] = True
    with pytest.raises(InputError, match="'group 1' has no node among the 3"):
        fair.predict_proba(data, nodes=zeros)
    assert fair.predict_proba(data, nodes=zeros, mode="per-node").shape == (3, 2)


@pytest.fixture(scope="module")
def with_intervals(data: Data) -> FairClassifier:
    model = FairClassifier(FMP(2, 3.0, target=0.0), epochs=3, backbone="mlp")
    return model.fit(data, seed=0, split_seed=0, bootstrap=20)


CLOSED = {"dp", "impact_ratio"}  # what closing the gap of decisions closes


def test_gap_closed_in_a_batch_has_no_interval(data: Data, with_intervals: FairClassifier) -> None:
    run = with_intervals.run_
    assert run.uncorrected is not None
    measured = run.uncorrected.intervals.keys()
    assert measured > CLOSED
    on_request = with_intervals.evaluate(with_split(data, seed=0), bootstrap=20)
    for batch in (run.train, run.val, run.test, on_request):
        assert batch.mode == "batch"
        assert batch.dp < 0.01
        assert batch.intervals.keys() == measured - CLOSED
        assert batch.notes.count(CLOSED_NOTE) == 1


def test_gap_of_per_node_predictions_has_an_interval(
    data: Data, with_intervals: FairClassifier
) -> None:
    held_out = with_intervals.evaluate(with_split(data, seed=0), mode="per-node", bootstrap=20)
    assert with_intervals.run_.uncorrected is not None
    assert held_out.intervals.keys() == with_intervals.run_.uncorrected.intervals.keys()
    assert CLOSED_NOTE not in held_out.notes
    low, high = held_out.intervals["dp"]
    assert low <= held_out.dp <= high
    assert high - low > 0.02  # 250 nodes of each group


@pytest.mark.parametrize(
    ("layer", "options"),
    [
        (FMP(2, 3.0, solver="papc"), {}),
        (FMP(2, 3.0, solver="released"), {}),
        (FMP(2, 3.0), {"on": "probabilities"}),
        (PPR(2, 3.0), {}),
    ],
)
def test_gap_of_decisions_that_no_batch_closes_has_an_interval(
    data: Data, layer: PPR, options: dict[str, str]
) -> None:
    model = FairClassifier(layer, epochs=3, backbone="mlp", **options)
    test = model.fit(data, seed=0, split_seed=0, bootstrap=20).run_.test
    assert test.intervals.keys() > CLOSED
    assert CLOSED_NOTE not in test.notes


def test_seed_and_split_seed_are_independent(data: Data) -> None:
    make = lambda: FairClassifier(None, epochs=3, backbone="mlp")  # noqa: E731
    runs = [
        make().fit(data, seed=seed, split_seed=split, bootstrap=0).run_
        for seed, split in ((0, 0), (0, 0), (1, 0), (0, 1))
    ]
    tests = [run.test.groups for run in runs]
    assert tests[0] == tests[1]
    assert tests[0] != tests[2]
    assert tests[0] != tests[3]
    assert [run.split_seed for run in runs] == [0, 0, 0, 1]


def test_masks_of_the_data_are_used(data: Data) -> None:
    split_data = with_split(data, seed=9)
    run = FairClassifier(None, epochs=2, backbone="mlp").fit(split_data, bootstrap=0).run_
    assert run.split_seed is None
    assert run.test.n == int(split_data.test_mask.sum())
    bare = Data(**{k: data[k] for k in ("x", "edge_index", "y", "sens")})
    assert (
        FairClassifier(None, epochs=2, backbone="mlp").fit(bare, bootstrap=0).run_.split_seed == 0
    )


def test_run_as_one_line_of_json(fair: FairClassifier) -> None:
    line = fair.run_.to_json()
    assert "\n" not in line
    record = json.loads(line)
    assert record["config"]["propagation"]["target"] == 0.01
    assert record["test"]["dp"] == fair.run_.test.dp
    assert set(record["versions"]) == {"fairmp", "torch", "torch_geometric", "numpy"}


def test_score_is_accuracy_on_the_test_nodes(data: Data, fair: FairClassifier) -> None:
    split = with_split(data, seed=0)
    assert fair.score(split) == fair.run_.test.accuracy
    truth = np.array(split.class_names)[split.y[split.test_mask]]
    hits = fair.predict(split, nodes=split.test_mask) == truth
    assert hits.mean() == pytest.approx(fair.run_.test.accuracy)


@pytest.mark.parametrize(
    "make",
    [
        lambda: FairClassifier(FMP(3, 2.0, target=0.02), epochs=3, backbone="mlp"),
        lambda: FairClassifier(PPR(2, 1.0), strategy=Regulariser(2.0), epochs=3, backbone="mlp"),
        lambda: FairClassifier(
            None, epochs=3, norm="batch_norm", dropout=0.2, num_layers=3, backbone="mlp"
        ),
        lambda: FairClassifier(FMP(2, 1.0, solver="papc"), backbone="gcn", hidden=8, epochs=3),
    ],
)
def test_saved_model_predicts_the_same(make: object, data: Data, tmp_path: Path) -> None:
    model = make()  # type: ignore[operator]
    model.fit(data, bootstrap=0)
    folder = model.save(tmp_path / "model")
    assert [p.name for p in folder.iterdir()] == ["model.safetensors"]
    again = FairClassifier.load(folder)
    assert again.config() == model.config()
    assert again.classes_ == model.classes_
    for mode in ("batch", "per-node"):
        mine = model.predict_proba(data, mode=mode)
        assert torch.equal(mine, again.predict_proba(data, mode=mode))


def test_save_does_not_overwrite(fair: FairClassifier, tmp_path: Path) -> None:
    folder = fair.save(tmp_path / "model")
    content = (folder / "model.safetensors").read_bytes()
    with pytest.raises(InputError, match="exists"):
        fair.save(folder)
    assert (folder / "model.safetensors").read_bytes() == content
    fair.save(folder, overwrite=True)
    with pytest.raises(InputError, match="is a file"):
        fair.save(folder / "model.safetensors")


def test_wrong_arguments_are_named(data: Data, fair: FairClassifier, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not fitted"):
        FairClassifier().predict(data)
    with pytest.raises(InputError, match="not fitted"):
        FairClassifier().save(tmp_path / "x")
    with pytest.raises(InputError, match="mode: 'guess'"):
        fair.predict(data, mode="guess")  # type: ignore[arg-type]
    for wrong in (
        torch.ones(3, dtype=torch.bool),
        [0.5],
        [[1, 2]],
        [],
        "all",
        [2000],
        [-1],
        [None],
    ):
        with pytest.raises(InputError, match=r"nodes: .* boolean mask of 2000 nodes"):
            fair.predict(data, nodes=wrong)
    with pytest.raises(InputError, match="propagation: 'FMP'"):
        FairClassifier("FMP", backbone="mlp")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="on: 'luck'"):
        FairClassifier(on="luck", backbone="mlp")
    with pytest.raises(InputError, match="device: 'abacus'"):
        FairClassifier(device="abacus", backbone="mlp")
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="CUDA is not available"):
            FairClassifier(device="cuda", backbone="mlp")
    narrow = data.clone()
    narrow.x = data.x[:, :5]
    with pytest.raises(InputError, match="5 features, the model was trained on 32"):
        fair.predict(narrow)
    blind = data.clone()
    blind.sens = None
    with pytest.raises(InputError, match=r"data\.sens: missing"):
        fair.predict(blind)
    crowded = data.clone()
    crowded.sens = data.sens + 1
    with pytest.raises(InputError, match="group 2 was not seen in training"):
        fair.predict(crowded)


def test_many_classes_and_groups_with_unknowns() -> None:
    data = social_network(
        n=1500, average_degree=10, classes=3, groups=4, base_rate=0.34, base_rate_gap=0.2
    )
    data.sens[::11] = -1
    data.y[::13] = -1
    model = FairClassifier(FMP(3, 2.0), **SETTING, backbone="mlp")
    run = model.fit(data, split_seed=0).run_
    plain = FairClassifier(PPR(3, 2.0), **SETTING, backbone="mlp").fit(data, split_seed=0).run_
    assert run.test.dp < plain.test.dp
    assert len(run.test.groups) == 4
    proba = model.predict_proba(data)
    known = data.sens >= 0
    delta = group_operator(data.sens[known])
    decided = torch.nn.functional.one_hot(proba[known].argmax(1), 3).float()
    assert float(delta.gap(decided).abs().max()) <= 2 * float(delta.rows.abs().max())


@pytest.mark.gpu
def test_gpu_and_cpu_agree(data: Data) -> None:
    runs = [
        FairClassifier(FMP(5, 3.0, target=0.01), device=device, **SETTING, backbone="mlp")
        .fit(data, split_seed=0)
        .run_
        for device in ("cpu", "cuda")
    ]
    assert runs[1].test.dp < 0.03
    assert runs[1].test.accuracy == pytest.approx(runs[0].test.accuracy, abs=0.03)


def test_features_in_half_precision(data: Data) -> None:
    half = copy.copy(data)
    half.x = data.x.half()
    model = FairClassifier(FMP(K=2), epochs=3, backbone="mlp")
    model.fit(half, bootstrap=0)
    assert half.x.dtype == torch.float16
    torch.testing.assert_close(
        model.predict_proba(half), model.predict_proba(data), atol=1e-2, rtol=0
    )


def test_predict_in_inference_mode(data: Data, fair: FairClassifier) -> None:
    expected = fair.predict_proba(data)
    with torch.inference_mode():
        assert torch.equal(fair.predict_proba(data), expected)


def test_groups_changed_in_place_are_seen(data: Data, fair: FairClassifier) -> None:
    changed = copy.copy(data)
    changed.sens = data.sens.clone()
    before = fair.predict_proba(changed)
    changed.sens.numpy()[:] = data.sens.roll(1).numpy()
    assert not torch.equal(fair.predict_proba(changed), before)


def test_pickled_network_has_no_training_data(data: Data, fair: FairClassifier) -> None:
    fair.predict_proba(data)
    weights = sum(weight.numel() for weight in fair.network_.parameters())
    assert len(pickle.dumps(fair.network_)) < 4 * weights + data.sens.numel() + 8_000


def test_learned_smoothing_starts_again_with_each_fit(data: Data, tmp_path: Path) -> None:
    model = FairClassifier(FMP(3, "learned"), epochs=4, lr=0.05, backbone="mlp")
    first = model.fit(data, bootstrap=0).run_
    learned = model.network_.propagation.theta.detach().clone()
    assert float(model.propagation.theta.detach().abs().max()) == 0
    assert float(learned.abs().max()) > 0
    assert model.fit(data, bootstrap=0).run_.test.accuracy == first.test.accuracy
    again = FairClassifier.load(model.save(tmp_path / "model"))
    assert torch.equal(again.predict_proba(data), model.predict_proba(data))
    other = FairClassifier(
        FMP(3, "learned"), criterion="equal_opportunity", epochs=2, backbone="mlp"
    )
    assert other.fit(data, bootstrap=0).run_.test.mode == "per-node"


def test_predict_returns_names_of_classes(data: Data, fair: FairClassifier) -> None:
    decided = fair.predict_proba(data).argmax(1)
    assert set(fair.predict(data)) <= set(fair.classes_) == {"class 0", "class 1"}
    assert (fair.predict(data) == np.array(fair.classes_)[decided]).all()
    bare = Data(**{k: data[k] for k in ("x", "edge_index", "y", "sens")})
    model = FairClassifier(None, epochs=2, backbone="mlp")
    model.fit(bare, bootstrap=0)
    assert torch.equal(torch.from_numpy(model.predict(bare)), model.predict_proba(bare).argmax(1))


def test_clone_is_unfitted_with_the_same_arguments(fair: FairClassifier, data: Data) -> None:
    model = clone(fair)
    assert not hasattr(model, "network_")
    assert model.config() == fair.config()
    assert model.propagation is not fair.propagation
    other = clone(FairClassifier(FMP(target=0.1), criterion="equal-opportunity", backbone="gcn"))
    assert (other.criterion, other.propagation.target) == ("equal_opportunity", 0.1)
    assert model.fit(data, seed=0, split_seed=0).run_.test.accuracy == fair.run_.test.accuracy


def test_grid_search_is_refused(data: Data) -> None:
    search = GridSearchCV(FairClassifier(), {"lr": [0.01, 0.1]})
    with pytest.raises(InputError, match=r"cut tables into rows.*fairmp tune"):
        search.fit(data.x.numpy(), data.y.numpy())


def test_get_and_set_params() -> None:
    model = FairClassifier(FMP(K=3, target=0.02), lr=0.1, backbone="mlp")
    params = model.get_params()
    assert (params["lr"], params["propagation__K"], params["propagation__target"]) == (0.1, 3, 0.02)
    assert "propagation__K" not in model.get_params(deep=False)
    assert model.set_params(hidden=8, propagation__K=7) is model
    assert (model.hidden, model.propagation.K, model.propagation.target) == (8, 7, 0.02)
    assert model.set_params(propagation=PPR(2), propagation__lambda_s=5.0).propagation.K == 2
    before = model.get_params()
    for wrong in ({"hiden": 3}, {"propagation__speed": 1}, {"lr": 0.2, "device": "abacus"}):
        with pytest.raises(InputError):
            model.set_params(**wrong)
    assert model.get_params() == before


@pytest.mark.parametrize("directed", [False, True])
def test_order_locality_gives_the_same_results(data: Data, directed: bool) -> None:
    shuffled = copy.copy(data)
    random = torch.Generator().manual_seed(0)
    shuffled.edge_index = torch.randperm(data.num_nodes, generator=random)[data.edge_index]
    if directed:
        shuffled.edge_index = shuffled.edge_index[:, ::3]
    shuffled.sample_weight = torch.rand(data.num_nodes, generator=random)
    results = []
    for order in ("given", "locality"):
        model = FairClassifier(FMP(3, 2.0), **SETTING, backbone="mlp")
        run = model.fit(shuffled, split_seed=0, bootstrap=0, order=order).run_
        proba = model.predict_proba(shuffled, mode="per-node")
        results.append((model.logits_, model.test_logits_, proba, model.uncorrected()))
        assert run.config == model.config()
    for unmoved, moved in zip(*results, strict=True):
        torch.testing.assert_close(moved, unmoved, rtol=1e-3, atol=1e-3)


def test_order_locality_is_refused_without_a_network(data: Data) -> None:
    for model in (FairClassifier(FMP(), backbone="trees"), FairClassifier(FMP())):
        with pytest.raises(InputError, match="order"):
            model.fit(data, order="locality")
    with pytest.raises(InputError, match="order"):
        FairClassifier(FMP(), backbone="mlp").fit(data, order="random")


def test_regressor_as_backbone_is_refused() -> None:
    with pytest.raises(InputError, match=r"backbone: LinearRegression.* is neither a name"):
        FairClassifier(backbone=LinearRegression())


def spoiled(data: Data, **changes: object) -> Data:
    graph = data.clone()
    for name, value in changes.items():
        setattr(graph, name, value)
    return graph


def test_fit_names_what_is_wrong_with_a_graph(data: Data) -> None:
    n = data.num_nodes
    nan = data.x.clone()
    nan[3, 1] = math.nan
    cases = [
        (spoiled(data, x=nan), ["data.x", "node 3", "column 1", "nan"]),
        (spoiled(data, x=data.x.long()), ["data.x", "int64"]),
        (spoiled(data, y=data.y[:-1]), ["data.y", f"({n - 1},)", f"x has {n} rows"]),
        (spoiled(data, y=torch.full((n,), -1)), ["data.y", "unknown", "labelled nodes"]),
        (spoiled(data, y=torch.ones(n, dtype=torch.long)), ["data.y", "two classes"]),
        (spoiled(data, y=data.y - 5), ["data.y", "-5"]),
        (spoiled(data, sens=torch.zeros(n, dtype=torch.long)), ["data.sens", "at least two"]),
        (spoiled(data, sens=torch.full((n,), -1)), ["data.sens", "unknown"]),
        (spoiled(data, sens=data.sens * 2), ["data.sens", "group 1 has no node"]),
        (spoiled(data, sens=data.sens.float()), ["data.sens", "float32"]),
        (spoiled(data, sens=None), ["data.sens", "missing"]),
        (spoiled(data, val_mask=data.train_mask), ["val_mask", "train_mask", "disjoint"]),
        (spoiled(data, test_mask=data.val_mask), ["test_mask", "val_mask", "disjoint"]),
        (spoiled(data, train_mask=torch.zeros(n, dtype=torch.bool)), ["train_mask", "no node"]),
        (
            spoiled(data, y=torch.where(data.val_mask, -1, data.y)),
            ["val_mask", "no known label"],
        ),
    ]
    for wrong, words in cases:
        with pytest.raises(InputError) as error:
            FairClassifier(None, epochs=1, backbone="mlp").fit(wrong)
        assert all(word in str(error.value) for word in words), str(error.value)
        assert "\n" not in str(error.value)
    with pytest.raises(InputError, match="first item"):
        FairClassifier(None, epochs=1, backbone="mlp").fit([data])  # type: ignore[arg-type]

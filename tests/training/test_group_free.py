from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from fairlearn.metrics import (
    demographic_parity_difference,
    equalized_odds_difference,
    false_positive_rate_difference,
    true_positive_rate_difference,
)
from sklearn.metrics import roc_auc_score
from torch_geometric.data import Data

from fairmp import FMP, PPR, FairClassifier, InputError
from fairmp.datasets import social_network
from fairmp.training.group_free import CANDIDATES, group_reliance

DIFFERENCES = {
    "equal_opportunity": true_positive_rate_difference,
    "false_positive_rate_parity": false_positive_rate_difference,
    "equalized_odds": equalized_odds_difference,
}
FAST = {"backbone": "logistic", "folds": 2}


@pytest.fixture(scope="module")
def data() -> Data:
    data = social_network(n=1200, average_degree=8, base_rate_gap=0.3, seed=1)
    data.sens[::11] = -1
    data.train_mask &= data.sens >= 0
    data.val_mask &= data.sens >= 0
    data.test_mask &= data.sens >= 0
    return data


@pytest.fixture(scope="module")
def model(data: Data) -> FairClassifier:
    return FairClassifier(FMP(target=0.02), group_free=True, **FAST).fit(data, bootstrap=0)


def gap(data: Data, decided: torch.Tensor, nodes: torch.Tensor) -> float:
    return float(
        demographic_parity_difference(
            data.y[nodes], decided[nodes], sensitive_features=data.sens[nodes]
        )
    )


def test_gap_between_true_groups_is_closed_on_held_out_nodes(
    data: Data, model: FairClassifier
) -> None:
    assert not model.uses_groups
    assert model.run_.test.mode == "per-node"
    plain, fair = model.uncorrected().argmax(1), model.predict_proba(data).argmax(1)
    assert gap(data, plain, data.val_mask) > 0.15
    assert model.run_.val.dp <= 0.03
    assert gap(data, fair, data.test_mask) < 0.5 * gap(data, plain, data.test_mask)
    assert model.run_.test.accuracy > float((data.y[data.test_mask] == 0).double().mean()) + 0.05


def test_groups_of_the_predicted_change_nothing(data: Data, model: FairClassifier) -> None:
    expected = model.predict_proba(data)
    blind = Data(x=data.x, edge_index=data.edge_index)
    shuffled = data.clone()
    order = torch.randperm(len(data.sens), generator=torch.Generator().manual_seed(0))
    shuffled.sens = data.sens[order]
    for other in (blind, shuffled):
        for mode in ("batch", "per-node"):
            assert torch.equal(model.predict_proba(other, mode=mode), expected)
    single = model.predict_proba(blind, nodes=[7, 3])
    torch.testing.assert_close(single, expected[[7, 3]], atol=1e-6, rtol=0)


def test_groups_of_test_nodes_are_never_read(data: Data, model: FairClassifier) -> None:
    other = data.clone()
    other.sens[data.test_mask] = 1 - other.sens[data.test_mask]
    again = FairClassifier(FMP(target=0.02), group_free=True, **FAST).fit(other, bootstrap=0)
    assert torch.equal(again.predict_proba(data), model.predict_proba(data))


def test_own_group_does_not_enter_its_estimate(data: Data, model: FairClassifier) -> None:
    # A label that is noise: estimates that had seen a node's own group would predict it.
    noise = data.clone()
    generator = torch.Generator().manual_seed(0)
    noise.sens = torch.randint(2, data.sens.shape, generator=generator)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no rule closes a gap between random groups by features
        random = FairClassifier(FMP(target=0.5), group_free=True, **FAST).fit(noise, bootstrap=0)
    known = ~noise.test_mask
    margin = random.group_logits_[:, 1] - random.group_logits_[:, 0]
    assert abs(roc_auc_score(noise.sens[known], margin[known]) - 0.5) < 0.06
    known = (data.sens >= 0) & ~data.test_mask
    margin = model.group_logits_[:, 1] - model.group_logits_[:, 0]
    assert roc_auc_score(data.sens[known], margin[known]) > 0.9


def test_estimates_are_calibrated(data: Data, model: FairClassifier) -> None:
    a = model.estimate_groups(data)[:, 1].numpy()
    test = data.test_mask.numpy()
    assert abs(a[test].mean() - data.sens[data.test_mask].double().mean()) < 0.05
    sure = test & (a > 0.8)
    assert abs(a[sure].mean() - data.sens.numpy()[sure].mean()) < 0.1
    torch.testing.assert_close(
        model.estimate_groups(data, nodes=[5, 2]),
        torch.from_numpy(a[[5, 2]]).new_tensor(np.stack([1 - a[[5, 2]], a[[5, 2]]], 1)),
    )


def test_without_neighbours_groups_none_is_stored(data: Data, model: FairClassifier) -> None:
    setting = {"group_free": True, "neighbour_groups": False, **FAST}
    alone = FairClassifier(FMP(target=0.02), **setting).fit(data, bootstrap=0)
    assert {(t.model, t.reads) for t in alone.run_.group_tried} == set(CANDIDATES)
    stored = [t for k, t in alone.group_network_.state_dict().items() if k.endswith("labels")]
    assert all(not bool((labels >= 0).any()) for labels in stored)
    known = (data.sens >= 0) & ~data.test_mask
    aucs = [
        roc_auc_score(data.sens[known], (m.group_logits_[:, 1] - m.group_logits_[:, 0])[known])
        for m in (alone, model)
    ]
    assert 0.6 < aucs[0] < aucs[1]
    # Another graph has no known neighbours to miss.
    other = Data(x=data.x[:50], edge_index=torch.tensor([[0, 1], [1, 0]]))
    assert alone.predict_proba(other).shape == (50, 2)


@pytest.mark.parametrize("neighbour_groups", [True, False])
def test_saved_model_predicts_the_same(data: Data, tmp_path: Path, neighbour_groups: bool) -> None:
    setting = {"group_free": True, "neighbour_groups": neighbour_groups, "folds": 2}
    model = FairClassifier(FMP(target=0.02), criterion="equal_opportunity", **setting)
    model.set_params(backbone="mlp", epochs=5)
    model.fit(data, bootstrap=0)
    again = FairClassifier.load(model.save(tmp_path))
    blind = Data(x=data.x, edge_index=data.edge_index)
    assert torch.equal(again.predict_proba(blind), model.predict_proba(data))
    assert again.group_free
    assert again.neighbour_groups == neighbour_groups
    assert torch.equal(again.estimate_groups(blind), model.estimate_groups(data))


@pytest.mark.filterwarnings("ignore:.*above the target")  # four cells of some 70 nodes each
@pytest.mark.parametrize("criterion", DIFFERENCES)
def test_criteria_on_labels(data: Data, criterion: str) -> None:
    if criterion == "false_positive_rate_parity":  # the gap of this graph is among class 1
        data = data.clone()
        data.y = 1 - data.y
    blind = FairClassifier(FMP(target=0.02), criterion=criterion, group_free=True, **FAST)
    blind.fit(data, bootstrap=0)
    nodes = ~data.test_mask & (data.sens >= 0)
    decisions = [blind.uncorrected().argmax(1), blind.predict_proba(data).argmax(1)]
    before, after = (
        DIFFERENCES[criterion](data.y[nodes], decided[nodes], sensitive_features=data.sens[nodes])
        for decided in decisions
    )
    assert before > 0.08
    assert after < 0.6 * before


def test_three_groups_and_three_classes() -> None:
    data = social_network(n=1500, average_degree=8, groups=3, classes=3, seed=2)
    model = FairClassifier(FMP(target=0.03), group_free=True, **FAST).fit(data, bootstrap=0)
    assert model.predict_proba(Data(x=data.x, edge_index=data.edge_index)).shape == (1500, 3)
    assert model.estimate_groups(data).shape == (1500, 3)
    assert model.run_.val.dp <= 0.05


def test_cross_fitted_default_is_corrected_on_out_of_fold_nodes() -> None:
    data = social_network(n=300, average_degree=6, base_rate_gap=0.4)
    setting = {"folds": 2, "time_budget": 0.0, "epochs": 5}
    blind = FairClassifier(FMP(lambda_s="learned", target=0.05), group_free=True, **setting)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        blind.fit(data, bootstrap=0)
    assert blind.held_out_.nodes.sum() >= 100
    assert torch.isfinite(blind.predict_proba(data)).all()


def test_promises_are_made_for_groups_and_without_them(data: Data, tmp_path: Path) -> None:
    large = social_network(n=2400, average_degree=6, base_rate_gap=0.3, seed=3)
    for group_free in (False, True):
        setting = {"group_free": group_free, "confidence": 0.9, **FAST}
        model = FairClassifier(FMP(target=0.35), **setting).fit(large, bootstrap=0)
        promise = model.run_.promise
        assert promise is not None
        assert promise.bound <= 0.35
        assert model.run_.test.mode == "per-node"
        assert model.run_.test.dp < 0.35
        assert str(promise) in str(model.run_)
        again = FairClassifier.load(model.save(tmp_path / str(group_free)))
        assert again.debiaser_ is not None
        assert again.debiaser_.promise_ == promise
        assert torch.equal(again.predict_proba(large), model.predict_proba(large))
    with pytest.raises(InputError, match="too few people"):
        FairClassifier(FMP(target=0.01), confidence=0.95, **FAST).fit(data, bootstrap=0)


def test_reliance_finds_the_columns_that_tell_the_group(model: FairClassifier, data: Data) -> None:
    reliance = group_reliance(model.fitted_, data, data.test_mask)
    own, _, known = reliance.parts
    assert reliance.auc > 0.9
    # Neighbours share the group in 92 % of the edges; features tell less.
    assert known.auc < own.auc < reliance.auc
    assert "group" in reliance.columns[0].columns
    assert reliance.columns[0].auc == min(each.auc for each in reliance.columns)


def test_wrong_arguments_are_named(data: Data) -> None:
    for arguments, word in (
        ({"group_free": True}, "group_free"),
        ({"confidence": 0.9}, "confidence"),
    ):
        with pytest.raises(InputError, match=word):
            FairClassifier(PPR(), **arguments)
    with pytest.raises(InputError, match="decisions"):
        FairClassifier(FMP(), group_free=True, on="probabilities")
    with pytest.raises(InputError, match="a gap of 0 cannot be promised"):
        FairClassifier(FMP(target=0.0), confidence=0.9)
    with pytest.raises(InputError, match="estimates none"):
        FairClassifier(**FAST).fit(data, bootstrap=0).estimate_groups(data)
    revealing = data.clone()
    revealing.x = torch.cat([data.x, data.sens.float()[:, None]], 1)
    with pytest.raises(InputError, match="is the group"):
        FairClassifier(group_free=True, **FAST).fit(revealing)
    single = data.clone()
    single.sens = torch.zeros_like(data.sens)
    single.sens[data.test_mask.nonzero()[:9, 0]] = 1
    single.sens[data.train_mask.nonzero()[0, 0]] = 1
    single.sens[data.val_mask.nonzero()[0, 0]] = 1
    with pytest.raises(InputError, match="2 nodes of group"):
        FairClassifier(group_free=True, **FAST).fit(single)

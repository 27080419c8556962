from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache, partial

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from torch.nn.functional import one_hot
from torch_geometric.nn import GCN

from fairmp import InputError, debias
from fairmp.datasets import social_network
from fairmp.groups import group_operator
from fairmp.metrics import equal_opportunity, equalized_odds, false_positive_rate_parity
from fairmp.postprocessing.debiaser import Debiaser

debias_fully = partial(debias, full_output=True)
debias_probabilities = partial(debias, on="probabilities")
Outside = tuple[np.ndarray, np.ndarray, np.ndarray]


@cache
def of_sklearn(seed: int) -> Outside:
    """A logistic regression's probabilities on nodes it has not seen, labels and groups."""
    data = social_network(n=3000, average_degree=8, sens_signal=1.5, seed=seed)
    x, y = data.x.double().numpy(), data.y.numpy()
    half = len(y) // 2
    model = LogisticRegression(max_iter=1000).fit(x[:half], y[:half])
    return model.predict_proba(x[half:]), y[half:], data.sens.numpy()[half:]


@cache
def of_pyg(seed: int) -> Outside:
    """The logits of PyG's GCN on nodes it was not trained on, labels and groups."""
    data = social_network(n=6000, average_degree=5, seed=seed)
    torch.manual_seed(seed)
    model = GCN(data.x.size(1), 16, 2, 2)
    descent = torch.optim.Adam(model.parameters(), lr=0.05, weight_decay=5e-4)
    for _ in range(40):
        descent.zero_grad()
        logits = model(data.x, data.edge_index)[data.train_mask]
        torch.nn.functional.cross_entropy(logits, data.y[data.train_mask]).backward()
        descent.step()
    others = ~data.train_mask
    with torch.no_grad():
        logits = model(data.x, data.edge_index)[others]
    return logits.numpy(), data.y[others].numpy(), data.sens[others].numpy()


@pytest.mark.parametrize("model", [of_sklearn, of_pyg])
def test_debias_with_larger_targets_costs_less_accuracy(model: Callable[[int], Outside]) -> None:
    shares = np.linspace(0, 1, 6)
    cost, moved = np.zeros((6, 6)), np.zeros((6, 6))
    for seed in range(6):
        scores, y, sens = model(seed)
        correct = partial(debias_probabilities, scores, sens, full_output=True)
        uncorrected = correct(target=1.0).criteria[0].before
        assert uncorrected > 0.05
        for k, share in enumerate(shares):
            result = correct(target=share * uncorrected, y=y)
            assert result.criteria[0].after == pytest.approx(share * uncorrected, abs=1e-4)
            cost[seed, k] = result.accuracy_before - result.accuracy_after
            moved[seed, k] = result.divergence
    # A tenth of a point is a few of 18,000 decisions that happened to be right.
    assert (np.diff(cost.mean(0)) <= 1e-3).all(), cost.mean(0)
    assert cost.mean(0)[0] > 0.005
    assert (np.diff(moved, axis=1) < 0).all()
    assert np.abs(moved[:, -1]).max() < 1e-9


@pytest.fixture(scope="module")
def outside() -> Outside:
    """Predictions of a model that knows nothing of us, with labels and groups."""
    return of_sklearn(0)


@pytest.fixture(scope="module")
def several() -> Outside:
    """Three classes and four groups on the embedded network."""
    data = social_network(
        n=6000, average_degree=8, classes=3, groups=4, sens_signal=1.5, base_rate=0.33,
        base_rate_gap=0.3,
    )  # fmt: skip
    x = np.c_[data.x.double().numpy(), np.eye(4)[data.sens]]
    y = data.y.numpy()
    model = LogisticRegression(max_iter=1000).fit(x[:3000], y[:3000])
    return model.predict_proba(x[3000:]), y[3000:], data.sens.numpy()[3000:]


def gap(p: np.ndarray, sens: np.ndarray) -> float:
    return abs(float(p[sens == 1].mean() - p[sens == 0].mean()))


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_debias_meets_any_target_of_probabilities(outside: Outside, share: float) -> None:
    p, _, sens = outside
    before = gap(p[:, 1], sens)
    assert before > 0.1
    corrected = debias_probabilities(p, sens, target=share * before)
    assert isinstance(corrected, np.ndarray)
    np.testing.assert_allclose(corrected.sum(1), 1)
    assert gap(corrected[:, 1], sens) == pytest.approx(share * before, abs=1e-4)


def test_debias_with_larger_targets_moves_probabilities_less(outside: Outside) -> None:
    p, _, sens = outside
    before = gap(p[:, 1], sens)
    moved = [
        np.abs(debias_probabilities(p, sens, target=share * before) - p).mean()
        for share in np.linspace(0, 1, 6)
    ]
    assert moved == sorted(moved, reverse=True)
    assert moved[-1] < 1e-9


@pytest.mark.parametrize("on", ["decisions", "probabilities"])
def test_debias_keeps_the_order_within_a_group(outside: Outside, on: str) -> None:
    p, _, sens = outside
    corrected = debias(p, sens, on=on)
    for group in (0, 1):
        inside = sens == group
        order = np.argsort(p[inside, 1])
        assert (np.diff(corrected[inside, 1][order]) >= 0).all()


@pytest.mark.parametrize("on", ["decisions", "probabilities"])
def test_debias_returns_the_type_that_was_given(on: str, outside: Outside) -> None:
    p, _, sens = outside
    correct = partial(debias, on=on)
    expected = correct(p, sens)
    frame = pd.DataFrame(p, columns=["no", "yes"], index=np.arange(len(p)) + 7)
    corrected = correct(frame, pd.Series(sens))
    assert isinstance(corrected, pd.DataFrame)
    assert list(corrected.columns) == ["no", "yes"]
    assert (corrected.index == frame.index).all()
    np.testing.assert_allclose(corrected, expected)
    column = correct(frame["yes"], sens)
    assert isinstance(column, pd.Series)
    assert column.name == "yes"
    np.testing.assert_allclose(column, expected[:, 1])
    tensor = correct(torch.from_numpy(p).float(), torch.from_numpy(sens))
    assert tensor.dtype == torch.float32
    np.testing.assert_allclose(tensor, expected, atol=1e-5)
    logits = correct(np.log(p), sens)
    np.testing.assert_allclose(torch.from_numpy(logits).softmax(1), expected)
    np.testing.assert_allclose(frame, p)


@pytest.mark.parametrize("on", ["decisions", "probabilities"])
def test_debias_smooths_with_a_graph_and_keeps_unknown_groups(on: str) -> None:
    data = social_network(n=2000, average_degree=10)
    logits = 3 * torch.randn(2000, 2, generator=torch.Generator().manual_seed(0))
    logits[:, 1] += 2.0 * data.sens
    sens = data.sens.clone()
    sens[::7] = -1
    corrected = debias(logits, sens, target=0.02, on=on)
    assert torch.equal(corrected[sens < 0], logits[sens < 0])
    smoothed = debias(logits, sens, edge_index=data.edge_index, target=0.02, on=on)
    assert float(smoothed.std()) < float(corrected.std())
    for fair in (corrected, smoothed):
        p = fair.softmax(1) if on == "probabilities" else one_hot(fair.argmax(1), 2).float()
        gap = float(group_operator(sens).gap(p).abs().max())
        assert gap <= 0.02 + (1e-4 if on == "probabilities" else 1 / 600)


@given(
    p=st.lists(st.floats(0, 1), min_size=4, max_size=30), target=st.sampled_from([0.0, 0.05, 0.3])
)
@pytest.mark.filterwarnings("ignore:everyone is decided")
def test_debias_takes_any_probabilities(p: list[float], target: float) -> None:
    sens = np.arange(len(p)) % 2
    fair = debias_probabilities(np.array(p), sens, target=target)
    assert gap(fair, sens) <= target + 1e-4
    decided = debias(np.array(p), sens, target=target) > 0.5
    assert gap(decided.astype(float), sens) <= target + 1 / (len(p) // 2) + 1e-9


@pytest.mark.parametrize(
    ("predictions", "sens", "words"),
    [
        ([[0.2, 0.2], [0.5, 0.5]], [0, 1], ["row 0", "0.4", "sum to 1"]),
        ([[0.2, np.nan], [0.5, 0.5]], [0, 1], ["row 0", "nan or infinite"]),
        ([0.2, 1.2], [0, 1], ["1.2", "row 1", "n×2"]),
        ([["a", "b"]], [0, 1], ["not numbers"]),
        ([[0.5, 0.5]] * 3, [0, 1], ["sens", "3 nodes"]),
        ([[1.0], [1.0]], [0, 1], ["shape (2, 1)"]),
        ([0.2, 0.4], [0, 0], ["1 group"]),
    ],
)
def test_debias_names_wrong_scores(predictions: object, sens: object, words: list[str]) -> None:
    with pytest.raises(InputError) as error:
        debias(predictions, sens)
    assert all(word in str(error.value) for word in words), str(error.value)


@pytest.mark.parametrize(
    ("argument", "value"),
    [("target", 2), ("temperature", 0), ("temperature", 0.1), ("on", "scores"), ("ties", "split")],
)
def test_debias_names_wrong_settings(argument: str, value: object) -> None:
    with pytest.raises(InputError) as error:
        debias([0.2, 0.4], [0, 1], **{argument: value})
    assert error.value.argument == argument


def rates(p: np.ndarray, y: np.ndarray, sens: np.ndarray, label: int) -> np.ndarray:
    """Mean probabilities by group among nodes of one true class, written out."""
    return np.array([p[(sens == g) & (y == label)].mean(0) for g in np.unique(sens)])


@pytest.mark.parametrize("target", [0.0, 0.02, 0.08])
def test_debias_equalizes_odds_of_probabilities(outside: Outside, target: float) -> None:
    p, y, sens = outside
    corrected = debias_probabilities(p, sens, criterion="equalized_odds", y=y, target=target)
    for label in (0, 1):
        rate = rates(corrected, y, sens, label)
        assert abs(rate[1, 1] - rate[0, 1]) <= target + 1e-4
    assert (corrected.argmax(1) == y).mean() > (p.argmax(1) == y).mean() - 0.04


def test_debias_reads_digits_as_the_class_of_that_name(outside: Outside) -> None:
    p, y, sens = outside
    expected = debias_fully(p, sens, y=y).accuracy_before
    named, backwards = y.astype(str), (1 - y).astype(str)
    assert debias_fully(p, sens, y=named).accuracy_before == expected
    swapped: dict[str, object] = {"y": backwards, "class_names": ["1", "0"]}
    assert debias_fully(p, sens, **swapped).accuracy_before == expected
    table = pd.DataFrame(p, columns=["2", "1"])
    result = debias_fully(table, sens, y=np.where(y == 1, "1", "2"))
    assert (result.classes, result.accuracy_before) == (("2", "1"), expected)


def test_debias_meets_two_criteria_of_three_classes_and_four_groups(several: Outside) -> None:
    p, y, sens = several
    result = debias_fully(
        p, sens, criterion=["demographic_parity", "equal_opportunity"], y=y, target=0.01,
        class_names=["a", "b", "c"], on="probabilities",
    )  # fmt: skip
    q = result.predictions
    means = np.array([q[sens == g].mean(0) for g in range(4)])
    assert np.ptp(means, axis=0).max() <= 0.01 + 1e-4
    for label in range(3):
        of_class = rates(q, y, sens, label)[:, label]
        assert np.ptp(of_class) <= 0.01 + 1e-4
    parity, opportunity = result.criteria
    assert (parity.nodes, opportunity.nodes) == (3000, 3000)
    assert min(parity.before, opportunity.before) > 0.1
    # Both at once cost accuracy, and the price is told.
    assert result.accuracy_before > result.accuracy_after > result.accuracy_before - 0.05
    decided = (p.argmax(1) != q.argmax(1)).sum()
    assert result.changed == decided == sum(group.changed for group in result.groups)
    assert "decided c %" in str(result)


@pytest.mark.parametrize("on", ["decisions", "probabilities"])
def test_debias_does_not_read_the_label_of_a_node(outside: Outside, on: str) -> None:
    p, y, sens = outside
    correct = partial(debias, criterion="equal_opportunity", on=on)
    corrected = correct(p, sens, y=y)
    twin = np.r_[p, p]
    # The same people, twice, the second time of unknown label.
    again = correct(twin, np.r_[sens, sens], y=np.r_[y, np.full(len(y), -1)])
    np.testing.assert_allclose(again[: len(y)], again[len(y) :])
    np.testing.assert_allclose(again[: len(y)], corrected, atol=1e-4)


def test_debias_with_a_small_temperature_comes_near_decisions(outside: Outside) -> None:
    p, y, sens = outside
    correct = partial(debias_probabilities, p, sens, y=y, temperature=0.05)
    odds = correct(criterion="equalized_odds")
    before = equalized_odds(p.argmax(1), y, sens)
    assert equalized_odds(odds.argmax(1), y, sens) < 0.25 * before
    opportunity = correct(criterion="equal_opportunity")
    assert equal_opportunity(opportunity.argmax(1), y, sens) < 0.03


def test_debias_warns_of_decisions_that_miss_the_target(outside: Outside) -> None:
    p, y, sens = outside
    before = equalized_odds(p.argmax(1), y, sens)
    with pytest.warns(UserWarning, match="equalized_odds .* above the target"):
        fair = debias(p, sens, criterion="equalized_odds", y=y, ties="keep")
    after = equalized_odds(fair.argmax(1), y, sens)
    assert after < 0.25 * before
    result = debias_fully(p, sens, criterion="equalized_odds", y=y, ties="keep")
    assert result.criteria[0].decisions_after == pytest.approx(after)
    assert any("above the target" in warning for warning in result.warnings)


def test_debias_mixes_certain_predictions(outside: Outside) -> None:
    p, y, sens = outside
    hard = np.eye(2)[p.argmax(1)]
    result = debias_fully(
        hard, sens, kind="probabilities", criterion="equalized_odds", y=y, target=0.01,
        on="probabilities",
    )  # fmt: skip
    for label in (0, 1):
        rate = rates(result.predictions, y, sens, label)[:, 1]
        assert abs(rate[1] - rate[0]) <= 0.01 + 1e-4
    assert any("chance" in warning for warning in result.warnings)
    np.testing.assert_allclose(result.predictions.sum(1), 1)


def test_debias_closes_the_gaps_of_several_attributes(several: Outside) -> None:
    p, y, sens = several
    other = np.where(np.arange(len(y)) % 3 == 0, "", np.where(p[:, 0] > 0.4, "old", "young"))
    people = {"region": sens, "age": other}
    result = debias_fully(p, people, target=0.005, on="probabilities")
    q = result.predictions
    regions = np.array([q[sens == g].mean(0) for g in range(4)])
    assert np.ptp(regions, axis=0).max() <= 0.0051
    ages = [q[other == name].mean(0) for name in ("old", "young")]
    assert np.abs(ages[0] - ages[1]).max() <= 0.0051
    assert [held.attribute for held in result.criteria] == ["region", "age"]
    assert result.group_uncertainty[0].attribute == "age"
    assert result.group_uncertainty[0].left_out == (other == "").sum()
    listed = debias_probabilities(p, pd.DataFrame(people), target=0.005)
    np.testing.assert_allclose(listed, q)
    both = debias_probabilities(
        p, [sens, (p[:, 0] > 0.4).astype(int)], y=y, target=[0.01, 0.03],
        criterion=["demographic_parity", "equal_opportunity"],
    )  # fmt: skip
    assert gap(both[:, 0], (p[:, 0] > 0.4).astype(int)) <= 0.0101


def test_debias_has_one_target_for_each_criterion(outside: Outside) -> None:
    p, y, sens = outside
    correct = partial(debias_probabilities, p, sens, y=y, full_output=True)
    both = ["demographic_parity", "equal_opportunity"]
    strict = correct(criterion=both, target=[0.0, 0.02])
    assert strict.criteria[0].after < 1e-4
    assert strict.criteria[1].after <= 0.0201
    wide = correct(criterion=both, target={"eo": 0.05, "demographic_parity": 0.1})
    assert wide.criteria[0].after <= 0.1001
    assert wide.divergence < strict.divergence


def test_debias_weighs_nodes_by_probabilities_of_groups(outside: Outside) -> None:
    p, _, sens = outside
    shares = np.eye(2)[sens].astype(float)
    shares[::2] = 0.8 * shares[::2] + 0.1
    shares[::5] = 0.0
    weights = shares.sum(0)
    for on, limit in (("probabilities", 1e-4), ("decisions", 1 / weights.min())):
        corrected = debias(p, shares, on=on)
        compared = corrected if on == "probabilities" else np.eye(2)[corrected.argmax(1)]
        means = shares.T @ compared / weights[:, None]
        assert np.abs(means[0] - means[1]).max() < limit
        np.testing.assert_array_equal(corrected[::5], p[::5])
    result = debias_fully(p, shares)
    probable = (shares > 0).sum(1) > 1
    assert result.group_uncertainty[0].nodes == probable.sum()
    assert result.group_uncertainty[0].share == pytest.approx(shares[probable].sum() / shares.sum())
    assert result.group_uncertainty[0].left_out == (shares.sum(1) == 0).sum()


def test_debias_with_estimated_groups_comes_closer_to_the_truth() -> None:
    data = social_network(n=3000, average_degree=8, sens_signal=1.5)
    rng = np.random.default_rng(0)
    logits = rng.normal(size=3000) + 1.5 * (data.sens.numpy() - 0.5)
    p = 1 / (1 + np.exp(-logits))
    sens = data.sens.numpy()
    partly_known = np.where(rng.random(3000) < 0.1, sens, -1)
    alone = debias_probabilities(p, partly_known)
    result = debias_probabilities(
        p, partly_known, estimate_sens=True, features=data.x, edge_index=data.edge_index,
        lambda_s=0.0, full_output=True,
    )  # fmt: skip
    assert gap(p, sens) > 0.2
    assert gap(result.predictions, sens) < 0.3 * gap(alone, sens)
    (uncertainty,) = result.group_uncertainty
    assert uncertainty.nodes == (partly_known < 0).sum()
    assert uncertainty.accuracy > 0.85 > uncertainty.baseline
    assert "estimated rather than observed" in str(result)


def test_debias_smooths_with_criteria_on_labels() -> None:
    data = social_network(n=1500, average_degree=10)
    logits = 3 * torch.randn(1500, 2, generator=torch.Generator().manual_seed(0))
    logits[:, 1] += 1.5 * data.sens
    correct = partial(debias, logits, data.sens, edge_index=data.edge_index, y=data.y, target=0.01)
    corrected = correct(criterion="equalized_odds", on="probabilities")
    assert corrected.dtype == logits.dtype
    assert float(corrected.softmax(1).std()) < float(logits.softmax(1).std())
    for label in (0, 1):
        largest_gap = (
            group_operator(data.sens, data.y == label).gap(corrected.softmax(1)).abs().max()
        )
        assert float(largest_gap) <= 0.0101
    decided = correct(criterion="equal_opportunity").argmax(1)
    assert equal_opportunity(decided, data.y, data.sens) <= 0.01 + 1 / 100


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"criterion": "fairness"}, ["'fairness'", "equal_opportunity"]),
        ({"criterion": []}, ["criterion", "none is given"]),
        ({"criterion": ["dp", "dp"]}, ["given twice"]),
        ({"criterion": "equal_opportunity"}, ["y: missing"]),
        ({"criterion": "eo", "y": [1, 0]}, ["y", "shape"]),
        ({"criterion": "eo", "y": [2, 0, 1, 0]}, ["y: 2", "0…1"]),
        ({"criterion": "eo", "y": ["a", "b", "c", "d"]}, ["y", "4 names"]),
        ({"criterion": "eo", "y": [1, 1, 0, 0]}, ["labelled in two groups"]),
        ({"target": [0.1, 0.2]}, ["2 for 1"]),
        ({"target": {"eo": 0.1}}, ["none for 'demographic_parity'"]),
        ({"target": float("nan")}, ["target: nan"]),
        ({"population": [True]}, ["population"]),
        ({"population": [0, 1, 1, 0]}, ["population", "booleans"]),
        ({"population": [False] * 4}, ["none of 4"]),
        ({"features": np.ones((4, 1))}, ["estimate_sens=True"]),
        ({"edge_index": np.array([[0], [9]])}, ["edge_index"]),
        ({"criterion": [np.ones(4)]}, ["criterion", "not a name"]),
    ],
)
def test_debias_names_wrong_arguments(arguments: dict[str, object], words: list[str]) -> None:
    with pytest.raises(InputError) as error:
        debias([0.2, 0.4, 0.6, 0.9], [0, 0, 1, 1], **arguments)
    message = str(error.value)
    assert "\n" not in message
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    ("sens", "words"),
    [
        ([0, 0, 0, 1], ["group '1' has one node", "merge"]),
        (["f", "f", "f", "m"], ["group 'm' has one node"]),
        (["f", "f", "", None], ["1 group"]),
        ([0, 0, 2, 2], ["group '1' has no node"]),
        ([0, 0, -3, 1], ["-3"]),
        ([0.5, 0, 1, 1], ["0.5"]),
        ([[0.5, 0.6]] * 4, ["sum to 1.1"]),
        ({}, ["no attribute"]),
        ({"sex": [0, 1]}, ["'sex'", "4 nodes"]),
        (None, ["sens: missing"]),
    ],
)
def test_debias_names_wrong_groups(sens: object, words: list[str]) -> None:
    with pytest.raises(InputError) as error:
        debias([0.2, 0.4, 0.6, 0.9], sens)
    assert all(word in str(error.value) for word in words), str(error.value)


@pytest.mark.parametrize("on", ["decisions", "probabilities"])
def test_debias_does_not_mutate_its_inputs(outside: Outside, on: str) -> None:
    p, y, sens = (part.copy() for part in outside)
    debias_fully(p, sens, criterion=["dp", "eo"], y=y, target=0.05, on=on)
    debias_fully(p, sens, on=on)
    for before, after in zip(outside, (p, y, sens), strict=True):
        np.testing.assert_array_equal(before, after)


@pytest.mark.gpu
def test_debias_keeps_tensors_on_their_device(outside: Outside) -> None:
    p, y, sens = outside
    there = torch.from_numpy(p).cuda()
    partly_known = np.where(np.arange(len(y)) % 3 == 0, -1, sens)
    for arguments in (
        {},
        {"on": "probabilities"},
        {"criterion": ["dp", "eo"], "y": y, "target": 0.02, "on": "probabilities"},
        {"estimate_sens": True},
    ):
        result = debias_fully(there, partly_known, **arguments)
        assert result.predictions.is_cuda
        expected = debias(p, partly_known, **arguments)
        np.testing.assert_allclose(result.predictions.cpu(), expected, atol=1e-5)


def test_debias_refuses_pandas_of_other_rows() -> None:
    p = pd.Series(np.linspace(0.05, 0.95, 40))
    groups = pd.Series(np.where(p > 0.5, "a", "b"))
    mixed = groups.sample(frac=1, random_state=0)
    for sens in (mixed, {"group": mixed}, mixed.to_frame()):
        with pytest.raises(InputError, match="sens: its index"):
            debias(p, sens)
    assert debias(p, mixed.reindex(p.index)).equals(debias(p, groups))
    with pytest.raises(InputError, match="y: its index"):
        debias(p, groups, criterion="equal_opportunity", y=(p > 0.3).astype(int)[::-1])
    # Positions are all there is where one side only counts its rows, or says nothing.
    debias(p.to_numpy(), mixed)
    debias(p, groups.set_axis(groups.index + 100))
    with pytest.raises(InputError, match="sens: its index"):
        debias(p.set_axis(p.index + 7), groups.set_axis(groups.index + 100))


@pytest.mark.parametrize("digits", [1, 2])
@pytest.mark.parametrize("groups", [2, 3])
def test_debias_splits_ties(outside: Outside, digits: int, groups: int) -> None:
    p, _, sens = outside
    rough = p.round(digits)
    sens = np.where(np.arange(len(sens)) % 3 == 0, groups - 1, sens)
    result = debias_fully(rough, sens)
    decided = result.predictions.argmax(1)
    assert debias_fully(rough, sens, target=1.0).criteria[0].decisions_before > 0.1
    rates = [decided[sens == g].mean() for g in range(groups)]
    assert np.ptp(rates) <= 1 / min(np.bincount(sens)) + 1e-9
    assert result.drawn > 0
    assert not result.warnings
    other = debias_fully(rough, sens, seed=1)
    assert (other.predictions.argmax(1) != decided).any()
    keeping = debias_fully(rough, sens, ties="keep")
    assert keeping.drawn == 0
    if keeping.criteria[0].decisions_after > 1 / min(np.bincount(sens)):
        assert "above the target" in keeping.warnings[0]


@pytest.mark.parametrize(
    ("criterion", "label"), [("equal_opportunity", 1), ("false_positive_rate_parity", 0)]
)
def test_debias_closes_rates_of_decisions_among_one_label(criterion: str, label: int) -> None:
    rng = np.random.default_rng(0)
    sens, y = rng.integers(0, 2, 3000), rng.integers(0, 2, 3000)
    p = np.clip(rng.random(3000) * 0.7 + 0.2 * y + 0.1 * sens, 0, 1)
    for scores in (p, p.round(1)):  # without and with ties
        fair = debias(scores, sens, y=y, criterion=criterion)
        rates = [(fair[(y == label) & (sens == g)] > 0.5).mean() for g in (0, 1)]
        assert abs(rates[1] - rates[0]) <= 1 / min(np.bincount(sens[y == label]))


@pytest.mark.parametrize("on", ["decisions", "probabilities"])
def test_false_positive_rates_of_several_classes_are_those_against_the_rest(on: str) -> None:
    rng = np.random.default_rng(0)
    sens, y = rng.integers(0, 3, 1500), rng.integers(0, 4, 1500)
    logits = rng.normal(size=(1500, 4)) + 1.5 * np.eye(4)[y] + 0.5 * np.eye(4)[sens]
    goal = {"criterion": "false-positive-rate-parity", "target": 0.03, "on": on}
    result = debias_fully(logits, sens, y=y, **goal)
    (criterion,) = result.criteria
    before, after = (
        false_positive_rate_parity(z.argmax(1), y, sens) for z in (logits, result.predictions)
    )
    assert criterion.decisions_before == pytest.approx(before)
    assert criterion.decisions_after == pytest.approx(after)
    assert before > 0.1
    assert after < 0.08
    q = np.exp(result.predictions) / np.exp(result.predictions).sum(1, keepdims=True)
    rates = np.array([[q[(y != c) & (sens == g), c].mean() for c in range(4)] for g in range(3)])
    assert criterion.after == pytest.approx(np.ptp(rates, axis=0).max())
    if on == "probabilities":
        assert criterion.after <= 0.03 + 1e-4


@pytest.mark.parametrize("name", ["demographic_parity", "equal_opportunity"])
def test_debias_leaves_a_group_without_labels_alone(name: str) -> None:
    rng = np.random.default_rng(0)
    sens, p = np.arange(300) % 3, rng.random(300)
    y = np.where(sens == 2, 0, rng.integers(0, 2, 300))
    result = debias_fully(p, sens, y=y, criterion=name)
    changed = (result.predictions > 0.5) != (p > 0.5)
    assert changed[sens < 2].any()
    if name == "equal_opportunity":
        assert not changed[sens == 2].any()
        assert any("no labelled node in group '2'" in text for text in result.warnings)


def test_debias_warns_of_ties_that_are_kept() -> None:
    p, sens = np.repeat([0.3, 0.6, 0.3, 0.6], [20, 80, 60, 40]), np.repeat([0, 1], 100)
    with pytest.warns(UserWarning, match="40.0 points, above the target of 0"):
        debias(p, sens, ties="keep")


@pytest.mark.parametrize("criterion", ["demographic_parity", "equal_opportunity", "equalized_odds"])
def test_debias_with_weights_counts_like_repeated_nodes(criterion: str) -> None:
    rng = np.random.default_rng(0)
    n = 400
    sens, weight = rng.integers(0, 3, n), rng.integers(1, 6, n)
    p = 1 / (1 + np.exp(-rng.normal(size=n) - 0.5 * sens))
    y = (rng.random(n) < p).astype(int)
    setting = {"criterion": criterion, "target": 0.03, "on": "probabilities", "full_output": True}
    weighted = debias(p, sens, y=y, sample_weight=weight, **setting)
    p2, sens2, y2 = (np.repeat(part, weight) for part in (p, sens, y))
    again = debias(p2, sens2, y=y2, **setting)
    np.testing.assert_allclose(
        np.repeat(weighted.predictions, weight), again.predictions, atol=2e-3
    )
    for one, other in zip(
        (*weighted.criteria, *weighted.others), (*again.criteria, *again.others), strict=True
    ):
        assert one.after == pytest.approx(other.after, abs=2e-3)
        assert one.decisions_before == pytest.approx(other.decisions_before)
    assert weighted.accuracy_before == pytest.approx(again.accuracy_before)
    for group, repeated_group in zip(weighted.groups, again.groups, strict=True):
        assert group.decided_before == pytest.approx(repeated_group.decided_before)
        assert group.tpr_before == pytest.approx(repeated_group.tpr_before)
        assert group.nodes < repeated_group.nodes


def test_debias_closes_the_gap_of_weighted_decisions() -> None:
    rng = np.random.default_rng(0)
    sens, weight = rng.integers(0, 2, 2000), rng.random(2000) ** 3
    p = rng.random(2000) * 0.8 + 0.2 * sens
    fair = debias(p, sens, sample_weight=weight)
    rates = [np.average(fair[sens == g] > 0.5, weights=weight[sens == g]) for g in (0, 1)]
    assert abs(rates[1] - rates[0]) <= weight.max() / min(weight[sens == g].sum() for g in (0, 1))
    with pytest.raises(InputError, match="sample_weight: some are negative"):
        debias(p, sens, sample_weight=-weight)


def test_debias_returns_half_precision_as_float32() -> None:
    rng = np.random.default_rng(4797)
    for scale in (1.0, 1e6):
        for kind in (np.float16, np.float32):
            x = (scale * rng.normal(size=(60, 4))).clip(-6e4, 6e4).astype(kind)
            groups = rng.integers(0, 3, 60)
            exact = debias(x.astype(float), groups, kind="logits")
            fair = debias(x, groups, kind="logits")
            assert fair.dtype == np.float32
            assert (fair.argmax(1) == exact.argmax(1)).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_target_of_probabilities_is_met_in_half_precision(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    sens = torch.arange(200) % 2
    logits = (300 * torch.randn(200, 3, generator=generator) + 100 * sens[:, None]).to(dtype)
    logits[:, 0] += 50
    fair = debias(logits, sens, on="probabilities", kind="logits")
    p = fair.double().softmax(1)
    assert float((p[sens == 1].mean(0) - p[sens == 0].mean(0)).abs().max()) < 1e-4


@pytest.mark.filterwarnings("ignore:.* labelled node", "ignore:no shift of logits")
def test_decisions_stay_where_no_smaller_gap_is_found() -> None:
    rng = np.random.default_rng(1)
    sens = np.arange(10_000) % 200
    z = rng.normal(size=(10_000, 3))
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    y = (p.cumsum(1) < rng.random((10_000, 1))).sum(1)
    with pytest.warns(UserWarning, match="equalized_odds .* above the target"):
        fair = debias(z, sens, criterion="equalized_odds", y=y, target=0.1, kind="logits")
    np.testing.assert_array_equal(fair, z)


def test_three_groups_of_three_classes_reach_small_targets() -> None:
    rng = np.random.default_rng(1)
    sens = rng.integers(3, size=1500)
    z = 1.5 * rng.normal(size=(1500, 3)) + 0.8 * rng.normal(size=(3, 3))[sens]
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    y = (p.cumsum(1) < rng.random((1500, 1))).sum(1)
    assert equalized_odds(p.argmax(1), y, sens) > 0.5
    for target in (0.0, 0.005, 0.02):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fair = debias(p, sens, criterion="equalized_odds", y=y, target=target)
        assert equalized_odds(fair.argmax(1), y, sens) < 0.05


def test_the_same_decision_for_everyone_is_said() -> None:
    # The only person who is decided class 1 opens the gap.
    p = np.r_[np.full(99, 0.4), 0.6]
    sens, y = np.repeat([0, 1], 50), np.arange(100) % 2
    with pytest.warns(UserWarning, match="everyone is decided '0'") as caught:
        fair = debias(p, sens, criterion="equalized_odds", y=y)
    assert (fair < 0.5).all()
    assert len(caught) == 1
    with pytest.warns(UserWarning, match="everyone is decided '0'") as caught:
        Debiaser("equalized_odds").fit(p, y, sensitive_features=sens)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        debias(p, sens, criterion="equalized_odds", y=y, target=0.1)

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache, partial

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from torch_geometric.nn import GCN

from fairmp import InputError, debias
from fairmp.datasets import social_network
from fairmp.groups import group_operator
from fairmp.metrics import equal_opportunity, equalized_odds

debias_fully = partial(debias, full_output=True)
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
def test_less_parity_never_costs_more(model: Callable[[int], Outside]) -> None:
    shares = np.linspace(0, 1, 6)
    cost, moved = np.zeros((6, 6)), np.zeros((6, 6))
    for seed in range(6):
        given, y, sens = model(seed)
        own = debias_fully(given, sens, target=1.0).criteria[0].before
        assert own > 0.05
        for k, share in enumerate(shares):
            found = debias_fully(given, sens, target=share * own, labels=y)
            assert found.criteria[0].after == pytest.approx(share * own, abs=1e-4)
            cost[seed, k] = found.accuracy_before - found.accuracy_after
            moved[seed, k] = found.divergence
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
def test_any_target_is_held(outside: Outside, share: float) -> None:
    p, _, sens = outside
    before = gap(p[:, 1], sens)
    assert before > 0.1
    corrected = debias(p, sens, target=share * before)
    assert isinstance(corrected, np.ndarray)
    np.testing.assert_allclose(corrected.sum(1), 1)
    assert gap(corrected[:, 1], sens) == pytest.approx(share * before, abs=1e-4)


def test_less_asked_less_changed(outside: Outside) -> None:
    p, _, sens = outside
    before = gap(p[:, 1], sens)
    moved = [
        np.abs(debias(p, sens, target=share * before) - p).mean() for share in np.linspace(0, 1, 6)
    ]
    assert moved == sorted(moved, reverse=True)
    assert moved[-1] < 1e-9


def test_order_within_a_group_stays(
    outside: Outside,
) -> None:
    p, _, sens = outside
    corrected = debias(p, sens)
    for group in (0, 1):
        inside = sens == group
        assert (np.argsort(p[inside, 1]) == np.argsort(corrected[inside, 1])).all()


def test_the_kind_stays(outside: Outside) -> None:
    p, _, sens = outside
    expected = debias(p, sens)
    frame = pd.DataFrame(p, columns=["no", "yes"], index=np.arange(len(p)) + 7)
    corrected = debias(frame, pd.Series(sens))
    assert isinstance(corrected, pd.DataFrame)
    assert list(corrected.columns) == ["no", "yes"]
    assert (corrected.index == frame.index).all()
    np.testing.assert_allclose(corrected, expected)
    column = debias(frame["yes"], sens)
    assert isinstance(column, pd.Series)
    assert column.name == "yes"
    np.testing.assert_allclose(column, expected[:, 1])
    tensor = debias(torch.from_numpy(p).float(), torch.from_numpy(sens))
    assert tensor.dtype == torch.float32
    np.testing.assert_allclose(tensor, expected, atol=1e-5)
    logits = debias(np.log(p), sens)
    np.testing.assert_allclose(torch.from_numpy(logits).softmax(1), expected)
    np.testing.assert_allclose(frame, p)


def test_decisions_unknown_groups_and_a_graph() -> None:
    data = social_network(n=2000, average_degree=10)
    logits = 3 * torch.randn(2000, 2, generator=torch.Generator().manual_seed(0))
    logits[:, 1] += 2.0 * data.sens
    sens = data.sens.clone()
    sens[::7] = -1
    corrected = debias(logits, sens, temperature=0.05)
    assert torch.equal(corrected[sens < 0], logits[sens < 0])
    decided = corrected.argmax(1).double().numpy()
    known = (sens >= 0).numpy()
    assert gap(decided[known], sens.numpy()[known]) < 0.01
    smoothed = debias(logits, sens, edge_index=data.edge_index, target=0.02)
    found = group_operator(sens).gap(smoothed.softmax(1)).abs().max()
    assert float(found) <= 0.0201
    assert float(smoothed.std()) < float(corrected.std())


@given(
    p=st.lists(st.floats(0, 1), min_size=4, max_size=30), target=st.sampled_from([0.0, 0.05, 0.3])
)
def test_any_probabilities(p: list[float], target: float) -> None:
    sens = np.arange(len(p)) % 2
    assert gap(debias(np.array(p), sens, target=target), sens) <= target + 1e-4


@pytest.mark.parametrize(
    ("predictions", "sens", "words"),
    [
        ([[0.2, 0.2], [0.5, 0.5]], [0, 1], ["row 0", "0.4", "sum to 1"]),
        ([[0.2, np.nan], [0.5, 0.5]], [0, 1], ["row 0", "not finite"]),
        ([0.2, 1.2], [0, 1], ["1.2", "row 1", "n×2"]),
        ([["a", "b"]], [0, 1], ["not numbers"]),
        ([[0.5, 0.5]] * 3, [0, 1], ["sens", "3 nodes"]),
        ([[1.0], [1.0]], [0, 1], ["shape (2, 1)"]),
        ([0.2, 0.4], [0, 0], ["1 group"]),
    ],
)
def test_wrong_predictions_are_named(predictions: object, sens: object, words: list[str]) -> None:
    with pytest.raises(InputError) as error:
        debias(predictions, sens)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_wrong_targets_are_named() -> None:
    with pytest.raises(InputError, match="target: 2"):
        debias([0.2, 0.4], [0, 1], target=2)
    with pytest.raises(InputError, match="temperature: 0"):
        debias([0.2, 0.4], [0, 1], temperature=0)


def rates(p: np.ndarray, y: np.ndarray, sens: np.ndarray, label: int) -> np.ndarray:
    """Mean probabilities by group among nodes of one true class, written out."""
    return np.array([p[(sens == g) & (y == label)].mean(0) for g in np.unique(sens)])


@pytest.mark.parametrize("target", [0.0, 0.02, 0.08])
def test_equalized_odds_of_two_groups(outside: Outside, target: float) -> None:
    p, y, sens = outside
    corrected = debias(p, sens, criterion="equalized_odds", labels=y, target=target)
    for label in (0, 1):
        found = rates(corrected, y, sens, label)
        assert abs(found[1, 1] - found[0, 1]) <= target + 1e-4
    assert (corrected.argmax(1) == y).mean() > (p.argmax(1) == y).mean() - 0.04


def test_a_text_of_digits_is_the_class_of_that_name(outside: Outside) -> None:
    p, y, sens = outside
    expected = debias_fully(p, sens, labels=y).accuracy_before
    named, backwards = y.astype(str), (1 - y).astype(str)
    assert debias_fully(p, sens, labels=named).accuracy_before == expected
    swapped: dict[str, object] = {"labels": backwards, "class_names": ["1", "0"]}
    assert debias_fully(p, sens, **swapped).accuracy_before == expected
    table = pd.DataFrame(p, columns=["2", "1"])
    found = debias_fully(table, sens, labels=np.where(y == 1, "1", "2"))
    assert (found.classes, found.accuracy_before) == (("2", "1"), expected)


def test_parity_and_opportunity_together_for_three_classes_and_four_groups(
    several: Outside,
) -> None:
    p, y, sens = several
    found = debias_fully(
        p, sens, criterion=["demographic_parity", "equal_opportunity"], labels=y, target=0.01,
        class_names=["a", "b", "c"],
    )  # fmt: skip
    q = found.predictions
    means = np.array([q[sens == g].mean(0) for g in range(4)])
    assert np.ptp(means, axis=0).max() <= 0.01 + 1e-4
    for label in range(3):
        of_class = rates(q, y, sens, label)[:, label]
        assert np.ptp(of_class) <= 0.01 + 1e-4
    parity, opportunity = found.criteria
    assert (parity.nodes, opportunity.nodes) == (3000, 3000)
    assert min(parity.before, opportunity.before) > 0.1
    # Both at once cost accuracy, and the price is told.
    assert found.accuracy_before > found.accuracy_after > found.accuracy_before - 0.05
    decided = (p.argmax(1) != q.argmax(1)).sum()
    assert found.changed == decided == sum(group.changed for group in found.groups)
    assert "decided c %" in str(found)


def test_labels_are_not_looked_at_one_by_one(outside: Outside) -> None:
    p, y, sens = outside
    corrected = debias(p, sens, criterion="equal_opportunity", labels=y)
    twin = np.r_[p, p]
    # The same people, twice, the second time of unknown label.
    again = debias(
        twin, np.r_[sens, sens], criterion="equal_opportunity", labels=np.r_[y, np.full(len(y), -1)]
    )
    np.testing.assert_allclose(again[: len(y)], again[len(y) :])
    np.testing.assert_allclose(again[: len(y)], corrected, atol=1e-4)


def test_decisions_follow_where_the_temperature_is_small(outside: Outside) -> None:
    p, y, sens = outside
    before = equalized_odds(p.argmax(1), y, sens)
    corrected = debias(p, sens, criterion="equalized_odds", labels=y, temperature=0.05)
    assert equalized_odds(corrected.argmax(1), y, sens) < 0.25 * before
    once = debias(p, sens, criterion="equal_opportunity", labels=y, temperature=0.05)
    assert equal_opportunity(once.argmax(1), y, sens) < 0.03
    parity = debias(p, sens, temperature="decisions")
    assert gap((parity.argmax(1) == 1).astype(float), sens) < 0.002


def test_certain_predictions_are_evened_out_by_chance(outside: Outside) -> None:
    p, y, sens = outside
    hard = np.eye(2)[p.argmax(1)]
    found = debias_fully(
        hard, sens, kind="probabilities", criterion="equalized_odds", labels=y, target=0.01
    )
    for label in (0, 1):
        rate = rates(found.predictions, y, sens, label)[:, 1]
        assert abs(rate[1] - rate[0]) <= 0.01 + 1e-4
    assert any("chance" in warning for warning in found.warnings)
    np.testing.assert_allclose(found.predictions.sum(1), 1)


def test_several_attributes_at_once(several: Outside) -> None:
    p, y, sens = several
    other = np.where(np.arange(len(y)) % 3 == 0, "", np.where(p[:, 0] > 0.4, "old", "young"))
    found = debias_fully(p, {"region": sens, "age": other}, target=0.005)
    q = found.predictions
    regions = np.array([q[sens == g].mean(0) for g in range(4)])
    assert np.ptp(regions, axis=0).max() <= 0.0051
    ages = [q[other == name].mean(0) for name in ("old", "young")]
    assert np.abs(ages[0] - ages[1]).max() <= 0.0051
    assert [held.attribute for held in found.criteria] == ["region", "age"]
    assert found.group_uncertainty[0].attribute == "age"
    assert found.group_uncertainty[0].left_out == (other == "").sum()
    listed = debias(p, pd.DataFrame({"region": sens, "age": other}), target=0.005)
    np.testing.assert_allclose(listed, q)
    both = debias(
        p, [sens, (p[:, 0] > 0.4).astype(int)], labels=y, target=[0.01, 0.03],
        criterion=["demographic_parity", "equal_opportunity"],
    )  # fmt: skip
    assert gap(both[:, 0], (p[:, 0] > 0.4).astype(int)) <= 0.0101


def test_one_target_for_each_criterion(outside: Outside) -> None:
    p, y, sens = outside
    matrix = np.where(np.arange(len(y)) % 2, 2.0, -2.0) / len(y)
    found = debias_fully(p, sens, criterion=["demographic_parity", matrix], target=[0.0, 0.05])
    assert found.criteria[0].after < 1e-4
    assert found.criteria[1].after <= 0.05
    wide = debias_fully(p, sens, criterion=["demographic_parity", matrix], target=[0.1, 0.0])
    assert wide.criteria[0].after == pytest.approx(0.1, abs=1e-4)
    assert wide.criteria[1].after < 1e-4
    assert wide.divergence < found.divergence


def test_probable_groups_take_part(outside: Outside) -> None:
    p, _, sens = outside
    shares = np.eye(2)[sens].astype(float)
    shares[::2] = 0.8 * shares[::2] + 0.1
    shares[::5] = 0.0
    corrected = debias(p, shares)
    weights = shares.sum(0)
    means = shares.T @ corrected / weights[:, None]
    assert np.abs(means[0] - means[1]).max() < 1e-4
    np.testing.assert_array_equal(corrected[::5], p[::5])
    found = debias_fully(p, shares)
    probable = (shares > 0).sum(1) > 1
    assert found.group_uncertainty[0].nodes == probable.sum()
    assert found.group_uncertainty[0].share == pytest.approx(shares[probable].sum() / shares.sum())
    assert found.group_uncertainty[0].left_out == (shares.sum(1) == 0).sum()


def test_estimated_groups_come_closer_to_the_truth(outside: Outside) -> None:
    data = social_network(n=3000, average_degree=8, sens_signal=1.5)
    rng = np.random.default_rng(0)
    logits = rng.normal(size=3000) + 1.5 * (data.sens.numpy() - 0.5)
    p = 1 / (1 + np.exp(-logits))
    sens = data.sens.numpy()
    known = np.where(rng.random(3000) < 0.1, sens, -1)
    alone = debias(p, known)
    found = debias_fully(p, known, estimate_sens=True, features=data.x, edge_index=data.edge_index,
                 lambda_s=0.0)  # fmt: skip
    assert gap(p, sens) > 0.2
    assert gap(found.predictions, sens) < 0.3 * gap(alone, sens)
    (rest,) = found.group_uncertainty
    assert rest.nodes == (known < 0).sum()
    assert rest.accuracy > 0.85 > rest.baseline
    assert "estimated rather than observed" in str(found)


def test_what_is_told_is_so(outside: Outside) -> None:
    p, y, sens = outside
    known = np.where(np.arange(len(y)) % 4 == 0, -1, sens)
    label = np.where(np.arange(len(y)) < 800, y, -1)
    inside = np.arange(len(y)) < 1200
    found = debias_fully(
        pd.DataFrame(p, columns=["no", "yes"]), known, population=inside, labels=label,
        criterion="equal_opportunity", target=0.02, class_names=["no", "yes"],
    )  # fmt: skip
    q = found.predictions.to_numpy()
    changed = p.argmax(1) != q.argmax(1)
    assert (found.nodes, found.labelled) == (1200, 800)
    assert (found.changed, found.changed_outside) == (changed[:1200].sum(), changed[1200:].sum())
    (held,) = found.criteria
    on = inside & (label == 1) & (known >= 0)
    tpr = [q[on & (known == g), 1].mean() for g in (0, 1)]
    assert held.after == pytest.approx(abs(tpr[1] - tpr[0]))
    assert held.nodes == on.sum()
    there = held.unlabelled
    assert there is not None
    free = inside & (label < 0) & (known >= 0)
    assert there.nodes == free.sum()
    true = [q[free & (known == g) & (y == 1), 1].mean() for g in (0, 1)]
    assert there.reliable
    assert there.after == pytest.approx(abs(true[1] - true[0]), abs=0.03)
    assert there.interval is not None
    assert there.interval[0] <= there.after <= there.interval[1]
    assert held.interval is not None
    by_name = {group.group: group for group in found.groups}
    assert set(by_name) == {"0", "1", "unknown"}
    assert by_name["unknown"].changed == 0
    group = by_name["1"]
    mine = inside & (known == 1)
    assert group.nodes == mine.sum()
    assert group.decided_after[1] == pytest.approx((q[mine].argmax(1) == 1).mean())
    assert group.mean_before[1] == pytest.approx(p[mine, 1].mean())
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["nodes"] == 1200


def test_a_graph_smooths_for_every_criterion() -> None:
    data = social_network(n=1500, average_degree=10)
    logits = 3 * torch.randn(1500, 2, generator=torch.Generator().manual_seed(0))
    logits[:, 1] += 1.5 * data.sens
    corrected = debias(
        logits, data.sens, edge_index=data.edge_index, labels=data.y, target=0.01,
        criterion="equalized_odds",
    )  # fmt: skip
    assert corrected.dtype == logits.dtype
    assert float(corrected.softmax(1).std()) < float(logits.softmax(1).std())
    for label in (0, 1):
        found = group_operator(data.sens, data.y == label).gap(corrected.softmax(1)).abs().max()
        assert float(found) <= 0.0101


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"criterion": "fairness"}, ["'fairness'", "equal_opportunity"]),
        ({"criterion": []}, ["criterion", "none is given"]),
        ({"criterion": ["dp", "dp"]}, ["given twice"]),
        ({"criterion": "equal_opportunity"}, ["labels: missing"]),
        ({"criterion": "eo", "labels": [1, 0]}, ["labels", "shape"]),
        ({"criterion": "eo", "labels": [2, 0, 1, 0]}, ["labels: 2", "0…1"]),
        ({"criterion": "eo", "labels": ["a", "b", "c", "d"]}, ["labels", "4 names"]),
        ({"criterion": "eo", "labels": [1, 1, 0, 0]}, ["labelled in two groups"]),
        (
            {"criterion": "odds", "labels": [1, 0, 1, 0], "temperature": "decisions"},
            ["'decisions'"],
        ),
        ({"target": [0.1, 0.2]}, ["2 for 1"]),
        ({"target": {"eo": 0.1}}, ["none for 'demographic_parity'"]),
        ({"target": float("nan")}, ["target: nan"]),
        ({"population": [True]}, ["population"]),
        ({"population": [0, 1, 1, 0]}, ["population", "booleans"]),
        ({"population": [False] * 4}, ["none of 4"]),
        ({"features": np.ones((4, 1))}, ["estimate_sens=True"]),
        ({"edge_index": np.array([[0], [9]])}, ["edge_index"]),
        ({"criterion": np.ones((2, 3))}, ["shape (2, 3)", "4 nodes"]),
        ({"criterion": np.full((1, 4), np.nan)}, ["not finite"]),
        ({"criterion": np.zeros((1, 4))}, ["row 0", "leave it out"]),
        ({"criterion": np.full((1, 4), 0.25)}, ["0 cannot be reached", "0.5"]),
    ],
)
def test_wrong_questions_are_named(more: dict[str, object], words: list[str]) -> None:
    with pytest.raises(InputError) as error:
        debias([0.2, 0.4, 0.6, 0.9], [0, 0, 1, 1], **more)
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
def test_wrong_groups_are_named(sens: object, words: list[str]) -> None:
    with pytest.raises(InputError) as error:
        debias([0.2, 0.4, 0.6, 0.9], sens)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_a_matrix_outside_the_population_is_named(outside: Outside) -> None:
    p, _, sens = outside
    matrix = np.where(sens == 1, 1 / (sens == 1).sum(), -1 / (sens == 0).sum())
    inside = np.arange(len(sens)) < 500
    with pytest.raises(InputError, match="1000 nodes outside the population"):
        debias(p, sens, criterion=matrix, population=inside)


def test_nothing_given_is_changed(outside: Outside) -> None:
    p, y, sens = (part.copy() for part in outside)
    debias_fully(p, sens, criterion=["dp", "eo"], labels=y, target=0.05)
    for before, after in zip(outside, (p, y, sens), strict=True):
        np.testing.assert_array_equal(before, after)


@pytest.mark.gpu
def test_tensors_stay_where_they_are(outside: Outside) -> None:
    p, y, sens = outside
    there = torch.from_numpy(p).cuda()
    known = np.where(np.arange(len(y)) % 3 == 0, -1, sens)
    for more in (
        {},
        {"temperature": "decisions"},
        {"criterion": ["dp", "eo"], "labels": y, "target": 0.02},
        {"estimate_sens": True},
    ):
        found = debias_fully(there, known, **more)
        assert found.predictions.is_cuda
        expected = debias(p, known, **more)
        np.testing.assert_allclose(found.predictions.cpu(), expected, atol=1e-5)


def test_pandas_rows_must_be_the_same_people() -> None:
    p = pd.Series(np.linspace(0.05, 0.95, 40))
    groups = pd.Series(np.where(p > 0.5, "a", "b"))
    mixed = groups.sample(frac=1, random_state=0)
    for sens in (mixed, {"group": mixed}, mixed.to_frame()):
        with pytest.raises(InputError, match="sens: its index"):
            debias(p, sens)
    assert debias(p, mixed.reindex(p.index)).equals(debias(p, groups))
    with pytest.raises(InputError, match="labels: its index"):
        debias(p, groups, criterion="equal_opportunity", labels=(p > 0.3).astype(int)[::-1])
    # Positions are all there is where one side only counts its rows, or says nothing.
    debias(p.to_numpy(), mixed)
    debias(p, groups.set_axis(groups.index + 100))
    with pytest.raises(InputError, match="sens: its index"):
        debias(p.set_axis(p.index + 7), groups.set_axis(groups.index + 100))


@pytest.mark.parametrize("digits", [1, 2])
@pytest.mark.parametrize("groups", [2, 3])
def test_decisions_of_tied_scores_are_split(outside: Outside, digits: int, groups: int) -> None:
    p, _, sens = outside
    rough = p.round(digits)
    sens = np.where(np.arange(len(sens)) % 3 == 0, groups - 1, sens)
    found = debias_fully(rough, sens, temperature="decisions")
    decided = found.predictions.argmax(1)
    assert debias_fully(rough, sens, target=1.0).criteria[0].decisions_before > 0.1
    rates = [decided[sens == g].mean() for g in range(groups)]
    assert np.ptp(rates) <= 1 / min(np.bincount(sens)) + 1e-9
    assert found.drawn > 0
    assert not found.warnings
    other = debias_fully(rough, sens, temperature="decisions", seed=1)
    assert (other.predictions.argmax(1) != decided).any()
    kept = debias_fully(rough, sens, temperature="decisions", ties="keep")
    assert kept.drawn == 0
    if kept.criteria[0].decisions_after > 1 / min(np.bincount(sens)):
        assert "equal scores" in kept.warnings[0]


def test_decisions_of_equal_opportunity_are_closed_exactly() -> None:
    rng = np.random.default_rng(0)
    sens, y = rng.integers(0, 2, 3000), rng.integers(0, 2, 3000)
    p = np.clip(rng.random(3000) * 0.7 + 0.2 * y + 0.1 * sens, 0, 1)
    for scores in (p, p.round(1)):  # without and with ties
        setting = {"criterion": "equal_opportunity", "temperature": "decisions"}
        fair = debias(scores, sens, labels=y, **setting)
        rates = [(fair[(y == 1) & (sens == g)] > 0.5).mean() for g in (0, 1)]
        assert abs(rates[1] - rates[0]) <= 1 / min(np.bincount(sens[y == 1]))
    with pytest.raises(InputError, match="temperature: 'decisions' needs"):
        debias(p, sens, criterion="equalized_odds", labels=y, temperature="decisions")


def test_a_missed_target_is_said_aloud() -> None:
    p, sens = np.repeat([0.3, 0.6, 0.3, 0.6], [20, 80, 60, 40]), np.repeat([0, 1], 100)
    with pytest.warns(UserWarning, match="leaves a gap of 40.0 points"):
        debias(p, sens, temperature="decisions", ties="keep")


@pytest.mark.parametrize("criterion", ["demographic_parity", "equal_opportunity", "equalized_odds"])
def test_weights_count_like_repeated_nodes(criterion: str) -> None:
    rng = np.random.default_rng(0)
    n = 400
    sens, weight = rng.integers(0, 3, n), rng.integers(1, 6, n)
    p = 1 / (1 + np.exp(-rng.normal(size=n) - 0.5 * sens))
    y = (rng.random(n) < p).astype(int)
    setting = {"criterion": criterion, "target": 0.03, "full_output": True}
    found = debias(p, sens, labels=y, sample_weight=weight, **setting)
    p2, sens2, y2 = (np.repeat(part, weight) for part in (p, sens, y))
    again = debias(p2, sens2, labels=y2, **setting)
    np.testing.assert_allclose(np.repeat(found.predictions, weight), again.predictions, atol=2e-3)
    for one, other in zip(
        (*found.criteria, *found.others), (*again.criteria, *again.others), strict=True
    ):
        assert one.after == pytest.approx(other.after, abs=2e-3)
        assert one.decisions_before == pytest.approx(other.decisions_before)
    assert found.accuracy_before == pytest.approx(again.accuracy_before)
    for group, same in zip(found.groups, again.groups, strict=True):
        assert group.decided_before == pytest.approx(same.decided_before)
        assert group.tpr_before == pytest.approx(same.tpr_before)
        assert group.nodes < same.nodes


def test_decisions_with_weights() -> None:
    rng = np.random.default_rng(0)
    sens, weight = rng.integers(0, 2, 2000), rng.random(2000) ** 3
    p = rng.random(2000) * 0.8 + 0.2 * sens
    fair = debias(p, sens, temperature="decisions", sample_weight=weight)
    rates = [np.average(fair[sens == g] > 0.5, weights=weight[sens == g]) for g in (0, 1)]
    assert abs(rates[1] - rates[0]) <= weight.max() / min(weight[sens == g].sum() for g in (0, 1))
    with pytest.raises(InputError, match="sample_weight: some are negative"):
        debias(p, sens, sample_weight=-weight)
    with pytest.raises(InputError, match="sample_weight: a matrix"):
        debias(p, sens, criterion=np.ones((1, 2000)), target=3000.0, sample_weight=weight)


def test_decisions_survive_the_rounding_to_the_type_that_was_given() -> None:
    rng = np.random.default_rng(4797)
    for scale in (1.0, 1e6):
        for kind in (np.float16, np.float32):
            x = (scale * rng.normal(size=(60, 4))).clip(-6e4, 6e4).astype(kind)
            groups = rng.integers(0, 3, 60)
            exact = debias(x.astype(float), groups, temperature="decisions", kind="logits")
            fair = debias(x, groups, temperature="decisions", kind="logits")
            assert fair.dtype == kind
            assert (fair.argmax(1) == exact.argmax(1)).all()

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairmp.errors import InputError
from fairmp.metrics import (
    METRICS,
    Evaluation,
    accuracy,
    demographic_parity,
    equal_opportunity,
    equalized_odds,
    evaluate,
    false_positive_rate_parity,
)


def sample(n: int, classes: int, groups: int, seed: int):
    """Scores with a label signal and a group bias, labels and groups; every cell is filled."""
    rng = np.random.default_rng(seed)
    y, sens = rng.integers(classes, size=n), rng.integers(groups, size=n)
    # One node of each label and group, so that every rate exists.
    cells = np.arange(classes * groups)
    y[: len(cells)], sens[: len(cells)] = cells % classes, cells // classes
    scores = rng.normal(size=(n, classes)) + np.eye(classes)[y]
    scores[:, 1] += 0.5 * sens
    return scores, y, sens


@settings(deadline=None, max_examples=40)
@given(n=st.integers(12, 200), groups=st.integers(2, 4), seed=st.integers(0, 10**6))
def test_binary_gaps_agree_with_fairlearn(n, groups, seed):
    from fairlearn.metrics import (
        demographic_parity_difference,
        equal_opportunity_difference,
        equalized_odds_difference,
        false_positive_rate_difference,
    )

    scores, y, sens = sample(n, 2, groups, seed)
    pred = scores.argmax(1)
    result = evaluate(
        torch.from_numpy(y), torch.from_numpy(scores), sensitive_features=sens, bootstrap=0
    )
    for ours, alone, oracle in (
        (result.dp, demographic_parity(pred, sens), demographic_parity_difference),
        (result.eo, equal_opportunity(pred, y, sens), equal_opportunity_difference),
        (result.fpr, false_positive_rate_parity(pred, y, sens), false_positive_rate_difference),
        (result.odds, equalized_odds(pred, y, sens), equalized_odds_difference),
    ):
        assert ours == pytest.approx(oracle(y, pred, sensitive_features=sens), abs=1e-12)
        assert ours == alone


@settings(deadline=None, max_examples=25)
@given(
    classes=st.integers(3, 4),
    groups=st.integers(2, 3),
    n=st.integers(30, 200),
    seed=st.integers(0, 10**6),
)
def test_gaps_of_many_classes_are_the_largest_of_one_class_against_the_rest(
    classes, groups, n, seed
):
    from fairlearn.metrics import (
        demographic_parity_difference,
        equal_opportunity_difference,
        equalized_odds_difference,
        false_positive_rate_difference,
    )

    scores, y, sens = sample(n, classes, groups, seed)
    pred = scores.argmax(1)
    result = evaluate(y, scores, sensitive_features=sens, bootstrap=0)
    for ours, oracle in (
        (result.dp, demographic_parity_difference),
        (result.eo, equal_opportunity_difference),
        (result.fpr, false_positive_rate_difference),
        (result.odds, equalized_odds_difference),
    ):
        by_class = [
            oracle((y == c).astype(int), (pred == c).astype(int), sensitive_features=sens)
            for c in range(classes)
        ]
        assert ours == pytest.approx(max(by_class), abs=1e-12)


@settings(deadline=None, max_examples=40)
@given(
    classes=st.integers(2, 4),
    n=st.integers(20, 150),
    seed=st.integers(0, 10**6),
    probabilities=st.booleans(),
)
def test_performance_agrees_with_sklearn(classes, n, seed, probabilities):
    from sklearn.metrics import accuracy_score, f1_score, roc_auc_score

    scores, y, sens = sample(n, classes, 2, seed)
    probability = torch.from_numpy(scores).softmax(1).numpy()
    result = evaluate(
        y, probability if probabilities else scores, sensitive_features=sens, bootstrap=0
    )
    pred = scores.argmax(1)
    assert result.accuracy == accuracy(pred, y) == accuracy_score(y, pred)
    f1 = f1_score(y, pred, average="binary" if classes == 2 else "macro")
    assert result.f1 == pytest.approx(f1)
    if classes == 2:
        auc = roc_auc_score(y, scores[:, 1] - scores[:, 0])
    else:
        auc = roc_auc_score(y, probability, multi_class="ovr", average="macro")
    assert result.auc == pytest.approx(auc, abs=1e-12)


def test_binary_auc_handles_ties_exactly_and_does_not_saturate():
    from sklearn.metrics import roc_auc_score

    rng = np.random.default_rng(0)
    y, sens = rng.integers(2, size=500), rng.integers(2, size=500)
    margin = (rng.normal(size=500) + y).round(1)
    scores = np.stack([np.zeros(500), margin], axis=1)
    exact = roc_auc_score(y, margin)
    assert evaluate(y, scores, sensitive_features=sens, bootstrap=0).auc == pytest.approx(
        exact, abs=1e-12
    )
    # A float32 softmax of these is 1.0 nearly everywhere.
    assert evaluate(
        y, 100 + 1000 * scores, sensitive_features=sens, bootstrap=0
    ).auc == pytest.approx(exact, abs=1e-9)


def test_unknown_labels_and_groups_are_left_out_of_what_needs_them():
    scores, y, sens = sample(400, 2, 2, 1)
    rng = np.random.default_rng(2)
    y = np.where(rng.random(400) < 0.3, -1, y)
    sens = np.where(rng.random(400) < 0.3, -1, sens)
    result = evaluate(y, scores, sensitive_features=sens, bootstrap=0)
    pred, labelled, grouped = scores.argmax(1), y >= 0, sens >= 0
    both = labelled & grouped
    assert result.n == 400
    assert result.accuracy == (pred == y)[labelled].mean()
    assert result.dp == demographic_parity(pred[grouped], sens[grouped])
    assert result.eo == equal_opportunity(pred[both], y[both], sens[both])
    assert result.odds == equalized_odds(pred[both], y[both], sens[both])
    assert (
        result.auc
        == evaluate(
            y[labelled], scores[labelled], sensitive_features=sens[labelled], bootstrap=0
        ).auc
    )
    assert [g.count for g in result.groups] == [(sens == 0).sum(), (sens == 1).sum()]
    assert [g.labelled for g in result.groups] == [(both & (sens == g)).sum() for g in (0, 1)]


def test_group_rows_have_the_rates_of_each_group():
    scores, y, sens = sample(300, 2, 3, 3)
    pred = scores.argmax(1)
    result = evaluate(y, scores, sensitive_features=sens, group_names=["a", "b", "c"], bootstrap=0)
    for g, row in enumerate(result.groups):
        here = sens == g
        assert row.name == "abc"[g]
        assert row.positive_rate == pytest.approx(pred[here].mean())
        assert row.rates == pytest.approx((1 - pred[here].mean(), pred[here].mean()))
        assert row.tpr == pytest.approx(pred[here & (y == 1)].mean())
        assert row.fpr == pytest.approx(pred[here & (y == 0)].mean())
        assert row.accuracy == pytest.approx((pred == y)[here].mean())


def test_mask_selects_the_nodes():
    scores, y, sens = sample(200, 2, 2, 4)
    mask = torch.arange(200) % 2 == 0
    chosen = mask.numpy()
    masked = evaluate(y, scores, sensitive_features=sens, mask=mask, bootstrap=20)
    assert masked == evaluate(
        y[chosen], scores[chosen], sensitive_features=sens[chosen], bootstrap=20
    )


def one_hot(pred: list[int], classes: int = 2) -> np.ndarray:
    return np.eye(classes)[pred]


def test_group_without_positives_has_no_tpr():
    result = evaluate(
        [1, 0, 0, 0, 0],
        one_hot([1, 0, 1, 0, 1]),
        sensitive_features=[0, 0, 1, 1, 1],
        group_names=["a", "b"],
        bootstrap=50,
    )
    assert math.isnan(result.groups[1].tpr)
    assert math.isnan(result.eo)
    assert math.isnan(result.odds)
    assert result.dp == pytest.approx(2 / 3 - 1 / 2)
    assert "group 'b' has no positives: its TPR cannot be estimated" in result.notes
    assert all(math.isnan(v) for v in result.intervals["eo"])
    low, high = result.intervals["dp"]
    assert low <= result.dp <= high


def test_equal_opportunity_needs_two_groups_with_positives():
    pred, y, sens = [1, 0, 1, 1, 0, 1], [1, 0, 1, 1, 0, 0], [0, 0, 1, 1, 2, 2]
    result = evaluate(y, one_hot(pred), sensitive_features=sens, bootstrap=0)
    assert result.eo == 0
    assert any("group '2' has no positives" in note for note in result.notes)
    assert any("group '1' has no negatives" in note for note in result.notes)
    assert result.odds == 0.5


def test_class_of_one_group_is_left_out():
    pred, y, sens = [0, 1, 2, 0, 1, 1], [0, 1, 2, 0, 1, 0], [0, 0, 0, 1, 1, 1]
    result = evaluate(
        y, one_hot(pred, 3), sensitive_features=sens, class_names=["x", "y", "z"], bootstrap=0
    )
    assert result.eo == 0.5
    assert any("no nodes of class 'z'" in note for note in result.notes)
    absent = evaluate(
        [0, 1, 0, 1], one_hot([0, 1, 0, 1], 3), sensitive_features=[0, 0, 1, 1], bootstrap=0
    )
    assert absent.eo == 0
    assert absent.auc == 1
    assert absent.f1 == 1
    assert any("no labelled node of class '2'" in note for note in absent.notes)


def test_without_labels_only_parity_remains():
    result = evaluate(
        [-1] * 4, one_hot([1, 0, 1, 1]), sensitive_features=[0, 0, 1, 1], bootstrap=20
    )
    assert result.dp == 0.5
    for key in ("accuracy", "auc", "f1", "eo", "odds"):
        assert math.isnan(getattr(result, key))
        assert math.isnan(result.intervals[key][0])
    assert any("no labelled nodes" in note for note in result.notes)


def test_one_class_of_labels_has_no_auc():
    result = evaluate([1] * 4, one_hot([1, 0, 1, 1]), sensitive_features=[0, 0, 1, 1], bootstrap=20)
    assert math.isnan(result.auc)
    assert any("AUC cannot be estimated" in note for note in result.notes)


def test_named_group_without_nodes_is_noted():
    result = evaluate(
        [1, 0, 1],
        one_hot([1, 0, 1]),
        sensitive_features=[0, 0, 1],
        group_names=["a", "b", "c"],
        bootstrap=5,
    )
    assert "group 'c' has no nodes here" in result.notes
    assert math.isnan(result.groups[2].positive_rate)
    assert result.dp == 0.5


@pytest.mark.parametrize(("classes", "groups"), [(2, 2), (3, 3)])
def test_intervals_agree_with_resampling_nodes(classes, groups):
    scores, y, sens = sample(300, classes, groups, 5)
    y[::7] = -1
    result = evaluate(y, scores, sensitive_features=sens, bootstrap=4000)
    rng = np.random.default_rng(1)
    drawn = []
    for _ in range(1000):
        pick = rng.integers(300, size=300)
        drawn.append(evaluate(y[pick], scores[pick], sensitive_features=sens[pick], bootstrap=0))
    if classes > 2:
        assert all(math.isnan(v) for v in result.intervals["auc"])
    for key in ("accuracy", "f1") if classes > 2 else ("accuracy", "f1", "auc"):
        values = [getattr(d, key) for d in drawn]
        spread = np.std(values)
        low, high = np.quantile(values, [0.025, 0.975])
        assert result.intervals[key] == pytest.approx((low, high), abs=0.25 * spread), key


def test_accuracy_interval_covers_as_often_as_it_says():
    rng = np.random.default_rng(0)
    covered = 0
    for k in range(300):
        right = rng.random(400) < 0.7
        sens = rng.integers(2, size=400)
        result = evaluate(
            [1] * 400, one_hot(right.astype(int)), sensitive_features=sens, bootstrap=200, seed=k
        )
        low, high = result.intervals["accuracy"]
        covered += low <= 0.7 <= high
    assert 0.90 <= covered / 300 <= 0.99


def test_binned_auc_interval_of_many_nodes_is_right():
    rng = np.random.default_rng(0)
    y, sens = rng.integers(2, size=20_000), rng.integers(2, size=20_000)
    margin = rng.normal(size=20_000) + y
    scores = np.stack([-margin, margin], axis=1)
    result = evaluate(y, scores, sensitive_features=sens, bootstrap=500)
    low, high = result.intervals["auc"]
    assert (low + high) / 2 == pytest.approx(result.auc, abs=5e-4)
    # Hanley and McNeil's standard error for two normals one deviation apart.
    a = result.auc
    q1, q2, m = a / (2 - a), 2 * a * a / (1 + a), 10_000
    error = math.sqrt((a * (1 - a) + (m - 1) * (q1 - a * a) + (m - 1) * (q2 - a * a)) / m**2)
    assert (high - low) / (2 * 1.96) == pytest.approx(error, rel=0.15)


def test_intervals_are_seeded_and_optional():
    scores, y, sens = sample(100, 2, 2, 6)
    assert evaluate(y, scores, sensitive_features=sens, bootstrap=0).intervals == {}
    first, again, other = (
        evaluate(y, scores, sensitive_features=sens, bootstrap=50, seed=k) for k in (0, 0, 1)
    )
    assert first.intervals == again.intervals
    assert first.intervals != other.intervals
    wide = evaluate(y, scores, sensitive_features=sens, bootstrap=500, confidence=0.99).intervals[
        "accuracy"
    ]
    narrow = evaluate(y, scores, sensitive_features=sens, bootstrap=500, confidence=0.5).intervals[
        "accuracy"
    ]
    assert wide[0] < narrow[0] < narrow[1] < wide[1]


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10**6), classes=st.integers(2, 3), groups=st.integers(2, 4))
def test_order_of_nodes_and_names_of_groups_do_not_matter(seed, classes, groups):
    scores, y, sens = sample(80, classes, groups, seed)
    rng = np.random.default_rng(seed)
    order, rename = rng.permutation(80), rng.permutation(groups)
    a = evaluate(y, scores, sensitive_features=sens, bootstrap=0)
    b = evaluate(y[order], scores[order], sensitive_features=rename[sens[order]], bootstrap=0)
    for key in METRICS:
        assert getattr(a, key) == pytest.approx(getattr(b, key), abs=1e-12)


def test_evaluate_leaves_inputs_unchanged():
    scores, y, sens = sample(50, 2, 2, 7)
    copies = scores.copy(), y.copy(), sens.copy()
    evaluate(y, scores, sensitive_features=sens, bootstrap=5)
    assert all(np.array_equal(a, b) for a, b in zip(copies, (scores, y, sens), strict=True))
    tensor = torch.from_numpy(scores).requires_grad_()
    assert evaluate(y, tensor, sensitive_features=sens, bootstrap=0).accuracy == accuracy(
        scores.argmax(1), y
    )


@pytest.mark.parametrize("classes", [2, 3])
def test_to_dict_is_plain_json(classes):
    y = [0, 0, 0, 0]
    result = evaluate(
        y, one_hot([1, 0, 1, 1], classes), sensitive_features=[0, 0, 1, 1], bootstrap=10
    )
    result = dataclasses.replace(result, mode="per-node")
    record = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert record["eo"] is None if classes == 2 else record["eo"] == 0.5
    assert record["mode"] == "per-node"
    assert record["dp"] == 0.5
    assert record["groups"][0]["count"] == 2
    if classes == 2:
        assert record["groups"][0]["positive_rate"] == 0.5


GOOD = {"scores": one_hot([0, 1, 0, 1]), "y": [0, 1, 1, 0], "sensitive_features": [0, 0, 1, 1]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scores": np.array([0.5, 2.5, 0, 1])}, r"^scores: 2.5 in row 1 is not a probability"),
        ({"scores": [-1, 1, 1, 0]}, r"^scores: some decisions are missing or −1"),
        ({"y": ["a", "b", "a", "b"], "scores": [1, 0, 1, 0]}, r"^positive: not given for"),
        ({"positive": "x"}, r"^positive: 'x' is not a class"),
        ({"scores": np.zeros((4, 1))}, r"^scores: shape \(4, 1\)"),
        ({"scores": np.full((4, 2), np.nan)}, r"^scores: some are nan"),
        ({"y": [0, 1, 2, 0]}, r"^y: 2 is not below 2"),
        ({"y": [0, 1]}, r"^y: shape \(2,\); give one value for each of 4"),
        ({"y": [0, 1, 0.5, math.nan]}, r"^y: 0.5 is not a class"),
        ({"sensitive_features": [0, 0, -2, 1]}, r"^sensitive_features: -2 is not a class or group"),
        ({"sensitive_features": [1, 1, 1, 1]}, r"^sensitive_features: only group '1'"),
        ({"sensitive_features": [-1] * 4}, r"^sensitive_features: no known group among"),
        (
            {"sensitive_features": [0, 0, 1, 2], "group_names": ["a", "b"]},
            r"^sensitive_features: 2 is not below 2",
        ),
        (
            {"mask": [True, True, False, False], "group_names": ["a", "b"]},
            r"^sensitive_features: only group 'a' among the nodes measured",
        ),
        ({"mask": [False] * 4}, r"^mask: none of 4"),
        ({"mask": [0, 1, 2]}, r"^mask: int64 of shape \(3,\)"),
        ({"class_names": ["x"]}, r"^class_names: 1 names for 2"),
        ({"confidence": 95}, r"^confidence: 95"),
        ({"bootstrap": -1}, r"^confidence: 0.95 with bootstrap=-1"),
    ],
)
def test_evaluate_names_wrong_argument(change, message):
    with pytest.raises(InputError, match=message):
        evaluate(**(GOOD | change))


def test_plain_functions_name_wrong_argument():
    with pytest.raises(InputError, match=r"^pred: -1"):
        accuracy([-1, 0], [0, 1])
    with pytest.raises(InputError, match=r"^sens: only group '0'"):
        demographic_parity([0, 1], [0, 0])
    with pytest.raises(InputError, match=r"^classes: 2 with a class 2"):
        equal_opportunity([2, 0], [0, 0], [0, 1], classes=2)
    # Told that a third class exists, class 0 counts as well.
    pred, y, sens = [0, 1, 1, 1], [0, 1, 0, 1], [0, 0, 1, 1]
    assert equal_opportunity(pred, y, sens) == 0
    assert equal_opportunity(pred, y, sens, classes=3) == 1


def test_weights_agree_with_fairlearn_and_with_repeated_nodes() -> None:
    from fairlearn.metrics import demographic_parity_difference

    rng = np.random.default_rng(0)
    n = 300
    scores, y, sens = rng.normal(size=(n, 2)), rng.integers(0, 2, n), rng.integers(0, 3, n)
    weight = rng.integers(1, 5, n)
    weighted = evaluate(y, scores, sensitive_features=sens, sample_weight=weight, bootstrap=50)
    scores2, y2, sens2 = (np.repeat(part, weight, axis=0) for part in (scores, y, sens))
    again = evaluate(y2, scores2, sensitive_features=sens2, bootstrap=0)
    for key in METRICS:
        assert getattr(weighted, key) == pytest.approx(getattr(again, key))
        low, high = weighted.intervals.get(key, (0, 1))
        assert low <= getattr(weighted, key) <= high
    pred = scores.argmax(1)
    assert demographic_parity(pred, sens, sample_weight=weight) == pytest.approx(
        demographic_parity_difference(y, pred, sensitive_features=sens, sample_weight=weight)
    )
    assert weighted.accuracy == pytest.approx(accuracy(pred, y, sample_weight=weight))
    assert [row.count for row in weighted.groups] == np.bincount(sens).tolist()
    # Weights widen the interval of a gap, whatever their scale.
    plain = evaluate(y, scores, sensitive_features=sens, bootstrap=1).intervals["dp"]
    scaled = evaluate(
        y, scores, sensitive_features=sens, sample_weight=7.0 * np.ones(n), bootstrap=1
    ).intervals["dp"]
    assert scaled == pytest.approx(plain)
    skewed = np.where(np.arange(n) % 10 == 0, 10.0, 0.1)
    wide = evaluate(
        y, scores, sensitive_features=sens, sample_weight=skewed, bootstrap=1
    ).intervals["dp"]
    assert wide[1] - wide[0] > plain[1] - plain[0]
    with pytest.raises(InputError, match="sample_weight"):
        evaluate(y, scores, sensitive_features=sens, sample_weight=-np.ones(n))


@pytest.mark.parametrize("mode", [None, "per-node"])
def test_evaluation_is_read_back_from_json(mode: str | None) -> None:
    result = evaluate(
        [1, 0, -1, 1], one_hot([1, 0, 1, 1]), sensitive_features=[0, 0, 1, 1], bootstrap=20
    )
    record = json.loads(json.dumps(dataclasses.replace(result, mode=mode).to_dict()))
    again = Evaluation.from_dict(record)
    assert again.to_dict() == record
    assert (again.mode, again.class_names) == (mode, result.class_names)
    assert math.isnan(again.groups[1].fpr)

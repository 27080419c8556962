"""Logits told from probabilities, tables of counts, and intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from fairmp import debias
from fairmp.errors import InputError
from fairmp.metrics import evaluate, mean_interval
from fairmp.metrics.counts import (
    are_probabilities,
    weighted_rates,
    wilson,
)
from fairmp.metrics.intervals import gap_interval, ratio_interval
from fairmp.postprocessing.thresholds import GroupThresholds

ONE_HOT = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])


@pytest.mark.parametrize("make", [np.array, torch.tensor])
def test_are_probabilities_of_clear_cases(make: object) -> None:
    cases = [
        ([[0.2, 0.8], [0.5, 0.5]], True),
        ([[0.33, 0.33, 0.33], [0.25, 0.25, 0.5]], True),  # rounded to two digits
        ([[0.0, 1.0], [0.3, 0.7]], True),
        ([[0.2, 0.9], [1.5, -0.5]], False),
        ([[False, True], [True, False]], True),
    ]
    for values, expected in cases:
        assert are_probabilities(make(values)) is expected  # type: ignore[operator]


@pytest.mark.parametrize("values", [ONE_HOT, np.array([[0.0, 1.0], [0.5, 0.5]])])
def test_one_hot_rows_are_refused_as_ambiguous(values: np.ndarray) -> None:
    for call in (
        lambda: are_probabilities(values),
        lambda: are_probabilities(torch.from_numpy(values)),
        lambda: debias(values, [0, 1] * (len(values) // 2)),
        lambda: GroupThresholds().solve(values, sensitive_features=[0, 1] * (len(values) // 2)),
    ):
        with pytest.raises(InputError) as error:
            call()
        assert error.value.argument == "kind"
    assert are_probabilities(values, "probabilities")
    assert not are_probabilities(values, "logits")


def test_explicit_kind_is_obeyed() -> None:
    sens = [0, 0, 1, 1]
    scores = ONE_HOT.copy()
    scores[3] = [1.0, 0.0]
    fair = debias(scores, sens, kind="logits", on="probabilities")
    p = np.exp(fair) / np.exp(fair).sum(1, keepdims=True)
    assert p[:2, 1].mean() == pytest.approx(p[2:, 1].mean(), abs=1e-4)
    fair = debias(scores, sens, kind="probabilities", on="probabilities")
    assert fair[:2, 1].mean() == pytest.approx(fair[2:, 1].mean(), abs=1e-4)
    # A single column holds log-odds of class 1.
    scores = np.array([2.0, 0.5, -1.0, -3.0])
    odds = debias(scores, sens, kind="logits", on="probabilities")
    q = 1 / (1 + np.exp(-odds))
    assert q[:2].mean() == pytest.approx(q[2:].mean(), abs=1e-4)


@pytest.mark.parametrize(
    ("values", "kind", "argument"),
    [
        ([[0.2, 0.2]], "auto", "predictions"),
        ([[0.2, 0.2]], "probabilities", "predictions"),
        ([[-0.2, 1.2]], "probabilities", "predictions"),
        ([[0.2, 0.8]], "odds", "kind"),
    ],
)
def test_are_probabilities_names_wrong_argument(
    values: list[list[float]], kind: str, argument: str
) -> None:
    with pytest.raises(InputError) as error:
        are_probabilities(np.array(values), kind)
    assert error.value.argument == argument


@given(
    seed=st.integers(0, 10**6),
    groups=st.integers(2, 5),
    families=st.integers(1, 3),
    size=st.sampled_from([1, 3, 10, 100]),
)
def test_gap_interval_contains_its_estimate(
    seed: int, groups: int, families: int, size: int
) -> None:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, size + 1, (groups, families))
    rates = rng.binomial(sizes, rng.random((groups, families))) / sizes
    low, high = gap_interval(rates, sizes.astype(float))
    assert 0 <= low <= np.ptp(rates, axis=0).max() <= high <= 1


@pytest.mark.parametrize("groups", [2, 5])
@pytest.mark.parametrize("size", [10, 60, 400])
@pytest.mark.parametrize("true", [0.0, 0.1, 0.4])
def test_gap_interval_covers_the_truth(groups: int, size: int, true: float) -> None:
    rng = np.random.default_rng(0)
    rates = np.linspace(0.3, 0.3 + true, groups)
    sizes = np.full(groups, size)
    covered = 0
    for _ in range(200):
        measured = rng.binomial(sizes, rates) / sizes
        low, high = gap_interval(measured[:, None], sizes[:, None].astype(float))
        covered += low <= true <= high
    assert covered >= 180


def test_wilson_solves_the_score_equation() -> None:
    z = float(norm.isf(0.025))
    low, high = wilson(np.array([0.3]), np.array([50.0]), z)
    for limit in (float(low[0]), float(high[0])):
        assert abs(0.3 - limit) == pytest.approx(z * math.sqrt(limit * (1 - limit) / 50))


def test_weighted_rates_of_decisions_are_shares() -> None:
    rng = np.random.default_rng(0)
    group, values = rng.integers(0, 2, 400), (rng.random((400, 1)) < 0.3).astype(float)
    rates, sizes = weighted_rates(np.eye(2)[group], values)
    for g in (0, 1):
        assert rates[g, 0] == pytest.approx(values[group == g].mean())
        assert sizes[g, 0] == pytest.approx((group == g).sum(), rel=0.01)
    # Means of probabilities are more precise than those of decisions.
    assert (weighted_rates(np.eye(2)[group], 0.3 + 0.1 * values)[1] > 10 * sizes).all()


def test_gap_intervals_contain_zero_gaps() -> None:
    # No gap at all: a percentile interval would lie above the estimate here.
    pred = np.tile([0, 1], 30)
    result = evaluate(
        pred, np.eye(2)[pred], sensitive_features=np.arange(60) // 2 % 2, bootstrap=50
    )
    assert result.dp == result.eo == result.odds == 0
    for key in ("dp", "eo", "odds"):
        assert result.intervals[key][0] == 0
        assert 0.05 < result.intervals[key][1] < 0.4
    few = evaluate(
        [0, 1, 2, 0], np.eye(3)[[0, 1, 2, 0]], sensitive_features=[0, 0, 1, 1], bootstrap=50
    )
    assert few.intervals["dp"][0] <= few.dp <= few.intervals["dp"][1]


def test_mean_interval_agrees_with_scipy():
    from scipy.stats import t

    values = [0.71, 0.74, 0.69, 0.73]
    result = mean_interval(values, 0.9)
    sem = np.std(values, ddof=1) / 2
    assert (result.low, result.high) == pytest.approx(t.interval(0.9, 3, np.mean(values), sem))
    assert result.n == 4
    with_nan = mean_interval([*values, math.nan], 0.9)
    assert with_nan == result
    interval = mean_interval([0.5])
    assert interval.mean == 0.5
    assert interval.n == 1
    assert math.isnan(interval.low)
    assert math.isnan(interval.high)
    assert math.isnan(mean_interval([math.nan]).mean)
    with pytest.raises(InputError, match=r"^confidence: 95"):
        mean_interval(values, 95)


def test_ratio_interval_agrees_with_relative_risk_of_large_samples() -> None:
    from scipy.stats.contingency import relative_risk

    rates, sizes = np.array([[0.3], [0.5]]), np.array([[4000], [6000]])
    expected = relative_risk(1200, 4000, 3000, 6000).confidence_interval(0.95)
    assert ratio_interval(rates, sizes) == pytest.approx(tuple(expected), abs=2e-3)


@pytest.mark.parametrize("rates", [(0.4, 0.5), (0.5, 0.5), (0.1, 0.3, 0.3), (0.02, 0.05)])
def test_ratio_interval_covers(rates: tuple[float, ...]) -> None:
    rng = np.random.default_rng(0)
    truth = np.array(rates)
    sizes = np.full((len(rates), 1), 150)
    covered = 0
    for _ in range(400):
        measured = rng.binomial(150, truth)[:, None] / 150
        low, high = ratio_interval(measured, sizes)
        covered += low <= truth.min() / truth.max() <= high
        assert low <= measured.min() / measured.max() <= high
    assert covered >= 0.93 * 400


def test_ratio_interval_with_empty_rates() -> None:
    low, high = ratio_interval(np.array([[0.0], [0.5]]), np.array([[20], [20]]))
    assert low == 0
    assert 0 < high < 1
    assert np.isnan(ratio_interval(np.array([[0.0], [0.0]]), np.array([[20], [20]]))).all()

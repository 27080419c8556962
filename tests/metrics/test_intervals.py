"""Intervals of gaps: they contain their estimate and cover the truth."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from fairmp.metrics import evaluate
from fairmp.metrics.counts import gap_interval, weighted_rates, wilson


@given(
    seed=st.integers(0, 10**6),
    groups=st.integers(2, 5),
    families=st.integers(1, 3),
    size=st.sampled_from([1, 3, 10, 100]),
)
def test_an_interval_contains_its_estimate(
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
def test_an_interval_covers_the_truth(groups: int, size: int, true: float) -> None:
    rng = np.random.default_rng(0)
    rates = np.linspace(0.3, 0.3 + true, groups)
    sizes = np.full(groups, size)
    covered = 0
    for _ in range(200):
        found = rng.binomial(sizes, rates) / sizes
        low, high = gap_interval(found[:, None], sizes[:, None].astype(float))
        covered += low <= true <= high
    assert covered >= 180


def test_limits_are_those_of_wilson() -> None:
    z = float(norm.isf(0.025))
    low, high = wilson(np.array([0.3]), np.array([50.0]), z)
    for limit in (float(low[0]), float(high[0])):
        assert abs(0.3 - limit) == pytest.approx(z * math.sqrt(limit * (1 - limit) / 50))


def test_weighted_rates_of_decisions_are_counts() -> None:
    rng = np.random.default_rng(0)
    group, values = rng.integers(0, 2, 400), (rng.random((400, 1)) < 0.3).astype(float)
    rates, sizes = weighted_rates(np.eye(2)[group], values)
    for g in (0, 1):
        assert rates[g, 0] == pytest.approx(values[group == g].mean())
        assert sizes[g, 0] == pytest.approx((group == g).sum(), rel=0.01)
    # Means of probabilities are more precise than those of decisions.
    assert (weighted_rates(np.eye(2)[group], 0.3 + 0.1 * values)[1] > 10 * sizes).all()


def test_evaluations_use_them() -> None:
    # No gap at all: a percentile interval would lie above the estimate here.
    pred = np.tile([0, 1], 30)
    result = evaluate(np.eye(2)[pred], pred, np.arange(60) // 2 % 2, bootstrap=50)
    assert result.dp == result.eo == result.odds == 0
    for key in ("dp", "eo", "odds"):
        assert result.intervals[key][0] == 0
        assert 0.05 < result.intervals[key][1] < 0.4
    few = evaluate(np.eye(3)[[0, 1, 2, 0]], [0, 1, 2, 0], [0, 0, 1, 1], bootstrap=50)
    assert few.intervals["dp"][0] <= few.dp <= few.intervals["dp"][1]

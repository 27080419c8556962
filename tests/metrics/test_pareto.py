from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairmp.errors import InputError
from fairmp.metrics import mean_interval
from fairmp.metrics.pareto import front, hypervolume, hypervolume_over_splits

fractions = st.integers(0, 20).map(lambda k: k / 20)
points = st.lists(st.tuples(fractions, fractions), max_size=12)


@given(points)
def test_front_is_the_set_of_undominated_points(some: list[tuple[float, float]]) -> None:
    def beats(one: tuple[float, float], other: tuple[float, float]) -> bool:
        return one[0] >= other[0] and one[1] <= other[1] and one != other

    expected = {p for p in some if not any(beats(q, p) for q in some)}
    optimal = front(some)
    assert set(optimal) == expected
    assert len(optimal) == len(expected)
    assert all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(optimal))


def brute_force(some: list[tuple[float, float]], floor: float, ceiling: float) -> float:
    """Count the cells of a lattice that has every corner of every box on its lines."""
    cells = 0
    for i in range(20):
        for j in range(20):
            accuracy, dp = (i + 0.5) / 20, (j + 0.5) / 20
            inside = accuracy > floor and dp < ceiling
            cells += inside and any(a > accuracy and d < dp for a, d in some)
    return cells / 400 / ((1 - floor) * ceiling)


@given(points, st.integers(0, 19).map(lambda k: k / 20), st.integers(1, 20).map(lambda k: k / 20))
def test_hypervolume_is_the_area_of_the_union(
    some: list[tuple[float, float]], floor: float, ceiling: float
) -> None:
    area = hypervolume(some, (floor, ceiling))
    assert area == pytest.approx(brute_force(some, floor, ceiling), abs=1e-9)


def test_hypervolume_agrees_with_monte_carlo() -> None:
    rng = np.random.default_rng(0)
    some = rng.random((9, 2))
    draws = rng.random((200_000, 2))
    draws[:, 0] = 0.3 + 0.7 * draws[:, 0]
    covered = np.zeros(len(draws), dtype=bool)
    for accuracy, dp in some:
        covered |= (draws[:, 0] < accuracy) & (draws[:, 1] > dp)
    area = hypervolume([(float(a), float(d)) for a, d in some], (0.3, 1.0))
    assert area == pytest.approx(covered.mean(), abs=0.005)


@given(points, st.tuples(fractions, fractions))
def test_hypervolume_grows_with_points(
    some: list[tuple[float, float]], added: tuple[float, float]
) -> None:
    assert hypervolume([*some, added]) >= hypervolume(some) - 1e-12


def test_hypervolume_of_no_points_and_wrong_reference() -> None:
    assert hypervolume([]) == 0.0
    assert hypervolume([(math.nan, 0.1)]) == 0.0
    assert hypervolume([(1.0, 0.0)], (0.6, 1.0)) == pytest.approx(1.0)
    with pytest.raises(InputError, match="reference"):
        hypervolume([], (1.0, 1.0))


def record(accuracy: float, dp: float, split: int, strength: float = 0.0) -> dict[str, object]:
    test = {"accuracy": accuracy, "dp": dp, "eo": None, "auc": 0.5}
    run = {"test": test, "seconds": 1.0}
    return {"split": split, "strength": strength, "majority": 0.5, "run": run}


def test_jackknife_interval_is_that_of_the_mean_if_linear() -> None:
    accuracies = [0.7, 0.75, 0.72, 0.9, 0.8]
    area = hypervolume_over_splits([record(a, 0.0, k) for k, a in enumerate(accuracies)])
    expected = mean_interval([(a - 0.5) / 0.5 for a in accuracies])
    assert area == pytest.approx(expected)


def test_hypervolume_over_splits_averages_before_the_front() -> None:
    # Each strength is once perfect and once no better than a constant: on average neither is good.
    some = [record(1.0 if k == s else 0.5, 0.0, k, float(s)) for k in range(2) for s in range(2)]
    assert hypervolume_over_splits(some).mean == pytest.approx(0.5)

"""The scalar root finder against scipy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import expit

from fairmp.kernels.root import MAX_PASSES, find_root, first_root, next_root


class Gap:
    """The gap of two groups of margins, at the dual w of the scaled problem."""

    def __init__(self, first: list[float], second: list[float]) -> None:
        sizes = len(first), len(second)
        self.scale = 1 / min(sizes)
        self.margin = np.array([*first, *second], dtype=np.float64)
        self.delta = np.repeat([-1 / sizes[0], 1 / sizes[1]], sizes) / self.scale
        self.calls = 0

    @property
    def width(self) -> float:
        return float(np.abs(self.margin).max())

    def value(self, w: float) -> float:
        return self.scale * float(self.delta @ expit(self.margin - self.delta * w))

    def __call__(self, w: float) -> tuple[float, float]:
        self.calls += 1
        q = expit(self.margin - self.delta * w)
        return self.value(w), self.scale * float((self.delta**2 * q * (1 - q)).sum())


margins = st.lists(st.floats(-30, 30), min_size=1, max_size=12)


@given(
    first=margins,
    second=margins,
    target=st.sampled_from([0.0, 0.01, 0.2]),
    start=st.floats(-100, 100),
)
def test_find_root_equals_brentq(
    first: list[float], second: list[float], target: float, start: float
) -> None:
    gap = Gap(first, second)
    root = find_root(gap, start, gap.width, target, 1e-12)
    assert root.passes == gap.calls
    before = gap.value(0.0)
    if abs(before) <= target:
        assert root.w == root.residual == 0 or abs(gap.value(root.w)) <= target + 1e-12
        return
    aim = target if before > 0 else -target
    assert abs(gap.value(root.w) - aim) <= 1e-9
    bound = gap.width * len(gap.margin) + 1e3
    expected = brentq(lambda w: gap.value(w) - aim, -bound, bound, xtol=1e-12)
    # Where groups are all but certain, many w give the same gap.
    assert abs(gap.value(expected) - gap.value(root.w)) <= 1e-9


def test_find_root_converges_in_a_few_passes() -> None:
    rng = np.random.default_rng(0)
    gap = Gap(rng.normal(size=300).tolist(), (rng.normal(size=100) + 1).tolist())
    root = find_root(gap, 0.0, gap.width, 0.01, 1e-12)
    assert root.residual <= 1e-12
    assert root.passes <= 6
    again = find_root(gap, root.w, gap.width, 0.01, 1e-12)
    assert (again.w, again.passes) == (root.w, 1)


def test_find_root_reaches_beyond_the_largest_margin() -> None:
    """A small group must follow a large one to where that is all but certain."""
    gap = Gap(100 * [-30.0], [30.0])
    root = find_root(gap, 0.0, gap.width, 0.0, 1e-12)
    assert root.w > gap.width + 20
    assert abs(gap.value(root.w)) <= 1e-12


def test_find_root_gives_up_after_max_passes() -> None:
    """A gap that never meets its target, whatever w."""
    calls: list[float] = []

    def jump(w: float) -> tuple[float, float]:
        calls.append(w)
        return (1.0 if w < np.pi else -1.0), 0.0

    root = find_root(jump, 0.0, 1e300, 0.0, 1e-12)
    assert root.residual == 1.0
    assert root.passes == len(calls) <= MAX_PASSES
    assert MAX_PASSES >= 100  # bisection alone from 1e6 to the last digit takes 73


@pytest.mark.parametrize("start", [1e9, -1e9, float("nan"), float("inf")])
def test_first_root_ignores_a_start_outside_the_bracket(start: float) -> None:
    assert first_root(start, 10.0).w == 0.0


def test_next_root_bisects_where_a_step_leaves_the_bracket() -> None:
    root = first_root(1.0, 10.0)
    following = next_root(root, gap=0.5, curvature=1e-9, target=0.0, tolerance=1e-12)
    assert following.low == 1.0
    assert following.w == (1.0 + following.high) / 2


def test_next_root_tries_zero_before_it_changes_sign() -> None:
    root = first_root(0.1, 10.0)
    following = next_root(root, gap=-5.0, curvature=1.0, target=0.1, tolerance=1e-12)
    assert following.w == 0.0

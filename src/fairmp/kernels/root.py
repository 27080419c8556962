"""One step of Newton's method in a bracket, on plain numbers; compiled for the CPU as well."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

MAX_PASSES = 200  # bisection alone takes 73, from 1e6 to the last digit; more only cost time
MAX_MARGIN = 1e6  # in units of τ; float64 resolves a shift of this size to 1e-10
SATURATION_LOGIT = 45.0  # beyond the largest margin by this, every node has changed sides


class Solved(NamedTuple):
    """Where a decreasing function meets its target."""

    w: float
    residual: float
    passes: int
    curvature: float  # minus the derivative


class Root(NamedTuple):
    """An approximation of w with gap(w) = ±target, or of 0 if the gap there is within the target.

    The gap falls with w; ``low`` and ``high`` enclose the solution.
    """

    w: float
    low: float
    high: float
    residual: float  # by how much the gap misses the target at the point before w
    done: bool  # w is that point, and is kept


def first_root(start: float, width: float) -> Root:
    """A first guess, for margins of at most ``width``."""
    bound = width + SATURATION_LOGIT
    w = start if abs(start) < bound else 0.0
    return Root(w, -bound, bound, math.inf, False)


def next_root(root: Root, gap: float, curvature: float, target: float, tolerance: float) -> Root:
    """The next approximation, from the gap at the last one and minus its derivative."""
    w, low, high = root.w, root.low, root.high
    excess = gap - (target if w > 0 or (w == 0 and gap > 0) else -target)
    if w == 0 and abs(gap) <= target:
        excess = 0.0
    residual = abs(excess)
    if residual <= tolerance:
        return Root(w, low, high, residual, True)
    if excess > 0:
        low = w
    else:
        high = w
    middle = (low + high) / 2
    step = w + excess / curvature if curvature > 0 else high
    # A step that leaves the bracket, or does not halve the excess, is no better than bisection.
    if not (low < step < high and residual < root.residual / 2):
        step = middle
    if w * step < 0 and low < 0 < high:  # the gap may be within the target at 0
        step = 0.0
    stuck = step == w or middle <= low or middle >= high
    return Root(w if stuck else step, low, high, residual, stuck)


def find_root(
    gap_at: Callable[[float], tuple[float, float]],
    start: float,
    width: float,
    target: float,
    tolerance: float,
) -> Solved:
    """Find w with gap(w) = ±target; ``gap_at`` returns the gap and minus its derivative."""
    root, passes = first_root(start, width), 0
    while True:
        gap, curvature = gap_at(root.w)
        following = next_root(root, gap, curvature, target, tolerance)
        passes += 1
        if following.done or passes == MAX_PASSES:
            return Solved(root.w, following.residual, passes, curvature)
        root = following

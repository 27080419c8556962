"""Cuts of groups in two by sorted margins, with rates that all lie in one window.

The window is as wide as the target. Which one is best is a function of its lower end that is
constant between the rates that groups can have, so that all windows are compared in one pass over
the nodes, whatever the number of groups.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

ROUNDING = 1e-9  # of a gap
END_ROUNDING = 1e-12  # of a window's end
SUM_ROUNDING = 1e-9  # relative, of the sums by which windows are compared at first
MAX_FINALISTS = 1024  # windows that are as good as the best but for rounding, compared exactly


class Cuts:
    """Ways to cut a group in two by margin: how many are selected, their rate and their value.

    Between equal margins there is no cut, or with ``split`` one per node, whose value is that to be
    expected of a random choice.
    """

    def __init__(self, margin: Floats, weight: Floats, value: Floats, split: bool) -> None:
        self.order = np.argsort(-margin, kind="stable")
        margin, weight, value = margin[self.order], weight[self.order], value[self.order]
        edges = np.flatnonzero(np.r_[True, margin[:-1] != margin[1:], True])
        self.counts = np.arange(len(margin) + 1) if split else edges
        total = weight.sum()
        self.rates = np.interp(self.counts, edges, np.r_[0.0, weight.cumsum()][edges]) / total
        self.values = np.interp(self.counts, edges, np.r_[0.0, value.cumsum()][edges])
        self.step = weight.max() / total  # what one node changes
        self.plain = int(np.searchsorted(self.counts, (margin > 0).sum()))
        self.centres = (self.rates[1:] + self.rates[:-1]) / 2

    def nearest_to(self, rate: float, target: float) -> int:
        """The cut nearest to the plain one, moved to within ``rate ± target/2``."""
        wanted = np.clip(self.rates[self.plain], rate - target / 2, rate + target / 2)
        return int(np.abs(self.rates - wanted).argmin())

    def within(self, low: Floats, high: Floats) -> Integers:
        """The cut nearest to the plain one in each window; in the middle of those without one."""
        least = np.searchsorted(self.rates, low - ROUNDING)
        most = np.searchsorted(self.rates, high + ROUNDING, side="right") - 1
        nearest = np.searchsorted(self.centres, (low + high) / 2)
        return np.where(least <= most, np.clip(self.plain, least, most), nearest)

    def window(self, low: Floats, width: float) -> tuple[Integers, Integers]:
        """The first cut of each window, and the first one above it."""
        above: Integers = np.searchsorted(self.rates, low + width, side="right")
        return np.searchsorted(self.rates, low), above

    def changes(self, ends: Floats, target: float) -> Integers:
        """Where among sorted lower ends the cut within a window may change; a superset."""
        up, down = self.rates + ROUNDING, self.rates - target - ROUNDING
        edges = np.concatenate([up, down, self.centres - target / 2])
        # Ends may equal an edge but for the last digits.
        around = np.concatenate([edges - END_ROUNDING, edges, edges + END_ROUNDING])
        at: Integers = np.searchsorted(ends, around)
        return np.unique(np.r_[0, at[at < len(ends)]])


def closest_cuts(groups: Sequence[Cuts], target: float) -> list[int]:
    """Cuts with rates in one window whose changed margins have the smallest sum."""
    plain = [group.rates[group.plain] for group in groups]
    # The window's lower end, where it or the upper end is a rate that some group can have.
    ends = np.concatenate([group.rates for group in groups])
    ends = np.unique(np.concatenate([ends, ends - target]))
    ends = ends[(ends >= min(plain)) & (ends <= max(plain) - target)]
    if not len(ends):  # no gap, or one within the target
        return [group.plain for group in groups]
    ends = ends[_finalists(groups, ends, target)]
    value = np.zeros(len(ends))
    for group in groups:
        value += group.values[group.within(ends, ends + target)]
    best = ends[[int(np.argmax(value))]]
    return [int(group.within(best, best + target)[0]) for group in groups]


def _finalists(groups: Sequence[Cuts], ends: Floats, target: float) -> Integers:
    """The windows that may be best, by the sum of each group's values at the ends it changes at."""
    where, steps, size = [], [], 0.0
    for group in groups:
        at = group.changes(ends, target)
        value = group.values[group.within(ends[at], ends[at] + target)]
        where.append(at)
        steps.append(np.diff(value, prepend=0.0))
        size += float(np.abs(value).max())
    total = np.bincount(np.concatenate(where), np.concatenate(steps), len(ends)).cumsum()
    return np.flatnonzero(total >= total.max() - SUM_ROUNDING * size)[:MAX_FINALISTS]


def best_cuts(groups: Sequence[Cuts], target: float) -> list[int]:
    """The cuts of largest value with rates in one window, of the target or half a node each."""
    # The smallest rate is one that some group can have: try each, with the best cut of every group
    # in the window above it.
    steps = sorted((group.step for group in groups), reverse=True)
    width = max(target, (steps[0] + steps[1]) / 2) + ROUNDING
    low = np.unique(np.concatenate([group.rates for group in groups]))
    value = np.zeros(len(low))
    for group in groups:
        value += _range_max(group.values, *group.window(low, width))
    best = low[[int(np.argmax(value))]]
    chosen = []
    for group in groups:
        (first,), (last,) = group.window(best, width)
        chosen.append(int(first + group.values[first:last].argmax()))
    return chosen


def _range_max(values: Floats, first: Integers, last: Integers) -> Floats:
    """The largest of ``values[first:last]`` for many windows at once; −inf for empty ones."""
    # Level j holds the maxima of 2^j neighbours: two of them, overlapping, cover any window.
    levels = [values]
    while 2 ** len(levels) <= len(values):
        half = 2 ** (len(levels) - 1)
        levels.append(np.maximum(levels[-1][:-half], levels[-1][half:]))
    length = last - first
    result = np.full(len(first), -math.inf)
    for j, level in enumerate(levels):
        here = (length >= 2**j) & (length < 2 ** (j + 1))
        result[here] = np.maximum(level[first[here]], level[last[here] - 2**j])
    return result

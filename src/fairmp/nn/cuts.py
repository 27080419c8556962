"""Cuts of groups in two by sorted margins, with rates that all lie in one window.

The window is as wide as the target. Which one is best is a function of its lower end that is
constant between the rates that groups can have, so that all windows are compared in one pass over
the nodes, whatever the number of groups. For more classes, :func:`counts_within` rounds numbers of
decisions to whole ones whose rates lie in a window.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

ROUNDING = 1e-9  # of a gap
END_ROUNDING = 1e-12  # of a window's end
SUM_ROUNDING = 1e-9  # relative, of the sums by which windows are compared at first
MAX_FINALISTS = 1024  # windows that are as good as the best but for rounding, compared exactly
MAX_MOVES = 1000  # of single nodes that are compared at once


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


def counts_within(counts: Integers, target: float) -> Integers:
    """Decisions per group and class, near the given ones, whose rates are within the target."""
    sizes = counts.sum(1, keepdims=True)
    rates, limit = counts / sizes, target + 1 / sizes.min() + ROUNDING
    if np.ptp(rates, axis=0).max() <= limit:
        return counts
    centre = counts.sum(0) / counts.sum()
    away = np.abs(rates - centre).max(1, keepdims=True)
    rates = centre + (rates - centre) * np.minimum(1, target / 2 / np.maximum(away, 1e-300))
    exact = rates * sizes
    wanted: Integers = np.floor(exact).astype(np.int64)
    for group, missing in enumerate((sizes.ravel() - wanted.sum(1)).tolist()):
        wanted[group, np.argsort(wanted[group] - exact[group], kind="stable")[:missing]] += 1
    # Rounding may leave two groups up to two nodes apart: move single nodes while that helps.
    while _spread(wanted, sizes) > limit:
        nearest = min(_single_moves(wanted, sizes), key=lambda moved: _spread(moved, sizes))
        if _spread(nearest, sizes) >= _spread(wanted, sizes):
            break
        wanted = nearest
    if _spread(wanted, sizes) > limit:
        # Several groups are equally far apart: round them into one window.
        window = np.array([_round_into(row, centre, limit) for row in exact])
        wanted = min(wanted, window, key=lambda rounded: _spread(rounded, sizes))
    return wanted


def _spread(counts: Integers, sizes: Integers) -> float:
    """The largest gap of counts."""
    return float(np.ptp(counts / sizes, axis=0).max())


def _single_moves(counts: Integers, sizes: Integers) -> Iterator[Integers]:
    """Counts after one node of the groups farthest apart goes to another class."""
    shares = counts / sizes
    widest = np.ptp(shares, axis=0) >= _spread(counts, sizes) - ROUNDING
    ends = (shares == shares.max(0)) | (shares == shares.min(0))
    farthest = (ends & widest).any(1)  # moves of other groups do not help
    for group, leave in np.argwhere((counts > 0) & farthest[:, None])[:MAX_MOVES]:
        for enter in range(counts.shape[1]):
            moved = counts.copy()
            moved[group, leave] -= 1
            moved[group, enter] += 1
            yield moved


def _round_into(exact: Floats, centre: Floats, width: float) -> Integers:
    """Whole numbers with the same sum, whose shares are within half a width of the centre's."""
    size = round(float(exact.sum()))
    low = np.maximum(np.ceil((centre - width / 2) * size), 0).astype(np.int64)
    high = np.floor((centre + width / 2) * size).astype(np.int64)
    counts = np.clip(np.floor(exact).astype(np.int64), low, np.maximum(low, high))
    while (missing := size - int(counts.sum())) != 0:
        step = 1 if missing > 0 else -1
        room = counts < high if missing > 0 else counts > low
        room = room if room.any() else counts + step >= 0
        counts[np.argmax(np.where(room, step * (exact - counts), -np.inf))] += step
    return counts

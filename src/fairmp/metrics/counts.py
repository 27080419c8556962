r"""Rates, gaps and AUC as functions of count tables, or of stacks of such, and their intervals.

Resampling nodes is resampling the table group × label × prediction from a multinomial, so the
bootstrap here draws counts: its cost does not depend on the number of nodes.

A gap is a maximum of differences, so its estimate is biased upward, and percentiles of a bootstrap
can exclude it. Its interval combines Newcombe's for the difference of two rates [1]_,

.. math::
    d_{gh} - \sqrt{(r_g - l_g)^2 + (u_h - r_h)^2}, \qquad
    d_{gh} + \sqrt{(u_g - r_g)^2 + (r_h - l_h)^2}, \qquad d_{gh} = r_g - r_h,

with Wilson's limits :math:`l, u` of each rate. The largest upper limit of all pairs bounds the gap,
because it is at least that of the pair that is truly farthest apart; the largest lower limit does,
at a level divided by the number of pairs. Both ends enclose the estimate by construction.

.. [1] R. G. Newcombe, "Interval estimation for the difference between independent proportions",
   Statistics in Medicine 17, 1998.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairmp.metrics.kinds import look_like_probabilities

Array = NDArray[np.float64]


def ratio(part: Any, whole: Any) -> np.ndarray:
    """Divide, with nan where the denominator is 0."""
    part, whole = np.asarray(part, dtype=float), np.asarray(whole, dtype=float)
    return np.divide(part, whole, out=np.full(whole.shape, np.nan), where=whole > 0)


def count(
    pred: np.ndarray,
    label: np.ndarray,
    group: np.ndarray,
    classes: int,
    groups: int,
    weight: np.ndarray | None = None,
) -> np.ndarray:
    """Count nodes by group × label × prediction; the last group and label are the unknown ones."""
    group, label = np.where(group < 0, groups, group), np.where(label < 0, classes, label)
    shape = (groups + 1, classes + 1, classes)
    index = np.ravel_multi_index((group, label, pred), shape)
    return np.bincount(index, weight, minlength=math.prod(shape)).reshape(shape)


def group_rates(table: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compute P(ŷ=c | s), P(ŷ=c | y=c, s) and P(ŷ=c | y≠c, s), each (…, groups, classes)."""
    table = table[..., :-1, :, :]
    by_pred = table.sum(-2)
    known = table[..., :-1, :]
    hits = np.diagonal(known, axis1=-2, axis2=-1)
    by_label, decided = known.sum(-1), known.sum(-2)
    others = by_label.sum(-1, keepdims=True) - by_label
    rate = ratio(by_pred, np.broadcast_to(by_pred.sum(-1, keepdims=True), by_pred.shape))
    return rate, ratio(hits, by_label), ratio(decided - hits, others)


def rate_range(rates: np.ndarray) -> np.ndarray:
    """Largest minus smallest over the groups (…, groups, classes) with a rate; nan below two."""
    defined = ~np.isnan(rates)
    high = np.where(defined, rates, -1).max(-2)
    low = np.where(defined, rates, 2).min(-2)
    return np.where(defined.sum(-2) >= 2, high - low, np.nan)


def gap_intervals(
    table: np.ndarray, confidence: float, squares: np.ndarray | None = None
) -> dict[str, tuple[float, float]]:
    """Intervals of ΔDP, ΔEO and Δodds; ``squares`` is the same table of squared weights."""
    rate, tpr, fpr = group_rates(table)

    def sizes(table: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        by_label = table[:-1, :-1].sum(-1)
        total = np.broadcast_to(table[:-1].sum((1, 2))[:, None], rate.shape)
        return total, by_label, by_label.sum(1, keepdims=True) - by_label

    both = zip(sizes(table), sizes(table if squares is None else squares), strict=True)
    total, by_label, others = (effective_size(whole, square) for whole, square in both)
    # Of two classes, the rates of class 0 mirror those of class 1.
    used = slice(1, 2) if rate.shape[1] == 2 else slice(None)
    odds = np.hstack([tpr[:, used], fpr[:, used]])
    behind = np.hstack([by_label[:, used], others[:, used]])
    return {
        "dp": gap_interval(rate[:, used], total[:, used], confidence),
        "eo": gap_interval(tpr[:, used], by_label[:, used], confidence),
        "odds": gap_interval(odds, behind, confidence),
    }


def effective_size(total: Any, squares: Any) -> np.ndarray:
    """Kish's effective sample size (Σw)²/Σw², from the sums of weights and squared weights."""
    total, squares = np.asarray(total, dtype=float), np.asarray(squares, dtype=float)
    return np.divide(total**2, squares, out=np.zeros_like(total), where=squares > 0)


def figures(table: np.ndarray) -> dict[str, np.ndarray]:
    """Compute accuracy, F1, ΔDP, ΔEO and Δodds of a table, or of each table of a stack."""
    confusion = table[..., :-1, :].sum(-3)
    hits = np.diagonal(confusion, axis1=-2, axis2=-1)
    f1 = ratio(2 * hits, confusion.sum(-1) + confusion.sum(-2))
    rate, tpr, fpr = group_rates(table)
    parity, recall = rate_range(rate), rate_range(tpr)
    odds = np.maximum(recall, rate_range(fpr))
    binary = hits.shape[-1] == 2
    # fmax ignores nan, where np.nanmax would warn.
    return {
        "accuracy": ratio(hits.sum(-1), confusion.sum((-2, -1))),
        "f1": f1[..., 1] if binary else ratio(np.nansum(f1, -1), (~np.isnan(f1)).sum(-1)),
        "dp": np.fmax.reduce(parity, -1),
        "eo": recall[..., 1] if binary else np.fmax.reduce(recall, -1),
        "odds": np.fmax.reduce(odds, -1),
    }


def score_tables(
    scores: np.ndarray, label: np.ndarray, weight: np.ndarray | None = None
) -> list[np.ndarray]:
    """Count rest and class by distinct score, for class 1 of two, or for every class."""
    if scores.shape[1] == 2:
        # The margin rises with the probability of class 1 and does not saturate.
        columns = {1: scores[:, 1] - scores[:, 0]}
    else:
        from scipy.special import softmax

        proba = scores if look_like_probabilities(scores) else softmax(scores, axis=1)
        columns = dict(enumerate(proba.T))
    tables = []
    for c, column in columns.items():
        distinct, place = np.unique(column, return_inverse=True)
        width = len(distinct)
        counts = np.bincount((label == c) * width + place, weight, minlength=2 * width)
        tables.append(counts.reshape(2, width))
    return tables


def auc(table: np.ndarray) -> np.ndarray:
    """P(score of class > score of rest) + ½ P(equal), from counts of both by rising score."""
    rest, of_class = table[..., 0, :].astype(float), table[..., 1, :].astype(float)
    below = np.cumsum(rest, -1) - rest / 2
    return ratio((of_class * below).sum(-1), of_class.sum(-1) * rest.sum(-1))


def coarse(table: np.ndarray, bins: int) -> np.ndarray:
    """Join neighbouring scores into bins of about equal count, to make resampling cheap."""
    if table.shape[1] <= bins:
        return table
    rank = table.sum(0).cumsum() - 1
    _, start = np.unique(rank * bins // (rank[-1] + 1), return_index=True)
    return np.add.reduceat(table, start, axis=1)


def bootstrap(
    table: np.ndarray,
    statistics: Callable[[np.ndarray], dict[str, np.ndarray]],
    resamples: int,
    rng: np.random.Generator,
) -> dict[str, np.ndarray]:
    """Resample the table and return the values of every statistic."""
    total = round(float(table.sum()))
    if not total:
        return {}
    # Most entries of a table of many classes are 0 and stay so.
    filled = np.flatnonzero(table)
    weights = table.reshape(-1)[filled] / table.sum()
    chunk = max(1, 2_000_000 // table.size)
    parts = []
    for start in range(0, resamples, chunk):
        size = min(chunk, resamples - start)
        stack = np.zeros((size, table.size), dtype=np.int64)
        stack[:, filled] = rng.multinomial(total, weights, size=size)
        parts.append(statistics(stack.reshape(size, *table.shape)))
    return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}


def percentiles(
    samples: np.ndarray | None, figure: float, confidence: float
) -> tuple[float, float]:
    """Percentile interval over the resamples in which the figure is defined."""
    if samples is None or math.isnan(figure) or np.isnan(samples).all():
        return math.nan, math.nan
    low, high = np.nanquantile(samples, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def gap_interval(rates: Array, sizes: Array, confidence: float = 0.95) -> tuple[float, float]:
    """Interval for the largest difference of a rate between two groups.

    Rates are G×F, one column per kind of rate and nan where undefined; sizes are the numbers of
    observations behind them.
    """
    from scipy.special import ndtri

    defined = ~np.isnan(rates)
    pairs = int((defined.sum(0) * (defined.sum(0) - 1)).sum()) // 2
    if not pairs:
        return math.nan, math.nan
    tail = (1 - confidence) / 2
    r = np.where(defined, rates, 0.0)
    both = defined[:, None] & defined[None]
    difference = r[:, None] - r[None]

    def limits(level: float) -> tuple[Array, Array]:
        low, high = wilson(r, np.maximum(sizes, 1e-9), float(-ndtri(level)))
        below = np.hypot((r - low)[:, None], (high - r)[None])
        above = np.hypot((high - r)[:, None], (r - low)[None])
        return difference - below, difference + above

    low = np.where(both, limits(tail / pairs)[0], -1.0).max()
    high = np.where(both, limits(tail)[1], -1.0).max()
    gap = float(np.where(both, difference, 0.0).max())
    return min(max(float(low), 0.0), gap), max(min(float(high), 1.0), gap)


def wilson(rates: Array, sizes: Array, z: float) -> tuple[Array, Array]:
    """Wilson's score interval of rates, for a normal quantile z."""
    shrink = 1 + z**2 / sizes
    centre = (rates + z**2 / (2 * sizes)) / shrink
    half = z / shrink * np.sqrt(rates * (1 - rates) / sizes + z**2 / (4 * sizes**2))
    return centre - half, centre + half


def weighted_rates(weights: Array, values: Array) -> tuple[Array, Array]:
    """Means of values in [0, 1] (n×C), weighted by group (n×G), and their precision (both G×C).

    The precision is the number of 0/1 observations whose mean is as precise.
    """
    total = weights.sum(0)[:, None]
    safe = np.maximum(total, 1e-300)
    rates = np.where(total > 0, weights.T @ values / safe, np.nan)
    nodes = safe**2 / np.maximum((weights**2).sum(0)[:, None], 1e-300)
    spread = rates * (1 - rates)
    # One more observation with the variance of a 0/1 value keeps few equal values uncertain.
    variance = weights.T @ values**2 / safe - rates**2 + spread / nodes
    return rates, nodes * np.clip(spread / np.maximum(variance, 1e-12), 0.0, 1e6)

r"""Intervals of gaps between groups and of the impact ratio, and the gap that sampling leaves.

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
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

from fairmp.metrics.clusters import PairStretch, pair_stretch
from fairmp.metrics.counts import effective_size, ratio, smallest_ratio, wilson

MAX_PAIRS = 2**20  # of groups, compared at once


def gap_intervals(
    table: np.ndarray,
    confidence: float,
    squares: np.ndarray,
    by_cluster: np.ndarray | None = None,
) -> dict[str, tuple[float, float]]:
    """Intervals of gaps and of the impact ratio.

    ``squares`` is the same table of squared weights, ``by_cluster`` one table per cluster (m×…).
    """
    parts, nodes = fractions(table), {}
    for key, fraction in fractions(squares).items():
        nodes[key] = effective_size(parts[key].whole, fraction.whole)
    in_clusters = None if by_cluster is None else fractions(by_cluster)
    intervals = {}
    for key, fraction in parts.items():
        rates = ratio(fraction.part, fraction.whole)
        is_ratio = key == "impact_ratio"
        stretch = None
        if in_clusters is not None:
            stretch = pair_stretch(*in_clusters[key], nodes[key], logarithm=is_ratio)
        interval = ratio_interval if is_ratio else gap_interval
        intervals[key] = interval(rates, nodes[key], confidence, stretch)
    return intervals


class Fraction(NamedTuple):
    """Nodes that a rate counts, among the nodes it is over (…, groups, classes)."""

    part: np.ndarray
    whole: np.ndarray


def fractions(table: np.ndarray) -> dict[str, Fraction]:
    """The rates whose gaps have intervals; for two classes only of class 1, which 0 mirrors."""
    used = slice(1, 2) if table.shape[-1] == 2 else slice(None)
    by_pred, labelled = table[..., :-1, :, :].sum(-2), table[..., :-1, :-1, :]
    hits = np.diagonal(labelled, axis1=-2, axis2=-1)
    of_class, labelled_by_pred = labelled.sum(-1), labelled.sum(-2)
    of_others = of_class.sum(-1, keepdims=True) - of_class
    everyone = np.broadcast_to(by_pred.sum(-1, keepdims=True), by_pred.shape)
    pairs = {
        "dp": (by_pred, everyone),
        "eo": (hits, of_class),
        "fpr": (labelled_by_pred - hits, of_others),
        "ppv": (hits, labelled_by_pred),
    }
    by_key = {key: Fraction(a[..., used], b[..., used]) for key, (a, b) in pairs.items()}
    by_key["odds"] = Fraction(
        *(np.concatenate(both, -1) for both in zip(by_key["eo"], by_key["fpr"], strict=True))
    )
    correct = np.trace(labelled, axis1=-2, axis2=-1)[..., None]
    by_key["accuracy_gap"] = Fraction(correct, labelled.sum((-2, -1))[..., None])
    by_key["impact_ratio"] = by_key["dp"]
    return by_key


def gap_interval(
    rates: np.ndarray,
    sizes: np.ndarray,
    confidence: float = 0.95,
    stretch: PairStretch | None = None,
) -> tuple[float, float]:
    """Interval for the largest difference of a rate (G×F, nan if undefined) between two groups.

    Those of pairs are ``stretch`` times as long where nodes are correlated.
    """
    defined = ~np.isnan(rates)
    pairs = int((defined.sum(0) * (defined.sum(0) - 1)).sum()) // 2
    if not pairs:
        return math.nan, math.nan
    tail = (1 - confidence) / 2
    r = np.where(defined, rates, 0.0)
    smallest = wilson(r, np.maximum(sizes, 1e-9), float(-ndtri(tail / pairs)))
    largest = wilson(r, np.maximum(sizes, 1e-9), float(-ndtri(tail)))
    low = high = -1.0
    gap = 0.0
    # Some groups at a time with all others: many groups have too many pairs to hold.
    step = max(MAX_PAIRS // rates.size, 1)
    for start in range(0, len(rates), step):
        some = slice(start, start + step)
        both = defined[some, None] & defined[None]
        difference = r[some, None] - r[None]
        below = np.hypot((r - smallest[0])[some, None], (smallest[1] - r)[None])
        above = np.hypot((largest[1] - r)[some, None], (r - largest[0])[None])
        if stretch is not None:
            below = below * stretch.at(tail / pairs)[some]
            above = above * stretch.at(tail)[some]
        low = max(low, float(np.where(both, difference - below, -1.0).max()))
        high = max(high, float(np.where(both, difference + above, -1.0).max()))
        gap = max(gap, float(np.where(both, difference, 0.0).max()))
    return min(max(low, 0.0), gap), max(min(high, 1.0), gap)


def ratio_interval(
    rates: np.ndarray,
    sizes: np.ndarray,
    confidence: float = 0.95,
    stretch: PairStretch | None = None,
) -> tuple[float, float]:
    r"""Interval for the smallest ratio of a rate (G×F, nan if undefined) between two groups.

    For each pair, Wilson's limits of both rates are combined on the scale of logarithms, as
    Newcombe combines them for a difference:

    .. math::
        \log\frac{r_g}{r_h} - \sqrt{\log^2\frac{r_g}{l_g} + \log^2\frac{u_h}{r_h}}, \qquad
        \log\frac{r_g}{r_h} + \sqrt{\log^2\frac{u_g}{r_g} + \log^2\frac{r_h}{l_h}}.

    The smallest lower limit of all pairs bounds the ratio; so does the smallest upper limit, at a
    level divided by the number of pairs.
    """
    defined = ~np.isnan(rates)
    pairs = int((defined.sum(0) * (defined.sum(0) - 1)).sum()) // 2
    estimate = np.fmin.reduce(smallest_ratio(rates))
    if not pairs or np.isnan(estimate):
        return math.nan, math.nan
    tail = (1 - confidence) / 2
    r = np.where(defined, rates, 0.0)
    # A group with rate 0 has no logarithm; nothing is divided by it.
    both = (defined & (r > 0))[None] & defined[:, None]
    both &= ~np.eye(len(r), dtype=bool)[:, :, None]

    def limits(level: float) -> tuple[np.ndarray, np.ndarray]:
        low, high = wilson(r, np.maximum(sizes, 1e-9), float(-ndtri(level)))
        with np.errstate(divide="ignore", invalid="ignore"):
            down, up = np.log(r / low), np.log(high / r)
            log_ratio = np.log(r)[:, None] - np.log(r)[None]
            factor = 1.0 if stretch is None else stretch.at(level)
            below = np.exp(log_ratio - factor * np.hypot(down[:, None], up[None]))
            above = np.exp(log_ratio + factor * np.hypot(up[:, None], down[None]))
            at_zero = np.broadcast_to((r == 0)[:, None], below.shape)
            widest = high[:, None] / low[None]
        return np.where(at_zero, 0.0, below), np.where(at_zero, widest, above)

    low = np.where(both, limits(tail)[0], 1.0).min()
    high = np.where(both, limits(tail / pairs)[1], 1.0).min()
    return min(max(float(low), 0.0), float(estimate)), max(min(float(high), 1.0), float(estimate))


def sampling_floor(counts: Sequence[int], rate: float) -> float:
    r"""Mean gap that groups of some sizes show by chance, if all have the same rate.

    .. math:: 0.8 \sqrt{r (1 - r) \sum_g 1 / n_g}

    For two groups it is the normal approximation, where 0.8 stands for the root of 2/π.

    Args:
        counts: nodes per group, n_g; empty groups are left out.
        rate: of the decision, r.

    Example:
        >>> round(sampling_floor([100, 100], 0.5), 3)
        0.057
    """
    inverse = sum(1 / count for count in counts if count)
    return 0.8 * math.sqrt(rate * (1 - rate) * inverse)

r"""Confidence intervals for gaps between groups.

A gap is a maximum of differences, so its estimate is biased upward, and percentiles of a bootstrap
can exclude it. The intervals here combine Newcombe's for the difference of two rates [1]_,

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

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


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

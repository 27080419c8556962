r"""Compare the figures of two samples, and tell a change from sampling error.

The interval of a difference :math:`d = b - a` of two independent estimates combines the limits of
each (the method of variance estimates recovery, [1]_),

.. math::
    d - \sqrt{(b - l_b)^2 + (u_a - a)^2}, \qquad d + \sqrt{(u_b - b)^2 + (a - l_a)^2},

which for Wilson's limits of two rates is Newcombe's interval. A figure counts as changed where the
interval excludes 0 at a level divided by the number of figures compared.

.. [1] G. Y. Zou and A. Donner, "Construction of confidence limits about effect measures",
   Statistics in Medicine 27, 2008.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from fairmp.metrics.counts import NORMAL_QUANTILE, wilson
from fairmp.metrics.evaluation import TITLES

LEVEL = 0.05
Estimate: TypeAlias = tuple[float, float, float]  # with its 95 % limits


class Change(NamedTuple):
    """One figure in two samples, as a fraction; the interval is that of the difference (95 %)."""

    name: str
    before: float
    after: float
    low: float
    high: float
    changed: bool


class ScoreChange(NamedTuple):
    """Distribution of a group's scores in two samples."""

    group: str
    psi: float  # population stability index, Σ (q − p) log(q/p) over ten bins
    p_value: float  # of the χ² test of homogeneity
    changed: bool


def changes(
    before: Mapping[str, Any], after: Mapping[str, Any]
) -> tuple[list[Change], list[ScoreChange]]:
    """Compare two evaluations figure by figure, and the scores of each group.

    Args:
        before: figures of the first sample, from :meth:`fairmp.metrics.Evaluation.to_dict`.
        after: figures of the second, with the same groups and classes.

    Example:
        >>> from fairmp.metrics import evaluate
        >>> rng = np.random.default_rng(0)
        >>> y, sens = rng.integers(0, 2, 2000), rng.integers(0, 2, 2000)
        >>> scores = np.stack([0 * y, y + rng.normal(size=2000)], 1)
        >>> first, second = (evaluate(s, y, sens).to_dict() for s in (scores, scores + [0, 0.5]))
        >>> [one.name for one in changes(first, second)[0] if one.changed]
        ['rate of 1 in 0', 'rate of 1 in 1']
    """
    old, new = _estimates(before), _estimates(after)
    both = [name for name in old if name in new]
    groups = {group["name"]: group.get("score_counts") or () for group in before["groups"]}
    scored = []
    for group in after["groups"]:
        first, second = groups.get(group["name"]) or (), group.get("score_counts") or ()
        if sum(first) and sum(second):
            scored.append((group["name"], first, second))
    level = LEVEL / max(len(both) + len(scored), 1)
    found = [_change(name, old[name], new[name], level) for name in both]
    return found, [_scores(name, first, second, level) for name, first, second in scored]


def _estimates(figures: Mapping[str, Any]) -> dict[str, Estimate]:
    """Every figure of an evaluation that is defined, with its 95 % limits."""
    names, groups = figures["class_names"], figures["groups"]
    total = sum(group["count"] for group in groups)
    rates = [(f"share of {g['name']}", g["count"] / max(total, 1), total) for g in groups]
    for group in groups:
        for c in (1,) if len(names) == 2 else range(len(names)):
            title = f"rate of {names[c]} in {group['name']}"
            rates.append((title, group["rates"][c], group["count"]))
    found: dict[str, Any] = {
        name: (rate, *wilson(rate, size)) for name, rate, size in rates if rate is not None and size
    }
    for key in ("accuracy", "dp", "eo", "odds"):
        value = (figures[key], *(figures.get("intervals", {}).get(key) or (None, None)))
        if None not in value:
            found[TITLES[key]] = value
    return found


def _change(name: str, old: Estimate, new: Estimate, level: float) -> Change:
    from scipy.special import ndtri

    (a, low_a, high_a), (b, low_b, high_b) = old, new
    below, above = math.hypot(b - low_b, high_a - a), math.hypot(high_b - b, a - low_a)
    stretch = float(-ndtri(level / 2)) / NORMAL_QUANTILE
    difference = b - a
    changed = difference > stretch * below or -difference > stretch * above
    return Change(name, a, b, difference - below, difference + above, bool(changed))


def _scores(group: str, first: Any, second: Any, level: float) -> ScoreChange:
    from scipy.stats import chi2_contingency

    table = np.array([first, second], dtype=float)
    table = table[:, table.any(0)]
    p, q = (table + 0.5) / (table + 0.5).sum(1, keepdims=True)
    psi = float(((q - p) * np.log(q / p)).sum())
    p_value = float(chi2_contingency(table).pvalue) if table.shape[1] > 1 else 1.0
    return ScoreChange(group, psi, p_value, p_value < level)

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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

from fairmp.display import Displayed
from fairmp.metrics.counts import NORMAL_QUANTILE, wilson
from fairmp.metrics.evaluation import Evaluation

LEVEL = 0.05


class Figure(NamedTuple):
    """What was measured: a metric, or the share or decision rate of a group."""

    kind: str  # "share", "rate", "accuracy", "dp", "eo", "fpr" or "odds"
    group: str | None = None
    class_name: str | None = None  # of the decision, for a rate


class Estimate(NamedTuple):
    """A value with its 95 % limits."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class FigureChange:
    """One figure in two samples, as fractions; the interval is that of the difference (95 %)."""

    figure: Figure
    before: float
    after: float
    low: float
    high: float
    changed: bool


@dataclass(frozen=True)
class ScoreChange:
    """Distribution of a group's scores in two samples."""

    group: str
    psi: float  # population stability index, Σ (q − p) log(q/p) over ten bins
    p_value: float  # of the χ² test of homogeneity
    changed: bool


@dataclass(frozen=True)
class Drift(Displayed, renderer="fairmp.report.monitoring"):
    """Differences between two samples; ``print`` shows them in points (hundredths).

    Example:
        >>> from fairmp.metrics import evaluate
        >>> sex, labels = ["f", "m"] * 100, [0, 1, 1, 0] * 50
        >>> first = evaluate(labels, labels, sensitive_features=sex, bootstrap=0)
        >>> second = evaluate(labels, [0, 1, 0, 0] * 50, sensitive_features=sex, bootstrap=0)
        >>> print(compare(first, second))
        in points       training   now             difference   95 % interval  verdict
        share of f          50.0  50.0                   +0.0    -9.7 to +9.7        –
        share of m          50.0  50.0                   +0.0    -9.7 to +9.7        –
        rate of 1 in f      50.0   0.0                  -50.0  -59.6 to -39.7  changed
        rate of 1 in m      50.0  50.0                   +0.0  -13.6 to +13.6        –
        scores of f                     stability index 2.625     p = 1.2e-15  changed
        scores of m                     stability index 0.000           p = 1        –
        Changed by more than sampling error: rate of 1 in f, scores of f.
    """

    figures: tuple[FigureChange, ...]
    scores: tuple[ScoreChange, ...]

    @property
    def changed(self) -> bool:
        """Whether any figure or distribution of scores has changed."""
        figures = any(change.changed for change in self.figures)
        return figures or any(change.changed for change in self.scores)


def compare(before: Evaluation, after: Evaluation) -> Drift:
    """Compare two evaluations figure by figure, and the scores of each group.

    Args:
        before: evaluation of the first sample.
        after: evaluation of the second, with the same groups and classes.

    Example:
        >>> from fairmp.metrics import evaluate
        >>> rng = np.random.default_rng(0)
        >>> y, sens = rng.integers(0, 2, 2000), rng.integers(0, 2, 2000)
        >>> scores = np.stack([0 * y, y + rng.normal(size=2000)], 1)
        >>> first = evaluate(y, scores, sensitive_features=sens)
        >>> second = evaluate(y, scores + [0, 0.5], sensitive_features=sens)
        >>> [tuple(change.figure) for change in compare(first, second).figures if change.changed]
        [('rate', '0', '1'), ('rate', '1', '1')]
    """
    old, new = dict(_estimates(before)), dict(_estimates(after))
    old_scores, new_scores = _score_counts(before), _score_counts(after)
    figures = [figure for figure in old if figure in new]
    groups = [group for group in new_scores if group in old_scores]
    level = LEVEL / max(len(figures) + len(groups), 1)
    changes = [_change(figure, old[figure], new[figure], level) for figure in figures]
    scores = [_score_change(name, old_scores[name], new_scores[name], level) for name in groups]
    return Drift(tuple(changes), tuple(scores))


def _estimates(evaluation: Evaluation) -> Iterator[tuple[Figure, Estimate]]:
    """Every figure of an evaluation that is defined, with its 95 % limits."""
    classes = list(enumerate(evaluation.class_names))
    total = sum(group.count for group in evaluation.groups)
    for group in evaluation.groups:
        share = group.count / total
        yield Figure("share", group.name), Estimate(share, *wilson(share, total))
    for group in evaluation.groups:
        for c, name in classes[1:] if len(classes) == 2 else classes:
            if group.count:
                limits = wilson(group.rates[c], group.count)
                yield Figure("rate", group.name, name), Estimate(group.rates[c], *limits)
    for key in ("accuracy", "dp", "eo", "fpr", "odds"):
        low, high = evaluation.intervals.get(key, (math.nan, math.nan))
        if not math.isnan(low):
            yield Figure(key), Estimate(getattr(evaluation, key), low, high)


def _score_counts(evaluation: Evaluation) -> dict[str, tuple[int, ...]]:
    """Nodes by bin of score, for the groups that have any."""
    return {
        group.name: group.score_counts for group in evaluation.groups if any(group.score_counts)
    }


def _change(figure: Figure, old: Estimate, new: Estimate, level: float) -> FigureChange:
    difference = new.value - old.value
    below = math.hypot(new.value - new.low, old.high - old.value)
    above = math.hypot(new.high - new.value, old.value - old.low)
    stretch = float(-ndtri(level / 2)) / NORMAL_QUANTILE
    changed = difference > stretch * below or -difference > stretch * above
    interval = difference - below, difference + above
    return FigureChange(figure, old.value, new.value, *interval, bool(changed))


def _score_change(
    group: str, first: Sequence[int], second: Sequence[int], level: float
) -> ScoreChange:
    from scipy.stats import chi2_contingency

    table = np.array([first, second], dtype=float)
    table = table[:, table.any(0)]
    p, q = (table + 0.5) / (table + 0.5).sum(1, keepdims=True)
    psi = float(((q - p) * np.log(q / p)).sum())
    p_value = float(chi2_contingency(table).pvalue) if table.shape[1] > 1 else 1.0
    return ScoreChange(group, psi, p_value, p_value < level)

"""Direction of a gap: which group is ahead, and whether the sides changed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from fairmp.metrics.counts import GroupRates

REVERSED = 0.02  # a gap below two points does not count as a change of sides
RATES_OF_GAP = {
    "dp": ("decided",),
    "eo": ("true_positive",),
    "fpr": ("false_positive",),
    "odds": ("true_positive", "false_positive"),
}
"""The rates each gap compares."""


@dataclass(frozen=True)
class Lead:
    """The two groups farthest apart in a criterion, as fractions.

    Example:
        >>> from fairmp.metrics import evaluate
        >>> hired = ["yes", "no", "yes", "yes"]
        >>> evaluate(hired, hired, sensitive_features=["f", "f", "m", "m"]).lead("dp")
        Lead(ahead='m', behind='f', gap=0.5, class_name='yes', kind='decided')
    """

    ahead: str  # group with the highest rate
    behind: str
    gap: float
    class_name: str  # of the decision
    kind: str  # of the rate: "decided", "true_positive", "false_positive", "precision", "accuracy"


def widest(parts: Iterable[tuple[str, str, np.ndarray]], groups: Sequence[str]) -> Lead | None:
    """The largest gap among rates by group, each with its kind and class; ``None`` where all are 0.

    Groups without a rate (nan) are left out.
    """
    largest: Lead | None = None
    for kind, class_name, rates in parts:
        if np.isfinite(rates).sum() < 2:
            continue
        high, low = int(np.nanargmax(rates)), int(np.nanargmin(rates))
        gap = float(rates[high] - rates[low])
        if gap > (0.0 if largest is None else largest.gap):
            largest = Lead(str(groups[high]), str(groups[low]), gap, class_name, kind)
    return largest


@dataclass(frozen=True)
class NamedRates:
    """Rates of each group by class (groups × classes), with names."""

    rates: GroupRates
    groups: Sequence[str]
    classes: Sequence[str]

    def _parts(self, key: str) -> list[tuple[str, str, np.ndarray]]:
        """Kind of rate, class, and rates by group that a gap compares."""
        # With two classes, the rates of class 0 mirror those of class 1.
        classes = [1] if len(self.classes) == 2 else range(len(self.classes))
        return [
            (kind, str(self.classes[c]), np.asarray(getattr(self.rates, kind))[:, c])
            for kind in RATES_OF_GAP[key]
            for c in classes
        ]

    def lead(self, key: str) -> Lead | None:
        """Who is ahead in the gap ``key``; ``None`` where it cannot be measured or is 0."""
        return widest(self._parts(key), self.groups)


@dataclass(frozen=True)
class Reversal:
    """Two groups that changed sides, in one rate of one class."""

    before: Lead
    after: Lead


def reversal(key: str, before: NamedRates, after: NamedRates) -> Reversal | None:
    """The groups farthest apart now in the gap ``key``, if the one ahead was behind before.

    They are compared with themselves before, in the same rate of the same class. A gap of less than
    two points does not count.
    """
    lead = after.lead(key)
    if lead is None or lead.gap <= REVERSED:
        return None
    if lead.ahead not in before.groups or lead.behind not in before.groups:
        return None
    c = list(after.classes).index(lead.class_name)
    rates = np.asarray(getattr(before.rates, lead.kind))[:, c]
    groups = list(before.groups)
    earlier = float(rates[groups.index(lead.behind)] - rates[groups.index(lead.ahead)])
    if not earlier > 0:
        return None
    return Reversal(Lead(lead.behind, lead.ahead, earlier, lead.class_name, lead.kind), lead)


def changed_sides(key: str, before: NamedRates, after: NamedRates) -> bool:
    """Whether a group that was behind in the gap ``key`` is ahead now, by more than two points."""
    return reversal(key, before, after) is not None

"""Who is ahead, who pays and what to check: the questions that the top of a report answers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairmp.metrics.counts import GroupRates
from fairmp.metrics.direction import RATES_OF_GAP, Lead, NamedRates, Reversal, reversal
from fairmp.report.content import Document, Metric
from fairmp.report.formats import EVEN, is_known, points

OPENED = 0.02  # growth of a gap that is said in the headline
SMALL_GROUP = 100  # nodes


@dataclass(frozen=True)
class Direction:
    """Who is ahead before and after a correction."""

    before: Lead | None
    after: Lead | None
    has_before: bool
    reversal: Reversal | None
    several_classes: bool
    several_groups: bool

    def __str__(self) -> str:
        now = self._text(self.after)
        return f"before: {self._text(self.before)}; now: {now}" if self.has_before else now

    def short(self) -> str:
        """Who is ahead and by how much, as in "m by 27.7 → f by 1.9"."""
        leads = [self.before, self.after] if self.has_before else [self.after]
        return " → ".join(map(self._short, leads))

    @property
    def changed_sides(self) -> bool:
        """Whether the group that is ahead was behind the same group before."""
        return self.reversal is not None

    def reversal_text(self) -> str:
        """The two groups that changed sides, before and now, in the same rate."""
        assert self.reversal is not None
        before, now = (
            self._text(lead, behind=self.several_groups)
            for lead in (self.reversal.before, self.reversal.after)
        )
        return f"before: {before}; now: {now}"

    def _text(self, lead: Lead | None, *, behind: bool = False) -> str:
        if lead is None or lead.gap < EVEN:
            return "nobody ahead"
        decision = f" in {lead.class_name!r}" if self.several_classes else ""
        other = f" of {lead.behind}" if behind else ""
        return f"{lead.ahead} ahead{other} by {points(lead.gap)}{decision}"

    def _short(self, lead: Lead | None) -> str:
        if lead is None or lead.gap < EVEN:
            return "nobody"
        decision = f" ({lead.class_name})" if self.several_classes else ""
        return f"{lead.ahead} by {points(lead.gap)}{decision}"


def direction(document: Document, key: str) -> Direction | None:
    """Who is ahead in a gap; None where it is not known."""
    if key not in RATES_OF_GAP:
        return None
    before, after = (_rates(document, key, when) for when in ("before", "after"))
    if after is None:
        return None
    return Direction(
        before=None if before is None else before.lead(key),
        after=after.lead(key),
        has_before=before is not None,
        reversal=None if before is None else reversal(key, before, after),
        several_classes=len(after.classes) > 2,
        several_groups=len(after.groups) > 2,
    )


def _rates(document: Document, key: str, when: str) -> NamedRates | None:
    """Rates of the known groups at one time, if all that a gap compares are there."""
    groups = [group for group in document.get("groups", []) if group.get("known", True)]
    classes = document.get("classes", [])
    decided = [group["after"] if when == "after" else group.get("before") for group in groups]
    if len(groups) < 2 or not all(decided):
        return None
    empty: list[float | None] = [None] * len(classes)
    kinds: list[list[list[float | None]]] = [
        [list(row or empty) for row in decided],
        [group.get("tpr", {}).get(when) or empty for group in groups],
        [group.get("fpr", {}).get(when) or empty for group in groups],
    ]
    if key != "dp" and not any(is_known(rate) for row in kinds[1] for rate in row):
        return None
    rates = GroupRates(*(np.array(rows, dtype=float) for rows in kinds))
    return NamedRates(rates, [group["name"] for group in groups], classes)


def flag(document: Document, metric: Metric) -> str | None:
    """A warning of a gap that changed sides or grew by over two points, if it did."""
    ahead = direction(document, metric.get("key", ""))
    label = metric.get("label", metric["name"])
    before, after = metric.get("before"), metric.get("after")
    growth = ""
    if is_known(before) and is_known(after) and after - before > OPENED:
        growth = f"grew from {points(before)} to {points(after)} points"
    if ahead is not None and ahead.changed_sides:
        sides = f"the disadvantage has changed sides: {label}, {ahead.reversal_text()}."
        return f"{sides} The gap {growth}." if growth else sides
    return f"the correction made a gap worse. The {label} {growth}." if growth else None


def missed_target(document: Document, metric: Metric) -> str | None:
    """Say that a gap exceeds its target, and what one person makes; None if it does not."""
    after, target = metric.get("after"), metric.get("target")
    if not is_known(after) or not is_known(target) or after <= target + EVEN:
        return None
    label = metric.get("label", metric["name"])
    text = f"The target of {points(target)} points is missed: {label} is {points(after)}."
    sizes = _known_sizes(document)
    if metric.get("key") == "dp" and sizes and after <= target + 1 / min(sizes) + EVEN:
        text += f" One person of the smallest group is {points(1 / min(sizes))} points."
    return text


def _known_sizes(document: Document) -> list[int]:
    """Sizes of the known groups."""
    groups = document.get("groups", [])
    return [group["nodes"] for group in groups if group.get("known", True) and group["nodes"]]


@dataclass(frozen=True)
class Payers:
    """People whose positive decision was lost or gained, and whether the label agrees."""

    lost: int
    lost_with_label: int
    gained: int
    gained_without_label: int


@dataclass(frozen=True)
class Turned:
    """People whose decision was right before and is wrong now, and the other way round."""

    wrong_now: int
    right_now: int


def turned(document: Document) -> Turned | None:
    """Who pays where there are more than two classes; None if it is not known."""
    parts = [group["turned"] for group in document.get("groups", []) if group.get("turned")]
    if not parts:
        return None
    return Turned(sum(part[0] for part in parts), sum(part[1] for part in parts))


def payers(document: Document) -> Payers | None:
    """Who pays for a correction; None if it is not known."""
    parts = [group["paid"] for group in document.get("groups", []) if group.get("paid")]
    if not parts:
        return None
    lost, right, gained, wrong = (sum(part[k] for part in parts) for k in range(4))
    return Payers(lost, right, gained, wrong)


def checks(document: Document) -> list[str]:
    """What to look at before the model is used, at most three lines."""
    missed = (missed_target(document, metric) for metric in document.get("metrics", []))
    lines = [*filter(None, missed), *document.get("checks", [])]
    if 0 < (smallest := min(_known_sizes(document), default=0)) < SMALL_GROUP:
        lines.append(
            f"Group sizes: the smallest has {smallest}, so one decision is "
            f"{points(1 / smallest)} points."
        )
    return lines[:3]


def direction_cell(document: Document, metric: Metric) -> str:
    """Who is ahead before and after the correction, for a table."""
    ahead = direction(document, metric.get("key", ""))
    return "" if ahead is None else ahead.short()

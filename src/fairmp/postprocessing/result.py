"""What mending did: gaps before and after, decisions changed, and what rests on estimates."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Predicted:
    """A criterion on nodes without a label, where it can only be estimated.

    The model's own probabilities stand in for the labels.

    Attributes:
        nodes: how many.
        before: the estimated gap before.
        after: and after.
        interval: bootstrap interval of ``after`` (95 %), ``None`` where none was asked for.
        on_labelled: the same kind of estimate made on the labelled nodes, after; how far it is from
            the gap measured there says how far to trust the estimate.
    """

    nodes: int
    before: float
    after: float
    interval: tuple[float, float] | None
    on_labelled: float


@dataclass(frozen=True)
class CriterionResult:
    """A criterion before and after, in fractions: the largest gap of any group and class.

    Attributes:
        criterion: its name.
        attribute: the sensitive attribute; the criterion's name for a user's matrix.
        target: what was asked for.
        before: the gap of the probabilities as given (at the temperature asked for).
        after: of the mended ones.
        decisions_before: the gap of the decisions as given.
        decisions_after: of the mended ones.
        where: the nodes it is measured on, in words.
        nodes: how many these are.
        interval: bootstrap interval (95 %) of ``after``: what other labelled nodes of the same kind
            might show. ``None`` where it is measured on everyone it speaks of.
        predicted: an estimate for nodes without a label.
    """

    criterion: str
    attribute: str
    target: float
    before: float
    after: float
    decisions_before: float
    decisions_after: float
    where: str
    nodes: int
    interval: tuple[float, float] | None = None
    predicted: Predicted | None = None

    @property
    def title(self) -> str:
        """The criterion and the attribute, as people say it."""
        name = self.criterion.replace("_", " ")
        return name if self.attribute in (self.criterion, "sens") else f"{name}, {self.attribute}"


@dataclass(frozen=True)
class GroupChange:
    """One group's predictions before and after; shares are of its nodes in the population.

    Attributes:
        attribute: the sensitive attribute.
        group: the group's name; ``"unknown"`` for nodes whose group is not known.
        nodes: how many nodes (those of estimated group count for the likeliest one).
        changed: decisions that changed.
        decided_before: share decided for each class, as given.
        decided_after: mended.
        mean_before: mean probability of each class, as given.
        mean_after: mended.
    """

    attribute: str
    group: str
    nodes: int
    changed: int
    decided_before: tuple[float, ...]
    decided_after: tuple[float, ...]
    mean_before: tuple[float, ...]
    mean_after: tuple[float, ...]


@dataclass(frozen=True)
class GroupUncertainty:
    """How much of an attribute's groups rests on probabilities instead of knowledge.

    Attributes:
        attribute: the sensitive attribute.
        nodes: nodes of the population whose group is probable, not known.
        share: of the population's weight.
        by_group: of each group's weight.
        left_out: nodes whose group is neither known nor estimated, and which are left alone.
        accuracy: how often the estimate is right on held-out known nodes; ``nan`` where the
            probabilities were given.
        baseline: how often the largest group alone would be.
    """

    attribute: str
    nodes: int
    share: float
    by_group: dict[str, float]
    left_out: int
    accuracy: float = math.nan
    baseline: float = math.nan


@dataclass(frozen=True)
class DebiasResult:
    """DebiasResult predictions, and what mending did; ``print`` shows it in points (hundredths).

    Attributes:
        predictions: of the kind that was given.
        classes: the classes' names.
        nodes: nodes in the population.
        changed: decisions that changed there.
        changed_elsewhere: decisions that changed outside it.
        divergence: KL(Q‖P), a node on average: how far predictions moved.
        labelled: labelled nodes in the population.
        accuracy_before: accuracy on these as given; ``nan`` without labels.
        accuracy_after: mended.
        criteria: each criterion, attribute by attribute.
        groups: each attribute's groups.
        resting: each attribute with nodes of unknown or probable group.
        warnings: what a reader should know.
    """

    predictions: Any = field(repr=False)
    classes: tuple[str, ...]
    nodes: int
    changed: int
    changed_elsewhere: int
    divergence: float
    labelled: int
    accuracy_before: float
    accuracy_after: float
    criteria: tuple[CriterionResult, ...]
    groups: tuple[GroupChange, ...]
    resting: tuple[GroupUncertainty, ...] = ()
    warnings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Everything but the predictions as plain JSON values, with ``None`` for ``nan``."""
        rest = {key: value for key, value in vars(self).items() if key != "predictions"}
        for key in ("criteria", "groups", "resting"):
            rest[key] = [asdict(item) for item in rest[key]]
        plain: dict[str, Any] = _json_safe(rest)
        return plain

    def __str__(self) -> str:
        return "\n".join(
            [
                *self._head(),
                "",
                *_aligned(self._criteria()),
                *self._estimates(),
                *(["", *_aligned(self._groups())] if self.groups else []),
                *self._resting(),
                *(f"note: {warning}" for warning in self.warnings),
            ]
        )

    def _head(self) -> list[str]:
        share = 100 * self.changed / max(self.nodes, 1)
        plural = "s" * (self.changed != 1)
        lines = [f"{self.nodes:,} nodes: {self.changed:,} decision{plural} changed ({share:.1f} %)"]
        if self.changed_elsewhere:
            lines[0] += f", and {self.changed_elsewhere:,} outside the population"
        if self.labelled:
            lines.append(
                f"accuracy on {self.labelled:,} labelled nodes: {_points(self.accuracy_before)} % "
                f"before, {_points(self.accuracy_after)} % after"
            )
        return lines

    def _criteria(self) -> list[list[str]]:
        rows = [["gap in points", "target", "before", "after", "decided before", "after", "nodes"]]
        for held in self.criteria:
            values = (held.target, held.before, held.after)
            numbers = [_points(value, 2) for value in values]
            decided = [_points(held.decisions_before), _points(held.decisions_after)]
            count = f"{held.nodes:,}" + " labelled" * (held.predicted is not None)
            rows.append([held.title, *numbers, *decided, count])
        return rows

    def _estimates(self) -> list[str]:
        lines = []
        for held in self.criteria:
            if held.interval is not None:
                low, high = held.interval
                lines.append(
                    f"{held.title}: {_points(held.after)} on the labelled nodes; others like them "
                    f"might show {_points(low)} to {_points(high)}"
                )
            there = held.predicted
            if there is None:
                continue
            if not there.nodes:
                lines.append(f"{held.title}: every node of the population is labelled")
                continue
            interval = ""
            if there.interval is not None:
                interval = f" [{_points(there.interval[0])}, {_points(there.interval[1])}]"
            lines.append(
                f"{held.title}: estimated {_points(there.before)} before and "
                f"{_points(there.after)}{interval} after on {there.nodes:,} unlabelled nodes; the "
                f"same estimate of the labelled ones is {_points(there.on_labelled)}"
            )
        return lines

    def _groups(self) -> list[list[str]]:
        shown = range(len(self.classes)) if len(self.classes) > 2 else (1,)
        rows = [["group", "nodes", "changed"]]
        rows[0] += [f"decided {self.classes[c]} %" for c in shown]
        several = len({group.attribute for group in self.groups}) > 1
        for group in self.groups:
            name = f"{group.attribute}: {group.group}" if several else group.group
            share = 100 * group.changed / max(group.nodes, 1)
            rates = [
                f"{_points(group.decided_before[c])} → {_points(group.decided_after[c])}"
                for c in shown
            ]
            rows.append([name, f"{group.nodes:,}", f"{group.changed:,} ({share:.1f} %)", *rates])
        return rows

    def _resting(self) -> list[str]:
        lines = []
        for rest in self.resting:
            if rest.left_out:
                lines.append(
                    f"{rest.attribute}: {rest.left_out:,} nodes of unknown group take no part"
                )
            if not rest.nodes:
                continue
            weights = ", ".join(
                f"{name} {100 * share:.0f} %" for name, share in rest.by_group.items()
            )
            lines.append(
                f"{rest.attribute}: {100 * rest.share:.1f} % of the population "
                f"({rest.nodes:,} nodes) rests on probable groups ({weights})"
            )
            if not math.isnan(rest.accuracy):
                lines.append(
                    f"{rest.attribute}: the estimate is right for {100 * rest.accuracy:.1f} % of "
                    f"held-out known nodes, the largest group alone for {100 * rest.baseline:.1f} %"
                )
        return lines


def _aligned(rows: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            [
                f"{first:<{widths[0]}}",
                *(f"{text:>{w}}" for text, w in zip(rest, widths[1:], strict=True)),
            ]
        )
        for first, *rest in rows
    ]


def _points(fraction: float, digits: int = 1) -> str:
    return "–" if math.isnan(fraction) else f"{100 * fraction:.{digits}f}"


def _json_safe(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _json_safe(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json_safe(item) for item in value]
    return None if isinstance(value, float) and math.isnan(value) else value

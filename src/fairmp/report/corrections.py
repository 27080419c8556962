"""A :class:`~fairmp.postprocessing.result.DebiasResult` as text, notebook HTML, plot and record."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairmp.errors import plural, plural_of
from fairmp.metrics.direction import Lead
from fairmp.metrics.evaluation import canonical
from fairmp.postprocessing.result import (
    CriterionResult,
    DebiasResult,
    GroupUncertainty,
    UnlabelledEstimate,
)
from fairmp.report.evaluations import LABELS
from fairmp.report.figures import plot_rates
from fairmp.report.formats import aligned, is_known, points, ratio, to_html
from fairmp.report.panel import panel, reliability

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from fairmp.postprocessing.debias_table import TableResult, TableSpec

NO_TARGET = "–"
MET = 0.0005  # a twentieth of a point is a matter of rounding


def text(result: DebiasResult, noun: str = "node") -> str:
    """What changed, the gaps with their targets, a row per group, and notes.

    ``noun`` is what a row is called, "person" in the program.
    """
    lines = [*_head(result, noun), "", *aligned(_criteria(result, noun)), *_further(result)]
    lines += ["", *aligned(_groups(result, noun))] if result.groups else []
    lines += notes(result.criteria, result.group_uncertainty, noun)
    return "\n".join([*lines, *(f"note: {note}" for note in result.warnings)])


def html(result: DebiasResult) -> str:
    """The same as tables."""
    first, *details = _head(result)
    tables = [_criteria(result)]
    if result.groups:
        tables.append(_groups(result))
    details += _further(result) + notes(result.criteria, result.group_uncertainty)
    return to_html(first, tables, [*details, *result.warnings])


def plot(result: DebiasResult, ax: Axes | None = None) -> Axes:
    """Draw decisions for the last class by group, before and after."""
    names = [group.group for group in result.groups]
    sizes = [group.nodes for group in result.groups]
    rates = {
        "before": [group.decided_before[-1] for group in result.groups],
        "after": [group.decided_after[-1] for group in result.groups],
    }
    ax = plot_rates(names, sizes, rates, f"decided {result.classes[-1]}, %", ax)
    ax.legend(frameon=False)
    return ax


def title(criterion: CriterionResult) -> str:
    """Criterion and attribute: "demographic parity, sex"."""
    name = criterion.criterion.replace("_", " ")
    return name if criterion.attribute == "sens" else f"{name}, {criterion.attribute}"


def notes(
    criteria: Sequence[CriterionResult], uncertainty: Sequence[GroupUncertainty], noun: str = "node"
) -> list[str]:
    """Intervals on labelled nodes, estimates on the others, and what is unknown of the groups."""
    lines = [line for criterion in criteria for line in _criterion_notes(criterion, noun)]
    return lines + [line for row in uncertainty for line in _uncertainty_notes(row, noun)]


def notes_of_record(record: Mapping[str, Any]) -> list[str]:
    """The same for a page, from what :meth:`DebiasResult.to_dict` wrote."""
    criteria = []
    for criterion in record["criteria"]:
        estimate = criterion["unlabelled"]
        unlabelled = None if estimate is None else UnlabelledEstimate(**estimate)
        criteria.append(CriterionResult(**{**criterion, "unlabelled": unlabelled}))
    uncertainty = [GroupUncertainty(**row) for row in record["group_uncertainty"]]
    return notes(criteria, uncertainty, noun="person")


def _criterion_notes(criterion: CriterionResult, noun: str) -> list[str]:
    lines, estimate = [], criterion.unlabelled
    if criterion.interval is not None:
        ends = " to ".join(map(points, criterion.interval))
        gap = f"{points(criterion.after)} for the probabilities of the labelled {plural_of(noun)}"
        lines.append(f"{gap}, 95 % interval {ends}")
    if estimate is not None and estimate.reliable:
        interval = f" [{', '.join(map(points, estimate.interval))}]" if estimate.interval else ""
        lines.append(
            f"estimated {points(estimate.before)} before and {points(estimate.after)}{interval} "
            f"after, for the probabilities of {plural(estimate.nodes, f'unlabelled {noun}')}"
        )
    elif estimate is not None:
        lines.append(
            f"cannot be estimated on {plural(estimate.nodes, f'unlabelled {noun}')}: it disagrees "
            "with the labels where they are known"
        )
    return [f"{title(criterion)}: {line}" for line in lines]


def _uncertainty_notes(row: GroupUncertainty, noun: str) -> list[str]:
    lines = []
    if row.left_out:
        lines.append(f"{plural(row.left_out, noun)} of unknown group left alone")
    if row.nodes:
        shares = (f"{name} {100 * share:.0f} %" for name, share in row.by_group.items())
        lines.append(
            f"the group of {100 * row.share:.1f} % of the population ({plural(row.nodes, noun)}) "
            f"is estimated rather than observed ({', '.join(shares)})"
        )
    if row.nodes and is_known(row.accuracy):
        lines.append(
            f"the estimate is right for {100 * row.accuracy:.1f} % of held-out known "
            f"{plural_of(noun)}, the largest group alone for {100 * row.baseline:.1f} %"
        )
    return [f"{row.attribute}: {line}" for line in lines]


def _head(result: DebiasResult, noun: str = "node") -> list[str]:
    share = 100 * result.changed / max(result.nodes, 1)
    decisions = plural(result.changed, "decision")
    first = f"{plural(result.nodes, noun)}: {decisions} changed ({share:.1f} %)"
    if result.changed_outside:
        first += f", and {result.changed_outside:,} outside the population"
    if result.drawn:
        first += f"; {result.drawn:,} of tied scores drawn at random"
    lines = [first]
    for criterion in (*result.criteria, *result.others):
        if sides := result.reversal(criterion):
            lines.append(
                f"REVERSED: {title(criterion)}, {direction(sides.before)} before, "
                f"{direction(sides.after)} after"
            )
    for opened in result.opened:
        name = f"{opened['criterion'].replace('_', ' ')} ({opened['attribute']})"
        change = f"{points(opened['before'])} to {points(opened['after'])} points"
        lines.append(f"WORSE: the gap of {name} grew from {change}")
    if result.labelled:
        before, after = points(result.accuracy_before), points(result.accuracy_after)
        nodes = plural(result.labelled, f"labelled {noun}")
        lines.append(f"accuracy on {nodes}: {before} % before, {after} % after")
    return lines


def _criteria(result: DebiasResult, noun: str = "node") -> list[list[str]]:
    """Gaps of decisions and of probabilities, each with its target if it has one."""
    decided, probability = ["decided before", "after", "target"], ["probability before", "after"]
    rows = [["gap in points", *decided, "ahead", *probability, "target", plural_of(noun)]]
    for criterion in (*result.criteria, *result.others):
        target = points(criterion.target, 2) if is_known(criterion.target) else NO_TARGET
        targets = [target, NO_TARGET] if result.on == "decisions" else [NO_TARGET, target]
        nodes = f"{criterion.nodes:,}"
        if criterion.criterion != "demographic_parity":
            nodes += " labelled"
        decisions = [
            points(criterion.decisions_before),
            points(criterion.decisions_after),
            targets[0],
            _ahead(result, criterion),
        ]
        probabilities = [points(criterion.before, 2), points(criterion.after, 2), targets[1]]
        rows.append([title(criterion), *decisions, *probabilities, nodes])
    return rows


def _further(result: DebiasResult) -> list[str]:
    """Impact ratio and precision, before and after."""
    several = len({group.attribute for group in result.groups}) > 1
    lines = []
    for metric in result.further_metrics():
        name = f"{LABELS[metric.key]}, {metric.attribute}" if several else LABELS[metric.key]
        show = ratio if metric.key == "impact_ratio" else points
        interval = ""
        if metric.interval is not None and not math.isnan(metric.interval[0]):
            interval = f", 95 % interval {' to '.join(map(show, metric.interval))}"
        lines.append(f"{name}: {show(metric.before)} before, {show(metric.after)} after{interval}")
    return lines


def direction(lead: Lead | None) -> str:
    """Who is ahead, and by how much: "group 1 by 14.7"."""
    return "no group" if lead is None else f"{lead.ahead} by {points(lead.gap)}"


def _ahead(result: DebiasResult, criterion: CriterionResult) -> str:
    """The group that was ahead, and the one that is."""
    leads = (result.lead_before(criterion), result.lead_after(criterion))
    before, after = ("–" if lead is None else lead.ahead for lead in leads)
    return before if before == after else f"{before} → {after}"


def _groups(result: DebiasResult, noun: str = "node") -> list[list[str]]:
    binary = len(result.classes) == 2
    shown = (1,) if binary else range(len(result.classes))
    has_rates = binary and any(group.labelled for group in result.groups)
    decided = [f"decided {result.classes[c]} %" for c in shown]
    header = ["group", plural_of(noun), "changed", *decided]
    rows = [[*header, "TPR %", "FPR %", "precision %"] if has_rates else header]
    several = len({group.attribute for group in result.groups}) > 1
    for group in result.groups:
        name = f"{group.attribute}: {group.group}" if several else group.group
        share = 100 * group.changed / max(group.nodes, 1)
        pairs = [(group.decided_before[c], group.decided_after[c]) for c in shown]
        if has_rates:
            pairs.append((group.tpr_before[1], group.tpr_after[1]))
            pairs.append((group.fpr_before[1], group.fpr_after[1]))
            pairs.append((group.ppv_before[1], group.ppv_after[1]))
        moves = [f"{points(before)} → {points(after)}" for before, after in pairs]
        rows.append([name, f"{group.nodes:,}", f"{group.changed:,} ({share:.1f} %)", *moves])
    return rows


def record(
    spec: TableSpec, corrected: TableResult, *, file: Path, panel_command: str
) -> dict[str, Any]:
    """All figures of a corrected table as plain JSON values.

    ``file`` is where it is written, ``panel_command`` that of :func:`fairmp.report.panel.panel`.
    """
    from fairmp.postprocessing.debias_table import added_names, batch_arguments

    content: dict[str, Any] = {
        "data": spec.predictions.name,
        "file": str(file),
        "rows": len(corrected.table.frame),
        "read": list(corrected.notes),
        "columns": added_names(corrected),
        **corrected.result.to_dict(),
    }
    columns = corrected.inputs
    if columns.scores.are_decisions or spec.apply is not None:
        return content
    values, groups = columns.scores.values, columns.groups
    if not spec.estimate_sens:  # an estimate for every target would take too long
        content["panel"] = panel(
            values,
            groups,
            columns.y,
            criterion=canonical(spec.criterion[0] if spec.criterion else "demographic_parity"),
            target=spec.target[0] if spec.target else 0.0,
            command=panel_command,
            **batch_arguments(spec, columns),
        )
    content["reliability"] = reliability(values, groups, columns.y, kind=columns.scores.kind)
    return content


def advice(corrected: TableResult) -> list[str]:
    """Notes on how to read the result for a table."""
    from fairmp.postprocessing.debias_table import DECISIONS, added_names

    result, names = corrected.result, added_names(corrected)
    notes = []
    if names[-1] != DECISIONS[-1]:
        notes = [f"The table has columns of these names, so the new ones are {', '.join(names)}."]
    if corrected.inputs.scores.are_decisions:
        chance = f"Decisions alone can only be equalised by chance: {names[-1]} is drawn"
        return [*notes, f"{chance} with the seed, and the figures are of these decisions."]
    return [*notes, *met_by_probabilities_only(result)]


def met_by_probabilities_only(result: DebiasResult) -> list[str]:
    """Criteria whose target is met by the probabilities, not by the decisions."""
    if result.on == "decisions":
        return []
    return [
        f"{title(criterion)}: the target is met by the probabilities, not by the decisions."
        for criterion in result.criteria
        if criterion.after <= criterion.target + MET < criterion.decisions_after
    ]


def expected_gap_text(corrected: TableResult, rows: int = 1000) -> str:
    """Which gap of decisions to expect on new rows."""
    criterion = corrected.result.criteria[0].criterion
    gap = corrected.result.expected_gap(rows, criterion)
    return (
        f"From sampling alone, expect a gap of {100 * gap.mean:.1f} points "
        f"({criterion.replace('_', ' ')}) on {rows:,} new rows, "
        f"up to {100 * gap.high:.1f} in 95 % of such tables."
    )

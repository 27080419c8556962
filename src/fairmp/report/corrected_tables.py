"""A corrected table of predictions, as record and page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fairmp.metrics.evaluation import canonical
from fairmp.postprocessing.debias_table import TableResult, TableSpec, batch_arguments
from fairmp.report.panel import panel, reliability


def record(
    spec: TableSpec, corrected: TableResult, *, file: Path, panel_command: str
) -> dict[str, Any]:
    """All figures as plain JSON values.

    Args:
        spec: what was asked for.
        corrected: the table.
        file: where it is written.
        panel_command: command of the panel; see :func:`fairmp.report.panel.panel`.
    """
    content: dict[str, Any] = {
        "data": spec.predictions.name,
        "file": str(file),
        "rows": len(corrected.table.frame),
        "read": list(corrected.notes),
        **corrected.result.to_dict(),
    }
    inputs = corrected.inputs
    if inputs.scores.are_decisions or spec.apply is not None:
        return content
    values, groups = inputs.scores.values, inputs.groups
    if not spec.estimate_sens:  # an estimate for every target would take too long
        content["panel"] = panel(
            values,
            groups,
            inputs.y,
            criterion=canonical(spec.criterion[0] if spec.criterion else "demographic_parity"),
            target=spec.target[0] if spec.target else 0.0,
            command=panel_command,
            **batch_arguments(spec, inputs),
        )
    content["reliability"] = reliability(values, groups, inputs.y, kind=inputs.scores.kind)
    return content


def advice(corrected: TableResult) -> list[str]:
    """Notes on how to read the result."""
    result = corrected.result
    if corrected.inputs.scores.are_decisions:
        chance = "Decisions alone can only be equalised by chance: decision_corrected is drawn from"
        return [f"{chance} the corrected probabilities, with the seed."]
    missed = any(one.decisions_after > one.target + 0.01 for one in result.criteria)
    if result.on == "probabilities" and missed:
        return ["The target is met by the probabilities, not by the decisions."]
    return []


def expected_gap_text(corrected: TableResult, rows: int = 1000) -> str:
    """Which gap of decisions to expect on new rows."""
    gap = corrected.result.expected_gap(rows)
    return (
        f"From sampling alone, expect a gap of {100 * gap.mean:.1f} points on {rows:,} new rows, "
        f"up to {100 * gap.high:.1f} in 95 % of such tables."
    )

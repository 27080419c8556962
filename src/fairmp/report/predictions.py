"""The page of a table of predictions, and what training said about people corrected alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from fairmp.metrics.evaluation import Evaluation
from fairmp.report.content import Document, Section
from fairmp.report.document import html
from fairmp.report.evaluations import cautions, from_evaluations, per_node_warning
from fairmp.report.formats import points


def predictions_page(
    title: str,
    decisions: Mapping[str, int],
    evaluation: Evaluation | None,
    *,
    measured_on: str,
    notes: Sequence[str],
    command: str,
) -> str:
    """A self-contained page.

    Args:
        title: of the page.
        decisions: how many got each decision.
        evaluation: of the predictions, if groups are known.
        measured_on: which nodes it is about.
        notes: on how they were predicted.
        command: that made them.
    """
    total = sum(decisions.values())
    rows = [[name, f"{k:,}", points(k / total)] for name, k in decisions.items()]
    counts = Section("Decisions", header=["decision", "people", "%"], rows=rows, bullets=notes)
    document: Document = {"summary": f"{total:,} people were predicted.", "classes": []}
    if evaluation is not None:
        document = from_evaluations(evaluation)
        document["notes"] = [*document.get("notes", []), *cautions(evaluation)]
        document["measured"] = f"Measured on {measured_on}"
    document |= {"title": title, "describes_model": False, "command": command, "lines": counts}
    return html(document)


def recorded_warning(run: Path) -> str:
    """The same from a folder that 'fairmp train' wrote; empty where it says nothing about it."""
    path = run / "records.jsonl"
    if not path.is_file():
        return ""
    with path.open(encoding="utf-8") as file:
        record = json.loads(file.readline())
    before, per_node = record["run"].get("uncorrected"), record.get("per_node")
    if before is None or per_node is None:
        return ""
    return per_node_warning(Evaluation.from_dict(before), Evaluation.from_dict(per_node))

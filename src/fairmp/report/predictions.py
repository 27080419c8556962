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
    """What 'fairmp train' recorded of people corrected one by one; empty if that is not known.

    Predictions do not depend on the record: one that is missing or damaged is passed over.
    """
    try:
        with (run / "records.jsonl").open(encoding="utf-8") as file:
            record = json.loads(file.readline())
        figures = record["run"]["uncorrected"], record["per_node"]
        before, per_node = map(Evaluation.from_dict, figures)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return ""
    return per_node_warning(before, per_node)

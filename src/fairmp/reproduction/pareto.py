"""The paper's trade-off figure: every strength of regulariser, adversary and FMP."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fairmp.comparison import Record, page
from fairmp.reproduction import paper


def write(records: Sequence[Record], folder: Path, *, command: str) -> page.Comparison:
    """Write a figure per data set, the tables behind it, and the page."""
    summary = "What each strength of regulariser, adversary and FMP gains, and what it costs."
    return page.write(
        records,
        folder,
        title="Accuracy against ΔDP",
        summary=summary,
        command=command,
        more=lambda found: [paper.claims_table(paper.pareto_claims(found.hypervolumes))],
        note="The paper's figure has no numbers; intervals of the areas must not overlap.",
    )

"""Table 1 of the paper: graph neural networks without any correction, and FMP."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fairmp.comparison import page
from fairmp.comparison.runner import Record


def write(records: Sequence[Record], folder: Path, *, command: str) -> page.Comparison:
    """Write the table in all formats, and the page."""
    return page.write(
        records,
        folder,
        title="Graph neural networks and FMP",
        summary="How far apart each network's propagation leaves the groups, and how far FMP does. "
        "The paper's own figures for this table are not available, so none are shown.",
        command=command,
    )

"""Table 1 of the paper: graph neural networks without any remedy, and FMP."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fairmp.comparison import page as compare_page
from fairmp.comparison.grid import BACKBONES, RunSpec, Setting, cells
from fairmp.comparison.runner import Record

QUICK = Setting(epochs=60, lr=0.01)


def grid(names: Sequence[str], *, quick: bool = False, splits: int | None = None) -> list[RunSpec]:
    """Every backbone without a strategy, over ten splits; quick: fewer epochs, two splits.

    Example:
        >>> len(grid(["nba"])), len(grid(["embedded:2000"], quick=True))
        (70, 14)
    """
    return cells(
        names,
        tuple(BACKBONES),
        ("vanilla",),
        splits=splits or (2 if quick else 10),
        setting=QUICK if quick else None,
    )


def write(records: Sequence[Record], folder: Path, *, command: str) -> compare_page.Comparison:
    """Write the table in all formats, and the page."""
    return compare_page.write(
        records,
        folder,
        title="Graph neural networks and FMP",
        summary="What each network's averaging does to the groups, and what FMP leaves of it. The "
        "paper's own figures for this table are not at hand, so none are shown beside ours.",
        command=command,
    )

"""The paper's trade-off figure: regulariser above, adversary below, one column per data set."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairmp.comparison import page
from fairmp.comparison.grid import PENALTIES
from fairmp.comparison.runner import Record
from fairmp.report.figures import curves


def figure(found: page.Comparison) -> Any:
    """Draw one row per strategy and one column per data set, with FMP's curve in all of them."""
    from matplotlib.figure import Figure

    columns = max(1, len(found.families))
    fig = Figure(figsize=(1.6 + 3.6 * columns, 6.4), layout="constrained")
    grid = fig.subplots(len(PENALTIES), columns, squeeze=False)
    styles = {
        family: (colour, colour)
        for family, (colour, _) in page.family_styles(found.records).items()
    }
    for row, strategy in enumerate(PENALTIES):
        for column, (name, families) in enumerate(found.families.items()):
            axes = grid[row][column]
            shown = {
                family: lines
                for family, lines in families.items()
                if family == "FMP" or family.endswith(strategy)
            }
            last = column == columns - 1
            curves(shown, f"{name}: {strategy}", styles=styles, axes=axes, legend=last)
            axes.grid(True, color="#dddddd", linewidth=0.6)
    return fig


def write(records: Sequence[Record], folder: Path, *, command: str) -> page.Comparison:
    """Write the figure, the tables behind it, and the page."""
    found = page.write(
        records,
        folder,
        title="Accuracy against ΔDP",
        summary="What each strength of regulariser, adversary and FMP gains, and what it costs.",
        command=command,
    )
    if found.records:
        figure(found).savefig(folder / "pareto.png", dpi=150)
    return found

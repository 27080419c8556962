"""The paper's trade-off figure: regulariser above, adversary below, one column per data set."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairmp.comparison import Record, page
from fairmp.comparison.grid import PENALTIES
from fairmp.report.figures import curves
from fairmp.reproduction import paper


def figure(found: page.Comparison) -> Any:
    """Draw one row per strategy and one column per data set, with FMP's curve in all of them."""
    from matplotlib.figure import Figure

    columns = len(found.families)
    fig = Figure(figsize=(1.6 + 3.6 * columns, 6.4), layout="constrained")
    grid = fig.subplots(len(PENALTIES), columns, squeeze=False)
    styles = {
        name: (colour,) * 2 for name, (colour, _) in page.family_styles(found.records).items()
    }
    for row, strategy in zip(grid, PENALTIES, strict=True):
        for axes, (name, families) in zip(row, found.families.items(), strict=True):
            shown = {f: v for f, v in families.items() if f == "FMP" or f.endswith(strategy)}
            last = axes is row[-1]
            curves(shown, f"{name}: {strategy}", styles=styles, axes=axes, legend=last)
            axes.grid(True, color="#dddddd", linewidth=0.6)
    return fig


def write(records: Sequence[Record], folder: Path, *, command: str) -> page.Comparison:
    """Write the figure, the tables behind it, and the page."""
    summary = "What each strength of regulariser, adversary and FMP gains, and what it costs."
    found = page.write(
        records,
        folder,
        title="Accuracy against ΔDP",
        summary=summary,
        command=command,
        more=lambda found: [paper.claims_table(paper.pareto_claims(found.hypervolumes))],
        note="The paper's figure has no numbers; intervals of the areas must not overlap.",
    )
    if found.records:
        figure(found).savefig(folder / "pareto.png", dpi=150)
    return found

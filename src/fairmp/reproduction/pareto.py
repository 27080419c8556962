"""The paper's trade-off figure: regulariser above, adversary below, one column per data set."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairmp.comparison import Record, page
from fairmp.comparison.grid import PENALTIES
from fairmp.report import figures as charts
from fairmp.reproduction import paper


def figure(found: page.Comparison) -> Any:
    """Draw one row per strategy and one column per data set, with FMP's curve in all of them."""
    wide = min(3, len(found.families))
    tall = math.ceil(len(found.families) / wide)
    rows = tall * len(PENALTIES)
    size = (0.4 + 2.8 * wide, 0.5 + 2.5 * rows)
    fig, grid = charts.figure(*size, nrows=rows, ncols=wide, squeeze=False)
    styles = {
        name: (colour,) * 2 for name, (colour, _) in page.family_styles(found.records).items()
    }
    for k, strategy in enumerate(PENALTIES):
        panels = iter(grid[k * tall : (k + 1) * tall].flat)
        for name, families in found.families.items():
            axes = next(panels)
            shown = {f: v for f, v in families.items() if f == "FMP" or f.endswith(strategy)}
            charts.curves(shown, f"{name}: {strategy}", styles=styles, axes=axes, legend=False)
            axes.set(xlabel="ΔDP (points)", ylabel="accuracy (%)")
            axes.set_title(axes.get_title(loc="left"), loc="left", fontsize=9)
        for axes in panels:
            axes.axis("off")
    handles = {
        label.split(" + ")[0]: handle
        for axes in grid.flat
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    place = {"loc": "outside upper left", "ncols": len(handles), "frameon": False}
    fig.legend(handles.values(), handles.keys(), fontsize=9, **place)
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

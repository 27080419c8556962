"""The paper's trade-off figure: regulariser above, adversary below, a column a data set."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairmp.comparison import page as compare_page
from fairmp.comparison.grid import PENALTIES, TARGETS, RunSpec, Setting, cells
from fairmp.comparison.runner import Record
from fairmp.report.figures import curves

BACKBONES = ("mlp", "gcn", "appnp", "ppr")
QUICK = Setting(epochs=60, lr=0.01, pretrain=20)
_FEW = (0.0, 2.0, 10.0)


def grid(names: Sequence[str], *, quick: bool = False, splits: int | None = None) -> list[RunSpec]:
    """Every strength of regulariser and adversary on plain networks, and every target of FMP.

    Example:
        >>> len(grid(["nba"], splits=1)) == 4 * (10 + 8) + 6
        True
    """
    splits = splits or (2 if quick else 3)
    setting = QUICK if quick else Setting()
    found = cells(
        names,
        BACKBONES[:2] if quick else BACKBONES,
        tuple(PENALTIES),
        splits=splits,
        strengths=_FEW if quick else "all",
        setting=setting,
    )
    targets = (0.0, 0.05, 0.2) if quick else TARGETS
    return found + cells(
        names, ("fmp",), ("vanilla",), splits=splits, targets=targets, setting=setting
    )


def figure(found: compare_page.Comparison) -> Any:
    """Draw a row a strategy and a column a data set; FMP's own curve is in all of them."""
    from matplotlib.figure import Figure

    columns = max(1, len(found.families))
    fig = Figure(figsize=(1.6 + 3.6 * columns, 6.4), layout="constrained")
    grid_ = fig.subplots(len(PENALTIES), columns, squeeze=False)
    styles = {
        family: (colour, colour)
        for family, (colour, _) in compare_page.family_styles(found.records).items()
    }
    for row, strategy in enumerate(PENALTIES):
        for column, (name, families) in enumerate(found.families.items()):
            axes = grid_[row][column]
            shown = {
                family: lines
                for family, lines in families.items()
                if family == "FMP" or family.endswith(strategy)
            }
            last = column == columns - 1
            curves(shown, f"{name}: {strategy}", styles=styles, axes=axes, legend=last)
            axes.grid(True, color="#dddddd", linewidth=0.6)
    return fig


def write(records: Sequence[Record], folder: Path, *, command: str) -> compare_page.Comparison:
    """Write the figure, the tables behind it, and the page."""
    found = compare_page.write(
        records,
        folder,
        title="Accuracy against the gap",
        summary="What each strength of regulariser, adversary and FMP buys, and for how much.",
        command=command,
    )
    if found.records:
        figure(found).savefig(folder / "pareto.png", dpi=150)
    return found

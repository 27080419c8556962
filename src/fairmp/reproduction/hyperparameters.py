"""How FMP answers to its numbers: λ_f of the printed algorithm, the projection's target, λ_s."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fairmp.comparison import page as compare_page
from fairmp.comparison.grid import PULLS, TARGETS, RunSpec, Setting, cell_of, cells
from fairmp.comparison.runner import Record
from fairmp.report.figures import COLOURS, MARKERS, bars, keep_possible, to_svg
from fairmp.report.formats import latex, markdown, to_csv
from fairmp.report.page import Section, page
from fairmp.report.tables import Line

SMOOTHING = (0.0, 0.1, 0.5, 1.0, 3.0, 5.0, 10.0, 15.0, 20.0)
QUICK = Setting(epochs=50, lr=0.01)
PANELS = {"λ_f": PULLS, "target": TARGETS, "λ_s": SMOOTHING}


def grid(names: Sequence[str], *, quick: bool = False, splits: int | None = None) -> list[RunSpec]:
    """Each number moved on its own, over three splits; quick: three values, two splits.

    Example:
        >>> len(grid(["nba"], splits=1)) == 2 * 8 + 6 + 4 * 9 - 3
        True
    """
    setting = QUICK if quick else Setting()
    step = 3 if quick else 1
    count = splits or (2 if quick else 3)

    def swept(solver: str, backbone: str, targets: Any, **other: float) -> list[RunSpec]:
        own = replace(setting, solver=solver, **other)  # type: ignore[arg-type]
        return cells(names, (backbone,), ("vanilla",), splits=count, targets=targets, setting=own)

    found = [cell for name in ("paper", "papc") for cell in swept(name, "fmp", PULLS[::step])]
    found += swept("projection", "fmp", TARGETS[::step])
    for smoothing in SMOOTHING[::step]:
        found += swept("projection", "ppr", "default", lambda_s=smoothing)
        found += swept("projection", "fmp", "default", lambda_s=smoothing)
        for solver in ("paper", "papc"):
            found += swept(solver, "fmp", (10.0,), lambda_s=smoothing)
    return list(dict.fromkeys(found))


def write(records: Sequence[Record], folder: Path, *, command: str) -> compare_page.Comparison:
    """Write one figure a data set, the tables behind them, and the page."""
    named = [
        {**record, "name": f"{record['name']}, λ_s={_smoothing(record):g}"} for record in records
    ]
    # A front over values of λ_s is nobody's choice: no hypervolumes.
    found = replace(compare_page.compared(named), hypervolumes={})
    tables = found.tables()
    (folder / "table.md").write_text(markdown(tables), encoding="utf-8")
    (folder / "table.tex").write_text(latex(tables), encoding="utf-8")
    (folder / "table.csv").write_text(to_csv(found.lines), encoding="utf-8")
    sections = []
    for (name, lines), table in zip(found.lines.items(), tables, strict=True):
        picture = figure(name, lines, found.records)
        picture.savefig(folder / f"hyperparameters-{compare_page.file_name(name)}.png", dpi=150)
        caption = (
            "Each number moved on its own; the others stay at the setting's (λ_s = 3, target 0), "
            "and λ_f = 10 while λ_s moves. Bars are 95 % intervals of the mean over splits."
        )
        sections.append(
            Section(
                name, header=table.header, rows=table.rows, svg=to_svg(picture), caption=caption
            )
        )
    sections += compare_page.closing(found, command)
    text = page(
        "What FMP's numbers do",
        "λ_f of the paper's algorithm as printed and with the step size its operator needs, the "
        "target of the projection, which stands in its place, and the smoothing λ_s.",
        sections,
    )
    (folder / "report.html").write_text(text, encoding="utf-8")
    return found


def figure(name: str, lines: Sequence[Line], records: Sequence[Record]) -> Any:
    """Draw accuracy above and ΔDP below, against each number."""
    from matplotlib.figure import Figure

    named = {line.name: line for line in lines}
    fig = Figure(figsize=(12, 6), layout="constrained")
    axes = fig.subplots(2, len(PANELS), sharey="row")
    for column, panel in enumerate(PANELS):
        series = _series(panel, named, records)
        ticks = sorted({value for points in series.values() for value in points})
        for row, key in enumerate(("accuracy", "dp")):
            axis = axes[row][column]
            for i, (label, points) in enumerate(series.items()):
                values = sorted(points)
                intervals = [points[value].figures[key] for value in values]
                axis.errorbar(
                    [ticks.index(value) for value in values],
                    [100 * interval.mean for interval in intervals],
                    yerr=bars(intervals),
                    color=COLOURS[i],
                    marker=MARKERS[i],
                    markersize=5,
                    linewidth=1.2,
                    elinewidth=0.6,
                    capsize=2,
                    label=label,
                )
            axis.set_xticks(range(len(ticks)), [f"{tick:g}" for tick in ticks])
            axis.grid(True, color="#dddddd", linewidth=0.6)
            if row:
                axis.set_xlabel(panel)
        axes[0][column].legend(frameon=False, fontsize=8)
    for row in axes:
        keep_possible(row[0], "y")  # the others share its axis
    axes[0][0].set_ylabel("accuracy (%)")
    axes[1][0].set_ylabel("ΔDP (points)")
    fig.suptitle(name, x=0.01, ha="left", fontsize=11)
    return fig


def _series(
    panel: str, named: dict[str, Line], records: Sequence[Record]
) -> dict[str, dict[float, Line]]:
    """What is drawn in a panel: for each family, the line at each value."""
    series: dict[str, dict[float, Line]] = {}
    usual = Setting().lambda_s
    for record in records:
        if record["name"] not in named:
            continue
        cell = cell_of(record)
        projection = cell.setting.solver == "projection"
        smoothing, strength = cell.setting.lambda_s, cell.strength
        if panel == "λ_s":
            if strength not in (None, 0.0 if projection else 10.0):
                continue
            value = smoothing
        elif strength is None or smoothing != usual or projection == (panel == "λ_f"):
            continue
        else:
            value = strength
        series.setdefault(cell.family, {})[value] = named[record["name"]]
    return series


def _smoothing(record: Record) -> float:
    return float(record["spec"]["setting"]["lambda_s"])

"""Sensitivity of FMP to its hyperparameters: λ_f, the target of the projection, and λ_s."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairmp.comparison import Record, page
from fairmp.report import figures as charts
from fairmp.report.formats import Line
from fairmp.reproduction import paper
from fairmp.reproduction.grids import RECORDED

PANELS = ("λ_f", "target", "λ_s")
SUMMARY = (
    "λ_f of the paper's algorithm as printed and with the step size its operator needs, the target "
    "of the projection, which takes its place, and the smoothing λ_s."
)
CAPTION = (
    "Each number is varied alone; the others keep their defaults (λ_s = 3, target 0), and λ_f = 10 "
    "while λ_s varies. Bands are 95 % intervals of the mean over splits, or with "
    "fewer than five splits their range."
)


def write(records: Sequence[Record], folder: Path, *, command: str) -> page.Comparison:
    """Write one figure per data set, the tables behind them, and the page."""
    named = [
        {**r, "name": f"{r['name']}, λ_s={r['spec']['setting']['lambda_s']:g}"} for r in records
    ]
    return page.write(
        named,
        folder,
        title="Hyperparameters of FMP",
        summary=SUMMARY,
        command=command,
        more=lambda found: [paper.claims_table(paper.hyperparameter_claims(records))],
        note=paper.VERDICTS,
        draw=hyperparameters,
        caption=CAPTION,
    )


def hyperparameters(found: page.Comparison, name: str) -> Any:
    """Draw accuracy above and ΔDP below, against each hyperparameter."""
    named = {line.name: line for line in found.lines[name]}
    fig, axes = charts.figure(9, 5.4, nrows=2, ncols=len(PANELS), sharey="row")
    panels = [_families(panel, named, found.records) for panel in PANELS]
    names = list(dict.fromkeys(name for families in panels for name in families))
    for panel, families, column in zip(PANELS, panels, axes.T, strict=True):
        ticks = sorted({value for points in families.values() for value in points})
        for axis, key in zip(column, ("accuracy", "dp"), strict=True):
            for label, points in families.items():
                values = sorted(points)
                intervals = [points[value].figures[key] for value in values]
                places = [ticks.index(value) for value in values]
                charts.series(axis, places, intervals, names.index(label), label)
            axis.set_xticks(range(len(ticks)), [f"{tick:g}" for tick in ticks])
        column[-1].set_xlabel(panel)
        column[0].legend(frameon=False, fontsize=9)
    for (first, *_), label in zip(axes, ("accuracy (%)", "ΔDP (points)"), strict=True):
        charts.keep_possible(first, "y")  # the others share its axis
        first.set_ylabel(label)
    fig.suptitle(name, x=0.01, ha="left", fontsize=11)
    return fig


def _families(
    panel: str, named: dict[str, Line], records: Sequence[Record]
) -> dict[str, dict[float, Line]]:
    """Lines of one panel by family and value of its hyperparameter."""
    frame = page.results(records).drop_duplicates("name")
    projection, strength = frame["solver"] == "projection", frame["strength"].astype(float)
    if panel == "λ_s":
        shown = strength.isna() | (strength == 10 * ~projection)
    else:
        shown = strength.notna() & (projection == (panel == "target"))
        shown &= frame["lambda_s"] == RECORDED.lambda_s
    frame["value"] = frame["lambda_s"] if panel == "λ_s" else strength
    series: dict[str, dict[float, Line]] = {}
    for row in frame[shown & frame["name"].isin(list(named))].to_dict("records"):
        series.setdefault(row["family"], {})[row["value"]] = named[row["name"]]
    return series

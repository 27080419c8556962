"""The paper's figure of hyperparameters: λ_f, the projection's target and λ_s, one at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from experiments import grids
from experiments.options import GridOptions, Scope, run_grid
from experiments.paper import FAILS, VERDICTS, Claim, DataRuns, by_data, claims_table, verdict
from fairmp.comparison import Record, page
from fairmp.comparison.summary import Comparison, results
from fairmp.report import figures as charts
from fairmp.report.formats import Line, spread

LITERAL = "λ_f = λ_s"  # the printed γ = 1/(1+λ_f), read literally
PANELS = ("λ_f", "target", "λ_s", LITERAL)
MIN_EFFECT = 0.001  # of a gap: less than a tenth of a point is no effect, however certain


def command(scope: Scope, training: GridOptions) -> None:
    """Vary λ_f, the projection's target and λ_s, one at a time."""
    run_grid("hyperparameters", grids.hyperparameters, write, scope, training)


def write(records: Sequence[Record], folder: Path, *, command: str) -> Comparison:
    """Write one figure per data set, the tables behind them, and the page."""
    named = []
    for record in records:
        lambda_s = record["spec"]["setting"]["lambda_s"]
        named.append({**record, "name": f"{record['name']}, λ_s={lambda_s:g}"})
    return page.write(
        named,
        folder,
        title="Hyperparameters of FMP",
        summary="λ_f of the paper's algorithm as printed and with the step size its operator "
        "needs, the target of the projection, which takes its place, and the smoothing λ_s.",
        command=command,
        further_tables=lambda comparison: [claims_table(claims(records))],
        note=VERDICTS,
        figure=page.Figure(
            "hyperparameters",
            hyperparameters,
            caption="Each number is varied alone; the others keep their defaults (λ_s = 3, target "
            "0), and λ_f = 10 while λ_s varies. The paper prints γ = 1/(1+λ_f), which read "
            "literally makes both strengths one: the last panel. Bands are 95 % intervals of the "
            "mean over splits, or with fewer than five splits their range.",
            is_tradeoff=False,
        ),
    )


def hyperparameters(comparison: Comparison, name: str) -> Any:
    """Draw accuracy above and ΔDP below, against each hyperparameter."""
    lines = {line.name: line for line in comparison.lines[name]}
    figure, axes = charts.figure(11, 5.4, nrows=2, ncols=len(PANELS), sharey="row")
    panels = [families(panel, lines, comparison.records) for panel in PANELS]
    colours = list(dict.fromkeys(family for panel in panels for family in panel))
    for title, panel, (above, below) in zip(PANELS, panels, axes.T, strict=True):
        ticks = sorted({value for points in panel.values() for value in points})
        for axis, key in ((above, "accuracy"), (below, "dp")):
            for family, points in panel.items():
                values = sorted(points)
                places = [ticks.index(value) for value in values]
                intervals = [points[value].figures[key] for value in values]
                charts.series(axis, places, intervals, colours.index(family), family)
            axis.set_xticks(range(len(ticks)), [f"{tick:g}" for tick in ticks])
        below.set_xlabel(title)
        above.legend(frameon=False, fontsize=9)
    for row, label in zip(axes, ("accuracy (%)", "ΔDP (points)"), strict=True):
        charts.keep_possible(row[0], "y")  # the others share its axis
        row[0].set_ylabel(label)
    figure.suptitle(name, x=0.01, ha="left", fontsize=11)
    return figure


def families(
    panel: str, lines: dict[str, Line], records: Sequence[Record]
) -> dict[str, dict[float, Line]]:
    """Lines of one panel by method and value of its hyperparameter."""
    runs = results(records).drop_duplicates("name")
    runs = runs[runs["name"].isin(list(lines))]
    projection = runs["solver"] == "projection"
    strength = runs["strength"].astype(float)
    if panel == "λ_s":
        shown = strength.isna() | (strength == 10 * ~projection)
        values = runs["lambda_s"]
    elif panel == LITERAL:
        shown = (runs["solver"] == "paper") & (strength == runs["lambda_s"])
        values = strength
    else:
        shown = strength.notna() & (projection == (panel == "target"))
        shown &= runs["lambda_s"] == grids.RECORDED.lambda_s
        values = strength
    by_family: dict[str, dict[float, Line]] = {}
    for run in runs.assign(value=values)[shown].to_dict("records"):
        by_family.setdefault(run["family"], {})[run["value"]] = lines[run["name"]]
    return by_family


def claims(records: Sequence[Record]) -> list[Claim]:
    """Claims on λ_s and λ_f: what more smoothing does, and that λ_f lowers ΔDP."""
    return [
        claim
        for data in by_data(records)
        for claim in (*_smoothing_claims(data), *_strength_claims(data))
    ]


def _smoothing_claims(data: DataRuns) -> Iterator[Claim]:
    plain = data.runs[data.runs["backbone"] == "ppr"]
    if plain["lambda_s"].nunique() < 2:
        return
    on_nba = data.key == "nba"  # where the paper finds the opposite
    effect, printed = ("lower accuracy", "on NBA") if on_nba else ("higher accuracy", "on Pokec")
    text = "More smoothing gives {} (plain propagation)"
    accuracy = _change(plain, "lambda_s", "accuracy")
    claimed = spread((-accuracy.values if on_nba else accuracy.values).tolist())
    ours = f"λ_s = {accuracy.ends}: accuracy changes by {accuracy.points} points"
    yield Claim(text.format(effect), data.title, printed, ours, verdict(claimed))
    if not on_nba:
        gap = _change(plain, "lambda_s", "dp")
        ours = f"λ_s = {gap.ends}: ΔDP changes by {gap.points} points"
        outcome = verdict(spread(gap.values.tolist()))
        yield Claim(text.format("more bias"), data.title, printed, ours, outcome)


def _strength_claims(data: DataRuns) -> Iterator[Claim]:
    printed_solver = data.runs[data.runs["solver"] == "paper"]
    smoothing = printed_solver["lambda_s"]
    readings = {
        "as printed, γ = 1/(1+λ_s)": smoothing == grids.RECORDED.lambda_s,
        "as printed, γ = 1/(1+λ_f)": smoothing == printed_solver["strength"],
    }
    for reading, chosen in readings.items():
        runs = printed_solver[chosen]
        if runs["strength"].nunique() < 2:
            continue
        gap = _change(runs, "strength", "dp")
        decrease = spread((-gap.values).tolist())
        judged = verdict(decrease, MIN_EFFECT) if decrease.high > MIN_EFFECT else FAILS
        ours = f"λ_f = {gap.ends}: ΔDP changes by {gap.points} points"
        yield Claim(f"A larger λ_f lowers ΔDP ({reading})", data.title, "yes", ours, judged)


@dataclass(frozen=True)
class _Change:
    """Change of a figure within splits, between two values of a setting."""

    ends: str  # the two values
    values: pd.Series  # one per split

    @property
    def points(self) -> str:
        text = f"{abs(100 * self.values.mean()):.1f}"
        if text == "0.0":
            return text
        return f"{'+' if self.values.mean() > 0 else '−'}{text}"


def _change(runs: pd.DataFrame, setting: str, figure: str) -> _Change:
    """Change of a figure from the smallest value of a setting to the largest."""
    by_split = runs.pivot_table(index="split", columns=setting, values=figure)
    smallest, largest = by_split.columns[0], by_split.columns[-1]
    return _Change(f"{smallest:g} → {largest:g}", by_split[largest] - by_split[smallest])

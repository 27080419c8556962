"""The paper's trade-off figure: accuracy against ΔDP, over the strengths of each method."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments import grids
from experiments.options import GridOptions, Scope, run_grid
from experiments.paper import FAILS, HOLDS, OPEN, UNJUDGED, Claim, claims_table
from fairmp.comparison import Record, page
from fairmp.comparison.summary import Comparison
from fairmp.metrics import Interval
from fairmp.report.formats import cell_text

BEST = "FMP has the best trade-off"
PRINTED = "best in every panel"


def command(scope: Scope, training: GridOptions) -> None:
    """Draw accuracy against the gap: regulariser, adversary and FMP at every strength."""
    run_grid("pareto", grids.pareto, write, scope, training)


def write(records: Sequence[Record], folder: Path, *, command: str) -> Comparison:
    """Write the tables, one figure per data set, and the verdicts on the paper's claim."""
    return page.write(
        records,
        folder,
        title="Accuracy against ΔDP",
        summary="What each strength of regulariser, adversary and FMP gains, and what it costs.",
        command=command,
        further_tables=lambda comparison: [claims_table(claims(comparison.hypervolumes))],
        note="The paper's figure has no numbers; intervals of the areas must not overlap.",
    )


def claims(hypervolumes: Mapping[str, Mapping[str, Interval]]) -> list[Claim]:
    """Claim of the figure, from the hypervolumes of each data set's methods."""
    claims_by_data = []
    for title, areas in hypervolumes.items():
        others = {family: area for family, area in areas.items() if family != "FMP"}
        if "FMP" not in areas or not others:
            continue
        fair = areas["FMP"]
        best = max(others, key=lambda family: others[family].mean)
        ours = f"area {cell_text(fair)} against {cell_text(others[best])} ({best})"
        claims_by_data.append(Claim(BEST, title, PRINTED, ours, _verdict(fair, others[best])))
    return claims_by_data


def _verdict(fair: Interval, other: Interval) -> str:
    if math.isnan(fair.low + other.low):
        return UNJUDGED
    if fair.low > other.high:
        return HOLDS
    return FAILS if fair.high < other.low else OPEN

"""Table 1 of the paper: graph neural networks and FMP, without any strategy."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from experiments import grids
from experiments.options import GridOptions, Scope, run_grid
from experiments.paper import VERDICTS, Claim, DataRuns, by_data, claims_table, verdict
from experiments.rivals.tuning import METHODS as RIVALS
from experiments.tracks import track_of
from fairmp.comparison import Record, page
from fairmp.comparison.summary import Comparison
from fairmp.report.formats import COLUMNS, Table, cell_text, spread

FIGURES = ("accuracy", "dp", "eo")
NETWORKS = ("GCN", "GAT", "SGC", "APPNP")
# Rows of ours beside the paper's, and what they are called there.
OURS = {
    "PPR": "plain propagation",
    "FMP (paper)": "FMP (paper)",
    "FMP (released)": "FMP (released)",
    "FMP": "FMP (projection)",
    **{method.rpartition(":")[2]: title for title, method in RIVALS.items()},
}
MAX_LOSS = 0.01  # of accuracy that still counts as equal
SMALLEST_GAP = {"dp": "FMP has the smallest ΔDP", "eo": "FMP has the smallest ΔEO"}
AS_ACCURATE = "FMP is as accurate as an MLP, within a point"
MORE_BIAS = "Graph networks have a larger ΔDP than an MLP"


def command(scope: Scope, training: GridOptions) -> None:
    """Compare graph neural networks and FMP without any strategy (the paper's Table 1)."""
    run_grid("table1", grids.table1, write, scope, training)


def write(records: Sequence[Record], folder: Path, *, command: str) -> Comparison:
    """Write our table, the paper's beside it, and the verdicts on its claims."""
    return page.write(
        records,
        folder,
        title="Graph neural networks and FMP",
        summary="How far apart each network's propagation leaves the groups, and how far FMP does, "
        "beside the paper's figures.",
        command=command,
        further_tables=lambda comparison: [
            *side_by_side(comparison.records),
            claims_table(claims(comparison.records)),
        ],
        note="The paper's ± is a standard deviation of five runs on one split; ours is an interval "
        f"of the mean. {VERDICTS}",
    )


def side_by_side(records: Sequence[Record]) -> list[Table]:
    """One table per data set that the paper has: its row and ours, method by method."""
    header = [f"{COLUMNS[key]}, {source}" for key in FIGURES for source in ("paper", "ours")]
    tables = []
    for data in by_data(records):
        networks = _by_network(data)
        tracks = {record["family"]: track_of(record) for record in records}
        printed = grids.printed()["table1"].get(data.key, {})
        rows = []
        for name, title in (dict(zip(printed, printed, strict=True)) | OURS).items():
            values = printed.get(name.partition(" (")[0])  # the paper has one FMP
            cells = []
            for key in FIGURES:
                cells.append("–" if values is None else "{:.1f} ± {:.1f} sd".format(*values[key]))
                ours: Any = networks[key].get(name)
                cells.append("–" if ours is None else cell_text(spread(ours.tolist())))
            if printed and (name in printed or name in networks["dp"]):
                rows.append([title, tracks.get(name, "–"), *cells])
        if rows:
            title = f"{data.title}: the paper beside ours"
            tables.append(Table(title, ["method", "track, ours", *header], rows))
    return tables


def claims(records: Sequence[Record]) -> list[Claim]:
    """Claims of Table 1: FMP has the smallest gaps, networks add bias, FMP costs no accuracy."""
    return [claim for data in by_data(records) for claim in _claims(data)]


def _claims(data: DataRuns) -> Iterator[Claim]:
    paper = grids.printed()["table1"].get(data.key, {})
    networks = _by_network(data)
    others = [name for name in ("MLP", *NETWORKS) if name in networks["dp"]]
    if "FMP" in networks["dp"]:
        if others:
            for key, text in SMALLEST_GAP.items():
                yield _smallest_gap(text, data.title, key, networks[key], others, paper)
        if "MLP" in others:
            yield _as_accurate(data.title, networks["accuracy"], paper)
    if "MLP" in others and others != ["MLP"]:
        yield _more_bias(data.title, networks["dp"], others[1:], paper)


def _smallest_gap(
    text: str,
    title: str,
    key: str,
    runs: pd.DataFrame,
    others: Sequence[str],
    paper: Mapping[str, Any],
) -> Claim:
    """FMP against the other method with the smallest mean gap."""
    rival = str(runs[others].mean().fillna(math.inf).idxmin())
    difference = spread((runs[rival] - runs["FMP"]).tolist())
    printed = "–"
    if paper:
        gaps = {name: values[key][0] for name, values in paper.items()}
        best = min((name for name in gaps if name != "FMP"), key=gaps.__getitem__)
        printed = _against(gaps["FMP"], gaps[best], best)
    ours = _against(100 * runs["FMP"].mean(), 100 * runs[rival].mean(), rival)
    return Claim(text, title, printed, ours, verdict(difference))


def _as_accurate(title: str, runs: pd.DataFrame, paper: Mapping[str, Any]) -> Claim:
    difference = spread((runs["FMP"] - runs["MLP"]).tolist())
    printed = "–"
    if paper:
        printed = _against(paper["FMP"]["accuracy"][0], paper["MLP"]["accuracy"][0], "MLP")
    ours = _against(100 * runs["FMP"].mean(), 100 * runs["MLP"].mean(), "MLP")
    return Claim(AS_ACCURATE, title, printed, ours, verdict(difference, -MAX_LOSS))


def _more_bias(
    title: str, runs: pd.DataFrame, networks: Sequence[str], paper: Mapping[str, Any]
) -> Claim:
    """Graph networks against the MLP, on average over the networks."""
    increase = runs[networks].sub(runs["MLP"], axis=0)
    average = spread(increase.mean(axis=1).tolist())
    worse = int((increase.mean() > 0).sum())
    printed = "–"
    if paper:
        larger = [paper[name]["dp"][0] > paper["MLP"]["dp"][0] for name in NETWORKS]
        printed = f"{sum(larger)} of {len(larger)} networks"
    ours = f"{worse} of {len(networks)} networks, {100 * average.mean:+.1f} on average"
    return Claim(MORE_BIAS, title, printed, ours, verdict(average))


def _against(fair: float, other: float, name: str) -> str:
    return f"{fair:.1f} against {other:.1f} ({name})"


def _by_network(data: DataRuns) -> dict[str, pd.DataFrame]:
    """Each figure of the methods without a strategy, by split and method."""
    plain = data.runs[data.runs["strategy"] == "vanilla"]
    return {
        key: plain.pivot_table(values=key, index="split", columns="family", dropna=False)
        for key in FIGURES
    }

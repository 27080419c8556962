"""The paper's running times: 200 epochs of every network with every strategy."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from torch_geometric.data import Data

from experiments import grids
from experiments.options import Device, Page, Scope, show
from experiments.paper import Claim, DataRuns, by_data, claims_table, verdict
from experiments.provenance import stamp
from fairmp.cli.options import Results
from fairmp.cli.output import say
from fairmp.comparison import Record, compare
from fairmp.comparison.grid import METHODS, STRATEGIES, RunSpec
from fairmp.display import bar
from fairmp.report.formats import Table, spread


def command(results: Results, scope: Scope, device: Device = "cpu") -> None:
    """Time 200 epochs of every network with every strategy, relative to an MLP."""
    folder = results.folder("runtime")
    graphs = scope.load(["embedded:1000"]).graphs
    specs = grids.runtime(list(graphs), quick=scope.quick)
    say(f"{len(specs)} runs, one at a time.")
    with results.staging(folder) as staging, bar(len(specs), "runs") as advance:
        records = run(specs, graphs, staging, device, advance)
        tables = content(records).write(staging)
    show(results, records, folder, tables)


def run(
    specs: Sequence[RunSpec],
    graphs: Mapping[str, Data],
    folder: Path,
    device: str,
    progress: Callable[[str], None],
) -> list[Record]:
    """Time the runs one after the other on one thread, after a run that is not counted."""
    load = graphs.__getitem__
    warm_up = replace(
        specs[0], setting=replace(specs[0].setting, epochs=2, eval_every=2, pretrain=1)
    )
    compare.train([warm_up], load, device)
    return compare.run(
        specs,
        load,
        folder / "records.jsonl",
        device=device,
        stamp=stamp("comparison"),
        on_record=lambda record: progress(record["name"]),
    )


def content(records: Sequence[Record]) -> Page:
    """Content of the page."""
    epochs = records[0]["spec"]["setting"]["epochs"]
    summary = (
        f"{epochs} epochs on one thread, one training at a time; thresholds add the time of their "
        "post-processing."
    )
    return Page("Running time", summary, [*tables(records), claims_table(claims(records))])


def tables(records: Sequence[Record]) -> list[Table]:
    """One table per data set: median seconds over repetitions, and multiples of the MLP's.

    FMP as printed and as released have rows of their own.
    """
    papers = {solver: f"FMP ({solver})" for solver in grids.PAPERS_SOLVERS}
    header = ["network", *(strategy.replace("-", " ") for strategy in STRATEGIES)]
    tables_by_data = []
    for data in by_data(records):
        network = data.runs["backbone"].map(METHODS)
        is_papers = (data.runs["backbone"] == "fmp") & data.runs["solver"].isin(papers)
        network = network.where(~is_papers, data.runs["solver"].map(papers))
        seconds = data.runs.groupby([network, "strategy"])["seconds"].median()
        mlp = seconds.get((METHODS["mlp"], "vanilla"))
        texts = seconds.map("{:.2f}".format)
        if mlp:
            texts += (seconds / mlp).map(" ×{:.1f}".format)
        rows = [
            [title, *(texts.get((title, strategy), "n/a") for strategy in STRATEGIES)]
            for title in (*METHODS.values(), *papers.values())
            if title in seconds.index.get_level_values(0)
        ]
        title = f"{data.title}: seconds, and multiples of the MLP's"
        tables_by_data.append(Table(title, header, rows))
    return tables_by_data


def claims(records: Sequence[Record]) -> list[Claim]:
    """Claims on running time: ratios of each method's runs, paired in the order they were made."""
    printed = grids.printed()["runtime"]
    judged_claims = []
    for data in by_data(records):
        seconds = {str(family): runs.tolist() for family, runs in _seconds(data)}
        ratios = printed.get(data.key, printed["pokec-n"]) | printed["any"]
        if "FMP" in ratios:
            ratios |= {f"FMP ({solver})": ratios["FMP"] for solver in grids.PAPERS_SOLVERS}
        for method, others in ratios.items():
            in_paper = data.key in printed or not method.startswith("FMP")
            for other, ratio in others.items():
                if {method, other} <= set(seconds):
                    logs = _log_ratios(seconds[method], seconds[other])
                    text = f"{method} takes {'more' if ratio > 1 else 'less'} time than {other}"
                    theirs = f"×{ratio:.2f}" if in_paper else "–"
                    ours = f"×{math.exp(median(logs)):.2f}"
                    judged = verdict(spread(logs if ratio > 1 else [-log for log in logs]))
                    judged_claims.append(Claim(text, data.title, theirs, ours, judged))
    return judged_claims


def _seconds(data: DataRuns) -> Iterator[tuple[Any, Any]]:
    yield from data.runs.groupby("family", sort=False)["seconds"]


def _log_ratios(slow: Sequence[float], fast: Sequence[float]) -> list[float]:
    return [math.log(a / b) for a, b in zip(slow, fast, strict=True)]

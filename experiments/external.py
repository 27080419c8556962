"""FairGNN and NIFTY on our splits, with and without their fairness part, and their settings.

Settings are chosen on the validation nodes of the first split, with as many trials as the default
has candidates. The rows belong beside those of ``experiments attribution``, which shows them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch_geometric.data import Data

from experiments.committed import cell, exists, read
from experiments.options import Device, Page, Scope, show
from experiments.parts import Graphs, SplitNumbers, Task, prepare, run
from experiments.provenance import code_hash
from experiments.rivals.tuning import METHODS, Settings, choose
from fairmp.cli.options import Results, Workers
from fairmp.comparison import Record, compare
from fairmp.comparison.external import run_method
from fairmp.datasets.by_name import from_files
from fairmp.datasets.splits import with_split
from fairmp.outputs import write_json
from fairmp.parallel import default_workers
from fairmp.report.formats import Table, spread

FIGURES = ("accuracy", "dp", "eo")
RECORD = "rivals.json"
TRIALS, FITS = "trials", "fits"


def command(
    results: Results,
    scope: Scope,
    graph: Graphs = None,
    split: SplitNumbers = None,
    jobs: Workers = None,
    device: Device = "cpu",
) -> None:
    """Tune FairGNN and NIFTY on the first split, and run them on all.

    One line per graph, split and part is appended to records.jsonl; the same command continues.
    """
    grid = prepare(
        results, scope, graph, split, folder="fairmp-external", quick_graph="embedded:240"
    )
    path, jobs = grid.folder / compare.RECORDS, jobs or default_workers()
    stamp = {"code": code_hash("rivals")}
    measure = partial(_measure, data_dir=scope.data_dir, device=device, quick=scope.quick)
    trials = [Task(name, grid.splits[0], TRIALS) for name in grid.names]
    tuned = {
        task.data: record["tuned"]
        for task, record in run(trials, measure, path, jobs, stamp).items()
    }
    tasks = [Task(name, number, FITS) for name in grid.names for number in grid.splits]
    fits = run(tasks, partial(measure, tuned=tuned), path, jobs, stamp)
    records = [{"data": t.data, "split": t.split, "rows": fits[t]["rows"]} for t in tasks]
    content = {
        "command": "python -m experiments external",
        **stamp,
        "tuned": tuned,
        "records": records,
    }
    write_json(grid.folder / RECORD, content)
    tables = [table(records, name) for name in grid.names]
    Page("FairGNN and NIFTY", _SUMMARY, tables).write(grid.folder)
    show(results, content, grid.folder, tables)


_SUMMARY = (
    "Means over splits with 95 % intervals, in points, each node alone. The rows without a "
    "fairness part show what the networks have by themselves."
)


def _measure(
    task: Task,
    *,
    data_dir: Path | None,
    device: str,
    quick: bool,
    tuned: Mapping[str, Any] | None = None,
) -> Record:
    """The trials of all methods, or their rows with the settings that were chosen."""
    data = with_split(from_files(task.data, data_dir), seed=task.split)
    few = {"epochs": 5} if quick else {}
    if task.part == TRIALS:
        return {"tuned": _trials(data, device, few)}
    assert tuned is not None
    rows = {}
    for title in METHODS:
        settings = {**tuned[task.data][title]["settings"], **few}
        test = _run(title, data, device, settings)["test"]
        rows[title] = {key: test[key] for key in FIGURES}
    return {"rows": rows}


def _trials(data: Data, device: str, few: Settings) -> dict[str, Any]:
    """The settings of every method, chosen on validation nodes, and all trials."""

    def validate(title: str, settings: Settings) -> dict[str, float]:
        validation = _run(title, data, device, {**settings, **few})["val"]
        return {key: validation[key] for key in ("accuracy", "dp")}

    return {title: choose(title, partial(validate, title)) for title in METHODS}


def _run(title: str, data: Data, device: str, settings: Settings) -> dict[str, Any]:
    return run_method(METHODS[title], data, seed=0, device=device, settings=settings)


def recorded() -> dict[tuple[str, int], Mapping[str, Mapping[str, float]]]:
    """Rows of the committed record, by graph and split; none without a record."""
    records = read("rivals")["records"] if exists("rivals") else []
    return {(record["data"], record["split"]): record["rows"] for record in records}


def table(records: list[Record], graph: str) -> Table:
    """The rows of one graph."""
    own = [record["rows"] for record in records if record["data"] == graph]
    rows = []
    for title in METHODS:
        cells = [cell(spread([row[title][key] for row in own])) for key in FIGURES]
        rows.append([title, *cells])
    return Table(graph, ["method", "accuracy %", "ΔDP", "ΔEO"], rows)

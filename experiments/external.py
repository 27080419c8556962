"""FairGNN and NIFTY on our splits, with and without their fairness part, and their settings.

Settings are chosen on the validation nodes of the first split, with at least as many trials as the
default has candidates. The network of a method appears twice without its fairness part: tuned by
itself, and with the settings of the whole method, so that the difference is the fairness part's
alone. The rows belong beside those of ``experiments attribution``, which shows them.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch_geometric.data import Data

from experiments.committed import TITLES, cell, exists, read
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
FAIRNESS_PARTS = {"FairGNN": ("alpha", "beta"), "NIFTY": ("similarity",)}
"""The settings of each method that belong to its fairness part."""
SWITCHED_OFF = {f"{title}, switched off": title for title in FAIRNESS_PARTS}
"""Rows of a method's network with the other settings of the method."""
TRIALS = {f"trials of {title}": title for title in METHODS}
"""Parts of the experiment that choose settings; the others are rows."""


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
    What the committed record has by the same code is not measured again.
    """
    grid = prepare(
        results, scope, graph, split, folder="fairmp-external", quick_graph="embedded:240"
    )
    path, jobs = grid.folder / compare.RECORDS, jobs or default_workers()
    stamp = {"code": code_hash("rivals")}
    measure = partial(_measure, data_dir=scope.data_dir, device=device, quick=scope.quick)
    committed = {} if scope.quick else _committed(grid.splits[0])
    trials = [Task(name, grid.splits[0], part) for name in grid.names for part in TRIALS]
    tuned: dict[str, Any] = {}
    for task, record in run(trials, measure, path, jobs, stamp, committed).items():
        tuned.setdefault(task.data, {})[TRIALS[task.part]] = record["tuned"]
    rows = [
        Task(name, number, row)
        for name, number in itertools.product(grid.names, grid.splits)
        for row in (*METHODS, *SWITCHED_OFF)
    ]
    fits = run(rows, partial(measure, tuned=tuned), path, jobs, stamp, committed)
    records = _by_split(fits)
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
    "fairness part show what the networks have by themselves, tuned by itself or with the "
    "settings of the whole method (switched off)."
)


def _measure(
    task: Task,
    *,
    data_dir: Path | None,
    device: str,
    quick: bool,
    tuned: Mapping[str, Any] | None = None,
) -> Record:
    """The trials of one method, or one row with the settings that were chosen."""
    data = with_split(from_files(task.data, data_dir), seed=task.split)
    few: Settings = {"epochs": 5} if quick else {}
    if task.part in TRIALS:
        return {"tuned": _trials(TRIALS[task.part], data, device, few)}
    assert tuned is not None
    title = SWITCHED_OFF.get(task.part, task.part)
    settings = {**tuned[task.data][title]["settings"], **few}
    network = title
    if task.part in SWITCHED_OFF:
        network = f"{title}, no fairness part"
        settings = {key: settings[key] for key in settings if key not in FAIRNESS_PARTS[title]}
    test = _run(network, data, device, settings)["test"]
    return {"figures": {key: test[key] for key in FIGURES}}


def _trials(title: str, data: Data, device: str, few: Settings) -> dict[str, Any]:
    """The settings of a method, chosen on validation nodes, and all trials."""

    def validate(settings: Settings) -> dict[str, float]:
        validation = _run(title, data, device, {**settings, **few})["val"]
        return {key: validation[key] for key in ("accuracy", "dp")}

    return choose(title, validate)


def _run(title: str, data: Data, device: str, settings: Settings) -> dict[str, Any]:
    return run_method(METHODS[title], data, seed=0, device=device, settings=settings)


def _by_split(fits: Mapping[Task, Record]) -> list[Record]:
    """One record per graph and split, with all its rows."""
    splits: dict[tuple[str, int], Record] = {}
    for task, record in fits.items():
        empty = {"data": task.data, "split": task.split, "rows": {}}
        splits.setdefault((task.data, task.split), empty)["rows"][task.part] = record["figures"]
    return list(splits.values())


def _committed(tuning_split: int) -> dict[Task, Record]:
    """Trials and rows of the committed record, if this code made it."""
    if not exists("rivals") or read("rivals")["code"] != code_hash("rivals"):
        return {}
    measured: dict[Task, Record] = {}
    for graph, methods in read("rivals")["tuned"].items():
        for part, title in TRIALS.items():
            measured[Task(graph, tuning_split, part)] = {"tuned": methods[title]}
    for (graph, split), rows in recorded().items():
        for row, figures in rows.items():
            measured[Task(graph, split, row)] = {"figures": figures}
    return measured


def recorded() -> dict[tuple[str, int], Mapping[str, Mapping[str, float]]]:
    """Rows of the committed record, by graph and split; none without a record."""
    records = read("rivals")["records"] if exists("rivals") else []
    return {(record["data"], record["split"]): record["rows"] for record in records}


def table(records: list[Record], graph: str) -> Table:
    """The rows of one graph."""
    own = [record["rows"] for record in records if record["data"] == graph]
    rows = []
    for title in (*METHODS, *SWITCHED_OFF):
        cells = [cell(spread([row[title][key] for row in own])) for key in FIGURES]
        rows.append([title, *cells])
    return Table(graph, ["method", "accuracy %", "ΔDP", "ΔEO"], rows)


def interventions() -> Table:
    """What the fairness part of each method changes, with the same settings, paired by split."""
    rows = []
    for graph, name in TITLES.items():
        own = [rows for (data, _), rows in recorded().items() if data == graph]
        for off, title in SWITCHED_OFF.items():
            if not own or any(off not in row for row in own):
                continue
            cells = [cell(spread([row[off][key] for row in own])) for key in ("accuracy", "dp")]
            for key in ("accuracy", "dp"):
                changes = spread([row[title][key] - row[off][key] for row in own])
                half = 50 * (changes.high - changes.low)
                cells.append(f"{100 * changes.mean:+.1f} ± {half:.1f}")
            rows.append([name, title, *cells])
    header = ["graph", "method", "accuracy %, switched off", "ΔDP, switched off"]
    return Table("", [*header, "change of accuracy", "change of ΔDP"], rows)

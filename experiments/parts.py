"""Experiments in parts, each on one graph and split, that keep what is measured and continue."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from experiments.committed import SPLITS
from experiments.options import Scope
from fairmp import outputs
from fairmp.cli.options import Results, option
from fairmp.cli.output import say
from fairmp.comparison import Record, compare
from fairmp.datasets.by_name import canonical
from fairmp.display import bar
from fairmp.parallel import WorkerPool

Graphs = Annotated[list[str] | None, option("Graph; repeat for several. The same as --data.", ...)]
SplitNumbers = Annotated[
    list[int] | None, option("Split; repeat for several. By default 20 to 29.", ...)
]


@dataclass(frozen=True)
class Grid:
    """The graphs and splits of an experiment, and the folder that its results go to."""

    folder: Path
    names: list[str]
    splits: list[int]


@dataclass(frozen=True)
class Task:
    """One part of an experiment, on one graph and split."""

    data: str
    split: int
    part: str


def prepare(
    results: Results,
    scope: Scope,
    graphs: Sequence[str] | None,
    splits: Sequence[int] | None,
    *,
    folder: str,
    quick_graph: str,
) -> Grid:
    """Check names and folder, and make the folder; one that has records is continued."""
    names = list(graphs or scope.data or ())
    names = names or ([quick_graph] if scope.quick else ["nba", "german"])
    grid = Grid(
        results.out or Path(folder),
        [canonical(name) for name in names],
        list(splits or SPLITS[: 1 if scope.quick else None]),
    )
    outputs.hold(grid.folder, overwrite=True)
    compare.check_folder(grid.folder)
    grid.folder.mkdir(parents=True, exist_ok=True)
    return grid


def run(
    tasks: Sequence[Task],
    fit: Callable[[Task], Record],
    path: Path,
    jobs: int,
    stamp: Mapping[str, str],
    known: Mapping[Task, Record] | None = None,
) -> dict[Task, Record]:
    """Measure the tasks without a record of this code, and return the records of all.

    Args:
        tasks: what is measured, in this order.
        fit: measures one task, in a process of its own.
        path: file to which each record is appended as one line.
        jobs: number of processes.
        stamp: what a record of this code carries.
        known: records that are not measured again.
    """
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    done = dict(known or {})
    for record in map(json.loads, lines):
        if stamp.items() <= record.items():
            done[Task(record["data"], record["split"], record["part"])] = record
    left = [task for task in tasks if task not in done]
    say(f"{len(tasks)} parts of graphs and splits, {len(left)} to go.")
    os.environ["OMP_NUM_THREADS"] = "1"  # a process per core; inherited by the workers
    with (
        path.open("a", encoding="utf-8") as file,
        WorkerPool(fit, jobs) as pool,
        bar(len(left), "parts") as advance,
    ):
        for task, record in pool.map(left):
            done[task] = {**asdict(task), **record, **stamp}
            file.write(json.dumps(done[task], ensure_ascii=False, allow_nan=False) + "\n")
            file.flush()
            advance(f"{task.data}, {task.part}")
    return {task: done[task] for task in tasks}

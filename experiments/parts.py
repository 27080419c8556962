"""Experiments in parts, each on one graph and split, that keep what is measured and continue."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from fairmp.cli.output import say
from fairmp.comparison import Record
from fairmp.display import bar
from fairmp.parallel import WorkerPool


@dataclass(frozen=True)
class Task:
    """One part of an experiment, on one graph and split."""

    data: str
    split: int
    part: str


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

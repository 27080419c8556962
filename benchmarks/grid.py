"""Run a grid of methods where only torch, PyG and scipy are installed.

    PYTHONPATH=src python benchmarks/grid.py --npz FOLDER --out records.jsonl

Graphs come from ``.npz`` files that ``benchmarks/defaults.py --save`` wrote. ``fairmp compare`` and
``fairmp reproduce`` make tables and figures from the same records.
"""

from __future__ import annotations

import argparse
import ast
import sys
import time
from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path

from fairmp.comparison import Record
from fairmp.comparison.compare import missing, read, run
from fairmp.comparison.grid import BACKBONES, STRATEGIES, RunSpec, Setting, specs_of_options
from fairmp.errors import InputError
from fairmp.reproduction.grids import GRIDS, RECORDED
from graph_files import from_npz


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a grid on a folder of ``.npz`` graphs, and return the exit status."""
    given = _parser().parse_args(arguments)
    start, done = time.perf_counter(), 0
    try:
        specs = _specs(given)
        left = len(missing(specs, read(given.out), retry=given.retry))
        _say(f"{len(specs)} runs, {len(specs) - left} done already")

        def report(record: Record) -> None:
            nonlocal done
            done += 1
            spent = time.perf_counter() - start
            failed = f" FAILED {record['failed']}" if "failed" in record else ""
            _say(
                f"{done}/{left} {spent:.0f} s, {spent / done * (left - done):.0f} s to go: "
                f"{record['data']}, {record['name']}, split {record['split']}{failed}"
            )

        load = partial(from_npz, folder=given.npz)
        how = {name: getattr(given, name) for name in ("workers", "device", "retry")}
        records = run(specs, load, given.out, **how, on_record=report)
    except InputError as error:
        _say(f"fairmp: {error}")
        return 2
    failed = sum("failed" in record for record in records)
    _say(f"{len(records)} records in {given.out}" + f", {failed} failed" * bool(failed))
    return 0


def _specs(given: argparse.Namespace) -> list[RunSpec]:
    names = given.data.split(",") if given.data else []
    names = names or sorted(path.stem for path in Path(given.npz).glob("*.npz"))
    if not names:
        raise InputError("npz", f"{given.npz} has no .npz file", "write some with defaults.py")
    if given.experiment:
        return GRIDS[given.experiment](names)
    return specs_of_options(names, vars(given))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Train a grid of methods on graphs that defaults.py --save wrote.",
    )
    add = parser.add_argument
    add("--npz", required=True, help="folder of graphs, one NAME.npz each")
    add("--out", required=True, help="file of records; an existing one is continued")
    add("--data", help="names of graphs, separated by commas; by default all in --npz")
    add("--experiment", choices=GRIDS, help="the grid of 'fairmp reproduce NAME', all settings")
    add("--backbones", default="all", help=", ".join(BACKBONES))
    add("--strategies", default="all", help=", ".join(STRATEGIES))
    add("--strengths", default="default", help="default, all, or 1,2,5")
    add("--targets", help="of fmp and thresholds: default, all, or 0,0.02")
    add("--splits", type=int, default=10)
    add("--seeds", type=int, default=1)
    add("--workers", type=int, default=1)
    add("--device", default="cpu")
    add("--retry", action="store_true", help="train failed runs again")
    for field in fields(Setting):
        option = "--" + field.name.lower().replace("_", "-")
        default = getattr(RECORDED, field.name)
        kind = {"patience": int, "calibrate": ast.literal_eval}.get(field.name, type(default))
        add(option, dest=field.name, type=kind, default=default)
    return parser


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())

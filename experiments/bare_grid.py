"""Run a grid of methods where only torch, PyG, scipy and scikit-learn are installed.

    PYTHONPATH=src python -m experiments.bare_grid --npz FOLDER --out records.jsonl
    PYTHONPATH=src python -m experiments.bare_grid --npz FOLDER --experiment recorded --out FOLDER

Graphs come from ``.npz`` files that ``python -m experiments.graph_files`` wrote. ``fairmp
compare`` and ``python -m experiments`` make tables and figures from the same records. ``recorded``
trains all that the documentation's page on the comparison shows, in one go, and writes the files it
is made from. On a GPU, start NVIDIA's MPS first: many small networks then share it.
"""

from __future__ import annotations

import argparse
import ast
import gzip
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from experiments.graph_files import from_npz
from experiments.grids import GRIDS, NETWORKS, RECORDED, papers_fmp
from experiments.provenance import stamp
from fairmp.comparison import Record
from fairmp.comparison.compare import missing, read, run
from fairmp.comparison.grid import (
    METHODS,
    STRATEGIES,
    RunSpec,
    Setting,
    parse_names,
    parse_strengths,
    run_specs,
)
from fairmp.errors import InputError

PARSERS: dict[str, Callable[[str], Any]] = {"patience": int, "calibrate": ast.literal_eval}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a grid on a folder of ``.npz`` graphs, and return the exit status."""
    options = _parser().parse_args(arguments)
    try:
        if options.experiment == "recorded":
            _run_recorded(options, Path(options.out))
        else:
            _run(options, _specs(options), Path(options.out))
    except InputError as error:
        _say(f"experiments: {error}")
        return 2
    return 0


def _run(options: argparse.Namespace, specs: Sequence[RunSpec], path: Path) -> list[Record]:
    """Train the runs without a record; return the records of all."""
    left = len(missing(specs, read(path), retry=options.retry, stamp=stamp("comparison")))
    _say(f"{len(specs)} runs, {len(specs) - left} done already")
    records = run(
        specs,
        partial(from_npz, folder=options.npz),
        path,
        workers=options.workers,
        device=options.device,
        retry=options.retry,
        stamp=stamp("comparison"),
        on_record=Progress(left),
    )
    failed = sum("failed" in record for record in records)
    _say(f"{len(records)} records in {path}" + (f", {failed} failed" if failed else ""))
    return records


class Progress:
    """Prints each record as it is made, and how long the rest will take."""

    def __init__(self, count: int) -> None:
        self.count, self.done, self.start = count, 0, time.perf_counter()

    def __call__(self, record: Record) -> None:
        """Print a record."""
        self.done += 1
        spent = time.perf_counter() - self.start
        remaining = spent / self.done * (self.count - self.done)
        failed = f" FAILED {record['failed']}" if "failed" in record else ""
        _say(
            f"{self.done}/{self.count} {spent:.0f} s, {remaining:.0f} s to go: "
            f"{record['data']}, {record['name']}, split {record['split']}{failed}"
        )


def _run_recorded(options: argparse.Namespace, folder: Path) -> None:
    """Train all that the documentation shows, and write its files of records."""
    files = recorded(_names(options))
    chosen = parse_names("only", options.only, tuple(files)) if options.only else tuple(files)
    files = {name: files[name] for name in chosen}
    specs = list(dict.fromkeys(spec for grid in files.values() for spec in grid))
    by_key = {record["key"]: record for record in _run(options, specs, folder / "records.jsonl")}
    for name, grid in files.items():
        lines = [json.dumps(by_key[spec.key], ensure_ascii=False) + "\n" for spec in grid]
        packed = gzip.compress("".join(lines).encode(), mtime=0)
        (folder / f"{name}.jsonl.gz").write_bytes(packed)


def recorded(names: Sequence[str]) -> dict[str, list[RunSpec]]:
    """Runs of each file under ``benchmarks/results/compare`` that has this page's setting."""
    fmp, flat = ("fmp",), replace(RECORDED, lambda_s=0.0)
    unsmoothed = run_specs(names, fmp, ("vanilla",), splits=10, setting=flat)
    unsmoothed += run_specs(names, fmp, ("vanilla",), splits=3, targets="all", setting=flat)
    table = run_specs(names, NETWORKS, STRATEGIES, splits=10, setting=RECORDED)
    table += papers_fmp(names, RECORDED, splits=10)
    in_paper = [name for name in names if name == "nba"]  # of FairGNN, the whole files
    return {
        "table": table,
        "fairgnn": GRIDS["table1"]([f"{name}+fairgnn" for name in in_paper], splits=5),
        "unsmoothed": list(dict.fromkeys(unsmoothed)),
        "pareto": GRIDS["pareto"](names),
        "hyperparameters": GRIDS["hyperparameters"](names),
    }


def _names(options: argparse.Namespace) -> list[str]:
    """Names of the graphs, by default all in the folder."""
    names = options.data.split(",") if options.data else []
    names = names or sorted(path.stem for path in Path(options.npz).glob("*.npz"))
    if not names:
        raise InputError("npz", f"{options.npz} has no .npz file", "write some with graph_files")
    return names


def _specs(options: argparse.Namespace) -> list[RunSpec]:
    if options.experiment:
        return GRIDS[options.experiment](_names(options))
    return run_specs(
        _names(options),
        parse_names("methods", options.methods, METHODS),
        parse_names("strategies", options.strategies, STRATEGIES),
        splits=options.splits,
        seeds=options.seeds,
        strengths=parse_strengths("strengths", options.strengths),
        targets=options.targets and parse_strengths("targets", options.targets),
        setting=Setting(**{field.name: getattr(options, field.name) for field in fields(Setting)}),
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Train a grid of methods on graphs that graph_files wrote.",
    )
    add = parser.add_argument
    add("--npz", required=True, help="folder of graphs, one NAME.npz each")
    text = "file of records (a folder for 'recorded'); an existing one is continued"
    add("--out", required=True, help=text)
    add("--data", help="names of graphs, separated by commas; by default all in --npz")
    text = "the grid of 'python -m experiments NAME', or all that the documentation shows"
    add("--experiment", choices=[*GRIDS, "recorded"], help=text)
    add("--only", help="of 'recorded', some files of records, separated by commas")
    add("--methods", default="all", help=", ".join(METHODS))
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
        parse: Callable[[str], Any] = PARSERS.get(field.name, type(default))
        add(option, dest=field.name, type=parse, default=default)
    return parser


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())

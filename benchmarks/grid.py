"""Run a grid of methods where only torch, PyG and scipy are installed.

    PYTHONPATH=src python benchmarks/grid.py --npz FOLDER --out records.jsonl
    PYTHONPATH=src python benchmarks/grid.py --npz FOLDER --experiment recorded --out FOLDER

Graphs come from ``.npz`` files that ``benchmarks/defaults.py --save`` wrote. ``fairmp compare`` and
``fairmp reproduce`` make tables and figures from the same records. ``recorded`` trains all that the
documentation's page on the comparison shows, in one go, and writes the files it is made from. On a
GPU, start NVIDIA's MPS first: many small networks then share it.
"""

from __future__ import annotations

import argparse
import ast
import gzip
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path

from fairmp.comparison import Record
from fairmp.comparison.compare import missing, read, run
from fairmp.comparison.grid import (
    BACKBONES,
    STRATEGIES,
    RunSpec,
    Setting,
    run_specs,
    specs_of_options,
)
from fairmp.errors import InputError
from fairmp.reproduction.grids import GRIDS, NETWORKS, RECORDED
from graph_files import from_npz


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a grid on a folder of ``.npz`` graphs, and return the exit status."""
    given = _parser().parse_args(arguments)
    start, done = time.perf_counter(), 0
    try:
        specs, files, out = _specs(given), {}, Path(given.out)
        if given.experiment == "recorded":
            files = recorded(list(dict.fromkeys(spec.data for spec in specs)))
            out = out / "records.jsonl"
        left = len(missing(specs, read(out), retry=given.retry))
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
        records = run(specs, load, out, **how, on_record=report)
    except InputError as error:
        _say(f"fairmp: {error}")
        return 2
    by_key = {record["key"]: record for record in records}
    for name, own in files.items():
        lines = [json.dumps(by_key[spec.key], ensure_ascii=False) + "\n" for spec in own]
        packed = gzip.compress("".join(lines).encode(), mtime=0)
        out.with_name(f"{name}.jsonl.gz").write_bytes(packed)
    failed = sum("failed" in record for record in records)
    _say(f"{len(records)} records in {out}" + f", {failed} failed" * bool(failed))
    return 0


def recorded(names: Sequence[str]) -> dict[str, list[RunSpec]]:
    """Runs of each file under ``benchmarks/results/compare`` that has this page's setting."""
    fmp, flat = ("fmp",), replace(RECORDED, lambda_s=0.0)
    unsmoothed = run_specs(names, fmp, ("vanilla",), splits=10, setting=flat)
    unsmoothed += run_specs(names, fmp, ("vanilla",), splits=3, targets="all", setting=flat)
    ranges = run_specs(
        names,
        ("fmp", "sgc", "gat"),
        ("regulariser", "adversary"),
        splits=3,
        strengths="all",
        setting=RECORDED,
    )
    return {
        "table": run_specs(names, NETWORKS, STRATEGIES, splits=10, setting=RECORDED),
        "unsmoothed": list(dict.fromkeys(unsmoothed)),
        "pareto": GRIDS["pareto"](names),
        "hyperparameters": GRIDS["hyperparameters"](names),
        "ranges": ranges,
    }


def _specs(given: argparse.Namespace) -> list[RunSpec]:
    names = given.data.split(",") if given.data else []
    names = names or sorted(path.stem for path in Path(given.npz).glob("*.npz"))
    if not names:
        raise InputError("npz", f"{given.npz} has no .npz file", "write some with defaults.py")
    if given.experiment == "recorded":
        return list(dict.fromkeys(spec for own in recorded(names).values() for spec in own))
    if given.experiment:
        return GRIDS[given.experiment](names)
    return specs_of_options(names, vars(given))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Train a grid of methods on graphs that defaults.py --save wrote.",
    )
    add = parser.add_argument
    add("--npz", required=True, help="folder of graphs, one NAME.npz each")
    text = "file of records (a folder for 'recorded'); an existing one is continued"
    add("--out", required=True, help=text)
    add("--data", help="names of graphs, separated by commas; by default all in --npz")
    text = "the grid of 'fairmp reproduce NAME', or all that the documentation shows"
    add("--experiment", choices=[*GRIDS, "recorded"], help=text)
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

"""``python -m fairmp.comparison.compare``: a grid without the program's dependencies."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path

from fairmp.comparison.compare import read, run
from fairmp.comparison.grid import BACKBONES, STRATEGIES, RunSpec, Setting, cells, listed, numbers
from fairmp.comparison.runner import Record
from fairmp.datasets.by_name import from_npz
from fairmp.errors import InputError
from fairmp.reproduction import hyperparameters, pareto, table1

_DEFAULTS = Setting()
EXPERIMENTS: dict[str, Callable[[Sequence[str]], list[RunSpec]]] = {
    "table1": table1.grid,
    "pareto": pareto.grid,
    "hyperparameters": hyperparameters.grid,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a grid on a folder of ``.npz`` graphs; return the exit status."""
    given = _parser().parse_args(arguments)
    try:
        grid = _grid(given)
        done = {record["key"] for record in read(given.out)}
        left = sum(cell.key not in done for cell in grid)
        _say(f"{len(grid)} cells, {len(grid) - left} done already")
        records = run(
            grid,
            partial(from_npz, folder=given.npz),
            given.out,
            workers=given.workers,
            device=given.device,
            retry=given.retry,
            on_record=_Teller(left).tell,
        )
    except InputError as error:
        _say(f"fairmp: {error}")
        return 2
    failed = sum("failed" in record for record in records)
    _say(f"{len(records)} records in {given.out}" + f", {failed} failed" * bool(failed))
    return 0


class _Teller:
    def __init__(self, left: int) -> None:
        self.left, self.seen, self.start = left, 0, time.perf_counter()

    def tell(self, record: Record) -> None:
        self.seen += 1
        spent = time.perf_counter() - self.start
        rest = spent / self.seen * max(self.left - self.seen, 0)
        failed = f" FAILED {record['failed']}" if "failed" in record else ""
        _say(
            f"{self.seen}/{self.left} {spent:.0f} s, {rest:.0f} s to go: "
            f"{record['data']}, {record['name']}, split {record['split']}{failed}"
        )


def _grid(given: argparse.Namespace) -> list[RunSpec]:
    names = given.data.split(",") if given.data else []
    names = names or sorted(path.stem for path in Path(given.npz).glob("*.npz"))
    if not names:
        raise InputError("npz", f"{given.npz} has no .npz file", "write some with graphs.save")
    if given.experiment:
        return EXPERIMENTS[given.experiment](names)
    return cells(
        names,
        listed(given.backbones, "backbones", BACKBONES),
        listed(given.strategies, "strategies", STRATEGIES),
        splits=given.splits,
        seeds=given.seeds,
        strengths=numbers(given.strengths, "strengths"),
        targets=None if given.targets is None else numbers(given.targets, "targets"),
        setting=Setting(**{field.name: getattr(given, field.name) for field in fields(Setting)}),
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m fairmp.comparison.compare",
        description="Train a grid of methods on graphs written by fairmp.datasets.by_name.save.",
    )
    parser.add_argument("--npz", required=True, help="folder of graphs, NAME.npz each")
    parser.add_argument("--out", required=True, help="file of records; an existing one goes on")
    parser.add_argument("--data", help="graphs, commas between; by default all in --npz")
    parser.add_argument(
        "--experiment",
        choices=EXPERIMENTS,
        help="the whole grid of 'fairmp reproduce NAME', in its own setting",
    )
    parser.add_argument("--backbones", default="all", help=", ".join(BACKBONES))
    parser.add_argument("--strategies", default="all", help=", ".join(STRATEGIES))
    parser.add_argument("--strengths", default="default", help="default, all, or 1,2,5")
    parser.add_argument("--targets", help="of fmp and thresholds: default, all, or 0,0.02")
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--retry", action="store_true", help="train failed cells again")
    for field in fields(Setting):
        default = getattr(_DEFAULTS, field.name)
        option = "--" + field.name.lower().replace("_", "-")
        parser.add_argument(option, dest=field.name, type=type(default), default=default)
    return parser


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)

"""Time a fit of ``FairClassifier()`` with five folds against one, by turns.

    OMP_NUM_THREADS=1 python -m benchmarks.folds german credit bail

All defaults but the number of folds, and no time budget, so that nothing is left out because the
machine is busy. The ratio is of the fastest fits, in processor time, after a first fit of each.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch_geometric.data import Data

from benchmarks import provenance
from fairmp import FairClassifier
from fairmp.datasets.by_name import from_files
from fairmp.training.run import versions

FOLDS = (1, 5)
NO_LIMIT = 1e9  # seconds


def seconds_of_fits(data: Data, rounds: int, split: int = 10) -> dict[int, list[float]]:
    """Processor seconds of fits, by the number of folds."""
    seconds: dict[int, list[float]] = {folds: [] for folds in FOLDS}
    for turn in range(rounds + 1):
        for folds in FOLDS:
            model = FairClassifier(folds=folds, time_budget=NO_LIMIT)
            begin = time.process_time()
            model.fit(data, seed=0, split_seed=split, bootstrap=0, progress=False)
            if turn:  # the first fit compiles and caches
                seconds[folds].append(time.process_time() - begin)
    return seconds


def ratio(seconds: dict[int, list[float]]) -> float:
    """Time of the fastest fit with five folds, over that with one."""
    one, five = (min(seconds[folds]) for folds in FOLDS)
    return five / one


def measure(names: Sequence[str], data_dir: Path | None, rounds: int) -> dict[str, Any]:
    """Time every graph."""
    graphs = {}
    for name in names:
        seconds = seconds_of_fits(from_files(name, data_dir), rounds)
        graphs[name] = {"seconds": seconds, "five_over_one": round(ratio(seconds), 2)}
        print(name, json.dumps(graphs[name]), flush=True)
    return graphs


def main() -> None:
    """Measure and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("graphs", nargs="*", default=["german", "credit", "bail"])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--data-dir", type=Path)
    results = Path(__file__).parent / "results" / "folds.json"
    parser.add_argument("--out", type=Path, default=results)
    options = parser.parse_args()
    record = {
        **provenance("models"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "versions": versions(),
        "graphs": measure(options.graphs, options.data_dir, options.rounds),
    }
    options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf8")


if __name__ == "__main__":
    main()

"""Time and memory of ``fairmp audit`` and ``fairmp train`` on large tables, by default settings.

    python -m benchmarks.large_tables [--rows 1500000] [--edges 5000000] [--only audit]

Each command is a process of its own. People of two groups know people like them; six numbers and
two categories say something about the label.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv

from benchmarks import provenance

COMMANDS: dict[str, list[str]] = {"audit": [], "train": ["--splits", "1"]}
NAMES = ["--id", "person", "--label", "hired", "--sensitive", "sex"]


def write_tables(folder: Path, rows: int, edges: int, seed: int = 0) -> tuple[Path, Path]:
    """Write people and their ties as CSV."""
    rng = np.random.default_rng(seed)
    group = rng.random(rows) < 0.4
    numbers = rng.normal(size=(rows, 6)) + 0.4 * group[:, None]
    score = numbers[:, :3].sum(1) + 0.5 * group + rng.normal(size=rows)
    ids = np.char.add("p", np.arange(rows).astype(str))
    columns = {"person": ids, "sex": np.where(group, "f", "m")}
    columns |= {f"n{k}": np.round(numbers[:, k], 3) for k in range(6)}
    columns |= {f"c{k}": rng.choice(["a", "b", "c"], rows) for k in range(2)}
    columns["hired"] = np.where(score > 0.8, "yes", "no")
    people, ties = folder / "people.csv", folder / "ties.csv"
    csv.write_csv(pa.table(columns), people)
    order = np.argsort(group + 0.1 * score)  # neighbours in this order are alike
    source = rng.integers(0, rows, edges)
    target = np.clip(source + rng.integers(-rows // 20, rows // 20, edges), 0, rows - 1)
    pairs = {"source": ids[order[source]], "target": ids[order[target]]}
    csv.write_csv(pa.table(pairs), ties)
    return people, ties


def measure(command: str, people: Path, ties: Path, out: Path) -> dict[str, Any]:
    """Run a command; its time and the largest memory of its process."""
    words = [sys.executable, "-m", "fairmp", command, "--nodes", str(people), *NAMES]
    words += ["--edges", str(ties), "--out", str(out), *COMMANDS[command]]
    start = time.perf_counter()
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    text = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(text)
    return {
        "wall_s": round(time.perf_counter() - start, 1),
        "processor_s": round(used.ru_utime + used.ru_stime, 1),
        "peak_gb": round(used.ru_maxrss / 1e6, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_500_000)
    parser.add_argument("--edges", type=int, default=5_000_000)
    parser.add_argument("--only", choices=COMMANDS, nargs="+", default=list(COMMANDS))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/large-tables.json"))
    options = parser.parse_args()
    record: dict[str, Any] = provenance("models")
    record |= {"rows": options.rows, "edge_rows": options.edges}
    with tempfile.TemporaryDirectory() as name:
        tables = write_tables(Path(name), options.rows, options.edges)
        for command in options.only:
            record[command] = measure(command, *tables, Path(name, command))
            print(command, record[command], flush=True)
    record |= {"cpus": os.cpu_count(), "load_average": round(os.getloadavg()[0], 1)}
    options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf8")


if __name__ == "__main__":
    main()

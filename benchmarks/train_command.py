"""Time `fairmp train` on a table against an older version: processor seconds, by turns.

    git worktree add --detach OLD 3f95737
    python -m benchmarks.train_command --before OLD --out benchmarks/results/train-command.json

15,000 rows and 14 columns, 60,000 edges; three splits of an MLP with FMP, two threads.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from experiments.provenance import code_hash
from fairmp.training.run import versions

HERE = Path(__file__).resolve().parents[1]


def write_tables(nodes: Path, edges: Path, rows: int) -> None:
    """Nodes of an id, a label, a group, six numbers and five categories; four edges for each."""
    random = np.random.default_rng(0)
    group = random.random(rows) < 0.4
    numbers = random.normal(size=(rows, 6)) + 0.5 * group[:, None]
    score = numbers[:, :3].sum(1) + group + random.normal(size=rows)
    kinds = random.integers(0, [3, 4, 6, 8, 12], (rows, 5))
    head = ["id", "hired", "sex", *(f"n{i}" for i in range(6)), *(f"c{i}" for i in range(5))]
    lines = [",".join(head)]
    for i in range(rows):
        values = [*(f"{value:.4f}" for value in numbers[i]), *(f"k{kind}" for kind in kinds[i])]
        lines.append(
            ",".join([f"p{i}", "yes" if score[i] > 1 else "no", "fm"[int(group[i])], *values])
        )
    nodes.write_text("\n".join(lines) + "\n")
    ends = random.integers(0, rows, (4 * rows, 2))
    edges.write_text("source,target\n" + "".join(f"p{i},p{j}\n" for i, j in ends))


def processor_seconds(root: Path, nodes: Path, edges: Path, out: Path, *extra: str) -> float:
    """Seconds of the processor that one command takes, with the processes that it starts."""
    options = ["--id", "id", "--label", "hired", "--sensitive", "sex", "--backbone", "mlp"]
    command = [sys.executable, "-m", "fairmp", "train", "--nodes", str(nodes), *options]
    command += ["--edges", str(edges), "--splits", "3", "--out", str(out), "--overwrite"]
    command += extra
    environment = {**os.environ, "PYTHONPATH": str(root / "src"), "OMP_NUM_THREADS": "2"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, env=environment, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, required=True, help="checkout of the older version")
    parser.add_argument("--rows", type=int, default=15_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    roots = {"before": options.before, "now": HERE}
    seconds: dict[str, list[float]] = {name: [] for name in roots}
    with tempfile.TemporaryDirectory() as folder:
        tables = Path(folder, "people.csv"), Path(folder, "friends.csv")
        write_tables(*tables, options.rows)
        for name, root in roots.items():  # compile
            processor_seconds(root, *tables, Path(folder, name), "--epochs", "2")
        for _ in range(options.rounds):
            for name, root in roots.items():
                seconds[name].append(processor_seconds(root, *tables, Path(folder, name)))
                print(name, f"{seconds[name][-1]:.1f} s", flush=True)
    commit = ["git", "-C", str(options.before), "rev-parse", "HEAD"]
    result = {
        "command": "python -m benchmarks.train_command --before OLD",
        "code": code_hash("models"),
        "before": subprocess.run(commit, check=True, capture_output=True, text=True).stdout.strip(),
        "rows": options.rows,
        "columns": 14,
        "splits": 3,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "versions": versions(),
        "processor_seconds": seconds,
        "before_over_now": round(min(seconds["before"]) / min(seconds["now"]), 2),
    }
    print("before / now:", result["before_over_now"])
    if options.out:
        options.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()

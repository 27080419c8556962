"""Time forward and backward of `FMP`, and a whole fit, of this checkout and of another, by turns.

git worktree add /tmp/before REVISION
OMP_NUM_THREADS=1 python -m benchmarks.layer --before /tmp/before/src \
    --out benchmarks/results/layer.json

Each version runs in a process of its own; the processes take turns, and the fastest call of each
counts, in processor time on a CPU, which other programs disturb less. Graphs are random, with
degrees that follow a power law.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import time
from pathlib import Path

# Nodes, directed edges, classes, groups, and whether only the softmax is asked for, as in training.
CASES = {
    "20,000 nodes": (20_000, 360_000, 2, 2, False),
    "20,000 nodes, softmax only": (20_000, 360_000, 2, 2, True),
    "67,796 nodes": (67_796, 1_235_916, 2, 2, False),
    "67,796 nodes, softmax only": (67_796, 1_235_916, 2, 2, True),
    "20,000 nodes, 3 classes, 3 groups": (20_000, 360_000, 3, 3, False),
    "67,796 nodes, 3 classes, 3 groups": (67_796, 1_235_916, 3, 3, False),
}
FIT = "fit of 40 epochs, 20,000 nodes"


def random_edges(nodes: int, edges: int):
    import torch

    ends = (torch.rand(2, edges // 2).square() * nodes).long()
    ends = torch.randperm(nodes)[ends]  # popular nodes are not neighbours in memory
    return torch.cat([ends, ends.flip(0)], 1)


def whole_fit(device: str):
    """Train an MLP under FMP, and validate and evaluate it."""
    import torch
    from torch_geometric.data import Data

    from fairmp import FMP, FairClassifier
    from fairmp.datasets.splits import with_split

    nodes, columns, density = 20_000, 276, 0.15
    x = torch.rand(nodes, columns) * (torch.rand(nodes, columns) < density)
    y = (x[:, :5].sum(1) + 0.3 * torch.randn(nodes) > 0.4).long()
    data = Data(x, random_edges(nodes, 360_000), y=y, sens=torch.randint(2, (nodes,)))
    data = with_split(data, seed=0)

    def call() -> None:
        model = FairClassifier(
            FMP(), backbone="mlp", hidden=64, dropout=0.0, epochs=40, patience=None, device=device
        )
        model.fit(data, bootstrap=0, progress=False)

    return call


def worker(device: str, learned: bool) -> None:
    """Time one case per line of standard input."""
    import torch

    from fairmp import FMP

    calls = {}
    for name, (nodes, edges, classes, groups, softmax_only) in CASES.items():
        torch.manual_seed(0)
        edge_index = random_edges(nodes, edges).to(device)
        sens = torch.randint(groups, (nodes,)).to(device)
        x = torch.randn(nodes, classes)
        x[:, 0] += 0.5 * sens.cpu()
        x = x.to(device).requires_grad_()
        grad = torch.randn(nodes, classes).to(device)
        layer = FMP(lambda_s="learned" if learned else 1.0, target=0.01).to(device)

        def call(x=x, e=edge_index, s=sens, g=grad, layer=layer, only=softmax_only):
            layer(x, e, s, softmax_only=only).backward(g)
            x.grad = None

        calls[name] = call
    calls[FIT] = whole_fit(device)
    synchronise = torch.cuda.synchronize if device == "cuda" else (lambda: None)
    clock = time.perf_counter if device == "cuda" else time.process_time
    print("ready", flush=True)
    for line in sys.stdin:
        name, repeats = line.rstrip("\n").split("|")
        times = []
        for _ in range(int(repeats)):
            synchronise()
            begin = clock()
            calls[name]()
            synchronise()
            times.append(1e3 * (clock() - begin))
        print(json.dumps(times), flush=True)


class Version:
    """A process that times calls of one version of the package."""

    def __init__(self, source: Path, options: list[str]) -> None:
        environment = {**os.environ, "PYTHONPATH": str(source)}
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--worker", *options],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout.readline() == "ready\n"

    def time(self, name: str, repeats: int) -> list[float]:
        """Return the seconds of each call."""
        self.process.stdin.write(f"{name}|{repeats}\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, help="the src folder of the other version")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--learned", action="store_true", help="learn the strength of smoothing")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments.device, arguments.learned)
        return
    options = ["--device", arguments.device] + ["--learned"] * arguments.learned
    here = Path(__file__).parents[1] / "src"
    versions = {"before": Version(arguments.before, options), "now": Version(here, options)}
    figures = {}
    print(f"{'':36}{'before':>9}{'now':>9}{'ratio':>9}{'medians':>9}   (ms)")
    for name in (*CASES, FIT):
        repeats = 1 if name == FIT else 5
        for version in versions.values():
            version.time(name, repeats)
        times = {version: [] for version in versions}
        for _ in range(arguments.rounds):
            for version, process in versions.items():
                times[version] += process.time(name, repeats)
        best = {version: min(values) for version, values in times.items()}
        middle = {version: statistics.median(values) for version, values in times.items()}
        ratio, medians = best["now"] / best["before"], middle["now"] / middle["before"]
        figures[name] = {"milliseconds": best, "ratio": ratio, "median_milliseconds": middle}
        print(f"{name:36}{best['before']:9.2f}{best['now']:9.2f}{ratio:9.2f}{medians:9.2f}")
    if arguments.out:
        record = {
            "command": shlex.join(["python", "-m", "benchmarks.layer", *sys.argv[1:]]),
            "figures": figures,
        }
        arguments.out.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()

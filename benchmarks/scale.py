"""Time and memory per edge, from 10⁵ to 10⁸ directed edges, and a forward pass over 10⁹.

python -m benchmarks.scale --out benchmarks/results/scale.json
python -m benchmarks.scale --billion FOLDER --out benchmarks/results/billion.json

Each size runs in a process of its own, so that its peak memory is its own. The billion edges are
first written to FOLDER (4.2 GB, deleted afterwards) and then read from there memory-mapped.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from torch_geometric.nn import MLP

from benchmarks import provenance
from experiments.random_graphs import constant_degree, regular_graph
from fairmp import FMP
from fairmp.groups import group_operator
from fairmp.nn.chunked import chunked
from fairmp.training.run import versions

DEGREE, FEATURES, STEPS = 20, 16, 5
SIZES = (10**5, 10**6, 10**7, 10**8)
BILLION = 10**9


def peak() -> int:
    """Peak memory of this process, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def groups_of(nodes: int) -> torch.Tensor:
    return (torch.arange(nodes, dtype=torch.int32) % 5 < 2).int()


def train(edges: int) -> dict[str, float]:
    """Train for a few epochs on a graph of this many edges; in this process."""
    warm = regular_graph(1000, DEGREE)
    layer = FMP(STEPS, 3.0)
    layer(torch.randn(1000, 2, requires_grad=True), warm, groups_of(1000)).sum().backward()
    before = peak()
    nodes = edges // DEGREE
    start = time.perf_counter()
    graph = regular_graph(nodes, DEGREE)
    seconds_made = time.perf_counter() - start
    torch.manual_seed(0)
    x = torch.randn(nodes, FEATURES)
    sens = groups_of(nodes)
    y = (x[:, 0] + sens > 0.4).long()
    delta = group_operator(sens, torch.arange(nodes) % 2 == 0)
    network = MLP([FEATURES, 64, 2], norm=None)
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-2)
    times = []
    for _ in range(5 if edges < 10**8 else 3):
        start = time.perf_counter()
        optimiser.zero_grad()
        logits = layer(chunked(network, x, 2**14), graph, delta)
        cross_entropy(logits, y).backward()
        optimiser.step()
        times.append(time.perf_counter() - start)
    features = x.numel() * x.element_size()
    return {
        "directed_edges": nodes * DEGREE,
        "nodes": nodes,
        "seconds_made": seconds_made,
        "seconds_epoch": min(times),
        "nanoseconds_an_edge": 1e9 * min(times) / (nodes * DEGREE),
        "peak_bytes_an_edge_beside_features": (peak() - before - features) / (nodes * DEGREE),
    }


def write(folder: Path, edges: int) -> None:
    """Write the columns of a graph of one degree, block by block."""
    nodes = edges // DEGREE
    generator = torch.Generator().manual_seed(0)
    there, back = [], []
    for _ in range(DEGREE // 2):
        permutation = torch.randperm(nodes, generator=generator).numpy().astype(np.int32)
        inverse = np.empty_like(permutation)
        inverse[permutation] = np.arange(nodes, dtype=np.int32)
        there.append(permutation)
        back.append(inverse)
    with open(folder / "col.bin", "wb") as file:
        for first in range(0, nodes, 2**20):
            block = slice(first, min(first + 2**20, nodes))
            self_loops = np.arange(block.start, block.stop, dtype=np.int32)
            file.write(np.stack([*(c[block] for c in there + back), self_loops], 1).tobytes())


def forward(folder: Path, edges: int) -> dict[str, float]:
    """One forward pass on columns that are mapped into memory."""
    nodes = edges // DEGREE
    col = np.memmap(folder / "col.bin", np.int32, mode="c")
    graph = constant_degree(torch.arange(nodes + 1) * (DEGREE + 1), torch.from_numpy(col), DEGREE)
    sens = groups_of(nodes)
    torch.manual_seed(0)
    x = torch.randn(nodes, 2)
    x[:, 1] += sens
    delta = group_operator(sens)
    times = []
    with torch.no_grad():
        for _ in range(2):
            start = time.perf_counter()
            solution = FMP(STEPS, 3.0).solve(x, graph, delta)
            times.append(time.perf_counter() - start)
    return {
        "directed_edges": nodes * DEGREE,
        "nodes": nodes,
        "seconds_first_forward": times[0],
        "seconds_forward": times[1],
        "gap_left": float(delta.gap(solution.f.softmax(1)).abs().max()),
        "peak_gigabytes": peak() / 1e9,
    }


def in_process(*arguments: str) -> dict[str, float]:
    """Run this module in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.scale", *arguments],
        check=True,
        capture_output=True,
        text=True,
    )
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--largest", type=float, default=1e8)
    parser.add_argument("--billion", type=Path, help="folder for 4.2 GB")
    parser.add_argument("--edges", type=float, default=BILLION, help="for --billion")
    parser.add_argument("--train", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--forward", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    edges = int(options.edges)
    if options.train:
        print(json.dumps(train(options.train)))
        return
    if options.write:
        write(options.write, edges)
        print("{}")
        return
    if options.forward:
        print(json.dumps(forward(options.forward, edges)))
        return
    result: dict[str, object] = {
        **provenance("layer"),
        "machine": {"cpu": platform.machine(), "cores": os.cpu_count()},
        "threads": torch.get_num_threads(),
        "versions": versions(),
        "degree": DEGREE,
        "features": FEATURES,
    }
    if options.billion:
        options.billion.mkdir(parents=True, exist_ok=True)
        try:
            in_process("--write", str(options.billion), "--edges", str(edges))
            result["forward"] = in_process("--forward", str(options.billion), "--edges", str(edges))
        finally:
            (options.billion / "col.bin").unlink(missing_ok=True)
        print(result["forward"])
    else:
        trainings = []
        for size in (size for size in SIZES if size <= options.largest):
            trainings.append(in_process("--train", str(size)))
            print(trainings[-1], flush=True)
        result["training"] = trainings
        by_size = {int(row["directed_edges"]): row["nanoseconds_an_edge"] for row in trainings}
        if 10**8 in by_size:
            result["time_an_edge_1e8_over_1e6"] = by_size[10**8] / by_size[10**6]
    if options.out:
        options.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""Time the numba kernels against plain torch on the CPU; print them, and write them as JSON.

    python -m benchmarks.kernels_cpu [--threads 2] [--classes 2] [--repeat 200] [--out FILE]

A random graph of Pokec-z's size: 67,796 nodes, 1,235,916 directed edges with degrees that follow a
power law, and one self-loop per node. The two take turns, and the fastest call of each counts. GB/s
is the least that a primitive has to read and write, with a neighbour's logits counted at each
visit, over its time.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

from benchmarks import provenance
from fairmp.groups import group_operator
from fairmp.kernels import reference
from fairmp.kernels.cpu import primitives as cpu
from fairmp.kernels.types import CSR, NO_CLIP, BinaryProblem, Matrix
from fairmp.training.run import versions

NODES, EDGES, GROUPS, UNITS = 67_796, 1_235_916, 2, 64
Call = Callable[[ModuleType], Tensor]


def network() -> tuple[Tensor, Tensor]:
    """Row pointers (int64) and columns (int32), each row's in ascending order."""
    torch.manual_seed(0)
    ends = (torch.rand(2, EDGES // 2).square() * NODES).long()
    # Popular nodes are not neighbours in memory.
    ends = torch.randperm(NODES)[ends]
    loops = torch.arange(NODES).expand(2, -1)
    row, col = torch.cat([ends, ends.flip(0), loops], 1)
    order = (row * NODES + col).argsort()
    counts = torch.bincount(row, minlength=NODES)
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)]), col[order].int()


def calls(classes: int) -> dict[str, tuple[Call, int]]:
    """Each primitive on the same numbers, and the bytes it has to move."""
    row, col = network()
    scale = row.diff().float().rsqrt()
    z, g = torch.randn(NODES, classes), torch.randn(NODES, classes)
    codes = torch.randint(-1, GROUPS, (NODES,), dtype=torch.int32)
    shift, w = torch.randn(2, GROUPS, classes, dtype=torch.float64)
    units, weight = torch.randn(NODES, UNITS).relu(), torch.randn(classes, UNITS)
    # torch needs integers of one type and values; converting them is not timed.
    matrices = {
        reference: Matrix(CSR(row.int(), col, torch.ones(col.numel())), scale, scale),
        cpu: Matrix(CSR(row, col), scale, scale),
    }
    groups = group_operator(torch.randint(-1, 2, (NODES,))).binary
    problem = BinaryProblem(z[:, :2].contiguous(), groups, 1.0, target=0.01, tolerance=1e-7)
    slope = cpu.binary_root(problem, None).slope
    pair = g[:, :2].contiguous()
    table, label = 4 * NODES * classes, 4 * NODES
    edges = col.numel() * (4 + 4 * classes) + 8 * NODES + 2 * label
    return {
        # F is read, and written once scaled.
        "aggregate": (
            lambda kernels: kernels.aggregate(matrices[kernels], z, g, 0.25),
            edges + 4 * table,
        ),
        "moments": (lambda kernels: kernels.moments(z, codes, shift, 1.0), table + label),
        "shift": (lambda kernels: kernels.shift(z, codes, shift), 2 * table + label),
        "segment_sum": (lambda kernels: kernels.segment_sum(z, codes, GROUPS), table + label),
        "softmax_vjp": (
            lambda kernels: kernels.softmax_vjp(g, z, codes, shift, 1.0, w),
            3 * table + label,
        ),
        "binary_root": (
            lambda kernels: kernels.binary_root(problem, None).slope,
            8 * NODES + label,
        ),
        "shift_margins": (
            lambda kernels: kernels.shift_margins(pair, groups, 0.3, NO_CLIP),
            24 * NODES,
        ),
        "shift_margins_vjp": (
            lambda kernels: kernels.shift_margins_vjp(pair, groups, slope, 0.3),
            28 * NODES,
        ),
        "linear_relu_backward": (
            lambda kernels: kernels.linear_relu_backward(g, units, weight)[0],
            table + 2 * 4 * NODES * UNITS,
        ),
    }


def milliseconds(call: Call, kernels: ModuleType, times: int) -> float:
    best = float("inf")
    for _ in range(times):
        start = time.perf_counter()
        call(kernels)
        best = min(best, time.perf_counter() - start)
    return 1e3 * best


def measure(call: Call, repeat: int) -> tuple[float, float]:
    call(cpu), call(reference)
    ours = plain = float("inf")
    for _ in range(10):
        ours = min(ours, milliseconds(call, cpu, -(-repeat // 10)))
        plain = min(plain, milliseconds(call, reference, -(-repeat // 100)))
    return ours, plain


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--classes", type=int, default=2, help="torch needs n·C² numbers")
    parser.add_argument("--repeat", type=int, default=200, help="calls; the fastest counts")
    parser.add_argument("--out", type=Path, help="where to write the figures as JSON")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)

    figures = {}
    print(f"{'primitive':20} {'numba ms':>9} {'torch ms':>9} {'ratio':>6} {'GB/s':>6}")
    for name, (call, moved) in calls(arguments.classes).items():
        ours, plain = measure(call, arguments.repeat)
        figures[name] = {
            "ms": round(ours, 4),
            "torch_ms": round(plain, 4),
            "ratio": round(plain / ours, 1),
            "gb_per_s": round(moved / ours / 1e6, 2),
        }
        print(f"{name:20} {ours:9.3f} {plain:9.3f} {plain / ours:6.1f} {moved / ours / 1e6:6.2f}")
    if arguments.out is None:
        return
    record = {
        **provenance("layer"),
        "nodes": NODES,
        "edges": EDGES,
        "classes": arguments.classes,
        "threads": arguments.threads,
        "cpus": os.cpu_count(),
        "versions": versions(),
        "figures": figures,
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""Time the Triton kernels against plain torch on the same device; write the figures as JSON.

    python -m benchmarks.gpu_kernels --out benchmarks/results/gpu_kernels.json

Two sizes: Pokec-z's, where launching counts, and ten million nodes with a heavy tail of degrees,
where memory does. ``ms`` and ``torch_ms`` are calls one after the other, as a program makes them;
``host_us`` is what a call costs the host, and ``device_us`` what it costs the device, replayed from
a recording. Where the host's is the larger, a call takes that long, and recording it pays.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

from experiments.provenance import code_hash
from fairmp.groups import group_operator
from fairmp.kernels import reference
from fairmp.kernels.cuda import primitives as cuda
from fairmp.kernels.types import CSR, NO_CLIP, BinaryProblem, Matrix
from fairmp.training.run import versions

SIZES = {"pokec-z": (67_796, 1_235_916), "heavy tail": (10_000_000, 160_000_000)}
Calls = dict[str, Callable[[ModuleType], Tensor]]


def heavy_tailed(n: int, edges: int) -> tuple[Tensor, Tensor]:
    """Degrees that fall as a power, with one hub of a million where there is room for it."""
    length = torch.rand(n, device="cuda").pow(-0.5).clamp_max(n / 4)
    length = (length * (edges / length.sum())).long()
    length[n // 2] = min(10**6, n // 4)
    row = torch.cat([length.new_zeros(1), length.cumsum(0)])
    return row, torch.randint(0, n, (int(row[-1]),), device="cuda", dtype=torch.int32)


def calls(n: int, edges: int, classes: int) -> Calls:
    """Each primitive on the same numbers, as a function of the implementation."""
    row, col = heavy_tailed(n, edges)
    scale = (1.0 + row.diff()).rsqrt()
    z, g = (torch.randn(n, classes, device="cuda") for _ in range(2))
    codes = torch.randint(-1, 2, (n,), device="cuda", dtype=torch.int32)
    shift, w = (torch.randn(2, classes, device="cuda", dtype=torch.float64) for _ in range(2))
    # torch multiplies with integers of one type only; it gets them, and does not pay for that.
    plain = row.int() if col.numel() < 2**31 else row
    ones = torch.ones(col.numel(), device="cuda")
    matrices = {
        reference: Matrix(CSR(plain, col, ones), scale, scale),
        cuda: Matrix(CSR(row, col), scale, scale),
    }
    return {
        "aggregate": lambda kernels: kernels.aggregate(matrices[kernels], z, g, 0.25),
        "moments": lambda kernels: kernels.moments(z, codes, shift, 1.0),
        "shift": lambda kernels: kernels.shift(z, codes, shift),
        "segment_sum": lambda kernels: kernels.segment_sum(g, codes, 2),
        "softmax_vjp": lambda kernels: kernels.softmax_vjp(g, z, codes, shift, 1.0, w),
    }


def binary(n: int) -> dict[str, Callable[[], object]]:
    """What only the kernels for two classes and one gap do."""
    z, g = (torch.randn(n, 2, device="cuda") for _ in range(2))
    sens = torch.randint(-1, 2, (n,), device="cuda")
    z[:, 1] += sens
    groups = group_operator(sens).binary
    problem = BinaryProblem(z, groups, temperature=1.0, target=0.01, tolerance=1e-7)
    root = cuda.binary_root(problem, None)
    return {
        "binary_root": lambda: cuda.binary_root(problem, None),
        "binary_root, warm": lambda: cuda.binary_root(problem, root.u),
        "shift_margins": lambda: cuda.shift_margins(z, groups, root.u, NO_CLIP),
        "shift_margins_vjp": lambda: cuda.shift_margins_vjp(g, groups, root.slope, root.u),
    }


def timed(call: Callable[[], object], repeats: int) -> dict[str, float]:
    """Median time on the device, and what a call costs the host, after a warm-up."""
    call()
    torch.cuda.synchronize()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    marks[0].record()
    for mark in marks[1:]:
        call()
        mark.record()
    torch.cuda.synchronize()
    times = sorted(a.elapsed_time(b) for a, b in pairwise(marks))
    begin = time.perf_counter()
    for _ in range(repeats):
        call()
    host = (time.perf_counter() - begin) / repeats
    torch.cuda.synchronize()
    return {"ms": times[len(times) // 2], "host_us": 1e6 * host}


def replayed(call: Callable[[], object], repeats: int) -> float:
    """Time on the device alone, in µs."""
    recording = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recording):
        for _ in range(10):
            call()
    return 100 * timed(recording.replay, repeats)["ms"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/gpu_kernels.json"))
    out = parser.parse_args().out
    if not torch.cuda.is_available():
        sys.exit("no CUDA device here")
    torch.manual_seed(0)
    timings: dict[str, dict[str, object]] = {}
    for size, (n, edges) in SIZES.items():
        repeats = 100 if n < 10**6 else 10
        for classes in (2, 7):
            for name, call in calls(n, edges, classes).items():
                ours, torchs = call(cuda).double(), call(reference).double()
                cuda_time = timed(lambda call=call: call(cuda), repeats)
                torch_time = timed(lambda call=call: call(reference), repeats)
                timings[f"{name}, {classes} classes, {size}"] = {
                    **cuda_time,
                    "device_us": replayed(lambda call=call: call(cuda), repeats),
                    "torch_ms": torch_time["ms"],
                    "torch_over_ours": torch_time["ms"] / cuda_time["ms"],
                    "relative_difference": float((ours - torchs).abs().max() / torchs.abs().max()),
                }
        for name, function in binary(n).items():
            timings[f"{name}, {size}"] = {
                **timed(function, repeats),
                "device_us": replayed(function, repeats),
            }
    result = {
        "command": "python -m benchmarks.gpu_kernels",
        "code": code_hash("layer"),
        "device": torch.cuda.get_device_name(),
        "versions": versions(),
        "sizes": SIZES,
        "kernels": timings,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n")
    for name, figures in timings.items():
        print(f"{name:44}", "  ".join(f"{k} {v:.3g}" for k, v in figures.items()))


if __name__ == "__main__":
    main()

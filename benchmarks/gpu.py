"""Hold the layer on CUDA to the CPU, and time one training epoch; write the figures as JSON.

    python benchmarks/gpu.py --out benchmarks/results/gpu.json

Times are ratios to an MLP and to PyG's APPNP in the same run, at Pokec-z's size.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch_geometric.nn import APPNP

from fairmp import FMP, PPR
from fairmp.models import Graph, Network, build
from fairmp.persistence import versions
from fairmp.propagation import SOLVERS

N, DIRECTED_EDGES, FEATURES = 67_796, 1_235_916, 276


def agreement() -> list[dict[str, object]]:
    """Compare the layer and its gradient on CUDA with the CPU, for every solver and precision."""
    generator = torch.Generator().manual_seed(1)
    n = 5000
    half = torch.randint(0, n, (2, 40_000), generator=generator)
    edges = torch.cat([half, half.flip(0)], 1)
    sens = torch.randint(-1, 3, (n,), generator=generator)
    rows: list[dict[str, object]] = []
    for dtype in (torch.float32, torch.float64):
        x = torch.randn(n, 3, generator=generator, dtype=dtype)
        x[:, 1] += sens.to(dtype)
        weights = torch.randn(n, 3, generator=generator, dtype=dtype)
        for solver in SOLVERS:
            layer = FMP(5, 3.0, 0.5, solver, 0.01)
            found = []
            for device in ("cpu", "cuda"):
                leaf = x.to(device).detach().requires_grad_()
                f = layer(leaf, edges.to(device), sens.to(device))
                (f * weights.to(device)).sum().backward()
                assert leaf.grad is not None
                found.append((f.detach().cpu().double(), leaf.grad.cpu().double()))
            output, gradient = (
                float((one - other).abs().max() / one.abs().max())
                for one, other in zip(*found, strict=True)
            )
            rows.append(
                {
                    "solver": solver,
                    "dtype": str(dtype).removeprefix("torch."),
                    "output_error": output,
                    "gradient_error": gradient,
                }
            )
    return rows


def compiled() -> dict[str, float]:
    """Compare the compiled layer with the plain one."""
    torch.manual_seed(0)
    n = 5000
    half = torch.randint(0, n, (2, 40_000), device="cuda")
    edges, sens = torch.cat([half, half.flip(0)], 1), torch.arange(n, device="cuda") % 2
    layer = FMP(5, 3.0)
    x = torch.randn(n, 2, device="cuda", requires_grad=True)
    y = x.detach().clone().requires_grad_()
    f, g = torch.compile(layer)(x, edges, sens), layer(y, edges, sens)
    f.square().sum().backward()
    g.square().sum().backward()
    assert x.grad is not None
    assert y.grad is not None
    return {
        "output_error": float((f - g).detach().abs().max()),
        "gradient_error": float((x.grad - y.grad).abs().max()),
    }


class _Appnp(torch.nn.Module):
    """PyG's APPNP, called like our propagations."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = APPNP(5, 0.25)

    def forward(
        self, x: torch.Tensor, edge_index: torch.Tensor, *_: torch.Tensor | None
    ) -> torch.Tensor:
        return self.layer(x, edge_index)


def epochs() -> dict[str, float]:
    """Time an epoch (forward, backward, step) of each network, best of several, in ms."""
    torch.manual_seed(0)
    half = torch.randint(0, N, (2, DIRECTED_EDGES // 2), device="cuda")
    graph = Graph(torch.cat([half, half.flip(0)], 1), N)
    x = torch.randn(N, FEATURES, device="cuda")
    y, sens = (torch.randint(0, 2, (N,), device="cuda") for _ in range(2))
    propagations: dict[str, Callable[[], torch.nn.Module | None]] = {
        "MLP": lambda: None,
        "MLP + PPR": lambda: PPR(5, 3.0),
        **{f"FMP, {s}": lambda s=s: FMP(5, 3.0, solver=s) for s in SOLVERS},
        "MLP + PyG APPNP": _Appnp,
    }
    times = {}
    for name, make in propagations.items():
        network: Network = build(in_channels=FEATURES, out_channels=2, propagation=make()).cuda()
        optimiser = torch.optim.Adam(network.parameters())
        best = float("inf")
        for _ in range(20):
            torch.cuda.synchronize()
            start = time.perf_counter()
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(network(x, graph, sens), y).backward()
            optimiser.step()
            torch.cuda.synchronize()
            best = min(best, time.perf_counter() - start)
        times[name] = 1000 * best
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/gpu.json"))
    out = parser.parse_args().out
    if not torch.cuda.is_available():
        sys.exit("benchmarks/gpu.py: no CUDA device here")
    times = epochs()
    result = {
        "command": "python benchmarks/gpu.py",
        "device": torch.cuda.get_device_name(),
        "versions": versions(),
        "cuda_against_cpu": agreement(),
        "compiled_against_plain": compiled(),
        "epoch_ms": times,
        "epoch_relative_to_mlp": {name: t / times["MLP"] for name, t in times.items()},
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n")
    print(json.dumps(result, indent=2, ensure_ascii=False))


if __name__ == "__main__":
    main()

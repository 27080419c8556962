"""Seconds of one training epoch, network by network, in turns on one machine."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch_geometric.data import Data
from torch_geometric.nn import APPNP, GAT, GCN, MLP, SGConv
from torch_geometric.utils import to_torch_csr_tensor

from fairmp.display import bar
from fairmp.graph import normalise
from fairmp.groups import group_operator
from fairmp.kernels import implementation
from fairmp.nn.dense import Dense
from fairmp.nn.fmp import FMP, PPR, Solver
from fairmp.postprocessing.solver import debias
from fairmp.training.run import versions

HIDDEN, CLASSES, STEPS = 64, 2, 5
LAMBDA_S = 3.0
MLP_ALONE, PLAIN, FAIR = "MLP", "MLP + plain propagation", "MLP + FMP (projection)"

Epoch = Callable[[], object]


class GraphNetwork(nn.Module):
    """A graph network called with the features alone."""

    def __init__(self, model: nn.Module, edge_index: Tensor) -> None:
        super().__init__()
        self.model, self.edge_index = model, edge_index

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        logits: Tensor = self.model(x, self.edge_index)
        return logits


class Propagated(nn.Module):
    """An MLP whose logits are propagated."""

    def __init__(self, model: nn.Module, propagate: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.model, self.propagate = model, propagate

    def forward(self, x: Tensor) -> Tensor:
        """Return the propagated logits."""
        return self.propagate(self.model(x))


def networks(data: Data) -> dict[str, Callable[[], nn.Module]]:
    """A function for each network that builds it, to be called with x."""
    n, d = data.x.shape
    edges = data.edge_index
    adjacency = normalise(edges, n)
    groups = group_operator(data.sens, data.train_mask)
    our_mlp = partial(Dense, [d, HIDDEN, CLASSES])
    pyg_mlp = partial(MLP, [d, HIDDEN, CLASSES], norm=None)

    def plain() -> nn.Module:
        layer = PPR(STEPS, LAMBDA_S)
        return Propagated(our_mlp(), lambda logits: layer(logits, adjacency))

    def fair(solver: Solver) -> nn.Module:
        layer = FMP(STEPS, LAMBDA_S, 10.0, solver)
        return Propagated(our_mlp(), lambda logits: layer(logits, adjacency, groups))

    def appnp(graph: Tensor, cached: bool = False) -> nn.Module:
        layer = APPNP(STEPS, 1 / (1 + LAMBDA_S), cached=cached)
        return Propagated(pyg_mlp(), lambda logits: layer(logits, graph))

    return {
        MLP_ALONE: our_mlp,
        PLAIN: plain,
        FAIR: lambda: fair("projection"),
        "MLP + FMP (papc)": lambda: fair("papc"),
        "MLP + FMP (paper)": lambda: fair("paper"),
        "PyG MLP": pyg_mlp,
        "PyG MLP + APPNP, edge_index": lambda: appnp(edges),
        "PyG MLP + APPNP, cached": lambda: appnp(edges, cached=True),
        "PyG MLP + APPNP, sparse tensor": lambda: appnp(to_torch_csr_tensor(edges, size=(n, n))),
        "PyG GCN": lambda: GraphNetwork(GCN(d, HIDDEN, 2, CLASSES, cached=True), edges),
        "PyG SGC": lambda: GraphNetwork(SGConv(d, CLASSES, K=2), edges),
        "PyG GAT": lambda: GraphNetwork(GAT(d, HIDDEN, 2, CLASSES, heads=4), edges),
    }


def _epoch(network: nn.Module, data: Data) -> Epoch:
    network = network.to(data.x.device)
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-2)
    y = data.y[data.train_mask]

    def run() -> None:
        optimiser.zero_grad()
        cross_entropy(network(data.x)[data.train_mask], y).backward()
        optimiser.step()

    return run


def time_in_turns(
    runs: Mapping[str, Epoch],
    *,
    rounds: int = 10,
    device: str = "cpu",
    on_round: Callable[[str], None] = lambda name: None,
) -> dict[str, list[float]]:
    """Seconds of each run; runs take turns, so that other load on the machine affects all alike."""
    repeat = 20 if device == "cuda" else 1
    # Other load does not add to the seconds of the processor, if one thread does it all.
    alone = device == "cpu" and torch.get_num_threads() == 1
    clock = time.process_time if alone else time.perf_counter

    def timed(run: Epoch, times: int) -> float:
        start = clock()
        for _ in range(times):
            run()
        if device == "cuda":
            torch.cuda.synchronize()
        return (clock() - start) / times

    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            warm_up = timed(run, 1)  # fills the caches
            # Up to five times, half a second together.
            in_half_a_second = int(0.5 / max(repeat * warm_up, 1e-9))
            for _ in range(min(max(in_half_a_second, 1), 5)):
                seconds[name].append(timed(run, repeat))
            on_round(name)
    return seconds


def measure(data: Data, *, rounds: int = 15, device: str = "cpu") -> dict[str, Any]:
    """Time an epoch of every network, and ``debias``; return a dictionary for JSON."""
    data = data.to(device)
    x = data.x
    runs = {name: _epoch(build(), data) for name, build in networks(data).items()}
    with bar(rounds * len(runs), "timing") as advance:
        times = time_in_turns(runs, rounds=rounds, device=device, on_round=advance)
    # Ratios are of the fastest epochs: other load on a machine only adds to a time.
    fastest = {name: min(seconds) for name, seconds in times.items()}
    return {
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "gpu": torch.cuda.get_device_name() if device == "cuda" else None,
        },
        "versions": versions(),
        "kernels": implementation(x).__name__,
        "graph": {
            "name": data.name,
            "nodes": x.size(0),
            "directed_edges": data.edge_index.size(1),
            "features": x.size(1),
            "density": float((x != 0).double().mean()),
        },
        "milliseconds": {name: 1e3 * seconds for name, seconds in fastest.items()},
        "median_milliseconds": {name: 1e3 * median(t) for name, t in times.items()},
        "times_the_mlp": {name: t / fastest[MLP_ALONE] for name, t in fastest.items()},
        "times_fmp": {name: t / fastest[FAIR] for name, t in fastest.items()},
        "fmp_over_plain": fastest[FAIR] / fastest[PLAIN],
        "products_milliseconds": _products_milliseconds(x, device),
        "debias_milliseconds": _debias_milliseconds(data),
    }


def _products_milliseconds(x: Tensor, device: str) -> float:
    """Time of the two large products that any such MLP computes, features by weights and back."""
    weight = x.new_ones(x.size(1), HIDDEN)
    gradient = x.new_ones(x.size(0), HIDDEN)
    products = {"forward": lambda: x @ weight, "backward": lambda: x.t() @ gradient}
    times = time_in_turns(products, rounds=20, device=device)
    return 1e3 * sum(map(min, times.values()))


def _debias_milliseconds(data: Data) -> float:
    logits = torch.randn(data.x.size(0), CLASSES, device=data.x.device)
    logits[:, 1] += data.sens
    correct = partial(debias, logits, data.sens, target=0.02, on="probabilities")
    times = time_in_turns({"debias": correct}, rounds=20)
    return 1e3 * median(times["debias"])

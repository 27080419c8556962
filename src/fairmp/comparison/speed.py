"""Times of one training epoch, network by network, in one run on one machine."""

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

from fairmp.errors import InputError
from fairmp.graph import normalise
from fairmp.groups import group_operator
from fairmp.kernels import implementation
from fairmp.nn.fmp import FMP, PPR
from fairmp.outputs import bar
from fairmp.postprocessing.solver import debias
from fairmp.training.loop import versions

HIDDEN, CLASSES, STEPS = 64, 2, 5
POKEC_Z = (67_796, 1_235_916, 276)  # nodes, directed edges, features
LAMBDA_S = 3.0
MLP_ALONE, PLAIN, FAIR = "MLP", "MLP + plain propagation", "MLP + FMP (projection)"

Epoch = Callable[[], object]


def random_problem(
    nodes: int, edges: int, features: int, seed: int = 0, *, density: float = 1.0
) -> Data:
    """Draw a random graph, half of whose nodes are trained on, with so many features not 0."""
    if nodes < 4 or edges < 2:
        raise InputError("nodes", f"{nodes} nodes with {edges} edges", "give at least 4 and 2")
    random = torch.Generator().manual_seed(seed)
    half = torch.randint(0, nodes, (2, edges // 2), generator=random)
    sens = (torch.rand(nodes, generator=random) < 0.4).long()
    x = torch.randn(nodes, features, generator=random)
    if density < 1:
        x *= torch.rand(nodes, features, generator=random) < density
    x[:, 0] += sens
    y = (x[:, 0] + torch.randn(nodes, generator=random) > 0.4).long()
    train = torch.rand(nodes, generator=random) < 0.5
    # A graph of a few nodes has both groups and both classes as well.
    sens[:4], y[:4], train[:4] = torch.tensor([0, 1, 0, 1]), torch.tensor([0, 0, 1, 1]), True
    both = torch.cat([half, half.flip(0)], 1)
    return Data(x, both, y=y, sens=sens, train_mask=train, name="random")


class _Network(nn.Module):
    """A model, called with the features and what else it takes, and a layer on top of it."""

    def __init__(self, model: nn.Module, *inputs: Any, layer: Any = None) -> None:
        super().__init__()
        self.model, self.inputs, self.layer = model, inputs, layer

    def forward(self, x: Tensor) -> Tensor:
        if self.layer is None:
            return self.model(x, *self.inputs)
        return self.layer(self.model(x), *self.inputs)


def networks(data: Data) -> dict[str, Callable[[], nn.Module]]:
    """A function for each network that builds it, to be called with x."""
    from torch_geometric.nn import APPNP, GAT, GCN, MLP, SGConv
    from torch_geometric.utils import to_torch_csr_tensor

    from fairmp.nn.dense import Dense

    (n, d), edges = data.x.shape, data.edge_index
    adjacency, groups = normalise(edges, n), group_operator(data.sens, data.train_mask)
    ours = partial(Dense, [d, HIDDEN, CLASSES], norm=None)
    pygs = partial(MLP, [d, HIDDEN, CLASSES], norm=None)

    def fair(solver: Any) -> nn.Module:
        return _Network(ours(), adjacency, groups, layer=FMP(STEPS, LAMBDA_S, 10.0, solver))

    def appnp(graph: Tensor, cached: bool = False) -> nn.Module:
        return _Network(pygs(), graph, layer=APPNP(STEPS, 1 / (1 + LAMBDA_S), cached=cached))

    return {
        MLP_ALONE: ours,
        PLAIN: lambda: _Network(ours(), adjacency, layer=PPR(STEPS, LAMBDA_S)),
        FAIR: lambda: fair("projection"),
        "MLP + FMP (papc)": lambda: fair("papc"),
        "MLP + FMP (paper)": lambda: fair("paper"),
        "PyG MLP": pygs,
        "PyG MLP + APPNP, edge_index": lambda: appnp(edges),
        "PyG MLP + APPNP, cached": lambda: appnp(edges, cached=True),
        "PyG MLP + APPNP, sparse tensor": lambda: appnp(to_torch_csr_tensor(edges, size=(n, n))),
        "PyG GCN": lambda: _Network(GCN(d, HIDDEN, 2, CLASSES, cached=True), edges),
        "PyG SGC": lambda: _Network(SGConv(d, CLASSES, K=2), edges),
        "PyG GAT": lambda: _Network(GAT(d, HIDDEN, 2, CLASSES, heads=4), edges),
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
    inner = 20 if device == "cuda" else 1
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

    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            warm_up = timed(run, 1)  # fills the caches; then up to five, half a second together
            for _ in range(min(max(int(0.5 / max(inner * warm_up, 1e-9)), 1), 5)):
                found[name].append(timed(run, inner))
            on_round(name)
    return found


def measure(data: Data, *, rounds: int = 15, device: str = "cpu") -> dict[str, Any]:
    """Time an epoch of every network, and ``debias``; return a dictionary for JSON."""
    data = data.to(device)
    x, sens = data.x, data.sens
    runs = {name: _epoch(build(), data) for name, build in networks(data).items()}
    with bar(rounds * len(runs), "timing") as advance:
        times = time_in_turns(runs, rounds=rounds, device=device, on_round=advance)
    # Ratios are of the fastest epochs: other load on a machine only adds to a time.
    fastest = {name: min(seconds) for name, seconds in times.items()}
    # The two large products that any such MLP computes, features by weights and back.
    weight, grad = x.new_ones(x.size(1), HIDDEN), x.new_ones(x.size(0), HIDDEN)
    products = {"forward": lambda: x @ weight, "backward": lambda: x.t() @ grad}
    products_time = time_in_turns(products, rounds=20, device=device)
    logits = torch.randn(x.size(0), CLASSES, device=x.device)
    logits[:, 1] += sens
    debias_time = time_in_turns({"debias": lambda: debias(logits, sens, target=0.02)}, rounds=20)
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
        "products_milliseconds": 1e3 * sum(map(min, products_time.values())),
        "debias_milliseconds": 1e3 * median(debias_time["debias"]),
    }

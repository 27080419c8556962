"""Times of one training epoch, network by network, in one run on one machine."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fairmp.errors import InputError
from fairmp.graph import normalise
from fairmp.groups import group_operator
from fairmp.kernels import implementation
from fairmp.nn.fmp import FMP, PPR
from fairmp.postprocessing.api import debias
from fairmp.training.model_files import versions

HIDDEN, CLASSES, STEPS = 64, 2, 5
POKEC_Z = (67_796, 1_235_916, 276)  # nodes, directed edges, features
LAMBDA_S = 3.0
MLP_ALONE, PLAIN, FAIR = "MLP", "MLP + plain propagation", "MLP + FMP (projection)"
NETWORKS = (
    *(MLP_ALONE, PLAIN, FAIR, "MLP + FMP (papc)", "MLP + FMP (paper)", "PyG MLP"),
    *("PyG MLP + APPNP, edge_index", "PyG MLP + APPNP, cached", "PyG MLP + APPNP, sparse tensor"),
    *("PyG GCN", "PyG SGC", "PyG GAT"),
)

Epoch = Callable[[], object]


@dataclass(frozen=True)
class Problem:
    """A graph to time epochs on.

    Attributes:
        name: its name.
        x: features (n×d).
        edge_index: edges, each in both directions (2×E).
        y: labels (n).
        sens: groups (n).
        train: training nodes (n, bool).
    """

    name: str
    x: Tensor
    edge_index: Tensor
    y: Tensor
    sens: Tensor
    train: Tensor

    def to(self, device: str) -> Problem:
        """Move to a device."""
        parts = (self.x, self.edge_index, self.y, self.sens, self.train)
        return Problem(self.name, *(part.to(device) for part in parts))


def random_problem(nodes: int, edges: int, features: int, seed: int = 0) -> Problem:
    """Draw a random graph, half of whose nodes are trained on.

    Example:
        >>> problem = random_problem(100, 400, 8)
        >>> problem.edge_index.shape, problem.x.shape
        (torch.Size([2, 400]), torch.Size([100, 8]))
    """
    if nodes < 4 or edges < 2:
        raise InputError("nodes", f"{nodes} nodes with {edges} edges", "give at least 4 and 2")
    random = torch.Generator().manual_seed(seed)
    half = torch.randint(0, nodes, (2, edges // 2), generator=random)
    sens = (torch.rand(nodes, generator=random) < 0.4).long()
    x = torch.randn(nodes, features, generator=random)
    x[:, 0] += sens
    y = (x[:, 0] + torch.randn(nodes, generator=random) > 0.4).long()
    train = torch.rand(nodes, generator=random) < 0.5
    # A graph of a few nodes has both groups and both classes as well.
    sens[:4], y[:4], train[:4] = torch.tensor([0, 1, 0, 1]), torch.tensor([0, 0, 1, 1]), True
    return Problem("random", x, torch.cat([half, half.flip(0)], 1), y, sens, train)


class _Network(nn.Module):
    """An MLP and a propagation, or a model of PyG's, as a function of the features."""

    def __init__(self, function: Callable[..., Tensor], *modules: nn.Module) -> None:
        super().__init__()
        self.parts, self.function = nn.ModuleList(modules), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, *self.parts)


def networks(problem: Problem) -> dict[str, Callable[[], nn.Module]]:
    """A function for each of :data:`NETWORKS` that builds it, to be called with x."""
    from torch_geometric.nn import APPNP, GAT, GCN, MLP, SGConv
    from torch_geometric.utils import to_torch_csr_tensor

    from fairmp.nn.dense import Dense

    (n, d), edges = problem.x.shape, problem.edge_index
    adjacency, groups = normalise(edges, n), group_operator(problem.sens, problem.train)
    ours = partial(Dense, [d, HIDDEN, CLASSES], norm=None)
    pygs = partial(MLP, [d, HIDDEN, CLASSES], norm=None)

    def plain() -> nn.Module:
        layer = PPR(STEPS, LAMBDA_S)
        return _Network(lambda x, mlp: layer(mlp(x), adjacency), ours())

    def fair(solver: Any) -> nn.Module:
        layer = FMP(STEPS, LAMBDA_S, 10.0, solver)
        return _Network(lambda x, mlp: layer(mlp(x), adjacency, groups), ours())

    def appnp(graph: Tensor, cached: bool = False) -> nn.Module:
        layer = APPNP(STEPS, 1 / (1 + LAMBDA_S), cached=cached)
        return _Network(lambda x, mlp: layer(mlp(x), graph), pygs())

    def pyg_model(model: nn.Module) -> nn.Module:
        return _Network(lambda x, model: model(x, edges), model)

    builders: tuple[Callable[[], nn.Module], ...] = (
        ours,
        plain,
        *(partial(fair, solver) for solver in ("projection", "papc", "paper")),
        pygs,
        lambda: appnp(edges),
        lambda: appnp(edges, cached=True),
        lambda: appnp(to_torch_csr_tensor(edges, size=(n, n))),
        lambda: pyg_model(GCN(d, HIDDEN, 2, CLASSES, cached=True)),
        lambda: pyg_model(SGConv(d, CLASSES, K=2)),
        lambda: pyg_model(GAT(d, HIDDEN, 2, CLASSES, heads=4)),
    )
    return dict(zip(NETWORKS, builders, strict=True))


def _epoch(network: nn.Module, problem: Problem) -> Epoch:
    network = network.to(problem.x.device)
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-2)
    y = problem.y[problem.train]

    def run() -> None:
        optimiser.zero_grad()
        cross_entropy(network(problem.x)[problem.train], y).backward()
        optimiser.step()

    return run


class Time(NamedTuple):
    """Seconds of a run: the fastest, and the median."""

    fastest: float
    median: float


def time_in_turns(
    runs: Mapping[str, Epoch],
    *,
    rounds: int = 10,
    device: str = "cpu",
    on_round: Callable[[str], None] = lambda name: None,
) -> dict[str, Time]:
    """Time each run several times per round, in turns.

    In turns, so that other load on the machine affects all alike. Each turn starts with a run that
    is not measured, which fills the caches; as many follow as take half a second together, at most
    five.

    Example:
        >>> sorted(time_in_turns({"a": lambda: None, "b": lambda: None}, rounds=2))
        ['a', 'b']
    """
    inner = 20 if device == "cuda" else 1

    def timed(run: Epoch, times: int) -> float:
        start = time.perf_counter()
        for _ in range(times):
            run()
        if device == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - start) / times

    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            warm_up = timed(run, 1)
            for _ in range(min(max(int(0.5 / max(inner * warm_up, 1e-9)), 1), 5)):
                found[name].append(timed(run, inner))
            on_round(name)
    return {name: Time(min(times), median(times)) for name, times in found.items()}


def measure(
    problem: Problem,
    *,
    rounds: int = 15,
    device: str = "cpu",
    names: Sequence[str] = NETWORKS,
    on_round: Callable[[str], None] = lambda name: None,
) -> dict[str, Any]:
    """Time an epoch of every network, and ``debias``; return a dictionary for JSON.

    Ratios are of the fastest epochs: other load on a machine only adds to a time.

    Example:
        >>> found = measure(random_problem(500, 2000, 4), rounds=1, names=NETWORKS[:3])
        >>> found["times_the_mlp"][MLP_ALONE]
        1.0
    """
    problem = problem.to(device)
    x, sens, build = problem.x, problem.sens, networks(problem)
    runs = {name: _epoch(build[name](), problem) for name in names}
    times = time_in_turns(runs, rounds=rounds, device=device, on_round=on_round)
    fastest = {name: taken.fastest for name, taken in times.items()}
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
            "name": problem.name,
            "nodes": x.size(0),
            "directed_edges": problem.edge_index.size(1),
            "features": x.size(1),
        },
        "milliseconds": {name: 1e3 * seconds for name, seconds in fastest.items()},
        "median_milliseconds": {name: 1e3 * taken.median for name, taken in times.items()},
        "times_the_mlp": {name: t / fastest[MLP_ALONE] for name, t in fastest.items()},
        "times_fmp": {name: t / fastest[FAIR] for name, t in fastest.items()},
        "fmp_over_plain": fastest[FAIR] / fastest[PLAIN],
        "products_milliseconds": 1e3 * sum(taken.fastest for taken in products_time.values()),
        "debias_milliseconds": 1e3 * debias_time["debias"].median,
    }

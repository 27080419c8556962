"""How long an epoch takes, network by network, in one run on one machine."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch_geometric.nn import APPNP, GAT, GCN, MLP, SGConv
from torch_geometric.utils import to_torch_csr_tensor

from fairmp.errors import InputError
from fairmp.graph import CSR, Adjacency, normalise
from fairmp.groups import group_operator
from fairmp.kernels import implementation
from fairmp.nn.dense import Dense
from fairmp.nn.fmp import FMP, PPR
from fairmp.postprocessing.api import debias
from fairmp.training.loop import seeded
from fairmp.training.model_files import versions

HIDDEN, CLASSES, STEPS = 64, 2, 5
POKEC_Z = (67_796, 1_235_916, 276)  # nodes, directed edges, features
LAMBDA_S = 3.0
MLP_ALONE, PLAIN, FAIR = "MLP", "MLP + plain propagation", "MLP + FMP (projection)"
APPNP_EDGES, APPNP_SPARSE = "PyG MLP + APPNP, edge_index", "PyG MLP + APPNP, sparse tensor"
MLP_PYG, APPNP_CACHED = "PyG MLP", "PyG MLP + APPNP, cached"
NETWORKS = (
    *(MLP_ALONE, PLAIN, FAIR, "MLP + FMP (papc)", "MLP + FMP (paper)"),
    *(MLP_PYG, APPNP_EDGES, APPNP_CACHED, APPNP_SPARSE, "PyG GCN", "PyG SGC", "PyG GAT"),
)

Epoch = Callable[[], None]


@dataclass(frozen=True)
class Problem:
    """A graph to time epochs on.

    Attributes:
        name: what it is.
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


def made(nodes: int, edges: int, features: int, seed: int = 0) -> Problem:
    """Make a graph of random friendships, half of whose nodes are trained on.

    Args:
        nodes: n.
        edges: directed edges.
        features: d.
        seed: of what is drawn.

    Example:
        >>> problem = made(100, 400, 8)
        >>> problem.edge_index.shape, problem.x.shape
        (torch.Size([2, 400]), torch.Size([100, 8]))
    """
    if nodes < 4 or edges < 2:
        raise InputError(
            "nodes", f"{nodes} nodes with {edges} edges are no graph to time", "give more"
        )
    with seeded(seed):
        half = torch.randint(0, nodes, (2, edges // 2))
        sens = (torch.rand(nodes) < 0.4).long()
        x = torch.randn(nodes, features)
        x[:, 0] += sens
        y = (x[:, 0] + torch.randn(nodes) > 0.4).long()
        train = torch.rand(nodes) < 0.5
        # A graph of a few nodes has both groups and both classes as well.
        sens[:4], y[:4], train[:4] = torch.tensor([0, 1, 0, 1]), torch.tensor([0, 0, 1, 1]), True
    return Problem("made", x, torch.cat([half, half.flip(0)], 1), y, sens, train)


class _With(nn.Module):
    """An MLP and what comes behind it."""

    def __init__(self, mlp: nn.Module, behind: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.mlp, self.behind = mlp, behind

    def forward(self, x: Tensor) -> Tensor:
        return self.behind(self.mlp(x))


class _On(nn.Module):
    """A network of PyG's on its graph."""

    def __init__(self, network: nn.Module, edges: Tensor) -> None:
        super().__init__()
        self.network, self.edges = network, edges

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x, self.edges)


def networks(problem: Problem) -> dict[str, Callable[[], nn.Module]]:
    """What is timed, by name (:data:`NETWORKS`): each made when asked for, and called with x."""
    d, edges = problem.x.size(1), problem.edge_index
    n = problem.x.size(0)
    adjacency = normalise(edges, n)
    delta = group_operator(problem.sens, problem.train)
    plain, alpha = PPR(STEPS, LAMBDA_S), 1 / (1 + LAMBDA_S)

    def mlp() -> nn.Module:
        return Dense([d, HIDDEN, CLASSES], norm=None)

    def pygs() -> nn.Module:
        return MLP([d, HIDDEN, CLASSES], norm=None)

    def fair(solver: str) -> Callable[[], nn.Module]:
        layer = FMP(STEPS, LAMBDA_S, 10.0, solver)  # type: ignore[arg-type]
        return lambda: _With(mlp(), lambda f: layer(f, adjacency, delta))

    def appnp(graph: Tensor, cached: bool = False) -> nn.Module:
        layer = APPNP(STEPS, alpha, cached=cached)
        return _With(pygs(), lambda f: layer(f, graph))

    return {
        MLP_ALONE: mlp,
        PLAIN: lambda: _With(mlp(), lambda f: plain(f, adjacency)),
        FAIR: fair("projection"),
        "MLP + FMP (papc)": fair("papc"),
        "MLP + FMP (paper)": fair("paper"),
        MLP_PYG: pygs,
        APPNP_EDGES: lambda: appnp(edges),
        APPNP_CACHED: lambda: appnp(edges, cached=True),
        APPNP_SPARSE: lambda: appnp(to_torch_csr_tensor(edges, size=(n, n))),
        "PyG GCN": lambda: _On(GCN(d, HIDDEN, 2, CLASSES, cached=True), edges),
        "PyG SGC": lambda: _On(SGConv(d, CLASSES, K=2), edges),
        "PyG GAT": lambda: _On(GAT(d, HIDDEN, 2, CLASSES, heads=4), edges),
    }


def epochs(problem: Problem, names: Sequence[str] | None = None) -> dict[str, Epoch]:
    """A function for each network that trains it for one epoch: forward, backward, step."""
    found = networks(problem)
    return {name: _epoch(found[name](), problem) for name in names or found}


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
    """Seconds a run took: the fastest, and the median of all."""

    fastest: float
    median: float


def race(
    runs: Mapping[str, Epoch],
    *,
    rounds: int = 10,
    device: str = "cpu",
    on_round: Callable[[str], None] = lambda name: None,
) -> dict[str, Time]:
    """Time each run some times a round, in turns.

    In turns, so that what else the machine does falls on all alike. In each turn an unmeasured run
    goes ahead, so that none pays for the memory and the caches the one before it left; as many
    measured ones follow as take half a second together, five at most.

    Example:
        >>> sorted(race({"a": lambda: None, "b": lambda: None}, rounds=2))
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
            ahead = timed(run, 1)
            for _ in range(min(max(int(0.5 / max(inner * ahead, 1e-9)), 1), 5)):
                found[name].append(timed(run, inner))
            on_round(name)
    return {name: Time(min(times), median(times)) for name, times in found.items()}


def products(problem: Problem, *, rounds: int = 20, device: str = "cpu") -> float:
    """Time the two large products any such MLP must do, features by weights and back, in seconds.

    Example:
        >>> 0 < products(made(1000, 100, 2), rounds=1) < 60
        True
    """
    x = problem.x
    weight, grad = x.new_ones(x.size(1), HIDDEN), x.new_ones(x.size(0), HIDDEN)
    runs = {"there": lambda: _ignore(x @ weight), "back": lambda: _ignore(x.t() @ grad)}
    return sum(taken.fastest for taken in race(runs, rounds=rounds, device=device).values())


def _ignore(_: Tensor) -> None:
    pass


def mending(problem: Problem, *, rounds: int = 20) -> float:
    """Time ``debias`` of a model's predictions on this many nodes, in seconds.

    Example:
        >>> 0 < mending(made(1000, 100, 2), rounds=1) < 60
        True
    """
    logits = torch.randn(problem.x.size(0), CLASSES, device=problem.x.device)
    logits[:, 1] += problem.sens
    runs = {"debias": lambda: debias(logits, problem.sens, target=0.02)}
    return race(runs, rounds=rounds)["debias"].median


def measure(
    problem: Problem,
    *,
    rounds: int = 15,
    device: str = "cpu",
    names: Sequence[str] | None = None,
    on_round: Callable[[str], None] = lambda name: None,
) -> dict[str, Any]:
    """Time every network's epoch and ``debias``, and say on what: all that JSON should hold.

    Ratios are of the fastest epochs: what else a machine does only ever adds to a time.

    Example:
        >>> found = measure(made(500, 2000, 4), rounds=1, names=[MLP_ALONE, PLAIN, FAIR])
        >>> found["times_the_mlp"][MLP_ALONE]
        1.0
    """
    problem = problem.to(device)
    times = race(epochs(problem, names), rounds=rounds, device=device, on_round=on_round)
    fastest = {name: taken.fastest for name, taken in times.items()}
    return {
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "gpu": torch.cuda.get_device_name() if device == "cuda" else None,
        },
        "versions": versions(),
        "kernels": implementation(problem.x).__name__,
        "graph": {
            "name": problem.name,
            "nodes": problem.x.size(0),
            "directed_edges": problem.edge_index.size(1),
            "features": problem.x.size(1),
        },
        "milliseconds": {name: 1e3 * seconds for name, seconds in fastest.items()},
        "median_milliseconds": {name: 1e3 * taken.median for name, taken in times.items()},
        "times_the_mlp": {name: t / fastest[MLP_ALONE] for name, t in fastest.items()},
        "times_fmp": {name: t / fastest[FAIR] for name, t in fastest.items()},
        "fmp_over_plain": fastest[FAIR] / fastest[PLAIN],
        "products_milliseconds": 1e3 * products(problem, device=device),
        "debias_milliseconds": 1e3 * mending(problem),
    }


def regular(nodes: int, degree: int, seed: int = 0) -> Adjacency:
    """Make the adjacency of a random graph whose nodes all have the same number of friends.

    It is a union of random permutations and their inverses: symmetric, as scattered in memory as a
    graph can be, and made without ever sorting its edges. Self-loops come on top.

    Example:
        >>> graph = regular(100, 4)
        >>> graph.forward.col.numel(), graph.symmetric
        (500, True)
    """
    if degree < 2 or degree % 2:
        raise InputError("degree", f"{degree} is not even", "give 2, 4, …")
    generator = torch.Generator().manual_seed(seed)
    col = torch.empty(nodes, degree + 1, dtype=torch.int32)
    col[:, degree] = torch.arange(nodes, dtype=torch.int32)
    for k in range(0, degree, 2):
        there = torch.randperm(nodes, generator=generator, dtype=torch.int64)
        col[:, k] = there
        col[there, k + 1] = torch.arange(nodes, dtype=torch.int32)
    row = torch.arange(nodes + 1) * (degree + 1)
    return constant(row, col.view(-1), degree)


def constant(row: Tensor, col: Tensor, degree: int) -> Adjacency:
    """The adjacency of a symmetric graph of one degree, self-loops included in its columns."""
    rows = CSR(row.int() if int(row[-1]) < 2**31 else row, col)
    nodes = row.numel() - 1
    return Adjacency(nodes, torch.full((nodes,), (degree + 1) ** -0.5), rows, rows)

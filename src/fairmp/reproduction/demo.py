"""The whole story on the embedded network: what averaging does, and what each remedy leaves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch_geometric.data import Data

from fairmp.comparison.runner import Record, one_split, parallel
from fairmp.datasets.statistics import statistics
from fairmp.datasets.synthetic import social_network
from fairmp.nn.fmp import FMP, PPR, SOLVERS
from fairmp.nn.models import Graph
from fairmp.training.classifier import FairClassifier
from fairmp.training.penalties import Regulariser

K, LAMBDA_S = 5, 3.0
SETTING: dict[str, Any] = {"epochs": 40, "lr": 0.02, "eval_every": 5}

METHODS: dict[str, Callable[[], FairClassifier]] = {
    "MLP (no graph)": lambda: FairClassifier(None, **SETTING),
    "GCN, no regulariser": lambda: FairClassifier(None, backbone="gcn", **SETTING),
    "plain propagation": lambda: FairClassifier(PPR(K, LAMBDA_S), **SETTING),
    "plain + regulariser h=2": lambda: FairClassifier(
        PPR(K, LAMBDA_S), strategy=Regulariser(2.0), **SETTING
    ),
    "FMP, paper (λ_f=30)": lambda: FairClassifier(
        FMP(K, LAMBDA_S, lambda_f=30.0, solver="paper"), **SETTING
    ),
    "FMP, papc (λ_f=10)": lambda: FairClassifier(
        FMP(K, LAMBDA_S, lambda_f=10.0, solver="papc"), **SETTING
    ),
    "FMP, projection": lambda: FairClassifier(FMP(K, LAMBDA_S), **SETTING),
}
PLAIN, FAIR = "plain propagation", "FMP, projection"


@dataclass(frozen=True)
class Trace:
    """The gap of one network's predictions after each propagation step, solver by solver."""

    start: float
    gaps: dict[str, list[float]]


@dataclass(frozen=True)
class Demo:
    """What the demonstration found."""

    data: Data
    records: list[Record]
    trace: Trace
    model: FairClassifier


def run(
    *,
    n: int = 20_000,
    splits: int = 3,
    seed: int = 0,
    workers: int = 1,
    on_record: Callable[[Record], None] = lambda record: None,
) -> Demo:
    """Train every method on the embedded network.

    Args:
        n: nodes of the network.
        splits: how many splits each method is trained on.
        seed: of the network, the splits and the initialisations.
        workers: processes, with one thread each; results do not depend on it.
        on_record: called with each record as it is made.
    """
    data = social_network(n=n, seed=seed)
    jobs = [(name, split, n, seed) for name in reversed(METHODS) for split in range(splits)]
    found: dict[tuple[str, int], tuple[Record, FairClassifier]] = {}
    for job, result in parallel(_job, jobs, workers=workers):
        found[job[:2]] = result
        on_record(result[0])
    records = [found[name, split][0] for name in METHODS for split in range(splits)]
    return Demo(data, records, _trace(found[PLAIN, 0][1], data), found[FAIR, 0][1])


def _job(job: tuple[str, int, int, int]) -> tuple[Record, FairClassifier]:
    name, split, n, seed = job
    return one_split(name, METHODS[name], social_network(n=n, seed=seed), split=split, seed=seed)


def describe(data: Data) -> list[tuple[str, str]]:
    """What the network looks like, as rows of a table."""
    row = statistics(data)
    rates = []
    for group, name in enumerate(data.group_names):
        labelled = (data.sens == group) & (data.y >= 0)
        rates.append(f"{name}: {100 * float((data.y[labelled] == 1).double().mean()):.1f} %")
    return [
        ("nodes", f"{row.nodes:,}"),
        ("undirected edges", f"{row.edges // 2:,}"),
        ("features", f"{row.features}"),
        ("sensitive homophily", f"{100 * (row.sens_homophily or 0):.1f} %"),
        ("label homophily", f"{100 * (row.label_homophily or 0):.1f} %"),
        ("group sizes", ", ".join(f"{k}: {v:,}" for k, v in (row.groups or {}).items())),
        ("positive labels", ", ".join(rates)),
    ]


def _trace(model: FairClassifier, data: Data) -> Trace:
    """Run each solver on the logits of one trained network, all nodes as the population."""
    graph = Graph(data.edge_index, data.x.size(0))
    with torch.no_grad():
        logits = model.network_.logits(data.x, graph)
        adjacency = graph.adjacency(logits.dtype)
        gaps: dict[str, list[float]] = {}
        for solver in SOLVERS:
            layer = FMP(K, LAMBDA_S, lambda_f=30.0, solver=solver)
            steps = layer.solve(logits, adjacency, data.sens, trace=True).steps
            gaps[solver] = [float(step.gap.abs().max()) for step in steps]
        plain = FMP(K, LAMBDA_S, lambda_f=0.0, solver="papc")
        steps = plain.solve(logits, adjacency, data.sens, trace=True).steps
        gaps["no correction"] = [float(step.gap.abs().max()) for step in steps]
        p = logits.softmax(1)[:, 1]
    start = float((p[data.sens == 1].mean() - p[data.sens == 0].mean()).abs())
    return Trace(start, gaps)

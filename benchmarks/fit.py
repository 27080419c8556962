"""Time whole fits: training, a validation after every epoch, and the final evaluation.

    python -m benchmarks.fit --out benchmarks/results/fit.json
    python -m benchmarks.fit --data pokec-n-graph --out benchmarks/results/fit-pokec-n.json
    python -m benchmarks.fit --device cuda --out benchmarks/results/fit-gpu.json

The same MLP, optimiser, split, number of epochs and metrics for all, in one run, by turns; ratios
are of the fastest fits, in processor time on a CPU, which other programs do not disturb. PyG's
modules run in a loop of the usual form.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import platform
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch_geometric.data import Data
from torch_geometric.nn import APPNP, GCN, MLP
from torch_geometric.utils import to_torch_csr_tensor

from benchmarks import provenance
from experiments.random_graphs import POKEC_Z, Size, random_problem
from fairmp import FMP, PPR, FairClassifier
from fairmp.datasets import load, social_network
from fairmp.datasets.splits import with_split
from fairmp.metrics import evaluate
from fairmp.training.run import versions

K, LAMBDA_S, HIDDEN, LR = 5, 1.0, 64, 0.01
DENSITY = 0.15  # of features not 0, about that of Pokec-z
MASKS = ("train_mask", "val_mask", "test_mask")


def ours(propagation: nn.Module | None, data: Data, epochs: int, device: str) -> float:
    """Fit a classifier, and return its test accuracy."""
    setting = {"backbone": "mlp", "hidden": HIDDEN, "dropout": 0.0, "lr": LR, "weight_decay": 1e-5}
    often = {"epochs": epochs, "eval_every": 1, "patience": None}
    model = FairClassifier(propagation, **setting, **often, device=device)
    model.fit(data, bootstrap=0, progress=False)
    return model.run_.test.accuracy


class Propagated(nn.Module):
    """An MLP of PyG's followed by its APPNP."""

    def __init__(self, d: int, classes: int) -> None:
        super().__init__()
        self.mlp = MLP([d, HIDDEN, classes], norm=None)
        self.layer = APPNP(K, 1 / (1 + LAMBDA_S), cached=True)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        """Propagate logits."""
        return self.layer(self.mlp(x), edges)


def pyg(kind: str, sparse: bool, data: Data, epochs: int, device: str) -> float:
    """Train with PyG's modules, keep the best epoch, and return the test accuracy."""
    torch.manual_seed(0)
    data = data.to(device)
    n, d, classes = data.num_nodes, data.x.size(1), int(data.y.max()) + 1
    edges = to_torch_csr_tensor(data.edge_index, size=(n, n)) if sparse else data.edge_index
    gcn = GCN(d, HIDDEN, 2, classes, cached=True)
    network = (gcn if kind == "gcn" else Propagated(d, classes)).to(device)
    optimiser = torch.optim.Adam(network.parameters(), lr=LR, weight_decay=1e-5)
    best, weights = -1.0, network.state_dict()
    for _ in range(epochs):
        network.train()
        optimiser.zero_grad()
        out = network(data.x, edges)
        cross_entropy(out[data.train_mask], data.y[data.train_mask]).backward()
        optimiser.step()
        network.eval()
        with torch.no_grad():
            out = network(data.x, edges)[data.val_mask]
        accuracy = float((out.argmax(1) == data.y[data.val_mask]).double().mean())
        if accuracy > best:
            best, weights = accuracy, copy.deepcopy(network.state_dict())
    network.load_state_dict(weights)
    with torch.no_grad():
        out = network(data.x, edges).cpu()
    data = data.cpu()
    evaluations = [
        evaluate(
            data.y[data[name]],
            out[data[name]],
            sensitive_features=data.sens[data[name]],
            bootstrap=0,
        )
        for name in MASKS
    ]
    return evaluations[-1].accuracy


METHODS: dict[str, Callable[[Data, int, str], float]] = {
    "MLP": partial(ours, None),
    "MLP + plain propagation": partial(ours, PPR(K, LAMBDA_S)),
    "MLP + FMP": partial(ours, FMP(K, LAMBDA_S)),
    "PyG MLP + APPNP, edge_index": partial(pyg, "appnp", False),
    "PyG MLP + APPNP, sparse tensor": partial(pyg, "appnp", True),
    "PyG GCN": partial(pyg, "gcn", False),
}


def graphs(name: str | None, density: float = DENSITY) -> dict[str, Data]:
    """The graphs to fit."""
    if name is not None:
        return {name: with_split(load(name), seed=0)}
    by_title = {"20,000 nodes, 32 features": social_network(n=20_000)}
    edges = round(20_000 / POKEC_Z.nodes * POKEC_Z.edges)
    sizes = {
        "20,000 nodes, 276 features": Size(20_000, edges, POKEC_Z.features),
        "Pokec-z's size": POKEC_Z,
    }
    for title, size in sizes.items():
        problem = random_problem(size, density=density)
        by_title[title] = Data(problem.x, problem.edge_index, y=problem.y, sens=problem.sens)
    return {title: with_split(graph, seed=0) for title, graph in by_title.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", help="data set; by default three random graphs")
    parser.add_argument("--only", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--graph", nargs="+", help="some of the default graphs, by title")
    parser.add_argument("--density", type=float, default=DENSITY, help="of the 276 features")
    parser.add_argument("--epochs", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    results, clock = {}, time.process_time if options.device == "cpu" else time.perf_counter
    for title, data in graphs(options.data, options.density).items():
        if options.graph and title not in options.graph:
            continue
        for name in options.only:
            METHODS[name](data, 2, options.device)  # compile and cache
        seconds: dict[str, list[float]] = {name: [] for name in options.only}
        for _ in range(options.rounds):
            for name in options.only:
                start = clock()
                METHODS[name](data, options.epochs, options.device)
                seconds[name].append(clock() - start)
        fastest = {name: min(values) for name, values in seconds.items()}
        print(f"{title}: {data.num_nodes:,} nodes, {data.num_edges:,} edges")
        for name, value in fastest.items():
            ratio = value / fastest[options.only[0]]
            print(f"  {name:34}{value:9.2f} s{ratio:9.2f} × {options.only[0]}")
        results[title] = {
            "nodes": data.num_nodes,
            "directed_edges": data.num_edges,
            "features": data.x.size(1),
            "density": round(float((data.x != 0).double().mean()), 3),
            "seconds": seconds,
            "times_the_mlp": {
                k: round(v / fastest[options.only[0]], 3) for k, v in fastest.items()
            },
        }
    record = {
        **provenance("models"),
        "epochs": options.epochs,
        "device": options.device if options.device == "cpu" else torch.cuda.get_device_name(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "threads": torch.get_num_threads(),
        "versions": versions(),
        "graphs": results,
    }
    if options.out:
        options.out.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()

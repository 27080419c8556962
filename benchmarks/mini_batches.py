"""Training on mini-batches, and the gap with one correction for all nodes or one per batch.

    python -m benchmarks.mini_batches

The recipe of docs/how-to/mini-batches.md: a GraphSAGE with FMP is trained on all nodes at once, or
on batches of PyG's RandomNodeLoader. Then the test nodes are predicted with one correction for all
of them, or batch by batch with a correction for each.
"""

from __future__ import annotations

import argparse
import os
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch_geometric.data import Data
from torch_geometric.loader import RandomNodeLoader
from torch_geometric.nn import GraphSAGE

from benchmarks import provenance
from benchmarks.tree_scores import gap, write
from fairmp import FMP
from fairmp.datasets.by_name import from_files
from fairmp.datasets.splits import with_split
from fairmp.metrics import mean_interval

FIRST_SEED = 20
PARTS = (1, 10, 50)  # batches that the nodes are cut into


def train(data: Data, parts: int, epochs: int, seed: int) -> GraphSAGE:
    """Train with FMP on batches; one part is all nodes."""
    torch.manual_seed(seed)
    network = GraphSAGE(data.x.size(1), 64, 2, 2, dropout=0.5)
    layer = FMP(K=5)
    optimiser = torch.optim.Adam(network.parameters(), lr=0.005, weight_decay=5e-4)
    for _ in range(epochs):
        for batch in RandomNodeLoader(data, num_parts=parts, shuffle=True):
            optimiser.zero_grad()
            logits = layer(network(batch.x, batch.edge_index), batch.edge_index, batch.sens)
            labelled = batch.train_mask
            cross_entropy(logits[labelled], batch.y[labelled]).backward()
            optimiser.step()
    return network.eval()


def decide(data: Data, network: GraphSAGE, parts: int, seed: int) -> Tensor:
    """Decisions for all nodes, with a correction for each batch of test nodes."""
    layer, decisions = FMP(K=5).eval(), torch.zeros(data.num_nodes, dtype=torch.long)
    torch.manual_seed(seed)
    data.place = torch.arange(data.num_nodes)
    with torch.no_grad():
        for batch in RandomNodeLoader(data, num_parts=parts, shuffle=True):
            logits = network(batch.x, batch.edge_index)
            fair = layer(logits, batch.edge_index, batch.sens, batch.test_mask, decisions=True)
            decisions[batch.place] = fair.argmax(1)
    return decisions


def rows(name: str, graph: Data, epochs: int, seed: int) -> list[dict[str, Any]]:
    """Accuracy and ΔDP on the test nodes of one split, by training and correction."""
    data = with_split(graph, seed=seed)
    # The loader cuts every list of the graph that has an entry per node.
    data = Data(**{key: value for key, value in data.to_dict().items() if torch.is_tensor(value)})
    test, result = data.test_mask, []
    for parts in PARTS:
        network = train(data, parts, epochs, seed)
        for corrected in dict.fromkeys((1, parts)):
            chosen = decide(data, network, corrected, seed)[test]
            result.append(
                {
                    "data": name,
                    "split": seed,
                    "trained": parts,
                    "corrected": corrected,
                    "accuracy": float((chosen == data.y[test]).float().mean()),
                    "dp": gap(chosen.numpy(), data.sens[test].numpy()),
                }
            )
    return result


def main() -> None:
    """Run every split, print the means, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", nargs="+", default=["pokec-province"])
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/mini-batches.json"))
    options = parser.parse_args()
    # A small batch may lack a group; its gap is then not closed in training.
    warnings.filterwarnings("ignore", message="sens: a group has no node")
    all_rows, table = [], []
    for name in options.data:
        graph = from_files(name, os.environ.get("FAIRMP_DATA"))
        seeds = range(FIRST_SEED, FIRST_SEED + options.splits)
        graph_rows = [row for seed in seeds for row in rows(name, graph, options.epochs, seed)]
        for key in dict.fromkeys((row["trained"], row["corrected"]) for row in graph_rows):
            same = [row for row in graph_rows if (row["trained"], row["corrected"]) == key]
            entry: dict[str, Any] = {"data": name, "trained": key[0], "corrected": key[1]}
            for figure in ("accuracy", "dp"):
                entry[figure] = mean_interval([row[figure] for row in same])[:3]
            print(entry, flush=True)
            table.append(entry)
        all_rows += graph_rows
    record = {**provenance("models"), "epochs": options.epochs, "table": table}
    write(options.out, record, all_rows)


if __name__ == "__main__":
    main()

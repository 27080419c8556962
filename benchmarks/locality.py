"""Time an epoch with nodes in the order given and in the order of locality, by turns.

    OMP_NUM_THREADS=1 python -m benchmarks.locality --out benchmarks/results/locality.json

The real Pokec-n graph, and generated graphs of degree 20 whose ids are shuffled: communities of 500
nodes, a tenth of the edges between them. Processor seconds of one thread; the fastest epoch counts.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from benchmarks import provenance
from benchmarks.scale import DEGREE, FEATURES, STEPS, groups_of, peak
from experiments.random_graphs import constant_degree
from fairmp import FMP
from fairmp.datasets import load
from fairmp.graph import Adjacency, locality_order, normalise
from fairmp.groups import group_operator
from fairmp.nn.chunked import chunked
from fairmp.nn.models import build
from fairmp.training.run import versions

COMMUNITY, BETWEEN = 500, 2  # nodes of a community; columns of edges that leave it, of DEGREE


def communities(nodes: int) -> Adjacency:
    """Unions of permutations within communities and of all nodes, with ids that say nothing."""
    generator = torch.Generator().manual_seed(0)
    name = torch.randperm(nodes, generator=generator).int()
    self_loops = torch.arange(nodes, dtype=torch.int32)
    col = torch.empty(nodes, DEGREE + 1, dtype=torch.int32)
    col[:, DEGREE] = self_loops
    for k in range(0, DEGREE, 2):
        if k < BETWEEN:
            target = torch.randperm(nodes, generator=generator)
        else:
            draws = torch.rand(nodes // COMMUNITY, COMMUNITY, generator=generator).argsort(1)
            target = (draws + COMMUNITY * torch.arange(len(draws)).unsqueeze(1)).flatten()
        col[name, k] = name[target]
        col[name[target], k + 1] = name
    return constant_degree(torch.arange(nodes + 1) * (DEGREE + 1), col.view(-1), DEGREE)


def reordered(graph: Adjacency) -> tuple[Adjacency, float]:
    """The graph in the order of locality, and the seconds that took."""
    start, rows = time.process_time(), graph.forward
    order = torch.from_numpy(locality_order(rows.row.numpy(), rows.col.numpy()))
    place, degree = order.argsort(), rows.row.diff()
    size = degree[order].long()
    row = torch.cat([size.new_zeros(1), size.cumsum(0)])
    at = torch.arange(int(row[-1])) + (rows.row[:-1][order] - row[:-1]).repeat_interleave(size)
    csr = type(rows)(row.to(rows.row.dtype), place[rows.col[at].long()].to(rows.col.dtype))
    return Adjacency(graph.num_nodes, graph.scale[order], csr, csr), time.process_time() - start


def measure(graph: Adjacency, rounds: int) -> dict[str, float]:
    """Epochs in both orders, in nanoseconds per entry."""
    nodes, seconds = graph.num_nodes, {}
    moved, took = reordered(graph)
    x, sens = torch.randn(nodes, FEATURES), groups_of(nodes)
    y, delta = (x[:, 0] + sens > 0.4).long(), group_operator(sens)
    network = build("mlp", in_channels=FEATURES, out_channels=2)
    optimiser, layer = torch.optim.Adam(network.parameters(), lr=1e-2), FMP(STEPS, 3.0)
    for turn in range(rounds + 1):
        for name, ordered in (("given", graph), ("locality", moved)):
            start = time.process_time()
            optimiser.zero_grad()
            z = chunked(network.transform, x, 2**14)
            logits = layer(z, ordered, delta, softmax_only=True)  # as in training
            cross_entropy(logits, y).backward()
            optimiser.step()
            if turn:
                seconds[name] = min(seconds.get(name, 1e9), time.process_time() - start)
    entries = graph.forward.col.numel()
    return {
        "nodes": nodes,
        "directed_edges": entries - nodes,
        **{f"seconds_{name}": value for name, value in seconds.items()},
        **{f"nanoseconds_per_edge_{k}": 1e9 * v / (entries - nodes) for k, v in seconds.items()},
        "given_over_locality": seconds["given"] / seconds["locality"],
        "seconds_to_order": took,
        "peak_gigabytes": peak() / 1e9,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--largest", type=float, default=1e8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.manual_seed(0)
    results = {}

    def pokec() -> Adjacency:
        data = load("pokec-n-graph")
        return normalise(data.edge_index, data.num_nodes)

    graphs = {"Pokec-n": pokec}
    for size in (10**7, 10**8):
        if size <= options.largest:
            graphs[f"communities, {size:.0e} edges"] = lambda n=size // DEGREE: communities(n)
    for name, make in graphs.items():
        results[name] = measure(make(), options.rounds)
        print(name, results[name], flush=True)
    record = {
        **provenance("layer"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "threads": torch.get_num_threads(),
        "versions": versions(),
        "graphs": results,
    }
    if options.out:
        options.out.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()

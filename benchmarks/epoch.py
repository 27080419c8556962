r"""Time one training epoch, network by network, in one run; print ratios to the MLP and to FMP.

python -m benchmarks.epoch --out benchmarks/results/epoch.json
OMP_NUM_THREADS=1 python -m benchmarks.epoch --density 0.15 --rounds 3 \
    --out benchmarks/results/epoch-sparse.json
python -m benchmarks.epoch --data pokec-n-graph --out benchmarks/results/epoch-pokec-n.json
python -m benchmarks.epoch --device cuda --out benchmarks/results/epoch-gpu.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from torch_geometric.data import Data

from benchmarks import provenance
from experiments.random_graphs import POKEC_Z, Size, random_problem
from experiments.timing import LAMBDA_S, measure, time_in_turns
from fairmp import FMP
from fairmp.graph import normalise
from fairmp.groups import group_operator


def problem_of(options: argparse.Namespace) -> Data:
    if options.npz:
        from experiments.graph_files import from_npz

        data = from_npz(options.data, folder=options.npz)
    elif options.data:
        from fairmp.datasets import load

        data = load(options.data)
    else:
        size = Size(options.nodes, options.edges, options.features)
        return random_problem(size, density=options.density)
    known_mask = (data.y >= 0) & (data.sens >= 0)
    train = known_mask & (
        torch.rand(known_mask.numel(), generator=torch.Generator().manual_seed(0)) < 0.5
    )
    data.y, data.train_mask, data.name = data.y.clamp_min(0), train, options.data
    return data


def calls(data: Data, device: str) -> dict[str, float]:
    """Milliseconds of a call with tensors, and of one with what they are normalised to."""
    data = data.to(device)
    x = torch.randn(data.num_nodes, 2, device=device)
    layer, edges, sens = FMP(lambda_s=LAMBDA_S), data.edge_index, data.sens
    adjacency, groups = normalise(edges, len(x)), group_operator(sens)
    runs = {
        "FMP(x, edge_index, sens)": lambda: layer(x, edges, sens),
        "FMP(x, adjacency, groups)": lambda: layer(x, adjacency, groups),
    }
    times = time_in_turns(runs, rounds=20, device=device)
    return {name: 1e3 * min(seconds) for name, seconds in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", help="data set; by default a random graph of Pokec-z's size")
    parser.add_argument("--npz", help="folder of graphs that graph_files wrote")
    for name, size in vars(POKEC_Z).items():
        parser.add_argument(f"--{name}", type=int, default=size, help="of the random graph")
    parser.add_argument("--density", type=float, default=1.0, help="share of features not 0")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    data = problem_of(options)
    figures = measure(data, rounds=options.rounds, device=options.device)
    figures["call_milliseconds"] = calls(data, options.device)
    print(f"{'':34}{'ms':>9}{'median':>9}{'× MLP':>9}{'÷ FMP':>9}")
    for name, time in figures["milliseconds"].items():
        ratios = f"{figures['times_the_mlp'][name]:9.2f}{figures['times_fmp'][name]:9.2f}"
        print(f"{name:34}{time:9.2f}{figures['median_milliseconds'][name]:9.2f}{ratios}")
    print(f"the MLP's large products alone: {figures['products_milliseconds']:.2f} ms")
    for name, taken in figures["call_milliseconds"].items():
        print(f"{name}: {taken:.2f} ms")
    print(f"debias: {figures['debias_milliseconds']:.2f} ms")
    result = {**provenance("layer"), **figures}
    if options.out:
        options.out.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()

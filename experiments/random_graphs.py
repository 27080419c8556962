"""Random graphs of a given size, for timing."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch_geometric.data import Data

from fairmp.errors import InputError
from fairmp.graph import Adjacency
from fairmp.kernels.types import CSR


@dataclass(frozen=True)
class Size:
    """Size of a random graph."""

    nodes: int
    edges: int  # directed
    features: int


POKEC_Z = Size(67_796, 1_235_916, 276)


def random_problem(size: Size, seed: int = 0, *, density: float = 1.0) -> Data:
    """Draw a random graph; half of the nodes are for training.

    A share ``density`` of the features is not 0.
    """
    nodes, features = size.nodes, size.features
    if nodes < 4 or size.edges < 2:
        value = f"{nodes} nodes with {size.edges} edges"
        raise InputError("nodes", value, "give at least 4 and 2")
    random = torch.Generator().manual_seed(seed)
    half = torch.randint(0, nodes, (2, size.edges // 2), generator=random)
    sens = (torch.rand(nodes, generator=random) < 0.4).long()
    x = torch.randn(nodes, features, generator=random)
    if density < 1:
        x *= torch.rand(nodes, features, generator=random) < density
    x[:, 0] += sens
    y = (x[:, 0] + torch.randn(nodes, generator=random) > 0.4).long()
    train = torch.rand(nodes, generator=random) < 0.5
    # A graph of a few nodes has both groups and both classes as well.
    sens[:4] = torch.tensor([0, 1, 0, 1])
    y[:4] = torch.tensor([0, 0, 1, 1])
    train[:4] = True
    both = torch.cat([half, half.flip(0)], 1)
    return Data(x, both, y=y, sens=sens, train_mask=train, name="random")


def regular_graph(nodes: int, degree: int, seed: int = 0) -> Adjacency:
    """Adjacency of a random graph whose nodes all have the same even degree, plus self-loops.

    It is a union of random permutations and their inverses: symmetric, as scattered in memory as a
    graph can be, and made without sorting its edges.
    """
    generator = torch.Generator().manual_seed(seed)
    col = torch.empty(nodes, degree + 1, dtype=torch.int32)
    col[:, degree] = torch.arange(nodes, dtype=torch.int32)
    for k in range(0, degree, 2):
        target = torch.randperm(nodes, generator=generator, dtype=torch.int64)
        col[:, k] = target
        col[target, k + 1] = torch.arange(nodes, dtype=torch.int32)
    return constant_degree(torch.arange(nodes + 1) * (degree + 1), col.view(-1), degree)


def constant_degree(row: Tensor, col: Tensor, degree: int) -> Adjacency:
    """Adjacency of a symmetric graph of one degree, self-loops included in its columns."""
    csr = CSR(row.int() if int(row[-1]) < 2**31 else row, col)
    nodes = row.numel() - 1
    return Adjacency(nodes, torch.full((nodes,), (degree + 1) ** -0.5), csr, csr)

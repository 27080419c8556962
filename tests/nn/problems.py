"""Small problems for the layer's tests."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fairmp.graph import Adjacency, normalise
from fairmp.groups import GroupOperator, group_operator


@dataclass(frozen=True)
class Problem:
    """Logits in float64, edges, groups (some unknown) and a population."""

    x: Tensor
    edge_index: Tensor
    sens: Tensor
    population: Tensor

    @property
    def graph(self) -> Adjacency:
        return normalise(self.edge_index, len(self.x), dtype=self.x.dtype)

    @property
    def groups(self) -> GroupOperator:
        return group_operator(self.sens, self.population, dtype=self.x.dtype)


def random_problem(
    n: int = 40,
    classes: int = 2,
    groups: int = 2,
    *,
    soft: bool = False,
    directed: bool = False,
    seed: int = 0,
) -> Problem:
    """Groups that are unlike each other, on a graph with a hub and an isolated node."""
    generator = torch.Generator().manual_seed(seed)
    edges = torch.randint(1, n, (2, 3 * n), generator=generator)
    edges[1, : n // 2] = 1
    edges = edges if directed else torch.cat([edges, edges.flip(0)], 1)
    codes = torch.randint(-1, groups, (n,), generator=generator)
    codes[: 2 * groups] = torch.arange(2 * groups) % groups
    x = 2 * torch.randn(n, classes, generator=generator, dtype=torch.float64)
    x[:, -1] += codes
    population = torch.rand(n, generator=generator) < 0.7
    population[: 2 * groups] = True
    sens = soften(codes, groups) if soft else codes
    return Problem(x, edges, sens, population)


def soften(codes: Tensor, groups: int) -> Tensor:
    """Probabilities of groups: 0.8 and a share of the rest; zeros where the group is unknown."""
    one_hot = torch.nn.functional.one_hot(codes.clamp_min(0), groups).double()
    return (0.8 * one_hot + 0.2 / groups) * (codes >= 0).unsqueeze(1)


def ring(n: int, dtype: torch.dtype = torch.float32) -> Adjacency:
    """A graph in which everyone has two neighbours."""
    here = torch.arange(n)
    edges = torch.stack([here, (here + 1) % n])
    return normalise(torch.cat([edges, edges.flip(0)], 1), n, dtype=dtype)


def no_edges(n: int, dtype: torch.dtype = torch.float64) -> Adjacency:
    """The graph of nodes without neighbours, whose Ã is the identity."""
    return normalise(torch.empty(2, 0, dtype=torch.int64), n, dtype=dtype)


def largest_gap(f: Tensor, sens: Tensor, temperature: float = 1.0) -> float:
    """Distance between the two groups farthest apart, class by class, from its definition."""
    p = (f.detach().double() / temperature).softmax(1)
    if sens.dim() == 2:
        means = sens.T.double() @ p / sens.double().sum(0).unsqueeze(1)
    else:
        means = torch.stack([p[sens == group].mean(0) for group in range(int(sens.max()) + 1)])
    return float((means.amax(0) - means.amin(0)).max())

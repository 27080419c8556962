"""How far apart the groups' features are, before averaging over neighbours and after each step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from fairmp.analysis.theory.conditions import Normalisation
from fairmp.graph import Adjacency
from fairmp.groups import group_operator

RIDGE = 0.01
"""Added to the diagonal of a covariance, as a share of the mean variance of the columns."""

SMALLEST = 10
"""Groups of fewer nodes are left out where a rule is learned on one half and read on the other."""


@dataclass(frozen=True)
class Reading:
    """How far apart the groups' features are; the two furthest apart, where there are more.

    Attributes:
        step: how many steps of averaging the features went through; 0 is the features themselves.
        gap: distance between the groups' means, in the features' standard deviations before any
            averaging.
        chance: the gap that groups drawn at random, of the same sizes, would have.
        separation: distance between the groups' means relative to the spread within the groups,
            √m with m = δᵀΣ⁻¹δ. Averaging shrinks both; this says which shrinks more.
        told_apart: how much more often a linear rule says "group b" of b's nodes than of a's, in
            [−1, 1]: the ΔDP of decisions that want to know the group.

    Separation and rule are learned on one half of the nodes and read on the other, both ways, so
    that many columns on few nodes do not look like a difference.
    """

    step: int
    gap: float
    chance: float
    separation: float
    told_apart: float


Deals = Sequence[tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Scores:
    """What a linear rule, learned on one half of the nodes, says of the other half."""

    values: np.ndarray
    groups: np.ndarray


def standardised(x: Tensor) -> tuple[Tensor, int]:
    """Bring every column to mean 0 and variance 1; leave out, and count, those with one value.

    Example:
        >>> standardised(torch.tensor([[1.0, 7.0], [3.0, 7.0]]))
        (tensor([[-1.],
                [ 1.]]), 1)
    """
    centred = x - x.mean(0)
    deviation = torch.linalg.vector_norm(centred, dim=0) / math.sqrt(len(x))
    # A column with one value may keep a rounding error, one that hardly varies may lose its spread.
    varied = (x.amax(0) > x.amin(0)) & (deviation > 0)
    return centred[:, varied].div_(deviation[varied]), int((~varied).sum())


def propagated(
    x: Tensor, adjacency: Adjacency, steps: int, normalisation: Normalisation
) -> Iterator[Tensor]:
    r"""Yield the features after 1, …, ``steps`` steps of averaging over neighbours.

    ``"symmetric"`` is :math:`\tilde A^k X`, what the layers here do. ``"row"`` is the plain mean of
    a node and its neighbours, :math:`(\hat D^{-1}(A+I))^k X = \hat D^{-½}\tilde A^k\hat D^{½}X`.

    Example:
        >>> from fairmp.graph import normalise
        >>> features = torch.tensor([[0.0], [2.0], [4.0]])
        >>> adjacency = normalise(torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), 3)
        >>> [x.flatten() for x in propagated(features, adjacency, 2, "row")]
        [tensor([1.0000, 2.0000, 3.0000]), tensor([1.5000, 2.0000, 2.5000])]
    """
    # Without weights a row of Ã holds 1 + degree entries.
    root = adjacency.forward.row.diff().to(x.dtype).sqrt()[:, None]
    x = root * x if normalisation == "row" else x
    # A few columns at a time fit in the processor's cache, and take half the time.
    parts = [part.contiguous() for part in x.split(32, dim=1)]
    for _ in range(steps):
        parts = [adjacency @ part for part in parts]
        joined = torch.cat(parts, 1)
        yield joined.div_(root) if normalisation == "row" else joined


def readings(
    x: Tensor, adjacency: Adjacency, sens: Tensor, steps: int, deals: Deals
) -> dict[Normalisation, tuple[Reading, ...]]:
    """Read the groups' distance off features after 0, …, ``steps`` steps, both normalisations.

    Args:
        x: standardised features (n×d).
        adjacency: Ã of the graph.
        sens: group of each node, −1 = unknown, every group there.
        steps: how many steps.
        deals: halves of the nodes, from :func:`halves`.

    Example:
        >>> from fairmp.graph import normalise
        >>> from fairmp.datasets import social_network
        >>> data = social_network(n=500, average_degree=10)
        >>> adjacency = normalise(data.edge_index, 500)
        >>> read = readings(data.x, adjacency, data.sens, 2, [halves(data.sens, 0)])["row"]
        >>> [reading.step for reading in read], read[1].separation > read[0].separation
        ([0, 1, 2], True)
    """

    def read(step: int, features: Tensor) -> Reading:
        return Reading(step, *mean_gap(features, sens), *_dealt(features, deals))

    start = read(0, x)
    kinds: tuple[Normalisation, ...] = ("row", "symmetric")
    return {
        kind: (start, *map(read, range(1, steps + 1), propagated(x, adjacency, steps, kind)))
        for kind in kinds
    }


def made_up(columns: int, adjacency: Adjacency, steps: int, deals: Deals, seed: int) -> list[float]:
    """How far made-up features tell the groups apart after 0, …, ``steps`` steps of averaging.

    They are independent normal numbers and know nothing of the groups; averaged over neighbours
    they know where in the graph a node sits, and so does a rule that reads them. What they show is
    the topology's own doing.

    Args:
        columns: how many there are; more of them tell more.
        adjacency: Ã of the graph.
        steps: how many steps of plain averaging.
        deals: halves of the nodes, from :func:`halves`.
        seed: of the numbers.

    Example:
        >>> from fairmp.graph import normalise
        >>> from fairmp.datasets import social_network
        >>> data = social_network(n=2000, average_degree=10)
        >>> adjacency = normalise(data.edge_index, 2000)
        >>> before, after = made_up(8, adjacency, 1, [halves(data.sens, 0)], seed=0)
        >>> abs(before) < 0.05, after > 0.1
        (True, True)
    """
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(adjacency.num_nodes, columns, generator=generator)
    return [_dealt(x, deals)[1]] + [
        _dealt(features, deals)[1] for features in propagated(x, adjacency, steps, "row")
    ]


def _dealt(x: Tensor, deals: Deals) -> tuple[float, float]:
    values = x.numpy()
    read = [held_out(values, groups, half) for groups, half in deals]
    separation, told = np.mean(read, axis=0)
    return float(separation), float(told)


def mean_gap(x: Tensor, sens: Tensor) -> tuple[float, float]:
    r"""Distance of the groups' means, :math:`\lVert\Delta X\rVert`, and what chance makes of it.

    Where groups are dealt out at random, :math:`\mathbb E\lVert\delta\rVert^2 = \sum_j
    \mathrm{Var}(x_j)(1/n_a + 1/n_b)`; its root is the second number. For more than two groups both
    are those of the pair furthest apart.

    Example:
        >>> x = torch.tensor([[0.0], [0.0], [3.0], [3.0]])
        >>> [round(value, 3) for value in mean_gap(x, torch.tensor([0, 0, 1, 1]))]
        [3.0, 1.5]
    """
    delta = group_operator(sens, rows="groups", dtype=x.dtype)
    means = delta.gap(x).double()
    counts = torch.bincount(sens[sens >= 0]).tolist()
    gap, a, b = max(
        (float((means[a] - means[b]).norm()), a, b) for a, b in combinations(range(len(means)), 2)
    )
    known = x if bool((sens >= 0).all()) else x[sens >= 0]
    spread = float(known.norm() ** 2 / len(known) - known.mean(0).norm() ** 2)
    return gap, math.sqrt(max(spread, 0.0) * (1 / counts[a] + 1 / counts[b]))


def halves(sens: Tensor, seed: int | Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Deal the nodes of each group into two halves.

    Returns:
        The groups, with those of fewer than ten nodes unknown and the rest numbered from 0 again,
        and the half of each node: 0, 1, or −1 where its group is unknown.

    Example:
        >>> groups, half = halves(torch.tensor([0] * 10 + [1] * 12 + [2, -1]), seed=0)
        >>> np.bincount(groups + 1).tolist(), np.bincount(half + 1).tolist()
        ([2, 10, 12], [2, 11, 11])
    """
    rng = np.random.default_rng(seed)
    groups = np.full(len(sens), -1)
    half = np.full(len(sens), -1)
    number = 0
    for g in range(int(sens.max()) + 1):
        members = rng.permutation(np.flatnonzero(sens.numpy() == g))
        if len(members) < SMALLEST:
            continue
        groups[members], number = number, number + 1
        half[members] = np.arange(len(members)) % 2
    return groups, half


def held_out(x: np.ndarray, groups: np.ndarray, half: np.ndarray) -> tuple[float, float]:
    """Separation and share told apart, learned on one half and read on the other, both ways.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(400, 3))
        >>> groups = np.arange(400) % 2
        >>> x[:, 1] += 2 * groups
        >>> separation, told = held_out(x, groups, np.arange(400) // 200)
        >>> abs(separation - 2) < 0.3, abs(told - 0.68) < 0.1
        (True, True)
    """
    count = int(groups.max()) + 1
    if count < 2 or not x.shape[1]:
        return 0.0, 0.0
    pairs = np.array(list(combinations(range(count), 2)))
    one, other = _both(x, groups, half)
    read = [_read(one, other, pairs), _read(other, one, pairs)]
    separation, told = np.mean(read, axis=0)
    return float(separation.max()), float(told.max())


def scores(x: np.ndarray, groups: np.ndarray, half: np.ndarray) -> list[Scores]:
    """Bring features to the few directions in which the groups differ, from the other half's view.

    The directions are Σ⁻¹(μ_g − μ_0), g = 1…G−1: one number a node for two groups. Averaging over
    neighbours is linear, so it does to the scores what it does to the features.
    """
    parts = _both(x, groups, half)
    found = []
    for learned, other in (parts, parts[::-1]):
        w = learned.inverse(learned.means[1:] - learned.means[:1])
        values = [other.score(g, w) for g in range(len(other.means))]
        sizes = [len(part) for part in values]
        found.append(Scores(np.concatenate(values), np.repeat(np.arange(len(sizes)), sizes)))
    return found


def _both(x: np.ndarray, groups: np.ndarray, half: np.ndarray) -> list[_Half]:
    count = int(groups.max()) + 1
    return [
        _Half([x[np.flatnonzero((groups == g) & (half == k))] for g in range(count)])
        for k in (0, 1)
    ]


class _Half:
    """Half of the nodes: each group's mean, its features around it, the spread within groups."""

    def __init__(self, parts: list[np.ndarray]) -> None:
        self.parts = parts
        self.means = np.stack([part.mean(0, dtype=np.float64) for part in parts])
        square = np.zeros((parts[0].shape[1],) * 2)
        for part, mean in zip(parts, self.means, strict=True):
            part -= mean.astype(part.dtype)
            square += part.T @ part
        self.covariance = square / (sum(map(len, parts)) - len(parts))

    def inverse(self, vectors: np.ndarray) -> np.ndarray:
        """Σ⁻¹ of each row, with a ridge."""
        scale = np.trace(self.covariance) / len(self.covariance)
        if scale <= 0:
            return np.zeros_like(vectors)
        ridge = RIDGE * scale * np.eye(len(self.covariance))
        return np.linalg.solve(self.covariance + ridge, vectors.T).T

    def score(self, group: int, w: np.ndarray) -> np.ndarray:
        """What each rule (a row of ``w``) says of each node of a group."""
        part = self.parts[group]
        return part @ w.T.astype(part.dtype) + self.means[group] @ w.T


def _read(learned: _Half, other: _Half, pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    a, b = pairs.T
    w = learned.inverse(learned.means[b] - learned.means[a])
    middle = (w * (learned.means[a] + learned.means[b])).sum(1) / 2
    moved = (w * (other.means[b] - other.means[a])).sum(1)
    spread = np.sqrt(np.einsum("pi,ij,pj->p", w, other.covariance, w))
    separation = np.divide(moved, spread, out=np.zeros_like(moved), where=spread > 0)
    rates = np.stack([(other.score(g, w) > middle).mean(0) for g in range(len(other.means))])
    index = np.arange(len(pairs))
    return separation, rates[b, index] - rates[a, index]

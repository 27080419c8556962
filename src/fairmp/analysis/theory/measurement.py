"""Averages over neighbours, and the bias of features measured on held-out nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import NamedTuple, TypeAlias

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import LinearOperator, aslinearoperator, cg
from torch import Tensor
from torch_geometric.data import Data

from fairmp.analysis.theory.bounds import GroupMoments
from fairmp.analysis.theory.conditions import Blocks, Normalisation, exponent
from fairmp.analysis.theory.prediction import decision
from fairmp.datasets.statistics import homophily
from fairmp.errors import InputError

HELD_OUT_RIDGE = 0.01  # of held-out rules, as a share of the mean variance within groups
MAX_DIRECT = 1000  # features up to which rules are found by factorisation
PROBES = 64  # random vectors that estimate a sum of squares
Features: TypeAlias = np.ndarray | LinearOperator  # of the nodes (n×d)


class GraphParameters(NamedTuple):
    """Parameters of the (n, ρ, ε, c) model for a graph with two groups."""

    n: int
    rho: float
    eps: float
    c: float


def averaged(
    values: Features, edge_index: Tensor, steps: int, normalisation: Normalisation
) -> Iterator[Features]:
    """Yield features after 1, …, ``steps`` steps of averaging, in the precision of ``values``."""
    theta, n = exponent(normalisation), values.shape[0]
    source, target = np.hstack([edge_index.cpu().numpy(), [np.arange(n), np.arange(n)]])
    degree = np.bincount(source).astype(float)
    weight = (degree[source] ** -theta * degree[target] ** (theta - 1)).astype(values.dtype)
    matrix = sp.csr_array((weight, (source, target)), shape=(n, n))
    step = matrix if isinstance(values, np.ndarray) else aslinearoperator(matrix)
    for _ in range(steps):
        values = step @ values
        yield values


def measured_moments(x: Tensor, sens: Tensor, *, ridge: float = 0.0) -> GroupMoments:
    """Mean and covariance of each group's features, and each group's share of the known nodes.

    Nodes of unknown group (−1) are ignored. ``ridge`` is added to the covariances' diagonal, as a
    share of the features' mean variance.

    Example:
        >>> import torch
        >>> moments = measured_moments(torch.tensor([[0.0], [2.0], [5.0], [7.0]]),
        ...                            torch.tensor([0, 0, 1, 1]))
        >>> moments.means.tolist(), moments.covariances.ravel().tolist(), moments.shares.tolist()
        ([[1.0], [6.0]], [2.0, 2.0], [0.5, 0.5])
    """
    values, group = x.detach().cpu().double().numpy(), sens.cpu().numpy()
    return _with_ridge(_moments(values, group), ridge * values[group >= 0].var(0).mean())


def _moments(values: np.ndarray, group: np.ndarray) -> GroupMoments:
    counts = np.bincount(group[group >= 0])
    if len(counts) < 2 or counts.min() < 2:
        by_group = f"{counts.tolist()} nodes by group"
        raise InputError("sens", by_group, "give two groups with two nodes each")
    means, covariances = [], []
    for g in range(len(counts)):
        members = values[group == g]
        means.append(members.mean(0, dtype=float))
        members -= means[g].astype(members.dtype)
        # Not np.cov, which converts to double precision: the audit's matrices are large.
        covariances.append(members.T @ members * (1 / (len(members) - 1)))
    return GroupMoments(np.stack(means), np.stack(covariances).astype(float), counts / counts.sum())


def _with_ridge(moments: GroupMoments, ridge: float) -> GroupMoments:
    diagonal = ridge * np.eye(moments.means.shape[-1])
    return replace(moments, covariances=moments.covariances + diagonal)


@dataclass(frozen=True)
class Halves:
    """Nodes cut into two halves: rules are fitted on one and evaluated on the other."""

    group: np.ndarray  # of each node; −1 where it is not used
    half: np.ndarray  # 0 or 1; −1 where it is not used


@dataclass(frozen=True)
class HeldOutScores:
    """Scores of one half of the nodes, by rules fitted on the other."""

    scores: np.ndarray  # (nodes×pairs), one column per pair of groups
    group: np.ndarray


class HeldOutBias(NamedTuple):
    """Bias of the most distinct pair of groups, on held-out nodes."""

    separation: float  # √(δᵀΣ⁻¹δ)
    parity: float


def held_out_scores(
    values: Features, halves: Halves, *, with_first: bool = False
) -> list[HeldOutScores]:
    """Fit linear rules for all pairs of groups, or with the first, on one half; score the other."""
    pairs = list(combinations(range(int(halves.group.max()) + 1), 2))
    if with_first:
        pairs = [pair for pair in pairs if pair[0] == 0]
    by_half = []
    for k in (0, 1):
        fitted, evaluated = halves.half == k, halves.half == 1 - k
        directions, thresholds = _rules(values, np.where(fitted, halves.group, -1), pairs)
        scores = (values @ directions)[evaluated] - thresholds
        by_half.append(HeldOutScores(scores, halves.group[evaluated]))
    return by_half


def _rules(
    values: Features, group: np.ndarray, pairs: Sequence[tuple[int, int]]
) -> tuple[np.ndarray, np.ndarray]:
    """Directions (d×pairs) and thresholds of linear rules between groups, fitted to their nodes."""
    if isinstance(values, np.ndarray) and values.shape[1] <= MAX_DIRECT:
        return _rules_by_factorisation(values, group, pairs)
    return _rules_by_conjugate_gradients(values, group, pairs)


def _rules_by_factorisation(
    values: np.ndarray, group: np.ndarray, pairs: Sequence[tuple[int, int]]
) -> tuple[np.ndarray, np.ndarray]:
    size = values.shape[1]
    moments = _moments(values, group)
    variance = np.trace(moments.shares @ moments.covariances.swapaxes(0, 1)) / size
    ridged = _with_ridge(moments, HELD_OUT_RIDGE * variance if variance > 0 else 1.0)
    rules = [decision(ridged, b, a) for a, b in pairs]
    directions = np.stack([direction for direction, _ in rules], 1).astype(values.dtype)
    return directions, np.array([threshold for _, threshold in rules])


def _rules_by_conjugate_gradients(
    values: Features, group: np.ndarray, pairs: Sequence[tuple[int, int]]
) -> tuple[np.ndarray, np.ndarray]:
    """The same without the covariances, for many features or a sparse matrix."""
    size = values.shape[1]
    means, counts = group_means(values, group), np.bincount(group[group >= 0])
    squares = mean_squares(values, group >= 0) - counts / counts.sum() @ (means**2).sum(1)
    ridge = HELD_OUT_RIDGE * squares / size if squares > 0 else 1.0
    directions = np.empty((size, len(pairs)), dtype=values.dtype)
    for k, (a, b) in enumerate(pairs):
        system = _within_covariance(values, [group == a, group == b], ridge)
        directions[:, k] = cg(system, means[b] - means[a], rtol=1e-3, maxiter=300)[0]
    centres = np.stack([means[a] + means[b] for a, b in pairs], 1) / 2
    return directions, (directions * centres).sum(0)


def _within_covariance(
    values: Features, members: Sequence[np.ndarray], ridge: float
) -> LinearOperator:
    """Covariance within groups, plus a ridge, as a product with a vector."""
    size = values.shape[1]
    freedom = sum(member.sum() for member in members) - len(members)

    def product(w: np.ndarray) -> np.ndarray:
        scores = values @ w
        centred = sum(np.where(member, scores - scores[member].mean(), 0) for member in members)
        return np.asarray(values.T @ centred / freedom + ridge * w)

    return LinearOperator((size, size), product)


def group_means(values: Features, group: np.ndarray) -> np.ndarray:
    """Mean of each group's features (G×d); nodes of group −1 are ignored."""
    counts = np.bincount(group[group >= 0])
    if isinstance(values, np.ndarray):
        return np.stack([values[group == g].mean(0, dtype=float) for g in range(len(counts))])
    members = np.stack([(group == g) / counts[g] for g in range(len(counts))], 1)
    return np.asarray(values.T @ members).T


def mean_squares(values: Features, chosen: np.ndarray) -> float:
    """Mean over some nodes of the sum of their squared features; estimated if they are wide."""
    if isinstance(values, np.ndarray):
        rows = values if chosen.all() else values[chosen]
        return float(np.vdot(rows, rows)) / len(rows)
    signs = np.random.default_rng(0).integers(0, 2, (values.shape[1], PROBES)) * 2.0 - 1
    return float((np.asarray(values @ signs)[chosen] ** 2).sum(1).mean()) / PROBES


def held_out_bias(values: Features, halves: Halves) -> HeldOutBias:
    """Separation and parity of the most distinct pair of groups, averaged over both halves."""
    if int(halves.group.max()) < 1 or not values.shape[1]:
        return HeldOutBias(0.0, 0.0)
    folds = [_separation_and_parity(half) for half in held_out_scores(values, halves)]
    separation, parity = np.mean(folds, axis=0)
    return HeldOutBias(float(separation.max()), float(parity.max()))


def _separation_and_parity(held_out: HeldOutScores) -> np.ndarray:
    """Separation and parity of every pair of groups (2×pairs), by the rule for that pair."""
    groups = int(held_out.group.max()) + 1
    members = [held_out.scores[held_out.group == g] for g in range(groups)]
    means = np.stack([scores.mean(0) for scores in members])
    squares = sum(((scores - scores.mean(0)) ** 2).sum(0) for scores in members)
    spread = np.sqrt(squares / (len(held_out.group) - groups))
    rates = np.stack([(scores > 0).mean(0) for scores in members])
    a, b = np.array(list(combinations(range(groups), 2))).T
    rule = np.arange(len(a))
    distance = means[b, rule] - means[a, rule]
    separation = np.divide(distance, spread, out=np.zeros_like(distance), where=spread > 0)
    return np.stack([separation, rates[b, rule] - rates[a, rule]])


def block_counts(data: Data) -> Blocks:
    """Group sizes (G) and observed edge probabilities (G×G), among nodes of known group.

    Example:
        >>> import torch
        >>> data = Data(edge_index=torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]),
        ...             sens=torch.tensor([0, 0, 1, 1]))
        >>> sizes, probabilities = block_counts(data)
        >>> sizes.tolist(), probabilities.tolist()
        ([2, 2], [[1.0, 0.25], [0.25, 0.0]])
    """
    sens = data.sens.cpu().numpy()
    sizes = np.bincount(sens[sens >= 0])
    if len(sizes) < 2 or sizes.min() < 1:
        raise InputError("sens", f"{sizes.tolist()} nodes by group", "give two groups or more")
    source, target = sens[data.edge_index.cpu().numpy()]
    known_mask = (source >= 0) & (target >= 0)
    edges = np.zeros((len(sizes), len(sizes)))
    np.add.at(edges, (source[known_mask], target[known_mask]), 1.0)
    pairs = np.outer(sizes, sizes) - np.diag(sizes)
    observed = np.divide(edges, pairs, out=np.zeros_like(edges), where=pairs > 0)
    return Blocks(sizes, observed)


def graph_parameters(data: Data) -> GraphParameters:
    """Parameters of the (n, ρ, ε, c) model for a graph with two groups, from its known nodes.

    Example:
        >>> import torch
        >>> data = Data(edge_index=torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]),
        ...             sens=torch.tensor([0, 0, 1, 1]))
        >>> graph_parameters(data)
        GraphParameters(n=4, rho=0.333..., eps=0.5, c=0.5)
    """
    sizes, probabilities = block_counts(data)
    if len(sizes) != 2:
        raise InputError("sens", f"{len(sizes)} groups", "the (n, ρ, ε, c) model has two")
    eps = homophily(data.edge_index, data.sens)
    if eps is None:
        raise InputError("edge_index", "no edge joins two nodes of known group")
    n = int(sizes.sum())
    edges = probabilities * (np.outer(sizes, sizes) - np.diag(sizes))
    return GraphParameters(n, float(edges.sum()) / (n * (n - 1)), eps, float(sizes[1]) / n)

"""Feature bias measured on a graph: in sample for the theory, held out for the audit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import NamedTuple, TypeAlias

import numpy as np
import scipy.sparse as sp
import torch
from scipy.sparse.linalg import LinearOperator, aslinearoperator, cg
from torch import Tensor
from torch_geometric.data import Data

from fairmp.analysis.theory.bounds import Moments
from fairmp.analysis.theory.conditions import Normalisation, exponent
from fairmp.analysis.theory.prediction import Bias, Change, bias_of, decision
from fairmp.errors import InputError, check_integer

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

    @property
    def average_degree(self) -> float:
        """Average number of neighbours per node."""
        return self.rho * (self.n - 1)

    @property
    def balanced_eps(self) -> float:
        """Homophily of equal groups whose neighbourhoods differ by the same share of group 0."""
        # ε alone misleads where groups are unequal: with c = 0.1, 82 % of pairs are within a group.
        p = self.eps / (self.c**2 + (1 - self.c) ** 2)
        q = (1 - self.eps) / (2 * self.c * (1 - self.c))
        first = (1 - self.c) * p / ((1 - self.c) * p + self.c * q)
        second = (1 - self.c) * q / ((1 - self.c) * q + self.c * p)
        return (1 + first - second) / 2


def aggregate(
    x: Tensor, edge_index: Tensor, *, steps: int = 1, normalisation: Normalisation = "row"
) -> Tensor:
    r"""Average features over neighbours: :math:`(\hat D^{-\theta}(A+I)\hat D^{\theta-1})^k X`.

    :math:`\theta` is 1 for row and ½ for symmetric normalisation. ``edge_index`` has both
    directions of every edge and no self-loops.

    Example:
        >>> aggregate(torch.tensor([[0.0], [2.0]]), torch.tensor([[0, 1], [1, 0]])).flatten()
        tensor([1., 1.])
    """
    check_integer("steps", steps, "give 0 or more", low=0)
    values = x.detach().cpu().double().numpy()
    for step in averaged(values, edge_index, steps, normalisation):
        values = step
    return torch.from_numpy(values).to(x)


def averaged(
    values: Features, edge_index: Tensor, steps: int, normalisation: Normalisation
) -> Iterator[Features]:
    """Yield features after 1, …, ``steps`` steps of averaging, in the precision of ``values``."""
    from fairmp.kernels import implementation

    theta, n = exponent(normalisation), values.shape[0]
    # Not fairmp.graph.normalise, whose sorting takes longer than a step.
    source, target = np.hstack([edge_index.cpu().numpy(), [np.arange(n), np.arange(n)]])
    matrix = sp.csr_array((np.ones(len(source), values.dtype), (source, target)), shape=(n, n))
    degree = torch.from_numpy(np.bincount(source)).double()
    scales = degree.pow(-theta), degree.pow(theta - 1)
    if not isinstance(values, np.ndarray):
        outer, inner = (sp.diags_array(scale.numpy()) for scale in scales)
        step = aslinearoperator(sp.csr_array(outer @ matrix @ inner))
        for _ in range(steps):
            values = step @ values
            yield values
        return
    f = torch.from_numpy(values)
    row, col, weight = map(torch.from_numpy, (matrix.indptr, matrix.indices, matrix.data))
    left, right = (scale.to(f.dtype) for scale in scales)
    for _ in range(steps):
        f = implementation(f).aggregate((row, col, weight, left, right), f, None, 0.0)
        yield f.numpy()


def group_moments(x: Tensor, sens: Tensor, *, ridge: float = 0.0) -> tuple[Moments, np.ndarray]:
    """Mean and covariance of each group's features, and each group's share of the known nodes.

    Nodes of unknown group (−1) are ignored. ``ridge`` is added to the covariances' diagonal, as a
    share of the features' mean variance.

    Example:
        >>> moments, weights = group_moments(torch.tensor([[0.0], [2.0], [5.0], [7.0]]),
        ...                                  torch.tensor([0, 0, 1, 1]))
        >>> moments.means.tolist(), moments.covariances.ravel().tolist(), weights.tolist()
        ([[1.0], [6.0]], [2.0, 2.0], [0.5, 0.5])
    """
    values, group = x.detach().cpu().double().numpy(), sens.cpu().numpy()
    (means, covariances), weights = _moments(values, group)
    extra = ridge * values[group >= 0].var(0).mean() * np.eye(values.shape[1])
    return Moments(means, covariances + extra), weights


def _moments(values: np.ndarray, group: np.ndarray) -> tuple[Moments, np.ndarray]:
    counts = np.bincount(group[group >= 0])
    if len(counts) < 2 or counts.min() < 2:
        by_group = f"{counts.tolist()} nodes by group"
        raise InputError("sens", by_group, "give two groups with two nodes each")
    means, covariances = [], []
    for g in range(len(counts)):
        part = values[group == g]
        means.append(part.mean(0, dtype=float))
        part -= means[g].astype(part.dtype)
        # Not np.cov, which converts to double precision: the audit's matrices are large.
        covariances.append(part.T @ part * (1 / (len(part) - 1)))
    return Moments(np.stack(means), np.stack(covariances).astype(float)), counts / counts.sum()


def measured_bias(x: Tensor, sens: Tensor, *, ridge: float = 0.0) -> Bias:
    """Measure the bias of features; the arguments are those of ``group_moments``.

    Example:
        >>> x = torch.tensor([[0.0], [2.0], [4.0], [3.0], [5.0], [7.0]])
        >>> measured_bias(x, torch.tensor([0, 0, 0, 1, 1, 1])).parity
        0.333...
    """
    moments, weights = group_moments(x, sens, ridge=ridge)
    smallest = float(np.linalg.eigvalsh(moments.covariances).min())
    if not smallest > 1e-12 * float(np.abs(moments.covariances).max()):
        problem = f"features are linearly dependent in a group (smallest eigenvalue {smallest:.2g})"
        raise InputError("x", problem, "give ridge=1e-3, or fewer features")
    gap, _, information = bias_of(moments, weights)
    values, group = x.detach().cpu().double().numpy(), sens.cpu().numpy()
    parities = []
    for a, b in combinations(range(len(weights)), 2):
        w, threshold = decision(moments, weights, a, b)
        positive = values @ w > threshold
        parities.append(abs(positive[group == a].mean() - positive[group == b].mean()))
    return Bias(float(gap), float(max(parities)), float(information))


def held_out_scores(
    values: Features, group: np.ndarray, half: np.ndarray, *, with_first: bool = False
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Fit rules for pairs of groups on half of the nodes; return scores and groups of the other."""
    pairs = list(combinations(range(int(group.max()) + 1), 2))
    if with_first:
        pairs = [pair for pair in pairs if pair[0] == 0]
    found = []
    for k in (0, 1):
        directions, thresholds = _rules(values, np.where(half == k, group, -1), pairs)
        scores = (values @ directions)[half == 1 - k] - thresholds
        found.append((scores, group[half == 1 - k]))
    return found


def _rules(
    values: Features, group: np.ndarray, pairs: Sequence[tuple[int, int]]
) -> tuple[np.ndarray, np.ndarray]:
    """Directions (d×pairs) and thresholds of linear rules between groups, fitted to their nodes."""
    size = values.shape[1]
    if isinstance(values, np.ndarray) and size <= MAX_DIRECT:
        (means, covariances), weights = _moments(values, group)
        variance = np.trace(weights @ covariances.swapaxes(0, 1)) / size
        ridge = HELD_OUT_RIDGE * variance if variance > 0 else 1.0
        moments = Moments(means, covariances + ridge * np.eye(size))
        rules = [decision(moments, weights, b, a) for a, b in pairs]
        found = np.stack([w for w, _ in rules], 1).astype(values.dtype)
        return found, np.array([t for _, t in rules])
    means, counts = group_means(values, group), np.bincount(group[group >= 0])
    squares = mean_squares(values, group >= 0) - counts / counts.sum() @ (means**2).sum(1)
    ridge = HELD_OUT_RIDGE * squares / size if squares > 0 else 1.0
    directions = np.empty((size, len(pairs)), dtype=values.dtype)
    for k, (a, b) in enumerate(pairs):
        parts = group == a, group == b

        def covariance(w: np.ndarray, parts: tuple[np.ndarray, ...] = parts) -> np.ndarray:
            scores = values @ w
            centred = sum(np.where(part, scores - scores[part].mean(), 0) for part in parts)
            within = values.T @ centred / (sum(part.sum() for part in parts) - 2)
            return np.asarray(within + ridge * w)

        system, apart = LinearOperator((size, size), covariance), means[b] - means[a]
        directions[:, k] = cg(system, apart, rtol=1e-3, maxiter=300)[0]
    centres = np.stack([means[a] + means[b] for a, b in pairs], 1) / 2
    return directions, (directions * centres).sum(0)


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
        part = values if chosen.all() else values[chosen]
        return float(np.vdot(part, part)) / len(part)
    signs = np.random.default_rng(0).integers(0, 2, (values.shape[1], PROBES)) * 2.0 - 1
    return float((np.asarray(values @ signs)[chosen] ** 2).sum(1).mean()) / PROBES


def held_out_bias(values: Features, group: np.ndarray, half: np.ndarray) -> tuple[float, float]:
    """Separation √(δᵀΣ⁻¹δ) and parity of the most distinct pair of groups, on held-out nodes."""
    if int(group.max()) < 1 or not values.shape[1]:
        return 0.0, 0.0
    folds = []
    for scores, groups in held_out_scores(values, group, half):
        members = [scores[groups == g] for g in range(int(groups.max()) + 1)]
        means = np.stack([part.mean(0) for part in members])
        squares = sum(((part - part.mean(0)) ** 2).sum(0) for part in members)
        spread = np.sqrt(squares / (len(groups) - len(members)))
        rates = np.stack([(part > 0).mean(0) for part in members])
        a, b = np.array(list(combinations(range(len(members)), 2))).T
        rules = np.arange(len(a))
        moved = means[b, rules] - means[a, rules]
        separation = np.divide(moved, spread, out=np.zeros_like(moved), where=spread > 0)
        folds.append((separation, rates[b, rules] - rates[a, rules]))
    separation, parity = np.mean(folds, axis=0)
    return float(separation.max()), float(parity.max())


def measured_change(
    data: Data, *, steps: int = 1, normalisation: Normalisation = "row", ridge: float = 0.0
) -> Change:
    """Measure the change of the bias of a graph's features after ``steps`` steps of averaging.

    See ``aggregate`` for ``steps`` and ``normalisation`` and ``group_moments`` for ``ridge``.

    Example:
        >>> from fairmp.analysis.theory.block_model import block_graph
        >>> change = measured_change(block_graph(2000, 0.01, 0.9, 0.5, seed=0))
        >>> change.information > 0, change.gap < 0
        (True, True)
    """
    after = aggregate(data.x, data.edge_index, steps=steps, normalisation=normalisation)
    return Change(*(measured_bias(x, data.sens, ridge=ridge) for x in (data.x, after)))


def block_counts(data: Data) -> tuple[np.ndarray, np.ndarray]:
    """Group sizes (G) and observed edge probabilities (G×G), among nodes of known group.

    Example:
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
    known = (source >= 0) & (target >= 0)
    edges = np.zeros((len(sizes), len(sizes)))
    np.add.at(edges, (source[known], target[known]), 1.0)
    pairs = np.outer(sizes, sizes) - np.diag(sizes)
    return sizes, np.divide(edges, pairs, out=np.zeros_like(edges), where=pairs > 0)


def graph_parameters(data: Data) -> GraphParameters:
    """Parameters of the (n, ρ, ε, c) model for a graph with two groups, from its known nodes.

    Example:
        >>> data = Data(edge_index=torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]),
        ...             sens=torch.tensor([0, 0, 1, 1]))
        >>> graph_parameters(data)
        GraphParameters(n=4, rho=0.333..., eps=0.5, c=0.5)
    """
    sizes, probabilities = block_counts(data)
    if len(sizes) != 2:
        raise InputError("sens", f"{len(sizes)} groups", "the (n, ρ, ε, c) model has two")
    edges = probabilities * (np.outer(sizes, sizes) - np.diag(sizes))
    n, total = int(sizes.sum()), float(edges.sum())
    if total == 0:
        raise InputError("edge_index", "no edge joins two nodes of known group")
    within = float(np.trace(edges)) / total
    return GraphParameters(n, total / (n * (n - 1)), within, float(sizes[1]) / n)

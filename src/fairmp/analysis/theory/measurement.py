"""What averaging over neighbours does to the bias on a graph one has."""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from fairmp.analysis.theory.conditions import Normalisation, exponent
from fairmp.analysis.theory.moments import Moments
from fairmp.analysis.theory.prediction import Bias, Change, bias_of, decision
from fairmp.errors import InputError


class GraphParameters(NamedTuple):
    """A graph of two groups as a point of the (n, ρ, ε, c) model."""

    n: int
    rho: float
    eps: float
    c: float

    @property
    def average_degree(self) -> float:
        """Neighbours of a node, on average."""
        return self.rho * (self.n - 1)

    @property
    def balanced_eps(self) -> float:
        """The homophily that gives equal groups the same contrast between neighbourhoods.

        ε alone misleads where groups are unequal: with c = 0.1, 82 % of all pairs are inside a
        group, so ε = 0.82 is no homophily at all. Averaging moves the groups' means by the
        difference of their neighbours' shares of the first group, b₁ − b₂ (the node itself not
        counted), which for c = ½ is 2ε − 1; this is (1 + b₁ − b₂)/2.

        Example:
            >>> round(GraphParameters(n=1000, rho=0.01, eps=0.82, c=0.1).balanced_eps, 3)
            0.5
        """
        p = self.eps / (self.c**2 + (1 - self.c) ** 2)
        q = (1 - self.eps) / (2 * self.c * (1 - self.c))
        first = (1 - self.c) * p / ((1 - self.c) * p + self.c * q)
        second = (1 - self.c) * q / ((1 - self.c) * q + self.c * p)
        return (1 + first - second) / 2


def aggregate(
    x: Tensor, edge_index: Tensor, *, steps: int = 1, normalisation: Normalisation = "row"
) -> Tensor:
    r"""Average features over neighbours: :math:`(\hat D^{-\theta}(A+I)\hat D^{\theta-1})^k X`.

    Args:
        x: features (n×d).
        edge_index: both directions of every edge, without self-loops (2×E).
        steps: how many times, k.
        normalisation: ``"row"`` (:math:`\theta = 1`) or ``"symmetric"`` (:math:`\theta = ½`).

    Example:
        >>> aggregate(torch.tensor([[0.0], [2.0]]), torch.tensor([[0, 1], [1, 0]]))
        tensor([[1.],
                [1.]])
    """
    from scipy.sparse import csr_array

    theta = exponent(normalisation)
    if steps < 0:
        raise InputError("steps", f"{steps} is negative", "give 0 or more")
    n = x.size(0)
    source, target = edge_index.cpu().numpy()
    adjacency = csr_array((np.ones(len(source)), (source, target)), shape=(n, n))
    degree = 1.0 + np.bincount(source, minlength=n)
    values = x.detach().cpu().double().numpy()
    left, right = (degree**power for power in (-theta, theta - 1))
    for _ in range(steps):
        scaled = right[:, None] * values
        values = left[:, None] * (adjacency @ scaled + scaled)
    return torch.from_numpy(values).to(x)


def group_moments(x: Tensor, sens: Tensor, *, ridge: float = 0.0) -> tuple[Moments, np.ndarray]:
    """Mean and covariance of each group's features, and each group's share of the known nodes.

    Args:
        x: features (n×d).
        sens: group of each node, −1 = unknown and left out.
        ridge: added to the covariances' diagonal, as a share of the features' mean variance;
            needed where features are constant or depend on each other.

    Example:
        >>> moments, weights = group_moments(torch.tensor([[0.0], [2.0], [5.0], [7.0]]),
        ...                                  torch.tensor([0, 0, 1, 1]))
        >>> moments.means.tolist(), moments.covariances.ravel().tolist(), weights.tolist()
        ([[1.0], [6.0]], [2.0, 2.0], [0.5, 0.5])
    """
    values, group = x.detach().cpu().double().numpy(), sens.cpu().numpy()
    counts = np.bincount(group[group >= 0])
    if len(counts) < 2 or counts.min() < 2:
        raise InputError(
            "sens",
            f"{counts.tolist()} nodes by group",
            "a covariance needs two groups or more with two nodes each",
        )
    members = [values[group == g] for g in range(len(counts))]
    extra = ridge * values[group >= 0].var(0).mean() * np.eye(values.shape[1])
    covariances = [np.atleast_2d(np.cov(part, rowvar=False)) + extra for part in members]
    moments = Moments(np.stack([part.mean(0) for part in members]), np.stack(covariances))
    return moments, counts / counts.sum()


def measured_bias(x: Tensor, sens: Tensor, *, ridge: float = 0.0) -> Bias:
    """Measure the bias of features: the same three readings as ``predicted_change``.

    The gap and the information are read off the groups' sample moments; the parity is counted,
    node by node, on the decision that those moments give.

    Args:
        x: features (n×d).
        sens: group of each node, −1 = unknown and left out.
        ridge: see ``group_moments``.

    Example:
        >>> x = torch.tensor([[0.0], [2.0], [4.0], [3.0], [5.0], [7.0]])
        >>> measured_bias(x, torch.tensor([0, 0, 0, 1, 1, 1])).parity
        0.333...
    """
    moments, weights = group_moments(x, sens, ridge=ridge)
    smallest = float(np.linalg.eigvalsh(moments.covariances).min())
    if not smallest > 1e-12 * float(np.abs(moments.covariances).max()):
        raise InputError(
            "x",
            "within a group a feature is constant or follows from the others (smallest "
            f"eigenvalue {smallest:.2g})",
            "give ridge=1e-3, or fewer features",
        )
    gap, _, information = bias_of(moments, weights)
    values, group = x.detach().cpu().double().numpy(), sens.cpu().numpy()
    parities = []
    for a, b in combinations(range(len(weights)), 2):
        w, threshold = decision(moments, weights, a, b)
        positive = values @ w > threshold
        parities.append(abs(positive[group == a].mean() - positive[group == b].mean()))
    return Bias(float(gap), float(max(parities)), float(information))


def measured_change(
    data: Data, *, steps: int = 1, normalisation: Normalisation = "row", ridge: float = 0.0
) -> Change:
    """Measure what ``steps`` steps of averaging do to the bias of a graph's features.

    Args:
        data: a graph with ``x``, ``edge_index`` and ``sens``.
        steps: number of steps.
        normalisation: ``"row"`` or ``"symmetric"``.
        ridge: see ``group_moments``; 1e-3 suits real tables.

    Example:
        >>> from fairmp.analysis.theory.block_model import block_graph
        >>> change = measured_change(block_graph(2000, 0.01, 0.9, 0.5, seed=0))
        >>> change.information > 0, change.gap < 0
        (True, True)
    """
    after = aggregate(data.x, data.edge_index, steps=steps, normalisation=normalisation)
    return Change(
        measured_bias(data.x, data.sens, ridge=ridge), measured_bias(after, data.sens, ridge=ridge)
    )


def block_counts(data: Data) -> tuple[np.ndarray, np.ndarray]:
    """Group sizes (G) and observed edge probabilities (G×G), among nodes of known group.

    They are what ``predicted_block_change`` takes.

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
    """Place a graph of two groups in the (n, ρ, ε, c) model, by its nodes of known group.

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
        raise InputError(
            "edge_index", "no edge joins two nodes of known group", "homophily needs one"
        )
    return GraphParameters(
        n, total / (n * (n - 1)), float(np.trace(edges)) / total, float(sizes[1]) / n
    )

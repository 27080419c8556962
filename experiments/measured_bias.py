"""Bias of features before and after averaging on a graph, measured in sample as in the theory."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from fairmp.analysis.theory.conditions import Normalisation
from fairmp.analysis.theory.measurement import GraphParameters, averaged, measured_moments
from fairmp.analysis.theory.prediction import Bias, BiasChange, bias_of, decision
from fairmp.errors import InputError, check_integer


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
    *_, last = [values, *averaged(values, edge_index, steps, normalisation)]
    return torch.from_numpy(last).to(x)


def measured_bias(
    x: Tensor, sens: Tensor, *, ridge: float = 0.0, decided_on: Tensor | None = None
) -> Bias:
    """Measure the bias of features; the arguments are those of ``measured_moments``.

    Parity is that of the best linear decision for x, or for the features ``decided_on``.

    Example:
        >>> x = torch.tensor([[0.0], [2.0], [4.0], [3.0], [5.0], [7.0]])
        >>> measured_bias(x, torch.tensor([0, 0, 0, 1, 1, 1])).parity
        0.333...
    """
    moments = measured_moments(x, sens, ridge=ridge)
    smallest = float(np.linalg.eigvalsh(moments.covariances).min())
    if not smallest > 1e-12 * float(np.abs(moments.covariances).max()):
        problem = f"features are linearly dependent in a group (smallest eigenvalue {smallest:.2g})"
        raise InputError("x", problem, "give {ridge=0.001}, or fewer features")
    normal = bias_of(moments)
    values, group = x.detach().cpu().double().numpy(), sens.cpu().numpy()
    rule = moments if decided_on is None else measured_moments(decided_on, sens, ridge=ridge)
    parities = []
    for a, b in combinations(range(len(moments.shares)), 2):
        direction, threshold = decision(rule, a, b)
        positive = values @ direction > threshold
        parities.append(abs(positive[group == a].mean() - positive[group == b].mean()))
    return Bias(float(normal.gap), float(max(parities)), float(normal.information))


def measured_change(
    data: Data, *, steps: int = 1, normalisation: Normalisation = "row", ridge: float = 0.0
) -> BiasChange:
    """Measure the change of the bias of a graph's features after ``steps`` steps of averaging.

    See ``aggregate`` for ``steps`` and ``normalisation`` and ``measured_moments`` for ``ridge``.

    Example:
        >>> from fairmp.analysis.theory.block_model import block_graph
        >>> change = measured_change(block_graph(2000, 0.01, 0.9, 0.5, seed=0))
        >>> change.information > 0, change.gap < 0
        (True, True)
    """
    after = aggregate(data.x, data.edge_index, steps=steps, normalisation=normalisation)
    kept = measured_bias(after, data.sens, ridge=ridge, decided_on=data.x)
    return BiasChange(
        measured_bias(data.x, data.sens, ridge=ridge),
        measured_bias(after, data.sens, ridge=ridge),
        kept.parity,
    )


def balanced_eps(graph: GraphParameters) -> float:
    """Homophily of equal groups whose neighbourhoods differ by the same share of group 0.

    ε alone misleads where groups are unequal: with c = 0.1, 82 % of pairs are within a group.

    Example:
        >>> round(balanced_eps(GraphParameters(n=1000, rho=0.01, eps=0.82, c=0.1)), 3)
        0.5
    """
    p = graph.eps / (graph.c**2 + (1 - graph.c) ** 2)
    q = (1 - graph.eps) / (2 * graph.c * (1 - graph.c))
    first = (1 - graph.c) * p / ((1 - graph.c) * p + graph.c * q)
    second = (1 - graph.c) * q / ((1 - graph.c) * q + graph.c * p)
    return (1 + first - second) / 2

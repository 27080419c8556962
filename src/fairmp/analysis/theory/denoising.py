"""Message passing as denoising: layers as gradient steps on objectives (``docs/theory.md``)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from fairmp.errors import check_number
from fairmp.kernels import softmax
from fairmp.nn.functional import coupling_gradient


class Objective(NamedTuple):
    """Value and gradient of an objective."""

    value: Tensor
    gradient: Tensor


def smoothness(f: Tensor, edge_index: Tensor) -> Objective:
    r"""Variation of F along edges, :math:`\operatorname{tr}(F^\top(I-\tilde A)F)`.

    A gradient step of ½ gives :math:`\tilde AF`, the propagation of a GCN layer.

    Example:
        >>> x, edge_index = torch.tensor([[0.0], [2.0]]), torch.tensor([[0, 1], [1, 0]])
        >>> value, gradient = smoothness(x, edge_index)
        >>> float(value), (x - gradient / 2).round(decimals=4).flatten().tolist()
        (2.0, [1.0, 1.0])
    """
    rough = f - _smooth(f, edge_index)
    return Objective((f * rough).sum(), 2 * rough)


def ppnp_objective(f: Tensor, x: Tensor, edge_index: Tensor, alpha: float) -> Objective:
    r"""Trade-off between closeness to X and smoothness.

    .. math::
        \|F-X\|^2 + \left(\tfrac1\alpha - 1\right)\operatorname{tr}(F^\top(I-\tilde A)F)

    A gradient step of α/2 gives APPNP's :math:`\alpha X + (1-\alpha)\tilde AF`.

    Example:
        >>> x, edge_index = torch.tensor([[0.0], [2.0]]), torch.tensor([[0, 1], [1, 0]])
        >>> value, gradient = ppnp_objective(x, x, edge_index, alpha=0.5)
        >>> float(value), (x - 0.25 * gradient).round(decimals=4).flatten().tolist()
        (2.0, [0.5, 1.5])
    """
    weight, smooth = 1 / _check_alpha(alpha) - 1, smoothness(f, edge_index)
    value = ((f - x) ** 2).sum() + weight * smooth.value
    return Objective(value, 2 * (f - x) + weight * smooth.gradient)


def ppnp_solution(x: Tensor, edge_index: Tensor, alpha: float) -> Tensor:
    r"""Minimiser of ``ppnp_objective``, :math:`\alpha(I-(1-\alpha)\tilde A)^{-1}X`; O(n²) memory.

    Example:
        >>> x, edge_index = torch.tensor([[0.0], [2.0]]), torch.tensor([[0, 1], [1, 0]])
        >>> ppnp_solution(x, edge_index, alpha=0.5).flatten()
        tensor([0.5000, 1.5000])
    """
    alpha = _check_alpha(alpha)
    identity = torch.eye(x.size(0), dtype=x.dtype, device=x.device)
    return alpha * torch.linalg.solve(identity - (1 - alpha) * _smooth(identity, edge_index), x)


def attention_objective(f: Tensor, x: Tensor, edge_index: Tensor, scores: Tensor) -> Objective:
    r"""Distance of each node from its neighbours, weighted by unnormalised attention.

    .. math::
        \tfrac12 \sum_i \sum_{j \to i} a_{ij} \|F_i - X_j\|^2

    From F = X, a step of :math:`1/\sum_j a_{ij}` is GAT's aggregation; ``edge_index`` includes
    self-loops as GAT has them.

    Example:
        >>> x, edge_index = torch.tensor([[0.0], [3.0]]), torch.tensor([[0, 1, 1], [0, 0, 1]])
        >>> value, gradient = attention_objective(x, x, edge_index, torch.tensor([1.0, 2.0, 1.0]))
        >>> float(value), (x - gradient / torch.tensor([[3.0], [1.0]])).flatten().tolist()
        (9.0, [2.0, 3.0])
    """
    source, target = edge_index
    difference = f[target] - x[source]
    weighted = scores.unsqueeze(1) * difference
    gradient = torch.zeros_like(f).index_add(0, target, weighted)
    return Objective((weighted * difference).sum() / 2, gradient)


def fairness_coupling(f: Tensor, delta: Tensor, u: Tensor) -> Objective:
    r"""Gap weighted by a dual variable: :math:`\langle u, \Delta\,\mathrm{softmax}(F)\rangle`.

    Its gradient is (Theorem 3) :math:`G(F,u) = P \odot (U - \mathrm{rowsum}(U \odot P))` with
    :math:`P = \mathrm{softmax}(F)` and :math:`U = \Delta^\top u`. ``delta`` is a matrix (G'×n).

    Example:
        >>> f, delta = torch.zeros(2, 2), torch.tensor([[1.0, -1.0]])
        >>> value, gradient = fairness_coupling(f, delta, torch.tensor([[1.0, 0.0]]))
        >>> float(value), gradient.tolist()
        (0.0, [[0.25, -0.25], [-0.25, 0.25]])
    """
    return Objective((u * (delta @ softmax(f))).sum(), coupling_gradient(f, delta.T @ u))


def fair_objective(
    f: Tensor, x: Tensor, edge_index: Tensor, delta: Tensor, u: Tensor, lambda_s: float
) -> Objective:
    r"""Objective of FMP for a given dual u.

    .. math::
        \tfrac{\lambda_s}2 \operatorname{tr}(F^\top(I-\tilde A)F) + \tfrac12\|F-X\|^2
        + \langle u, \Delta\,\mathrm{softmax}(F) \rangle

    A gradient step of :math:`\gamma = 1/(1+\lambda_s)` is a step of FMP,
    :math:`\gamma X + (1-\gamma)\tilde AF - \gamma G(F,u)`.

    Example:
        >>> x, edge_index = torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.tensor([[0, 1], [1, 0]])
        >>> delta, u = torch.tensor([[1.0, -1.0]]), torch.zeros(1, 2)
        >>> value, gradient = fair_objective(x, x, edge_index, delta, u, lambda_s=1.0)
        >>> float(value), (x - gradient / 2).round(decimals=4).tolist()
        (0.5, [[0.25, 0.75], [0.75, 0.25]])
    """
    check_number("lambda_s", lambda_s, "give 0 or more", low=0)
    smooth, fair = smoothness(f, edge_index), fairness_coupling(f, delta, u)
    value = lambda_s / 2 * smooth.value + ((f - x) ** 2).sum() / 2 + fair.value
    return Objective(value, lambda_s / 2 * smooth.gradient + (f - x) + fair.gradient)


def _smooth(f: Tensor, edge_index: Tensor) -> Tensor:
    """Return Ã F."""
    index, weight = gcn_norm(edge_index, num_nodes=f.size(0), dtype=f.dtype)
    return torch.zeros_like(f).index_add(0, index[1], weight.unsqueeze(1) * f[index[0]])


def _check_alpha(alpha: float) -> float:
    return check_number("alpha", alpha, "give a share in (0, 1]", low=0, high=1, above=True)

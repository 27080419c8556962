"""What the primitives take and return, besides tensors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor


class CSR(NamedTuple):
    """A matrix in compressed rows."""

    row: Tensor  # row pointers
    col: Tensor  # columns
    weight: Tensor | None = None  # values; None for ones

    def to(self, device: torch.device | str) -> CSR:
        """Move to a device."""
        weight = None if self.weight is None else self.weight.to(device)
        return CSR(self.row.to(device), self.col.to(device), weight)


@dataclass(frozen=True, eq=False)
class Matrix:
    """The matrix diag(left) A diag(right)."""

    rows: CSR  # A
    left: Tensor
    right: Tensor
    cache: dict[object, Any] = field(default_factory=dict, repr=False)  # for implementations


class AggregateGradient(NamedTuple):
    r"""Gradients of :math:`\gamma X + (1-\gamma) A F`."""

    f: Tensor
    x: Tensor
    away: float | Tensor = 0.0  # ⟨grad, X − propagated⟩, if these were given


class Clip(NamedTuple):
    """How rows of extreme logits are rounded; see :meth:`~fairmp.kernels.Kernels.shift`."""

    limit: float  # rows with a logit above it are taken relative to their largest
    floor: float  # logits farther below the largest are clipped, if the shift is about as large


NO_CLIP = Clip(float("inf"), float("inf"))


@dataclass(frozen=True, eq=False)
class BinaryGroups:
    """The groups of one gap between two classes.

    Attributes:
        scale: the largest weight of a group in the gap.
        weight: δ, the weight of each group relative to it (G, float64).
        column: the weight of each node's group, 0 where it is unknown (n, float64).
        codes: group of each node in the population, −1 outside it (n, int32).
        nodes: the population, sorted by group.
        starts: where each group starts among ``nodes`` (G+1).
    """

    scale: float
    weight: Tensor
    column: Tensor
    codes: Tensor
    nodes: Tensor
    starts: Tensor
    cache: dict[object, Any] = field(default_factory=dict, repr=False)  # for implementations


@dataclass(frozen=True, eq=False)
class BinaryProblem:
    r"""The dual of one gap between two classes, one number w.

    With δ the relative weight of a node's group and m its margin :math:`z_1 - z_0`, the predictions
    closest to :math:`\sigma(m/\tau)` within the target are :math:`\sigma(m/\tau - \delta w)`, where
    w solves

    .. math::
        \mathrm{scale} \sum_i \delta_i \, \sigma(m_i/\tau - \delta_i w) = \pm\,\text{target},

    or is 0 if the gap there is within the target.

    Attributes:
        z: logits (n×2) or margins (n×1).
        groups: the groups.
        temperature: τ.
        target: the largest gap allowed.
        tolerance: by how much the gap may miss it.
    """

    z: Tensor
    groups: BinaryGroups
    temperature: float
    target: float
    tolerance: float


class BinaryRoot(NamedTuple):
    """The solution of a :class:`BinaryProblem`; on a GPU numbers are tensors there."""

    u: float | Tensor  # w/scale
    residual: float | Tensor
    passes: float | Tensor
    curvature: float | Tensor  # Σ δ²σ' at w
    slope: Tensor  # δσ' of each node, 0 outside the population (n)

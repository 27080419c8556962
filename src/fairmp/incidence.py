"""The incidence Δ: from sensitive groups to the gap between them, and back to the nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fairmp.errors import InputError

Rows = Literal["auto", "difference", "groups"]


@dataclass(frozen=True)
class Incidence:
    r"""The one concept everything fair here is written in.

    :math:`\Delta` (G'×n) turns predictions :math:`P` (n×C) into the gap :math:`\Delta P` (G'×C)
    between groups, measured on a *population* of nodes. For two groups it is one row,
    :math:`+1/n_+` on group 1 and :math:`-1/n_-` on group 0; for more it has a row a group, the
    group's mean minus the population's mean. It is stored as what it is made of,

    .. math::
        \Delta = M \, (\mathrm{diag}(\text{population}) \, S)^\top,

    with the membership :math:`S` (n×G; one-hot, probabilities, or a zero row where the group is
    unknown) and a small matrix :math:`M` (G'×G). So a dual :math:`u` (G'×C) has a meaning for each
    group, :math:`M^\top u`, and with it for every node whose group is known, inside the population
    or not.

    Attributes:
        membership: how much each node belongs to each group (n×G).
        population: the nodes the gap is measured on (n, bool).
        rows: :math:`M` (G'×G, float64: rows that should sum to 0 do).
    """

    membership: Tensor
    population: Tensor
    rows: Tensor

    @property
    def num_groups(self) -> int:
        """G, the number of groups."""
        return self.membership.size(1)

    @property
    def measured(self) -> Tensor:
        """The membership of the population alone: rows outside it are 0 (n×G)."""
        return self.membership * self.population.unsqueeze(1)

    @property
    def matrix(self) -> Tensor:
        """Δ itself, dense (G'×n, float64)."""
        return self.rows @ self.measured.double().T

    @property
    @torch.compiler.disable
    def norm(self) -> float:
        """‖ΔΔᵀ‖₂, the squared operator norm: 1/n₊ + 1/n₋ for two groups."""
        delta = self.matrix
        return float(torch.linalg.matrix_norm(delta @ delta.T, ord=2))

    def gap(self, p: Tensor) -> Tensor:
        """Δ p, what separates the groups (G'×C)."""
        return self.rows.to(p.dtype) @ (self.measured.T @ p)

    def by_group(self, u: Tensor) -> Tensor:
        """Mᵀu: what a dual says to each group (G×C)."""
        return self.rows.T.to(u.dtype) @ u

    def shift(self, u: Tensor) -> Tensor:
        """What a dual says to each node of known group, in the population or not (n×C)."""
        return self.membership @ self.by_group(u)


def incidence(
    sens: Tensor,
    population: Tensor | None = None,
    *,
    rows: Rows = "auto",
    dtype: torch.dtype = torch.float32,
) -> Incidence:
    """Build the incidence from sensitive groups.

    Args:
        sens: group of each node (n, integers 0…G−1, −1 = unknown), or the probability of each
            group (n×G, rows that sum to 1; a row of zeros = unknown).
        population: nodes the gap is measured on (n, bool); all nodes by default. Nodes of unknown
            group are never part of it.
        rows: ``"difference"`` (one row, two groups only), ``"groups"`` (a row a group), or
            ``"auto"``, which picks the first for two groups.
        dtype: floating-point type of the predictions it will meet.

    Example:
        >>> delta = incidence(torch.tensor([0, 0, 1, -1]))
        >>> delta.matrix
        tensor([[-0.5000, -0.5000,  1.0000,  0.0000]], dtype=torch.float64)
        >>> delta.gap(torch.tensor([[0.2], [0.4], [0.9], [0.0]]))
        tensor([[0.6000]])
    """
    sens = torch.as_tensor(sens)
    membership = _membership(sens, dtype)
    known = membership.sum(1) > 0
    if population is None:
        population = known
    else:
        population = torch.as_tensor(population, device=sens.device)
        if population.dtype != torch.bool or population.shape != known.shape:
            raise InputError(
                f"population: expected a boolean mask of {known.numel()} nodes, got "
                f"{population.dtype} of shape {tuple(population.shape)}; "
                "build one with torch.zeros(n, dtype=torch.bool)"
            )
        population = population & known

    counts = membership[population].double().sum(0)
    absent = (counts <= 0).nonzero().flatten().tolist()
    if absent:
        raise InputError(
            f"sens: group {absent[0]} has no node in the population "
            f"(nodes by group: {_short(counts)}); choose a population that contains every group, "
            "or mark the others' nodes unknown (-1)"
        )

    groups = membership.size(1)
    if rows not in ("auto", "difference", "groups"):
        raise InputError(f"rows: {rows!r} is unknown; choose 'auto', 'difference' or 'groups'")
    if rows == "difference" and groups != 2:
        raise InputError(
            f"rows: 'difference' needs two groups, sens has {groups}; use rows='groups'"
        )
    if groups == 2 and rows != "groups":
        matrix = torch.stack([-1 / counts[0], 1 / counts[1]]).unsqueeze(0)
    else:
        matrix = torch.diag(1 / counts) - 1 / counts.sum()
    return Incidence(membership, population, matrix)


def _membership(sens: Tensor, dtype: torch.dtype) -> Tensor:
    if sens.dim() == 2 and sens.is_floating_point():
        return _probabilities(sens).to(dtype)
    if sens.dim() != 1:
        raise InputError(
            f"sens: shape {tuple(sens.shape)} with dtype {sens.dtype} is neither one group a node "
            "(n, integers) nor probabilities of groups (n×G, floating point)"
        )
    if sens.is_floating_point():
        rounded = sens.round()
        if not torch.equal(rounded, sens):
            raise InputError(
                "sens: groups must be whole numbers 0…G−1 with -1 for unknown, got "
                f"{sens[rounded != sens][0].item()}; give probabilities as an n×G tensor"
            )
        sens = rounded
    sens = sens.long()
    if sens.numel() and int(sens.min()) < -1:
        raise InputError(f"sens: {int(sens.min())} is not a group; use 0…G−1, and -1 for unknown")
    groups = int(sens.max()) + 1 if sens.numel() else 0
    if groups < 2:
        raise InputError(
            f"sens: {groups} group{'s' * (groups != 1)} among the nodes of known group; fairness "
            "between groups needs at least two (0 and 1)"
        )
    # One extra column takes the unknown, and is cut off again: their row is 0.
    one_hot = torch.zeros(sens.numel(), groups + 1, dtype=dtype, device=sens.device)
    one_hot.scatter_(1, torch.where(sens < 0, groups, sens).unsqueeze(1), 1)
    return one_hot[:, :groups].contiguous()


def _probabilities(sens: Tensor) -> Tensor:
    if sens.size(1) < 2:
        raise InputError(
            f"sens: probabilities of {sens.size(1)} group; fairness between groups needs at least "
            "two columns"
        )
    if not torch.isfinite(sens).all() or bool((sens < 0).any()):
        raise InputError(
            "sens: probabilities must be finite and not negative; mark a node of unknown group "
            "with a row of zeros"
        )
    total = sens.double().sum(1)
    wrong = ((total - 1).abs() > 1e-3) & (total != 0)
    if bool(wrong.any()):
        node = int(wrong.nonzero()[0])
        raise InputError(
            f"sens: the probabilities of node {node} sum to {total[node].item():.4g}, not 1; "
            "normalise the rows (a row of zeros means unknown)"
        )
    return sens


def _short(counts: Tensor) -> str:
    shown = [f"{count:g}" for count in counts[:8].tolist()]
    return ", ".join(shown) + (", …" if counts.numel() > 8 else "")

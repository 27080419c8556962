"""The incidence Δ: from sensitive groups to the gap between them, and back to the nodes."""

from __future__ import annotations

from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from fairmp.errors import InputError
from fairmp.kernels import gather, segment_sum

Rows = Literal["auto", "difference", "groups"]


class GroupOperator:
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

    Args:
        membership: how much each node belongs to each group (n×G); ``None`` where ``codes`` say it.
        population: the nodes the gap is measured on (n, bool).
        rows: :math:`M` (G'×G, float64: rows that should sum to 0 do).
        codes: the one group of each node (n, int32), −1 for unknown; ``None`` where nodes are
            shared between groups.
        measured: codes (or membership) that differ from the above not only by being unknown
            outside the population; see :func:`stack`.
        dtype: floating-point type of the membership that codes make.
    """

    def __init__(
        self,
        membership: Tensor | None,
        population: Tensor,
        rows: Tensor,
        *,
        codes: Tensor | None = None,
        measured: Tensor | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if (membership is None) == (codes is None):
            raise InputError("membership", "give either the membership of nodes, or their codes")
        self.population, self.rows, self.codes = population, rows, codes
        self._membership, self._measured, self._dtype = membership, measured, dtype

    @property
    def num_groups(self) -> int:
        """G, the number of groups (or of combinations of groups, where several are stacked)."""
        return self.rows.size(1)

    @property
    def membership(self) -> Tensor:
        """How much each node belongs to each group (n×G)."""
        if self._membership is None:
            assert self.codes is not None
            self._membership = self._one_hot(self.codes)
        return self._membership

    @cached_property
    def measured_codes(self) -> Tensor | None:
        """The codes of the population alone, −1 outside it; ``None`` without codes."""
        if self.codes is None:
            return None
        outside = torch.where(self.population, self.codes, -1)
        return outside if self._measured is None else self._measured

    @cached_property
    def order(self) -> tuple[Tensor, Tensor, Tensor]:
        """The nodes the gap is measured on, cell by cell; where each cell starts, and each node is.

        A node that is not among them has their number for a place. There must be codes.
        """
        assert self.measured_codes is not None
        codes, nodes = self.measured_codes.sort(stable=True)
        cells = torch.arange(self.num_groups + 1, dtype=codes.dtype, device=codes.device)
        starts = torch.searchsorted(codes, cells)
        nodes = nodes[starts[0] :].int()
        place = torch.full_like(self.measured_codes, nodes.numel())
        place[nodes] = torch.arange(nodes.numel(), dtype=place.dtype, device=place.device)
        return nodes, starts - starts[0], place

    @property
    def measured(self) -> Tensor:
        """The membership of the population alone: rows outside it are 0 (n×G)."""
        if self.measured_codes is not None:
            return self._one_hot(self.measured_codes)
        if self._measured is not None:
            return self._measured
        return self.membership * self.population.unsqueeze(1)

    @property
    def matrix(self) -> Tensor:
        """Δ itself, dense (G'×n, float64)."""
        return self.rows @ self.measured.double().T

    @cached_property
    def norm(self) -> float:
        """‖ΔΔᵀ‖₂, the squared operator norm: 1/n₊ + 1/n₋ for two groups."""
        if self.measured_codes is None:
            measured = self.measured.double()
            gram = self.total(measured.T @ measured)
        else:
            one = self.population.double().unsqueeze(1)
            counts = self.total(segment_sum(one, self.measured_codes, self.num_groups))
            gram = torch.diag(counts.flatten())
        return float(torch.linalg.matrix_norm(self.rows @ gram @ self.rows.T, ord=2))

    def gap(self, p: Tensor) -> Tensor:
        """Δ p, what separates the groups (G'×C)."""
        if self.measured_codes is None:
            sums = self.measured.to(p.dtype).T @ p
        else:
            sums = segment_sum(p, self.measured_codes, self.num_groups)
        return self.rows.to(p.dtype) @ self.total(sums)

    def by_group(self, u: Tensor) -> Tensor:
        """Mᵀu: what a dual says to each group (G×C)."""
        return self.rows.T.to(u.dtype) @ u

    def shift(self, u: Tensor) -> Tensor:
        """What a dual says to each node of known group, in the population or not (n×C)."""
        if self.codes is None:
            return self.membership.to(u.dtype) @ self.by_group(u)
        return gather(self.by_group(u), self.codes)

    def _one_hot(self, codes: Tensor) -> Tensor:
        return gather(torch.eye(self.num_groups, dtype=self._dtype, device=codes.device), codes)

    def total(self, part: Tensor) -> Tensor:
        """Sum what the nodes held here add up to with what is held elsewhere: here is all."""
        return part

    def largest(self, part: Tensor) -> Tensor:
        """Take the largest of what is found here and elsewhere: here is all."""
        return part


def stack(*incidences: GroupOperator) -> GroupOperator:
    """Ask for several parities at once: the rows of one below those of the other.

    A gap is then the gap of each; a node's cell is the combination of its groups, and it is
    corrected for those of its groups that are known.

    Example:
        >>> region, age = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, -1])
        >>> both = stack(group_operator(region), group_operator(age))
        >>> both.matrix
        tensor([[-0.5000, -0.5000,  0.5000,  0.5000],
                [-0.5000,  1.0000, -0.5000,  0.0000]], dtype=torch.float64)
    """
    if not incidences:
        raise InputError("stack", "no incidence given", "give one or more")
    first = incidences[0]
    for other in incidences[1:]:
        if other.population.shape != first.population.shape:
            raise InputError(
                "stack",
                f"incidences of {first.population.numel()} and {other.population.numel()} nodes",
                "give incidences of the same nodes",
            )
    if len(incidences) == 1:
        return first
    population = torch.stack([i.population for i in incidences]).any(0)
    if all(i.codes is not None for i in incidences):
        return _combined(incidences, population)
    return GroupOperator(
        torch.cat([i.membership for i in incidences], 1),
        population,
        torch.block_diag(*[i.rows for i in incidences]),
        measured=torch.cat([i.measured for i in incidences], 1),
    )


def _combined(incidences: tuple[GroupOperator, ...], population: Tensor) -> GroupOperator:
    """One cell for each combination of groups that occurs, among the nodes reached or measured."""
    reached = torch.zeros_like(population, dtype=torch.int64)
    measured = reached
    for part in incidences:
        assert part.codes is not None
        assert part.measured_codes is not None
        reached = reached * (part.num_groups + 1) + part.codes + 1
        measured = measured * (part.num_groups + 1) + part.measured_codes + 1
    cells, codes = torch.stack([reached, measured]).unique(return_inverse=True)
    columns, remainder = [], cells
    for part in reversed(incidences):
        group = remainder % (part.num_groups + 1)
        remainder = remainder // (part.num_groups + 1)
        padded = torch.cat([part.rows.new_zeros(part.rows.size(0), 1), part.rows], 1)
        columns.append(padded[:, group])
    # The combination of unknown groups only is 0, and comes first if it is there.
    unknown = int(cells[0] == 0)
    rows = torch.cat(columns[::-1])[:, unknown:]
    reach, measure = (codes - unknown).int()
    return GroupOperator(None, population, rows, codes=reach, measured=measure)


def group_operator(
    sens: Tensor,
    population: Tensor | None = None,
    *,
    rows: Rows = "auto",
    dtype: torch.dtype = torch.float32,
) -> GroupOperator:
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
        >>> delta = group_operator(torch.tensor([0, 0, 1, -1]))
        >>> delta.matrix
        tensor([[-0.5000, -0.5000,  1.0000,  0.0000]], dtype=torch.float64)
        >>> delta.gap(torch.tensor([[0.2], [0.4], [0.9], [0.0]]))
        tensor([[0.6000]])
    """
    sens = torch.as_tensor(sens)
    membership: Tensor | None = None
    codes: Tensor | None = None
    if soft(sens):
        check_probabilities("sens", sens, sens.size(0))
        membership = sens.to(dtype)
        known = membership.sum(1) > 0
    else:
        codes = _codes(sens)
        known = codes >= 0
        groups = int(codes.max()) + 1 if codes.numel() else 0
        if groups < 2:
            raise InputError(
                "sens",
                f"{groups} group{'s' * (groups != 1)} among the nodes of known group",
                "fairness between groups needs at least two (0 and 1)",
            )
    if population is None:
        population = known
    else:
        population = torch.as_tensor(population, device=sens.device)
        if population.dtype != torch.bool or population.shape != known.shape:
            raise InputError(
                "population",
                f"expected a boolean mask of {known.numel()} nodes, got {population.dtype} of "
                f"shape {tuple(population.shape)}",
                "build one with torch.zeros(n, dtype=torch.bool)",
            )
        population = population & known

    counts = _counts(membership, codes, population)
    absent = (counts <= 0).nonzero().flatten().tolist()
    if absent:
        raise InputError(
            "sens",
            f"group {absent[0]} has no node in the population (nodes by group: {_short(counts)})",
            "choose a population that contains every group, or mark the others' nodes unknown (-1)",
        )

    groups = counts.numel()
    if rows not in ("auto", "difference", "groups"):
        raise InputError("rows", f"{rows!r} is unknown", "choose 'auto', 'difference' or 'groups'")
    if rows == "difference" and groups != 2:
        raise InputError(
            "rows", f"'difference' needs two groups, sens has {groups}", "use rows='groups'"
        )
    if groups == 2 and rows != "groups":
        matrix = torch.stack([-1 / counts[0], 1 / counts[1]]).unsqueeze(0)
    else:
        matrix = torch.diag(1 / counts) - 1 / counts.sum()
    return GroupOperator(membership, population, matrix, codes=codes, dtype=dtype)


def memberships(sens: Tensor, groups: int) -> Tensor:
    """How much each node belongs to each group (n×G), whichever groups are among the nodes.

    Args:
        sens: group of each node, or the probability of each group.
        groups: how many groups there are.

    Example:
        >>> memberships(torch.tensor([1, -1]), 2)
        tensor([[0., 1.],
                [0., 0.]])
    """
    if soft(sens):
        check_probabilities("sens", sens, sens.size(0))
        if sens.size(1) != groups:
            raise InputError(
                "sens",
                f"probabilities of {sens.size(1)} groups, the duals are of {groups}",
                "give a column for each of those",
            )
        return sens
    codes = _codes(sens)
    if codes.numel() and int(codes.max()) >= groups:
        raise InputError(
            "sens",
            f"group {int(codes.max())} was not there when the duals were found (groups "
            f"0…{groups - 1})",
            "solve for these nodes, or mark it unknown (-1)",
        )
    return gather(torch.eye(groups, device=codes.device), codes)


def _counts(membership: Tensor | None, codes: Tensor | None, population: Tensor) -> Tensor:
    if membership is not None:
        return membership[population].double().sum(0)
    assert codes is not None
    groups = int(codes.max()) + 1
    measured = torch.where(population, codes, -1)
    return segment_sum(population.double().unsqueeze(1), measured, groups).flatten()


def _codes(sens: Tensor) -> Tensor:
    if sens.dim() != 1:
        raise InputError(
            "sens",
            f"shape {tuple(sens.shape)} with dtype {sens.dtype} is neither one group a node (n, "
            "integers) nor probabilities of groups (n×G, floating point)",
        )
    if sens.is_floating_point():
        rounded = sens.round()
        if not torch.equal(rounded, sens):
            raise InputError(
                "sens",
                "groups must be whole numbers 0…G−1 with -1 for unknown, got "
                f"{sens[rounded != sens][0].item()}",
                "give probabilities as an n×G tensor",
            )
        sens = rounded
    if sens.numel() and int(sens.min()) < -1:
        raise InputError(
            "sens", f"{int(sens.min())} is not a group", "use 0…G−1, and -1 for unknown"
        )
    return sens.int()


def _short(counts: Tensor) -> str:
    shown = [f"{count:g}" for count in counts[:8].tolist()]
    return ", ".join(shown) + (", …" if counts.numel() > 8 else "")


_CERTAIN = 1e-6


def soft(sens: Tensor) -> bool:
    """Whether groups are probabilities.

    Example:
        >>> soft(torch.tensor([[0.3, 0.7]])), soft(torch.tensor([0, 1, -1]))
        (True, False)
    """
    return sens.dim() == 2 and sens.is_floating_point()


def known(sens: Tensor) -> Tensor:
    """Where something is known of the group (n, bool).

    Example:
        >>> known(torch.tensor([[0.3, 0.7], [0.0, 0.0]]))
        tensor([ True, False])
    """
    return sens.sum(1) > 0 if soft(sens) else sens >= 0


def likeliest(sens: Tensor) -> Tensor:
    """The most probable group of each node, −1 where nothing is known (n).

    Example:
        >>> likeliest(torch.tensor([[0.3, 0.7], [0.0, 0.0]]))
        tensor([ 1, -1])
    """
    return torch.where(known(sens), sens.argmax(1), -1) if soft(sens) else sens


def certain(sens: Tensor) -> Tensor:
    """The group of each node where one has probability 1, else −1 (n).

    Example:
        >>> certain(torch.tensor([[0.3, 0.7], [0.0, 1.0]]))
        tensor([-1,  1])
    """
    if not soft(sens):
        return sens
    top, group = sens.max(1)
    return torch.where(top >= 1 - _CERTAIN, group, -1)


def check_probabilities(name: str, sens: Tensor, n: int) -> None:
    """Refuse probabilities that are none.

    Example:
        >>> check_probabilities("data.sens", torch.tensor([[0.3, 0.6]]), 1)
        Traceback (most recent call last):
        fairmp.errors.InputError: data.sens: the probabilities of node 0 sum to 0.9, not 1; ...
    """
    if sens.size(0) != n or sens.size(1) < 2:
        raise InputError(
            name,
            f"probabilities of shape {tuple(sens.shape)}",
            f"give {n} rows, one a node, and a column a group, two or more",
        )
    wrong = ~torch.isfinite(sens) | (sens < 0)
    if bool(wrong.any()):
        node = int(wrong.any(1).nonzero()[0])
        raise InputError(
            name,
            f"node {node} has {sens[node][wrong[node]][0].item():g} for a probability",
            "give numbers from 0 to 1, a row of zeros where nothing is known",
        )
    total = sens.double().sum(1)
    wrong = ((total - 1).abs() > 1e-3) & (total != 0)
    if bool(wrong.any()):
        node = int(wrong.nonzero()[0])
        raise InputError(
            name,
            f"the probabilities of node {node} sum to {total[node].item():.4g}, not 1",
            "normalise the rows (a row of zeros where nothing is known)",
        )

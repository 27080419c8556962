"""Sensitive groups, hard, soft or unknown, and the operator Δ that maps predictions to gaps."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from fairmp.errors import InputError, plural, shortlist
from fairmp.kernels import gather, segment_sum, shift
from fairmp.kernels.types import BinaryGroups

CERTAIN = 1e-6  # a probability this close to 1 is taken for 1
PROBABILITY_TOLERANCE = 1e-3  # by how much a node's probabilities may miss a sum of 1
SIGNS = ("-1", "1")  # names of two groups that were given as −1 and 1
MAX_DENSE_GROUPS = 64  # up to which M is multiplied as a dense matrix


@dataclass(frozen=True, eq=False)
class CentredMeans:
    """The rows M of three or more groups: the mean of each, less that of the population.

    That is diag(1/counts) − 1/n, which many groups multiply without its G² entries.
    """

    counts: Tensor  # nodes of each group in the population (G, float64); 0 for those left out

    @cached_property
    def present(self) -> Tensor:
        """The groups that are compared, one per row (G')."""
        return self.counts.nonzero().flatten()

    @cached_property
    def dense(self) -> Tensor:
        """M itself (G'×G)."""
        sizes = self.counts[self.present]
        rows = self.counts.new_zeros(len(sizes), len(self.counts))
        rows[:, self.present] = torch.diag(1 / sizes) - 1 / sizes.sum()
        return rows

    def multiply(self, sums: Tensor) -> Tensor:
        """M times the sums of each group (G×C)."""
        counts, sums = self.counts[self.present].to(sums.dtype).unsqueeze(1), sums[self.present]
        return sums / counts - sums.sum(0) / counts.sum()

    def multiply_transposed(self, u: Tensor) -> Tensor:
        """Mᵀ times a dual (…×G'×C)."""
        counts = self.counts[self.present].to(u.dtype).unsqueeze(1)
        table = u.new_zeros(*u.shape[:-2], len(self.counts), u.size(-1))
        table[..., self.present, :] = u / counts - u.sum(-2, keepdim=True) / counts.sum()
        return table


class GroupOperator:
    r"""Operator that maps predictions to group gaps.

    :math:`\Delta` (G'×n) turns predictions :math:`P` (n×C) into the gap :math:`\Delta P` (G'×C)
    between groups, measured on a *population* of nodes. For two groups it is one row,
    :math:`+1/n_+` on group 1 and :math:`-1/n_-` on group 0; for more it has one row per group, the
    group's mean minus the population's mean, of which the two farthest apart are compared. It is
    stored as

    .. math::
        \Delta = M \, (\mathrm{diag}(\text{population}) \, S)^\top,

    with the membership :math:`S` (n×G; one-hot, probabilities, or a zero row where the group is
    unknown) and a small matrix :math:`M` (G'×G). A dual :math:`u` (G'×C) therefore is a shift per
    group, :math:`M^\top u`, which applies to every node of known group, in the population or not.

    Args:
        membership: probability of each group (n×G); ``None`` where ``codes`` are given.
        population: the nodes the gap is measured on (n, bool).
        rows: :math:`M` (G'×G, float64); see :func:`mean_rows`.
        codes: group of each node (n, int32), −1 for unknown; ``None`` for probabilities.
        measured: codes (or membership) the gap is measured with, where these differ from the above
            by more than the population; see :func:`stack`.
        weight: of each node in its group's mean (n), with codes; 1 by default. The projection is
            for nodes of equal weight.
        blocks: sizes of blocks of rows that are compared with each other; by default all are one
            block. The gap of a block is the largest difference between two of its rows; of a single
            row it is the absolute value.
        dtype: floating-point type of the membership built from codes.

    Example:
        >>> operator = group_operator(torch.tensor([0, 0, 1, 1]))
        >>> operator.matrix.tolist()
        [[-0.5, -0.5, 0.5, 0.5]]
        >>> operator.gap(torch.tensor([[0.25], [0.25], [0.5], [1.0]])).tolist()
        [[0.5]]
    """

    is_local = True  # False where other processes hold a part of the nodes
    rank = 0  # the number of this process

    def __init__(
        self,
        membership: Tensor | None,
        population: Tensor,
        rows: Tensor | CentredMeans,
        *,
        codes: Tensor | None = None,
        measured: Tensor | None = None,
        weight: Tensor | None = None,
        blocks: tuple[int, ...] | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if (membership is None) == (codes is None):
            raise InputError("membership", "give either the membership of nodes, or their codes")
        self.population, self.codes, self.weight = population, codes, weight
        self.means = rows if isinstance(rows, CentredMeans) else None
        self._rows = rows
        self.num_groups = len(rows.counts) if isinstance(rows, CentredMeans) else rows.size(1)
        self.num_rows = len(rows.present) if isinstance(rows, CentredMeans) else rows.size(0)
        self.blocks = blocks or (self.num_rows,)
        self._membership, self._measured, self._dtype = membership, measured, dtype

    @cached_property
    def rows(self) -> Tensor:
        """M, dense (G'×G, float64)."""
        return self._rows.dense if isinstance(self._rows, CentredMeans) else self._rows

    @cached_property
    def membership(self) -> Tensor:
        """Probability of each group, times a node's weight (n×G)."""
        return self._one_hot(self.codes) if self._membership is None else self._membership

    @cached_property
    def known(self) -> Tensor:
        """The nodes of known group, which a correction applies to (n, bool)."""
        return (self.membership != 0).any(1) if self.codes is None else self.codes >= 0

    @cached_property
    def population_codes(self) -> Tensor | None:
        """The codes within the population, −1 outside it; ``None`` without codes."""
        if self.codes is None:
            return None
        measured = self._measured
        return torch.where(self.population, self.codes, -1) if measured is None else measured

    @cached_property
    def population_order(self) -> tuple[Tensor, Tensor]:
        """The population sorted by group, and where each group starts."""
        assert self.population_codes is not None
        codes, nodes = self.population_codes.sort(stable=True)
        groups = torch.arange(self.num_groups + 1, dtype=codes.dtype, device=codes.device)
        starts = torch.searchsorted(codes, groups)
        nodes = nodes[starts[0] :].int()
        return nodes, starts - starts[0]

    @property
    def population_membership(self) -> Tensor:
        """The membership, 0 outside the population (n×G)."""
        if self.population_codes is not None:
            return self._one_hot(self.population_codes)
        if self._measured is not None:
            return self._measured
        return self.membership * self.population.unsqueeze(1)

    @cached_property
    def column_spread(self) -> Tensor:
        """By how much one more node of a group in a class changes a gap (G, float64)."""
        if self.means is None:
            return self.spread(self.rows)
        counts = self.means.counts
        return torch.where(counts > 0, 1 / counts, 0.0)

    @cached_property
    def one_node(self) -> float:
        """The largest change of the gap that a single node can make."""
        if self.population_codes is None:
            heaviest = self.population_membership.double().amax(0)
        elif self.weight is None:
            heaviest = torch.ones_like(self.column_spread)
        else:
            inside = self.population_codes >= 0
            codes = self.population_codes[inside].long()
            heaviest = torch.zeros_like(self.column_spread)
            heaviest.scatter_reduce_(0, codes, self.weight[inside].to(heaviest), "amax")
        return float((self.column_spread * heaviest).max())

    @cached_property
    def measured(self) -> Tensor:
        """The nodes the gap depends on (n, bool)."""
        if self.population_codes is None:
            compared = self.column_spread.to(self.membership.dtype) > 0
            return ((self.population_membership != 0) & compared).any(1)
        inside = gather((self.column_spread > 0).double().unsqueeze(1), self.population_codes)
        mask = inside.flatten() > 0
        return mask if self.weight is None else mask & (self.weight != 0)

    @property
    def matrix(self) -> Tensor:
        """Δ itself, dense (G'×n, float64)."""
        return self.rows @ self.population_membership.double().T

    @property
    def pair_matrix(self) -> Tensor:
        """Δ with the difference of each two rows in place of a block, dense (float64)."""
        rows = []
        for block in self.matrix.split(self.blocks):
            first, second = torch.triu_indices(len(block), len(block), 1)
            rows.append(block if len(block) == 1 else block[first] - block[second])
        return torch.cat(rows)

    @cached_property
    def first_column(self) -> Tensor:
        """The first column of Δᵀ, extended to all nodes of known group (n, float64)."""
        if self.codes is None:
            return self.membership.double() @ self.rows[0]
        padded = torch.cat([self.rows[0], self.rows.new_zeros(1)])  # the last is for the code −1
        return padded[self.codes.long()]

    @cached_property
    def first_row(self) -> Tensor:
        """The first row of Δ, 0 outside the population (n, float64)."""
        return self.first_column * self.population

    @cached_property
    def norm(self) -> float:
        """‖ΔΔᵀ‖₂, the squared operator norm: 1/n₊ + 1/n₋ for two groups."""
        return float(torch.linalg.matrix_norm(self.rows @ self.gram @ self.rows.T, ord=2))

    @cached_property
    def gram(self) -> Tensor:
        """SᵀS over the population (G×G, float64); of hard groups, their sizes on the diagonal."""
        if self.population_codes is None:
            membership = self.population_membership.double()
            return self.total(membership.T @ membership)
        population = self.population.double().unsqueeze(1)
        counts = segment_sum(population, self.population_codes, self.num_groups)
        return self.total(counts.flatten().diag())

    @cached_property
    def scaled_rows(self) -> tuple[Tensor, Tensor]:
        """The rows of M divided by their largest entries, and these (G'×G and G', float64)."""
        scale = self.rows.abs().amax(1).clamp_min(torch.finfo(torch.float64).tiny)
        return self.rows / scale.unsqueeze(1), scale

    @cached_property
    def binary(self) -> BinaryGroups | None:
        """The groups of one gap between two classes; ``None`` where there are several gaps.

        Nodes must have one group each, and be held by this process.
        """
        if self.num_rows != 1 or self.codes is None or not self.is_local:
            return None
        rows, scale = self.scaled_rows
        nodes, starts = self.population_order
        assert self.population_codes is not None
        return BinaryGroups(
            scale=float(scale[0]),
            weight=rows[0].contiguous(),
            column=self.first_column,
            codes=self.population_codes,
            nodes=nodes,
            starts=starts,
        )

    def reorder(self, order: Tensor) -> GroupOperator:
        """The operator of the same nodes in another order."""
        return GroupOperator(
            None if self._membership is None else self._membership[order],
            self.population[order],
            self._rows,
            codes=None if self.codes is None else self.codes[order],
            measured=None if self._measured is None else self._measured[order],
            weight=None if self.weight is None else self.weight[order],
            blocks=self.blocks,
            dtype=self._dtype,
        )

    def sums(self, p: Tensor) -> Tensor:
        """Weighted sum of p over the members of each group in the population (G×C)."""
        if self.population_codes is None:
            return self.total(self.population_membership.to(p.dtype).T @ p)
        weighted = p if self.weight is None else p * self.weight.to(p.dtype).unsqueeze(1)
        return self.total(segment_sum(weighted, self.population_codes, self.num_groups))

    def gap(self, p: Tensor) -> Tensor:
        """Δ p, the gap between groups (G'×C)."""
        return self.compare(self.sums(p))

    def compare(self, sums: Tensor) -> Tensor:
        """M times the sums of each group (G×C): the gap between groups (G'×C)."""
        if self.means is None or self.num_groups <= MAX_DENSE_GROUPS:
            return self.rows.to(sums.dtype) @ sums
        return self.means.multiply(sums)

    def largest_gap(self, p: Tensor) -> Tensor:
        """The gap between the two groups farthest apart, for each class (C)."""
        return self.spread(self.gap(p))

    def spread(self, rows: Tensor) -> Tensor:
        """The largest difference between rows of a block, by column; of one row its size."""
        parts = rows.split(self.blocks)
        sizes = [part.abs() if len(part) == 1 else part.amax(0) - part.amin(0) for part in parts]
        return torch.stack([size.view(-1) for size in sizes]).amax(0)

    def by_group(self, u: Tensor) -> Tensor:
        """Mᵀu, a dual as a shift per group (G×C)."""
        if self.means is None or self.num_groups <= MAX_DENSE_GROUPS:
            return self.rows.T.to(u.dtype) @ u
        return self.means.multiply_transposed(u)

    def shift(self, u: Tensor) -> Tensor:
        """A dual as a shift per node, 0 where the group is unknown (n×C)."""
        if self.codes is None:
            return self.membership.to(u.dtype) @ self.by_group(u)
        return gather(self.by_group(u), self.codes)

    def spread_to_population(self, table: Tensor) -> Tensor:
        """A value per group as one per node, 0 outside the population (n×C)."""
        if self.population_codes is None:
            return self.population_membership.to(table.dtype) @ table
        return gather(table, self.population_codes)

    def subtract(self, z: Tensor, table: Tensor) -> Tensor:
        """Subtract a shift per group (G×C, float64); nodes of unknown group keep their logits."""
        if self.codes is None:
            return z - (self.membership.to(table.dtype) @ table).to(z.dtype)
        return shift(z, table, self.codes)

    def total(self, part: Tensor) -> Tensor:
        """All-reduce, forward and backward."""
        return part

    def largest(self, part: Tensor) -> Tensor:
        """Take the largest over all processes."""
        return part

    def _one_hot(self, codes: Tensor | None) -> Tensor:
        assert codes is not None
        one_hot = gather(torch.eye(self.num_groups, dtype=self._dtype, device=codes.device), codes)
        return one_hot if self.weight is None else one_hot * self.weight.unsqueeze(1)


def stack(*operators: GroupOperator) -> GroupOperator:
    """Stack operators, to close the gaps of several attributes at once."""
    if not operators:
        raise InputError("stack", "no operator given", "give one or more")
    first = operators[0]
    for other in operators[1:]:
        if other.population.shape != first.population.shape:
            value = f"operators of {first.population.numel()} and {other.population.numel()} nodes"
            raise InputError("stack", value, "give operators of the same nodes")
    if len(operators) == 1:
        return first
    population = torch.stack([part.population for part in operators]).any(0)
    blocks = tuple(size for part in operators for size in part.blocks)
    if any(part.codes is None for part in operators):
        membership = torch.cat([part.membership for part in operators], 1)
        measured = torch.cat([part.population_membership for part in operators], 1)
        rows = torch.block_diag(*[part.rows for part in operators])
        return GroupOperator(membership, population, rows, measured=measured, blocks=blocks)
    # Number the combinations of groups that occur, among corrected or measured nodes.
    corrected = torch.zeros_like(population, dtype=torch.int64)
    measured = corrected
    for part in operators:
        assert part.codes is not None
        assert part.population_codes is not None
        corrected = corrected * (part.num_groups + 1) + part.codes + 1
        measured = measured * (part.num_groups + 1) + part.population_codes + 1
    combinations, codes = torch.stack([corrected, measured]).unique(return_inverse=True)
    columns, remainder = [], combinations
    for part in reversed(operators):
        group = remainder % (part.num_groups + 1)
        remainder = remainder // (part.num_groups + 1)
        padded = torch.cat([part.rows.new_zeros(part.rows.size(0), 1), part.rows], 1)
        columns.append(padded[:, group])
    # The combination of unknown groups only is 0, and comes first if it occurs.
    unknown = int(combinations[0] == 0)
    rows = torch.cat(columns[::-1])[:, unknown:]
    corrected, measured = (codes - unknown).int()
    return GroupOperator(None, population, rows, codes=corrected, measured=measured, blocks=blocks)


def group_operator(
    sens: Tensor,
    population: Tensor | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    absent: Literal["error", "ignore"] = "error",
) -> GroupOperator:
    """Build the operator Δ from sensitive groups.

    Args:
        sens: group of each node (n, integers 0…G−1, −1 = unknown), or the probability of each
            group (n×G, rows that sum to 1; a row of zeros = unknown).
        population: nodes the gap is measured on (n, bool); all nodes by default. Nodes of unknown
            group are never part of it.
        dtype: floating-point type of the predictions it will be applied to.
        absent: ``"ignore"`` compares the groups that the population has, if there are two or more,
            instead of refusing a population without one of the groups.

    Example:
        >>> delta = group_operator(torch.tensor([0, 0, 1, -1]))
        >>> delta.matrix
        tensor([[-0.5000, -0.5000,  1.0000,  0.0000]], dtype=torch.float64)
        >>> delta.gap(torch.tensor([[0.2], [0.4], [0.9], [0.0]]))
        tensor([[0.6000]])
    """
    sens = torch.as_tensor(sens)
    codes, membership = None, None
    if not is_soft(sens):
        codes = _codes(sens)
        groups = int(codes.max()) + 1 if codes.numel() else 0
        if groups < 2 and absent == "error":
            value = f"{plural(groups, 'group')} among the nodes of known group"
            raise InputError("sens", value, "fairness between groups needs at least two (0 and 1)")
    else:
        check_probabilities("sens", sens, sens.size(0))
        groups = sens.size(1)
        if bool(((sens == 0) | (sens == 1)).all()):  # all certain: codes say the same, and faster
            codes = most_likely_group(sens).int()
        else:
            membership = sens.to(dtype)
    inside = known_mask(sens)
    if population is not None:
        population = torch.as_tensor(population, device=sens.device)
        if population.dtype != torch.bool or population.shape != inside.shape:
            value = f"{population.dtype} of shape {tuple(population.shape)}"
            raise InputError("population", value, f"give a boolean mask of {len(sens)} nodes")
        inside = population & inside
    if membership is not None:
        counts = membership[inside].double().sum(0)
    else:
        assert codes is not None
        counts = torch.bincount(codes[inside], minlength=max(groups, 1)).double()
    rows = mean_rows(counts, absent=absent)
    return GroupOperator(membership, inside, rows, codes=codes, dtype=dtype)


def mean_rows(
    counts: Tensor, *, absent: Literal["error", "ignore"] = "error"
) -> Tensor | CentredMeans:
    """M (G'×G) for groups of these sizes in the population; see :class:`GroupOperator`.

    Groups that are ``absent`` are refused, or left out; without two groups no gap is measured.
    """
    counts = counts.double()
    present = counts > 0
    if absent == "error" and not bool(present.all()):
        listed = shortlist([f"{count:g}" for count in counts.tolist()], 8)
        which = f"group {int((~present).nonzero()[0])} has no node in the population"
        hint = "choose one that contains every group, or mark the others' nodes unknown (-1)"
        raise InputError("sens", f"{which} (nodes by group: {listed})", hint)
    sizes = counts[present]
    if len(sizes) < 2:
        return counts.new_zeros(1, len(counts))
    if len(sizes) > 2:
        return CentredMeans(counts)
    rows = counts.new_zeros(1, len(counts))
    rows[:, present] = torch.stack([-1 / sizes[0], 1 / sizes[1]])
    return rows


def memberships(sens: Tensor, groups: int) -> Tensor:
    """Probability of each of ``groups`` groups (n×G), whether or not all of them occur."""
    if is_soft(sens):
        check_probabilities("sens", sens, sens.size(0))
        if sens.size(1) != groups:
            value = f"probabilities of {sens.size(1)} groups, the correction is for {groups}"
            raise InputError("sens", value, "give one column for each of those")
        return sens
    codes = _codes(sens)
    if codes.numel() and int(codes.max()) >= groups:
        value = f"group {int(codes.max())} is unknown to the correction (groups 0…{groups - 1})"
        raise InputError("sens", value, "solve for these nodes, or mark it unknown (-1)")
    return gather(torch.eye(groups, device=codes.device), codes)


def _codes(sens: Tensor) -> Tensor:
    if sens.dim() != 1:
        hint = "give one group per node (n, integers) or probabilities of groups (n×G, floats)"
        raise InputError("sens", f"{sens.dtype} of shape {tuple(sens.shape)}", hint)
    if sens.is_floating_point():
        broken = sens[sens.round() != sens]
        if broken.numel():
            hint = "use 0…G−1, and -1 for unknown; give probabilities as an n×G tensor"
            raise InputError("sens", f"{broken[0].item()} is not a whole number", hint)
    if sens.numel() and int(sens.min()) < -1:
        value = f"{int(sens.min())} is not a group"
        raise InputError("sens", value, "use 0…G−1, and -1 for unknown")
    return sens.int()


def recode_signs(sens: Tensor, argument: str) -> Tensor:
    """Groups given as −1 and 1, as in the paper, as 0 and 1, with a warning; others unchanged."""
    if sens.dim() != 1 or not bool((sens.abs() == 1).all()) or len(sens.unique()) < 2:
        return sens
    text = f"{argument}: -1 and 1 are taken for two groups; write 0 and 1, as -1 is for unknown"
    warnings.warn(text, stacklevel=3)
    return (sens > 0).long()


def is_soft(sens: Tensor) -> bool:
    """Whether groups are given as probabilities (n×G)."""
    return sens.dim() == 2 and sens.is_floating_point()


def known_mask(sens: Tensor) -> Tensor:
    """The nodes of known group (n, bool).

    Example:
        >>> known_mask(torch.tensor([[0.3, 0.7], [0.0, 0.0]]))
        tensor([ True, False])
    """
    return sens.sum(1) > 0 if is_soft(sens) else sens >= 0


def most_likely_group(sens: Tensor) -> Tensor:
    """The most probable group of each node, −1 where unknown (n)."""
    return torch.where(known_mask(sens), sens.argmax(1), -1) if is_soft(sens) else sens


def certain_group(sens: Tensor) -> Tensor:
    """The group of each node that has one of probability 1, else −1 (n)."""
    if not is_soft(sens):
        return sens
    top, group = sens.max(1)
    return torch.where(top >= 1 - CERTAIN, group, -1)


def check_probabilities(name: str, sens: Tensor, n: int) -> None:
    """Refuse an n×G tensor whose rows are not probabilities."""
    if sens.size(0) != n or sens.size(1) < 2:
        hint = f"give {n} rows, one per node, and one column per group, two or more"
        raise InputError(name, f"probabilities of shape {tuple(sens.shape)}", hint)
    wrong = ~torch.isfinite(sens) | (sens < 0)
    if bool(wrong.any()):
        node = int(wrong.any(1).nonzero()[0])
        value = f"node {node} has {sens[node][wrong[node]][0].item():g} for a probability"
        hint = "give numbers from 0 to 1, a row of zeros where the group is unknown"
        raise InputError(name, value, hint)
    total = sens.double().sum(1)
    wrong = ((total - 1).abs() > PROBABILITY_TOLERANCE) & (total != 0)
    if bool(wrong.any()):
        node = int(wrong.nonzero()[0])
        value = f"the probabilities of node {node} sum to {total[node].item():.4g}, not 1"
        hint = "normalise the rows (a row of zeros where the group is unknown)"
        raise InputError(name, value, hint)

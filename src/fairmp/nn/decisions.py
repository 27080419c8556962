r"""Equal rates of decisions: of the classes predicted, rather than of their probabilities.

The decision is the class of the largest logit; of two classes it is class 1 where the margin
:math:`m = z_1 - z_0` is above 0. A correction gives each group a threshold of its own.

- **One gap**, between two groups: thresholds move along the path of the projection,
  :math:`m_i > (\Delta^\top)_i w`. The gap falls with w, and the smallest w at which it is within
  the target is found by sorting the w at which nodes change sides. Where the last node takes the
  gap to the other side of the target, it changes only if that leaves the smaller gap.
- **Several groups**: sorted margins give the possible cuts of each group, its rate and what it
  changes. All rates must lie in one window as wide as the target; the window is the one for which
  the margins that change sign have the smallest sum.
- **More classes**: the projection is continued to small temperatures, whose limit is the gap of
  decisions, and what is left over is changed node by node, smallest margins first.

Nodes of equal margins at a threshold are split at random, or stay together.

:func:`close_decision_gap` decides for the nodes it is given, as a batch. :func:`equal_rates`
returns a :class:`DecisionRule`, which applies to any node.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairmp.errors import check_choice, check_number
from fairmp.graph import compute_dtype
from fairmp.groups import GroupOperator
from fairmp.kernels import apply
from fairmp.nn.cuts import (
    ROUNDING,
    Cuts,
    Floats,
    Integers,
    best_cuts,
    closest_cuts,
    counts_within,
)
from fairmp.nn.dual import Dual, shift_groups, solve_dual, tolerance

On = Literal["decisions", "probabilities"]  # what predictions are made equal on
Ties = Literal["random", "keep"]
Mask = NDArray[np.bool_]

ON: tuple[On, ...] = get_args(On)
TIES: tuple[Ties, ...] = get_args(Ties)
TEMPERATURES = (0.2, 0.05, 0.01, 0.002)  # relative to the typical logit range
TIED_MARGIN = 1e-6  # given to a decision that was drawn
MIN_MARGIN = 1e-4  # of nodes a rule is applied to, so that decisions survive rounding to float32
TARGET_HINT = "give the largest gap you accept: a number in [0, 1], 0.02 for two points"


@dataclass(frozen=True)
class DecisionShift:
    """Logits whose decisions are within the target gap.

    Attributes:
        logits: their largest entries are the decisions (n×C).
        shift: logit shift per group (G×C).
        drawn: nodes with tied scores whose side was drawn at random.
        gap: of decisions, between the two groups farthest apart.
    """

    logits: Tensor
    shift: Tensor
    drawn: int
    gap: float


@dataclass(frozen=True)
class DecisionRule:
    """Thresholds on margins: class 1 is decided above the threshold of a node's group.

    Example:
        >>> rule = DecisionRule(thresholds=np.array([0.0, 0.5]), tie_rates=np.zeros(2))
        >>> margin, drawn = rule.apply(np.full(3, 0.4), np.array([0, 1, -1]))
        >>> margin > 0  # group 0, group 1, unknown group
        array([ True, False,  True])
    """

    thresholds: Floats  # of each group (G)
    tie_rates: Floats  # share of the nodes exactly at the threshold that is decided class 1 (G)
    gap: float = math.nan  # of the rates of class 1, between the two groups farthest apart
    rate: float = math.nan  # of class 1 over all groups

    def apply(
        self, margin: Floats, group: Integers, *, seed: int = 0, measured: Mask | None = None
    ) -> tuple[Floats, int]:
        """Subtract the thresholds; return margins whose sign is the decision, and the ties drawn.

        Nodes of unknown group (−1) keep their margin. Ties among the ``measured`` nodes are drawn
        apart from the others, so that these have the share they should exactly.
        """
        known_mask = group >= 0
        shifted = margin - np.where(known_mask, self.thresholds[group], 0.0)
        tied = known_mask & (shifted == 0)
        least = np.where(shifted > 0, MIN_MARGIN, -MIN_MARGIN)
        shifted = np.where(known_mask & (np.abs(shifted) < MIN_MARGIN), least, shifted)
        drawn = 0
        strata = [known_mask] if measured is None else [measured, ~measured]
        members = [
            _members(np.where(tied & stratum, group, -1), len(self.tie_rates)) for stratum in strata
        ]
        for g in np.flatnonzero(self.tie_rates):
            generator = torch.Generator().manual_seed(seed + int(g))
            for nodes in (stratum[g] for stratum in members):
                selected = _draw_share(nodes, float(self.tie_rates[g]), generator)
                shifted[selected] = MIN_MARGIN
                drawn += len(nodes)
        return shifted, drawn


def _members(group: Integers, groups: int) -> list[Integers]:
    """The nodes of each group, in order."""
    order = np.argsort(group, kind="stable")
    return np.split(order, np.searchsorted(group[order], np.arange(groups + 1)))[1:-1]


def _draw_share(nodes: Integers, share: float, draws: torch.Generator) -> Integers:
    """A random share of some nodes."""
    order: Integers = torch.randperm(len(nodes), generator=draws).numpy()
    # A fraction of a node is drawn too, so that single nodes have their share.
    count = round(share * len(nodes), 6) + float(torch.rand(1, generator=draws))
    return nodes[order[: int(count)]]


def close_decision_gap(
    logits: Tensor,
    groups: GroupOperator,
    target: float = 0.0,
    *,
    ties: Ties = "random",
    seed: int = 0,
) -> DecisionShift:
    """Shift the logits of each group so that the gap of decisions is within the target.

    The gap is met up to one node of the smallest group. Nodes of unknown group never change.

    Args:
        logits: n×C; the decision is the class of the largest logit.
        groups: the groups, and the population whose gap is closed.
        target: largest gap of decisions allowed.
        ties: ``"random"`` splits nodes of equal scores at random, so that the target is met;
            ``"keep"`` gives them the same decision, and warns if the target is missed.
        seed: of the random numbers.

    Example:
        >>> from fairmp.groups import group_operator
        >>> logits = torch.tensor([[0.0, 1.0], [0.0, 2.0], [0.0, -2.0], [0.0, 1.0]])
        >>> result = close_decision_gap(logits, group_operator(torch.tensor([0, 0, 1, 1])))
        >>> result.logits.argmax(1).tolist(), result.gap
        ([0, 1, 0, 1], 0.0)
    """
    check_choice("ties", ties, TIES)
    check_number("target", target, TARGET_HINT, low=0, high=1)
    choice = _choose(logits.detach(), groups, target, ties, seed)
    gap = _decision_gap(choice.decided, groups, logits.size(1))
    _warn_if_missed(gap, target, groups, ties)
    shifted = _with_decisions(logits, groups, choice)
    return DecisionShift(shifted, choice.shift, choice.drawn, gap)


def equal_rates(
    margin: Floats,
    group: Integers,
    *,
    target: float = 0.0,
    weight: Floats | None = None,
    y: Integers | None = None,
    rate: float | None = None,
    ties: Ties = "random",
    num_groups: int = 0,
) -> DecisionRule:
    """Find thresholds that give groups the same rate of class 1, up to the target.

    Which rate: with ``rate`` that one, to within half a node; with ``y`` the most accurate one;
    else the one that changes least, as in :func:`close_decision_gap`.

    Args:
        margin: :math:`z_1 - z_0` of the nodes the rates are measured on (n).
        group: 0…G−1, −1 for unknown; groups without weight keep the threshold 0.
        target: largest difference of rates allowed.
        weight: of each node in its group's rate (n); 1 by default.
        y: labels, −1 for unknown.
        rate: of every group; those within ``rate ± target/2`` stay.
        ties: ``"random"`` splits nodes of equal margins, ``"keep"`` does not.
        num_groups: G, where the last groups may have no node here.

    Example:
        >>> rule = equal_rates(np.array([1.0, 2.0, -2.0, 1.0]), np.array([0, 0, 1, 1]))
        >>> rule.thresholds, rule.gap
        (array([1.5, 0. ]), 0.0)
    """
    weight = np.ones(len(margin)) if weight is None else weight
    known_mask = group >= 0
    totals: Floats = np.bincount(group[known_mask], weight[known_mask], num_groups).astype(
        np.float64
    )
    present = np.flatnonzero(totals > 0)
    decided, split = margin > 0, ties == "random"
    if y is None and rate is None and len(present) == 2:
        decided = _equal_pair(margin, group, weight, totals, target, ties)
    elif len(present) > 1:
        value = weight * (margin if y is None else 1.0 * (y == 1) - (y == 0))
        members = _members(group, len(totals))
        members = [members[g] for g in present]
        cuts = [Cuts(margin[nodes], weight[nodes], value[nodes], split) for nodes in members]
        if rate is not None:
            chosen = [cut.nearest_to(rate, target) for cut in cuts]
        else:
            chosen = closest_cuts(cuts, target) if y is None else best_cuts(cuts, target)
        for nodes, cut, index in zip(members, cuts, chosen, strict=True):
            decided[nodes[cut.order]] = np.arange(len(nodes)) < cut.counts[index]
    return _rule(margin, group, weight, totals, decided)


def _rule(
    margin: Floats, group: Integers, weight: Floats, totals: Floats, decided: Mask
) -> DecisionRule:
    """Thresholds between the nodes that are decided class 1 and the others, in each group."""
    thresholds, tie_rates = np.zeros(len(totals)), np.zeros(len(totals))
    members = _members(group, len(totals))
    for g in np.flatnonzero(totals > 0):
        values, selected = margin[members[g]], decided[members[g]]
        above = values[selected].min(initial=math.inf)
        below = values[~selected].max(initial=-math.inf)
        if above == below:
            thresholds[g], tie_rates[g] = above, selected[values == above].mean()
        elif not below <= 0 < above:  # where the plain decision makes the same cut, it stays
            thresholds[g] = _between(float(below), float(above))
    known_mask = group >= 0
    selected_weight = np.bincount(
        group[known_mask], weight[known_mask] * decided[known_mask], len(totals)
    )
    rates = selected_weight[totals > 0] / totals[totals > 0]
    rate = float(selected_weight.sum() / totals.sum())
    return DecisionRule(thresholds, tie_rates, float(np.ptp(rates)), rate)


def _between(below: float, above: float) -> float:
    """A threshold at which ``above`` is decided class 1 and ``below`` is not."""
    if math.isinf(above):
        return below + 1
    if math.isinf(below):
        return above - 1
    middle = below + (above - below) / 2
    return middle if middle < above else below


# One gap: thresholds along the path of the projection.


@dataclass(frozen=True)
class _Gap:
    """One gap of decisions between two classes, Σ weight·decided."""

    weight: Floats  # of each node in the gap, 0 outside the population (n)
    column: Floats  # by how much a shift of 1 lowers each margin, 0 where the group is unknown (n)
    groups: GroupOperator | None = None  # where the nodes are spread over processes

    def total(self, amount: float) -> float:
        """Sum over all processes."""
        if self.groups is None:
            return float(amount)
        part = torch.tensor([amount], dtype=torch.float64, device=self.groups.population.device)
        return float(self.groups.total(part))

    def smallest_sum(self, values: Floats, needed: float) -> float:
        """The smallest t such that the nodes with values (0 or more) up to t have enough weight."""
        nodes = np.flatnonzero((values < math.inf) & (self.weight != 0))
        values, amounts = values[nodes], np.abs(self.weight[nodes])
        if self.groups is None:
            # The first so many are enough, however small their amounts.
            most = min(len(nodes), int(needed / amounts.min()) + 2)
            first = np.argpartition(values, most - 1)[:most]
            first = first[np.argsort(values[first])]
            place = int(np.searchsorted(amounts[first].cumsum(), needed - ROUNDING))
            return float(values[first[min(place, most - 1)]])
        # Bisect, down to neighbouring numbers.
        largest = torch.tensor([values.max(initial=0.0)], device=self.groups.population.device)
        low, high = -1.0, float(self.groups.largest(largest))
        while low < (middle := (low + high) / 2) < high:
            reached = self.total(amounts[values <= middle].sum())
            low, high = (low, middle) if reached >= needed - ROUNDING else (middle, high)
        return high


@dataclass(frozen=True)
class _ClosedGap:
    """Decisions at the smallest shift that closes a gap."""

    decided: Mask  # for class 1 (n)
    shift: float
    drawn: int  # nodes whose side was drawn


def _close_one_gap(
    margin: Floats, gap: _Gap, target: float, ties: Ties, draws: torch.Generator
) -> _ClosedGap:
    """Find the smallest shift that closes the gap."""
    decided, amounts = margin > 0, np.abs(gap.weight)
    size = gap.total((gap.weight * decided).sum())
    if abs(size) <= target + ROUNDING:
        return _ClosedGap(decided, 0.0, 0)
    side, needed = math.copysign(1.0, size), abs(size) - target
    towards = side * gap.column
    # The shift at which a node changes sides; those that move away from the threshold never do.
    change = np.full_like(margin, math.inf)
    np.divide(margin, towards, out=change, where=((towards > 0) == decided) & (towards != 0))
    last = gap.smallest_sum(change, needed)
    changed, shift, drawn = change <= last, math.nextafter(last, math.inf), 0
    removed = gap.total(amounts[changed].sum())
    # Too far: a tie has to be split, and a single node may better stay where it is.
    if removed - needed > 2 * target + ROUNDING:
        tied = change == last
        count = int(gap.total((tied & (amounts > 0)).sum()))
        removed_before = removed - gap.total(amounts[tied].sum())
        if count > 1 and ties == "random":
            draw = torch.rand(len(margin), generator=draws, dtype=torch.float64).numpy()
            draw = np.where(tied, draw, math.inf)
            limit = gap.smallest_sum(draw, needed - removed_before)
            changed, drawn = (change < last) | (draw <= limit), count
        elif abs(size) - removed_before + ROUNDING < removed - abs(size):
            changed, shift = change < last, math.nextafter(last, 0.0)
    return _ClosedGap(decided ^ changed, side * shift, drawn)


def _equal_pair(
    margin: Floats, group: Integers, weight: Floats, totals: Floats, target: float, ties: Ties
) -> Mask:
    """Decisions that close the gap between the two groups that have weight."""
    first, second = np.flatnonzero(totals > 0)
    column = np.where(group == second, 1 / totals[second], 0.0)
    column[group == first] = -1 / totals[first]
    gap, draws = _Gap(weight * column, column), torch.Generator().manual_seed(0)
    return _close_one_gap(margin, gap, target, ties, draws).decided


# The decisions of a batch, whose groups are those of an operator.


@dataclass(frozen=True)
class _Choice:
    """Decisions, and the shift that makes all but a few, which are changed one by one."""

    decided: Integers  # class of each node (n)
    shift: Tensor  # of the logits per group (G×C)
    drawn: int  # nodes whose side was drawn
    shifted: Floats  # the logits less their shift (n×C)


def _gap_of(groups: GroupOperator) -> _Gap:
    """The gap of an operator with one row."""
    weight, column = (part.cpu().numpy() for part in (groups.first_row, groups.first_column))
    return _Gap(weight, column, None if groups.is_local else groups)


def _choose(logits: Tensor, groups: GroupOperator, target: float, ties: Ties, seed: int) -> _Choice:
    """Decide by the method that suits the number of classes and groups."""
    classes, draws = logits.size(1), torch.Generator().manual_seed(seed + groups.rank)
    if classes == 2 and groups.num_rows == 1:
        return _along_path(logits, groups, target, ties, draws)
    decided = _decisions(logits)
    if _decision_gap(decided, groups, classes) <= target + ROUNDING:
        no_shift = logits.new_zeros(groups.num_groups, classes, dtype=torch.float64)
        return _Choice(decided, no_shift, 0, _to_numpy(logits).copy())
    if classes == 2 and _is_countable(groups):
        return _by_thresholds(logits, groups, target, ties, seed)
    return _continue_projection(logits, groups, target, ties, draws)


def _along_path(
    logits: Tensor, groups: GroupOperator, target: float, ties: Ties, draws: torch.Generator
) -> _Choice:
    """Two classes and one gap, between groups that are hard or soft."""
    z, gap = _to_numpy(logits), _gap_of(groups)
    closed = _close_one_gap(z[:, 1] - z[:, 0], gap, target, ties, draws)
    half, shifted = closed.shift / 2, np.empty_like(z)
    shifted[:, 0] = z[:, 0] + half * gap.column
    shifted[:, 1] = z[:, 1] - half * gap.column
    table = np.outer(_to_numpy(groups.rows), [-half, half])
    on_device = torch.from_numpy(table).to(logits.device)
    return _Choice(closed.decided.astype(np.int64), on_device, closed.drawn, shifted)


def _by_thresholds(
    logits: Tensor, groups: GroupOperator, target: float, ties: Ties, seed: int
) -> _Choice:
    """Two classes, nodes of one group each."""
    assert groups.codes is not None
    z, group = _to_numpy(logits), groups.codes.long().cpu().numpy()
    margin = z[:, 1] - z[:, 0]
    inside = groups.population.cpu().numpy()
    rule = equal_rates(
        margin[inside], group[inside], target=target, ties=ties, num_groups=groups.num_groups
    )
    shifted, drawn = rule.apply(margin, group, seed=seed, measured=inside)
    table = torch.from_numpy(np.outer(rule.thresholds, [-0.5, 0.5])).to(logits.device)
    return _Choice((shifted > 0).astype(np.int64), table, drawn, _subtract(logits, groups, table))


def _continue_projection(
    logits: Tensor, groups: GroupOperator, target: float, ties: Ties, draws: torch.Generator
) -> _Choice:
    """More classes: project at small temperatures, then change what is left."""
    ranges = (logits.amax(1) - logits.amin(1)).double()
    varied = groups.population & (ranges > 0)
    logs = ranges[varied].log().sum()
    sums = groups.total(torch.stack([logs, varied.double().sum()]))
    typical = math.exp(float(sums[0] / sums[1].clamp_min(1)))  # the geometric mean: few are far out
    best, smallest_gap = None, math.inf
    dual: Dual | None = None
    for part in TEMPERATURES:
        temperature, tol = part * typical, tolerance(torch.float32)
        dual = solve_dual(logits, groups, target, temperature, dual, tol=tol)
        decided = _decisions(shift_groups(logits, dual))
        gap = _decision_gap(decided, groups, logits.size(1))
        if gap < smallest_gap:
            table = temperature * groups.by_group(dual.u)
            best = _Choice(decided, table, 0, _subtract(logits, groups, table))
            smallest_gap = gap
        if gap <= target + ROUNDING:
            break
    assert best is not None
    return _repair(logits, groups, best, target, ties, draws) if _is_countable(groups) else best


def _repair(
    logits: Tensor,
    groups: GroupOperator,
    choice: _Choice,
    target: float,
    ties: Ties,
    draws: torch.Generator,
) -> _Choice:
    """Change the decisions with the smallest margins until every group has the counts it needs."""
    assert groups.population_codes is not None
    codes = groups.population_codes.cpu().numpy()
    shifted, decided = choice.shifted, choice.decided.copy()
    counts = np.zeros((groups.num_groups, logits.size(1)), dtype=np.int64)
    np.add.at(counts, (codes[codes >= 0], decided[codes >= 0]), 1)
    draw = torch.rand(len(codes), generator=draws, dtype=torch.float64).numpy()
    drawn = 0
    members = _members(codes, groups.num_groups)
    for group, (now, goal) in enumerate(zip(counts, counts_within(counts, target), strict=True)):
        for leave in np.flatnonzero(now > goal):
            for enter in np.flatnonzero(now < goal):
                number = int(min(now[leave] - goal[leave], goal[enter] - now[enter]))
                if number <= 0:
                    continue
                nodes = members[group][decided[members[group]] == leave]
                margin = shifted[nodes, leave] - shifted[nodes, enter]
                moved, tied = _smallest_margins(margin, draw[nodes], number, ties)
                decided[nodes[moved]] = enter
                drawn += tied
                now[leave], now[enter] = now[leave] - len(moved), now[enter] + len(moved)
    return replace(choice, decided=decided, drawn=drawn)


def _smallest_margins(
    margin: Floats, draw: Floats, number: int, ties: Ties
) -> tuple[Integers, int]:
    """The nodes with the smallest margins, and how many tie at the last of them."""
    order = np.lexsort((draw, margin))
    last = margin[order[number - 1]]
    tied = np.abs(margin - last) <= ROUNDING * max(1.0, abs(last))
    before, count = int((margin[~tied] < last).sum()), int(tied.sum())
    if before + count <= number:
        return order[:number], 0
    if ties == "random":
        return order[:number], count
    return order[: before if number - before < count / 2 else before + count], 0


def _is_countable(groups: GroupOperator) -> bool:
    """Whether nodes have one group each and are all here, so that decisions can be counted."""
    return groups.codes is not None and groups.is_local and len(groups.blocks) == 1


def _to_numpy(tensor: Tensor) -> Floats:
    array: Floats = tensor.double().cpu().numpy()
    return array


def _subtract(logits: Tensor, groups: GroupOperator, table: Tensor) -> Floats:
    """The logits less a shift per group."""
    return _to_numpy(groups.subtract(logits.double(), table))


def _decisions(logits: Tensor) -> Integers:
    z = logits.to(compute_dtype(logits.dtype)).cpu().numpy()
    decided = z[:, 1] > z[:, 0] if z.shape[1] == 2 else z.argmax(1)
    return np.asarray(decided, dtype=np.int64)


def _decision_gap(decided: Integers, groups: GroupOperator, classes: int) -> float:
    """The gap between the two groups farthest apart, in any class."""
    if classes == 2 and groups.num_rows == 1:  # of two classes, the gaps are opposite
        gap = _gap_of(groups)
        return abs(gap.total((gap.weight * decided).sum()))
    one_hot = torch.nn.functional.one_hot(torch.from_numpy(decided), classes)
    return float(groups.largest_gap(one_hot.double().to(groups.population.device)).max())


def _with_decisions(logits: Tensor, groups: GroupOperator, choice: _Choice) -> Tensor:
    """The shifted logits, whose largest entries are the decisions in their type as well."""
    exact, decided = choice.shifted, choice.decided
    shifted = torch.from_numpy(exact).to(logits)
    wrong = np.flatnonzero(groups.known.cpu().numpy() & (_decisions(shifted) != decided))
    if len(wrong):
        # Rounding, or a draw: relative to the largest, a small margin is representable.
        rows = exact[wrong]
        rows = np.minimum(rows - rows.max(1, keepdims=True), 0.0)
        rows[np.arange(len(rows)), decided[wrong]] = TIED_MARGIN
        exact[wrong] = rows
        shifted = torch.from_numpy(exact).to(logits)
    return apply(_Replace, logits, shifted) if logits.requires_grad else shifted


class _Replace(torch.autograd.Function):
    """Replace logits by shifted ones; the shift is a constant, so that gradients pass through."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, shifted: Tensor) -> Tensor:
        return shifted

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


def _warn_if_missed(gap: float, target: float, groups: GroupOperator, ties: Ties) -> None:
    """Warn of a gap above the target by more than one node of the smallest group."""
    one_node = float(groups.column_spread.max())
    if gap > target + one_node + ROUNDING:
        warnings.warn(
            f"the gap of decisions is {gap:.4f}, above the target of {target:g}"
            + (": nodes with tied scores change sides together" if ties == "keep" else ""),
            UserWarning,
            stacklevel=3,
        )

r"""Close the gap of decisions: of the classes predicted, rather than of their probabilities.

For two classes and one gap, the margins of each group are shifted along the path of the projection,
:math:`m_i - (\Delta^\top)_i w`. The gap of decisions falls with w, so the smallest w at which it is
within the target is found by bisection. Nodes whose decisions change at that very w are tied, and
are split at random.

For more classes or groups the projection is continued to small temperatures, whose limit is the gap
of decisions, and the few decisions that are left over are changed one by one, those with the
smallest margins first.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fairmp.errors import check_choice, check_number
from fairmp.groups import GroupOperator
from fairmp.nn.dual import clip_logits, relative_to_largest, shift_groups, solve_dual

Ties = Literal["random", "keep"]

BISECTIONS = 1100  # enough to reach neighbouring floats from any start
TEMPERATURES = (0.2, 0.05, 0.01, 0.002)  # relative to the average logit range
ROUNDING = 1e-9  # of a gap
TIED_MARGIN = 1e-6  # margin given to a decision that was drawn


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
        >>> logits = torch.tensor([[0.0, 1.0], [0.0, 2.0], [0.0, -1.0], [0.0, 1.0]])
        >>> result = close_decision_gap(logits, group_operator(torch.tensor([0, 0, 1, 1])))
        >>> result.logits.argmax(1).tolist(), result.gap
        ([0, 1, 0, 1], 0.0)
    """
    check_choice("ties", ties, ("random", "keep"))
    check_number("target", target, "give the largest gap you accept, in [0, 1]", low=0, high=1)
    before = logits.detach()
    table = groups.rows.new_zeros(groups.num_groups, logits.size(1))
    decided, drawn = before.argmax(1), 0
    if _gap(decided, groups, logits.size(1)) > target + ROUNDING:
        binary = groups.rows.size(0) == 1 and logits.size(1) == 2
        method = _bisect if binary else _continue
        generator = torch.Generator().manual_seed(seed + groups.rank)
        table, decided, drawn = method(before, groups, target, ties, generator)
    shifted = _with_decisions(logits, groups, table, decided)
    gap = _gap(shifted.detach().argmax(1), groups, logits.size(1))
    if gap > target + _one_node(groups) + ROUNDING:
        warnings.warn(
            f"the gap of decisions is {gap:.4f}, above the target of {target:g}"
            + (": nodes with tied scores change sides together" if ties == "keep" else ""),
            UserWarning,
            stacklevel=2,
        )
    return DecisionShift(shifted, table, drawn, gap)


def _one_node(groups: GroupOperator) -> float:
    """The gap that one node of the smallest group makes."""
    membership = groups.population_membership.double()
    if groups.codes is not None and len(groups.blocks) == 1:
        return 1 / max(float(groups.total(membership.sum(0)).min()), 1.0)
    return float(groups.largest((membership @ groups.rows.T).abs().amax().view(1)))


def _gap(decided: Tensor, groups: GroupOperator, classes: int) -> float:
    rates = torch.nn.functional.one_hot(decided, classes).double()
    return float(groups.largest_gap(rates).max())


def _with_decisions(
    logits: Tensor, groups: GroupOperator, table: Tensor, decided: Tensor
) -> Tensor:
    """Shift the logits by group, and see to it that their largest entries are the decisions."""
    if groups.codes is None:
        shift = groups.membership.double() @ table
    else:
        shift = torch.where(groups.known.unsqueeze(1), table[groups.codes.clamp_min(0).long()], 0.0)
    exact = logits.double() - shift
    shifted = torch.where(groups.known.unsqueeze(1), exact, logits.double()).to(logits.dtype)
    wrong = groups.known & (shifted.detach().argmax(1) != decided)
    # Rounding, or a draw: relative to the largest, a small margin is representable.
    chosen = torch.nn.functional.one_hot(decided, logits.size(1)).bool()
    centred = relative_to_largest(exact).clamp_max(0).masked_fill(chosen, TIED_MARGIN)
    return torch.where(wrong.unsqueeze(1), centred.to(logits.dtype), shifted)


def _bisect(
    logits: Tensor, groups: GroupOperator, target: float, ties: Ties, generator: torch.Generator
) -> tuple[Tensor, Tensor, int]:
    """Two classes and one gap: the smallest shift along the path of the projection."""
    margin = logits[:, 1].double() - logits[:, 0].double()
    column = groups.shift(torch.ones(1, 1, dtype=torch.float64, device=logits.device))[:, 0]
    weight = groups.population_membership.double() @ groups.rows[0]

    def excess(positive: Tensor) -> float:
        return side * float(groups.total((weight * positive).sum().view(1))) - target

    side = 1.0
    start = margin > 0
    if excess(start) < 0:
        side = -1.0
    # Where every node of known group has changed sides.
    inverse = torch.where(column == 0, 0.0, 1 / column.abs())
    largest = [torch.cat([part, part.new_zeros(1)]).amax() for part in (margin.abs(), inverse)]
    size, reach = groups.largest(torch.stack(largest)).tolist()
    far = 2 * (size + 1) * reach

    def at(w: float) -> Tensor:
        return torch.where(column == 0, start, margin > side * w * column)

    low, high = _bisection(lambda w: excess(at(w)) <= ROUNDING, 0.0, far)
    decided, drawn = at(high), 0
    tied = at(low) != decided
    count = int(groups.total(tied.double().sum().view(1)))
    # More than one node too far: the tie has to be split.
    if count > 1 and excess(decided) < -2 * target - _one_node(groups):
        if ties == "keep":
            if abs(excess(at(low)) + target) < abs(excess(decided) + target):
                high, decided = low, at(low)
        else:
            draw = torch.rand(margin.numel(), generator=generator, dtype=torch.float64)
            draw = draw.to(margin.device)

            def drawn_at(q: float) -> Tensor:
                return torch.where(tied & (draw >= q), at(low), at(high))

            _, q = _bisection(lambda q: excess(drawn_at(q)) <= ROUNDING, 0.0, 1.0)
            decided, drawn = drawn_at(q), count
    half = side * high / 2
    table = groups.rows.T * torch.tensor([-half, half], dtype=torch.float64, device=margin.device)
    return table, decided.long(), drawn


def _bisection(meets: Callable[[float], bool], low: float, high: float) -> tuple[float, float]:
    """Neighbouring numbers of which the second, and not the first, meets a condition."""
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (low, middle) if meets(middle) else (middle, high)
    return low, high


def _continue(
    logits: Tensor, groups: GroupOperator, target: float, ties: Ties, generator: torch.Generator
) -> tuple[Tensor, Tensor, int]:
    """More classes or groups: project at small temperatures, then change what is left."""
    classes = logits.size(1)
    ranges = (logits.amax(1) - logits.amin(1)).double() * groups.population
    sums = groups.total(torch.stack([ranges.sum(), groups.population.double().sum()]))
    typical = max(float(sums[0] / sums[1].clamp_min(1)), 1e-12)
    best: tuple[float, Tensor, Tensor] | None = None
    u: Tensor | None = None
    previous = 1.0
    for part in TEMPERATURES:
        temperature = part * typical
        z = clip_logits(logits, groups, temperature)
        start = None if u is None else u * (previous / temperature)
        u, _ = solve_dual(z, groups, target, temperature, start, torch.float32)
        decided = shift_groups(z, groups, u, temperature, z.dtype).argmax(1)
        gap = _gap(decided, groups, classes)
        if best is None or gap < best[0]:
            best = gap, temperature * groups.by_group(u), decided
        if gap <= target + ROUNDING:
            break
        previous = temperature
    assert best is not None
    gap, table, decided = best
    drawn = 0
    # Nodes of one group each, held here, can be changed one by one.
    if groups.codes is not None and groups.is_local and len(groups.blocks) == 1:
        decided, drawn = _repair(logits, groups, table, decided, target, ties, generator)
    return table, decided, drawn


def _repair(
    logits: Tensor,
    groups: GroupOperator,
    table: Tensor,
    decided: Tensor,
    target: float,
    ties: Ties,
    generator: torch.Generator,
) -> tuple[Tensor, int]:
    """Change the decisions with the smallest margins until every group has the counts it needs."""
    assert groups.population_codes is not None
    codes = groups.population_codes.cpu().numpy()
    shifted = logits.double().cpu().numpy() - table.cpu().numpy()[np.maximum(codes, 0)]
    found, classes = decided.cpu().numpy().copy(), logits.size(1)
    counts = np.zeros((groups.num_groups, classes), dtype=np.int64)
    np.add.at(counts, (codes[codes >= 0], found[codes >= 0]), 1)
    wanted = _wanted_counts(counts, target)
    draw = torch.rand(len(codes), generator=generator, dtype=torch.float64).numpy()
    drawn = 0
    for group, (now, goal) in enumerate(zip(counts, wanted, strict=True)):
        for leave in np.flatnonzero(now > goal):
            for enter in np.flatnonzero(now < goal):
                number = int(min(now[leave] - goal[leave], goal[enter] - now[enter]))
                if number <= 0:
                    continue
                nodes = np.flatnonzero((codes == group) & (found == leave))
                margins = shifted[nodes, leave] - shifted[nodes, enter]
                order = np.lexsort((draw[nodes], margins))
                last = margins[order[number - 1]]
                tied = np.abs(margins - last) <= ROUNDING * max(1.0, abs(last))
                before = int((margins[~tied] < last).sum())
                if before + int(tied.sum()) > number:  # the tie is larger than what is needed
                    if ties == "keep":
                        number = before if number - before < tied.sum() / 2 else before + tied.sum()
                    else:
                        drawn += int(tied.sum())
                found[nodes[order[:number]]] = enter
                now[leave], now[enter] = now[leave] - number, now[enter] + number
    return torch.from_numpy(found).to(decided.device), drawn


def _wanted_counts(counts: np.ndarray, target: float) -> np.ndarray:
    """Counts per group and class, near the given ones, whose rates are within the target."""
    sizes = counts.sum(1, keepdims=True)
    rates, limit = counts / sizes, target + 1 / sizes.min() + ROUNDING
    if np.ptp(rates, axis=0).max() <= limit:
        return counts
    centre = counts.sum(0) / counts.sum()
    away = np.abs(rates - centre).max(1, keepdims=True)
    rates = centre + (rates - centre) * np.minimum(1, target / 2 / np.maximum(away, 1e-300))
    exact = rates * sizes
    wanted = np.floor(exact).astype(np.int64)
    for group, missing in enumerate((sizes.ravel() - wanted.sum(1)).tolist()):
        wanted[group, np.argsort(wanted[group] - exact[group], kind="stable")[:missing]] += 1

    def spread(candidate: np.ndarray) -> float:
        return float(np.ptp(candidate / sizes, axis=0).max())

    # Rounding may leave two groups up to two nodes apart: move single nodes while that helps.
    while spread(wanted) > limit:
        moves = [
            (group, leave, enter)
            for group, leave in np.argwhere(wanted > 0)
            for enter in range(counts.shape[1])
            if enter != leave
        ]
        candidates = []
        for group, leave, enter in moves:
            candidate = wanted.copy()
            candidate[group, leave] -= 1
            candidate[group, enter] += 1
            candidates.append(candidate)
        nearest = min(candidates, key=spread)
        if spread(nearest) >= spread(wanted):
            break
        wanted = nearest
    return wanted

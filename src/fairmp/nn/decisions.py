r"""Close the gap of decisions: of the classes predicted, rather than of their probabilities.

For two classes and one gap, the margins of each group are shifted along the path of the projection,
:math:`m_i - (\Delta^\top)_i w`. The gap of decisions falls with w, and the smallest w at which it
is within the target is found by sorting the w at which nodes change sides; where one node takes it
from one side of the target to the other, it changes only if that leaves the smaller gap. For two
classes and more groups, the rates of positive decisions are moved into the window, as wide as the
target, for which the margins that change sign have the smallest sum; it is found from sorted
margins and their cumulative sums. Nodes of equal margins are split at random.

For more classes the projection is continued to small temperatures, whose limit is the gap of
decisions, and the few decisions that are left over are changed one by one, those with the smallest
margins first.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fairmp.errors import check_choice, check_number
from fairmp.groups import GroupOperator
from fairmp.kernels import relative_to_largest
from fairmp.nn.dual import Dual, shift_groups, solve_dual, tolerance

Ties = Literal["random", "keep"]

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
        >>> logits = torch.tensor([[0.0, 1.0], [0.0, 2.0], [0.0, -2.0], [0.0, 1.0]])
        >>> result = close_decision_gap(logits, group_operator(torch.tensor([0, 0, 1, 1])))
        >>> result.logits.argmax(1).tolist(), result.gap
        ([0, 1, 0, 1], 0.0)
    """
    check_choice("ties", ties, ("random", "keep"))
    check_number("target", target, "give the largest gap you accept, in [0, 1]", low=0, high=1)
    found = _on_host(logits, groups, target)
    if found is not None:
        return found
    before = logits.detach()
    table = groups.rows.new_zeros(groups.num_groups, logits.size(1))
    decided, drawn = _decisions(before), 0
    if _gap(decided, groups, logits.size(1)) > target + ROUNDING:
        single = groups.codes is not None and groups.is_local and len(groups.blocks) == 1
        method = _continue
        if logits.size(1) == 2 and (groups.rows.size(0) == 1 or single):
            method = _along_path if groups.rows.size(0) == 1 else _into_window
        generator = torch.Generator().manual_seed(seed + groups.rank)
        table, decided, drawn = method(before, groups, target, ties, generator)
    shifted = _with_decisions(logits, groups, table, decided)
    gap = _gap(_decisions(shifted.detach()), groups, logits.size(1))
    # One node of the smallest group may be left over.
    over = gap - target - ROUNDING
    if over > 0 and over > float(groups.spread(groups.rows).max()):
        warnings.warn(
            f"the gap of decisions is {gap:.4f}, above the target of {target:g}"
            + (": nodes with tied scores change sides together" if ties == "keep" else ""),
            UserWarning,
            stacklevel=2,
        )
    return DecisionShift(shifted, table, drawn, gap)


def _on_host(logits: Tensor, groups: GroupOperator, target: float) -> DecisionShift | None:
    """Close one gap between two classes as :func:`_along_path` does, in a third of the time.

    ``None`` for what needs that function: gradients, other devices or processes, ties to split.
    """
    if logits.size(1) != 2 or len(groups.rows) != 1 or not groups.is_local:
        return None
    if logits.is_cuda or logits.dtype not in (torch.float32, torch.float64):
        return None
    if logits.requires_grad and torch.is_grad_enabled():
        return None
    tensors = logits.detach(), groups.first_row, groups.first_column
    z, weight, column = (tensor.numpy() for tensor in tensors)
    exact = z.astype(np.float64)
    margin = exact[:, 1] - exact[:, 0]
    decided = margin > 0
    gap = float((weight * decided).sum())  # a product of BLAS would start its threads
    if abs(gap) <= target + ROUNDING:
        table = groups.rows.new_zeros(groups.num_groups, 2)
        return DecisionShift(logits.clone(), table, 0, abs(gap))
    side, needed = math.copysign(1.0, gap), abs(gap) - target
    away = side * column
    change = np.full_like(margin, np.inf)
    np.divide(margin, away, out=change, where=((away > 0) == decided) & (away != 0))
    nodes = np.flatnonzero((change < np.inf) & (weight != 0))
    values, amounts = change[nodes], np.abs(weight[nodes])
    most = min(len(nodes), int(needed / amounts.min()) + 2)
    near = np.argpartition(values, most - 1)[:most]
    near = near[np.argsort(values[near])]
    place = min(int(np.searchsorted(amounts[near].cumsum(), needed - ROUNDING)), most - 1)
    w = values[near[place]]
    changed, reach = change <= w, math.nextafter(w, math.inf)
    removed = float(np.abs(weight[changed]).sum())
    if removed - needed > 2 * target + ROUNDING:
        if int((values == w).sum()) > 1:
            return None
        if abs(gap) - (removed - amounts[near[place]]) + ROUNDING < removed - abs(gap):
            changed, reach = change < w, math.nextafter(w, 0.0)
    decided ^= changed
    half = side * reach / 2
    exact[:, 0] += half * column
    exact[:, 1] -= half * column
    shifted = exact.astype(z.dtype)
    wrong = np.flatnonzero(((shifted[:, 1] > shifted[:, 0]) != decided) & (column != 0))
    if wrong.size:  # by rounding; relative to the largest, a small margin is representable
        centred = exact[wrong] - exact[wrong].max(1, keepdims=True)
        centred[np.arange(wrong.size), decided[wrong].astype(int)] = TIED_MARGIN
        shifted[wrong] = centred
    table = groups.rows.T * torch.tensor([-half, half], dtype=torch.float64)
    gap = abs(float((weight * decided).sum()))
    return DecisionShift(torch.from_numpy(shifted), table, 0, gap)


def _decisions(logits: Tensor) -> Tensor:
    return (logits[:, 1] > logits[:, 0]).long() if logits.size(1) == 2 else logits.argmax(1)


def _gap(decided: Tensor, groups: GroupOperator, classes: int) -> float:
    # Of two classes, the gaps are opposite.
    if classes == 2 and len(groups.rows) == 1:
        return abs(float(groups.total((groups.first_row @ decided.double()).view(1))))
    one_hot = torch.nn.functional.one_hot
    rates = decided.unsqueeze(1) if classes == 2 else one_hot(decided, classes)
    return float(groups.largest_gap(rates.double()).max())


def _with_decisions(
    logits: Tensor, groups: GroupOperator, table: Tensor, decided: Tensor
) -> Tensor:
    """Shift the logits by group, and see to it that their largest entries are the decisions."""
    exact = groups.subtract(logits.double(), table)
    shifted = exact.to(logits.dtype)
    wrong = (groups.known & (_decisions(shifted.detach()) != decided)).nonzero().flatten()
    if not wrong.numel():
        return shifted
    # Rounding, or a draw: relative to the largest, a small margin is representable.
    chosen = torch.nn.functional.one_hot(decided[wrong], logits.size(1)).bool()
    centred = relative_to_largest(exact[wrong]).clamp_max(0).masked_fill(chosen, TIED_MARGIN)
    return shifted.index_put((wrong,), centred.to(logits.dtype))


def _along_path(
    logits: Tensor, groups: GroupOperator, target: float, ties: Ties, generator: torch.Generator
) -> tuple[Tensor, Tensor, int]:
    """Two classes and one gap: the smallest shift along the path of the projection."""
    margin = logits[:, 1].double() - logits[:, 0].double()
    weight, positive = groups.first_row, margin > 0

    def total(amounts: Tensor) -> float:
        return float(groups.total(amounts.sum().double().view(1)))

    gap = total(weight * positive)
    side = 1.0 if gap > 0 else -1.0
    needed, weight, column = abs(gap) - target, weight.abs(), side * groups.first_column
    # The w at which a node changes sides. Those that move away from the threshold never do, nor
    # those of unknown group: 0/0, or negative.
    change = margin / column
    change = torch.where(((column > 0) == positive) & (change >= 0), change, torch.inf)
    w = _smallest_sum(groups, change, weight, needed)
    changed, tied, reach = change <= w, change == w, math.nextafter(w, math.inf)
    removed, count, drawn = total(weight * changed), int(total(tied)), 0
    # Too far: a tie has to be split, and a single node may better stay where it is.
    if removed - needed > 2 * target + ROUNDING:
        before = total(weight * (change < w))
        if count > 1 and ties == "random":
            draw = torch.rand(margin.numel(), generator=generator, dtype=torch.float64)
            draw = torch.where(tied, draw.to(margin.device), torch.inf)
            last = _smallest_sum(groups, draw, weight, needed - before)
            changed, drawn = (change < w) | (draw <= last), count
        elif abs(gap) - before + ROUNDING < removed - abs(gap):
            changed, reach = change < w, math.nextafter(w, 0.0)
    half = side * reach / 2
    table = groups.rows.T * torch.tensor([-half, half], dtype=torch.float64, device=margin.device)
    return table, (positive ^ changed).long(), drawn


def _smallest_sum(groups: GroupOperator, values: Tensor, amounts: Tensor, needed: float) -> float:
    """The smallest t such that the amounts of values (0 or more) up to t add up to the needed."""
    counts = ((amounts > 0) & (values < torch.inf)).nonzero()[:, 0]
    values, amounts = values.index_select(0, counts), amounts.index_select(0, counts)
    if groups.is_local:
        # The first so many are enough, however small their amounts.
        most = min(values.numel(), int(needed / float(amounts.min())) + 2)
        values, order = values.topk(most, largest=False)
        place = int(torch.searchsorted(amounts[order].cumsum(0), needed - ROUNDING))
        return float(values[min(place, values.numel() - 1)])
    # Values are spread over processes: bisect, down to neighbouring numbers.
    low, high = -1.0, float(groups.largest(torch.cat([values, values.new_zeros(1)]).max().view(1)))
    while low < (middle := (low + high) / 2) < high:
        reached = float(groups.total(amounts[values <= middle].sum().view(1)))
        low, high = (low, middle) if reached >= needed - ROUNDING else (middle, high)
    return high


def _into_window(
    logits: Tensor, groups: GroupOperator, target: float, ties: Ties, generator: torch.Generator
) -> tuple[Tensor, Tensor, int]:
    """Two classes, nodes of one group each: the smallest sum of margins that change sign."""
    assert groups.codes is not None
    codes = groups.codes.cpu().numpy()
    margin = (logits[:, 1].double() - logits[:, 0].double()).cpu().numpy()
    order, starts = (part.cpu().numpy() for part in groups.population_order)
    draw = torch.rand(len(order), generator=generator, dtype=torch.float64).numpy()
    members = []  # of each group, largest margins first
    for start, stop in pairwise(starts):
        nodes = order[start:stop]
        members.append(nodes[np.lexsort((draw[start:stop], -margin[nodes]))])
    sizes = np.array([len(part) for part in members])
    now = np.array([int((margin[part] > 0).sum()) for part in members])
    sums = [np.concatenate([[0.0], margin[part].cumsum()]) for part in members]
    rates = now[sizes > 0] / sizes[sizes > 0]
    # The window's lower end, where it or the upper end is a rate that some group can have.
    ends = np.concatenate([np.arange(size + 1) / max(size, 1) for size in sizes])
    ends = np.unique(np.concatenate([ends, ends - target]))
    ends = ends[(ends >= rates.min()) & (ends <= rates.max() - target)]

    def count(group: int, low: np.ndarray) -> np.ndarray:
        size = sizes[group]
        least, most = np.ceil(low * size - ROUNDING), np.floor((low + target) * size + ROUNDING)
        nearest = np.rint((low + target / 2) * size)  # where no rate lies within the window
        within = np.clip(now[group], least, most)
        return np.where(least <= most, within, nearest).astype(np.int64)

    cost = sum(part[now[g]] - part[count(g, ends)] for g, part in enumerate(sums))
    best = ends[np.argmin(cost)]
    decided, shift, drawn = margin > 0, np.zeros(groups.num_groups), 0
    for group, nodes in enumerate(members):
        wanted = int(count(group, best))
        if wanted == now[group]:
            continue
        sorted_margin = margin[nodes]
        if 0 < wanted < len(nodes) and sorted_margin[wanted - 1] == sorted_margin[wanted]:
            tied = np.flatnonzero(sorted_margin == sorted_margin[wanted])
            if ties == "random":
                drawn += len(tied)
            else:
                above, below = tied[0], tied[-1] + 1
                wanted = int(above if wanted - above <= below - wanted else below)
        if wanted < now[group]:
            shift[group] = sorted_margin[wanted]
        elif wanted > now[group]:
            shift[group] = np.nextafter(sorted_margin[wanted - 1], -np.inf)
        inside = codes == group
        decided[inside] = margin[inside] > shift[group]
        decided[nodes] = np.arange(len(nodes)) < wanted
    table = torch.from_numpy(np.outer(shift, [-0.5, 0.5])).to(logits.device)
    return table, torch.from_numpy(decided).long().to(logits.device), drawn


def _continue(
    logits: Tensor, groups: GroupOperator, target: float, ties: Ties, generator: torch.Generator
) -> tuple[Tensor, Tensor, int]:
    """More classes: project at small temperatures, then change what is left."""
    classes = logits.size(1)
    ranges = (logits.amax(1) - logits.amin(1)).double() * groups.population
    sums = groups.total(torch.stack([ranges.sum(), groups.population.double().sum()]))
    typical = max(float(sums[0] / sums[1].clamp_min(1)), 1e-12)
    found: list[tuple[float, Tensor, Tensor]] = []
    dual: Dual | None = None
    for part in TEMPERATURES:
        temperature = part * typical
        tol = tolerance(torch.float32)
        dual = solve_dual(logits, groups, target, temperature, dual, tol=tol)
        decided = shift_groups(logits, dual).argmax(1)
        gap = _gap(decided, groups, classes)
        found.append((gap, temperature * groups.by_group(dual.u), decided))
        if gap <= target + ROUNDING:
            break
    _, table, decided = min(found, key=lambda part: part[0])
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
        candidates = []
        for group, leave in np.argwhere(wanted > 0):
            for enter in range(counts.shape[1]):
                candidate = wanted.copy()
                candidate[group, leave] -= 1
                candidate[group, enter] += 1
                candidates.append(candidate)
        nearest = min(candidates, key=spread)
        if spread(nearest) >= spread(wanted):
            break
        wanted = nearest
    return wanted

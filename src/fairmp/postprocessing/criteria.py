"""Fairness criteria, each a set of gaps ΔQ that must not exceed a target, and their measurement."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import nan
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairmp.errors import InputError, check_number, plural
from fairmp.groups import GroupOperator, group_operator, mean_rows
from fairmp.metrics.calibration import label_probabilities
from fairmp.metrics.counts import boolean_mask, gap_interval, weighted_rates, weights
from fairmp.metrics.evaluation import ALIASES, CRITERIA, canonical
from fairmp.postprocessing.predictions import Attribute, Predictions, numbers, read_labels
from fairmp.postprocessing.result import CriterionResult, UnlabelledEstimate
from fairmp.postprocessing.thresholds import GroupThresholds

NAMES = tuple(CRITERIA)
MAX_MATRIX_ROWS = 500
FEASIBLE = 1e-9
AGREEMENT = 0.01  # slack when an estimate is compared with what the labels say


@dataclass(frozen=True)
class Criterion:
    """A criterion and its target."""

    name: str  # one of NAMES, or the name of a matrix
    target: float
    matrix: Tensor | None = None  # a user's own Δ (rows×n, float64)


@dataclass(frozen=True)
class Measure:
    """One linear measurement ΔQ of predictions in some classes, at most the target."""

    criterion: str
    attribute: str  # name of the criterion for a matrix
    label: int | None  # true class of the nodes it is measured on; None for all
    delta: GroupOperator
    classes: tuple[int, ...]  # columns of Q it concerns
    target: float
    own: bool = False  # whether it is a user's matrix
    unit: float = 1.0  # scale of a gap: 1 for a difference of means, more for a larger matrix

    def gap(self, p: Tensor) -> float:
        """The largest gap in predictions (n×C)."""
        return float(self.delta.largest_gap(p)[list(self.classes)].max())


@dataclass(frozen=True)
class Solution:
    """Corrected logits, and the problem they solve."""

    given: Predictions
    logits: Tensor  # corrected (n×C)
    temperature: float
    attributes: tuple[Attribute, ...]  # estimated where requested
    population: Tensor  # n, bool
    labels: Tensor  # n, −1 unknown
    classes: tuple[str, ...]
    weight: Tensor  # of each node (n, float64)
    measures: tuple[Measure, ...] = ()  # the criteria
    warnings: tuple[str, ...] = ()
    weights: tuple[np.ndarray, ...] = ()  # the correction for criteria on labels; see odds
    drawn: int = 0  # nodes whose decision was drawn at random because their scores tie
    rule: GroupThresholds | None = None  # the correction of decisions by a threshold per group
    missed: tuple[str, ...] = ()  # targets of decisions that are not met

    @property
    def on_labels(self) -> bool:
        """Whether a criterion is measured on labelled nodes."""
        return any(measure.label is not None for measure in self.measures)

    @property
    def weighted(self) -> bool:
        """Whether weights are given that are not all 1."""
        return bool((self.weight != 1).any())


def read_problem(
    given: Predictions,
    attributes: Sequence[Attribute],
    labels: Any,
    class_names: Sequence[str] | None,
    sample_weight: Any,
    population: Any = None,
) -> Solution:
    """Predictions with what their gaps are measured on, not corrected yet."""
    n, device = len(given.logits), given.logits.device
    inside = torch.from_numpy(boolean_mask(population, n, "population")).to(device)
    names, codes = read_labels(labels, given, class_names)
    weight = torch.from_numpy(weights(sample_weight, n)).to(device)
    own = tuple(replace(one, sens=one.sens.to(device)) for one in attributes)
    return Solution(given, given.logits, 1.0, own, inside, codes, names, weight)


def read(criterion: Any, target: Any, n: int) -> list[Criterion]:
    """Read criteria for n nodes (a list, or a dict of names), with one target or one for each."""
    if isinstance(criterion, Mapping):
        parts = [(str(name), value) for name, value in criterion.items()]
    else:
        several = isinstance(criterion, list | tuple) and not _is_numeric(criterion)
        parts = [("", one) for one in (criterion if several else [criterion])]
    if not parts:
        raise InputError("criterion", "none is given", f"choose one of {', '.join(NAMES)}")
    named: dict[str, Tensor | None] = {}
    for title, value in parts:
        if isinstance(value, str):
            name, matrix = canonical(value), None
        else:
            count = 1 + sum(other.startswith("matrix") for other in named)
            name = title or ("matrix" if count == 1 else f"matrix {count}")
            matrix = _matrix(value, n)
        if name in named:
            raise InputError("criterion", f"{name!r} is given twice", "give it once")
        named[name] = matrix
    hint = "give the largest gap you accept: a number in [0, 1], 0.02 for two points"
    found = []
    for (name, matrix), goal in zip(named.items(), _targets(target, list(named)), strict=True):
        # A matrix has whatever scale its user gave it, a gap between rates does not.
        high = 1 if matrix is None else math.inf
        goal = goal.item() if isinstance(goal, np.generic) else goal
        found.append(Criterion(name, check_number("target", goal, hint, low=0, high=high), matrix))
    return found


def measures(
    criteria: Sequence[Criterion], problem: Solution, strict: bool = True
) -> tuple[list[Measure], list[str]]:
    """Measurements of each attribute, and warnings about what is left out if not ``strict``."""
    found: list[Measure] = []
    warnings: list[str] = []
    for attribute in problem.attributes if strict else ():
        _check_groups(attribute, problem.population)
    for criterion in criteria:
        if criterion.matrix is not None:
            found.append(_of_matrix(criterion, problem.population, len(problem.classes)))
            continue
        for attribute in problem.attributes:
            try:
                parts, notes = _of_groups(criterion, attribute, problem, strict)
            except InputError as error:
                if strict:
                    raise
                why = f"{error.argument}: {error.value}"
                parts, notes = [], [f"{criterion.name} ({attribute.name}) is not measured ({why})"]
            found += parts
            warnings += notes
    return found, warnings


def compare_groups(membership: Tensor, nodes: Tensor) -> GroupOperator:
    """The operator that compares the weighted groups that some nodes have."""
    counts = membership[nodes].sum(0)
    there = counts > 0
    part = mean_rows(counts[there])
    rows = counts.new_zeros(len(part), len(counts))
    rows[:, there] = part
    return GroupOperator(membership, nodes, rows, blocks=(len(rows),))


def _of_groups(
    criterion: Criterion, attribute: Attribute, problem: Solution, strict: bool
) -> tuple[list[Measure], list[str]]:
    """Measurements of a named criterion, and warnings."""
    name, inside, labels = criterion.name, problem.population, problem.labels
    classes = tuple(range(len(problem.classes)))
    membership = attribute.membership
    weighted = membership * problem.weight.unsqueeze(1)
    if not strict and int((weighted[inside].sum(0) > 0).sum()) < 2:
        raise InputError(attribute.name, "fewer than two groups")
    if name == "demographic_parity":
        if strict and not problem.weighted:
            delta = group_operator(attribute.sens, inside, dtype=problem.logits.dtype)
        else:
            delta = compare_groups(weighted, inside)
        return [Measure(name, attribute.name, None, delta, classes, criterion.target)], []
    if not bool((labels >= 0).any()):
        hint = f"{name} is measured on labelled nodes: give the true classes of some"
        raise InputError("labels", "missing", hint)
    opportunity = name == "equal_opportunity"
    found, warnings = [], []
    for label in (1,) if opportunity and len(classes) == 2 else classes:
        nodes = inside & (labels == label) & attribute.known
        counts = membership[nodes].sum(0)
        where = f"{name}, {attribute.name}: class {label}"
        if int((counts > 0).sum()) < 2:
            warnings.append(f"{where} is labelled in fewer than two groups, and left out")
            continue
        for group, count in zip(attribute.groups, counts.tolist(), strict=True):
            if count <= 1:
                number = "one labelled node" if count > 0 else "no labelled node"
                warnings.append(f"{where} has {number} in group {group!r}")
        delta, columns = compare_groups(weighted, nodes), (label,) if opportunity else classes
        found.append(Measure(name, attribute.name, label, delta, columns, criterion.target))
    if not found:
        value = f"no class is labelled in two groups of {attribute.name!r}"
        raise InputError("labels", value, "give more labels, or demographic_parity")
    return found, warnings


def shortfall(measures: Sequence[Measure], classes: int) -> float:
    """How much every target would have to grow: min s ≥ 0 such that some |Δ_k Q| ≤ t_k + s."""
    if not any(measure.own for measure in measures):
        return 0.0
    # Nodes with equal columns of Δ share their variables. Rows that sum to 0 are met by constants.
    matrices = [np.asarray(measure.delta.pair_matrix.cpu().numpy()) for measure in measures]
    if all(
        np.abs(matrix.sum(1)).max() / classes <= measure.target + FEASIBLE
        for matrix, measure in zip(matrices, measures, strict=True)
    ):
        return 0.0
    from scipy.optimize import linprog
    from scipy.sparse import coo_array, csr_array, hstack, kron, vstack

    kinds, counts = np.unique(np.concatenate(matrices).T, axis=0, return_counts=True)
    heights = [len(matrix) for matrix in matrices]
    concerned = [np.isin(np.arange(classes), measure.classes) for measure in measures]
    mask = np.repeat(concerned, heights, axis=0).reshape(-1)
    targets = np.repeat([m.target for m in measures], heights).repeat(classes)[mask]
    gaps = csr_array(kron(csr_array(kinds.T * counts), np.eye(classes)))[mask]
    slack = coo_array(-np.ones((gaps.shape[0], 1)))
    found = linprog(
        np.append(np.zeros(gaps.shape[1]), 1.0),
        A_ub=vstack([hstack([gaps, slack]), hstack([-gaps, slack])]),
        b_ub=np.concatenate([targets, targets]),
        A_eq=hstack([kron(np.eye(len(kinds)), np.ones((1, classes))), coo_array((len(kinds), 1))]),
        b_eq=np.ones(len(kinds)),
        method="highs",
    )
    return float(found.fun) if found.status == 0 else 0.0


def check_feasible(measures: Sequence[Measure], classes: int) -> None:
    """Refuse criteria that no predictions can meet together; name the smallest target."""
    short = shortfall(measures, classes)
    if short <= FEASIBLE:
        return
    names = list(dict.fromkeys(repr(measure.criterion) for measure in measures))
    targets = list(dict.fromkeys(measure.target for measure in measures))
    several = len(names) > 1
    reach = f"each target must be {_rounded_up(short)} larger"
    if len(targets) == 1:
        reach = f"the smallest target that can be reached is {_rounded_up(targets[0] + short)}"
    by = " and ".join(names) + " together" * several
    value = f"{', '.join(f'{target:g}' for target in targets)} cannot be reached by {by}; {reach}"
    hint = f"relax {'a target or leave a criterion out' if several else 'the target'}"
    raise InputError("target", value, hint)


def _of_matrix(criterion: Criterion, population: Tensor, classes: int) -> Measure:
    assert criterion.matrix is not None
    matrix = criterion.matrix.to(population.device)
    outside = int(((matrix != 0).any(0) & ~population).sum())
    if outside:
        value = f"{criterion.name!r} weighs {outside} nodes outside the population"
        raise InputError("criterion", value, "give zeros there, or leave population out")
    rows = torch.eye(matrix.size(0), dtype=torch.float64, device=matrix.device)
    delta = GroupOperator(matrix.T.contiguous(), population, rows)
    unit = max(1.0, float(matrix.abs().sum(1).max()) / 2)
    name, target = criterion.name, criterion.target
    return Measure(name, name, None, delta, tuple(range(classes)), target, own=True, unit=unit)


def _check_groups(attribute: Attribute, population: Tensor) -> None:
    weights = attribute.membership[population].sum(0).tolist()
    if len(weights) < 2:
        value = f"{plural(len(weights), 'group')} among the nodes of known group"
        raise InputError(attribute.name, value, "fairness between groups needs at least two")
    weight = min(weights)
    if weight <= 1:
        count = {0: "no node", 1: "one node"}.get(weight, f"{weight:.2g} nodes")
        value = f"group {attribute.groups[weights.index(weight)]!r} has {count} in the population"
        hint = "give it two or more, merge it with another group, or mark it unknown"
        raise InputError(attribute.name, value, hint)


def _is_numeric(value: Any) -> bool:
    """Whether a list is a matrix or a row of one, and not a list of criteria."""
    try:
        array = np.asarray(value)
    except ValueError:
        return False
    return array.dtype.kind in "biuf" and array.ndim <= 2 and array.size > 0


def _matrix(value: Any, n: int) -> Tensor:
    """A user's matrix (rows×n, float64), checked."""
    dense = value.toarray() if hasattr(value, "toarray") else value
    dense = value.detach().cpu().to_dense() if isinstance(value, Tensor) else dense
    hint = f"give one of {', '.join(NAMES)}, or a matrix of numbers (rows×n)"
    matrix = torch.atleast_2d(numbers("criterion", dense, hint)).double()
    rows = matrix.size(0)
    if matrix.dim() != 2 or matrix.size(1) != n or not 0 < rows <= MAX_MATRIX_ROWS:
        value = f"shape {tuple(matrix.shape)} for {n} nodes"
        raise InputError("criterion", value, f"give n columns and 1 to {MAX_MATRIX_ROWS} rows")
    empty = (matrix == 0).all(1).nonzero().flatten().tolist()
    if empty:
        raise InputError("criterion", f"row {empty[0]} of the matrix is all 0", "leave it out")
    return matrix


def _targets(target: Any, names: Sequence[str]) -> list[Any]:
    if isinstance(target, Mapping):
        given = {ALIASES.get(str(name), str(name)): value for name, value in target.items()}
        for name in names:
            if name not in given:
                raise InputError("target", f"none for {name!r}", "give one for each criterion")
        return [given[name] for name in names]
    if not isinstance(target, list | tuple | np.ndarray):
        return [target] * len(names)
    if len(target) != len(names):
        hint = "give one number, or one for each"
        raise InputError("target", f"{len(target)} for {len(names)} criteria", hint)
    return list(target)


def _rounded_up(value: float) -> str:
    return f"{math.ceil(1e4 * value - 1e-6) / 1e4:g}"


def measured(
    solution: Solution, found: Sequence[Measure], versions: Sequence[Tensor], *, estimates: bool
) -> tuple[CriterionResult, ...]:
    """Measure each criterion and attribute before and after, of probabilities and decisions."""
    before, after, *decided = versions
    together = torch.cat(list(versions), 1)
    results = []
    for (name, attribute), parts in groupby(found, lambda m: (m.criterion, m.attribute)):
        own = list(parts)
        where = "the nodes the matrix weighs" if own[0].own else "the population"
        rest: dict[str, Any] = {}
        if own[0].label is not None:
            where = "labelled nodes of the population"
            rest["interval"] = _interval(own, after)
            rest["unlabelled"] = _unlabelled(solution, own, before, after) if estimates else None
        if not own[0].own:
            rest["interval_before"], rest["decisions_interval"] = (
                _interval(own, p) for p in decided
            )
        nodes = torch.stack([(measure.delta.matrix != 0).any(0) for measure in own]).any(0)
        by_class = [m.delta.largest_gap(together).view(4, -1)[:, list(m.classes)] for m in own]
        gaps = torch.cat(by_class, 1).amax(1).tolist()
        row = (name, attribute, own[0].target, *gaps, where, int(nodes.sum()))
        results.append(CriterionResult(*row, **rest))
    return tuple(results)


def _largest(own: Sequence[Measure], p: Tensor) -> float:
    return max((measure.gap(p) for measure in own), default=nan)


def _interval(own: Sequence[Measure], p: Tensor) -> tuple[float, float]:
    """95 % interval of the largest gap over the measurements of a criterion."""
    found = []
    for measure in own:
        nodes = (measure.delta.matrix != 0).any(0)
        # The two classes of two mirror each other.
        columns = [1] if p.size(1) == 2 and len(measure.classes) == 2 else list(measure.classes)
        weights = measure.delta.membership[nodes].double().cpu().numpy()
        found.append(weighted_rates(weights, p[nodes][:, columns].double().cpu().numpy()))
    rates, sizes = (np.concatenate(part, 1) for part in zip(*found, strict=True))
    return gap_interval(rates, sizes)


def _unlabelled(
    solution: Solution, own: Sequence[Measure], before: Tensor, after: Tensor
) -> UnlabelledEstimate | None:
    """Estimate a criterion on unlabelled nodes, with calibrated probabilities for the labels."""
    attribute = next(one for one in solution.attributes if one.name == own[0].attribute)
    known, labelled = solution.population & attribute.known, solution.labels >= 0
    nodes = int((known & ~labelled).sum())
    if not nodes:
        return None
    codes = torch.where(known, solution.labels, -1).cpu().numpy()
    z = solution.given.logits.double()
    expected = torch.from_numpy(
        label_probabilities(z.cpu().numpy(), codes, attribute.hard.cpu().numpy())
    ).to(z.device)

    def measures_on(nodes: Tensor) -> list[Measure]:
        """The same measurements on other nodes, with probabilities for labels."""
        found = []
        for measure in own:
            weights = attribute.membership * (expected[:, measure.label] * solution.weight)[:, None]
            if int((weights[nodes].sum(0) > 0).sum()) >= 2:
                found.append(replace(measure, delta=compare_groups(weights, nodes)))
        return found

    there, check = measures_on(known & ~labelled), measures_on(known & labelled)
    on_labelled = (_largest(check, before), _largest(check, after))
    reliable = all(
        low - AGREEMENT <= gap <= high + AGREEMENT
        for gap, p in zip(on_labelled, (before, after), strict=True)
        for low, high in [_interval(own, p)]
    )
    if not there or not reliable:
        return UnlabelledEstimate(nodes, nan, nan, None, on_labelled, reliable)
    gaps = (_largest(there, before), _largest(there, after))
    return UnlabelledEstimate(nodes, *gaps, _interval(there, after), on_labelled)

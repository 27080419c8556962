"""Fairness criteria: sets of gaps ΔQ of predictions Q, each at most a target."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairmp.errors import InputError, check_number, plural
from fairmp.groups import GroupOperator, group_operator, is_soft, mean_rows
from fairmp.metrics.counts import boolean_mask, weights
from fairmp.metrics.evaluation import CRITERIA, canonical
from fairmp.nn.decisions import TARGET_HINT
from fairmp.postprocessing.predictions import Attribute, Scores, read_labels


@dataclass(frozen=True)
class Problem:
    """Scores, and what their gaps are measured on."""

    scores: Scores
    logits: Tensor  # to correct (n×C)
    attributes: tuple[Attribute, ...]
    population: Tensor  # n, bool
    y: Tensor  # labels, −1 unknown (n)
    classes: tuple[str, ...]
    weight: Tensor  # of each node (n, float64)

    @cached_property
    def is_weighted(self) -> bool:
        """Whether weights are given that are not all 1."""
        return bool((self.weight != 1).any())

    @cached_property
    def has_labels(self) -> bool:
        """Whether any node is labelled."""
        return bool((self.y >= 0).any())


def read_problem(
    scores: Scores,
    attributes: Sequence[Attribute],
    y: Any,
    *,
    class_names: Sequence[str] | None,
    sample_weight: Any,
    population: Any = None,
) -> Problem:
    """Check the labels, weights and population, and bring all to one device."""
    n, device = len(scores.logits), scores.logits.device
    classes, labels = read_labels(y, scores, class_names)
    return Problem(
        scores=scores,
        logits=scores.logits,
        attributes=tuple(
            replace(attribute, sens=attribute.sens.to(device)) for attribute in attributes
        ),
        population=torch.from_numpy(boolean_mask(population, n, "population")).to(device),
        y=labels,
        classes=classes,
        weight=torch.from_numpy(weights(sample_weight, n)).to(device),
    )


NAMES = tuple(CRITERIA)


@dataclass(frozen=True)
class Criterion:
    """A criterion and its target."""

    name: str  # one of NAMES
    target: float  # nan where it is measured only


@dataclass(frozen=True)
class Measure:
    """One measurement ΔQ of predictions in some classes, at most the target."""

    criterion: str
    attribute: str
    labels: tuple[int, ...] | None  # true classes of the nodes it is measured on; None for all
    delta: GroupOperator
    classes: tuple[int, ...]  # columns of Q it concerns
    target: float

    @property
    def nodes(self) -> Tensor:
        """The nodes it is measured on (n, bool)."""
        return self.delta.measured

    @property
    def one_node(self) -> float:
        """The largest change of the gap that a single node can make."""
        return self.delta.one_node

    def gap(self, p: Tensor) -> float:
        """The largest gap in predictions (n×C)."""
        return float(self.delta.largest_gap(p)[list(self.classes)].max())


def read_criteria(criterion: str | Sequence[str], target: Any) -> list[Criterion]:
    """Read one or several criteria, with one target or one for each."""
    listed: list[Any] = [criterion] if isinstance(criterion, str) else list(criterion)
    if not listed:
        raise InputError("criterion", "none is given", f"choose one of {', '.join(NAMES)}")
    names = []
    for name in listed:
        if not isinstance(name, str):
            hint = f"choose one of {', '.join(NAMES)}"
            raise InputError("criterion", f"{type(name).__name__} is not a name", hint)
        if canonical(name) in names:
            raise InputError("criterion", f"{canonical(name)!r} is given twice", "give it once")
        names.append(canonical(name))
    targets = [
        check_number("target", value, TARGET_HINT, low=0, high=1)
        for value in _targets(target, names)
    ]
    return [Criterion(*pair) for pair in zip(names, targets, strict=True)]


def _targets(target: Any, names: Sequence[str]) -> list[Any]:
    if isinstance(target, Mapping):
        by_name = {canonical(str(name)): value for name, value in target.items()}
        for name in names:
            if name not in by_name:
                raise InputError("target", f"none for {name!r}", "give one for each criterion")
        return [by_name[name] for name in names]
    if isinstance(target, np.generic | np.ndarray):
        target = target.tolist()
    if not isinstance(target, list | tuple):
        return [target] * len(names)
    if len(target) != len(names):
        hint = "give one number, or one for each"
        raise InputError("target", f"{len(target)} for {len(names)} criteria", hint)
    return list(target)


def measures_of(
    criteria: Sequence[Criterion], problem: Problem, *, required: bool = True
) -> tuple[tuple[Measure, ...], tuple[str, ...]]:
    """Measurements of each criterion and attribute, and notes on what is left out.

    One that is impossible is an error if it is ``required``, else it is noted.
    """
    for attribute in problem.attributes if required else ():
        _check_groups(attribute, problem.population)
    measures: list[Measure] = []
    notes: list[str] = []
    for criterion, attribute in product(criteria, problem.attributes):
        try:
            parts, remarks = _measures(criterion, attribute, problem)
        except InputError as error:
            if required:
                raise
            reason = f"{error.argument}: {error.value}"
            parts = []
            remarks = [f"{criterion.name} ({attribute.name}) is not measured ({reason})"]
        measures += parts
        notes += remarks
    return tuple(measures), tuple(notes)


def compare_groups(attribute: Attribute, weight: Tensor, nodes: Tensor) -> GroupOperator:
    """The operator that compares the groups that some weighted nodes have."""
    rows = mean_rows(attribute.totals(weight * nodes), absent="ignore")
    if is_soft(attribute.sens):
        return GroupOperator(attribute.membership * weight.unsqueeze(1), nodes, rows)
    codes = attribute.sens.int()
    return GroupOperator(None, nodes, rows, codes=codes, weight=weight, dtype=torch.float64)


def _measures(
    criterion: Criterion, attribute: Attribute, problem: Problem
) -> tuple[list[Measure], list[str]]:
    """Measurements of a criterion on one attribute, and notes on what is left out."""
    groups = int((attribute.totals(problem.weight * problem.population) > 0).sum())
    if groups < 2:
        value = f"{plural(groups, 'group')} among the nodes of known group"
        raise InputError(attribute.name, value, "fairness between groups needs at least two")
    if criterion.name == "demographic_parity":
        if problem.is_weighted:
            delta = compare_groups(attribute, problem.weight, problem.population)
        else:
            delta = group_operator(
                attribute.sens, problem.population, dtype=problem.logits.dtype, absent="ignore"
            )
        classes = tuple(range(len(problem.classes)))
        return [Measure(criterion.name, attribute.name, None, delta, classes, criterion.target)], []
    if not bool((problem.y >= 0).any()):
        hint = f"{criterion.name} is measured on labelled nodes: give the true classes of some"
        raise InputError("y", "missing", hint)
    return _measures_by_label(criterion, attribute, problem)


@dataclass(frozen=True)
class _Comparison:
    """Decisions for some classes, among the nodes of some true classes."""

    labels: tuple[int, ...]
    columns: tuple[int, ...]

    @property
    def title(self) -> str:
        """The true classes, for notes."""
        names = ", ".join(map(str, self.labels))
        return f"class {names}" if len(self.labels) == 1 else f"classes {names}"


def _comparisons(criterion: str, classes: int) -> list[_Comparison]:
    """What a criterion on labels compares."""
    everything = tuple(range(classes))
    if criterion == "equalized_odds":
        return [_Comparison((label,), everything) for label in everything]
    # With two classes, the rates of class 0 mirror those of class 1.
    shown = everything[1:] if classes == 2 else everything
    if criterion == "equal_opportunity":
        return [_Comparison((c,), (c,)) for c in shown]
    return [_Comparison(everything[:c] + everything[c + 1 :], (c,)) for c in shown]


def _measures_by_label(
    criterion: Criterion, attribute: Attribute, problem: Problem
) -> tuple[list[Measure], list[str]]:
    """Measurements among the nodes of some true classes."""
    measures, notes = [], []
    for comparison in _comparisons(criterion.name, len(problem.classes)):
        labels, columns = comparison.labels, comparison.columns
        has_label = torch.isin(problem.y, problem.y.new_tensor(labels))
        nodes = problem.population & has_label & attribute.known
        counts = attribute.totals(nodes.double())
        where = f"{criterion.name}, {attribute.name}: {comparison.title}"
        if int((attribute.totals(problem.weight * nodes) > 0).sum()) < 2:
            notes.append(f"{where} is labelled in fewer than two groups, and left out")
            continue
        for group, count in zip(attribute.groups, counts.tolist(), strict=True):
            if count <= 1:
                number = "one labelled node" if count > 0 else "no labelled node"
                notes.append(f"{where} has {number} in group {group!r}")
        delta = compare_groups(attribute, problem.weight, nodes)
        measures.append(
            Measure(criterion.name, attribute.name, labels, delta, columns, criterion.target)
        )
    if not measures:
        value = f"no class is labelled in two groups of {attribute.name!r}"
        raise InputError("y", value, "give more labels, or demographic_parity")
    return measures, notes


def _check_groups(attribute: Attribute, population: Tensor) -> None:
    sizes = attribute.totals(population.double()).tolist()
    smallest = min(sizes, default=math.inf)
    if smallest <= 1:
        count = {0.0: "no node", 1.0: "one node"}.get(smallest, f"{smallest:.2g} nodes")
        value = f"group {attribute.groups[sizes.index(smallest)]!r} has {count} in the population"
        hint = "give it two or more, merge it with another group, or mark it unknown"
        raise InputError(attribute.name, value, hint)

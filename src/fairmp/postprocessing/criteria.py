"""Fairness criteria, each a set of gaps ΔQ that must not exceed a target."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from fairmp.errors import InputError, check_choice, check_number
from fairmp.groups import GroupOperator, group_operator
from fairmp.postprocessing.attributes import Attribute

Name = Literal["demographic_parity", "equal_opportunity", "equalized_odds"]
NAMES: tuple[Name, ...] = get_args(Name)
ALIASES = {
    "dp": "demographic_parity",
    "eo": "equal_opportunity",
    "true_positive_rate_parity": "equal_opportunity",
    "odds": "equalized_odds",
    "equalised_odds": "equalized_odds",
}
MAX_MATRIX_ROWS = 500
MAX_PAIRED_GROUPS = 20  # beyond, pairs are too many, and each group is bounded from the mean
FEASIBLE = 1e-9


@dataclass(frozen=True)
class Criterion:
    """A criterion and its target."""

    name: str  # one of NAMES, or the name of a matrix
    target: float
    matrix: Tensor | None = None  # a user's own Δ (rows×n, float64)

    @property
    def on_labels(self) -> bool:
        """Whether it is measured on labelled nodes."""
        return self.matrix is None and self.name != "demographic_parity"


@dataclass(frozen=True)
class Measure:
    r"""One linear measurement of predictions in some classes, at most the target.

    Δ compares two groups, or more groups with the mean of all: the gap is the distance between the
    two groups farthest apart. For a matrix it is the largest entry of :math:`|\Delta Q|`.
    """

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
        values = self.delta.gap(p)[:, list(self.classes)]
        if self.own or len(values) == 1:
            return float(values.abs().max())
        return float((values.amax(0) - values.amin(0)).max())

    def constraint(self) -> Measure:
        """The same bound as |ΔQ| ≤ target, with one row per pair of groups."""
        rows = self.delta.rows
        if self.own or len(rows) < 3 or self.target == 0:
            return self
        if len(rows) > MAX_PAIRED_GROUPS:
            return replace(self, target=self.target / 2)
        first, second = torch.triu_indices(len(rows), len(rows), 1, device=rows.device)
        delta = copy(self.delta)
        delta.rows = rows[first] - rows[second]
        vars(delta).pop("norm", None)
        return replace(self, delta=delta)


def canonical(name: str) -> str:
    """The name of a criterion, from any of its spellings."""
    key = name.strip().lower().replace("-", "_").replace(" ", "_")
    return check_choice("criterion", ALIASES.get(key, key), NAMES)


def read(criterion: Any, target: Any, n: int) -> list[Criterion]:
    """Read one or several criteria with their targets.

    Args:
        criterion: a name, a matrix (rows×n; numpy, torch or scipy sparse), a list of these, or a
            dict that names them.
        target: one number for all, or one for each: a list, or a dict by name.
        n: number of nodes.

    Example:
        >>> [(c.name, c.target) for c in read(["demographic_parity", "odds"], 0.02, 5)]
        [('demographic_parity', 0.02), ('equalized_odds', 0.02)]
        >>> read([[0.5, 0.5, -1.0]], 0.1, 3)[0].matrix.shape
        torch.Size([1, 3])
    """
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
            name, matrix = title or ("matrix" if count == 1 else f"matrix {count}"), _matrix(value)
            if matrix.size(1) != n:
                shape = tuple(matrix.shape)
                raise InputError("criterion", f"shape {shape} for {n} nodes", "give n columns")
        if name in named:
            raise InputError("criterion", f"{name!r} is given twice", "give it once")
        named[name] = matrix
    targets = _targets(target, list(named))
    for goal, matrix in zip(targets, named.values(), strict=True):
        # A matrix has whatever scale its user gave it, a gap between rates does not.
        check_number(
            "target",
            goal,
            "give the largest gap you accept: a number in [0, 1], 0.02 for two points",
            low=0,
            high=1 if matrix is None else math.inf,
        )
    return [
        Criterion(name, float(goal), matrix)
        for (name, matrix), goal in zip(named.items(), targets, strict=True)
    ]


def measures(
    criteria: Sequence[Criterion],
    attributes: Sequence[Attribute],
    population: Tensor,
    labels: Tensor | None,
    classes: int,
    dtype: torch.dtype = torch.float64,
) -> tuple[list[Measure], list[str]]:
    """Turn criteria into measurements, and return them with warnings.

    Args:
        criteria: the criteria.
        attributes: the sensitive attributes; each criterion but a matrix applies to each.
        population: the nodes (n, bool).
        labels: true classes (n, −1 unknown), for equal opportunity and equalized odds.
        classes: number of classes C.
        dtype: floating-point type of the predictions.
    """
    found: list[Measure] = []
    warnings: list[str] = []
    everything = tuple(range(classes))
    for attribute in attributes:
        _check_groups(attribute, population)
    for criterion in criteria:
        name, target = criterion.name, criterion.target
        if criterion.matrix is not None:
            found.append(_of_matrix(criterion, population, classes))
            continue
        for attribute in attributes:
            if criterion.on_labels:
                parts, notes = on_labels(criterion, attribute, population, labels, classes)
                found += parts
                warnings += notes
            else:
                delta = group_operator(attribute.sens, population, dtype=dtype)
                found.append(Measure(name, attribute.name, None, delta, everything, target))
    return found, warnings


def between(counts: Tensor) -> Tensor:
    """Rows M that compare the groups that are not empty: a difference, or each to the mean."""
    there = counts > 0
    inverse = torch.where(there, 1 / counts.clamp_min(1e-300), 0.0)
    if int(there.sum()) == 2:
        first, second = there.nonzero().flatten().tolist()
        row = torch.zeros_like(counts)
        row[first], row[second] = -inverse[first], inverse[second]
        return row.unsqueeze(0)
    mean = there / counts.sum().clamp_min(1e-300)
    return (torch.diag(inverse) - mean)[there]


def on_labels(
    criterion: Criterion,
    attribute: Attribute,
    population: Tensor,
    labels: Tensor | None,
    classes: int,
) -> tuple[list[Measure], list[str]]:
    """Measurements of equal opportunity or equalized odds, and warnings."""
    if labels is None:
        hint = f"{criterion.name} is measured on labelled nodes: give labels=, -1 where unknown"
        raise InputError("labels", "missing", hint)
    opportunity = criterion.name == "equal_opportunity"
    membership = attribute.membership
    found, warnings = [], []
    for label in (1,) if opportunity and classes == 2 else range(classes):
        inside = population & (labels == label) & attribute.known
        counts = membership[inside].sum(0)
        where = f"{criterion.name}, {attribute.name}: class {label}"
        if int((counts > 0).sum()) < 2:
            warnings.append(f"{where} is labelled in fewer than two groups, and left out")
            continue
        for group, count in zip(attribute.groups, counts.tolist(), strict=True):
            if count <= 1:
                number = "one labelled node" if count > 0 else "no labelled node"
                warnings.append(f"{where} has {number} in group {group!r}")
        delta = GroupOperator(membership, inside, between(counts))
        columns = (label,) if opportunity else tuple(range(classes))
        found.append(
            Measure(criterion.name, attribute.name, label, delta, columns, criterion.target)
        )
    if not found:
        raise InputError(
            "labels",
            f"no class is labelled in two groups of {attribute.name!r}, so {criterion.name} can "
            "not be measured",
            "give more labels, or demographic_parity",
        )
    return found, warnings


def shortfall(measures: Sequence[Measure], classes: int) -> float:
    r"""How much every target would have to grow for predictions to exist that meet them.

    .. math::
        \min_{s \ge 0,\, Q} s \quad \text{s.t.} \quad |\Delta_k Q| \le t_k + s,
        \quad Q_i \text{ in the simplex.}

    Nodes with equal columns of Δ share their variables. Rows that sum to 0 are met by constants.
    """
    matrices = [np.asarray(measure.delta.matrix.cpu().numpy()) for measure in measures]
    if not any(measure.own for measure in measures) or all(
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
    names = list(dict.fromkeys(measure.criterion for measure in measures))
    targets = list(dict.fromkeys(measure.target for measure in measures))
    if len(targets) == 1:
        reach = f"the smallest target that can be reached is {_rounded_up(targets[0] + short)}"
    else:
        reach = f"each target must be {_rounded_up(short)} larger"
    raise InputError(
        "target",
        f"{', '.join(f'{target:g}' for target in targets)} can not be reached by "
        f"{' and '.join(map(repr, names))}{' together' * (len(names) > 1)}; {reach}",
        f"relax {'a target or leave a criterion out' if len(names) > 1 else 'the target'}",
    )


def _of_matrix(criterion: Criterion, population: Tensor, classes: int) -> Measure:
    assert criterion.matrix is not None
    matrix = criterion.matrix.to(population.device)
    outside = int(((matrix != 0).any(0) & ~population).sum())
    if outside:
        raise InputError(
            "criterion",
            f"{criterion.name!r} weighs {outside} nodes outside the population",
            "give a matrix with zeros there, or leave population out",
        )
    rows = torch.eye(matrix.size(0), dtype=torch.float64, device=matrix.device)
    delta = GroupOperator(matrix.T.contiguous(), population, rows)
    unit = max(1.0, float(matrix.abs().sum(1).max()) / 2)
    name, target = criterion.name, criterion.target
    return Measure(name, name, None, delta, tuple(range(classes)), target, own=True, unit=unit)


def _check_groups(attribute: Attribute, population: Tensor) -> None:
    weights = attribute.weights(population).tolist()
    if len(weights) < 2:
        raise InputError(
            attribute.name,
            f"{len(weights)} group{'s' * (len(weights) != 1)} among the nodes of known group",
            "fairness between groups needs at least two",
        )
    weight = min(weights)
    group = attribute.groups[weights.index(weight)]
    if weight <= 0:
        raise InputError(
            attribute.name,
            f"group {group!r} has no node in the population",
            "choose one that contains every group, or mark the others' nodes unknown (-1)",
        )
    if weight <= 1:
        count = "one node" if weight == 1 else f"{weight:.2g} nodes"
        raise InputError(
            attribute.name,
            f"group {group!r} has {count} in the population, too few for a mean",
            "merge it with another group, or mark it unknown (-1)",
        )


def _is_numeric(value: Any) -> bool:
    """Whether a list is a matrix or a row of one, and not a list of criteria."""
    try:
        array = np.asarray(value)
    except ValueError:
        return False
    return array.dtype.kind in "biuf" and array.ndim <= 2 and array.size > 0


def _matrix(value: Any) -> Tensor:
    if hasattr(value, "toarray"):
        value = value.toarray()
    try:
        array = value.detach().cpu() if isinstance(value, Tensor) else np.array(value, dtype=float)
        matrix = torch.as_tensor(array).to_dense().double()
    except (TypeError, ValueError, RuntimeError):
        hint = f"give one of {', '.join(NAMES)}, or a matrix of numbers (rows×n)"
        raise InputError("criterion", type(value).__name__, hint) from None
    matrix = matrix.unsqueeze(0) if matrix.dim() == 1 else matrix
    if matrix.dim() != 2 or not matrix.size(0):
        raise InputError("criterion", f"shape {tuple(matrix.shape)}", "give rows×n numbers")
    if matrix.size(0) > MAX_MATRIX_ROWS:
        raise InputError("criterion", f"{matrix.size(0)} rows", f"give at most {MAX_MATRIX_ROWS}")
    if not bool(torch.isfinite(matrix).all()):
        raise InputError("criterion", "the matrix has nan or infinite entries", "give finite ones")
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
    if isinstance(target, list | tuple | np.ndarray):
        if len(target) != len(names):
            hint = "give one number, or one for each"
            raise InputError("target", f"{len(target)} for {len(names)} criteria", hint)
        return [value.item() if isinstance(value, np.generic) else value for value in target]
    return [target.item() if isinstance(target, np.generic) else target] * len(names)


def _rounded_up(value: float) -> str:
    """A number with four digits, not rounded below itself."""
    digits = 3 - math.floor(math.log10(value)) if value > 0 else 0
    return f"{math.ceil(value * 10**digits - 1e-6) / 10**digits:g}"

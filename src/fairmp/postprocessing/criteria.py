"""What "fair" may mean: criteria, each a few gaps ΔQ that must not exceed a target."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from fairmp.errors import InputError
from fairmp.groups import GroupOperator, group_operator
from fairmp.postprocessing.attributes import Attribute

Name = Literal["demographic_parity", "equal_opportunity", "equalised_odds"]
NAMES: tuple[Name, ...] = get_args(Name)
MATRIX = "matrix"
_SPELT = {"equalized_odds": "equalised_odds", "dp": "demographic_parity"}
_SPELT |= {"eo": "equal_opportunity", "odds": "equalised_odds"}
_MOST_ROWS = 500


@dataclass(frozen=True)
class Criterion:
    """One thing asked for.

    Attributes:
        name: one of ``NAMES``, or what a matrix is called.
        target: the largest gap accepted.
        matrix: a user's own Δ (rows×n, float64), for a criterion of that kind.
    """

    name: str
    target: float
    matrix: Tensor | None = None

    @property
    def on_labels(self) -> bool:
        """Whether it is measured on labelled nodes."""
        return self.matrix is None and self.name != "demographic_parity"


@dataclass(frozen=True)
class Measure:
    r"""One linear measurement: :math:`|\Delta Q|` in some classes, at most the target.

    Attributes:
        criterion: the criterion it belongs to.
        attribute: the sensitive attribute's name; the matrix's own for a matrix.
        label: the true class of the nodes it is measured on; ``None`` for all.
        delta: :math:`\Delta`.
        classes: the classes (columns of Q) it speaks of.
        target: the largest gap accepted.
        own: whether it is a user's matrix.
        unit: the size of a gap; 1 for a difference of means, more for a matrix of larger numbers.
    """

    criterion: str
    attribute: str
    label: int | None
    delta: GroupOperator
    classes: tuple[int, ...]
    target: float
    own: bool = False
    unit: float = 1.0

    def gap(self, p: Tensor) -> float:
        """The largest of its gaps in predictions (n×C)."""
        return float(self.delta.largest_gap(p)[list(self.classes)].max())


def read(criterion: Any, target: Any, n: int) -> list[Criterion]:
    """Read one or several criteria with their targets.

    Args:
        criterion: a name, a matrix (rows×n; numpy, torch or scipy sparse), a list of these, or a
            dict that names them.
        target: one number for all, or one for each: a list, or a dict by name.
        n: number of nodes.

    Example:
        >>> [(c.name, c.target) for c in read(["demographic_parity", "equalized_odds"], 0.02, 5)]
        [('demographic_parity', 0.02), ('equalised_odds', 0.02)]
        >>> read([[0.5, 0.5, -1.0]], 0.1, 3)[0].matrix.shape
        torch.Size([1, 3])
    """
    if isinstance(criterion, Mapping):
        parts = [(str(name), value) for name, value in criterion.items()]
    else:
        several = isinstance(criterion, list | tuple) and not _numeric(criterion)
        parts = [("", one) for one in (criterion if several else [criterion])]
    if not parts:
        raise InputError("criterion", "none is given", f"choose of {', '.join(NAMES)}, or a matrix")
    named: list[tuple[str, Tensor | None]] = []
    for title, value in parts:
        if isinstance(value, str):
            named.append((_name(value), None))
        else:
            named.append((title or _free(MATRIX, [name for name, _ in named]), _matrix(value, n)))
    titles = [name for name, _ in named]
    twice = next((name for name in titles if titles.count(name) > 1), None)
    if twice is not None:
        raise InputError("criterion", f"{twice!r} is given twice", "give it once")
    targets = _targets(target, titles, [matrix is not None for _, matrix in named])
    return [
        Criterion(name, goal, matrix) for (name, matrix), goal in zip(named, targets, strict=True)
    ]


def measures(
    criteria: Sequence[Criterion],
    attributes: Sequence[Attribute],
    population: Tensor,
    labels: Tensor | None,
    classes: int,
    dtype: torch.dtype = torch.float64,
) -> tuple[list[Measure], list[str]]:
    """Turn criteria into measurements; return them with what a reader should be warned of.

    Args:
        criteria: what is asked for.
        attributes: the sensitive attributes; each criterion but a matrix is asked of each.
        population: the nodes (n, bool).
        labels: true classes (n, −1 unknown), for equal opportunity and equalised odds.
        classes: number of classes C.
        dtype: floating-point type of the predictions.
    """
    found: list[Measure] = []
    warnings: list[str] = []
    for attribute in attributes:
        _check_groups(attribute, population)
    for criterion in criteria:
        if criterion.matrix is not None:
            found.append(_of_matrix(criterion, population, classes))
            continue
        for attribute in attributes:
            if criterion.on_labels:
                parts, notes = _on_labels(criterion, attribute, population, labels, classes)
                found += parts
                warnings += notes
            else:
                delta = group_operator(attribute.sens, population, dtype=dtype)
                found.append(
                    Measure(
                        criterion.name,
                        attribute.name,
                        None,
                        delta,
                        tuple(range(classes)),
                        criterion.target,
                    )
                )
    return found, warnings


def between(counts: Tensor) -> Tensor:
    """Rows M that compare groups, of which some may be empty: a difference, or each to the whole.

    Example:
        >>> between(torch.tensor([2.0, 0.0, 4.0], dtype=torch.float64))
        tensor([[-0.5000,  0.0000,  0.2500]], dtype=torch.float64)
    """
    there = counts > 0
    inverse = torch.where(there, 1 / counts.clamp_min(1e-300), 0.0)
    if int(there.sum()) == 2:
        first, second = there.nonzero().flatten().tolist()
        row = torch.zeros_like(counts)
        row[first], row[second] = -inverse[first], inverse[second]
        return row.unsqueeze(0)
    whole = there / counts.sum().clamp_min(1e-300)
    return (torch.diag(inverse) - whole)[there]


def _on_labels(
    criterion: Criterion,
    attribute: Attribute,
    population: Tensor,
    labels: Tensor | None,
    classes: int,
) -> tuple[list[Measure], list[str]]:
    if labels is None:
        raise InputError(
            "labels",
            "missing",
            f"{criterion.name} is measured on labelled nodes: give labels=, -1 where unknown",
        )
    opportunity = criterion.name == "equal_opportunity"
    membership = attribute.membership
    found, warnings, spoken = [], [], (1,) if opportunity and classes == 2 else range(classes)
    for label in spoken:
        inside = population & (labels == label) & attribute.known
        counts = membership[inside].sum(0)
        where = f"{criterion.name}, {attribute.name}: class {label}"
        absent = (counts <= 0).nonzero().flatten().tolist()
        if len(counts) - len(absent) < 2:
            warnings.append(f"{where} is labelled in fewer than two groups, and left out")
            continue
        for g in absent:
            warnings.append(f"{where} has no labelled node in group {attribute.groups[g]!r}")
        for g in ((counts > 0) & (counts <= 1)).nonzero().flatten().tolist():
            warnings.append(f"{where} has one labelled node in group {attribute.groups[g]!r}")
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


def _of_matrix(criterion: Criterion, population: Tensor, classes: int) -> Measure:
    assert criterion.matrix is not None
    matrix = criterion.matrix.to(population.device)
    stray = int(((matrix != 0).any(0) & ~population).sum())
    if stray:
        raise InputError(
            "criterion",
            f"{criterion.name!r} weighs {stray} nodes outside the population",
            "give a matrix with zeros there, or leave population out",
        )
    rows = torch.eye(matrix.size(0), dtype=torch.float64, device=matrix.device)
    delta = GroupOperator(matrix.T.contiguous(), population, rows)
    return Measure(
        criterion.name,
        criterion.name,
        None,
        delta,
        tuple(range(classes)),
        criterion.target,
        own=True,
        unit=max(1.0, float(matrix.abs().sum(1).max()) / 2),
    )


def _check_groups(attribute: Attribute, population: Tensor) -> None:
    weights = attribute.weights(population)
    if len(weights) < 2:
        raise InputError(
            attribute.name,
            f"{len(weights)} group{'s' * (len(weights) != 1)} among the nodes of known group",
            "fairness between groups needs at least two",
        )
    absent = (weights <= 0).nonzero().flatten().tolist()
    if absent:
        raise InputError(
            attribute.name,
            f"group {attribute.groups[absent[0]]!r} has no node in the population",
            "choose one that contains every group, or mark the others' nodes unknown (-1)",
        )
    lone = ((weights > 0) & (weights <= 1)).nonzero().flatten().tolist()
    if lone:
        count = "one node" if weights[lone[0]] == 1 else f"{weights[lone[0]].item():.2g} nodes"
        raise InputError(
            attribute.name,
            f"group {attribute.groups[lone[0]]!r} has {count} in the population, and a mean of "
            "one is no mean",
            "merge it with another group, or mark it unknown (-1)",
        )


def _name(text: str) -> str:
    name = text.strip().lower().replace("-", "_").replace(" ", "_")
    name = _SPELT.get(name, name)
    if name not in NAMES:
        raise InputError("criterion", f"{text!r} is unknown", f"choose of {', '.join(NAMES)}")
    return name


def _free(stem: str, taken: Sequence[str]) -> str:
    count = sum(name == stem or name.startswith(f"{stem} ") for name in taken)
    return stem if not count else f"{stem} {count + 1}"


def _numeric(value: Any) -> bool:
    """Whether a list is a matrix or a row of one, and not a list of criteria."""
    try:
        array = np.asarray(value)
    except ValueError:
        return False
    return array.dtype.kind in "biuf" and array.ndim <= 2 and array.size > 0


def _matrix(value: Any, n: int) -> Tensor:
    if hasattr(value, "toarray"):
        value = value.toarray()
    try:
        array = value.detach().cpu() if isinstance(value, Tensor) else np.array(value, dtype=float)
        matrix = torch.as_tensor(array).to_dense().double()
    except (TypeError, ValueError, RuntimeError):
        raise InputError(
            "criterion",
            f"{type(value).__name__} is neither a name ({', '.join(NAMES)}) nor a matrix of "
            "numbers (rows×n)",
        ) from None
    matrix = matrix.unsqueeze(0) if matrix.dim() == 1 else matrix
    if matrix.dim() != 2 or matrix.size(1) != n or not matrix.size(0):
        raise InputError(
            "criterion",
            f"a matrix of shape {tuple(matrix.shape)} for {n} nodes",
            "give a column a node",
        )
    if matrix.size(0) > _MOST_ROWS:
        raise InputError("criterion", f"{matrix.size(0)} rows", f"give at most {_MOST_ROWS}")
    if not bool(torch.isfinite(matrix).all()):
        raise InputError("criterion", "the matrix has nan or infinite entries", "give finite ones")
    empty = (matrix == 0).all(1).nonzero().flatten().tolist()
    if empty:
        raise InputError(
            "criterion", f"row {empty[0]} of the matrix is 0 everywhere", "leave it out"
        )
    return matrix


def _targets(target: Any, names: Sequence[str], own: Sequence[bool]) -> list[float]:
    if isinstance(target, Mapping):
        given = {_SPELT.get(str(name), str(name)): value for name, value in target.items()}
        for name in names:
            if name not in given:
                raise InputError("target", f"none for {name!r}", "give one for each criterion")
        values = [given[name] for name in names]
    elif isinstance(target, list | tuple | np.ndarray):
        if len(target) != len(names):
            raise InputError(
                "target",
                f"{len(target)} for {len(names)} criteria",
                "give one number, or one for each",
            )
        values = list(target)
    else:
        values = [target] * len(names)
    for value, matrix in zip(values, own, strict=True):
        number = isinstance(value, Real) and not isinstance(value, bool)
        # A matrix has whatever scale its user gave it, a gap between rates has not.
        if not (number and 0 <= value <= (math.inf if matrix else 1) and value < math.inf):
            raise InputError(
                "target",
                f"{value!r} is outside [0, 1]",
                "give the largest gap you accept, 0.02 for two points",
            )
    return [float(value) for value in values]

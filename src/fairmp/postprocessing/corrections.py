r"""Corrections that apply to any row: they depend on its group and its own prediction alone.

:class:`GroupShift` shifts the logits of each group, :class:`Thresholds` decides by one threshold
per group, :class:`ThresholdMixture` by one that is drawn from a few of the group, and the other two
correct criteria on labels. A prediction must not depend on the label it predicts, so that what
stands for the label is the prediction :math:`p_i` itself:

.. math::
    Q_i = \mathrm{softmax}\Big(Z_i - \sum_g s_{ig} \big( a_g Z_i + \sum_y p_{iy} W_{gy} \big)\Big)

for :class:`Affine`, and :math:`Q_i = \sum_y p_{iy} T_{gy}` for :class:`Transitions`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.special import log_softmax, softmax
from torch import Tensor

from fairmp.nn.decisions import MIN_MARGIN, DecisionRule
from fairmp.postprocessing.criteria import Measure

Array = NDArray[np.float64]
Membership: TypeAlias = "Array | csr_array"  # of nodes in groups (n×G); sparse for many groups

MIN_PROBABILITY = 1e-12
MIXED = 3  # thresholds of a group that are drawn from
MAX_NUMBER = 1e30  # of a stored correction
MAX_FITTED_LOGIT = 1e100  # products of two of them are within the range of float64
MAX_THRESHOLD = 4 * MAX_FITTED_LOGIT  # it lies among differences of two logits
MAX_TEMPERATURE = 1e6
TOLERANCE = 1e-6  # of stored probabilities, and of their sums
MAX_LOGIT = 5e5  # beyond it, corrected logits are relative to the largest of their row


class Corrected(NamedTuple):
    """Corrected logits of some rows (n×C), and how many decisions were drawn."""

    logits: Array
    drawn: int = 0


class Correction(Protocol):
    """What :class:`~fairmp.postprocessing.debiaser.Debiaser` learns."""

    kind: ClassVar[str]
    axes: ClassVar[Mapping[str, str]]  # of each array: g groups, c classes, m mixed thresholds

    def apply(self, logits: Array, membership: Membership, *, seed: int = 0) -> Corrected:
        """Correct logits (n×C) of nodes with a membership (n×G); rows of zeros stay."""


@dataclass(frozen=True)
class GroupShift:
    """Logits plus a shift per group (G×C).

    Example:
        >>> correction = GroupShift(np.array([[0.0, 0.0], [0.0, -1.0]]))
        >>> membership = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])  # the last is unknown
        >>> correction.apply(np.full((3, 2), [0.0, 0.4]), membership).logits
        array([[ 0. ,  0.4],
               [ 0. , -0.6],
               [ 0. ,  0.4]])
        >>> to_dict(correction)
        {'type': 'shift', 'shift': [[0.0, 0.0], [0.0, -1.0]]}
    """

    kind: ClassVar[str] = "shift"
    axes: ClassVar[Mapping[str, str]] = {"shift": "gc"}
    shift: Array

    def apply(self, logits: Array, membership: Membership, *, seed: int = 0) -> Corrected:
        """Add the shift of each node's group."""
        known_mask = row_sums(membership)[:, None] > 0
        # A shift is not lost in the rounding of logits relative to a row's largest.
        large = known_mask & (np.abs(logits).max(1, keepdims=True) > MAX_LOGIT)
        base = np.where(large, logits - logits.max(1, keepdims=True), logits)
        return Corrected(np.where(known_mask, base + membership @ self.shift, logits))


@dataclass(frozen=True)
class Thresholds:
    """Decisions by a threshold per group on the margin of two classes (G).

    Example:
        >>> correction = Thresholds(np.array([0.0, 0.5]), tie_rates=np.zeros(2))
        >>> same_score = np.full((2, 2), [0.0, 0.4])
        >>> correction.apply(same_score, np.eye(2)).logits.argmax(1)  # group 0, group 1
        array([1, 0])
    """

    kind: ClassVar[str] = "threshold"
    axes: ClassVar[Mapping[str, str]] = {"thresholds": "g", "tie_rates": "g"}
    thresholds: Array
    tie_rates: Array

    def apply(
        self,
        logits: Array,
        membership: Membership,
        *,
        seed: int = 0,
        measured: NDArray[np.bool_] | None = None,
    ) -> Corrected:
        """Subtract the threshold of each node's group from its margin."""
        group = _most_likely(membership)
        known_mask = group >= 0
        rule = DecisionRule(self.thresholds, self.tie_rates)
        margin = logits[:, 1] - logits[:, 0]
        margin, drawn = rule.apply(margin, group, seed=seed, measured=measured)
        half = margin[:, None] / 2
        return Corrected(np.where(known_mask[:, None], np.hstack([-half, half]), logits), drawn)


@dataclass(frozen=True)
class ThresholdMixture:
    """Decisions by a threshold that is drawn per node, from a few of its group (G×3).

    Which one is drawn depends on the seed, the margin and, for nodes of equal margins, their order:
    a node has the same decision in any table.

    Example:
        >>> correction = ThresholdMixture(np.array([[0.0, 2.0, 0.0]]), np.array([[0.5, 0.5, 0.0]]))
        >>> margins = np.repeat([-1.0, 1.0, 3.0], 1000)
        >>> logits = np.stack([np.zeros(3000), margins], 1)
        >>> decided = correction.apply(logits, np.ones((3000, 1))).logits.argmax(1)
        >>> [float(decided[margins == m].mean().round(1)) for m in (-1, 1, 3)]
        [0.0, 0.5, 1.0]
    """

    kind: ClassVar[str] = "threshold_mixture"
    axes: ClassVar[Mapping[str, str]] = {"thresholds": "gm", "shares": "gm"}
    thresholds: Array
    shares: Array  # how often each is drawn; sum to 1

    def apply(
        self,
        logits: Array,
        membership: Membership,
        *,
        seed: int = 0,
        strata: NDArray[np.int64] | None = None,
    ) -> Corrected:
        """Subtract a threshold of each node's group from its margin.

        With ``strata`` the number of nodes of each that is decided class 1 is the expected one,
        rounded.
        """
        group = _most_likely(membership)
        known_mask = group >= 0
        margin = logits[:, 1] - logits[:, 0]
        above = margin[:, None] > self.thresholds[group]
        chance = (above * self.shares[group]).sum(1).round(9)
        drawn = known_mask & (chance > 0) & (chance < 1)
        decided, uniform = chance >= 1, _uniform(margin[drawn], group[drawn], seed)
        if strata is None:
            decided[drawn] = uniform < chance[drawn]
        else:
            decided[drawn] = _expected_numbers(chance[drawn], uniform, strata[drawn])
        # The lowest threshold of those decided class 1, and the highest of the others.
        used = self.shares > 0
        lowest = np.where(used, self.thresholds, np.inf).min(1)
        highest = np.where(used, self.thresholds, -np.inf).max(1)
        shifted = margin - np.where(decided, lowest[group], highest[group])
        least = np.where(decided, MIN_MARGIN, -MIN_MARGIN)
        half = np.where(np.abs(shifted) < MIN_MARGIN, least, shifted)[:, None] / 2
        corrected = np.where(known_mask[:, None], np.hstack([-half, half]), logits)
        return Corrected(corrected, int(drawn.sum()))


def _uniform(margin: Array, group: NDArray[np.int64], seed: int) -> Array:
    """Uniform numbers that depend on the seed, the margin and the order among equal margins."""
    import pandas as pd
    from pandas.util import hash_pandas_object

    # In single precision, in which the last digits of a margin do not matter.
    with np.errstate(over="ignore"):
        single = margin.astype(np.float32)
    table = pd.DataFrame({"seed": seed, "group": group, "margin": single})
    table["order"] = table.groupby(["group", "margin"]).cumcount()
    return np.asarray(hash_pandas_object(table, index=False) / 2.0**64)


def _expected_numbers(
    chance: Array, uniform: Array, strata: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Which nodes are decided class 1: of each stratum as many as expected, in random order."""
    decided = np.zeros(len(chance), dtype=bool)
    order = np.lexsort((uniform, strata))
    for nodes in np.split(order, np.flatnonzero(np.diff(strata[order])) + 1):
        numbers = np.floor(chance[nodes].cumsum() + 0.5)
        decided[nodes] = np.diff(numbers, prepend=0.0) > 0
    return decided


@dataclass(frozen=True)
class Affine:
    """Shifts by the predicted class (W, G×C×C), and slopes of the logits (a, G)."""

    kind: ClassVar[str] = "affine"
    axes: ClassVar[Mapping[str, str]] = {"weights": "gcc", "slopes": "g", "temperature": ""}
    weights: Array
    slopes: Array
    temperature: Array  # a number, τ of the probabilities that are compared

    def apply(self, logits: Array, membership: Membership, *, seed: int = 0) -> Corrected:
        """Shift and tilt the logits of each node."""
        shares, classes = shares_of(membership), logits.shape[1]
        base = log_proba(logits / self.temperature)
        tilt = base - base.mean(1, keepdims=True)
        features = row_products(shares, proba(logits))
        shift = features @ self.weights.reshape(-1, classes)
        corrected = self.temperature * (base - shift - (shares @ self.slopes)[:, None] * tilt)
        return Corrected(np.where(row_sums(shares)[:, None] > 0, corrected, logits))


@dataclass(frozen=True)
class Transitions:
    """Probabilities of the corrected class given the predicted one (T, G×C×C)."""

    kind: ClassVar[str] = "transition"
    axes: ClassVar[Mapping[str, str]] = {"transitions": "gcc", "temperature": ""}
    transitions: Array
    temperature: Array

    def apply(self, logits: Array, membership: Membership, *, seed: int = 0) -> Corrected:
        """Mix the predicted classes of each node."""
        shares, classes = shares_of(membership), logits.shape[1]
        features = row_products(shares, proba(logits / self.temperature))
        mixed = features @ self.transitions.reshape(-1, classes)
        corrected = self.temperature * np.log(np.maximum(mixed, MIN_PROBABILITY))
        return Corrected(np.where(row_sums(shares)[:, None] > 0, corrected, logits))


@dataclass(frozen=True)
class CorrectedLogits:
    """The solution of a problem."""

    logits: Tensor  # corrected (n×C)
    measures: tuple[Measure, ...]  # what was closed
    correction: Correction | None = None  # for other rows; None if it is of this batch alone
    drawn: int = 0  # nodes whose decision was drawn at random because their scores tie
    notes: tuple[str, ...] = ()  # about what is left out or randomised
    missed: tuple[str, ...] = ()  # a text for each target of decisions that is not met


TYPES: dict[str, type[Any]] = {
    one.kind: one for one in (GroupShift, Thresholds, ThresholdMixture, Affine, Transitions)
}


def to_dict(correction: Correction) -> dict[str, Any]:
    """A correction as plain JSON values."""
    arrays = {name: getattr(correction, name).tolist() for name in correction.axes}
    return {"type": correction.kind, **arrays}


def from_dict(record: Mapping[str, Any], groups: int, classes: int) -> Correction:
    """Rebuild a correction; raise ``ValueError`` if an array is missing or has a wrong shape."""
    if record.get("type") not in TYPES:
        raise ValueError(f"the type is none of {', '.join(TYPES)}")
    kind = TYPES[record["type"]]
    sizes = {"g": groups, "c": classes, "m": MIXED}
    arrays = {}
    for name, axes in kind.axes.items():
        largest = MAX_THRESHOLD if name == "thresholds" else MAX_NUMBER
        shape = tuple(sizes[axis] for axis in axes)
        arrays[name] = numbers_from(record, name, shape, largest=largest)
        _check_range(name, arrays[name])
    if kind in (Thresholds, ThresholdMixture) and classes != 2:
        raise ValueError(f"thresholds are for 2 classes, not {classes}")
    correction: Correction = kind(**arrays)
    return correction


def numbers_from(
    record: Mapping[str, Any], name: str, shape: tuple[int, ...], *, largest: float = MAX_NUMBER
) -> Array:
    """Read an array of numbers from JSON; raise ``ValueError`` if it is not one of this shape."""
    try:
        array = np.array(record.get(name), dtype=np.float64)
    except (TypeError, OverflowError, RecursionError):
        raise ValueError(f"{name} is not {shape} numbers") from None
    if array.shape != shape or not (np.abs(array) <= largest).all():  # False for NaN
        raise ValueError(f"{name} is not {shape} finite numbers within ±{largest:g}")
    return array


def _check_range(name: str, array: Array) -> None:
    """Raise ``ValueError`` if numbers are outside the range that their name implies."""
    outside = np.maximum(-array, array - 1).max(initial=0.0)
    if name in ("tie_rates", "transitions", "shares") and outside > TOLERANCE:
        raise ValueError(f"{name} are not in [0, 1]")
    if name == "transitions" and (np.abs(array.sum(-1) - 1) > TOLERANCE).any():
        raise ValueError("transitions from a class do not sum to 1")
    if name == "shares" and (np.abs(array.sum(-1) - 1) > TOLERANCE).any():
        raise ValueError("shares of a group do not sum to 1")
    if name == "temperature" and not 0 < array <= MAX_TEMPERATURE:
        raise ValueError(f"temperature is not above 0 and at most {MAX_TEMPERATURE:g}")


def row_sums(membership: Membership) -> Array:
    """The sum of each row (n)."""
    return np.asarray(membership.sum(1))


def _most_likely(membership: Membership) -> NDArray[np.int64]:
    """The most probable group of each node, −1 where unknown (n)."""
    if isinstance(membership, np.ndarray):
        return np.where(row_sums(membership) > 0, membership.argmax(1), -1)
    group = np.full(membership.shape[0], -1)
    group[_entry_rows(membership)] = membership.indices  # one per row, of nodes of one group each
    return group


def _entry_rows(matrix: csr_array) -> NDArray[np.int64]:
    """The row of each stored entry."""
    return np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))


def shares_of(membership: Membership) -> Membership:
    """Memberships whose rows sum to 1, however many attributes of a node are known."""
    total = row_sums(membership)[:, None]
    if isinstance(membership, np.ndarray):
        return np.divide(membership, total, out=np.zeros_like(membership), where=total > 0)
    shares = membership.copy()
    shares.data = shares.data / total[_entry_rows(shares), 0]
    return shares


def row_products(a: Membership, b: Array) -> Membership:
    """Products of each column of a with each of b, row by row (n×AB)."""
    if isinstance(a, np.ndarray):
        return np.asarray((a[:, :, None] * b[:, None, :]).reshape(len(a), -1))
    columns = b.shape[1]
    products = a.data[:, None] * b[_entry_rows(a)]
    indices = a.indices[:, None].astype(np.int64) * columns + np.arange(columns)
    shape = a.shape[0], a.shape[1] * columns
    return csr_array((products.ravel(), indices.ravel(), a.indptr * columns), shape=shape)


def proba(logits: Array) -> Array:
    """Softmax, row by row."""
    return np.asarray(softmax(logits, axis=1))


def log_proba(logits: Array) -> Array:
    """Logarithms of probabilities that are not below 1e-12."""
    return np.log(np.maximum(proba(logits), MIN_PROBABILITY))


def exact_log_proba(logits: Array) -> Array:
    """Logarithms of probabilities, however small."""
    return np.asarray(log_softmax(logits, axis=1))

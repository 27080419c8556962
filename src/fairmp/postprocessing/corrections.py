r"""Corrections that apply to any row: they depend on its group and its own prediction alone.

:class:`GroupShift` shifts the logits of each group, :class:`Thresholds` decides by one threshold
per group, and the other two correct criteria on labels. A prediction must not depend on the label
it predicts, so that what stands for the label is the prediction :math:`p_i` itself:

.. math::
    Q_i = \mathrm{softmax}\Big(Z_i - \sum_g s_{ig} \big( a_g Z_i + \sum_y p_{iy} W_{gy} \big)\Big)

for :class:`Affine`, and :math:`Q_i = \sum_y p_{iy} T_{gy}` for :class:`Transitions`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax
from torch import Tensor

from fairmp.nn.decisions import DecisionRule
from fairmp.postprocessing.criteria import Measure

Array = NDArray[np.float64]

MIN_PROBABILITY = 1e-12


class Corrected(NamedTuple):
    """Corrected logits of some rows (n×C), and how many decisions were drawn."""

    logits: Array
    drawn: int = 0


class Correction(Protocol):
    """What :class:`~fairmp.postprocessing.debiaser.Debiaser` learns."""

    kind: ClassVar[str]
    axes: ClassVar[Mapping[str, str]]  # of each array: g for groups, c for classes

    def apply(self, logits: Array, membership: Array, *, seed: int = 0) -> Corrected:
        """Correct logits (n×C) of nodes with a membership (n×G); rows of zeros stay."""


@dataclass(frozen=True)
class GroupShift:
    """Logits plus a shift per group (G×C)."""

    kind: ClassVar[str] = "shift"
    axes: ClassVar[Mapping[str, str]] = {"shift": "gc"}
    shift: Array

    def apply(self, logits: Array, membership: Array, *, seed: int = 0) -> Corrected:
        """Add the shift of each node's group."""
        return Corrected(logits + membership @ self.shift)


@dataclass(frozen=True)
class Thresholds:
    """Decisions by a threshold per group on the margin of two classes (G)."""

    kind: ClassVar[str] = "threshold"
    axes: ClassVar[Mapping[str, str]] = {"thresholds": "g", "tie_rates": "g"}
    thresholds: Array
    tie_rates: Array

    def apply(
        self,
        logits: Array,
        membership: Array,
        *,
        seed: int = 0,
        measured: NDArray[np.bool_] | None = None,
    ) -> Corrected:
        """Subtract the threshold of each node's group from its margin."""
        known_mask = membership.sum(1) > 0
        group = np.where(known_mask, membership.argmax(1), -1)
        rule = DecisionRule(self.thresholds, self.tie_rates)
        margin = logits[:, 1] - logits[:, 0]
        margin, drawn = rule.apply(margin, group, seed=seed, measured=measured)
        half = margin[:, None] / 2
        return Corrected(np.where(known_mask[:, None], np.hstack([-half, half]), logits), drawn)


@dataclass(frozen=True)
class Affine:
    """Shifts by the predicted class (W, G×C×C), and slopes of the logits (a, G)."""

    kind: ClassVar[str] = "affine"
    axes: ClassVar[Mapping[str, str]] = {"weights": "gcc", "slopes": "g", "temperature": ""}
    weights: Array
    slopes: Array
    temperature: Array  # a number, τ of the probabilities that are compared

    def apply(self, logits: Array, membership: Array, *, seed: int = 0) -> Corrected:
        """Shift and tilt the logits of each node."""
        shares, classes = shares_of(membership), logits.shape[1]
        base = log_proba(logits / self.temperature)
        tilt = base - base.mean(1, keepdims=True)
        features = row_products(shares, proba(logits))
        shift = features @ self.weights.reshape(-1, classes)
        corrected = self.temperature * (base - shift - (shares @ self.slopes)[:, None] * tilt)
        return Corrected(np.where(shares.sum(1, keepdims=True) > 0, corrected, logits))


@dataclass(frozen=True)
class Transitions:
    """Probabilities of the corrected class given the predicted one (T, G×C×C)."""

    kind: ClassVar[str] = "transition"
    axes: ClassVar[Mapping[str, str]] = {"transitions": "gcc", "temperature": ""}
    transitions: Array
    temperature: Array

    def apply(self, logits: Array, membership: Array, *, seed: int = 0) -> Corrected:
        """Mix the predicted classes of each node."""
        shares, classes = shares_of(membership), logits.shape[1]
        features = row_products(shares, proba(logits / self.temperature))
        mixed = features @ self.transitions.reshape(-1, classes)
        corrected = self.temperature * np.log(np.maximum(mixed, MIN_PROBABILITY))
        return Corrected(np.where(shares.sum(1, keepdims=True) > 0, corrected, logits))


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
    one.kind: one for one in (GroupShift, Thresholds, Affine, Transitions)
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
    sizes = {"g": groups, "c": classes}
    arrays = {}
    for name, axes in kind.axes.items():
        array = np.array(record.get(name), dtype=np.float64)
        shape = tuple(sizes[axis] for axis in axes)
        if array.shape != shape or not np.isfinite(array).all():
            raise ValueError(f"{name} is not {shape} finite numbers")
        if name == "tie_rates" and not ((array >= 0) & (array <= 1)).all():
            raise ValueError("tie_rates are not in [0, 1]")
        if name == "temperature" and not array > 0:
            raise ValueError("temperature is not above 0")
        arrays[name] = array
    correction: Correction = kind(**arrays)
    return correction


def shares_of(membership: Array) -> Array:
    """Memberships whose rows sum to 1, however many attributes of a node are known."""
    total = membership.sum(1, keepdims=True)
    return np.divide(membership, total, out=np.zeros_like(membership), where=total > 0)


def row_products(a: Array, b: Array) -> Array:
    """Products of each column of a with each of b, row by row (n×AB)."""
    return (a[:, :, None] * b[:, None, :]).reshape(len(a), -1)


def proba(logits: Array) -> Array:
    """Softmax, row by row."""
    return np.asarray(softmax(logits, axis=1))


def log_proba(logits: Array) -> Array:
    """Logarithms of probabilities that are not below 1e-12."""
    return np.log(np.maximum(proba(logits), MIN_PROBABILITY))

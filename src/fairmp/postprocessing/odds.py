r"""Criteria on labels, by corrections that do not depend on the label.

Find the W and a of an :class:`~fairmp.postprocessing.corrections.Affine` correction that minimise
:math:`\sum_i \mathrm{KL}(Q_i \| P_i)` subject to every :math:`|\Delta_k Q| \le t_k`, by sequential
quadratic programming. The slopes :math:`a` make every target reachable: with :math:`a_g = 1` and
all :math:`W_{gy} = -\log π` everyone is predicted π. Where predictions are so certain that this
fails, the correction is randomised: :class:`~fairmp.postprocessing.corrections.Transitions`, those
that change least, by a linear program. Decisions between two classes have an exact solution in
:mod:`fairmp.postprocessing.threshold_mixtures`.

Arrays have the nodes on their last axis: sums over classes then add whole rows, which takes a
fraction of the time of many short ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import NonlinearConstraint, linprog, minimize

from fairmp.postprocessing.corrections import (
    Affine,
    Array,
    Correction,
    GroupShift,
    Membership,
    Transitions,
    exact_log_proba,
    log_proba,
    proba,
    row_products,
    shares_of,
)
from fairmp.postprocessing.criteria import Measure
from fairmp.postprocessing.many_groups import constraints_of, transitions_of_many

TOLERANCE = 5e-5  # excess within which a target counts as met
MIN_TARGET = 1e-5  # stands for a target of 0, so that the constraints have an interior
MAX_STEPS = 300
CERTAIN_RANGE = 12.0  # range of logits beyond which the problem has several local minima
MAX_VARIABLES = 400  # numbers or constraints beyond which a quadratic program takes minutes
MIN_CURVATURE = 1e-10  # relative; directions below it change nothing
SMOOTHING = 0.02  # share of the uniform prediction that gives certain ones some curvature


def find_correction(
    measures: Sequence[Measure],
    logits: Array,
    membership: Membership,
    weight: Array,
    *,
    temperature: float,
) -> Correction:
    """The closest correction that meets every target.

    Args:
        measures: what must be within its target.
        logits: n×C.
        membership: of each node in each group (n×G).
        weight: of each node in the divergence (n); 0 outside the population.
        temperature: τ; the gaps are those of softmax(logits/τ).
    """
    by_prediction = any(measure.labels is not None for measure in measures)
    has_codes = all(measure.delta.codes is not None for measure in measures)
    if has_codes and constraints_of(measures) > MAX_VARIABLES:
        return transitions_of_many(measures, logits, membership, weight, temperature)
    if not isinstance(membership, np.ndarray):
        membership = membership.toarray()
    reached = membership.sum(1) > 0
    nodes = Nodes.read(
        logits[reached], membership[reached], weight[reached], temperature, by_prediction
    )
    gaps = Gaps.read(measures, reached, logits.shape[1])
    family = AffineFamily(nodes)
    x = _search(family, gaps)
    w, slopes = family.parameters(x)
    if not by_prediction:
        # Without labels a shift for each group is optimal.
        return GroupShift(-temperature * w)
    q, tau = family.at(x).q, np.array(temperature)
    groups, classes = membership.shape[1], logits.shape[1]
    if gaps.excess(q) > TOLERANCE:
        transitions = least_transitions(nodes, gaps)
        if transitions is not None and gaps.excess(mix(nodes, transitions)) < gaps.excess(q):
            return Transitions(transitions, tau)
    return Affine(w.reshape(groups, classes, classes), slopes, tau)


@dataclass(frozen=True)
class Nodes:
    """The nodes that can be corrected; the last axis of all arrays."""

    log_proba: Array  # of each class, at the temperature (C×n)
    base: Array  # the same as probabilities (C×n)
    shares: Array  # of each group (G×n); 0×n where the correction has no slopes
    features: Array  # what W multiplies (m×n): the groups, or each with every predicted class
    weight: Array  # in the divergence, sums to 1 (n)

    @classmethod
    def read(
        cls,
        logits: Array,
        membership: Array,
        weight: Array,
        temperature: float,
        by_prediction: bool,
    ) -> Nodes:
        """Prepare n×C logits of nodes that have a group."""
        shares = shares_of(membership)
        log_p = log_proba if by_prediction else exact_log_proba  # as the correction is applied
        z = np.ascontiguousarray(log_p(logits / temperature).T)
        features = row_products(shares, proba(logits)) if by_prediction else membership
        return cls(
            log_proba=z,
            base=np.ascontiguousarray(proba(z.T).T),
            shares=np.ascontiguousarray(shares.T if by_prediction else shares.T[:0]),
            features=np.ascontiguousarray(features.T),
            weight=weight / max(weight.sum(), 1e-300),
        )


@dataclass(frozen=True)
class Gaps:
    """The gaps ΔQ and their targets."""

    delta: Array  # one row per gap (K×n'), for the nodes that are measured
    measured: NDArray[np.int64]  # these nodes (n')
    concerned: NDArray[np.bool_]  # the classes each gap is about (K×C)
    target: Array  # of each (K×C)

    @classmethod
    def read(cls, measures: Sequence[Measure], reached: NDArray[np.bool_], classes: int) -> Gaps:
        """The gaps of all measures, on the reached nodes."""
        rows = [m.delta.pair_matrix.cpu().numpy()[:, reached] for m in measures]
        heights = [len(part) for part in rows]
        concerned = [np.isin(np.arange(classes), m.classes) for m in measures]
        targets = np.repeat([m.target for m in measures], heights)
        delta, concerned_rows = np.concatenate(rows), np.repeat(concerned, heights, axis=0)
        measured = np.flatnonzero((delta != 0).any(0))
        return cls(
            delta=np.ascontiguousarray(delta[:, measured]),
            measured=measured,
            concerned=concerned_rows,
            target=targets[:, None] * concerned_rows,
        )

    def of(self, q: Array) -> Array:
        """The gaps of predictions (C×n), as K×C."""
        return self.delta @ q[:, self.measured].T

    def excess(self, q: Array) -> float:
        """By how much the worst gap misses its target."""
        over = np.abs(self.of(q)) - self.target
        return float(max(over[self.concerned].max(), 0.0))


@dataclass(frozen=True)
class Point:
    """Predictions of a family at some coordinates."""

    shift: Array  # of the logits (C×n)
    q: Array  # predictions (C×n)
    log_normaliser: Array  # n


@dataclass(frozen=True)
class Inputs:
    """What predictions depend on, beside the coordinates (rows × nodes)."""

    features: Array
    tilt: Array
    shares: Array


class AffineFamily:
    """Predictions as a function of coordinates x: softmax(z − W·features − a·tilt).

    In these coordinates the divergence is half the squared length, near no correction.
    """

    def __init__(self, nodes: Nodes) -> None:
        self.nodes, self.classes = nodes, len(nodes.log_proba)
        centred = nodes.log_proba - nodes.log_proba.mean(0)
        self.unit = max(float(np.sqrt((centred**2).mean())), 1e-12)
        self.tilt = centred / self.unit
        self.scale = np.maximum(np.abs(nodes.features).max(1), 1e-300)
        self.features = nodes.features / self.scale[:, None]
        self.coordinates = _whitened(nodes, self.features, self.tilt)

    def parameters(self, x: Array) -> tuple[Array, Array]:
        """W (m×C) and slopes a (G) at some coordinates."""
        w, slopes = self._scaled_parameters(x)
        return w / self.scale[:, None], slopes / self.unit

    def at(self, x: Array) -> Point:
        """The predictions at some coordinates."""
        w, slopes = self._scaled_parameters(x)
        shift = w.T @ self.features + (slopes @ self.nodes.shares) * self.tilt
        scores = self.nodes.log_proba - shift
        top = scores.max(0)
        normaliser = np.exp(scores - top, out=scores).sum(0)
        return Point(shift, scores / normaliser, top + np.log(normaliser))

    def divergence(self, point: Point) -> tuple[float, Array]:
        """KL(Q‖P), and its derivative by the coordinates."""
        nodes, q = self.nodes, point.q
        mean = (q * point.shift).sum(0)
        by_shift = nodes.weight * q * (point.shift - mean)
        by_w = (self.features @ by_shift.T).ravel()
        by_a = nodes.shares @ (by_shift * self.tilt).sum(0)
        slope = self.coordinates.T @ np.concatenate([by_w, by_a])
        return float(-nodes.weight @ (mean + point.log_normaliser)), slope

    def inputs_of(self, nodes: NDArray[np.int64]) -> Inputs:
        """What the predictions of some nodes depend on."""
        return Inputs(self.features[:, nodes], self.tilt[:, nodes], self.nodes.shares[:, nodes])

    def gap_slopes(self, point: Point, gaps: Gaps, measured: Inputs) -> Array:
        """Derivatives of the gaps that are concerned by the coordinates, one row each."""
        features, tilt, shares = measured.features, measured.tilt, measured.shares
        q = point.q[:, gaps.measured]
        mean = (q * tilt).sum(0)
        slopes = np.zeros((*gaps.concerned.shape, self.coordinates.shape[1]))
        for c in range(self.classes):
            rows = gaps.concerned[:, c]
            weighted = gaps.delta[rows] * q[c]
            of_class = np.arange(self.classes) == c
            by_class = [(weighted * part) @ features.T for part in of_class[:, None] - q]
            by_w = np.stack(by_class, 2).reshape(len(weighted), len(features) * self.classes)
            by_a = (weighted * (tilt[c] - mean)) @ shares.T
            slopes[rows, c] = -np.concatenate([by_w, by_a], 1) @ self.coordinates
        return slopes[gaps.concerned]

    def constant(self) -> Array:
        """Coordinates at which everyone has the mean prediction."""
        mean = np.log(self.nodes.base @ self.nodes.weight)
        w = np.tile(-mean, (len(self.features), 1)) * self.scale[:, None]
        theta = np.concatenate([w.ravel(), np.full(len(self.nodes.shares), self.unit)])
        return np.linalg.lstsq(self.coordinates, theta, rcond=None)[0]

    def _scaled_parameters(self, x: Array) -> tuple[Array, Array]:
        theta, size = self.coordinates @ x, len(self.features) * self.classes
        return theta[:size].reshape(-1, self.classes), theta[size:]


def _whitened(nodes: Nodes, features: Array, tilt: Array) -> Array:
    """Directions of W and a, scaled by the curvature of the divergence at no correction."""
    classes = len(nodes.base)
    q = (1 - SMOOTHING) * nodes.base + SMOOTHING / classes
    weighted = nodes.weight * q
    tilted = weighted * (tilt - (q * tilt).sum(0))
    by_w = [
        [(weighted[d] * ((d == e) - q[e]) * features) @ features.T for e in range(classes)]
        for d in range(classes)
    ]
    by_both = [features @ (tilted[d] * nodes.shares).T for d in range(classes)]
    by_a = ((tilted * tilt).sum(0) * nodes.shares) @ nodes.shares.T
    size = len(features) * classes
    corner = np.array(by_w).transpose(2, 0, 3, 1).reshape(size, size)  # the class comes last
    side = np.stack(by_both, 1).reshape(size, -1)
    values, vectors = np.linalg.eigh(np.block([[corner, side], [side.T, by_a]]))
    # Some directions change nothing: a number added to every class, or redundant attributes.
    curved = values > MIN_CURVATURE * values.max()
    return np.asarray(vectors[:, curved] / np.sqrt(values[curved]))


def _search(family: AffineFamily, gaps: Gaps) -> Array:
    """The coordinates of smallest divergence that meet the targets, else of smallest excess."""
    start = np.zeros(family.coordinates.shape[1])
    if max(len(start), int(gaps.concerned.sum())) > MAX_VARIABLES:
        return start
    minima = [_descend(family, gaps, start)]
    # Where predictions are certain there are several local minima: start from two points.
    certain = float(np.ptp(family.nodes.log_proba, axis=0).max()) > CERTAIN_RANGE
    missed = gaps.excess(family.at(minima[0]).q) > TOLERANCE
    if len(family.nodes.shares) and (certain or missed):
        minima.append(_descend(family, gaps, family.constant()))

    def excess_and_divergence(x: Array) -> tuple[float, float]:
        point = family.at(x)
        excess = gaps.excess(point.q)
        return (excess if excess > TOLERANCE else 0.0), family.divergence(point)[0]

    return min(minima, key=excess_and_divergence)


def _descend(family: AffineFamily, gaps: Gaps, start: Array) -> Array:
    """Sequential quadratic programming from one start."""

    @lru_cache(maxsize=1)
    def point_at(coordinates: bytes) -> Point:
        return family.at(np.frombuffer(coordinates))

    measured = family.inputs_of(gaps.measured)
    bound = np.maximum(gaps.target, MIN_TARGET)[gaps.concerned]
    within = NonlinearConstraint(
        lambda x: gaps.of(point_at(x.tobytes()).q)[gaps.concerned],
        -bound,
        bound,
        jac=lambda x: family.gap_slopes(point_at(x.tobytes()), gaps, measured),
    )
    result = minimize(
        lambda x: family.divergence(point_at(x.tobytes())),
        start,
        jac=True,
        method="SLSQP",
        constraints=within,
        options={"maxiter": MAX_STEPS, "ftol": 1e-10},
    )
    return np.asarray(result.x) if np.isfinite(result.x).all() else start


def mix(nodes: Nodes, transitions: Array) -> Array:
    """Predictions after transitions between classes (C×n)."""
    basis = row_products(nodes.shares.T, nodes.base.T)
    q = (basis @ transitions.reshape(-1, len(nodes.base))).T
    return np.asarray(q / np.maximum(q.sum(0), 1e-300))


def least_transitions(nodes: Nodes, gaps: Gaps) -> Array | None:
    """The transitions that change least and meet the targets (G×C×C); None if there are none."""
    groups, classes = len(nodes.shares), len(nodes.base)
    size = groups * classes
    basis = row_products(nodes.shares.T, nodes.base.T)
    by_transition = gaps.delta @ basis[gaps.measured]
    rows = np.kron(by_transition, np.eye(classes))[gaps.concerned.ravel()]
    bound = gaps.target[gaps.concerned] + TOLERANCE / 2
    changes = 1 - np.tile(np.eye(classes), (groups, 1)).ravel()
    program = linprog(
        np.kron(nodes.weight @ basis, np.ones(classes)) * changes,
        A_ub=np.concatenate([rows, -rows]),
        b_ub=np.concatenate([bound, bound]),
        A_eq=np.kron(np.eye(size), np.ones((1, classes))),
        b_eq=np.ones(size),
        bounds=(0, 1),
        method="highs",
    )
    return program.x.reshape(groups, classes, classes) if program.status == 0 else None

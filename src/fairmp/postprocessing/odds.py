r"""Equal opportunity and equalized odds, by corrections that do not depend on the label.

A prediction must not depend on the label it predicts, so the correction of a node is a function of
its group and its own prediction :math:`p_i` alone,

.. math::
    Q_i = \mathrm{softmax}\Big(Z_i - \sum_g s_{ig} \big( a_g Z_i + \sum_y p_{iy} W_{gy} \big)\Big),

with the :math:`W` and :math:`a` that minimise :math:`\sum_i \mathrm{KL}(Q_i \| P_i)` subject to
every :math:`|\Delta_k Q| \le t_k`. The slopes :math:`a` make every target reachable: with
:math:`a_g = 1` and all :math:`W_{gy} = -\log π` everyone is predicted π. Where predictions are so
certain that sequential quadratic programming fails, the correction is randomised:
:math:`Q_i = \sum_y p_{iy} T_{gy}`, with the transitions T that change least, a linear program.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import rel_entr, softmax

from fairmp.postprocessing.criteria import Measure

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

TOLERANCE = 5e-5  # excess within which a target counts as met
MIN_TARGET = 1e-5  # stands for a target of 0, so that the constraints have an interior
MIN_PROBABILITY = 1e-12
MAX_STEPS = 300
CERTAIN_RANGE = 12.0  # range of logits beyond which the problem has several local minima
MAX_VARIABLES = 400  # numbers or constraints beyond which a quadratic program takes minutes


def apply(weights: tuple[Array, ...], z: Array, p: Array, membership: Array) -> Array:
    """Apply a correction to new rows and return their logits; rows of zeros stay as they are."""
    shares = _shares(membership)
    mixed = _outer(shares, p) @ weights[0].reshape(-1, z.shape[1])
    if len(weights) == 1:
        corrected = np.log(np.maximum(mixed, MIN_PROBABILITY))
    else:
        base = _log_softmax(z)
        tilt = base - base.mean(1, keepdims=True)
        corrected = base - mixed - (shares @ weights[1])[:, None] * tilt
    return np.where(shares.sum(1, keepdims=True) > 0, corrected, z)


def correct(
    measures: Sequence[Measure],
    by_prediction: bool,
    z: Array,
    p: Array,
    membership: Array,
    weight: Array,
) -> tuple[Array, Mask, tuple[Array, ...]]:
    """Closest logits that meet every target, the nodes that could be corrected, and the weights.

    ``z`` is divided by τ and ``p`` stands for the label. The weights are W and a, or T.
    """
    # Without labels a correction need not depend on the prediction of a node: a shift for each
    # group and each row of a matrix is optimal.
    own = [m.delta.matrix.cpu().numpy() for m in measures if m.own]
    rows = np.concatenate(own).T if own else np.zeros((len(z), 0))
    reached = (membership.sum(1) > 0) | (rows != 0).any(1)
    shares = _shares(membership) if by_prediction else np.zeros((len(z), 0))
    phi = np.concatenate([_outer(shares, p) if by_prediction else membership, rows], 1)[reached]
    scale = np.maximum(np.abs(phi).max(0), 1e-300)
    problem = _Problem(z, shares, phi / scale, weight, measures, reached)
    x, q, excess = problem.solve()
    w, slopes = problem.parameters(x)
    groups, classes = shares.shape[1], z.shape[1]
    w = (w / scale[:, None])[: groups * classes]
    weights: tuple[Array, ...] = (
        w.reshape(groups, classes, -1) if by_prediction else w,
        slopes / problem.unit,
    )
    if excess > TOLERANCE and by_prediction:
        transitions, other, other_excess = problem.randomise()
        if other_excess < excess:
            q, excess, weights = other, other_excess, (transitions,)
    logits = z.copy()
    logits[reached] = np.log(np.maximum(q.T, np.finfo(np.float64).tiny))
    return logits, reached, weights


class _Problem:
    """The problem on the reached nodes, the last axis of all; phi has one row per row of W."""

    def __init__(
        self,
        z: Array,
        shares: Array,
        phi: Array,
        weight: Array,
        measures: Sequence[Measure],
        reached: Mask,
    ) -> None:
        # Sums over classes add whole rows, and so take a fraction of the time of many short ones.
        self.z = np.ascontiguousarray(_log_softmax(z[reached]).T)
        self.base = softmax(self.z, axis=0)
        self.shares, self.phi = (np.ascontiguousarray(part.T) for part in (shares[reached], phi))
        self.classes = z.shape[1]
        centred = self.z - self.z.mean(0)
        self.unit = max(float(np.sqrt((centred**2).mean())), 1e-12)
        self.tilt = centred / self.unit
        weight = weight[reached].astype(np.float64)
        self.weight = weight / max(weight.sum(), 1e-300)
        matrices = [m.delta.pair_matrix.cpu().numpy()[:, reached] / m.unit for m in measures]
        heights = [len(matrix) for matrix in matrices]
        concerned = [np.isin(np.arange(self.classes), m.classes) for m in measures]
        self.concerned = np.repeat(concerned, heights, axis=0)
        targets = np.repeat([m.target / m.unit for m in measures], heights)
        self.target = targets[:, None] * self.concerned
        delta = np.concatenate(matrices)
        self.measured = np.flatnonzero((delta != 0).any(0))
        parts = (delta, self.phi, self.tilt, self.shares)
        self.delta, *self.inner = (part[:, self.measured] for part in parts)
        self.coordinates = self._whitened()

    def solve(self) -> tuple[Array, Array, float]:
        """The best coordinates found, their predictions, and by how much a target is missed."""
        start = np.zeros(self.coordinates.shape[1])
        if max(len(start), int(self.concerned.sum())) > MAX_VARIABLES:
            return start, self.base, self.excess(self.base)
        found = [self._descend(start)]
        # Where predictions are certain there are several local minima: start from two points.
        certain = float(np.ptp(self.z, axis=0).max()) > CERTAIN_RANGE
        if len(self.shares) and (certain or self.excess(self._at(found[0])[1]) > TOLERANCE):
            found.append(self._descend(self._constant()))
        points = [(x, q, self.excess(q)) for x in found for q in [self._at(x)[1]]]
        met = [point for point in points if point[2] <= TOLERANCE]
        if met:
            return min(met, key=lambda point: self.divergence(point[1]))
        return min(points, key=lambda point: point[2])

    def parameters(self, x: Array) -> tuple[Array, Array]:
        """W (m×C) and slopes a (G) at some coordinates."""
        theta, size = self.coordinates @ x, len(self.phi) * self.classes
        return theta[:size].reshape(-1, self.classes), theta[size:]

    def divergence(self, q: Array) -> float:
        """KL(Q‖P), the mean over nodes."""
        return float((self.weight * rel_entr(q, self.base)).sum())

    def excess(self, q: Array) -> float:
        over = np.abs(self._gaps(q)) - self.target
        return float(max(over[self.concerned].max(), 0.0))

    def _descend(self, start: Array) -> Array:
        from scipy.optimize import NonlinearConstraint, minimize

        at = lru_cache(maxsize=1)(lambda x: self._at(np.frombuffer(x)))

        def objective(x: Array) -> tuple[float, Array]:
            shift, q, free = at(x.tobytes())
            mean = (q * shift).sum(0)
            by_shift = self.weight * q * (shift - mean)
            by_w = (self.phi @ by_shift.T).ravel()
            by_a = self.shares @ (by_shift * self.tilt).sum(0)
            slope = self.coordinates.T @ np.concatenate([by_w, by_a])
            return float(-self.weight @ (mean + free)), slope  # KL(Q‖P)

        bound = np.maximum(self.target, MIN_TARGET)[self.concerned]
        within = NonlinearConstraint(
            lambda x: self._gaps(at(x.tobytes())[1])[self.concerned],
            -bound,
            bound,
            jac=lambda x: self._slopes(at(x.tobytes())[1]),
        )
        limits = {"maxiter": MAX_STEPS, "ftol": 1e-10}
        found = minimize(
            objective, start, jac=True, method="SLSQP", constraints=within, options=limits
        )
        return np.asarray(found.x) if np.isfinite(found.x).all() else start

    def _constant(self) -> Array:
        """Coordinates at which everyone has the mean prediction."""
        mean = np.log(self.base @ self.weight)
        w = np.zeros((len(self.phi), self.classes))
        w[: len(self.shares) * self.classes] = -mean
        theta = np.concatenate([w.ravel(), np.full(len(self.shares), self.unit)])
        return np.linalg.lstsq(self.coordinates, theta, rcond=None)[0]

    def _at(self, x: Array) -> tuple[Array, Array, Array]:
        """Shift, predictions and their log-normaliser at some coordinates."""
        w, slopes = self.parameters(x)
        shift = w.T @ self.phi + (slopes @ self.shares) * self.tilt
        scores = self.z - shift
        top = scores.max(0)
        scale = np.exp(scores - top, out=scores).sum(0)
        return shift, scores / scale, top + np.log(scale)

    def _gaps(self, q: Array) -> Array:
        return self.delta @ q[:, self.measured].T

    def _slopes(self, q: Array) -> Array:
        """Derivatives of the gaps by the coordinates, one row each."""
        (phi, tilt, shares), q = self.inner, q[:, self.measured]
        mean = (q * tilt).sum(0)
        slopes = np.zeros((*self.concerned.shape, self.coordinates.shape[1]))
        for c in range(self.classes):
            wanted = self.concerned[:, c]
            weighted = self.delta[wanted] * q[c]
            of_class = np.arange(self.classes) == c
            by_class = [(weighted * part) @ phi.T for part in of_class[:, None] - q]
            by_w = np.stack(by_class, 2).reshape(len(weighted), len(phi) * self.classes)
            by_a = (weighted * (tilt[c] - mean)) @ shares.T
            slopes[wanted, c] = -np.concatenate([by_w, by_a], 1) @ self.coordinates
        return slopes[self.concerned]

    def _whitened(self) -> Array:
        """Coordinates in which the divergence is half the squared length, near no correction."""
        q = 0.98 * self.base + 0.02 / self.classes  # certain predictions need some curvature too
        weighted, classes = self.weight * q, range(self.classes)
        tilted = weighted * (self.tilt - (q * self.tilt).sum(0))
        by_w = [
            [(weighted[d] * ((d == e) - q[e]) * self.phi) @ self.phi.T for e in classes]
            for d in classes
        ]
        by_both = [self.phi @ (tilted[d] * self.shares).T for d in classes]
        by_a = ((tilted * self.tilt).sum(0) * self.shares) @ self.shares.T
        size = len(self.phi) * self.classes
        corner = np.array(by_w).transpose(2, 0, 3, 1).reshape(size, size)  # the class comes last
        side = np.stack(by_both, 1).reshape(size, -1)
        values, vectors = np.linalg.eigh(np.block([[corner, side], [side.T, by_a]]))
        # Some directions change nothing: a number added to every class, or redundant attributes.
        kept = values > 1e-10 * values.max()
        return np.asarray(vectors[:, kept] / np.sqrt(values[kept]))

    def randomise(self) -> tuple[Array, Array, float]:
        """Transitions from given to corrected classes by a linear program, and their effect."""
        from scipy.optimize import linprog

        groups, c = len(self.shares), self.classes
        size = groups * c
        basis = _outer(self.shares.T, self.base.T)
        alone = self.shares.sum(0) == 0  # reached by a matrix only: no group to randomise by
        fixed = self._gaps(np.where(alone, self.base, 0.0))
        by_t = self.delta @ basis[self.measured]
        rows = np.kron(by_t, np.eye(c))[self.concerned.ravel()]
        bound, offset = self.target[self.concerned], fixed[self.concerned]
        change = self.weight @ basis
        cost = np.kron(change, np.ones(c)) * (1 - np.tile(np.eye(c), (groups, 1)).ravel())
        found = linprog(
            cost,
            A_ub=np.concatenate([rows, -rows]),
            b_ub=np.concatenate([bound - offset, bound + offset]) + TOLERANCE / 2,
            A_eq=np.kron(np.eye(size), np.ones((1, c))),
            b_eq=np.ones(size),
            bounds=(0, 1),
            method="highs",
        )
        if found.status != 0:
            return np.empty(0), self.base, float("inf")
        q = (basis @ found.x.reshape(size, c)).T
        q = np.where(alone, self.base, q / np.maximum(q.sum(0), 1e-300))
        return found.x.reshape(groups, c, c), q, self.excess(q)


def _shares(membership: Array) -> Array:
    """Memberships whose rows sum to 1, however many attributes of a node are known."""
    total = membership.sum(1, keepdims=True)
    return np.divide(membership, total, out=np.zeros_like(membership), where=total > 0)


def _outer(a: Array, b: Array) -> Array:
    return (a[:, :, None] * b[:, None, :]).reshape(len(a), -1)


def _log_softmax(z: Array) -> Array:
    return np.asarray(np.log(np.maximum(softmax(z, axis=1), MIN_PROBABILITY)))

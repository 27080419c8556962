r"""Equal opportunity and equalised odds, by corrections that never look at a label.

Labels are known of some nodes, and the criteria are measured on these; but a prediction must not
depend on the label it predicts. So a node's correction is a function of its group and of its own
prediction :math:`p_i` alone,

.. math::
    Q_i = \mathrm{softmax}\Big(Z_i - \sum_g s_{ig} \big( a_g Z_i + \sum_y p_{iy} W_{gy} \big)\Big),

with the few numbers :math:`W` and :math:`a` that minimise :math:`\sum_i \mathrm{KL}(Q_i \| P_i)`
subject to every :math:`|\Delta_k Q| \le t_k`. The form of W is no guess. Were a node's label
allowed in its correction, the closest predictions would be shifted by a number for each group and
class; here the class is replaced by what the model says of it, and for a calibrated model that is
the closest there is. The temperatures :math:`a` are there to make every target reachable: with
:math:`a_g = 1` and all :math:`W_{gy} = -\log π` everyone is predicted π, which has no gap of any
kind.

The problem is smooth and small. In coordinates in which the divergence is round where it starts,
sequential quadratic programming takes a handful of passes. Where predictions are so certain that
it does not arrive, one randomises instead: :math:`Q_i = \sum_y p_{iy} T_{gy}`, with the transitions
T that change least, from a linear program; that always arrives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairmp.postprocessing.criteria import Measure

Array = NDArray[np.float64]

HELD = 5e-5  # a target counts as held within this
INNER = 1e-5  # what a target of 0 is taken for, so that the constraints have an inside
FLOOR = 1e-12  # probabilities below it are taken for it
STEPS = 300
CERTAIN = 12.0  # logits further apart than this leave little room between 0 and 1
MANY = 400  # numbers or constraints beyond which a quadratic program takes minutes


class Corrected(NamedTuple):
    """Corrected predictions.

    Attributes:
        logits: of every node (n×C); of nodes nothing says anything about, as given.
        reached: nodes that could be corrected (n).
        excess: by how much the worst target is missed.
        randomised: whether it took transitions at random.
    """

    logits: Array
    reached: NDArray[np.bool_]
    excess: float
    randomised: bool


def correct(
    z: Array,
    p: Array,
    membership: Array,
    population: NDArray[np.bool_],
    measures: Sequence[Measure],
    *,
    by_prediction: bool = True,
) -> Corrected:
    """Find the closest label-free predictions that meet every measure's target.

    Args:
        z: logits, divided by the temperature (n×C).
        p: the model's own probabilities (n×C), which stand for the label.
        membership: how much each node belongs to each group of each attribute (n×G); rows of zeros
            are left alone.
        population: nodes whose divergence counts (n).
        measures: what must hold.
        by_prediction: whether corrections may depend on a node's own prediction. Where no measure
            has to do with labels they need not: a shift for each group and each row of a matrix
            is the closest there is.
    """
    extra = [m.delta.matrix.cpu().numpy() for m in measures if m.own]
    beside = np.concatenate(extra).T if extra else np.zeros((len(z), 0))
    total = membership.sum(1, keepdims=True)
    reached = (total[:, 0] > 0) | (beside != 0).any(1)
    if by_prediction:
        # Every reached node's row sums to 1, however many of its attributes are known.
        shares = np.divide(membership, total, out=np.zeros_like(membership), where=total > 0)
        columns = [_outer(shares, p), beside]
    else:
        shares, columns = np.zeros((len(z), 0)), [membership, beside]
    phi = np.concatenate(columns, 1)[reached]
    problem = _Problem(z[reached], shares[reached], phi / np.maximum(np.abs(phi).max(0), 1e-300))
    problem.measure(population[reached], measures, reached)
    q, excess = problem.solve()
    randomised = excess > HELD and by_prediction
    if randomised:
        other, other_excess = problem.randomise()
        randomised = other_excess < excess
        if randomised:
            q, excess = other, other_excess
    logits = z.copy()
    logits[reached] = np.log(np.maximum(q, np.finfo(np.float64).tiny))
    return Corrected(logits, reached, excess, randomised)


class _Problem:
    """The problem on the nodes that can be reached, in whitened coordinates.

    ``phi`` (n×m) has a column for each number of W in each class; ``shares`` (n×G) spread the
    temperatures, of which there are none without groups.
    """

    def __init__(self, z: Array, shares: Array, phi: Array) -> None:
        self.z = np.log(np.maximum(_softmax(z), FLOOR))
        self.base = _softmax(self.z)
        self.shares, self.phi = shares, phi
        self.classes = z.shape[1]
        centred = self.z - self.z.mean(1, keepdims=True)
        self.unit = max(float(np.sqrt((centred**2).mean())), 1e-12)
        self.tilt = centred / self.unit

    def measure(
        self, population: NDArray[np.bool_], measures: Sequence[Measure], reached: NDArray[np.bool_]
    ) -> None:
        weight = population.astype(np.float64)
        self.weight = (weight / max(weight.sum(), 1.0))[:, None]
        delta = np.concatenate(
            [m.delta.pair_matrix.cpu().numpy()[:, reached] / m.unit for m in measures]
        )
        heights = [len(m.delta.pair_matrix) for m in measures]
        spoken = [np.isin(np.arange(self.classes), m.classes) for m in measures]
        self.spoken = np.repeat(np.array(spoken), heights, axis=0)
        targets = np.repeat([m.target / m.unit for m in measures], heights)
        self.target = targets[:, None] * self.spoken
        self.here = (delta != 0).any(0)
        self.delta = delta[:, self.here]
        self.coordinates = self._whitened()

    def solve(self) -> tuple[Array, float]:
        if max(self.coordinates.shape[1], int(self.spoken.sum())) > MANY:
            return self.base, self.excess(self.base)
        # Where predictions are certain there are many valleys, and the start decides on one.
        certain = float(np.ptp(self.z, axis=1).max()) > CERTAIN
        found = [self._descend(self._nothing())]
        if self.shares.shape[1] and (certain or self.excess(found[0]) > HELD):
            found.append(self._descend(self._constant()))
        held = [q for q in found if self.excess(q) <= HELD]
        q = min(held, key=self.divergence) if held else min(found, key=self.excess)
        return q, self.excess(q)

    def divergence(self, q: Array) -> float:
        """KL(Q‖P), a node on average."""
        ratio = np.log(np.maximum(q, 1e-300)) - np.log(np.maximum(self.base, 1e-300))
        return float((self.weight * q * ratio).sum())

    def excess(self, q: Array) -> float:
        over = np.abs(self._gaps(q)) - self.target
        return float(max(over[self.spoken].max(), 0.0))

    def _descend(self, start: Array) -> Array:
        from scipy.optimize import minimize

        inner = np.maximum(self.target, INNER)[self.spoken]
        held: dict[bytes, tuple[Array, Array]] = {}

        def at(x: Array) -> tuple[Array, Array]:
            key = x.tobytes()
            if key not in held:
                held.clear()
                held[key] = self._at(x)
            return held[key]

        def objective(x: Array) -> tuple[float, Array]:
            shift, q = at(x)
            pull = self.weight * q * (shift - (q * shift).sum(1, keepdims=True))
            return self.divergence(q), self._pull_back(pull)

        def inside(x: Array) -> Array:
            gaps = self._gaps(at(x)[1])[self.spoken]
            return np.concatenate([inner - gaps, inner + gaps])

        def inside_slope(x: Array) -> Array:
            slope = self._slopes(at(x)[1])
            return np.concatenate([-slope, slope])

        found = minimize(
            objective,
            start,
            jac=True,
            method="SLSQP",
            constraints=[{"type": "ineq", "fun": inside, "jac": inside_slope}],
            options={"maxiter": STEPS, "ftol": 1e-10},
        )
        return self._at(found.x)[1] if np.isfinite(found.x).all() else self._at(start)[1]

    def _nothing(self) -> Array:
        return np.zeros(self.coordinates.shape[1])

    def _constant(self) -> Array:
        everyone = np.log((self.weight * self.base).sum(0))
        w = np.zeros((self.phi.shape[1], self.classes))
        w[: self.shares.shape[1] * self.classes] = -everyone
        theta = np.concatenate([w.ravel(), np.full(self.shares.shape[1], self.unit)])
        return np.linalg.lstsq(self.coordinates, theta, rcond=None)[0]

    def _at(self, x: Array) -> tuple[Array, Array]:
        theta = self.coordinates @ x
        size = self.phi.shape[1] * self.classes
        shift = self.phi @ theta[:size].reshape(-1, self.classes)
        shift += (self.shares @ theta[size:])[:, None] * self.tilt
        return shift, _softmax(self.z - shift)

    def _gaps(self, q: Array) -> Array:
        return self.delta @ q[self.here]

    def _pull_back(self, pull: Array) -> Array:
        """From a derivative by the shift (n×C) to one by the coordinates."""
        by_w = (self.phi.T @ pull).ravel()
        by_a = self.shares.T @ (pull * self.tilt).sum(1)
        return self.coordinates.T @ np.concatenate([by_w, by_a])

    def _slopes(self, q: Array) -> Array:
        """Derivatives of the gaps spoken of, a row each."""
        q, phi, tilt = q[self.here], self.phi[self.here], self.tilt[self.here]
        shares = self.shares[self.here]
        middle = (q * tilt).sum(1)
        rows = []
        for c in range(self.classes):
            asked = self.spoken[:, c]
            if not asked.any():
                continue
            weighted = self.delta[asked] * q[:, c]
            by_w = np.stack(
                [(weighted * ((c == d) - q[:, d])) @ phi for d in range(self.classes)], axis=2
            )
            by_a = (weighted * (tilt[:, c] - middle)) @ shares
            slope = -np.concatenate([by_w.reshape(len(by_w), -1), by_a], 1) @ self.coordinates
            rows.append((np.flatnonzero(asked) * self.classes + c, slope))
        order = np.argsort(np.concatenate([place for place, _ in rows]))
        return np.concatenate([slope for _, slope in rows])[order]

    def _whitened(self) -> Array:
        """Coordinates in which the divergence is half the squared length, near no correction.

        Directions that change nothing are left out: a number added to every class, or two
        attributes that say the same.
        """
        q = 0.98 * self.base + 0.02 / self.classes  # certain predictions have curvature too
        weighted, classes = self.weight * q, range(self.classes)
        middle = (q * self.tilt).sum(1, keepdims=True)
        turned = weighted * (self.tilt - middle)
        by_w = [
            [self.phi.T @ (weighted[:, [d]] * ((d == e) - q[:, [e]]) * self.phi) for e in classes]
            for d in classes
        ]
        by_both = [self.phi.T @ (turned[:, [d]] * self.shares) for d in classes]
        by_a = self.shares.T @ ((turned * self.tilt).sum(1, keepdims=True) * self.shares)
        size = self.phi.shape[1] * self.classes
        # The class comes last among the numbers of W.
        corner = np.array(by_w).transpose(2, 0, 3, 1).reshape(size, size)
        side = np.stack(by_both, 1).reshape(size, -1)
        values, vectors = np.linalg.eigh(np.block([[corner, side], [side.T, by_a]]))
        kept = values > 1e-10 * values.max()
        return np.asarray(vectors[:, kept] / np.sqrt(values[kept]))

    def randomise(self) -> tuple[Array, float]:
        """Transitions from what the model predicts to what is predicted, by a linear program."""
        from scipy.optimize import linprog

        groups, c = self.shares.shape[1], self.classes
        size = groups * c
        basis = _outer(self.shares, self.base)
        alone = self.shares.sum(1) == 0  # reached by a matrix only: nothing to randomise by
        fixed = self._gaps(np.where(alone[:, None], self.base, 0.0))
        by_t = self.delta @ basis[self.here]
        rows = np.kron(by_t, np.eye(c))[self.spoken.ravel()]
        bound, offset = self.target[self.spoken], fixed[self.spoken]
        change = (self.weight * basis).sum(0)
        cost = np.kron(change, np.ones(c)) * (1 - np.tile(np.eye(c), (groups, 1)).ravel())
        found = linprog(
            cost,
            A_ub=np.concatenate([rows, -rows]),
            b_ub=np.concatenate([bound - offset, bound + offset]) + HELD / 2,
            A_eq=np.kron(np.eye(size), np.ones((1, c))),
            b_eq=np.ones(size),
            bounds=(0, 1),
            method="highs",
        )
        if found.status != 0:
            return self.base, float("inf")
        q = basis @ found.x.reshape(size, c)
        q = np.where(alone[:, None], self.base, q / np.maximum(q.sum(1, keepdims=True), 1e-300))
        return q, self.excess(q)


def _outer(a: Array, b: Array) -> Array:
    return (a[:, :, None] * b[:, None, :]).reshape(len(a), -1)


def _softmax(z: Array) -> Array:
    e = np.exp(z - z.max(1, keepdims=True))
    return np.asarray(e / e.sum(1, keepdims=True))

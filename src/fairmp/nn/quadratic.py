r"""Small dense problems of Newton's method: a quadratic with an L1 penalty, and linear systems.

Hessians of the dual leave some directions undetermined (a constant added to every class, a dual
proportional to group sizes), so nothing here inverts one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

RIDGE = 1e-10  # smallest curvature, in a row whose classes' curvatures sum to 1
FLAT = 1e-12  # curvature, in nodes, below which a gap is taken not to move
MAX_STEPS = 100  # of the interior-point method
COMPLEMENTARITY = 1e-15  # at which it has converged
TINY = 1e-300


@dataclass(frozen=True)
class L1Quadratic:
    r"""Minimise :math:`½x^⊤Hx - b^⊤x + \sum \mathrm{penalty}·|x|` subject to :math:`E^⊤x = 0`.

    Attributes:
        hessian: H, in the span of ``basis``.
        linear: b, in the span of ``basis``.
        penalty: of each entry of x.
        basis: columns that span the directions in which H curves.
        constraints: E.
    """

    hessian: Array
    linear: Array
    penalty: Array
    basis: Array
    constraints: Array

    def solve(self) -> Array:
        r"""Solve by an interior-point method on the dual.

        The dual is the gap :math:`b - Hx = Bγ` nearest to b, in the metric :math:`H^{-1}`, of which
        no entry, less a centre :math:`Ec`, exceeds its penalty; x are its multipliers. It starts at
        :math:`γ = c = 0`.
        """
        basis, aim = self._coordinates()
        unit = max(float(np.abs(aim).max()), TINY)
        bound = self.penalty / unit
        centres = self.constraints / np.maximum(np.abs(self.constraints).max(0, initial=0.0), TINY)
        num_centres = centres.shape[1]
        point = _InteriorPoint.start(
            basis=np.concatenate([basis, -centres], 1),
            metric=np.concatenate([np.ones(aim.size), np.zeros(num_centres)]),
            aim=np.concatenate([aim / unit, np.zeros(num_centres)]),
            bound=bound,
        )
        for _ in range(MAX_STEPS):
            if point.complementarity <= COMPLEMENTARITY or not point.advance():
                break
        held = np.asarray((point.multipliers * bound > point.slack).any(0))
        free = complement(centres, held)
        x = point.multipliers[0] - point.multipliers[1]
        return np.asarray(free @ (free.T @ x) * unit)

    def _coordinates(self) -> tuple[Array, Array]:
        """A basis in which the metric is the identity, and b in it."""
        basis, _ = np.linalg.qr(self.basis)
        values, vectors = np.linalg.eigh(basis.T @ self.hessian @ basis)
        basis = (basis @ vectors) * np.sqrt(np.maximum(values, RIDGE))
        return basis, np.linalg.lstsq(basis, self.linear, rcond=None)[0]


@dataclass
class _InteriorPoint:
    """An iterate; the rows of ``slack`` and ``multipliers`` are for upper and lower bounds."""

    basis: Array
    metric: Array
    aim: Array
    gamma: Array
    slack: Array
    multipliers: Array

    SIGN = np.array([[1.0], [-1.0]])
    CENTRING = 0.05  # share of the complementarity that a step aims at
    KEEP = 0.99  # share of the way to the boundary that a step may go

    @classmethod
    def start(cls, basis: Array, metric: Array, aim: Array, bound: Array) -> _InteriorPoint:
        slack = np.stack([bound, bound])
        multipliers = np.full_like(slack, 1.0 / max(1.0, float(np.abs(basis).max())))
        return cls(basis, metric, aim, np.zeros_like(aim), slack, multipliers)

    @property
    def complementarity(self) -> float:
        return float((self.multipliers * self.slack).mean())

    def advance(self) -> bool:
        """Take one step; False where rounding allows none."""
        ratio = self.multipliers / self.slack
        pull = self.CENTRING * self.complementarity / self.slack - self.multipliers
        system = np.diag(self.metric) + (self.basis.T * ratio.sum(0)) @ self.basis
        force = self.basis.T @ (self.SIGN * (self.multipliers + pull)).sum(0)
        right = -self.metric * (self.gamma - self.aim) - force
        if not (np.isfinite(system).all() and np.isfinite(right).all()):
            return False
        try:
            step = np.linalg.lstsq(system, right, rcond=None)[0]
        except np.linalg.LinAlgError:  # weights too large for a double
            return False
        move = self.SIGN * (self.basis @ step)
        growth = pull + ratio * move
        shrinking = max(
            float((-growth / self.multipliers).max()), float((move / self.slack).max()), TINY
        )
        length = min(1.0, self.KEEP / shrinking)
        self.gamma = self.gamma + length * step
        self.slack = self.slack - length * move
        self.multipliers = self.multipliers + length * growth
        return True


def pseudo_solve(h: Array, b: Array) -> Array:
    """Solve Hx = b for a symmetric H that may leave some directions undetermined, and x 0 there."""
    x, diagonal = np.zeros_like(b), np.diag(h)
    # Where every node is certain nothing moves, and rounding would decide how much.
    moves = diagonal > FLAT
    if moves.any():
        # Equal diagonals first: a class that is rarely predicted is small, not undetermined.
        root = np.sqrt(diagonal[moves])
        values, vectors = np.linalg.eigh(h[np.ix_(moves, moves)] / np.outer(root, root))
        keep = values > 1e-12 * float(values.max())
        inverse = np.where(keep, 1 / np.where(keep, values, 1.0), 0.0)
        x[moves] = (vectors @ (inverse * (vectors.T @ (b[moves] / root)))) / root
    return x


def complement(constraints: Array, held: NDArray[np.bool_]) -> Array:
    """Orthonormal columns that span the held entries orthogonal to the constraints."""
    # A column per constraint at most, over entries of its own: classes do not mix.
    columns, unconstrained = [], held.copy()
    for constraint in constraints.T:
        inside = np.flatnonzero(held & (constraint != 0))
        unconstrained[inside] = False
        if inside.size > 1:
            q, _ = np.linalg.qr(constraint[inside, None], mode="complete")
            block = np.zeros((held.size, inside.size - 1))
            block[inside] = q[:, 1:]
            columns.append(block)
    return np.concatenate([np.eye(held.size)[:, unconstrained], *columns], 1)


def span(gram: Array) -> Array:
    """Orthonormal columns that span the range of a symmetric matrix."""
    values, vectors = np.linalg.eigh(gram)
    return np.asarray(vectors[:, values > 1e-10 * values.max()])

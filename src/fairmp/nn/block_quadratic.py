r"""Quadratics of many groups: one small block each, coupled by :math:`\sum_g n_g x_g = 0` alone.

The multiplier of that constraint, one number per class, is eliminated, so that the time is linear
in the number of groups. :func:`block_minimum` has no penalty; :func:`penalised_block_minimum` is an
interior-point method.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fairmp.nn.quadratic import FLAT, RIDGE, Array, span

MAX_ITERATIONS = 60  # of the interior-point method; about 20 are usual
MAX_CORRECTIONS = 10  # of signs
GAP_TOLERANCE = 1e-9  # complementarity, relative to its start
STEP_SHARE = 0.995  # of the way to the boundary
REFINEMENTS = 2  # of the solution of linear equations
MIN_RATE = 1e-14  # of curvature per node
FREE = 1e6  # the inverse curvature of what all classes of a group move alike
MIN_CURVATURE = 1e-100  # of a group that no longer moves


@dataclass(frozen=True)
class BlockQuadratic:
    r"""Minimise :math:`\sum_g ½x_g^⊤H_gx_g - b_g^⊤x_g` over :math:`\sum_g n_gx_g = 0`."""

    hessian: Array  # H_g (G×C×C), whose rows sum to 0
    linear: Array  # b_g (G×C)
    size: Array  # n_g (G)

    @property
    def unit(self) -> Array:
        """The root of each group's curvature (G): in these units groups of any size are alike."""
        curvature = np.trace(self.hessian, axis1=1, axis2=2)
        return np.asarray(np.sqrt(np.maximum(curvature, MIN_CURVATURE)))

    def in_units(self) -> BlockQuadratic:
        """The same problem for x_g times its unit."""
        unit = self.unit[:, None]
        hessian = self.hessian / unit[:, :, None] ** 2
        return BlockQuadratic(hessian, self.linear / unit, self.size / unit[:, 0])


def with_ridge(hessian: Array, pull: Array, size: Array, reach: float) -> Array:
    """Add a small curvature, which bounds how far a step goes: to about ``reach``.

    It falls with the pull on a group, so that Newton's method converges as fast as without it.
    """
    classes = hessian.shape[1]
    curvature = np.trace(hessian, axis1=1, axis2=2)
    ridge = np.maximum(RIDGE * curvature, pull / reach)
    ridge = np.maximum(ridge, MIN_RATE * size)
    return np.asarray(hessian + ridge[:, None, None] * (np.eye(classes) - 1 / classes))


def block_minimum(problem: BlockQuadratic, total: Array) -> Array:
    """The minimum (G×C) over Σ n_g x_g = total, of rows that sum to 0."""
    scaled, classes = problem.in_units(), problem.linear.shape[1]
    basis = _rotation(classes)[:, 1:]
    hessian, linear = basis.T @ scaled.hessian @ basis, scaled.linear @ basis
    coupled = _Coupled(hessian, _inverse(hessian), scaled.size)
    x, _ = coupled.solve(linear, total @ basis)
    x += (
        (total @ basis - scaled.size @ x)
        / (scaled.size @ (1 / problem.unit))
        / problem.unit[:, None]
    )
    return np.asarray(x @ basis.T / problem.unit[:, None])


class _Coupled:
    """The equations B_g x_g + n_g c = l_g of all groups, with Σ n_g x_g = total."""

    def __init__(self, blocks: Array, inverse: Array, size: Array) -> None:
        self.blocks, self.inverse, self.size = blocks, inverse, size
        schur = np.einsum("g,gcd->cd", size**2, inverse)
        # Its diagonal spans many orders of magnitude where some directions hardly curve.
        self.root = np.sqrt(np.maximum(np.diag(schur), MIN_CURVATURE))
        self.pinv = np.linalg.pinv(schur / np.outer(self.root, self.root), 1e-13, hermitian=True)

    def solve(
        self, linear: Array, total: Array, active: NDArray[np.bool_] | None = None
    ) -> tuple[Array, Array]:
        """Find x (G×C) and c (C); with ``active``, for these equations, and x = 0 elsewhere."""
        x, centre = self.solve_once(linear, total)
        for _ in range(REFINEMENTS):  # of what rounding leaves
            left = linear - np.einsum("gcd,gd->gc", self.blocks, x) - self.size[:, None] * centre
            left = left if active is None else np.where(active, left, 0.0)
            dx, dc = self.solve_once(left, total - self.size @ x)
            x, centre = x + dx, centre + dc
        return x, centre

    def solve_once(self, linear: Array, total: Array) -> tuple[Array, Array]:
        """Find x and c, up to rounding."""
        alone = np.einsum("gcd,gd->gc", self.inverse, linear)
        centre = self.pinv @ ((self.size @ alone - total) / self.root) / self.root
        left = linear - self.size[:, None] * centre  # first: directions that hardly curve cancel
        return np.einsum("gcd,gd->gc", self.inverse, left), centre


def _inverse(blocks: Array) -> Array:
    """Inverses of positive definite blocks, whose diagonals may differ in size."""
    root = np.sqrt(np.einsum("gcc->gc", blocks))
    outer = root[:, :, None] * root[:, None]
    return np.asarray(np.linalg.inv(blocks / outer) / outer)


def _rotation(classes: int) -> Array:
    """Orthonormal columns, the first of which adds the same number to every class.

    H does not curve along it, so that it is kept apart from those that H curves along.
    """
    constant = np.full((classes, 1), 1 / np.sqrt(classes))
    return np.concatenate([constant, span(np.eye(classes) - 1 / classes)], 1)


def penalised_block_minimum(problem: BlockQuadratic, penalty: Array) -> Array:
    r"""The minimum with :math:`\sum_g \mathrm{penalty}_g \|x_g\|_1` added; exact zeros included."""
    scaled, unit = problem.in_units(), problem.unit
    kappa = (penalty / unit)[:, None] * np.ones_like(scaled.linear)
    nearest = _InteriorPoint(scaled, kappa).run()
    # In each pair, either the number or its slack is 0.
    reach = max(float(np.abs(nearest.x).max()), 1e-300)
    above = nearest.p / reach > nearest.slack_p / kappa
    below = nearest.q / reach > nearest.slack_q / kappa
    sign = above.astype(np.float64) - below
    x = np.where(sign == 0, 0.0, nearest.x)
    exact = _with_exact_signs(scaled, kappa, x, sign)
    if exact is None:
        exact = _with_exact_signs(scaled, kappa, nearest.x, sign, FREE)
    return (_rebalanced(scaled, x) if exact is None else exact) / unit[:, None]


@dataclass(frozen=True)
class _Interior:
    """A point x = p − q with p, q ≥ 0 and their slacks, or a step between two points (G×C)."""

    p: Array
    q: Array
    slack_p: Array
    slack_q: Array
    centre: Array  # the multiplier of Σ n_g x_g = 0 (C)

    @property
    def x(self) -> Array:
        """The unknowns."""
        return np.asarray(self.p - self.q)

    @property
    def gap(self) -> float:
        """Mean product of a number and its slack: 0 at the minimum."""
        return float((self.p * self.slack_p + self.q * self.slack_q).mean()) / 2

    def moved(self, step: _Interior, length: float) -> _Interior:
        """The point after a share of a step."""
        return _Interior(
            self.p + length * step.p,
            self.q + length * step.q,
            self.slack_p + length * step.slack_p,
            self.slack_q + length * step.slack_q,
            self.centre + length * step.centre,
        )

    def longest(self, step: _Interior) -> float:
        """How much of a step leaves all numbers and slacks positive, at most 1."""
        length = 1.0
        for name in ("p", "q", "slack_p", "slack_q"):
            change = getattr(step, name)
            falling = change < 0
            if falling.any():
                ratio = getattr(self, name)[falling] / -change[falling]
                length = min(length, float(ratio.min()))
        return length


@dataclass(frozen=True)
class _Residuals:
    """By how much slacks differ from κ ± (Hx − b + nc) (G×C)."""

    p: Array
    q: Array

    @property
    def largest(self) -> float:
        """The largest of them."""
        return max(float(np.abs(self.p).max()), float(np.abs(self.q).max()))


class _InteriorPoint:
    """An interior-point method for x = p − q, with slacks κ ± (Hx − b + nc) of the penalty κ."""

    def __init__(self, problem: BlockQuadratic, kappa: Array) -> None:
        self.problem, self.kappa, self.size = problem, kappa, problem.size[:, None]
        self.rotation = _rotation(problem.hessian.shape[1])
        self.curved = self.rotation.T @ problem.hessian @ self.rotation
        self.curved[:, 0] = self.curved[:, :, 0] = 0.0

    def run(self) -> _Interior:
        """The point nearest to the minimum."""
        linear, size = self.problem.linear, self.size
        centre = (size * linear).sum(0) / (size**2).sum()
        reach = max(float(np.abs(linear - size * centre).max()), 1e-100)
        start, slack = np.full_like(self.kappa, reach), np.maximum(self.kappa, reach)
        point = best = _Interior(start, start, slack, slack, centre)
        first_gap, best_miss = point.gap, np.inf
        for _ in range(MAX_ITERATIONS):
            residuals = self._residuals(point)
            miss = max(point.gap / first_gap, residuals.largest / reach)
            if miss >= best_miss and miss < 1e-4:  # rounding
                break
            best_miss, best = miss, point
            if miss <= GAP_TOLERANCE:
                break
            step = self._step(point, residuals)
            point = point.moved(step, STEP_SHARE * point.longest(step))
        return best

    def _residuals(self, point: _Interior) -> _Residuals:
        force = np.einsum("gcd,gd->gc", self.problem.hessian, point.x)
        force = force - self.problem.linear + self.size * point.centre
        return _Residuals(self.kappa + force - point.slack_p, self.kappa - force - point.slack_q)

    def _step(self, point: _Interior, residuals: _Residuals) -> _Interior:
        """Predict, then correct with as much centring as the prediction was short."""
        weight = point.p / point.slack_p + point.q / point.slack_q
        rotation = self.rotation
        blocks = self.curved + np.einsum("ce,gc,cd->ged", rotation, 1 / weight, rotation)
        coupled = _Coupled(blocks, _inverse(blocks), self.problem.size)
        zero = np.zeros_like(point.p)
        step, goal = _Interior(zero, zero, zero, zero, np.zeros_like(point.centre)), 0.0
        for _ in ("predictor", "corrector"):
            t_p = goal - point.p * point.slack_p - step.p * step.slack_p - point.p * residuals.p
            t_q = goal - point.q * point.slack_q - step.q * step.slack_q - point.q * residuals.q
            wanted = (t_p / point.slack_p - t_q / point.slack_q) / weight
            dx, dc = coupled.solve(wanted @ rotation, -(self.problem.size @ point.x) @ rotation)
            dx, dc = dx @ rotation.T, rotation @ dc
            change = np.einsum("gcd,gd->gc", self.problem.hessian, dx) + self.size * dc
            step = _Interior(
                p=(t_p - point.p * change) / point.slack_p,
                q=(t_q + point.q * change) / point.slack_q,
                slack_p=change + residuals.p,
                slack_q=residuals.q - change,
                centre=dc,
            )
            after = point.moved(step, point.longest(step)).gap
            goal = point.gap * min(after / point.gap, 1.0) ** 3
        return step


def _rebalanced(problem: BlockQuadratic, x: Array) -> Array:
    """Meet Σ n_g x_g = 0, which zeros have broken, in proportion to the others; zeros stay."""
    missing, weight = problem.size @ x, problem.size @ np.abs(x)
    return np.asarray(x - np.abs(x) * (missing / np.maximum(weight, MIN_CURVATURE)))


def _with_exact_signs(
    problem: BlockQuadratic, kappa: Array, x: Array, sign: Array, free: float = 0.0
) -> Array | None:
    """Solve for given signs, and correct those that contradict the solution, until none does.

    Where all classes of some groups are active, their forces alone tell the sum of the centre, and
    what their classes move alike meets Σ n_g x_g = 0; ``free`` is as in :func:`_active_inverse`.
    """
    size = problem.size[:, None]
    for _ in range(MAX_CORRECTIONS):
        active = sign != 0
        start = np.where(active, x, 0.0)
        force = np.einsum("gcd,gd->gc", problem.hessian, start) - problem.linear
        coupled = _Coupled(
            problem.hessian, _active_inverse(problem.hessian, active, free), problem.size
        )
        wanted = np.where(active, -force - kappa * sign, 0.0)
        dx, centre = coupled.solve(wanted, -(problem.size @ start), active)
        x = np.where(active, start + dx, 0.0)
        force = np.einsum("gcd,gd->gc", problem.hessian, x) - problem.linear + size * centre
        wrong = active & (x * sign < 0)
        outside = ~active & (np.abs(force) > kappa * (1 + 1e-9))
        # The forces of a row sum to 0: its signs may contradict each other, if none of them is 0.
        unsolved = (np.abs(np.where(active, force + kappa * sign, 0.0)) > 1e-6 * kappa).any(1)
        if not (wrong | outside).any() and not unsolved.any():
            return x
        sign = np.where(wrong, 0.0, np.where(outside, -np.sign(force), sign))
        smallest = np.abs(np.where(active, start, np.inf)).argmin(1)
        sign[unsolved, smallest[unsolved]] = 0.0
    return None


def _active_inverse(hessian: Array, active: NDArray[np.bool_], free: float = 0.0) -> Array:
    """Pseudo-inverses of the active entries of each block.

    Where all are active, nothing curves what they move alike: its inverse is taken to be ``free``.
    """
    held = active & (np.einsum("gcc->gc", hessian) > FLAT)
    blocks = np.where(held[:, :, None] & held[:, None], hessian, 0.0)
    root = np.sqrt(np.where(held, np.einsum("gcc->gc", blocks), 1.0))
    outer = root[:, :, None] * root[:, None]
    values, vectors = np.linalg.eigh(blocks / outer)
    keep = values > 1e-12
    reciprocal = np.where(keep, 1 / np.where(keep, values, 1.0), 0.0)
    inverse = np.einsum("gcd,gd,ged->gce", vectors, reciprocal, vectors) / outer
    # Where all classes are active, the same number may be added to all: ``free`` of it, else none.
    share = np.where(active.all(1, keepdims=True) & held, 1.0, 0.0)
    mean = share[:, :, None] * share[:, None] / np.maximum(share.sum(1), 1.0)[:, None, None]
    centred = np.eye(hessian.shape[1]) - mean
    return np.asarray(centred @ inverse @ centred + free * mean)


def block_pseudo_solve(problem: BlockQuadratic, active: NDArray[np.bool_]) -> Array:
    """Solve for the active entries, and 0 for others; directions without curvature do not move."""
    inverse = _active_inverse(problem.hessian, active)
    coupled = _Coupled(problem.hessian, inverse, problem.size)
    x, _ = coupled.solve_once(problem.linear, np.zeros(problem.linear.shape[1]))
    return x

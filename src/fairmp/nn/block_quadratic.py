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
    r"""The minimum with :math:`\sum_g \mathrm{penalty}_g \|x_g\|_1` added; exact zeros included.

    An interior-point method for x = p − q, with p, q ≥ 0 and slacks κ ± (Hx − b + nc) of the
    penalty κ.
    """
    scaled, unit = problem.in_units(), problem.unit
    hessian, size = scaled.hessian, scaled.size[:, None]
    rotation = _rotation(hessian.shape[1])
    curved = rotation.T @ hessian @ rotation
    curved[:, 0] = curved[:, :, 0] = 0.0
    kappa = (penalty / unit)[:, None] * np.ones_like(scaled.linear)
    centre = (size * scaled.linear).sum(0) / (size**2).sum()
    pull = scaled.linear - size * centre
    reach = max(float(np.abs(pull).max()), 1e-100)
    p = q = np.full_like(kappa, reach)
    s_p = s_q = np.maximum(kappa, reach)
    first_gap, best_miss, best = float((p * s_p).mean()), np.inf, (p, q, s_p, s_q)
    for _ in range(MAX_ITERATIONS):
        x = p - q
        force = np.einsum("gcd,gd->gc", hessian, x) - scaled.linear + size * centre
        r_p, r_q = kappa + force - s_p, kappa - force - s_q
        gap = float((p * s_p + q * s_q).mean()) / 2
        infeasible = max(float(np.abs(r_p).max()), float(np.abs(r_q).max())) / reach
        miss = max(gap / first_gap, infeasible)
        if miss >= best_miss and miss < 1e-4:  # rounding
            break
        best_miss, best = miss, (p, q, s_p, s_q)
        if miss <= GAP_TOLERANCE:
            break
        weight = p / s_p + q / s_q
        blocks = curved + np.einsum("ce,gc,cd->ged", rotation, 1 / weight, rotation)
        coupled = _Coupled(blocks, _inverse(blocks), scaled.size)
        # Predictor, then a corrector that is centred as far as the predictor was short.
        dp = dq = ds_p = ds_q = np.zeros_like(p)
        goal = 0.0
        for _ in ("predictor", "corrector"):
            t_p = goal - p * s_p - dp * ds_p - p * r_p
            t_q = goal - q * s_q - dq * ds_q - q * r_q
            rhs = (t_p / s_p - t_q / s_q) / weight
            dx, dc = coupled.solve(rhs @ rotation, -(scaled.size @ x) @ rotation)
            dx, dc = dx @ rotation.T, rotation @ dc
            change = np.einsum("gcd,gd->gc", hessian, dx) + size * dc
            ds_p, ds_q = change + r_p, r_q - change
            dp, dq = (t_p - p * change) / s_p, (t_q + q * change) / s_q
            length = _step_length((p, dp), (q, dq), (s_p, ds_p), (s_q, ds_q))
            after = (p + length * dp) * (s_p + length * ds_p)
            after += (q + length * dq) * (s_q + length * ds_q)
            goal = gap * min(float(after.mean()) / 2 / gap, 1.0) ** 3
        length *= STEP_SHARE
        p, q, centre = p + length * dp, q + length * dq, centre + length * dc
        s_p, s_q = s_p + length * ds_p, s_q + length * ds_q
    p, q, s_p, s_q = best
    # Of each pair, either the number or its slack is 0.
    reach = max(float(np.abs(p - q).max()), 1e-300)
    above, below = p / reach > s_p / kappa, q / reach > s_q / kappa
    sign = above.astype(np.float64) - below
    x = np.where(sign == 0, 0.0, p - q)
    exact = _with_exact_signs(scaled, kappa, x, sign)
    if exact is None:
        exact = _with_exact_signs(scaled, kappa, p - q, sign, FREE)
    return (_rebalanced(scaled, x) if exact is None else exact) / unit[:, None]


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


def _step_length(*pairs: tuple[Array, Array]) -> float:
    """How far all numbers can move along their steps and stay positive, at most 1."""
    length = 1.0
    for value, step in pairs:
        falling = step < 0
        if falling.any():
            length = min(length, float((value[falling] / -step[falling]).min()))
    return length


def block_pseudo_solve(problem: BlockQuadratic, active: NDArray[np.bool_]) -> Array:
    """Solve for the active entries, and 0 for others; directions without curvature do not move."""
    inverse = _active_inverse(problem.hessian, active)
    coupled = _Coupled(problem.hessian, inverse, problem.size)
    x, _ = coupled.solve_once(problem.linear, np.zeros(problem.linear.shape[1]))
    return x

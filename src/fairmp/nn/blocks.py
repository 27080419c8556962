r"""The dual of many groups, in time linear in nodes and groups.

Where nodes have one group each, the groups interact through the common centre c of their means
alone. With :math:`a_g = u_g/n_g` the shift of a group of :math:`n_g` nodes, the dual is

.. math::
    \min_a \sum_g \Big( \sum_{i \in g} \log \sum_c e^{Z_{ic} - a_{gc}}
        + \tfrac{t}{2} n_g \|a_g\|_1 \Big) \quad \text{s.t.} \quad \sum_g n_g a_g = 0 .

**Two classes** (:func:`solve_windows`): for a window [l, l+t], each group whose rate lies outside
it is shifted to its nearer end, which is a root of its own, found for all groups at once. The
window is the one at which the shifts balance, :math:`\sum_g n_g a_g = 0`, a root in l. Every window
is feasible, whatever the logits.

**More classes** (:class:`BlockNewton`): Newton's method as for a few groups, whose Hessian has a
block of C² numbers per group.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fairmp.kernels.root import MAX_PASSES, SATURATION_LOGIT, Root, next_root
from fairmp.nn.block_quadratic import (
    BlockQuadratic,
    block_minimum,
    block_pseudo_solve,
    penalised_block_minimum,
    with_ridge,
)
from fairmp.nn.newton import DualProblem, DualSolution, Newton, Point
from fairmp.nn.quadratic import Array

Mask = NDArray[np.bool_]

MAX_BLOCK_PASSES = 150.0  # of Newton's method; then full parity is scaled back
BALANCE = 1e-10  # of the mean shift, in logits, at which a window is accepted
STEEP = 1e12  # slope of the balance beyond which a Newton step says nothing


class BlockNewton(Newton):
    """Newton steps from one block of the Hessian per group."""

    max_passes = MAX_BLOCK_PASSES

    def feasible(self, point: Point, tol: float) -> Point:
        """Go from full parity back towards the point, which is close to the solution."""
        return self.scale_back_parity(self._balanced(point.v), tol)

    def run(self, start: Array, tol: float) -> Point:
        """As for a few groups; rounding has no part in Σ n_g v_g = 0."""
        point = super().run(start, tol)
        balanced = self._at(self._balanced(point.v), 1.0)
        if not self.target:
            return balanced
        # The point itself has exact zeros, which tell the gaps that are held.
        return replace(point, residual=max(point.residual, self._excess(balanced)))

    def _balanced(self, v: Array) -> Array:
        size, rows = 1 / self.problem.scale, v.reshape(self.shape)
        return np.asarray((rows - size @ rows / size.sum()).ravel())

    def _direction(self, point: Point) -> Array:
        shape, size = self.shape, 1 / self.problem.scale
        v = point.v.reshape(shape)
        sums = point.moments.gradient.reshape(shape)
        sums = sums - size[:, None] * (sums.sum(0) / size.sum())  # the common centre drops out
        rates = sums / size[:, None]
        middle = (rates.max(0) + rates.min(0)) / 2
        outside = np.maximum(np.abs(rates - middle).max(1) - self.target / 2, point.residual)
        hessian = with_ridge(point.moments.hessian, size * outside, size, self.width)
        try:
            if self.target == 0:
                return block_minimum(BlockQuadratic(hessian, sums, size), -(size @ v)).ravel()
            pull = np.einsum("gcd,gd->gc", hessian, v) + sums
            quadratic = BlockQuadratic(hessian, pull, size)
            minimum = penalised_block_minimum(quadratic, self.penalty.reshape(shape)[:, 0])
        except np.linalg.LinAlgError:
            return np.zeros_like(point.v)
        return np.asarray((minimum - v).ravel())


def implicit_block_gradient(dual: DualSolution, scale: Array, incoming: Array) -> Array:
    """As :func:`~fairmp.nn.newton.implicit_gradient`, for a Hessian in blocks (G'×C×C)."""
    mean = incoming.sum(1, keepdims=True) / incoming.shape[1]
    centred = (incoming - mean) / scale[:, None]
    return block_pseudo_solve(BlockQuadratic(dual.hessian, centred, 1 / scale), dual.active)


@dataclass(frozen=True)
class _Rates:
    """The rate of class 1 in each group at some shifts, and minus its derivative (G)."""

    rate: Array
    slope: Array


@dataclass(frozen=True)
class _Shifts:
    """Shifts of the margins of each group (G) at which rates are in a window, and their balance."""

    shift: Array
    balance: float  # Σ n_g a_g / n
    slope: float  # minus its derivative by the window's lower end


class _Windows:
    """The rates of two classes in windows."""

    def __init__(self, problem: DualProblem, width: float, target: float, tol: float) -> None:
        self.problem, self.target, self.tol = problem, target, tol
        self.size = 1 / problem.scale
        self.bound = width + SATURATION_LOGIT
        self.passes = 0
        self.plain = self.rates_at(np.zeros_like(self.size)).rate

    def rates_at(self, shift: Array) -> _Rates:
        """Pass over the nodes."""
        self.passes += 1
        v = np.stack([-shift / 2, shift / 2], 1)
        moments = self.problem.moments(v, 1.0)
        rate = moments.gradient.reshape(v.shape)[:, 1] / self.size
        return _Rates(rate, moments.hessian[:, 1, 1] / self.size)

    def wanted(self, low: float) -> tuple[Array, Mask]:
        """The rate each group is shifted to, and which ones are."""
        wanted = np.clip(self.plain, low, low + self.target)
        return wanted, wanted != self.plain

    def shifts(self, low: float, start: Array, least: Array, most: Array) -> _Shifts:
        """The shifts that move all rates into [low, low+target], between two known ones."""
        wanted, moved = self.wanted(low)
        shift = np.where(moved, np.clip(start, least, most), 0.0)
        least, most = np.where(moved, least, 0.0), np.where(moved, most, 0.0)
        last_miss = np.full_like(shift, np.inf)
        for _ in range(MAX_PASSES):
            rates = self.rates_at(shift)
            excess = np.where(moved, rates.rate - wanted, 0.0)
            miss = np.abs(excess)
            # The rate falls with the shift.
            least, most = np.where(excess > 0, shift, least), np.where(excess < 0, shift, most)
            middle = (least + most) / 2
            done = (miss <= self.tol / 4) | (middle <= least) | (middle >= most)
            if done.all():
                break
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                step = shift + excess / rates.slope
            good = (least < step) & (step < most) & (miss < last_miss / 2)
            shift = np.where(done, shift, np.where(good, step, middle))
            last_miss = miss
        with np.errstate(divide="ignore"):
            slope = float((self.size[moved] / rates.slope[moved]).sum() / self.size.sum())
        return _Shifts(shift, float(self.size @ shift / self.size.sum()), slope)

    def balanced(self, start: Array) -> Array:
        """The shifts of the window at which they balance."""
        spread = float(np.ptp(self.plain)) - self.target
        least, most = np.full_like(self.size, -self.bound), np.full_like(self.size, self.bound)
        if spread <= 0:
            return np.zeros_like(self.size)
        low, high = float(self.plain.min()), float(self.plain.max()) - self.target
        mean = float(self.size @ self.plain / self.size.sum()) - self.target / 2
        root = Root(min(max(mean, low), high), low, high, np.inf, False)
        shift = start
        above: _Shifts | None = None
        below: _Shifts | None = None  # the last shifts whose balance is > 0 and < 0
        for _ in range(MAX_PASSES):
            # A higher window asks for smaller shifts.
            tried = self.shifts(root.w, shift, least, most)
            shift = tried.shift
            if tried.balance > 0:
                above, most = tried, shift
            else:
                below, least = tried, shift
            slope = tried.slope if tried.slope < STEEP else 0.0
            following = next_root(root, tried.balance, slope, 0.0, BALANCE)
            if following.done or following.high - following.low <= self.tol / 8:
                break
            root = following
        # At an end of the bracket that was never tried, a group may stop moving at once.
        above = above or self.shifts(low, shift, least, most)
        below = below or self.shifts(high, shift, least, most)
        if above.balance <= below.balance:
            return tried.shift
        # Shifts that balance, from those on both sides; rates are between theirs.
        share = above.balance / (above.balance - below.balance)
        return (1 - share) * above.shift + share * below.shift


def solve_windows(
    problem: DualProblem, start: Array, width: float, target: float, tol: float
) -> DualSolution:
    """The dual of two classes and many groups, from a first guess (G'×2)."""
    windows = _Windows(problem, width, target, tol)
    guess = (start[:, 1] - start[:, 0]) * problem.scale
    shift = windows.balanced(guess)
    v = np.stack([-shift / 2, shift / 2], 1)
    moments = problem.moments(v, 1.0)
    rate = moments.gradient.reshape(v.shape)[:, 1] * problem.scale
    return DualSolution(
        u=v / problem.scale[:, None],
        active=np.repeat((shift != 0)[:, None] | (target == 0), 2, 1),
        hessian=moments.hessian,
        constraints=np.zeros((v.size, 0)),
        residual=max(float(np.ptp(rate)) - target, 0.0),
        passes=windows.passes + 1,
    )


def solve_blocks(
    problem: DualProblem, start: Array, width: float, target: float, tol: float
) -> DualSolution:
    """The dual of many groups, from a first guess (G'×C)."""
    if problem.shape[1] == 2:
        return solve_windows(problem, start, width, target, tol)
    return BlockNewton(problem, target, width).solve(start, tol)

r"""A guarded Newton method for the dual of the projection onto parity.

Among all predictions :math:`Q` with :math:`|\Delta Q| \le t`, those closest to
:math:`P = \mathrm{softmax}(Z)` in Kullback-Leibler divergence, summed over the population, are
:math:`Q_i \propto P_i e^{-(\Delta^\top u)_i}`, where :math:`u` (G'×C) minimises the convex

.. math::
    \sum_i \log \sum_c e^{Z_{ic} - (\Delta^\top u)_{ic}} + t \|u\|_1 .

Its gradient is :math:`-\Delta Q` and its Hessian a few numbers wide, so a Newton step is one pass
over the nodes. With one gap and two classes it is a root of a decreasing function of one number,
kept in a bracket. Otherwise it is a proximal Newton method whose guards are a limit on how far
logits move in a pass, a line search, and, where logits lie far apart, a sequence of falling
temperatures. All of it is in float64, and about few numbers: who passes over the nodes, and where
they are, is left to a :class:`System`.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

MAX_PASSES = 200
MAX_STAGE = 50  # passes at one temperature
MAX_MOVE = 4.0  # logits move no further in one pass: beyond it the quadratic model is no guide
ACCEPTED = 1e-6  # residual beyond which the method is said not to have converged
RIDGE = 1e-10  # the least curvature taken seriously, in a row whose classes' sum to 1
LOOSE = 1e-4  # residual at which a temperature has done its work; at 1e-2 the last one may not end
FLAT = 1e-100  # curvature of what no longer moves; a step along it is long, and finite
WIDE = 32.0  # logits further apart than this are approached through temperatures


class Moments(NamedTuple):
    """What one pass over the nodes yields, at a dual v and a temperature."""

    value: float
    gradient: Array  # Σ δq, minus the derivative of the value (G'C)
    hessian: Array  # (G'C × G'C)


class OneGap(Protocol):
    """The nodes, as the method sees them where there is one gap between two classes.

    Rows of Δ are divided by ``scale`` (G'), their largest entries: the dual here is v = scale·u,
    and a gap is ``scale`` times what a pass yields.
    """

    scale: Array

    def gap(self, root: float) -> tuple[float, float]:
        """Pass over the nodes at v = (−root/2, root/2): the gap, and its fall with the root."""

    def width(self) -> float:
        """How far apart the logits of a node in the population lie at most."""


class System(OneGap, Protocol):
    """The nodes, as the method sees them for any number of gaps and classes."""

    shape: tuple[int, int]

    def moments(self, v: Array, temperature: float) -> Moments:
        """Pass over the nodes at the dual v (G'×C)."""

    def gram(self) -> Array:
        """ΔΔᵀ, of the scaled rows (G'×G')."""


class Dual(NamedTuple):
    """Where the method ended.

    Attributes:
        u: the dual (G'×C, rows that sum to 0).
        active: which gaps are held at the target (G'×C).
        hessian: of the scaled problem, there (G'C×G'C).
        residual: how far the gaps are from what optimality asks.
        passes: over the nodes.
    """

    u: Array
    active: NDArray[np.bool_]
    hessian: Array
    residual: float
    passes: int


def solve(system: System, start: Array, target: float, tol: float) -> Dual:
    """Find the dual, from a guess of it (G'×C)."""
    if system.shape == (1, 2):
        return solve_one(system, start, target, tol)
    scale = system.scale[:, None]
    newton = _Newton(system, target)
    point = newton.run((start * scale).ravel(), tol)
    held = (point.v != 0) | (target == 0)
    if point.residual > max(tol, ACCEPTED):
        point, held = newton.retreat(tol), np.zeros_like(held)
    u = point.v.reshape(system.shape) / scale
    return Dual(
        u - u.mean(1, keepdims=True),
        held.reshape(system.shape),
        point.moments.hessian,
        point.residual,
        newton.passes,
    )


def solve_one(system: OneGap, start: Array, target: float, tol: float) -> Dual:
    """Find the dual of one gap between two classes, from a guess of it (1×2)."""
    scale = float(system.scale[0])
    guess = scale * float(start[0, 1] - start[0, 0])
    root, curve, residual, passes = _bracketed(system, guess, target, tol)
    half = root / 2 / scale
    active = np.full((1, 2), root != 0 or target == 0)
    hessian = np.array([[curve, -curve], [-curve, curve]])
    return Dual(np.array([[-half, half]]), active, hessian, residual, passes)


def respond(dual: Dual, scale: Array, incoming: Array) -> Array:
    r"""Differentiate: held gaps stay held, so :math:`H_{AA} \, du_A = (\Delta\, dP)_A`.

    Args:
        dual: a solution.
        scale: of its system.
        incoming: the gradient of a loss in u (G'×C).

    Returns:
        w (G'×C) of the scaled problem: the loss's gradient in the logits is
        :math:`Q \odot (W - \mathrm{rowsum}(W \odot Q))` with :math:`W = \Delta^\top w`.
    """
    # Rows of the dual sum to 0 by choice: the part of the gradient that asks otherwise is void.
    incoming = (incoming - incoming.mean(1, keepdims=True)) / scale[:, None]
    held = dual.active.ravel()
    if held.size == 2 and held.all() and dual.hessian[1, 1] > 0:
        return incoming / (2 * dual.hessian[1, 1])
    w = np.zeros(held.size)
    if held.any():
        w[held] = _pseudo_solve(dual.hessian[np.ix_(held, held)], incoming.ravel()[held])
    return w.reshape(incoming.shape)


def _bracketed(
    system: OneGap, root: float, target: float, tol: float
) -> tuple[float, float, float, int]:
    """Find w with gap(w) = Σ δσ(margin − δw) at ±target, or 0 if the gap there is small enough."""
    scale = float(system.scale[0])
    low, high = -math.inf, math.inf
    before, passes, bounded = math.inf, 0, False
    while True:
        passes += 1
        gap, curve = system.gap(root)
        gap, slope = scale * gap, scale * curve
        if root == 0 and abs(gap) <= target:
            return root, curve, 0.0, passes
        level = target if root > 0 or (root == 0 and gap > 0) else -target
        excess = gap - level
        if abs(excess) <= tol:
            return root, curve, abs(excess), passes
        if excess > 0:
            low = root
        else:
            high = root
        step = root + excess / slope if slope > 0 else math.inf
        halved = abs(excess) < before / 2
        if not bounded and not (halved and low < step < high and abs(step - root) <= MAX_MOVE):
            # By this far every node of the smaller group has changed sides, and the gap with it.
            # Small steps that get on never ask.
            far, bounded = system.width() + 45.0, True
            low, high = max(low, -far), min(high, far)
        # A step that left the bracket, or that did not halve the excess, is no better than half.
        if not (halved and low < step < high):
            step = (low + high) / 2
            if step in (low, high):
                return root, curve, abs(excess), passes
        if root * step < 0 and low < 0 < high:
            step = 0.0
        if step == root or passes >= MAX_PASSES:
            return root, curve, abs(excess), passes
        before, root = abs(excess), step


class _Point(NamedTuple):
    v: Array
    moments: Moments
    objective: float
    residual: float


class _Newton:
    """Proximal Newton with a line search, at a temperature that falls to 1."""

    def __init__(self, system: System, target: float) -> None:
        self.system, self.target, self.shape = system, target, system.shape
        classes = self.shape[1]
        self.scale = system.scale.repeat(classes)
        self.penalty = target / self.scale
        self.basis = np.kron(_span(system.gram()), _span(np.eye(classes) - 1 / classes))
        self.passes = 0

    def run(self, start: Array, tol: float) -> _Point:
        width = self.system.width()
        if width <= WIDE or start.any():
            point = self._descend(start, 1.0, tol)
            if point.residual <= tol:
                return point
        temperature, v = max(width / 8, 1.0), np.zeros_like(start)
        while temperature > 1:
            v = self._descend(v, temperature, LOOSE).v
            temperature /= 2
        return self._descend(v, 1.0, tol)

    def retreat(self, tol: float) -> _Point:
        """Find full parity, then walk back towards no correction as far as the target allows.

        For logits so far apart that the quadratic model says nothing about the target's border.
        The result is feasible, and not quite the closest.
        """
        parity = _Newton(self.system, 0.0)
        v = parity.run(np.zeros_like(self.scale), tol).v
        low, high = 0.0, 1.0
        for _ in range(40):
            middle = (low + high) / 2
            excess = np.abs(self._at(middle * v, 1.0).moments.gradient * self.scale).max()
            low, high = (low, middle) if excess <= self.target else (middle, high)
        self.passes += parity.passes
        point = self._at(high * v, 1.0)
        excess = np.abs(point.moments.gradient * self.scale).max() - self.target
        return point._replace(residual=max(float(excess), 0.0))

    def _at(self, v: Array, temperature: float) -> _Point:
        self.passes += 1
        moments = self.system.moments(v.reshape(self.shape), temperature)
        gap = moments.gradient * self.scale
        residual = np.where(
            v != 0,
            np.abs(gap - self.target * np.sign(v)),
            np.maximum(np.abs(gap) - self.target, 0),
        )
        objective = moments.value + float(self.penalty @ np.abs(v))
        return _Point(v, moments, objective, float(residual.max()))

    def _descend(self, v: Array, temperature: float, tol: float) -> _Point:
        point = self._at(v, temperature)
        limit = self.passes + MAX_STAGE
        before: list[float] = []
        while point.residual > tol and self.passes < limit:
            before.append(point.residual)
            if point.residual < ACCEPTED and len(before) > 4 and point.residual > before[-4] / 2:
                break  # as good as rounding lets it be
            step = self._direction(point)
            furthest = np.abs(step.reshape(self.shape)).sum(0).max()
            if furthest == 0:
                break
            length = min(1.0, MAX_MOVE * temperature / furthest)
            predicted = -point.moments.gradient @ step + self.penalty @ (
                np.abs(point.v + step) - np.abs(point.v)
            )
            while True:
                candidate = self._at(point.v + length * step, temperature)
                enough = point.objective + 1e-4 * length * predicted
                # Close to the solution rounding hides the descent, and the residual tells.
                if candidate.objective <= enough or candidate.residual < 0.9 * point.residual:
                    point = candidate
                    break
                length /= 2
                if length < 1e-9 or self.passes >= limit:
                    return point
        return point

    def _direction(self, point: _Point) -> Array:
        # A row a unit: groups differ in size. Within a row a class that is hardly ever predicted
        # has next to no curvature, and RIDGE keeps it from spending the limit on the others' move.
        curvature = np.diag(point.moments.hessian).reshape(self.shape).sum(1)
        unit = np.sqrt(np.maximum(curvature, FLAT)).repeat(self.shape[1])
        hessian = point.moments.hessian / np.outer(unit, unit)
        gradient = point.moments.gradient / unit
        if self.target == 0:
            ridge = RIDGE * np.eye(gradient.size)
            return np.asarray(np.linalg.solve(hessian + ridge, gradient)) / unit
        linear = hessian @ (point.v * unit) + gradient
        solution = _l1_quadratic(hessian, linear, self.penalty / unit, self.basis / unit[:, None])
        return solution / unit - point.v


def _l1_quadratic(h: Array, b: Array, penalty: Array, basis: Array) -> Array:
    """Minimise ½xᵀHx − bᵀx + Σ penalty·|x|, for H and b in the span of the basis.

    H leaves some directions undetermined (a constant added to every class, a dual that weighs
    groups by their size), so the problem is solved from its other side, where it is strictly
    convex: the gap b − Hx = Bγ nearest to b, in the metric H⁻¹, that no entry of which exceeds its
    penalty. An interior-point method, started at γ = 0, finds it; x are its multipliers.
    """
    basis, _ = np.linalg.qr(basis)
    values, vectors = np.linalg.eigh(basis.T @ h @ basis)
    values = np.maximum(values, RIDGE)
    # In the coordinates of H's eigenvectors, scaled by its roots, the metric is the identity.
    basis = (basis @ vectors) * np.sqrt(values)
    aim = np.linalg.lstsq(basis, b, rcond=None)[0]
    unit = max(float(np.abs(aim).max()), 1e-300)
    aim, bound = aim / unit, penalty / unit
    gamma = np.zeros_like(aim)
    upper, lower = bound.copy(), bound.copy()
    x_upper = x_lower = np.full_like(bound, 1.0 / max(1.0, float(np.abs(basis).max())))
    for _ in range(100):
        mu = float(x_upper @ upper + x_lower @ lower) / (2 * bound.size)
        off = gamma - aim + basis.T @ (x_upper - x_lower)
        if mu <= 1e-15:
            break
        weight = x_upper / upper + x_lower / lower
        centre = 0.05 * mu
        pull = (centre / upper - x_upper) - (centre / lower - x_lower)
        system = np.eye(gamma.size) + (basis.T * weight) @ basis
        if not np.isfinite(system).all():
            break
        d_gamma = np.linalg.lstsq(system, -off - basis.T @ pull, rcond=None)[0]
        move = basis @ d_gamma
        d_x_upper = centre / upper - x_upper + x_upper / upper * move
        d_x_lower = centre / lower - x_lower - x_lower / lower * move
        shrink = max(
            float((-d_x_upper / x_upper).max()),
            float((-d_x_lower / x_lower).max()),
            float((move / upper).max()),
            float((-move / lower).max()),
        )
        length = min(1.0, 0.99 / max(shrink, 1e-300))
        gamma = gamma + length * d_gamma
        upper, lower = upper - length * move, lower + length * move
        x_upper, x_lower = x_upper + length * d_x_upper, x_lower + length * d_x_lower
    held = (x_upper * bound > upper) | (x_lower * bound > lower)
    return np.where(held, x_upper - x_lower, 0.0) * unit


def _pseudo_solve(h: Array, b: Array) -> Array:
    """Solve Hx = b for a symmetric H that may leave some directions undetermined."""
    # Equal diagonals first: a class that is hardly ever predicted is small, not undetermined.
    root = np.sqrt(np.maximum(np.diag(h), 1e-300))
    values, vectors = np.linalg.eigh(h / np.outer(root, root))
    keep = values > 1e-13 * max(float(values.max()), 0.0)
    inverse = np.where(keep, 1 / np.where(keep, values, 1.0), 0.0)
    return (vectors @ (inverse * (vectors.T @ (b / root)))) / root


def _span(gram: Array) -> Array:
    """Orthonormal columns that span the range of a symmetric matrix."""
    values, vectors = np.linalg.eigh(gram)
    return vectors[:, values > 1e-10 * values.max()]

r"""Newton's method for the dual of the projection.

The predictions within a gap of t closest to :math:`P = \mathrm{softmax}(Z)` in Kullback-Leibler
divergence, summed over the population, are :math:`Q_i \propto P_i e^{-(\Delta^\top u)_i}`, where
:math:`u` (G'×C) minimises the convex

.. math::
    \sum_i \log \sum_c e^{Z_{ic} - (\Delta^\top u)_{ic}} + \sum_g t_g \|u_g\|_1 .

A row on its own has :math:`t_g = t`, which bounds its gap by t. The rows of a *block* have
:math:`t_g = t/2` and, class by class, :math:`\sum_g u_g = 0`: their gaps all lie within t/2 of a
common centre, so that no two of them are more than t apart.

Its gradient is :math:`-\Delta Q` and its Hessian has (G'C)² entries, so a Newton step is one pass
over the nodes. It is a proximal Newton method, guarded by a line search and, where logits lie far
apart, by a sequence of falling temperatures. Everything here is in float64; the passes over the
nodes are those of a :class:`DualProblem`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import permutations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairmp.kernels.root import SATURATION_LOGIT
from fairmp.nn.quadratic import RIDGE, Array, complement, penalised_minimum, pseudo_solve, span

MAX_STAGE_PASSES = 50  # at one temperature; more only cost time
MAX_HALVINGS = 10  # of a step; more only cost time
MAX_RESIDUAL = 1e-6  # above it the method has not converged
OBJECTIVE_ROUNDING = 1e-9  # relative; of a sum over nodes
STAGE_RESIDUAL = 1e-4  # at which a temperature is left; at 1e-2 the last one may not converge
STAGE_RANGE = 8.0  # of logits, in units of the first temperature; less only costs time
MIN_CURVATURE = 1e-100  # of a row that no longer moves: a step along it is long, and finite
BISECTIONS = 40  # of a share in [0, 1], to 1e-12


class Moments(NamedTuple):
    """The dual objective without its penalty, at a dual v and a temperature."""

    value: float
    gradient: Array  # Σ δq, minus the derivative of the value (G'C)
    hessian: Array  # (G'C × G'C, or G'×C×C where rows do not interact)


class DualProblem(ABC):
    """The passes over the nodes of a dual problem.

    Rows of Δ are divided by their largest entries: the dual here is v = scale·u, and a gap is
    ``scale`` times the result of a pass.

    Attributes:
        scale: the largest entries of the rows of Δ (G').
        shape: G'×C.
        blocks: sizes of the blocks of rows.
    """

    scale: Array
    shape: tuple[int, int]
    blocks: tuple[int, ...]

    @abstractmethod
    def moments(self, v: Array, temperature: float) -> Moments:
        """Pass over the nodes at the dual v (G'×C)."""

    @abstractmethod
    def gram(self) -> Array:
        """ΔΔᵀ, of the scaled rows (G'×G')."""


@dataclass(frozen=True)
class DualSolution:
    """The dual at the solution.

    Attributes:
        u: rows that sum to 0 (G'×C).
        active: gaps held at the target (G'×C).
        hessian: of the scaled problem (G'C×G'C, or one block per row, G'×C×C).
        constraints: columns that the scaled dual is orthogonal to (G'C×m).
        residual: by how much the gaps violate the optimality conditions.
        passes: over the nodes.
    """

    u: Array
    active: NDArray[np.bool_]
    hessian: Array
    constraints: Array
    residual: float
    passes: int


def solve(
    problem: DualProblem, start: Array, width: float, target: float, tol: float
) -> DualSolution:
    """Find the dual, from a first guess (G'×C), for logits whose largest range is ``width``."""
    return DenseNewton(problem, target, width).solve(start, tol)


def implicit_gradient(dual: DualSolution, scale: Array, incoming: Array) -> Array:
    r"""Differentiate the dual implicitly: held gaps stay held, :math:`H_{AA} du_A = (\Delta dP)_A`.

    From a loss's gradient in u (G'×C) to w (G'×C) of the scaled problem: its gradient in the logits
    is :math:`Q \odot (W - \mathrm{rowsum}(W \odot Q))` with :math:`W = \Delta^\top w`.
    """
    # Rows of u sum to 0 by choice, so the mean of the gradient over classes has no meaning.
    mean = incoming.sum(1, keepdims=True) / incoming.shape[1]
    centred = (incoming - mean) / scale[:, None]
    # Along the constraints: held gaps of a block stay where they are relative to each other.
    free = complement(dual.constraints, dual.active.ravel())
    w = free @ pseudo_solve(free.T @ dual.hessian @ free, free.T @ centred.ravel())
    return np.asarray(w.reshape(centred.shape))


@dataclass(frozen=True)
class Point:
    """A dual of the scaled problem, and what a pass over the nodes finds there."""

    v: Array
    moments: Moments
    objective: float
    residual: float


class Newton(ABC):
    """Proximal Newton with a line search, at a temperature that falls to 1."""

    max_passes: float = math.inf  # after which full parity is scaled back

    def __init__(self, problem: DualProblem, target: float, width: float) -> None:
        self.problem, self.target, self.width = problem, target, width
        self.shape = problem.shape
        classes = self.shape[1]
        self.scale = problem.scale.repeat(classes)
        ends = np.cumsum(problem.blocks)
        self.blocks = [
            slice(end - size, end) for end, size in zip(ends, problem.blocks, strict=True)
        ]
        share = np.repeat([1.0 if size == 1 else 0.5 for size in problem.blocks], problem.blocks)
        self.penalty = target * share.repeat(classes) / self.scale
        self.constraints = np.zeros((self.scale.size, 0))
        self.passes = 0

    @abstractmethod
    def _direction(self, point: Point) -> Array:
        """From a point to the minimum of the quadratic model with its penalty."""

    def solve(self, start: Array, tol: float) -> DualSolution:
        """Find the dual, from a first guess (G'×C)."""
        scale = self.problem.scale[:, None]
        point = self.run((start * scale).ravel(), tol)
        active = (point.v != 0) | (self.target == 0)
        if point.residual > max(tol, MAX_RESIDUAL):
            point, active = self.feasible(point, tol), np.zeros_like(active)
        u = point.v.reshape(self.shape) / scale
        return DualSolution(
            u=u - u.mean(1, keepdims=True),
            active=active.reshape(self.shape),
            hessian=point.moments.hessian,
            constraints=self.constraints,
            residual=point.residual,
            passes=self.passes,
        )

    def run(self, start: Array, tol: float) -> Point:
        """Descend from a first guess; without one, or if that fails, from high temperatures."""
        if start.any():
            point = self._descend(start, 1.0, tol)
            if point.residual <= tol:
                return point
        temperature, v = max(self.width / STAGE_RANGE, 1.0), np.zeros_like(start)
        while temperature > 1 and self.passes < self.max_passes:
            v = self._descend(v, temperature, STAGE_RESIDUAL).v
            temperature /= 2
        return self._descend(v, 1.0, tol)

    def feasible(self, point: Point, tol: float) -> Point:
        """A point within the target, from one that is not; see :meth:`scale_back_parity`."""
        return self.scale_back_parity(np.zeros_like(point.v), tol)

    def scale_back_parity(self, start: Array, tol: float) -> Point:
        """Find full parity, then go back towards ``start`` as far as the target allows.

        For logits so far apart that the quadratic model says nothing about where the target is met.
        The result is feasible, and not quite the closest.
        """
        parity = type(self)(self.problem, 0.0, self.width)
        v = parity.run(np.zeros_like(self.scale), tol).v - start
        low, high = 0.0, 1.0
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            excess = self._excess(self._at(start + middle * v, 1.0))
            low, high = (low, middle) if excess <= 0 else (middle, high)
        self.passes += parity.passes
        point = self._at(start + high * v, 1.0)
        return replace(point, residual=max(self._excess(point), 0.0))

    def _excess(self, point: Point) -> float:
        """By how much the largest gap exceeds the target."""
        gap = (point.moments.gradient * self.scale).reshape(self.shape)
        parts = [gap[block] for block in self.blocks]
        sizes = [np.abs(part) if len(part) == 1 else np.ptp(part, axis=0) for part in parts]
        return float(max(size.max() for size in sizes)) - self.target

    def _at(self, v: Array, temperature: float) -> Point:
        self.passes += 1
        moments = self.problem.moments(v.reshape(self.shape), temperature)
        objective = moments.value + float(self.penalty @ np.abs(v))
        return Point(v, moments, objective, self._residual(v, moments))

    def _residual(self, v: Array, moments: Moments) -> float:
        """By how much the gaps violate the optimality conditions."""
        gap = (moments.gradient * self.scale).reshape(self.shape)
        sign = np.sign(v).reshape(self.shape)
        residual = 0.0
        for block in self.blocks:
            alone = block.stop - block.start == 1
            margin = self.target if alone else self.target / 2
            # The centres that each row allows: all rows need a common one, a row on its own 0.
            high = (gap[block] + np.where(sign[block] > 0, -margin, margin)).min(0)
            low = (gap[block] + np.where(sign[block] < 0, margin, -margin)).max(0)
            apart = np.maximum(low, -high) if alone else np.maximum(low - high, 0)
            residual = max(residual, float(apart.max()))
        return residual

    def _descend(self, v: Array, temperature: float, tol: float) -> Point:
        """Take Newton steps at one temperature, until the residual is small or stalls."""
        point = self._at(v, temperature)
        limit = self.passes + MAX_STAGE_PASSES
        residuals: list[float] = []
        while point.residual > tol and self.passes < limit:
            residuals.append(point.residual)
            stalled = len(residuals) > 4 and point.residual > residuals[-4] / 2
            if point.residual < MAX_RESIDUAL and stalled:
                break  # as good as rounding allows
            candidate = self._line_search(point, temperature, limit)
            if candidate is None:
                break
            point = candidate
        return point

    def _line_search(self, point: Point, temperature: float, limit: int) -> Point | None:
        """Step along the Newton direction, as far as the objective falls; None if it never does."""
        step = self._direction(point)
        farthest = float(np.abs(step).max())
        if farthest == 0:
            return None
        # Farther than this every node of a group has changed sides; it saves halvings.
        length = min(1.0, (self.width + SATURATION_LOGIT) / farthest)
        rounding = OBJECTIVE_ROUNDING * abs(point.objective)
        for _ in range(MAX_HALVINGS):
            candidate = self._at(point.v + length * step, temperature)
            rise = candidate.objective - point.objective
            # Close to the solution rounding hides the descent, and the residual decides. Elsewhere
            # it must not: steps there and back may reduce it in turn.
            if rise <= 0 or (rise <= rounding and candidate.residual < 0.9 * point.residual):
                return candidate
            length /= 2
            if self.passes >= limit:
                break
        return None


class DenseNewton(Newton):
    """Newton steps from a dense Hessian, for a few rows."""

    def __init__(self, problem: DualProblem, target: float, width: float) -> None:
        super().__init__(problem, target, width)
        classes = self.shape[1]
        self.constraints = self._block_constraints()
        self.basis = np.kron(span(problem.gram()), span(np.eye(classes) - 1 / classes))

    @cached_property
    def moves(self) -> Array:
        """Elementary moves of the dual, each costing the target: u_g up, and u_h down in a block.

        That is Σ_g u_g = 0 and the penalty (t/2) Σ|u_g| of a block, t·|u_g| of a row on its own.
        """
        identity = np.eye(self.shape[0])
        columns = []
        for block in self.blocks:
            rows = identity[block]
            columns += (
                [*rows, *-rows] if len(rows) == 1 else [a - b for a, b in permutations(rows, 2)]
            )
        return np.kron(np.array(columns).T, np.eye(self.shape[1]))

    def _block_constraints(self) -> Array:
        """One column per class and block of several rows: Σ_g u_g = 0, in the scaled dual."""
        rows, classes = self.shape
        columns: list[Array] = [np.zeros((self.scale.size, 0))]
        for block in self.blocks:
            if block.stop - block.start > 1:
                weight = np.zeros((rows, 1))
                scale = self.problem.scale[block]
                weight[block, 0] = scale.max() / scale
                columns.append(np.asarray(np.kron(weight, np.eye(classes)), np.float64))
        return np.concatenate(columns, 1)

    def _direction(self, point: Point) -> Array:
        """From a point to the minimum of the quadratic model with its penalty."""
        # One unit per row, since groups differ in size. Within a row a class that is rarely
        # predicted has next to no curvature; RIDGE bounds what it moves.
        curvature = np.diag(point.moments.hessian).reshape(self.shape).sum(1)
        unit = np.sqrt(np.maximum(curvature, MIN_CURVATURE)).repeat(self.shape[1])
        hessian = point.moments.hessian / np.outer(unit, unit)
        gradient = point.moments.gradient / unit
        if self.target == 0:
            everything = np.ones(unit.size, dtype=bool)
            free = complement(self.constraints / unit[:, None], everything)
            hessian = free.T @ hessian @ free + RIDGE * np.eye(free.shape[1])
            return np.asarray(free @ np.linalg.solve(hessian, free.T @ gradient) / unit)
        try:
            minimum = penalised_minimum(
                hessian,
                linear=hessian @ (point.v * unit) + gradient,
                basis=self.basis / unit[:, None],
                moves=self.moves * (self.scale * unit)[:, None],
                penalty=self.target,
            )
        except RuntimeError:  # scipy's solver has given up
            return np.zeros_like(unit)
        return np.asarray(minimum / unit - point.v)

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
over the nodes. With one gap and two classes u is the root of a decreasing function of one number,
kept in a bracket. Otherwise it is found by a proximal Newton method, guarded by a limit on how far
logits move in a pass, a line search, and a sequence of falling temperatures where logits lie far
apart. Everything here is in float64; the passes over the nodes are those of a :class:`DualProblem`.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

MAX_STAGE_PASSES = 50  # at one temperature
MAX_LOGIT_MOVE = 4.0  # in one pass: the quadratic model says nothing beyond it
MAX_RESIDUAL = 1e-6  # above it the method has not converged
STAGE_RESIDUAL = 1e-4  # at which a temperature is left; at 1e-2 the last one may not converge
RIDGE = 1e-10  # smallest curvature, in a row whose classes' curvatures sum to 1
MIN_CURVATURE = 1e-100  # of a row that no longer moves: a step along it is long, and finite
FLAT = 1e-12  # curvature, in nodes, below which a gap is taken not to move
WIDE_LOGITS = 32.0  # a logit range that is approached through falling temperatures


class Moments(NamedTuple):
    """The dual objective without its penalty, at a dual v and a temperature."""

    value: float
    gradient: Array  # Σ δq, minus the derivative of the value (G'C)
    hessian: Array  # (G'C × G'C)


class ScalarProblem(Protocol):
    """The nodes, for one gap between two classes.

    Rows of Δ are divided by ``scale`` (G'), their largest entries: the dual here is v = scale·u,
    and a gap is ``scale`` times the result of a pass.
    """

    scale: Array

    def gap(self, root: float) -> tuple[float, float]:
        """The gap at v = (−root/2, root/2), and minus its derivative."""

    def width(self) -> float:
        """Largest logit range of a node in the population."""


class DualProblem(ScalarProblem, Protocol):
    """The nodes, for any number of gaps and classes."""

    shape: tuple[int, int]
    blocks: tuple[int, ...]  # sizes of the blocks of rows

    def moments(self, v: Array, temperature: float) -> Moments:
        """Pass over the nodes at the dual v (G'×C)."""

    def gram(self) -> Array:
        """ΔΔᵀ, of the scaled rows (G'×G')."""


class DualSolution(NamedTuple):
    """The dual at the solution."""

    u: Array  # rows that sum to 0 (G'×C)
    active: NDArray[np.bool_]  # gaps held at the target (G'×C)
    hessian: Array  # of the scaled problem (G'C×G'C)
    constraints: Array  # columns that the scaled dual is orthogonal to (G'C×m)
    residual: float  # by how much the gaps violate the optimality conditions
    passes: int  # over the nodes


def solve(problem: DualProblem, start: Array, target: float, tol: float) -> DualSolution:
    """Find the dual, from a first guess (G'×C); for one number see ``fused.solve_scalar``."""
    scale = problem.scale[:, None]
    newton = _Newton(problem, target)
    point = newton.run((start * scale).ravel(), tol)
    held = (point.v != 0) | (target == 0)
    if point.residual > max(tol, MAX_RESIDUAL):
        point, held = newton.scale_back_parity(tol), np.zeros_like(held)
    u = point.v.reshape(problem.shape) / scale
    return DualSolution(
        u - u.mean(1, keepdims=True),
        held.reshape(problem.shape),
        point.moments.hessian,
        newton.constraints,
        point.residual,
        newton.passes,
    )


class _Point(NamedTuple):
    v: Array
    moments: Moments
    objective: float
    residual: float


class _Newton:
    """Proximal Newton with a line search, at a temperature that falls to 1."""

    def __init__(self, problem: DualProblem, target: float) -> None:
        self.problem, self.target, self.shape = problem, target, problem.shape
        classes = self.shape[1]
        self.scale = problem.scale.repeat(classes)
        ends = np.cumsum(problem.blocks)
        self.blocks = [
            slice(end - size, end) for end, size in zip(ends, problem.blocks, strict=True)
        ]
        share = np.repeat([1.0 if size == 1 else 0.5 for size in problem.blocks], problem.blocks)
        self.penalty = target * share.repeat(classes) / self.scale
        # One column per class and block of several rows: Σ_g u_g = 0, in the scaled dual.
        columns: list[Array] = [np.zeros((self.scale.size, 0))]
        for block in self.blocks:
            if block.stop - block.start > 1:
                weight = np.zeros((self.shape[0], 1))
                weight[block, 0] = problem.scale[block].max() / problem.scale[block]
                columns.append(np.asarray(np.kron(weight, np.eye(classes)), np.float64))
        self.constraints = np.concatenate(columns, 1)
        self.basis = np.kron(_span(problem.gram()), _span(np.eye(classes) - 1 / classes))
        self.passes = 0

    def run(self, start: Array, tol: float) -> _Point:
        width = self.problem.width()
        if width <= WIDE_LOGITS or start.any():
            point = self._descend(start, 1.0, tol)
            if point.residual <= tol:
                return point
        temperature, v = max(width / 8, 1.0), np.zeros_like(start)
        while temperature > 1:
            v = self._descend(v, temperature, STAGE_RESIDUAL).v
            temperature /= 2
        return self._descend(v, 1.0, tol)

    def scale_back_parity(self, tol: float) -> _Point:
        """Find full parity, then scale its shift back as far as the target allows.

        For logits so far apart that the quadratic model says nothing about where the target is met.
        The result is feasible, and not quite the closest.
        """
        parity = _Newton(self.problem, 0.0)
        v = parity.run(np.zeros_like(self.scale), tol).v
        low, high = 0.0, 1.0
        for _ in range(40):
            middle = (low + high) / 2
            excess = self._excess(self._at(middle * v, 1.0))
            low, high = (low, middle) if excess <= 0 else (middle, high)
        self.passes += parity.passes
        point = self._at(high * v, 1.0)
        return point._replace(residual=max(self._excess(point), 0.0))

    def _excess(self, point: _Point) -> float:
        """By how much the largest gap exceeds the target."""
        gap = (point.moments.gradient * self.scale).reshape(self.shape)
        parts = [gap[block] for block in self.blocks]
        sizes = [np.abs(part) if len(part) == 1 else np.ptp(part, axis=0) for part in parts]
        return float(max(size.max() for size in sizes)) - self.target

    def _at(self, v: Array, temperature: float) -> _Point:
        self.passes += 1
        moments = self.problem.moments(v.reshape(self.shape), temperature)
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
        objective = moments.value + float(self.penalty @ np.abs(v))
        return _Point(v, moments, objective, residual)

    def _descend(self, v: Array, temperature: float, tol: float) -> _Point:
        point = self._at(v, temperature)
        limit = self.passes + MAX_STAGE_PASSES
        before: list[float] = []
        while point.residual > tol and self.passes < limit:
            before.append(point.residual)
            stalled = len(before) > 4 and point.residual > before[-4] / 2
            if point.residual < MAX_RESIDUAL and stalled:
                break  # as good as rounding allows
            step = self._direction(point)
            furthest = np.abs(step.reshape(self.shape)).sum(0).max()
            if furthest == 0:
                break
            length = min(1.0, MAX_LOGIT_MOVE * temperature / furthest)
            predicted = -point.moments.gradient @ step + self.penalty @ (
                np.abs(point.v + step) - np.abs(point.v)
            )
            while True:
                candidate = self._at(point.v + length * step, temperature)
                enough = point.objective + 1e-4 * length * predicted
                # Close to the solution rounding hides the descent, and the residual decides.
                if candidate.objective <= enough or candidate.residual < 0.9 * point.residual:
                    point = candidate
                    break
                length /= 2
                if length < 1e-9 or self.passes >= limit:
                    return point
        return point

    def _direction(self, point: _Point) -> Array:
        # One unit per row, since groups differ in size. Within a row a class that is rarely
        # predicted has next to no curvature; RIDGE keeps it from using up the limit on moves.
        curvature = np.diag(point.moments.hessian).reshape(self.shape).sum(1)
        unit = np.sqrt(np.maximum(curvature, MIN_CURVATURE)).repeat(self.shape[1])
        hessian = point.moments.hessian / np.outer(unit, unit)
        gradient = point.moments.gradient / unit
        if self.target == 0:
            free = complement(self.constraints / unit[:, None], np.ones(unit.size, dtype=bool))
            hessian = free.T @ hessian @ free + RIDGE * np.eye(free.shape[1])
            return np.asarray(free @ np.linalg.solve(hessian, free.T @ gradient)) / unit
        linear = hessian @ (point.v * unit) + gradient
        columns = self.basis / unit[:, None], self.constraints / unit[:, None]
        return _l1_quadratic(hessian, linear, self.penalty / unit, *columns) / unit - point.v


def _l1_quadratic(h: Array, b: Array, penalty: Array, basis: Array, constraints: Array) -> Array:
    """Minimise ½xᵀHx − bᵀx + Σ penalty·|x| s.t. Eᵀx = 0, for H and b in the span of the basis.

    H leaves some directions undetermined (a constant added to every class, a dual proportional to
    group sizes), so the problem is solved in its own dual: the gap b − Hx = Bγ nearest to b, in the
    metric H⁻¹, which no entry of, less a centre Ec, exceeds its penalty. An interior-point method,
    started at γ = c = 0, finds it; x are its multipliers.
    """
    basis, _ = np.linalg.qr(basis)
    values, vectors = np.linalg.eigh(basis.T @ h @ basis)
    values = np.maximum(values, RIDGE)
    # In the coordinates of H's eigenvectors, scaled by its roots, the metric is the identity.
    basis = (basis @ vectors) * np.sqrt(values)
    aim = np.linalg.lstsq(basis, b, rcond=None)[0]
    unit = max(float(np.abs(aim).max()), 1e-300)
    bound = penalty / unit
    centres = constraints / np.maximum(np.abs(constraints).max(0, initial=0.0), 1e-300)
    basis = np.concatenate([basis, -centres], 1)
    metric = np.concatenate([np.ones(aim.size), np.zeros(centres.shape[1])])
    aim = np.concatenate([aim / unit, np.zeros(centres.shape[1])])
    gamma = np.zeros_like(aim)
    # The rows of these two are for the bounds from above and from below.
    slack, sign = np.stack([bound, bound]), np.array([[1.0], [-1.0]])
    x = np.full_like(slack, 1.0 / max(1.0, float(np.abs(basis).max())))
    for _ in range(100):
        mu = float((x * slack).mean())
        if mu <= 1e-15:
            break
        pull = 0.05 * mu / slack - x
        system = np.diag(metric) + (basis.T * (x / slack).sum(0)) @ basis
        right = -metric * (gamma - aim) - basis.T @ (sign * (x + pull)).sum(0)
        if not (np.isfinite(system).all() and np.isfinite(right).all()):
            break
        try:
            d_gamma = np.linalg.lstsq(system, right, rcond=None)[0]
        except np.linalg.LinAlgError:
            break  # weights too large for a double: as good as rounding allows
        move = sign * (basis @ d_gamma)
        d_x = pull + x / slack * move
        length = min(1.0, 0.99 / max(float((-d_x / x).max()), float((move / slack).max()), 1e-300))
        gamma, slack, x = gamma + length * d_gamma, slack - length * move, x + length * d_x
    free = complement(centres, np.asarray((x * bound > slack).any(0)))
    return np.asarray(free @ (free.T @ (x[0] - x[1])) * unit)


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
    columns, left = [], held.copy()
    for constraint in constraints.T:
        inside = np.flatnonzero(held & (constraint != 0))
        left[inside] = False
        if inside.size > 1:
            q, _ = np.linalg.qr(constraint[inside, None], mode="complete")
            block = np.zeros((held.size, inside.size - 1))
            block[inside] = q[:, 1:]
            columns.append(block)
    return np.concatenate([np.eye(held.size)[:, left], *columns], 1)


def _span(gram: Array) -> Array:
    """Orthonormal columns that span the range of a symmetric matrix."""
    values, vectors = np.linalg.eigh(gram)
    return vectors[:, values > 1e-10 * values.max()]

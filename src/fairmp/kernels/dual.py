r"""The dual of the projection onto parity, by a guarded Newton method.

Among all predictions :math:`Q` with :math:`|\Delta Q| \le t`, those closest to
:math:`P = \mathrm{softmax}(Z)` in Kullback-Leibler divergence, summed over the population, are
:math:`Q_i \propto P_i e^{-(\Delta^\top u)_i}`, where :math:`u` (G'×C) minimises the convex

.. math::
    \sum_i \log \sum_c e^{Z_{ic} - (\Delta^\top u)_{ic}} + t \|u\|_1 .

Its gradient is :math:`-\Delta Q` and its Hessian a few numbers wide, so a Newton step is one pass
over the nodes. With one gap and two classes it is a root of a decreasing function of one number,
kept in a bracket. Otherwise it is a proximal Newton method whose guards are a limit on how far
logits move in a pass, a line search, and, where logits lie far apart, a sequence of falling
temperatures. All of it runs in float64: the numbers it is about are few.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]

MAX_PASSES = 200
MAX_STAGE = 50  # passes at one temperature
MAX_MOVE = 4.0  # logits move no further in one pass: beyond it the quadratic model is no guide
ACCEPTED = 1e-6  # residual beyond which the method is said not to have converged
RIDGE = 1e-10  # the least curvature taken seriously, in a row whose classes' sum to 1
LOOSE = 1e-2  # residual at which a temperature has done its work
WIDE = 32.0  # logits further apart than this are approached through temperatures


def tolerance(dtype: torch.dtype) -> float:
    """How far from optimal, in units of the gap, a solution may be."""
    return 1e-12 if dtype == torch.float64 else 1e-7


@torch.library.custom_op("fairmp::project_dual", mutates_args=())
def project_dual(
    z: Tensor, delta: Tensor, start: Tensor, target: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Solve the dual of the projection.

    Args:
        z: logits (n×C).
        delta: Δᵀ (n×G'); nodes outside the population have a row of zeros.
        start: a guess of the dual (G'×C), zeros where there is none.
        target: the largest gap allowed, elementwise.

    Returns:
        The dual (G'×C, rows that sum to 0), which gaps are held at the target (G'×C, bool), and
        the residual and the number of passes (2).
    """
    inside = (delta != 0).any(1)
    dual, active, residual, passes = _solve(
        z[inside].double(), delta[inside].double(), start.double(), target, tolerance(z.dtype)
    )
    dual = dual - dual.mean(1, keepdim=True)
    info = torch.tensor([residual, float(passes)], dtype=torch.float64, device=z.device)
    return dual.to(z.dtype).contiguous(), active.contiguous(), info


@project_dual.register_fake
def _(z: Tensor, delta: Tensor, start: Tensor, target: float) -> tuple[Tensor, Tensor, Tensor]:
    shape = (delta.size(1), z.size(1))
    return (
        z.new_empty(shape),
        z.new_empty(shape, dtype=torch.bool),
        z.new_empty(2, dtype=torch.float64),
    )


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    z, delta, _, _ = inputs
    dual, active, _ = output
    ctx.save_for_backward(z, delta, dual, active)


def _backward(ctx: Any, grad_dual: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    z, delta, dual, active = ctx.saved_tensors
    return _implicit(z, delta, dual, active, grad_dual), None, None, None


@torch.library.custom_op("fairmp::project_dual_backward", mutates_args=())
def _implicit(z: Tensor, delta: Tensor, dual: Tensor, active: Tensor, grad: Tensor) -> Tensor:
    r"""Differentiate the dual: held gaps stay held, so :math:`H_{AA} \, du_A = (\Delta\, dP)_A`.

    The result has the form of the fairness coupling's gradient,
    :math:`Q \odot (W - \mathrm{rowsum}(W \odot Q))` with :math:`W = \Delta^\top w` and
    :math:`H_{AA} w_A` the incoming gradient.
    """
    inside = (delta != 0).any(1)
    spread = delta[inside].double()
    scale = _row_scale(spread)
    spread = spread / scale
    point = _moments(z[inside].double(), spread, dual.double() * scale.unsqueeze(1), 1.0)
    # Rows of the dual sum to 0 by choice: the part of the gradient that asks otherwise is void.
    incoming = (grad.double() - grad.double().mean(1, keepdim=True)) / scale.unsqueeze(1)
    held = active.flatten().cpu().numpy()
    w = np.zeros(held.size)
    if held.any():
        w[held] = _pseudo_solve(point.hessian[np.ix_(held, held)], _small(incoming)[held])
    shift = spread @ torch.from_numpy(w).to(z.device).view_as(dual)
    result = z.new_zeros(z.shape)
    result[inside] = (point.q * (shift - (shift * point.q).sum(1, keepdim=True))).to(z.dtype)
    return result


@_implicit.register_fake
def _(z: Tensor, delta: Tensor, dual: Tensor, active: Tensor, grad: Tensor) -> Tensor:
    return z.new_empty(z.shape)


project_dual.register_autograd(_backward, setup_context=_setup)


def _solve(
    z: Tensor, delta: Tensor, start: Tensor, target: float, tol: float
) -> tuple[Tensor, Tensor, float, int]:
    scale = _row_scale(delta)
    delta = delta / scale
    start = start * scale.unsqueeze(1)
    if delta.size(1) == 1 and z.size(1) == 2:
        margin, spread = z[:, 1] - z[:, 0], delta[:, 0]
        root, residual, passes = _bracketed(
            margin, spread, float(start[0, 1] - start[0, 0]), float(scale), target, tol
        )
        v = torch.tensor([[-root / 2, root / 2]], dtype=z.dtype, device=z.device)
        active = torch.full((1, 2), root != 0 or target == 0, device=z.device)
    else:
        newton = _Newton(z, delta, scale, target)
        point = newton.run(_small(start), tol)
        held = (point.v != 0) | (target == 0)
        if point.residual > max(tol, ACCEPTED):
            point, held = newton.retreat(tol), np.zeros_like(held)
        v = torch.from_numpy(point.v).to(z.device).view(start.shape)
        active = torch.from_numpy(held).to(z.device).view(start.shape)
        residual, passes = point.residual, newton.passes
    return v / scale.unsqueeze(1), active, residual, passes


def _bracketed(
    margin: Tensor, delta: Tensor, root: float, scale: float, target: float, tol: float
) -> tuple[float, float, int]:
    """Find w with gap(w) = Σ δσ(margin − δw) at ±target, or 0 if the gap there is small enough."""
    # By this far every node of the smaller group has changed sides, and the gap with it.
    high = float(margin.abs().max()) + 45.0
    low = -high
    if not low < root < high:
        root = 0.0
    before = float("inf")
    for passes in range(1, MAX_PASSES + 1):
        q = torch.sigmoid(margin - delta * root)
        slope_terms = q * (1 - q) * delta
        gap, slope = (scale * torch.stack([q @ delta, slope_terms @ delta])).tolist()
        if root == 0 and abs(gap) <= target:
            return 0.0, 0.0, passes
        level = target if root > 0 or (root == 0 and gap > 0) else -target
        excess = gap - level
        if abs(excess) <= tol:
            return root, abs(excess), passes
        if excess > 0:
            low = root
        else:
            high = root
        middle = (low + high) / 2
        step = root + excess / slope if slope > 0 else middle
        # A step that left the bracket, or that did not halve the excess, is no better than half.
        proposal = step if low < step < high and abs(excess) < before / 2 else middle
        if root * proposal < 0 and low < 0 < high:
            proposal = 0.0
        if proposal == root or middle in (low, high):
            return root, abs(excess), passes
        before, root = abs(excess), proposal
    return root, abs(excess), passes


class _Moments(NamedTuple):
    """What one pass over the nodes yields, at a dual v and a temperature."""

    value: float
    gradient: Array  # Σ δq, minus the derivative of the value (G'C)
    hessian: Array  # (G'C × G'C)
    q: Tensor


def _moments(z: Tensor, delta: Tensor, v: Tensor, temperature: float) -> _Moments:
    logits = ((z - delta @ v) / temperature).T.contiguous()
    top = logits.amax(0)
    weights = (logits - top).exp_()
    total = weights.sum(0)
    value = temperature * (top.sum() + total.log().sum())
    q = (weights / total).T
    spread = (delta.unsqueeze(2) * q.unsqueeze(1)).flatten(1)
    rows, classes = v.shape
    product = (spread.T @ spread).view(rows, classes, rows, classes)
    # q − q² as a sum over the other classes: the difference has no digits left where q is near 1.
    other = product * (1 - torch.eye(classes, dtype=z.dtype, device=z.device)).unsqueeze(1)
    hessian = torch.diag_embed(other.sum(3).permute(0, 2, 1)).permute(0, 2, 1, 3) - other
    size = rows * classes
    small = torch.cat([value.view(1), spread.sum(0), hessian.reshape(-1) / temperature])
    numbers = small.cpu().numpy()
    return _Moments(
        float(numbers[0]), numbers[1 : 1 + size], numbers[1 + size :].reshape(size, size), q
    )


class _Point(NamedTuple):
    v: Array
    moments: _Moments
    objective: float
    residual: float


class _Newton:
    """Proximal Newton with a line search, at a temperature that falls to 1."""

    def __init__(self, z: Tensor, delta: Tensor, scale: Tensor, target: float) -> None:
        self.z, self.delta, self.target = z, delta, target
        self.scale = _small(scale).repeat(z.size(1))
        self.penalty = target / self.scale
        self.shape = (delta.size(1), z.size(1))
        self.basis = np.kron(_span(_square(delta)), _span(np.eye(z.size(1)) - 1 / z.size(1)))
        self.passes = 0

    def run(self, start: Array, tol: float) -> _Point:
        width = float((self.z.max(1).values - self.z.min(1).values).max())
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
        parity = _Newton(self.z, self.delta, torch.from_numpy(self.scale[:: self.shape[1]]), 0.0)
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
        dual = torch.from_numpy(v).to(self.z.device).view(self.shape)
        moments = _moments(self.z, self.delta, dual, temperature)
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
        unit = np.sqrt(np.maximum(curvature, 1e-300)).repeat(self.shape[1])
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


def _square(delta: Tensor) -> Array:
    return (delta.T @ delta).cpu().numpy()


def _row_scale(delta: Tensor) -> Tensor:
    return delta.abs().amax(0).clamp_min(torch.finfo(torch.float64).tiny)


def _small(x: Tensor) -> Array:
    return x.flatten().cpu().numpy()

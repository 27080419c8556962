r"""The dual problem of the projection: how a step is solved, applied and differentiated.

:func:`solve_dual` finds the dual u of a step, :func:`shift_groups` applies it. Logits are n×C;
those of two classes may be margins :math:`z_1 - z_0` instead (n×1), which is all that softmax sees.
A dual has a column for each column of the logits.

The dual of one gap between two classes is one number, the root of a decreasing function, which a
kernel finds (:class:`BinaryDual`). Any other is found by Newton's method (:class:`NewtonDual`,
:mod:`fairmp.nn.newton`), where a pass over the nodes sums a few numbers per group
(:class:`HardGroupProblem`) or, where groups are probabilities, over rows of Δᵀ
(:class:`SoftGroupProblem`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fairmp.groups import GroupOperator
from fairmp.kernels import implementation, relative_to_largest
from fairmp.kernels.root import MAX_MARGIN, find_root
from fairmp.kernels.types import BinaryProblem, Clip
from fairmp.nn.newton import DualSolution, Moments, implicit_gradient, solve
from fairmp.nn.quadratic import FLAT, Array


class Dual(ABC):
    """The dual u of a step, how it was found, and what it does to logits.

    Attributes:
        u: the dual (G'×C, float64).
        temperature: τ.
        residual: by how much the gap violates the optimality conditions.
        passes: over the nodes.
    """

    u: Tensor
    temperature: float
    residual: float | Tensor  # on a GPU these are tensors there (1)
    passes: float | Tensor

    @abstractmethod
    def shift(self, z: Tensor) -> Tensor:
        """Subtract τΔᵀu; nodes of unknown group keep their logits."""

    @abstractmethod
    def shift_vjp(self, z: Tensor, grad: Tensor) -> Tensor:
        """The gradient of z, given that of the shifted logits; it passes through u as well."""

    @abstractmethod
    def vjp(self, z: Tensor, grad_u: Tensor) -> Tensor:
        """The gradient of z, given that of u."""


def solve_dual(
    z: Tensor,
    groups: GroupOperator,
    target: float,
    temperature: float,
    start: Dual | None = None,
    *,
    tol: float | None = None,
) -> Dual:
    r"""Find the dual u of the predictions closest to softmax(z/τ) within the target gap.

    .. math::
        \min_Q \sum_i \mathrm{KL}(Q_i \| P_i) \quad \text{s.t.} \quad |\Delta Q| \le \text{target},
        \qquad Q = \mathrm{softmax}(z/\tau - \Delta^\top u).

    Args:
        z: logits (n×C), or margins of two classes (n×1).
        groups: the operator Δ.
        target: largest gap allowed.
        temperature: τ.
        start: the dual to start from.
        tol: by how much the gap may miss its target, by default what the type of z allows.
    """
    z = z.detach().contiguous()
    tol = tolerance(z.dtype) if tol is None else tol
    guess: Tensor | None = None
    if start is not None:  # a shift of the same logits
        same = start.temperature == temperature
        guess = start.u if same else start.temperature / temperature * start.u
    if z.size(1) <= 2 and groups.binary is not None:
        return BinaryDual(BinaryProblem(z, groups.binary, temperature, target, tol), guess)
    kind = SoftGroupProblem if groups.codes is None else HardGroupProblem
    return NewtonDual(kind(z, groups, temperature), target, tol, guess)


def shift_groups(z: Tensor, dual: Dual) -> Tensor:
    """Shift the logits of each group: z − τΔᵀu; nodes of unknown group keep theirs.

    The gradient of z passes through u as well, by implicit differentiation. Logits so large that a
    shift would be lost in their rounding are returned relative to each row's largest.
    """
    z = z.contiguous()
    return _shift_groups(z, dual) if torch.is_grad_enabled() else dual.shift(z)


def differentiable(z: Tensor, dual: Dual) -> Tensor:
    """The dual of logits as a tensor (G'×C) that has a gradient, by implicit differentiation."""
    return _differentiable(z, dual)


def tolerance(dtype: torch.dtype) -> float:
    """Largest residual of a converged dual, in units of the gap."""
    return 1e-12 if dtype == torch.float64 else 1e-7


def clip_bounds(dtype: torch.dtype, temperature: float) -> Clip:
    """The logits up to which a shift of their size keeps a gap to 1e-4, and where to clip."""
    largest = 5e5 if dtype == torch.float64 else 2.5e3
    return Clip(temperature * largest, temperature * MAX_MARGIN)


class _ShiftGroups(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, dual: Dual) -> Tensor:
        ctx.dual = dual
        ctx.save_for_backward(z)
        return dual.shift(z)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.dual.shift_vjp(*ctx.saved_tensors, grad.contiguous()), None


class _Differentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, dual: Dual) -> Tensor:
        ctx.dual = dual
        ctx.save_for_backward(z)
        return dual.u.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_u: Tensor) -> tuple[Tensor, None]:
        return ctx.dual.vjp(*ctx.saved_tensors, grad_u), None


_shift_groups: Callable[..., Tensor] = _ShiftGroups.apply
_differentiable: Callable[..., Tensor] = _Differentiable.apply


class BinaryDual(Dual):
    r"""The dual of one gap between two classes.

    A gap that is held stays where it is: u moves by
    :math:`\sum δσ' dm / (τ\,\mathrm{scale} \sum δ^2σ')` with the margins m.
    """

    def __init__(self, problem: BinaryProblem, start: Tensor | None) -> None:
        z = problem.z
        root = implementation(z).binary_root(problem, None if start is None else _margin(start))
        self.margin, self.residual, self.passes = root.u, root.residual, root.passes
        self.groups, self.temperature = problem.groups, problem.temperature
        self.columns, self.slope = z.size(1), root.slope
        self._curvature, self._target = root.curvature, problem.target

    @cached_property
    def u(self) -> Tensor:  # type: ignore[override]
        """The dual of both classes (1×2), or of the margin (1×1)."""
        return _as_row(self.margin, self.columns)

    @property
    def response(self) -> float | Tensor:
        """du/dm over δσ': 0 where the gap is not held."""
        rate = self.temperature * self.groups.scale * self._curvature
        held: Any = (self._curvature > FLAT) & ((self.margin != 0) | (self._target == 0))
        if isinstance(held, Tensor):
            return torch.where(held, 1 / rate, 0.0)
        return 1 / rate if held else 0.0

    def shift(self, z: Tensor) -> Tensor:
        """Shift margins by a column times a number."""
        clip = clip_bounds(z.dtype, self.temperature)
        amount = self.temperature * self.margin
        return implementation(z).shift_margins(z, self.groups, amount, clip)

    def shift_vjp(self, z: Tensor, grad: Tensor) -> Tensor:
        """Add what passes through u."""
        factor = -self.temperature / self.columns * self.response
        return implementation(grad).shift_margins_vjp(grad, self.groups, self.slope, factor)

    def vjp(self, z: Tensor, grad_u: Tensor) -> Tensor:
        """Spread the gradient of u over the nodes of the population."""
        # A margin of 1 is half a logit up and half a logit down.
        pull = _margin(grad_u) / self.columns * self.response
        row = _as_row(pull, 1).to(z.dtype)
        return torch.outer(self.slope, (row if self.columns == 1 else torch.cat([-row, row]))[:, 0])


def _margin(u: Tensor) -> float | Tensor:
    """The margin of a row of logits, or of a row that is one; a number where the host has it."""
    if u.is_cuda:
        return u[0] if u.size(1) == 1 else u[0, 1:] - u[0, :1]
    (numbers,) = u.tolist()
    return float(numbers[0] if len(numbers) == 1 else numbers[1] - numbers[0])


def _as_row(margin: float | Tensor, columns: int) -> Tensor:
    """Two logits with a margin, or the margin itself, as a row (float64)."""
    if isinstance(margin, Tensor):
        row = margin if columns == 1 else torch.cat([margin / -2, margin / 2])
        return row.view(1, columns)
    numbers = [margin] if columns == 1 else [-margin / 2, margin / 2]
    return torch.from_numpy(np.array([numbers]))


class NewtonDual(Dual):
    """The dual of any number of gaps and classes, by Newton's method."""

    def __init__(
        self, problem: GroupProblem, target: float, tol: float, start: Tensor | None
    ) -> None:
        width = problem.width()
        if width > MAX_MARGIN:
            problem, width = problem.clipped(), MAX_MARGIN
        guess = np.zeros(problem.shape) if start is None else start.cpu().numpy()
        method = _solve_one_gap if problem.shape == (1, 2) else solve
        self.problem, self.solution = problem, method(problem, guess, width, target, tol)
        self.temperature = problem.temperature
        self.u = torch.from_numpy(self.solution.u).to(problem.z.device)
        self.residual, self.passes = self.solution.residual, float(self.solution.passes)

    def shift(self, z: Tensor) -> Tensor:
        """Shift logits by group."""
        return self.problem.shift(z, self.u)

    def shift_vjp(self, z: Tensor, grad: Tensor) -> Tensor:
        """Add what passes through u."""
        return self._add_vjp(grad, self.problem.shift_gradient(grad))

    def vjp(self, z: Tensor, grad_u: Tensor) -> Tensor:
        """Differentiate the dual implicitly."""
        return self._add_vjp(torch.zeros_like(z), grad_u)

    def _add_vjp(self, grad: Tensor, grad_u: Tensor) -> Tensor:
        # Each process has the part of the gradient that comes from its own nodes.
        incoming = self.problem.groups.total(grad_u.double()).cpu().numpy()
        w = implicit_gradient(self.solution, self.problem.scale, incoming)
        return self.problem.add_vjp(grad, self.u, w) if w.any() else grad


def _solve_one_gap(
    problem: GroupProblem, start: Array, width: float, target: float, tol: float
) -> DualSolution:
    """The dual of one gap between two classes, for soft groups or several processes."""
    scale = float(problem.scale[0])

    def gap_at(w: float) -> tuple[float, float]:
        moments = problem.moments(np.array([[-w / 2, w / 2]]), 1.0)
        return scale * float(moments.gradient[1]), scale * float(moments.hessian[1, 1])

    guess = scale * float(start[0, 1] - start[0, 0])
    root = find_root(gap_at, guess, width, target, tol)
    half, curvature = root.w / 2 / scale, root.curvature / scale
    return DualSolution(
        u=np.array([[-half, half]]),
        active=np.full((1, 2), root.w != 0 or target == 0),
        hessian=np.array([[curvature, -curvature], [-curvature, curvature]]),
        constraints=np.zeros((2, 0)),
        residual=root.residual,
        passes=root.passes,
    )


class GroupProblem(ABC):
    """The nodes of a dual problem, at logits z/τ, as Newton's method sees them.

    Attributes:
        scale: the largest entries of the rows of Δ (G').
        shape: G'×C.
    """

    scale: Array
    shape: tuple[int, int]

    def __init__(self, z: Tensor, groups: GroupOperator, temperature: float) -> None:
        self.z, self.groups, self.temperature = z, groups, temperature
        self.blocks = groups.blocks

    def clipped(self) -> GroupProblem:
        """The same problem with margins of at most 10⁶ τ; gradients pass as if they were not."""
        margins = relative_to_largest(self.z.double()).clamp_min(-MAX_MARGIN * self.temperature)
        return type(self)(margins, self.groups, self.temperature)

    @abstractmethod
    def moments(self, v: Array, temperature: float) -> Moments:
        """Pass over the nodes at the dual v (G'×C) of the scaled rows."""

    @abstractmethod
    def width(self) -> float:
        """Largest logit range of a node in the population."""

    @abstractmethod
    def gram(self) -> Array:
        """ΔΔᵀ, of the scaled rows (G'×G')."""

    @abstractmethod
    def shift(self, z: Tensor, u: Tensor) -> Tensor:
        """Subtract τΔᵀu."""

    @abstractmethod
    def shift_gradient(self, grad: Tensor) -> Tensor:
        """The gradient of u, given that of the shifted logits."""

    @abstractmethod
    def add_vjp(self, grad: Tensor, u: Tensor, w: Array) -> Tensor:
        """Add the gradient in z, from w of :func:`~fairmp.nn.newton.implicit_gradient`."""


class HardGroupProblem(GroupProblem):
    """The problem of nodes of one group each."""

    def __init__(self, z: Tensor, groups: GroupOperator, temperature: float) -> None:
        super().__init__(z, groups, temperature)
        assert groups.codes is not None
        assert groups.population_codes is not None
        self.codes, self.population_codes = groups.codes, groups.population_codes
        rows, scale = groups.scaled_rows
        self.rows, self.scale = rows.cpu().numpy(), scale.cpu().numpy()
        self.shape = self.rows.shape[0], z.size(1)

    def moments(self, v: Array, temperature: float) -> Moments:
        """Pass over the nodes at the dual v (G'×C) of the scaled rows."""
        groups, classes, tau = self.rows.shape[1], self.shape[1], self.temperature
        table, kernels = self._table(tau * (self.rows.T @ v)), implementation(self.z)
        flat = kernels.moments(self.z, self.population_codes, table, tau * temperature)
        numbers, size = self.groups.total(flat).cpu().numpy(), groups * classes
        sums = numbers[1 : 1 + size].reshape(groups, classes)
        second = numbers[1 + size :].reshape(groups, classes, classes)
        # The sums of q_c·q_d are minus the curvature between classes, those of q_c(1−q_c) within.
        second = np.where(np.eye(classes, dtype=bool), second, -second) / temperature
        hessian = np.einsum("ag,bg,gcd->acbd", self.rows, self.rows, second)
        gradient = (self.rows @ sums).ravel()
        return Moments(float(numbers[0]) / tau, gradient, hessian.reshape(2 * gradient.shape))

    def width(self) -> float:
        """Largest logit range of a node in the population."""
        low, high = torch.aminmax(self.z.T.contiguous(), dim=0)
        ranges = torch.where(self.population_codes >= 0, high - low, 0).double()
        widest = self.groups.largest(torch.cat([ranges, ranges.new_zeros(1)]).max().view(1))
        return float(widest) / self.temperature

    def gram(self) -> Array:
        """ΔΔᵀ, of the scaled rows (G'×G')."""
        one = torch.ones(self.z.size(0), 1, dtype=self.z.dtype, device=self.z.device)
        groups = self.rows.shape[1]
        sums = implementation(one).segment_sum(one, self.population_codes, groups)
        counts = self.groups.total(sums).flatten().cpu().numpy()
        return np.asarray((self.rows * counts) @ self.rows.T)

    def shift(self, z: Tensor, u: Tensor) -> Tensor:
        """Subtract τΔᵀu."""
        table, clip = (
            self.temperature * self.groups.by_group(u),
            clip_bounds(z.dtype, self.temperature),
        )
        return implementation(z).shift(z, self.codes, table, clip)

    def shift_gradient(self, grad: Tensor) -> Tensor:
        """The gradient of u, given that of the shifted logits."""
        sums = implementation(grad).segment_sum(grad, self.codes, self.groups.num_groups)
        return -self.temperature * (self.groups.rows @ sums)

    def add_vjp(self, grad: Tensor, u: Tensor, w: Array) -> Tensor:
        """Add the gradient in z, from w of :func:`~fairmp.nn.newton.implicit_gradient`."""
        tau, codes = self.temperature, self.population_codes
        shift, pull = tau * self.groups.by_group(u), self._table(self.rows.T @ w / tau)
        return implementation(self.z).softmax_vjp(grad, self.z, codes, shift, tau, pull)

    def _table(self, values: Array) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(self.z.device)


class SoftGroupProblem(GroupProblem):
    """The problem of nodes whose groups are probabilities; in plain torch."""

    def __init__(self, z: Tensor, groups: GroupOperator, temperature: float) -> None:
        super().__init__(z, groups, temperature)
        # Δᵀ in float64: float32 does not resolve 1/n to the method's tolerance.
        columns = groups.population_membership.double() @ groups.rows.T
        self.inside = (columns != 0).any(1)
        columns = columns[self.inside]
        widest = columns.abs().amax(0) if columns.size(0) else columns.new_zeros(columns.size(1))
        scale = groups.largest(widest).clamp_min(torch.finfo(torch.float64).tiny)
        self.scale = scale.cpu().numpy()
        self.columns = columns / scale
        self.logits = z[self.inside].double() / temperature
        self.shape = columns.size(1), z.size(1)

    def moments(self, v: Array, temperature: float) -> Moments:
        """Pass over the nodes at the dual v (G'×C) of the scaled rows."""
        rows, classes = self.shape
        logits = self._logits(v) / temperature
        q = logits.softmax(1)
        value = temperature * logits.logsumexp(1).sum()
        weighted = (self.columns.unsqueeze(2) * q.unsqueeze(1)).flatten(1)
        product = (weighted.T @ weighted).view(rows, classes, rows, classes)
        # q − q² as a sum over the other classes, which is exact where q is near 1.
        other = product * (1 - torch.eye(classes, dtype=q.dtype, device=q.device)).unsqueeze(1)
        hessian = torch.diag_embed(other.sum(3).permute(0, 2, 1)).permute(0, 2, 1, 3) - other
        small = torch.cat([value.view(1), weighted.sum(0), hessian.reshape(-1) / temperature])
        numbers, size = self.groups.total(small).cpu().numpy(), rows * classes
        return Moments(
            float(numbers[0]), numbers[1 : 1 + size], numbers[1 + size :].reshape(size, size)
        )

    def width(self) -> float:
        """Largest logit range of a node in the population."""
        ranges = self.logits.amax(1) - self.logits.amin(1)
        widest = ranges.max() if ranges.numel() else ranges.new_zeros(())
        return float(self.groups.largest(widest.view(1)))

    def gram(self) -> Array:
        """ΔΔᵀ, of the scaled rows (G'×G')."""
        return np.asarray(self.groups.total(self.columns.T @ self.columns).cpu().numpy())

    def shift(self, z: Tensor, u: Tensor) -> Tensor:
        """Subtract τΔᵀu."""
        clip, table = clip_bounds(z.dtype, self.temperature), self.groups.by_group(u)
        exact, by = z.double(), self.temperature * (self._membership @ table)
        extreme = (z.abs().amax(1, keepdim=True) > clip.limit) & self.groups.known.unsqueeze(1)
        relative = relative_to_largest(exact).clamp_min(-clip.floor) - by
        return torch.where(extreme, relative_to_largest(relative), exact - by).to(z.dtype)

    def shift_gradient(self, grad: Tensor) -> Tensor:
        """The gradient of u, given that of the shifted logits."""
        sums = self._membership.T @ grad.double()
        return -self.temperature * (self.groups.rows @ sums)

    def add_vjp(self, grad: Tensor, u: Tensor, w: Array) -> Tensor:
        """Add the gradient in z, from w of :func:`~fairmp.nn.newton.implicit_gradient`."""
        q = self._logits(u.cpu().numpy() * self.scale[:, None]).softmax(1)
        pull = self.columns @ torch.from_numpy(w).to(self.z.device)
        result = grad.double()
        result[self.inside] += q * (pull - (pull * q).sum(1, keepdim=True)) / self.temperature
        return result.to(grad.dtype)

    @property
    def _membership(self) -> Tensor:
        return self.groups.membership.double()

    def _logits(self, v: Array) -> Tensor:
        return self.logits - self.columns @ torch.from_numpy(v).to(self.z.device)

r"""The dual problem of the projection: how a step is solved, applied and differentiated.

:func:`solve_dual` finds the dual u of a step, :func:`shift_groups` applies it. Logits are n×C;
those of two classes may be margins :math:`z_1 - z_0` instead (n×1), which is all that softmax sees.

The dual of one gap between two classes is one number, the root of a decreasing function, which a
kernel finds (:class:`BinaryDual`). Any other is found by Newton's method (:class:`NewtonDual`,
:mod:`fairmp.nn.newton`), where a pass over the nodes sums a few numbers per group
(:class:`HardGroupProblem`) or, where groups are probabilities, over rows of Δᵀ
(:class:`SoftGroupProblem`). Many groups of nodes that have one each are solved group by group
(:class:`ManyGroupsProblem`, :mod:`fairmp.nn.blocks`), in time linear in nodes and groups; gradients
pass through all of them alike.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fairmp.groups import GroupOperator
from fairmp.kernels import apply, implementation, relative_to_largest
from fairmp.kernels.root import MAX_MARGIN, find_root
from fairmp.kernels.types import BinaryProblem, Clip
from fairmp.nn.blocks import implicit_block_gradient, solve_blocks
from fairmp.nn.newton import DualProblem, DualSolution, Moments, implicit_gradient, solve
from fairmp.nn.quadratic import FLAT, Array

MAX_DENSE_SIZE = 40  # rows times classes, up to which Newton's method has a dense Hessian

Number = float | Tensor  # on a GPU a tensor there (1), which the host need not wait for


class Dual(ABC):
    """The dual u of a step, how it was found, and what it does to logits.

    Attributes:
        temperature: τ.
        residual: by how much the gap violates the optimality conditions.
        passes: over the nodes.
        needs_logits: whether the gradient of a shift reads the logits.
    """

    temperature: float
    residual: Number
    passes: Number
    needs_logits: bool

    @property
    @abstractmethod
    def u(self) -> Tensor:
        """The dual (G'×C, float64)."""

    @abstractmethod
    def shift(self, z: Tensor) -> Tensor:
        """Subtract τΔᵀu; nodes of unknown group keep their logits."""

    @abstractmethod
    def shift_vjp(self, grad: Tensor) -> Tensor:
        """The gradient of z, given that of the shifted logits; it passes through u as well."""


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
        start: the dual of similar logits, to start from.
        tol: by how much the gap may miss its target, by default what the type of z allows.
    """
    z = z.detach().contiguous()
    tol = tolerance(z.dtype) if tol is None else tol
    if z.size(1) <= 2 and groups.binary is not None:
        assert start is None or isinstance(start, BinaryDual)
        return BinaryDual(BinaryProblem(z, groups.binary, temperature, target, tol), start)
    assert start is None or isinstance(start, NewtonDual)
    return NewtonDual(_group_problem(z, groups, temperature), target, tol, start)


def _group_problem(z: Tensor, groups: GroupOperator, temperature: float) -> GroupProblem:
    if groups.codes is None:
        return SoftGroupProblem(z, groups, temperature)
    if groups.means is not None and groups.num_rows * z.size(1) > MAX_DENSE_SIZE:
        return ManyGroupsProblem(z, groups, temperature)
    return HardGroupProblem(z, groups, temperature)


def shift_groups(z: Tensor, dual: Dual) -> Tensor:
    """Shift the logits of each group: z − τΔᵀu; nodes of unknown group keep theirs.

    The gradient of z passes through u as well, by implicit differentiation. Logits so large that a
    shift would be lost in their rounding are returned relative to each row's largest.
    """
    return apply(_ShiftGroups, z.contiguous(), dual)


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
        if dual.needs_logits:  # which it holds; saving them detects changes in place
            ctx.save_for_backward(z)
        return dual.shift(z)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        _ = ctx.saved_tensors
        dual: Dual = ctx.dual
        return dual.shift_vjp(grad.contiguous()), None


class BinaryDual(Dual):
    r"""The dual of one gap between two classes, one number: the margin of u.

    A gap that is held stays where it is: the margin of u moves by
    :math:`\sum δσ' dm / (τ\,\mathrm{scale} \sum δ^2σ')` with the margins m of the logits.
    """

    needs_logits = False
    margin: Number

    def __init__(self, problem: BinaryProblem, start: BinaryDual | None) -> None:
        guess: Number | None = None
        if start is not None:  # a shift of the same logits
            guess = start.temperature / problem.temperature * start.margin
        root = implementation(problem.z).binary_root(problem, guess)
        self.margin, self.residual, self.passes = root.u, root.residual, root.passes
        self.temperature, self._target = problem.temperature, problem.target
        self._groups, self._columns = problem.groups, problem.z.size(1)
        self._slope, self._curvature = root.slope, root.curvature

    @property
    def u(self) -> Tensor:
        """The dual of both classes (1×2, float64)."""
        if isinstance(self.margin, Tensor):
            return torch.stack([self.margin / -2, self.margin / 2], 1)
        return torch.tensor([[-self.margin / 2, self.margin / 2]], dtype=torch.float64)

    def shift(self, z: Tensor) -> Tensor:
        """Shift margins by a column times a number."""
        clip = clip_bounds(z.dtype, self.temperature)
        amount = self.temperature * self.margin
        return implementation(z).shift_margins(z, self._groups, amount, clip)

    def shift_vjp(self, grad: Tensor) -> Tensor:
        """Add what passes through the margin of u."""
        # A change of the margin is half a logit up and half a logit down.
        factor = -self.temperature / self._columns * self._response()
        return implementation(grad).shift_margins_vjp(grad, self._groups, self._slope, factor)

    def _response(self) -> Number:
        """How far the margin of u moves with those of the nodes, per δσ'; 0 for a free gap."""
        rate = self.temperature * self._groups.scale * self._curvature
        held: Any = (self._curvature > FLAT) & ((self.margin != 0) | (self._target == 0))
        if isinstance(held, Tensor):
            return torch.where(held, 1 / rate, 0.0)
        return 1 / rate if held else 0.0


class NewtonDual(Dual):
    """The dual of any number of gaps and classes, by Newton's method."""

    needs_logits = True
    _solution: DualSolution

    def __init__(
        self, problem: GroupProblem, target: float, tol: float, start: NewtonDual | None
    ) -> None:
        width = problem.width()
        if width > MAX_MARGIN:
            problem, width = problem.clipped(), MAX_MARGIN
        guess = np.zeros(problem.shape)
        if start is not None:  # a shift of the same logits
            guess = start.temperature / problem.temperature * start._solution.u
        self._problem = problem
        self._solution = problem.solve(guess, width, target, tol)
        self.temperature = problem.temperature
        self.residual, self.passes = self._solution.residual, float(self._solution.passes)

    @property
    def u(self) -> Tensor:
        """The dual (G'×C, float64)."""
        return torch.from_numpy(self._solution.u).to(self._problem.z.device)

    def shift(self, z: Tensor) -> Tensor:
        """Shift logits by group."""
        return self._problem.shift(z, self.u)

    def shift_vjp(self, grad: Tensor) -> Tensor:
        """Add what passes through u, differentiated implicitly."""
        problem = self._problem
        # Each process has the part of the gradient that comes from its own nodes.
        incoming = problem.groups.total(problem.shift_gradient(grad).double()).cpu().numpy()
        w = problem.implicit_gradient(self._solution, incoming)
        return problem.add_vjp(grad, self.u, w) if w.any() else grad


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


class GroupProblem(DualProblem):
    """The nodes of a dual problem, at logits z/τ."""

    def __init__(self, z: Tensor, groups: GroupOperator, temperature: float) -> None:
        self.z, self.groups, self.temperature = z, groups, temperature
        self.blocks = groups.blocks

    def clipped(self) -> GroupProblem:
        """The same problem with margins of at most 10⁶ τ; gradients pass as if they were not."""
        margins = relative_to_largest(self.z.double()).clamp_min(-MAX_MARGIN * self.temperature)
        return type(self)(margins, self.groups, self.temperature)

    @abstractmethod
    def width(self) -> float:
        """Largest logit range of a node in the population."""

    def solve(self, start: Array, width: float, target: float, tol: float) -> DualSolution:
        """Find the dual, from a first guess (G'×C), for logits whose largest range is ``width``."""
        method = _solve_one_gap if self.shape == (1, 2) else solve
        return method(self, start, width, target, tol)

    def implicit_gradient(self, solution: DualSolution, incoming: Array) -> Array:
        """See :func:`~fairmp.nn.newton.implicit_gradient`."""
        return implicit_gradient(solution, self.scale, incoming)

    @abstractmethod
    def shift(self, z: Tensor, u: Tensor) -> Tensor:
        """Subtract τΔᵀu."""

    @abstractmethod
    def shift_gradient(self, grad: Tensor) -> Tensor:
        """The gradient of u, given that of the shifted logits."""

    @abstractmethod
    def add_vjp(self, grad: Tensor, u: Tensor, w: Array) -> Tensor:
        """Add the gradient in z, from w of :func:`~fairmp.nn.newton.implicit_gradient`."""


class GroupSums(NamedTuple):
    """Sums over the nodes of each group."""

    value: float  # of logsumexp, over all groups
    first: Array  # q (G×C)
    second: Array  # the curvature, diag(q) − qqᵀ (G×C×C)


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
        sums = self.sums_at(v, temperature)
        hessian = np.einsum("ag,bg,gcd->acbd", self.rows, self.rows, sums.second)
        gradient = (self.rows @ sums.first).ravel()
        return Moments(sums.value, gradient, hessian.reshape(2 * gradient.shape))

    def width(self) -> float:
        """Largest logit range of a node in the population."""
        low, high = torch.aminmax(self.z.T.contiguous(), dim=0)
        ranges = torch.where(self.population_codes >= 0, high - low, 0).double()
        widest = self.groups.largest(torch.cat([ranges, ranges.new_zeros(1)]).max().view(1))
        return float(widest) / self.temperature

    def gram(self) -> Array:
        """ΔΔᵀ, of the scaled rows (G'×G')."""
        ones = torch.ones(self.z.size(0), 1, dtype=self.z.dtype, device=self.z.device)
        groups = self.rows.shape[1]
        sums = implementation(ones).segment_sum(ones, self.population_codes, groups)
        counts = self.groups.total(sums).flatten().cpu().numpy()
        return np.asarray((self.rows * counts) @ self.rows.T)

    def shift(self, z: Tensor, u: Tensor) -> Tensor:
        """Subtract τΔᵀu."""
        table = self.temperature * self.groups.by_group(u)
        return implementation(z).shift(z, self.codes, table, clip_bounds(z.dtype, self.temperature))

    def shift_gradient(self, grad: Tensor) -> Tensor:
        """The gradient of u, given that of the shifted logits."""
        sums = implementation(grad).segment_sum(grad, self.codes, self.groups.num_groups)
        return -self.temperature * self.groups.compare(sums)

    def add_vjp(self, grad: Tensor, u: Tensor, w: Array) -> Tensor:
        """Add the gradient in z, from w of :func:`~fairmp.nn.newton.implicit_gradient`."""
        tau, codes = self.temperature, self.population_codes
        shift, pull = tau * self.groups.by_group(u), self._table(self.by_group(w) / tau)
        return implementation(self.z).softmax_vjp(grad, self.z, codes, shift, tau, pull)

    def by_group(self, v: Array) -> Array:
        """A dual of the scaled rows as a shift per group (G×C)."""
        return np.asarray(self.rows.T @ v)

    def sums_at(self, v: Array, temperature: float) -> GroupSums:
        """Pass over the nodes at the dual v (G'×C) of the scaled rows."""
        groups, classes, tau = self.groups.num_groups, self.shape[1], self.temperature
        table, kernels = self._table(tau * self.by_group(v)), implementation(self.z)
        flat = kernels.moments(self.z, self.population_codes, table, tau * temperature)
        numbers, size = self.groups.total(flat).cpu().numpy(), groups * classes
        second = numbers[1 + size :].reshape(groups, classes, classes)
        # The sums of q_c·q_d are minus the curvature between classes, those of q_c(1−q_c) within.
        second = np.where(np.eye(classes, dtype=bool), second, -second) / temperature
        first = numbers[1 : 1 + size].reshape(groups, classes)
        return GroupSums(float(numbers[0]) / tau, first, second)

    def _table(self, values: Array) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(self.z.device)


class ManyGroupsProblem(HardGroupProblem):
    """The problem of nodes of one group each, of many groups: the scaled dual is their shift."""

    def __init__(self, z: Tensor, groups: GroupOperator, temperature: float) -> None:
        GroupProblem.__init__(self, z, groups, temperature)
        assert groups.means is not None
        assert groups.codes is not None
        assert groups.population_codes is not None
        self.codes, self.population_codes = groups.codes, groups.population_codes
        self.present = groups.means.present.cpu().numpy()
        self.scale = 1 / groups.means.counts.cpu().numpy()[self.present]
        self.shape = len(self.present), z.size(1)

    def solve(self, start: Array, width: float, target: float, tol: float) -> DualSolution:
        """Find the dual, group by group."""
        return solve_blocks(self, start, width, target, tol)

    def implicit_gradient(self, solution: DualSolution, incoming: Array) -> Array:
        """See :func:`~fairmp.nn.newton.implicit_gradient`."""
        return implicit_block_gradient(solution, self.scale, incoming)

    def moments(self, v: Array, temperature: float) -> Moments:
        """Pass over the nodes; the Hessian is one block per group (G'×C×C)."""
        sums = self.sums_at(v, temperature)
        gradient = sums.first[self.present].ravel()
        return Moments(sums.value, gradient, sums.second[self.present])

    def by_group(self, v: Array) -> Array:
        """A dual of the scaled rows as a shift per group (G×C)."""
        table = np.zeros((self.groups.num_groups, self.shape[1]))
        table[self.present] = v
        return table


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

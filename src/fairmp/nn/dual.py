r"""The dual problem of the projection, as an operation that autograd differentiates.

A pass over the nodes sums a few numbers per group where every node has one group
(:class:`HardGroupDual`); where groups are probabilities, each node has its own row of Δᵀ
(:class:`SoftGroupDual`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fairmp.groups import GroupOperator
from fairmp.kernels import implementation, relative_to_largest
from fairmp.nn.fused import largest_logit, respond, solve_scalar, tolerance
from fairmp.nn.newton import Array, DualSolution, Moments, solve

MAX_MARGIN = 1e6  # in units of τ; float64 resolves a shift of this size to 1e-10


def solve_dual(
    z: Tensor,
    groups: GroupOperator,
    target: float,
    temperature: float,
    start: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Find the dual u of the predictions closest to softmax(z/τ) within the target gap.

    .. math::
        \min_Q \sum_i \mathrm{KL}(Q_i \| P_i) \quad \text{s.t.} \quad |\Delta Q| \le \text{target},
        \qquad Q = \mathrm{softmax}(z/\tau - \Delta^\top u).

    Gradients are those of the solution, by implicit differentiation.

    ``start`` is a first guess of u, ``dtype`` the type whose precision it needs (by default z's).
    Returns u (G'×C, float64), and the residual and number of passes over the nodes (2).
    """
    numbers = target, temperature, tolerance(dtype or z.dtype)
    guess = None if start is None else start.detach().cpu().numpy()
    return _SolveDual.apply(z.contiguous(), groups, numbers, guess)


def shift_groups(
    z: Tensor, groups: GroupOperator, u: Tensor, temperature: float, dtype: torch.dtype
) -> Tensor:
    """Shift the logits of each group: z − τΔᵀu; nodes of unknown group keep theirs."""
    f = groups.subtract(z, temperature * groups.by_group(u))
    if f.dtype == dtype:
        return f
    # Relative to the largest, small margins survive the rounding of large logits.
    return torch.where(groups.known.unsqueeze(1), relative_to_largest(f), f).to(dtype)


def clip_logits(z: Tensor, groups: GroupOperator, temperature: float) -> Tensor:
    """The logits relative to each row's largest, in float64, where they exceed float precision.

    A shift as large as the logits would be lost in their rounding. Softmax does not change, except
    that margins are clipped at 10⁶ τ. Logits of ordinary size are returned as they are, and so are
    those of nodes of unknown group.
    """
    limit = temperature * largest_logit(z.dtype)
    if not z.numel() or float(torch.linalg.vector_norm(z.detach(), torch.inf)) <= limit:
        return z
    relative = relative_to_largest(z.double()).clamp_min(-MAX_MARGIN * temperature)
    return torch.where(groups.known.unsqueeze(1), relative, z.double())


class _SolveDual(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, z: Tensor, groups: GroupOperator, numbers: tuple[float, ...], guess: Array | None
    ) -> tuple[Tensor, Tensor]:
        target, temperature, tol = numbers
        problem = dual_problem(z, groups, temperature)
        start = np.zeros(problem.shape) if guess is None else guess
        method = solve_scalar if problem.shape == (1, 2) else solve
        ctx.solution = method(problem, start, target, tol)
        ctx.groups, ctx.temperature = groups, temperature
        ctx.save_for_backward(z)
        statistics = torch.tensor([ctx.solution.residual, float(ctx.solution.passes)])
        ctx.mark_non_differentiable(statistics)
        return torch.from_numpy(ctx.solution.u).to(z.device), statistics

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_u: Tensor, _: object) -> tuple[Tensor | None, ...]:
        (z,) = ctx.saved_tensors
        # Each process has the part of the gradient that comes from its own nodes.
        incoming = ctx.groups.total(grad_u.double()).cpu().numpy()
        problem = dual_problem(z, ctx.groups, ctx.temperature)
        w = respond(ctx.solution, problem.scale, incoming)
        return problem.vjp(ctx.solution, w), None, None, None


class _GroupDual:
    """What both kinds of dual problems share."""

    def moments(self, v: Array, temperature: float) -> Moments:
        raise NotImplementedError

    def gap(self, root: float) -> tuple[float, float]:
        """The gap at v = (−root/2, root/2), and minus its derivative."""
        found = self.moments(np.array([[-root / 2, root / 2]]), 1.0)
        return float(found.gradient[1]), float(found.hessian[1, 1])


class HardGroupDual(_GroupDual):
    """The dual problem of nodes of one group each, at logits z/τ."""

    def __init__(self, z: Tensor, groups: GroupOperator, temperature: float) -> None:
        assert groups.population_codes is not None
        self.z, self.groups, self.temperature = z, groups, temperature
        self.codes, self.kernels = groups.population_codes, implementation(z)
        rows = groups.rows.cpu().numpy()
        self.scale = np.maximum(np.abs(rows).max(1), np.finfo(np.float64).tiny)
        self.rows = rows / self.scale[:, None]
        self.shape, self.blocks = (rows.shape[0], z.size(1)), groups.blocks

    def moments(self, v: Array, temperature: float) -> Moments:
        """Pass over the nodes at the dual v (G'×C)."""
        groups, classes, tau = self.rows.shape[1], self.shape[1], self.temperature
        table = self._table(tau * (self.rows.T @ v))
        flat = self.kernels.moments(self.z, self.codes, table, tau * temperature)
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
        ranges = torch.where(self.codes >= 0, high - low, 0).double()
        widest = self.groups.largest(torch.cat([ranges, ranges.new_zeros(1)]).max().view(1))
        return float(widest) / self.temperature

    def gram(self) -> Array:
        """ΔΔᵀ, of the scaled rows (G'×G')."""
        one = torch.ones(self.z.size(0), 1, dtype=self.z.dtype, device=self.z.device)
        sums = self.kernels.segment_sum(one, self.codes, self.rows.shape[1])
        counts = self.groups.total(sums).flatten().cpu().numpy()
        return (self.rows * counts) @ self.rows.T

    def vjp(self, dual: DualSolution, w: Array) -> Tensor:
        """The gradient in z, from w of :func:`~fairmp.nn.fused.respond`."""
        zeros, tau = torch.zeros_like(self.z), self.temperature
        if not w.any():
            return zeros
        shift = self._table(tau * (self.rows.T @ (self.scale[:, None] * dual.u)))
        pull = self._table(self.rows.T @ w / tau)
        return self.kernels.softmax_vjp(zeros, self.z, self.codes, shift, tau, pull)

    def _table(self, values: Array) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(self.z.device)


class SoftGroupDual(_GroupDual):
    """The dual problem of nodes whose groups are probabilities, at logits z/τ; in plain torch."""

    def __init__(self, z: Tensor, groups: GroupOperator, temperature: float) -> None:
        self.z, self.groups, self.temperature = z, groups, temperature
        # Δᵀ in float64: float32 does not resolve 1/n to the method's tolerance.
        columns = groups.population_membership.double() @ groups.rows.T
        self.inside = (columns != 0).any(1)
        columns = columns[self.inside]
        widest = columns.abs().amax(0) if columns.size(0) else columns.new_zeros(columns.size(1))
        scale = groups.largest(widest).clamp_min(torch.finfo(torch.float64).tiny)
        self.scale = scale.cpu().numpy()
        self.columns = columns / scale
        self.logits = z[self.inside].double() / temperature
        self.shape, self.blocks = (columns.size(1), z.size(1)), groups.blocks

    def moments(self, v: Array, temperature: float) -> Moments:
        """Pass over the nodes at the dual v (G'×C)."""
        rows, classes = self.shape
        logits, q = self._at(v, temperature)
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

    def vjp(self, dual: DualSolution, w: Array) -> Tensor:
        """The gradient in z, from w of :func:`~fairmp.nn.fused.respond`."""
        _, q = self._at(dual.u * self.scale[:, None], 1.0)
        pull = self.columns @ torch.from_numpy(w).to(self.z.device)
        result = torch.zeros_like(self.z, dtype=torch.float64)
        result[self.inside] = q * (pull - (pull * q).sum(1, keepdim=True)) / self.temperature
        return result.to(self.z.dtype)

    def _at(self, v: Array, temperature: float) -> tuple[Tensor, Tensor]:
        shift = self.columns @ torch.from_numpy(v).to(self.z.device)
        logits = (self.logits - shift) / temperature
        return logits, logits.softmax(1)


def dual_problem(
    z: Tensor, groups: GroupOperator, temperature: float
) -> HardGroupDual | SoftGroupDual:
    """The dual problem for these groups."""
    kind = SoftGroupDual if groups.codes is None else HardGroupDual
    return kind(z.detach(), groups, temperature)

r"""Plain propagation, and the three solvers of fair message passing: a loop each.

All of them propagate with a skip to the input,

.. math::
    \mathrm{agg} = \gamma X + (1-\gamma) \tilde{A} F, \qquad \gamma = 1/(1+\lambda_s),

and the solvers then correct what was propagated:

- :func:`projection` moves to the closest predictions within the target gap;
- :func:`paper` runs the primal-dual iteration as printed in the paper;
- :func:`papc` runs it with the step size its operator needs.

The loops run on every device, for hard and soft groups, and for graphs and groups that are
distributed over processes. Faster implementations of them are in :mod:`fairmp.nn.fused`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fairmp.graph import Operator, aggregate
from fairmp.groups import GroupOperator
from fairmp.kernels import implementation, not_compiled, softmax
from fairmp.nn import fused
from fairmp.nn.decisions import DecisionShift
from fairmp.nn.dual import clip_logits, shift_groups, solve_dual
from fairmp.nn.fused import Gamma, Loop, Problem, State, as_floats, collect

if TYPE_CHECKING:
    from fairmp.kernels.cuda.graphs import CUDAGraphCache

MAX_EXCESS = 1e-4  # of a gap over its target; more is warned about
MIN_NORM = 1e-20  # of ΔΔᵀ; about 4/n, so that anything smaller is rounding

Strength = float | Sequence[float] | Tensor  # one number, or one per step


@dataclass(frozen=True)
class Step:
    """The state after one propagation step.

    Attributes:
        objective: smoothness + fidelity + fairness.
        smoothness: :math:`λ_s/2 · tr(FᵀL̃F)`.
        fidelity: :math:`½‖F − X‖²`.
        fairness: :math:`λ_f ‖Δ softmax(F)‖₁`; 0 for ``projection``, which has no λ_f.
        gap: :math:`Δ softmax(F)` (G'×C).
        dual: :math:`u` (G'×C).
    """

    objective: float
    smoothness: float
    fidelity: float
    fairness: float
    gap: Tensor
    dual: Tensor


@dataclass(frozen=True)
class Solution:
    """The result of a solver.

    Attributes:
        f: the propagated, corrected logits (n×C).
        duals: the dual u of each step (K×G'×C).
        groups: the operator Δ.
        temperature: τ (``projection``), else 1.
        steps: one :class:`Step` per propagation step, if a trace was asked for.
        statistics: residual and number of passes of each step's dual (K×2; ``projection``).
        decisions: how the gap of decisions was closed after the last step, if asked for.
    """

    f: Tensor
    duals: Tensor
    groups: GroupOperator = field(repr=False)
    temperature: float = 1.0
    steps: tuple[Step, ...] = field(default=(), repr=False)
    statistics: Tensor | None = field(default=None, repr=False)
    decisions: DecisionShift | None = field(default=None, repr=False)

    @property
    def dual(self) -> Tensor:
        """The dual u of the last step (G'×C)."""
        return self.duals[-1]

    @property
    def group_duals(self) -> Tensor:
        """Logit shift per step and group, τMᵀu (K×G×C); see :func:`frozen`.

        The shift that closes the gap of decisions is part of the last step's.
        """
        shifts = self.temperature * self.groups.by_group(self.duals)
        if self.decisions is None:
            return shifts
        last = shifts[-1:] + self.decisions.shift.to(shifts.dtype)
        return torch.cat([shifts[:-1], last])

    @property
    def residual(self) -> float | None:
        """By how much the last gap violates the optimality conditions (``projection``)."""
        return None if self.statistics is None else float(self.statistics[-1, 0])

    @property
    def iterations(self) -> int | None:
        """Passes over the nodes, in all steps (``projection``)."""
        return None if self.statistics is None else int(self.statistics[:, 1].sum())


@not_compiled
def propagate(
    x: Tensor,
    graph: Operator,
    *,
    K: int,
    lambda_s: Strength,
    softmax_only: bool = False,
    cuda_graphs: CUDAGraphCache | None = None,
) -> Tensor:
    """Propagate K steps without a correction; equal to APPNP with α = 1/(1+λ_s).

    ``softmax_only``: each row may lack a constant, which softmax does not see.
    """
    gamma = skip_weights(lambda_s, K)
    if not isinstance(gamma, Tensor) and gamma[-1] == 1:  # the last step returns its input
        return x.clone()
    found = fused.plain(x, graph, gamma, softmax_only=softmax_only)
    if found is not None:
        return found

    def steps(x: Tensor, gamma: Gamma) -> tuple[Tensor]:
        f = x
        for weight in gamma:
            f = aggregate(f, x, graph, weight)
        return (f,)

    return (fused.replayed(steps, x, gamma, (graph,), (), cuda_graphs) or steps(x, gamma))[0]


def projection_steps(x: Tensor, problem: Problem) -> Iterator[State]:
    """The projection's loop."""
    graph, groups, gamma, (target, temperature), _ = problem
    f, u = x, None
    for weight in gamma:
        agg = aggregate(f, x, graph, weight)  # propagate, with a skip to the input
        z = clip_logits(agg, groups, temperature)  # as it is, unless it exceeds float precision
        u, statistics = solve_dual(z, groups, target, temperature, u, x.dtype)  # closest within it
        f = shift_groups(z, groups, u, temperature, x.dtype)  # shift each group
        yield f, u, statistics


def primal_dual_steps(x: Tensor, problem: Problem) -> Iterator[State]:
    """The paper's five steps, with the step size β = step/γ."""
    graph, groups, gamma, (lambda_f, step), _ = problem
    f = x
    u = torch.zeros(groups.rows.size(0), x.size(1), dtype=torch.float64, device=x.device)
    for k, weight in enumerate(gamma):
        agg = aggregate(f, x, graph, weight)  # 1 propagate, with a skip to the input
        # 2 predict; at first u is 0
        f_bar = subtract_coupling(agg, f, u, groups, weight) if k else agg
        u_bar = u + step / weight * softmax_gap(f_bar, groups)  # 3 dual step
        u = u_bar.clamp(-lambda_f, lambda_f)  # 4 limit it to its strength
        f = subtract_coupling(agg, f, u, groups, weight)  # 5 correct
        yield f, u


@not_compiled
def projection(
    x: Tensor,
    graph: Operator,
    groups: GroupOperator,
    *,
    K: int,
    lambda_s: Strength,
    target: float = 0.0,
    temperature: float = 1.0,
    trace: bool = False,
    softmax_only: bool = False,
    cuda_graphs: CUDAGraphCache | None = None,
) -> Solution:
    r"""Project the predictions of each step onto those within the target gap.

    .. math::
        \min_Q \sum_i \mathrm{KL}(Q_i \| P_i) \quad \text{s.t.} \quad |\Delta Q| \le \text{target},
        \qquad P = \mathrm{softmax}(\mathrm{agg} / \tau).

    The solution is a logit shift per group, :math:`F = \mathrm{agg} - \tau\,\Delta^\top u`. The
    dual u is solved for in each step, warm started from the step before; gradients pass through it
    by implicit differentiation. Where logits lie so far apart that the method falls back on scaling
    full parity (hundreds, in more than two classes or groups), u is taken as a constant.
    ``softmax_only`` is as in :func:`propagate`.
    """
    numbers, gamma = (target, temperature), skip_weights(lambda_s, K)
    problem = Problem(graph, groups, gamma, numbers, softmax_only)
    (f, duals, statistics), steps = _run(x, projection_steps, problem, trace, cuda_graphs)
    # On a GPU the host would have to wait for the residual.
    if not statistics.is_cuda and float(statistics[-1, 0]) > MAX_EXCESS:
        over = f"it is exceeded by up to {float(statistics[-1, 0]):.2g}"
        warnings.warn(f"the projection did not meet the target: {over}", stacklevel=2)
    return Solution(f, duals, groups, temperature, steps, statistics)


def paper(
    x: Tensor, graph: Operator, groups: GroupOperator, *, lambda_f: float, **options: Any
) -> Solution:
    r"""Run the five printed steps, with :math:`\beta = 1/(2\gamma)`.

    Kept to reproduce the paper, and almost inert: β suits an operator of squared norm 2, but
    :math:`\|\Delta\|^2 = 1/n_+ + 1/n_-`, so that in K steps the dual reaches about Kβ·gap where it
    would need the order of n. ``K``, ``lambda_s``, ``trace`` and ``cuda_graphs`` are as in
    :func:`projection`.
    """
    return _primal_dual(x, graph, groups, (lambda_f, 0.5), **options)


def papc(
    x: Tensor, graph: Operator, groups: GroupOperator, *, lambda_f: float, **options: Any
) -> Solution:
    r"""Run the same five steps with the step size the operator needs.

    :math:`\beta = 4 / (\gamma \|\Delta\Delta^\top\|_2)`, since softmax's Jacobian has norm ≤ ½, and
    a scale-free strength, :math:`\lambda_f / \|\Delta\Delta^\top\|_2`, so that one value of
    ``lambda_f`` means the same on 400 nodes and on 100 million.
    """
    # Where Δ is 0 but for rounding, so is every gap, and no step is needed.
    norm = groups.norm if groups.norm > MIN_NORM else 1.0
    return _primal_dual(x, graph, groups, (lambda_f / norm, 4 / norm), **options)


@not_compiled
def _primal_dual(
    x: Tensor,
    graph: Operator,
    groups: GroupOperator,
    numbers: tuple[float, float],
    *,
    K: int,
    lambda_s: Strength,
    trace: bool = False,
    softmax_only: bool = False,
    cuda_graphs: CUDAGraphCache | None = None,
) -> Solution:
    problem = Problem(graph, groups, skip_weights(lambda_s, K), numbers, softmax_only)
    (f, duals), steps = _run(x, primal_dual_steps, problem, trace, cuda_graphs)
    return Solution(f, duals, groups, steps=steps)


def frozen(
    x: Tensor,
    graph: Operator,
    membership: Tensor,
    group_duals: Tensor,
    *,
    lambda_s: Strength,
    projected: bool,
) -> Tensor:
    """Propagate with the duals of an earlier solution instead of solving again.

    ``membership`` is the probability of each group (n×G); a node with a row of zeros is not
    corrected. ``projected`` says that the duals are those of :func:`projection`, logit shifts.
    """
    f = x
    for dual, weight in zip(group_duals, skip_weights(lambda_s, len(group_duals)), strict=True):
        u = membership @ dual.to(x.dtype)
        agg = aggregate(f, x, graph, weight)
        f = agg - u if projected else agg - weight * coupling_gradient(f, u)
    return f


def skip_weights(lambda_s: Strength, K: int) -> Gamma:
    """The skip weight γ = 1/(1+λ_s) of each step; a tensor of strengths may require a gradient.

    Example:
        >>> skip_weights(3.0, 2)
        (0.25, 0.25)
    """
    if isinstance(lambda_s, Tensor):
        return (1 / (1 + lambda_s)).expand(K)
    strengths = lambda_s if isinstance(lambda_s, Sequence) else K * (lambda_s,)
    return tuple(1 / (1 + strength) for strength in strengths)


def coupling_gradient(f: Tensor, u: Tensor) -> Tensor:
    r"""Gradient of the fairness coupling :math:`\langle U, \mathrm{softmax}(F) \rangle` in F.

    .. math::
        G(F, U) = P \odot (U - \mathrm{rowsum}(U \odot P)), \qquad P = \mathrm{softmax}(F),

    with :math:`U = \Delta^\top u` (n×C); O(nC).

    Example:
        >>> f, u = torch.zeros(1, 2), torch.tensor([[1.0, 0.0]])
        >>> coupling_gradient(f, u)
        tensor([[ 0.2500, -0.2500]])
    """
    p = softmax(f)
    return p * (u - (u * p).sum(1, keepdim=True))


def subtract_coupling(
    agg: Tensor, f: Tensor, u: Tensor, groups: GroupOperator, gamma: float | Tensor
) -> Tensor:
    """Agg − γG(F, Δᵀu); nodes of unknown group keep what was propagated."""
    if groups.codes is None:
        return agg - gamma * coupling_gradient(f, groups.shift(u.to(f.dtype)))
    return _SubtractCoupling.apply(agg.contiguous(), f.contiguous(), u, gamma, groups)


def softmax_gap(f: Tensor, groups: GroupOperator) -> Tensor:
    """Δ softmax(F), in float64 (G'×C)."""
    if groups.population_codes is None:
        return groups.gap(softmax(f)).double()
    sums = _SoftmaxSums.apply(f.contiguous(), groups.population_codes, groups.num_groups)
    return groups.gap_of_sums(sums)


class _SubtractCoupling(torch.autograd.Function):
    """agg − γG(F, Δᵀu) for hard groups."""

    @staticmethod
    def forward(
        ctx: Any, agg: Tensor, f: Tensor, u: Tensor, gamma: float | Tensor, groups: Any
    ) -> Tensor:
        shift = groups.by_group(u)
        table, none = -gamma * shift, torch.zeros_like(shift)
        ctx.gamma, ctx.groups = gamma, groups
        ctx.save_for_backward(f, table, shift)
        return implementation(f).softmax_vjp(agg, f, groups.codes, none, 1.0, table)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        f, table, shift = ctx.saved_tensors
        inputs = grad.contiguous(), f, ctx.groups.codes, table
        grad_f, grad_table = implementation(f).coupling_backward(*inputs)
        grad_gamma = -(grad_table * shift).sum() if ctx.needs_input_grad[3] else None
        return grad, grad_f, -ctx.gamma * (ctx.groups.rows @ grad_table), grad_gamma, None


class _SoftmaxSums(torch.autograd.Function):
    """The sums of softmax(F) by group (G×C, float64)."""

    @staticmethod
    def forward(ctx: Any, f: Tensor, codes: Tensor, num_groups: int) -> Tensor:
        ctx.save_for_backward(f, codes)
        shift = torch.zeros(num_groups, f.size(1), dtype=torch.float64, device=f.device)
        numbers = implementation(f).moments(f, codes, shift, 1.0)
        return numbers[1 : 1 + shift.numel()].view_as(shift).clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        f, codes = ctx.saved_tensors
        kernels, zeros = implementation(f), torch.zeros_like(f)
        return kernels.softmax_vjp(zeros, f, codes, torch.zeros_like(grad), 1.0, grad), None, None


def _run(
    x: Tensor, loop: Loop, problem: Problem, trace: bool, cuda_graphs: CUDAGraphCache | None
) -> tuple[State, tuple[Step, ...]]:
    """The results of a solver's loop, from a faster implementation if there is one; the trace."""
    projects = loop is projection_steps
    results = None if trace else fused.solver(x, loop, problem, cuda_graphs, projects=projects)
    if results is not None:
        return results, ()
    states = list(loop(x, problem))
    steps, graph, weights = [], problem.graph, as_floats(problem.gamma)
    lambda_f, temperature = (0.0, problem.numbers[1]) if projects else (problem.numbers[0], 1.0)
    with torch.no_grad():
        for (f, u, *_), weight in zip(states, weights, strict=True) if trace else ():
            gap = problem.groups.gap(softmax(f / temperature))
            lambda_s = 1 / weight - 1
            smoothness = lambda_s / 2 * float((f * (f - graph.aggregate(f, None, 0.0))).sum())
            fidelity = float((f - x).square().sum()) / 2
            fairness = lambda_f * float(gap.abs().sum())
            total = smoothness + fidelity + fairness
            steps.append(Step(total, smoothness, fidelity, fairness, gap, u.to(x.dtype, copy=True)))
    return collect(states, x), tuple(steps)

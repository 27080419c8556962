r"""Three ways to take the gap out while propagating: ``paper``, ``papc`` and ``projection``.

All of them propagate with a skip to the input,

.. math::
    \mathrm{agg} = \gamma X + (1-\gamma) \tilde{A} F, \qquad \gamma = 1/(1+\lambda_s),

and then correct. They take the graph as an :class:`Operator` and the groups as an
:class:`~fairmp.groups.GroupOperator`, the only two places where a node meets another.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fairmp.graph import Adjacency
from fairmp.groups import GroupOperator
from fairmp.kernels import implementation, reference, softmax
from fairmp.kernels.cuda.graphs import MAX_RECORDED_NUMEL, CUDAGraphCache
from fairmp.nn.dual import Found
from fairmp.nn.primal_dual import Coupling, PrimalDual
from fairmp.nn.projection import Projection

DECISIVE = (0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001)
NEARLY = 0.02


class Operator(Protocol):
    """A graph, as the solvers see it; :class:`~fairmp.graph.Adjacency` is one."""

    def aggregate(
        self, f: Tensor, x: Tensor | None, gamma: float, *, transposed: bool = False
    ) -> Tensor:
        """γX + (1−γ)ÃF, or with Ãᵀ; ÃF alone where X is ``None``."""


@dataclass(frozen=True)
class Step:
    """What one propagation step left behind.

    Attributes:
        objective: smoothness + fidelity + fairness.
        smoothness: :math:`λ_s/2 · tr(FᵀL̃F)`.
        fidelity: :math:`½‖F − X‖²`.
        fairness: :math:`λ_f ‖Δ softmax(F)‖₁`; for ``projection``, which has no λ_f, 0.
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
    """What a solver returns.

    Attributes:
        f: the propagated, corrected logits (n×C).
        duals: the dual u of each step (K×G'×C).
        delta: the incidence.
        temperature: τ (``projection``), else 1.
        steps: one :class:`Step` a propagation step, where a trace was asked for.
    """

    f: Tensor
    duals: Tensor
    delta: GroupOperator = field(repr=False)
    temperature: float = 1.0
    steps: tuple[Step, ...] = field(default=(), repr=False)
    found: tuple[Found, ...] = field(default=(), repr=False)

    @property
    def dual(self) -> Tensor:
        """The dual u of the last step (G'×C)."""
        return self.duals[-1]

    @property
    def group_duals(self) -> Tensor:
        """What each step's dual says to each group, τMᵀu (K×G×C); see :func:`frozen`."""
        return self.temperature * (self.delta.rows.T.to(self.duals.dtype) @ self.duals)

    @property
    def residual(self) -> float | None:
        """How far the last step's gap is from what optimality asks (``projection`` only)."""
        return self.found[-1].residual if self.found else None

    @property
    def iterations(self) -> int | None:
        """Passes over the nodes, all steps together (``projection`` only)."""
        return sum(dual.passes for dual in self.found) if self.found else None


def coupling_gradient(f: Tensor, u: Tensor) -> Tensor:
    r"""Differentiate the fairness coupling :math:`\langle U, \mathrm{softmax}(F) \rangle` in F.

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


@torch.compiler.disable
def propagate(
    x: Tensor,
    graph: Operator,
    *,
    K: int,
    lambda_s: float,
    recordings: CUDAGraphCache | None = None,
) -> Tensor:
    """Propagate K steps without a correction; equal to APPNP with α = 1/(1+λ_s)."""
    gamma = 1 / (1 + lambda_s)
    return x.clone() if gamma == 1 else _Propagation.apply(x, graph, K, gamma, recordings)


class _Propagation(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        graph: Operator,
        K: int,
        gamma: float,
        recordings: CUDAGraphCache | None,
    ) -> Tensor:
        x = x.contiguous()

        def ahead(x: Tensor) -> tuple[tuple[Tensor], None]:
            return (_steps(x, graph, K, gamma),), None

        def back(_: None, gradients: tuple[Tensor, ...]) -> Tensor:
            return _steps(gradients[0], graph, K, gamma, transposed=True)

        ctx.recording, ctx.back = None, back
        # What waits for other machines, or runs on the host, can not be recorded.
        alone = type(graph) is Adjacency and implementation(x) is not reference
        if recordings is not None and x.is_cuda and alone and x.numel() <= MAX_RECORDED_NUMEL:
            ctx.recording = recordings.get((graph,), ("plain", K, gamma), x, ahead, back)
        if ctx.recording is None:
            return _steps(x, graph, K, gamma)
        (f,), ctx.turn = ctx.recording.forward(x)
        ctx.save_for_backward(x)
        return f

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        # The gradient of K steps is the same K steps along the edges turned round.
        grad = grad.contiguous()
        if ctx.recording is None:
            g = ctx.back(None, (grad,))
        else:
            (x,) = ctx.saved_tensors
            g = ctx.recording.backward(ctx.turn, x, (grad,))
        return g, None, None, None, None


def _steps(x: Tensor, graph: Operator, K: int, gamma: float, *, transposed: bool = False) -> Tensor:
    f = x
    for _ in range(K):
        f = graph.aggregate(f, x, gamma, transposed=transposed)
    return f


def paper(
    x: Tensor,
    graph: Operator,
    delta: GroupOperator,
    *,
    K: int,
    lambda_s: float,
    lambda_f: float,
    trace: bool = False,
    recordings: CUDAGraphCache | None = None,
) -> Solution:
    r"""Run the five printed steps, with :math:`\beta = 1/(2\gamma)`.

    Kept to reproduce the paper, and almost inert: β was sized for an operator of norm² up to 2,
    but :math:`\|\Delta\|^2 = 1/n_+ + 1/n_-`, so that in K steps the dual reaches about Kβ·gap
    where it would need the order of n.
    """
    gamma = 1 / (1 + lambda_s)
    return _primal_dual(x, graph, delta, K, lambda_s, lambda_f, 1 / (2 * gamma), trace, recordings)


def papc(
    x: Tensor,
    graph: Operator,
    delta: GroupOperator,
    *,
    K: int,
    lambda_s: float,
    lambda_f: float,
    trace: bool = False,
    recordings: CUDAGraphCache | None = None,
) -> Solution:
    r"""Run the same five steps with the step size the operator needs.

    :math:`\beta = 4 / (\gamma \|\Delta\Delta^\top\|_2)`, since softmax's Jacobian has norm ≤ ½, and
    a strength without scale, :math:`\lambda_f / \|\Delta\Delta^\top\|_2`, so that one value of
    ``lambda_f`` means the same on 400 nodes and on 100 million.
    """
    beta, strength = 4 * (1 + lambda_s) / delta.norm, lambda_f / delta.norm
    return _primal_dual(x, graph, delta, K, lambda_s, strength, beta, trace, recordings)


@torch.compiler.disable
def projection(
    x: Tensor,
    graph: Operator,
    delta: GroupOperator,
    *,
    K: int,
    lambda_s: float,
    target: float = 0.0,
    temperature: float = 1.0,
    trace: bool = False,
    recordings: CUDAGraphCache | None = None,
) -> Solution:
    r"""Project each step's predictions onto parity.

    .. math::
        \min_Q \sum_i \mathrm{KL}(Q_i \| P_i) \quad \text{s.t.} \quad |\Delta Q| \le \text{target},
        \qquad P = \mathrm{softmax}(\mathrm{agg} / \tau).

    The solution is a logit shift that depends on the group alone,
    :math:`F = \mathrm{agg} - \tau\,\Delta^\top u`. The dual u is found to the end in each step,
    warm started from the one before; gradients pass through it by implicit differentiation. Where
    the logits lie so far apart that the method falls back on scaling full parity (hundreds, in
    more than two classes or groups), u is taken as a constant.
    """
    f, duals, done = Projection.apply(
        x, graph, delta, K, 1 / (1 + lambda_s), target, temperature, trace, recordings
    )
    steps = tuple(
        _step(x, step.f, graph, delta, lambda_s, 0.0, u, temperature)
        for step, u in zip(done, duals, strict=True)
        if step.f is not None
    )
    return Solution(f, duals, delta, temperature, steps, tuple(step.dual for step in done))


def decisions(
    x: Tensor,
    graph: Operator,
    delta: GroupOperator,
    *,
    K: int,
    lambda_s: float,
    target: float = 0.0,
    rough: bool = False,
) -> Solution:
    r"""Project with the largest temperature at which the gap of *decisions* keeps the target.

    What is decided is the class of the largest logit, which :math:`\mathrm{softmax}(F/τ)` comes to
    as τ falls. So τ falls, from a fifth of what a node's logits lie apart on average, until
    decisions are within ``target`` on the population, up to half a decision in the smallest group;
    that is looked at without any label. Where no τ gets there, the one that came closest is taken.
    ``rough`` spares the search where each try is costly, with more than two groups or classes, and
    takes a fiftieth: near enough to judge an epoch of training by.
    """
    apart = (x.detach().amax(1) - x.detach().amin(1)).double() * delta.population
    size = delta.total(torch.stack([apart.sum(), delta.population.double().sum()]))
    typical = max(float(size[0] / size[1].clamp_min(1)), 1e-6)
    slack = float(delta.rows.abs().max()) * (0.5 + 1e-6)
    best: tuple[float, Solution] | None = None
    costly = delta.rows.size(0) > 1 or x.size(1) > 2
    for part in (NEARLY,) if rough and costly else DECISIVE:
        solution = projection(
            x, graph, delta, K=K, lambda_s=lambda_s, target=target, temperature=part * typical
        )
        decided = torch.nn.functional.one_hot(solution.f.detach().argmax(1), x.size(1))
        gap = float(delta.gap(decided.to(x.dtype)).abs().max())
        if best is None or gap < best[0]:
            best = gap, solution
        if gap <= target + slack:
            break
    assert best is not None
    return best[1]


def frozen(
    x: Tensor,
    graph: Operator,
    membership: Tensor,
    group_duals: Tensor,
    *,
    lambda_s: float,
    projected: bool,
) -> Tensor:
    """Propagate with the duals of an earlier solution, group by group, instead of solving again.

    Args:
        x: logits (n×C).
        graph: the graph.
        membership: how much each node belongs to each group (n×G); zeros leave a node alone.
        group_duals: the solution's (K×G×C).
        lambda_s: the solution's.
        projected: whether the duals are ``projection``'s, logit shifts, or the other solvers'.
    """
    gamma = 1 / (1 + lambda_s)
    f = x
    for dual in group_duals:
        u = membership @ dual.to(x.dtype)
        agg = _aggregate(x, f, graph, gamma)
        f = agg - u if projected else agg - gamma * coupling_gradient(f, u)
    return f


@torch.compiler.disable
def _primal_dual(
    x: Tensor,
    graph: Operator,
    delta: GroupOperator,
    K: int,
    lambda_s: float,
    lambda_f: float,
    beta: float,
    trace: bool,
    recordings: CUDAGraphCache | None,
) -> Solution:
    gamma = 1 / (1 + lambda_s)
    if delta.codes is None:
        f, duals, walked = _walk(x, graph, delta, K, gamma, lambda_f, beta, trace)
    else:
        run = PrimalDual(graph, delta, K, gamma, lambda_f, beta)
        keep = torch.is_grad_enabled() and x.requires_grad
        f, duals, walked = Coupling.apply(x, run, keep, trace, recordings)
    traced = zip(walked, duals, strict=True) if trace else ()
    steps = [_step(x, step, graph, delta, lambda_s, lambda_f, u, 1.0) for step, u in traced]
    return Solution(f, duals, delta, steps=tuple(steps))


def _walk(
    x: Tensor,
    graph: Operator,
    delta: GroupOperator,
    K: int,
    gamma: float,
    lambda_f: float,
    beta: float,
    trace: bool,
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Walk the five steps in plain torch, for nodes shared between groups; autograd looks on."""
    f, u = x, x.new_zeros(delta.rows.size(0), x.size(1))
    walked, duals = [], []
    for _ in range(K):
        agg = _aggregate(x, f, graph, gamma)  # 1 propagate, with a skip to the input
        f_bar = agg - gamma * coupling_gradient(f, delta.shift(u))  # 2 predict
        u_bar = u + beta * delta.gap(softmax(f_bar))  # 3 dual step
        u = u_bar.clamp(-lambda_f, lambda_f)  # 4 keep it within its strength
        f = agg - gamma * coupling_gradient(f, delta.shift(u))  # 5 correct
        duals.append(u)
        if trace:
            walked.append(f)
    return f, torch.stack(duals), walked


def _aggregate(x: Tensor, f: Tensor, graph: Operator, gamma: float) -> Tensor:
    return x if gamma == 1 else _Aggregation.apply(f, x, graph, gamma)


class _Aggregation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, f: Tensor, x: Tensor, graph: Operator, gamma: float) -> Tensor:
        ctx.graph, ctx.gamma = graph, gamma
        return graph.aggregate(f.contiguous(), x.contiguous(), gamma)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        back = ctx.graph.aggregate(grad.contiguous(), None, 0.0, transposed=True)
        return (1 - ctx.gamma) * back, ctx.gamma * grad, None, None


def _step(
    x: Tensor,
    f: Tensor,
    graph: Operator,
    delta: GroupOperator,
    lambda_s: float,
    lambda_f: float,
    u: Tensor,
    temperature: float,
) -> Step:
    with torch.no_grad():
        gap = delta.gap(softmax(f / temperature))
        smoothness = lambda_s / 2 * float((f * (f - graph.aggregate(f, None, 0.0))).sum())
        fidelity = float((f - x).square().sum()) / 2
        fairness = lambda_f * float(gap.abs().sum())
    total = smoothness + fidelity + fairness
    return Step(total, smoothness, fidelity, fairness, gap, u.detach().clone())

r"""Three ways to take the gap out while propagating: ``paper``, ``papc`` and ``projection``.

All of them propagate with a skip to the input,

.. math::
    \mathrm{agg} = \gamma X + (1-\gamma) \tilde{A} F, \qquad \gamma = 1/(1+\lambda_s),

and then correct. They take the propagation as a function ``smooth`` (F ↦ ÃF) and the groups as an
:class:`~fairmp.incidence.Incidence`, the only two places where a node meets another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fairmp.incidence import Incidence
from fairmp.kernels import project_dual, softmax

Smooth = Callable[[Tensor], Tensor]


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
        dual: the dual u of the last step (G'×C).
        group_duals: what each step's dual says to each group, Mᵀu (K×G×C); see :func:`frozen`.
        residual: how far the last step's gap is from what optimality asks (``projection`` only).
        iterations: passes over the nodes, all steps together (``projection`` only).
        steps: one :class:`Step` a propagation step, where a trace was asked for.
    """

    f: Tensor
    dual: Tensor
    group_duals: Tensor
    residual: float | None = None
    iterations: int | None = None
    steps: tuple[Step, ...] = field(default=(), repr=False)


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


def propagate(x: Tensor, smooth: Smooth, *, K: int, lambda_s: float) -> Tensor:
    """Propagate K steps without a correction; equal to APPNP with α = 1/(1+λ_s)."""
    gamma = 1 / (1 + lambda_s)
    f = x
    for _ in range(K):
        f = _aggregate(x, f, smooth, gamma)
    return f


def paper(
    x: Tensor,
    smooth: Smooth,
    delta: Incidence,
    *,
    K: int,
    lambda_s: float,
    lambda_f: float,
    trace: bool = False,
) -> Solution:
    r"""Run the five printed steps, with :math:`\beta = 1/(2\gamma)`.

    Kept to reproduce the paper, and almost inert: β was sized for an operator of norm² up to 2,
    but :math:`\|\Delta\|^2 = 1/n_+ + 1/n_-`, so that in K steps the dual reaches about Kβ·gap
    where it would need the order of n.
    """
    gamma = 1 / (1 + lambda_s)
    return _primal_dual(x, smooth, delta, K, lambda_s, lambda_f, 1 / (2 * gamma), trace)


def papc(
    x: Tensor,
    smooth: Smooth,
    delta: Incidence,
    *,
    K: int,
    lambda_s: float,
    lambda_f: float,
    trace: bool = False,
) -> Solution:
    r"""Run the same five steps with the step size the operator needs.

    :math:`\beta = 4 / (\gamma \|\Delta\Delta^\top\|_2)`, since softmax's Jacobian has norm ≤ ½, and
    a strength without scale, :math:`\lambda_f / \|\Delta\Delta^\top\|_2`, so that one value of
    ``lambda_f`` means the same on 400 nodes and on 100 million.
    """
    gamma, norm = 1 / (1 + lambda_s), delta.norm
    return _primal_dual(x, smooth, delta, K, lambda_s, lambda_f / norm, 4 / (gamma * norm), trace)


def projection(
    x: Tensor,
    smooth: Smooth,
    delta: Incidence,
    *,
    K: int,
    lambda_s: float,
    target: float = 0.0,
    sharpness: float = 1.0,
    trace: bool = False,
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
    gamma = 1 / (1 + lambda_s)
    # Δ in full precision: the method's tolerance lies below what float32 can say of 1/n.
    matrix = delta.matrix.T.contiguous()
    dual = x.new_zeros(matrix.size(1), x.size(1))
    f, duals, steps, passes = x, [], [], 0.0
    info = torch.zeros(2, dtype=torch.float64)
    for _ in range(K):
        agg = _bounded(_aggregate(x, f, smooth, gamma), sharpness)
        dual, _, info = project_dual(agg / sharpness, matrix, dual.detach(), target)
        f = agg - sharpness * delta.shift(dual)
        duals.append(sharpness * delta.by_group(dual))
        if not torch.compiler.is_compiling():
            passes += float(info.detach()[1])
        if trace:
            steps.append(_step(x, f, smooth, delta, lambda_s, 0.0, dual, sharpness))
    if torch.compiler.is_compiling():
        return Solution(f, dual, torch.stack(duals))
    return Solution(f, dual, torch.stack(duals), float(info.detach()[0]), int(passes), tuple(steps))


def frozen(
    x: Tensor,
    smooth: Smooth,
    membership: Tensor,
    group_duals: Tensor,
    *,
    lambda_s: float,
    projected: bool,
) -> Tensor:
    """Propagate with the duals of an earlier solution, group by group, instead of solving again.

    Args:
        x: logits (n×C).
        smooth: F ↦ ÃF.
        membership: how much each node belongs to each group (n×G); zeros leave a node alone.
        group_duals: the solution's (K×G×C).
        lambda_s: the solution's.
        projected: whether the duals are ``projection``'s, logit shifts, or the other solvers'.
    """
    gamma = 1 / (1 + lambda_s)
    f = x
    for dual in group_duals:
        u = membership @ dual.to(x.dtype)
        agg = _aggregate(x, f, smooth, gamma)
        f = agg - u if projected else agg - gamma * coupling_gradient(f, u)
    return f


def _primal_dual(
    x: Tensor,
    smooth: Smooth,
    delta: Incidence,
    K: int,
    lambda_s: float,
    lambda_f: float,
    beta: float,
    trace: bool,
) -> Solution:
    gamma = 1 / (1 + lambda_s)
    f, u = x, x.new_zeros(delta.rows.size(0), x.size(1))
    duals, steps = [], []
    for _ in range(K):
        agg = _aggregate(x, f, smooth, gamma)  # 1 propagate, with a skip to the input
        f_bar = agg - gamma * coupling_gradient(f, delta.shift(u))  # 2 predict
        u_bar = u + beta * delta.gap(softmax(f_bar))  # 3 dual step
        u = u_bar.clamp(-lambda_f, lambda_f)  # 4 keep it within its strength
        f = agg - gamma * coupling_gradient(f, delta.shift(u))  # 5 correct
        duals.append(delta.by_group(u))
        if trace:
            steps.append(_step(x, f, smooth, delta, lambda_s, lambda_f, u, 1.0))
    return Solution(f, u, torch.stack(duals), steps=tuple(steps))


def _aggregate(x: Tensor, f: Tensor, smooth: Smooth, gamma: float) -> Tensor:
    return x if gamma == 1 else gamma * x + (1 - gamma) * smooth(f)


def _bounded(f: Tensor, sharpness: float) -> Tensor:
    """Rows whose logits lie absurdly far apart, as rows of the same softmax that can be shifted.

    Beyond the bound every probability is 0 or 1 to the last digit, and a shift as large as the
    logits would be lost in their rounding.
    """
    bound = sharpness * (1e6 if f.dtype == torch.float64 else 1e3)
    top = f.amax(1, keepdim=True)
    wild = (top - f.amin(1, keepdim=True) > bound) | (top.abs() > bound)
    return torch.where(wild, (f - top).clamp_min(-bound), f)


def _step(
    x: Tensor,
    f: Tensor,
    smooth: Smooth,
    delta: Incidence,
    lambda_s: float,
    lambda_f: float,
    u: Tensor,
    sharpness: float,
) -> Step:
    with torch.no_grad():
        gap = delta.gap(softmax(f / sharpness))
        smoothness = lambda_s / 2 * float((f * (f - smooth(f))).sum())
        fidelity = float((f - x).square().sum()) / 2
        fairness = lambda_f * float(gap.abs().sum())
    total = smoothness + fidelity + fairness
    return Step(total, smoothness, fidelity, fairness, gap, u.detach().clone())

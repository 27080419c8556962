r"""The solvers of fair message passing, and plain propagation; one loop each.

All of them propagate with a skip to the input,

.. math::
    \mathrm{agg} = \gamma X + (1-\gamma) \tilde{A} F, \qquad \gamma = 1/(1+\lambda_s),

and the solvers then correct what was propagated:

- :func:`projection` moves to the closest predictions within the target gap;
- :func:`paper` runs the primal-dual iteration as printed in the paper;
- :func:`papc` runs it with the step size its operator needs;
- :func:`released` runs what the authors' public code computes instead.

The paper prints :math:`\gamma = 1/(1+\lambda_f)`, twice. The skip weight that minimises its
smoothing objective is :math:`1/(1+\lambda_s)`, which its text derives, its public code computes and
all of these loops use; the two agree where :math:`\lambda_s = \lambda_f`.

These loops are what runs: on every device, for any number of classes, for hard and soft groups, and
for graphs and groups that are distributed over processes. Autograd differentiates them step by
step, and on a GPU a CUDA graph records them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fairmp.graph import Adjacency, aggregate
from fairmp.groups import GroupOperator
from fairmp.kernels import not_compiled, softmax
from fairmp.nn.decisions import DecisionShift
from fairmp.nn.dual import Dual, Number, shift_groups, solve_dual

MAX_EXCESS = 1e-4  # of a gap over its target; more is warned about
MIN_NORM = 1e-20  # of ΔΔᵀ; about 4/n, so that anything smaller is rounding

Strength = float | Sequence[float] | Tensor  # λ_s: one number, or one per step
Pull = Callable[[Tensor, Tensor], Tensor]  # of f and Δᵀu, both n×C


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

    Example:
        >>> from fairmp import FMP
        >>> x = torch.tensor([[0.0, 0.0], [0.0, 1.0], [0.0, 2.0], [0.0, 3.0]])
        >>> edge_index = torch.tensor([[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]])
        >>> layer = FMP(K=3, lambda_s=1.0, lambda_f=1.0, solver="papc")
        >>> solution = layer.solve(x, edge_index, torch.tensor([0, 0, 1, 1]), trace=True)
        >>> for step in solution.steps:
        ...     print(f"objective {step.objective:.3f}, gap {step.gap[0, 1]:.3f}")
        objective 1.042, gap 0.217
        objective 1.002, gap 0.185
        objective 0.997, gap 0.174
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
        groups: the operator Δ.
        duals: the dual u of each step (K×G'×C); of ``projection`` it has no gradient.
        temperature: τ (``projection``), else 1.
        steps: one :class:`Step` per propagation step, if a trace was asked for.
        last_residual: see :attr:`residual`; a tensor on a GPU.
        passes: see :attr:`iterations`; a tensor on a GPU.
        decisions: how the gap of decisions was closed after the last step, if asked for.
        dual_rows: M of the duals (G'×G), where it is not that of Δ (``released``).

    Example:
        >>> from fairmp import FMP
        >>> x = torch.tensor([[0.0, 0.0], [0.0, 1.0], [0.0, 2.0], [0.0, 3.0]])
        >>> edge_index = torch.tensor([[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]])
        >>> layer = FMP(K=3, lambda_s=1.0, target=0.1)
        >>> solution = layer.solve(x, edge_index, torch.tensor([0, 0, 1, 1]))
        >>> solution.group_duals[-1]  # subtracted from the logits of group 0, and of group 1
        tensor([[ 0.1588, -0.1588],
                [-0.1588,  0.1588]])
        >>> solution.residual < 1e-4
        True
    """

    f: Tensor
    groups: GroupOperator = field(repr=False)
    duals: Tensor = field(repr=False)
    temperature: float = 1.0
    steps: tuple[Step, ...] = field(default=(), repr=False)
    last_residual: Number | None = field(default=None, repr=False)
    passes: Number | None = field(default=None, repr=False)
    decisions: DecisionShift | None = field(default=None, repr=False)
    dual_rows: Tensor | None = field(default=None, repr=False)

    @property
    def residual(self) -> float | None:
        """By how much the last gap violates the optimality conditions (``projection``)."""
        return None if self.last_residual is None else float(self.last_residual)

    @property
    def iterations(self) -> int | None:
        """Passes over the nodes, in all steps (``projection``)."""
        return None if self.passes is None else int(self.passes)

    @property
    def dual(self) -> Tensor:
        """The dual u of the last step (G'×C)."""
        return self.duals[-1]

    @property
    def group_duals(self) -> Tensor:
        """Logit shift per step and group, τMᵀu (K×G×C); see :class:`FrozenDuals`.

        The shift that closes the gap of decisions is part of the last step's.
        """
        rows = self.groups.rows if self.dual_rows is None else self.dual_rows
        shifts = self.temperature * (rows.T.to(self.duals.dtype) @ self.duals)
        if self.decisions is None:
            return shifts
        last = shifts[-1:] + self.decisions.shift.to(shifts.dtype)
        return torch.cat([shifts[:-1], last])


@not_compiled
def propagate(
    x: Tensor, graph: Adjacency, *, K: int, lambda_s: Strength, softmax_only: bool = False
) -> Tensor:
    """Propagate K steps without a correction; equal to APPNP with α = 1/(1+λ_s).

    With ``softmax_only`` logits are defined up to a constant per row; two classes then propagate
    as one margin.

    Example:
        >>> from fairmp.graph import normalise
        >>> path = normalise(torch.tensor([[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]]), 4)
        >>> x = torch.tensor([[0.0, 4.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
        >>> propagate(x, path, K=2, lambda_s=1.0)[:, 1]  # two steps reach two nodes along a path
        tensor([2.9167, 0.7485, 0.1361, 0.0000])
    """
    layout = graph.layout
    x = layout.to_layout(x, margins=softmax_only and x.size(1) == 2)
    f = x
    for gamma in skip_weights(lambda_s, K):
        f = aggregate(f, x, layout.graph, gamma)
    return layout.from_layout(x.clone() if f is x else f)


@not_compiled
def projection(
    x: Tensor,
    graph: Adjacency,
    groups: GroupOperator,
    *,
    K: int,
    lambda_s: Strength,
    target: float = 0.0,
    temperature: float = 1.0,
    softmax_only: bool = False,
    trace: bool = False,
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

    Example:
        >>> from fairmp.graph import normalise
        >>> from fairmp.groups import group_operator
        >>> path = normalise(torch.tensor([[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]]), 4)
        >>> x = torch.tensor([[0.0, 0.0], [0.0, 1.0], [0.0, 2.0], [0.0, 3.0]])
        >>> groups = group_operator(torch.tensor([0, 0, 1, 1]))
        >>> for target in (1.0, 0.1, 0.0):
        ...     solution = projection(x, path, groups, K=3, lambda_s=1.0, target=target)
        ...     print(f"{float(groups.gap(solution.f.softmax(1))[0, 1]):.3f}")
        0.250
        0.100
        0.000
    """
    layout = graph.layout
    margins = softmax_only and not trace and x.size(1) == 2 and groups.binary is not None
    x, members = layout.to_layout(x, margins=margins), layout.reorder(groups)
    f, u = x, None
    duals: list[Dual] = []
    steps: list[Step] = []
    for gamma in skip_weights(lambda_s, K):
        agg = aggregate(f, x, layout.graph, gamma)  # propagate, with a skip to the input
        u = solve_dual(agg, members, target, temperature, u)  # the closest within the target
        f = shift_groups(agg, u)  # shift each group
        duals.append(u)
        if trace:
            steps.append(_step(f, u.u, x, layout.graph, members, gamma, temperature=temperature))
    assert u is not None
    # On a GPU the host would have to wait for the residual.
    if not x.is_cuda and u.residual > MAX_EXCESS:
        excess = f"it is exceeded by up to {float(u.residual):.2g}"
        warnings.warn(f"the projection did not meet the target: {excess}", stacklevel=2)
    return Solution(
        f=layout.from_layout(f),
        groups=groups,
        duals=torch.stack([dual.u for dual in duals]).to(x.dtype),
        temperature=temperature,
        steps=tuple(steps),
        last_residual=u.residual,
        passes=sum(dual.passes for dual in duals),
    )


@not_compiled
def primal_dual(
    x: Tensor,
    graph: Adjacency,
    groups: GroupOperator,
    *,
    K: int,
    lambda_s: Strength,
    lambda_f: float,
    step_size: float,
    trace: bool = False,
) -> Solution:
    """The paper's five steps, with :math:`β = step_size/γ`."""
    f = x
    u = torch.zeros(groups.num_rows, x.size(1), dtype=torch.float64, device=x.device)
    duals: list[Tensor] = []
    steps: list[Step] = []
    for gamma in skip_weights(lambda_s, K):
        agg = aggregate(f, x, graph, gamma)  # 1 propagate, with a skip to the input
        f_bar = agg - gamma * coupling_gradient(f, groups.shift(u.to(x.dtype)))  # 2 predict
        u_bar = u + step_size / gamma * groups.gap(softmax(f_bar))  # 3 dual step
        u = u_bar.clamp(-lambda_f, lambda_f)  # 4 limit it to its strength
        f = agg - gamma * coupling_gradient(f, groups.shift(u.to(x.dtype)))  # 5 correct
        duals.append(u)
        if trace:
            steps.append(_step(f, u, x, graph, groups, gamma, lambda_f=lambda_f))
    return Solution(f, groups, torch.stack(duals).to(x.dtype), steps=tuple(steps))


def paper(
    x: Tensor,
    graph: Adjacency,
    groups: GroupOperator,
    *,
    K: int,
    lambda_s: Strength,
    lambda_f: float,
    trace: bool = False,
) -> Solution:
    r"""Run the five printed steps, with :math:`\beta = 1/(2\gamma)`.

    Kept to reproduce the paper, and almost inert: β suits an operator of squared norm 2, but
    :math:`\|\Delta\|^2 = 1/n_+ + 1/n_-`, so that in K steps the dual reaches about Kβ·gap where it
    would need the order of n. :func:`papc` has an example of both.
    """
    return primal_dual(
        x, graph, groups, K=K, lambda_s=lambda_s, lambda_f=lambda_f, step_size=0.5, trace=trace
    )


def papc(
    x: Tensor,
    graph: Adjacency,
    groups: GroupOperator,
    *,
    K: int,
    lambda_s: Strength,
    lambda_f: float,
    trace: bool = False,
) -> Solution:
    r"""Run the same five steps with the step size the operator needs.

    :math:`\beta = 4 / (\gamma \|\Delta\Delta^\top\|_2)`, since softmax's Jacobian has norm ≤ ½, and
    a scale-free strength, :math:`\lambda_f / \|\Delta\Delta^\top\|_2`, so that one value of
    ``lambda_f`` means the same on 400 nodes and on 100 million.

    Example:
        >>> from fairmp.datasets import social_network
        >>> from fairmp.graph import normalise
        >>> from fairmp.groups import group_operator
        >>> data = social_network(n=2000, seed=0)
        >>> graph, groups = normalise(data.edge_index, 2000), group_operator(data.sens)
        >>> x = torch.stack([torch.zeros(2000), 2.0 * data.sens], 1)  # favours group 1
        >>> for solver in (paper, papc):
        ...     solution = solver(x, graph, groups, K=5, lambda_s=3.0, lambda_f=30.0)
        ...     gap = groups.gap(solution.f.softmax(1))[0, 1]
        ...     print(f"{solver.__name__}: {100 * abs(float(gap)):.1f} points")
        paper: 28.4 points
        papc: 1.6 points
    """
    # Where Δ is 0 but for rounding, so is every gap, and no step is needed.
    norm = groups.norm if groups.norm > MIN_NORM else 1.0
    return primal_dual(
        x,
        graph,
        groups,
        K=K,
        lambda_s=lambda_s,
        lambda_f=lambda_f / norm,
        step_size=4 / norm,
        trace=trace,
    )


@not_compiled
def released(
    x: Tensor,
    graph: Adjacency,
    groups: GroupOperator,
    *,
    K: int,
    lambda_s: Strength,
    lambda_f: float,
    trace: bool = False,
) -> Solution:
    r"""Run the steps of the authors' public code, which differ from the printed ones.

    .. math::
        \begin{aligned}
        y &= \gamma X + (1-\gamma)\tilde{A}F \\
        z &= (\gamma\,\Delta\Delta^\top)^{-1} \Delta\,\mathrm{softmax}(y) \\
        \bar z &= z + \beta\,\Delta\,\mathrm{softmax}(y - \gamma\,c(z)), \quad
        \beta = 1/(2\gamma) \\
        F &= y - \gamma\,c\big(\tfrac{2\lambda_f}{2\lambda_f+\beta}\,\bar z\big)
        \end{aligned}

    with :math:`c(z) = G(V, V)`, :math:`V = \Delta^\top z`: the coupling gradient is evaluated at
    the dual's shift, not at the logits. Unlike the printed steps these carry no dual from step to
    step; they shrink it where the paper clips it; their Δ divides both groups by the size of the
    population (:func:`count_rows`), and so measures a difference of group sizes too; and only nodes
    of the population are corrected. The code takes two groups; for more, the inverse is a
    pseudo-inverse. The code can also clip :math:`\bar z` at :math:`\pm\lambda_f` instead of
    shrinking it; this option is left out.
    """
    rows = count_rows(groups)
    inverse = torch.linalg.pinv(rows @ groups.gram @ rows.T, hermitian=True)
    f = x
    duals: list[Tensor] = []
    steps: list[Step] = []

    def pull(z: Tensor) -> Tensor:
        v = groups.spread_to_population((rows.T @ z).to(x.dtype))
        return pull_of_dual(f, v)

    for gamma in skip_weights(lambda_s, K):
        beta = 1 / (2 * gamma)
        y = aggregate(f, x, graph, gamma)  # propagate, with a skip to the input
        z = inverse @ rows @ groups.sums(softmax(y)).double() / gamma  # the gap as a dual
        f_bar = y - gamma * pull(z)  # predict
        z_bar = z + beta * rows @ groups.sums(softmax(f_bar)).double()  # dual step
        z = 2 * lambda_f / (2 * lambda_f + beta) * z_bar  # shrink it
        f = y - gamma * pull(z)  # correct
        duals.append(z)
        if trace:
            steps.append(_step(f, z, x, graph, groups, gamma, lambda_f=lambda_f))
    return Solution(f, groups, torch.stack(duals).to(x.dtype), steps=tuple(steps), dual_rows=rows)


def count_rows(groups: GroupOperator) -> Tensor:
    """M of the operator in the authors' public code (G'×G): both groups divided by all nodes.

    Example:
        >>> from fairmp.groups import group_operator
        >>> count_rows(group_operator(torch.tensor([0, 0, 0, 1])))
        tensor([[-0.2500,  0.2500]], dtype=torch.float64)
    """
    size = groups.total(groups.population.sum(dtype=torch.float64))
    members = []
    for block in groups.rows.split(groups.blocks):
        if len(block) == 1:
            members.append(block.sign())
        else:  # a row per group, positive on its members
            is_member = (block > 0).double()
            members.append(is_member - is_member.mean(0))
    return torch.cat(members) / size


def pull_of_dual(f: Tensor, u: Tensor) -> Tensor:
    """The pull of :func:`released`, which does not depend on the logits."""
    return coupling_gradient(u, u)


@dataclass(frozen=True)
class FrozenDuals:
    """Duals of an earlier solution, and the groups of the nodes they correct.

    Attributes:
        membership: probability of each group (n×G); a node with a row of zeros is not corrected.
        by_step: duals of the groups in each step (K×G×C).
        pull: turns logits and duals into a gradient; without one the duals are logit shifts, those
            of :func:`projection`.

    Example:
        >>> from fairmp.graph import normalise
        >>> from fairmp.groups import group_operator
        >>> path = normalise(torch.tensor([[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]]), 4)
        >>> x = torch.tensor([[0.0, 0.0], [0.0, 1.0], [0.0, 2.0], [0.0, 3.0]])
        >>> groups = group_operator(torch.tensor([0, 0, 1, 1]))
        >>> solution = projection(x, path, groups, K=3, lambda_s=1.0)
        >>> membership = torch.eye(2)[[0, 0, 1, 1]]
        >>> duals = FrozenDuals(membership, solution.group_duals)
        >>> states = frozen_states(x, path, duals, lambda_s=1.0)  # the same, without solving
        >>> torch.allclose(states[-1], solution.f)
        True
    """

    membership: Tensor
    by_step: Tensor
    pull: Pull | None = None

    def correct(self, step: int, agg: Tensor, f: Tensor, gamma: float | Tensor) -> Tensor:
        """Correct the result of a propagation step."""
        u = self.membership @ self.by_step[step].to(agg.dtype)
        return agg - u if self.pull is None else agg - gamma * self.pull(f, u)


def frozen_states(
    x: Tensor, graph: Adjacency, duals: FrozenDuals, *, lambda_s: Strength
) -> list[Tensor]:
    """Propagate with stored duals; return x and the state after each step."""
    states = [x]
    for step, gamma in enumerate(skip_weights(lambda_s, len(duals.by_step))):
        agg = aggregate(states[-1], x, graph, gamma)
        states.append(duals.correct(step, agg, states[-1], gamma))
    return states


def receive(
    x: Tensor,
    among: Tensor,
    from_known: Tensor,
    known_states: Sequence[Tensor],
    duals: FrozenDuals,
    *,
    lambda_s: Strength,
) -> Tensor:
    """Propagate to m new nodes as :func:`frozen_states`, while known nodes stay as they were.

    ``among`` (m×m, with self-loops) and ``from_known`` (m×k) are the rows of Ã of the new nodes,
    and ``known_states`` what k known nodes were before each step (K times k×C).
    """
    f, weights = x, skip_weights(lambda_s, len(duals.by_step))
    for step, (gamma, known) in enumerate(zip(weights, known_states, strict=True)):
        agg = gamma * x + (1 - gamma) * (among @ f + from_known @ known)
        f = duals.correct(step, agg, f, gamma)
    return f


def skip_weights(lambda_s: Strength, K: int) -> tuple[float, ...] | Tensor:
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


@torch.no_grad()
def _step(
    f: Tensor,
    u: Tensor,
    x: Tensor,
    graph: Adjacency,
    groups: GroupOperator,
    gamma: float | Tensor,
    *,
    lambda_f: float = 0.0,
    temperature: float = 1.0,
) -> Step:
    """The terms of the objective, the gap and the dual after a step."""
    lambda_s = 1 / float(gamma) - 1
    laplacian = f - graph.aggregate(f.contiguous(), None, 0.0)
    smoothness = lambda_s / 2 * float((f * laplacian).sum())
    fidelity = float((f - x).square().sum()) / 2
    gap = groups.gap(softmax(f / temperature))
    fairness = lambda_f * float(gap.abs().sum())
    objective = smoothness + fidelity + fairness
    return Step(objective, smoothness, fidelity, fairness, gap, u.to(x.dtype, copy=True))

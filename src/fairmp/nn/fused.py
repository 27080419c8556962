"""Faster implementations of the solvers' loops, for the cases that have one.

:func:`solver` and, without a correction, :func:`plain` are where they are chosen:

- on the CPU, all steps for two classes, plain or with the projection of one gap, fused;
- on CUDA, the same problem with kernels that keep its dual, one number, on the device;
- on CUDA, loops recorded as CUDA graphs, which saves launching their kernels one by one.

All of them return what the loops in :mod:`fairmp.nn.functional` return.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fairmp.graph import Operator, aggregate
from fairmp.groups import GroupOperator
from fairmp.kernels import implementation, reference
from fairmp.nn.newton import (
    FLAT,
    MAX_LOGIT_MOVE,
    Array,
    DualSolution,
    ScalarProblem,
    complement,
    pseudo_solve,
)

if TYPE_CHECKING:
    from fairmp.kernels.cuda.graphs import CUDAGraphCache

MAX_PASSES = 200
MAX_RECORDED_NUMEL = 2**22  # logits up to which launching the steps costs more than running them

Gamma = tuple[float, ...] | Tensor  # the skip weight of each step
State = tuple[Tensor, ...]  # after a step: logits, dual, and for the projection its statistics
Results = tuple[Tensor, ...]  # the last logits, and the duals (and statistics) of all steps


class Problem(NamedTuple):
    """What a solver's loop depends on besides the logits."""

    graph: Operator
    groups: GroupOperator
    gamma: Gamma
    numbers: tuple[float, float]  # target and temperature, or strength and step size
    softmax_only: bool = False  # each row may lack a constant


Loop = Callable[[Tensor, Problem], Iterator[State]]


def as_floats(gamma: Gamma) -> Sequence[float]:
    """The skip weights as numbers."""
    return gamma.tolist() if isinstance(gamma, Tensor) else gamma


def tolerance(dtype: torch.dtype) -> float:
    """Largest residual of a converged dual, in units of the gap."""
    return 1e-12 if dtype == torch.float64 else 1e-7


def largest_logit(dtype: torch.dtype) -> float:
    """Largest logit, in units of τ, for which a shift of its size keeps a gap to 1e-4."""
    return 5e5 if dtype == torch.float64 else 2.5e3


def collect(states: Iterable[State], x: Tensor) -> Results:
    """The results of a loop, from its states."""
    logits, *others = zip(*states, strict=True)
    duals, *statistics = map(torch.stack, others)
    return logits[-1], duals.to(x.dtype), *statistics


def solver(
    x: Tensor,
    loop: Loop,
    problem: Problem,
    cuda_graphs: CUDAGraphCache | None,
    *,
    projects: bool,
) -> Results | None:
    """Run a solver's loop by a faster implementation; ``None`` where there is none."""
    graph, groups, gamma, numbers, _ = problem
    kernels = implementation(x)
    local = groups.is_local and getattr(graph, "is_local", False)
    if not local or groups.codes is None or kernels is reference:
        return None
    if projects:
        if (groups.rows.size(0), x.size(1)) != (1, 2):
            return None
        if not x.is_cuda:
            return _fused_on_cpu(kernels, x, problem)
        loop = _scalar_steps

    def run(x: Tensor, gamma: Gamma) -> Results:
        return collect(loop(x, problem._replace(gamma=gamma)), x)

    results = replayed(run, x, gamma, (graph, groups), (projects, *numbers), cuda_graphs)
    return run(x, gamma) if projects and results is None else results


def plain(x: Tensor, graph: Operator, gamma: Gamma, *, softmax_only: bool) -> Tensor | None:
    """Propagate without a correction by a faster implementation on the CPU; ``None`` without."""
    kernels: Any = implementation(x)
    if isinstance(gamma, Tensor) or max(gamma) >= 1 or x.size(1) != 2 or not x.numel():
        return None
    if not hasattr(kernels, "fused_propagation") or not getattr(graph, "is_local", False):
        return None
    return _PlainOnCPU.apply(
        x, kernels.fused_propagation(graph, gamma, x.dtype, centred=softmax_only)
    )


class _PlainOnCPU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: Any) -> Tensor:
        ctx.kernel = kernel
        return torch.from_numpy(kernel.run(x.detach().contiguous().numpy(), transposed=False))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return torch.from_numpy(ctx.kernel.run(grad.contiguous().numpy(), transposed=True)), None


def replayed(
    function: Callable[[Tensor, Gamma], Results],
    x: Tensor,
    gamma: Gamma,
    objects: tuple[object, ...],
    key: tuple[object, ...],
    cuda_graphs: CUDAGraphCache | None,
) -> Results | None:
    """Replay the recording of a function of x and γ; ``None`` where there is none (yet).

    What waits for other processes or for the host cannot be recorded.
    """
    if cuda_graphs is None or not x.is_cuda or implementation(x) is reference:
        return None
    if x.numel() > MAX_RECORDED_NUMEL or not all(getattr(o, "is_local", False) for o in objects):
        return None
    learned = isinstance(gamma, Tensor)
    inputs = tuple(part.contiguous() for part in (x, gamma) if isinstance(part, Tensor))
    key = key if learned else (*key, *gamma)
    recording = cuda_graphs.get(objects, key, inputs, *differentiated(function, gamma))
    return None if recording is None else _Replay.apply(recording, *inputs)


def differentiated(
    function: Callable[[Tensor, Gamma], Results], gamma: Gamma
) -> tuple[Callable[..., tuple[Results, Any]], Callable[[Any, Results], Results]]:
    """A function and its gradient as a :class:`Recording` takes them; γ is an input if a tensor."""

    def forward(*inputs: Tensor) -> tuple[Results, tuple[Results, Results]]:
        with torch.enable_grad():
            leaves = tuple(part.detach().requires_grad_() for part in inputs)
            results = function(leaves[0], leaves[1] if len(leaves) > 1 else gamma)
        return tuple(part.detach() for part in results), (leaves, results)

    def backward(kept: tuple[Results, Results], gradients: Results) -> Results:
        leaves, results = kept
        pairs = [pair for pair in zip(results, gradients, strict=True) if pair[0].requires_grad]
        outputs, given = zip(*pairs, strict=True)
        return torch.autograd.grad(outputs, leaves, given)

    return forward, backward


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, recording: Any, *inputs: Tensor) -> Results:
        ctx.set_materialize_grads(False)
        ctx.recording = recording
        results, ctx.replay_id = recording.forward(*inputs)
        ctx.save_for_backward(*inputs)
        return results

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        return None, *ctx.recording.backward(ctx.replay_id, ctx.saved_tensors, gradients)


def _fused_on_cpu(kernels: Any, x: Tensor, problem: Problem) -> Results | None:
    graph, groups, gamma, (target, temperature), centred = problem
    learned, weights = isinstance(gamma, Tensor), as_floats(gamma)
    if max(weights) >= 1 or not x.numel():
        return None
    inputs = graph, groups, weights, temperature, x.dtype
    kernel = kernels.fused_projection(*inputs, learned=learned, centred=centred)
    solve = partial(solve_scalar, target=target, tol=tolerance(x.dtype))
    limit = temperature * largest_logit(x.dtype)
    f = kernel.forward(x.detach().contiguous().numpy(), solve, limit)
    if f is None:  # logits that the loop clips
        return None
    statistics = torch.tensor([[dual.residual, float(dual.passes)] for dual in kernel.duals])
    return *_FusedOnCPU.apply(x, gamma if learned else None, kernel, f), statistics


class _FusedOnCPU(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, gamma: Tensor | None, kernel: Any, f: Array
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.kernel, ctx.dtype = kernel, x.dtype
        duals = np.stack([dual.u for dual in kernel.duals])
        return torch.from_numpy(f), torch.from_numpy(duals).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad: Tensor | None, grad_duals: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        if grad is None:
            grad = torch.zeros(ctx.kernel.n, 2, dtype=ctx.dtype)
        outer = None if grad_duals is None else grad_duals.double().numpy()
        found = ctx.kernel.backward(grad.contiguous().numpy(), outer, respond)
        result, grad_gamma = map(torch.from_numpy, found)
        return result, grad_gamma.to(ctx.dtype) if ctx.kernel.learned else None, None, None


def solve_scalar(problem: ScalarProblem, start: Array, target: float, tol: float) -> DualSolution:
    """Find the dual of one gap between two classes, from a first guess (1×2).

    It is w with gap(w) = Σ δσ(margin − δw) at ±target, or 0 if the gap there is small enough.
    """
    scale = float(problem.scale[0])
    root = scale * float(start[0, 1] - start[0, 0])
    low, high, before, bounded = -math.inf, math.inf, math.inf, False
    for passes in range(1, MAX_PASSES + 1):
        gap, curvature = problem.gap(root)
        gap, slope = scale * gap, scale * curvature
        excess = gap - (target if root > 0 or (root == 0 and gap > 0) else -target)
        if root == 0 and abs(gap) <= target:
            excess = 0.0
        if abs(excess) <= tol:
            break
        low, high = (root, high) if excess > 0 else (low, root)
        step = root + excess / slope if slope > 0 else math.inf
        good = abs(excess) < before / 2 and low < step < high
        if not bounded and not (good and abs(step - root) <= MAX_LOGIT_MOVE):
            # By this far every node of the smaller group has changed sides, and the gap with it.
            # Steps that are small and make progress do not need it.
            far, bounded = problem.width() + 45.0, True
            low, high = max(low, -far), min(high, far)
            good = good and low < step < high
        # A step that leaves the bracket, or does not halve the excess, is no better than bisection.
        if not good:
            step = (low + high) / 2
            if step in (low, high):
                break
        if root * step < 0 and low < 0 < high:
            step = 0.0
        if step == root or passes == MAX_PASSES:
            break
        before, root = abs(excess), step
    half = root / 2 / scale
    active = np.full((1, 2), root != 0 or target == 0)
    hessian = np.array([[curvature, -curvature], [-curvature, curvature]])
    u, constraints = np.array([[-half, half]]), np.zeros((2, 0))
    return DualSolution(u, active, hessian, constraints, abs(excess), passes)


def _scalar_steps(x: Tensor, problem: Problem) -> Iterator[State]:
    graph, groups, gamma, numbers, _ = problem
    f, u = x, None
    for weight in gamma:
        agg = aggregate(f, x, graph, weight)
        f, u, statistics = _ScalarProjection.apply(agg.contiguous(), groups, numbers, u)
        yield f, u, statistics


class _ScalarProjection(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, z: Tensor, groups: GroupOperator, numbers: tuple[float, float], u: Tensor | None
    ) -> Results:
        ctx.set_materialize_grads(False)
        kernels: Any = implementation(z)
        row, (target, temperature) = groups.rows[0], numbers
        scale = row.abs().max()
        guess = row.new_zeros(1) if u is None else (u[0, 1:] - u[0, :1]) * scale
        state = kernels.binary_root(
            z, groups.population_codes, row, guess, target, tolerance(z.dtype), temperature
        )
        half = (state[:1] / (2 * scale)).unsqueeze(0)
        statistics = state[1:3].clone()
        ctx.groups, ctx.numbers = groups, numbers
        ctx.save_for_backward(z, state, scale)
        ctx.mark_non_differentiable(statistics)
        f = kernels.binary_shift(z, groups.codes, row, state, temperature)
        return f, torch.cat([-half, half], 1), statistics

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad: Tensor | None, grad_u: Tensor | None, _: object
    ) -> tuple[Tensor | None, ...]:
        z, state, scale = ctx.saved_tensors
        groups, (target, temperature) = ctx.groups, ctx.numbers
        kernels: Any = implementation(z)
        grad = torch.zeros_like(z) if grad is None else grad
        outer = None if grad_u is None else (grad_u[0, 1:] - grad_u[0, :1]).double() / (2 * scale)
        codes, row = (groups.population_codes, groups.codes), groups.rows[0]
        found = kernels.binary_vjp(grad, z, *codes, row, state, target, temperature, outer)
        return found, None, None, None


def respond(dual: DualSolution, scale: Array, incoming: Array) -> Array:
    r"""Differentiate the dual implicitly: held gaps stay held, :math:`H_{AA} du_A = (\Delta dP)_A`.

    From a loss's gradient in u (G'×C) to w (G'×C) of the scaled problem: its gradient in the logits
    is :math:`Q \odot (W - \mathrm{rowsum}(W \odot Q))` with :math:`W = \Delta^\top w`.
    """
    # Rows of u sum to 0 by choice, so the mean of the gradient over classes has no meaning.
    mean = incoming.sum(1, keepdims=True) / incoming.shape[1]
    incoming = (incoming - mean) / scale[:, None]
    held = dual.active.ravel()
    if held.size == 2 and held.all():
        curvature = float(dual.hessian[1, 1])
        return incoming / (2 * curvature) if curvature > FLAT else np.zeros_like(incoming)
    # Along the constraints: held gaps of a block stay where they are relative to each other.
    free = complement(dual.constraints, held)
    w = free @ pseudo_solve(free.T @ dual.hessian @ free, free.T @ incoming.ravel())
    return w.reshape(incoming.shape)

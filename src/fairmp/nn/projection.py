"""The K steps of the projection, forward and back, as autograd sees them: one function."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fairmp.graph import Adjacency
from fairmp.groups import GroupOperator
from fairmp.kernels import implementation
from fairmp.kernels.cuda.graphs import MAX_RECORDED_NUMEL, CUDAGraphCache
from fairmp.kernels.newton import respond, solve_one
from fairmp.nn.dual import Binary, Found, Root, system, tolerance

if TYPE_CHECKING:
    from fairmp.nn.functional import Operator

SATURATED = 50.0  # e^-50 of a probability is none


@dataclass
class Done:
    """One step of the projection, as its gradient needs it."""

    system: Any  # None where the steps were replayed, and their gradient is too
    dual: Found
    wild: Wild | None
    f: Tensor | None


class Projection(torch.autograd.Function):
    """All K steps at once: what passes from one to the next is few numbers and one n×C tensor."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        graph: Operator,
        delta: GroupOperator,
        K: int,
        gamma: float,
        target: float,
        temperature: float,
        trace: bool,
        recordings: CUDAGraphCache | None,
    ) -> tuple[Tensor, Tensor, list[Done]]:
        """Return the corrected logits, the dual of each step, and what each step left behind."""
        x = x.contiguous()
        kind = system(x, delta)

        def ahead(x: Tensor) -> tuple[tuple[Tensor, ...], list[Done]]:
            done = _steps_ahead(x, graph, delta, K, gamma, target, temperature, kind)
            states = torch.stack([step.dual.state for step in done])  # type: ignore[union-attr]
            last = done[-1].f
            assert last is not None
            return (last, _duals(kind, done, x), states), done

        def back(done: list[Done], gradients: tuple[Tensor, ...]) -> Tensor:
            return _steps_back(graph, gamma, done, gradients[0], gradients[1])

        # A gradient nobody asked of the duals stays None, and is not made a tensor of zeros.
        ctx.set_materialize_grads(False)
        ctx.graph, ctx.gamma, ctx.recording = graph, gamma, None
        if (
            recordings is not None
            and not trace
            and kind is Binary
            and x.numel() <= MAX_RECORDED_NUMEL
        ):
            ctx.recording = recordings.get(
                (graph, delta), (K, gamma, target, temperature), x, ahead, back
            )
        ctx.walk = None if trace else _walk(x, graph, delta, gamma, temperature)
        if ctx.walk is not None:
            bound = _bound(x, temperature) / 2
            solve = partial(solve_one, target=target, tol=tolerance(x.dtype))
            f = ctx.walk.forward(x.detach().numpy(), K, solve, bound)
            if f is not None:
                found = [Done(None, dual, None, None) for dual in ctx.walk.duals]
                return torch.from_numpy(f), _duals(kind, found, x), found
            ctx.walk = None
        if ctx.recording is None:
            ctx.done = _steps_ahead(x, graph, delta, K, gamma, target, temperature, kind)
            duals, f = _duals(kind, ctx.done, x), ctx.done[-1].f
            if not trace:
                for step in ctx.done:
                    step.f = None
            return f, duals, ctx.done
        (f, duals, states), ctx.turn = ctx.recording.forward(x)
        ctx.save_for_backward(x)
        return f, duals, [Done(None, Root(state, delta.rows), None, None) for state in states]

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad: Tensor | None, grad_duals: Tensor | None, _: object
    ) -> tuple[Tensor | None, ...]:
        """Walk the steps back, from the gradients of the logits and of the duals."""
        if ctx.walk is not None:
            result = _walked_back(ctx.walk, grad, grad_duals)
        elif ctx.recording is None:
            result = _steps_back(ctx.graph, ctx.gamma, ctx.done, grad, grad_duals)
        else:
            (x,) = ctx.saved_tensors
            result = ctx.recording.backward(ctx.turn, x, (grad, grad_duals, None))
        return result, *(8 * (None,))


def _walk(
    x: Tensor, graph: Operator, delta: GroupOperator, gamma: float, temperature: float
) -> Any | None:
    """A compiled walk through all steps; ``None`` where there is none for such a problem."""
    kernels = implementation(x)
    one_gap = delta.codes is not None and (delta.rows.size(0), x.size(1)) == (1, 2)
    # What asks other machines is for the steps one by one to do.
    here = type(graph) is Adjacency and type(delta) is GroupOperator
    if not (hasattr(kernels, "fused_projection") and one_gap and here and gamma != 1):
        return None
    assert isinstance(graph, Adjacency)
    there, back = graph.forward, graph.backward
    forward = (there.row, there.col, there.weight)
    return kernels.fused_projection(
        forward,
        forward if graph.symmetric else (back.row, back.col, back.weight),
        graph.scale,
        delta.codes,
        delta.measured_codes,
        delta.order,
        delta.rows[0],
        gamma,
        temperature,
        x.dtype,
    )


def _walked_back(walk: Any, grad: Tensor | None, grad_duals: Tensor | None) -> Tensor:
    if grad is None:
        grad = torch.from_numpy(np.zeros((walk.codes.size, 2), walk.degree_scale.dtype))
    outer = None if grad_duals is None else grad_duals.double().numpy()
    return torch.from_numpy(walk.backward(grad.contiguous().numpy(), outer, respond))


def _steps_ahead(
    x: Tensor,
    graph: Operator,
    delta: GroupOperator,
    K: int,
    gamma: float,
    target: float,
    temperature: float,
    kind: Any,
) -> list[Done]:
    f, done = x, []
    dual: Any = None
    for _ in range(K):
        agg = x if gamma == 1 else graph.aggregate(f, x, gamma)
        wild = None if kind.bounds else _wild(agg, temperature)
        projected = kind(agg if wild is None else wild.cut, delta, temperature)
        dual = projected.solve(dual, target)
        if wild is not None:
            u = torch.from_numpy(dual.u).to(agg.device)
            projected.z = wild.settled(temperature * delta.shift(u))
        f = projected.shifted(dual)
        done.append(Done(projected, dual, wild, f))
    return done


def _duals(kind: Any, done: list[Done], x: Tensor) -> Tensor:
    return kind.duals([step.dual for step in done]).to(x.device, x.dtype)


def _steps_back(
    graph: Operator,
    gamma: float,
    done: list[Done],
    grad: Tensor | None,
    grad_duals: Tensor | None,
) -> Tensor:
    g = torch.zeros_like(done[-1].system.z) if grad is None else grad.contiguous()
    total = torch.zeros_like(g)
    for k, step in reversed(list(enumerate(done))):
        g = step.system.pull_back(g, step.dual, None if grad_duals is None else grad_duals[k])
        if step.wild is not None:
            g = step.wild.pull_back(g)
        total = total.add_(g, alpha=gamma)
        if gamma == 1:  # each step starts from X again
            g = torch.zeros_like(g)
        else:
            g = graph.aggregate(g, None, 0.0, transposed=True).mul_(1 - gamma)
    return total.add_(g)


def _bound(f: Tensor, temperature: float) -> float:
    return temperature * (1e6 if f.dtype == torch.float64 else 5e3)


class Wild:
    """Logits of which some rows lie absurdly far apart, as rows of the same softmax.

    Beyond the bound every probability is 0 or 1 to the last digit, and a shift as large as the
    logits would be lost in their rounding. So the dual is found for ``cut``: such rows seen from
    their largest logit, and no farther apart than the bound. Once it is known, only rows that it
    takes about as far as the bound have to stay cut, and rows it does not reach are as they were.

    Attributes:
        cut: the logits, cut (n×C).
    """

    def __init__(self, f: Tensor, rows: Tensor, bound: float, saturated: float) -> None:
        self.f, self.rows, self.bound, self.saturated = f, rows, bound, saturated
        top, self.first = f.max(1, keepdim=True)
        self.seen = torch.where(rows, f - top, f)
        self.cut = torch.where(rows, self.seen.clamp_min(-bound), f)

    def settled(self, shift: Tensor) -> Tensor:
        """What a shift (n×C) is to be taken from."""
        apart = shift.amax(1, keepdim=True) - shift.amin(1, keepdim=True)
        self.rows = self.rows & (apart > 0)
        far = apart > self.bound - self.saturated
        self.lost = self.rows & far & (self.seen < -self.bound)
        result = torch.where(self.rows, torch.where(far, self.cut, self.seen), self.f)
        del self.f, self.seen, self.cut  # the way back needs none of them
        return result

    def pull_back(self, grad: Tensor) -> Tensor:
        """From the gradient in what was settled to that in the logits."""
        kept = torch.where(self.lost, 0, grad)
        most = torch.where(self.rows, kept.sum(1, keepdim=True), 0)
        return kept.scatter_add(1, self.first, -most)


def _wild(f: Tensor, temperature: float) -> Wild | None:
    bound = _bound(f, temperature)
    if float(f.abs().max() if f.numel() else 0.0) <= bound / 2:
        return None
    top = f.amax(1, keepdim=True)
    rows = (top - f.amin(1, keepdim=True) > bound) | (top.abs() > bound)
    return Wild(f, rows, bound, SATURATED * temperature)

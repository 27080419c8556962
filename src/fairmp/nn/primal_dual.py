"""The K steps of ``paper`` and ``papc``, forward and back, as autograd sees them: one function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fairmp.graph import Adjacency
from fairmp.groups import GroupOperator
from fairmp.kernels import implementation, reference
from fairmp.kernels.cuda.graphs import MAX_RECORDED_NUMEL, CUDAGraphCache

if TYPE_CHECKING:
    from fairmp.nn.functional import Operator


class Kept(NamedTuple):
    """What the gradient of the steps needs.

    Attributes:
        duals: the dual after each step (K×G'×C, float64).
        free: which of its entries are not held at their bound (K×G'×C).
        soft: the probabilities before each step, and those it predicted, in turn (n×C each).
    """

    duals: Tensor
    free: Tensor
    soft: list[Tensor]


@dataclass(frozen=True)
class PrimalDual:
    """The steps, where each node has one group: beside n×C tensors, a few numbers a cell."""

    graph: Operator
    delta: GroupOperator
    K: int
    gamma: float
    lambda_f: float
    beta: float

    def ahead(self, x: Tensor, keep: bool = True, trace: bool = False) -> tuple[list[Tensor], Kept]:
        """Walk the steps: the corrected logits, of each step for a trace and else of the last."""
        kernels: Any = implementation(x)
        delta, gamma = self.delta, self.gamma
        rows = delta.rows.double()
        u = rows.new_zeros(rows.size(0), x.size(1))
        pull = delta.by_group(u)
        f, p = kernels.corrected(x, x, delta.codes, pull, gamma)  # without a pull, the softmax
        walked, duals, free, soft = [], [], [], []
        for _ in range(self.K):
            agg = x if gamma == 1 else self.graph.aggregate(f, x, gamma)
            q, sums = kernels.predicted(p, agg, delta.codes, delta.measured_codes, pull, gamma)
            u_bar = u + self.beta * (rows @ delta.total(sums))
            u = u_bar.clamp(-self.lambda_f, self.lambda_f)
            pull = delta.by_group(u)
            if keep:
                soft += [p, q]
            f, p = kernels.corrected(p, agg, delta.codes, pull, gamma)
            duals.append(u)
            free.append(u == u_bar)
            if trace:
                walked.append(f)
        return walked if trace else [f], Kept(torch.stack(duals), torch.stack(free), soft)

    def back(self, kept: Kept, grad: Tensor | None, grad_duals: Tensor | None) -> Tensor:
        """Walk them back, from gradients of the corrected logits and of the duals."""
        delta, gamma = self.delta, self.gamma
        kernels: Any = implementation(kept.soft[0])
        reach, measured = delta.codes, delta.measured_codes
        g = torch.zeros_like(kept.soft[0]) if grad is None else grad.contiguous()
        total = torch.zeros_like(g)
        h, rows = torch.zeros_like(kept.duals[0]), delta.rows.double()
        pulls = rows.T @ kept.duals
        start = torch.zeros_like(pulls[0])
        for k in reversed(range(self.K)):
            p, q = kept.soft[2 * k : 2 * k + 2]
            if grad_duals is not None:
                h = h + grad_duals[k]
            felt = kernels.coupling_pulls(p, g, reach, delta.num_groups)
            h = torch.where(kept.free[k], h - gamma * (rows @ felt), 0.0)
            # The sums are of all ranks' nodes, and so is the gradient all ranks have for them.
            w = delta.total(self.beta * (rows.T @ h))
            before = pulls[k - 1] if k else start
            a, e, felt = kernels.coupling_back(p, q, g, reach, measured, before, pulls[k], w)
            h = h - gamma * (rows @ felt)
            total.add_(a, alpha=gamma)
            g = e if gamma == 1 else self.graph.aggregate(a, e, gamma, transposed=True)
        return total.add_(g)

    def recording(self, x: Tensor, recordings: CUDAGraphCache) -> Any:
        """The steps on the device alone, recorded, where that is faster; else ``None``."""
        here = type(self.graph) is Adjacency and type(self.delta) is GroupOperator
        compiled = x.is_cuda and implementation(x) is not reference
        if not here or not compiled or x.numel() > MAX_RECORDED_NUMEL:
            return None

        def ahead(x: Tensor) -> tuple[tuple[Tensor, ...], Kept]:
            (f,), kept = self.ahead(x)
            return (f, kept.duals.to(x.dtype)), kept

        def back(kept: Kept, gradients: tuple[Tensor, ...]) -> Tensor:
            return self.back(kept, *gradients)

        numbers = ("primal-dual", self.K, self.gamma, self.lambda_f, self.beta)
        return recordings.get((self.graph, self.delta), numbers, x, ahead, back)


class Coupling(torch.autograd.Function):
    """All K steps at once; of each, two n×C tensors are kept, and few others made."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        steps: PrimalDual,
        keep: bool,
        trace: bool,
        recordings: CUDAGraphCache | None,
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Return the corrected logits, the dual of each step, and for a trace each step's logits.

        ``keep`` says that a gradient will be asked for.
        """
        x = x.contiguous()
        # A gradient nobody asked of the duals stays None, and is not made a tensor of zeros.
        ctx.set_materialize_grads(False)
        ctx.steps = steps
        ctx.recording = None if recordings is None or trace else steps.recording(x, recordings)
        if ctx.recording is not None:
            (f, duals), ctx.turn = ctx.recording.forward(x)
            ctx.save_for_backward(x)
            return f, duals, []
        walked, kept = steps.ahead(x, keep, trace)
        ctx.save_for_backward(kept.duals, kept.free, *kept.soft)
        return walked[-1], kept.duals.to(x.dtype, copy=True), [f.detach() for f in walked]

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad: Tensor | None, grad_duals: Tensor | None, _: object
    ) -> tuple[Tensor | None, ...]:
        """Walk the steps back, from the gradients of the logits and of the duals."""
        if ctx.recording is not None:
            (x,) = ctx.saved_tensors
            gradient = ctx.recording.backward(ctx.turn, x, (grad, grad_duals))
        else:
            duals, free, *soft = ctx.saved_tensors
            gradient = ctx.steps.back(Kept(duals, free, soft), grad, grad_duals)
        return gradient, None, None, None, None

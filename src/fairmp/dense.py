"""The network that reads each node alone, with a gradient that stays in the processor's caches."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch_geometric.nn import MLP

PIECE = 4096  # rows whose gradient is taken from the last layer to the first in one go
NARROW = 16  # a gradient of so few columns is faster as the left factor, turned


class Dense(MLP):
    """PyG's ``MLP``, weight for weight and result for result.

    In training on a CPU most of the time that is not spent multiplying goes into hidden layers that
    travel to memory and back: as a product, as its positive part, as a gradient, as its masked
    form. Here the positive part is taken in place, and the gradient passes through all layers a
    few thousand rows at a time. That needs ReLU, no normalisation and no dropout, as is the
    default; a network with others is PyG's own, as is one on a GPU or one that is compiled.

    Example:
        >>> network = Dense([3, 4, 2], norm=None)
        >>> network(torch.ones(5, 3)).shape
        torch.Size([5, 2])
    """

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Read the nodes (n×features); see PyG's ``MLP`` for what else it takes."""
        if args or kwargs or not self._plain(x):
            return super().forward(x, *args, **kwargs)
        parameters = [p for lin in self.lins for p in (lin.weight, lin.bias)]
        return _Layers.apply(x, *parameters)

    def _plain(self, x: Tensor) -> bool:
        return (
            x.device.type == "cpu"
            and x.dim() == 2
            and x.layout == torch.strided
            and self.plain_last
            and type(self.act) is nn.ReLU
            and all(type(norm) is nn.Identity for norm in self.norms)
            and all(lin.bias is not None for lin in self.lins)
            and not (self.training and any(self.dropout))
            and not torch.is_autocast_enabled("cpu")
            and not torch.compiler.is_compiling()
        )


class _Layers(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *parameters: Tensor) -> Tensor:
        weights, biases = parameters[::2], parameters[1::2]
        layers = [x]
        for weight, bias in zip(weights, biases, strict=True):
            layers.append(torch.addmm(bias, layers[-1], weight.t()))
            if len(layers) <= len(weights):
                layers[-1].relu_()
        ctx.save_for_backward(*weights, *layers[:-1])
        return layers[-1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        count = len(saved) // 2
        weights, layers = saved[:count], saved[count:]
        of_x, *of_parameters = ctx.needs_input_grad
        grad_x = torch.empty_like(layers[0]) if of_x else None
        sums = [
            (torch.zeros_like(w) if of_w else None, w.new_zeros(w.size(0)) if of_b else None)
            for w, of_w, of_b in zip(weights, of_parameters[::2], of_parameters[1::2], strict=True)
        ]
        rows = min(PIECE, grad.size(0))
        spaces = [w.new_empty(rows, w.size(1)) for w in weights]
        for start in range(0, grad.size(0), PIECE):
            piece = slice(start, start + PIECE)
            g = grad[piece]
            for k in reversed(range(count)):
                _add(g, layers[k][piece], *sums[k])
                if k:
                    g = torch.mm(g, weights[k], out=spaces[k][: g.size(0)])
                    # The derivative of the positive part, from the part itself.
                    g = torch.ops.aten.threshold_backward.grad_input(
                        g, layers[k][piece], 0, grad_input=g
                    )
                elif grad_x is not None:
                    torch.mm(g, weights[0], out=grad_x[piece])
        return grad_x, *(part for pair in sums for part in pair)


def _add(g: Tensor, inputs: Tensor, of_weight: Tensor | None, of_bias: Tensor | None) -> None:
    """Add a piece's gradient of a layer's weight and bias."""
    if of_bias is not None:
        of_bias += g.sum(0)
    if of_weight is None:
        return
    if g.size(1) <= NARROW:
        of_weight += g.t() @ inputs
    else:
        of_weight.t().addmm_(inputs.t(), g)

"""The network that reads each node alone, with a gradient that stays in the processor's caches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import MLP, Linear

from fairmp.kernels import implementation

PIECE = 4096  # rows that are taken from the first layer to the last in one go
NARROW = 16  # so few columns are a product's narrow side, for which there are faster ways


class Dense(MLP):
    """PyG's ``MLP``, weight for weight and result for result.

    In training on a CPU most of the time that is not spent multiplying goes into hidden layers that
    travel to memory and back: as a product, as its positive part, as a gradient, as its masked
    form. Here a few thousand rows at a time pass through all layers, the positive part is taken in
    place, and the gradient of the last layer is one pass over its units. That needs ReLU, no
    normalisation, no dropout and layers as they were made, without hooks; a network with others is
    PyG's own, as is one on a GPU, one that is compiled, or one that ``torch.func`` transforms.

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
            and all(type(lin) is Linear and lin.bias is not None for lin in self.lins)
            and not any(map(_hooked, (self.act, *self.norms, *self.lins)))
            and not torch._C._are_functorch_transforms_active()
            and not (self.training and any(self.dropout))
            and not torch.is_autocast_enabled("cpu")
            and not torch.compiler.is_compiling()
        )


def _hooked(part: nn.Module) -> bool:
    # A layer whose size is not known yet, or whose weight is made of others, has a hook too.
    hooks = (part._forward_pre_hooks, part._forward_hooks)
    return any((*hooks, part._backward_pre_hooks, part._backward_hooks))


class _Layers(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *parameters: Tensor) -> Tensor:
        weights, biases = parameters[::2], parameters[1::2]
        layers = [x, *(x.new_empty(x.size(0), weight.size(0)) for weight in weights)]
        for start in range(0, x.size(0), PIECE):
            piece = slice(start, start + PIECE)
            for k, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
                out = torch.addmm(bias, layers[k][piece], weight.t(), out=layers[k + 1][piece])
                if k + 1 < len(weights):
                    out.relu_()
        ctx.save_for_backward(*weights, *layers[:-1], *biases)
        return layers[-1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        count = len(saved) // 3
        weights, layers, biases = saved[:count], saved[count : 2 * count], saved[2 * count :]
        if torch.is_grad_enabled():  # the gradient itself will be differentiated
            return _differentiable(ctx.needs_input_grad, layers[0], weights, biases, grad)
        found: list[Tensor | None] = []
        g, of_bias = grad.contiguous(), grad.sum(0)
        for k in reversed(range(1, count)):
            if g.size(1) <= NARROW:
                g, following, of_weight = implementation(g).linear_relu_backward(
                    g, layers[k], weights[k]
                )
            else:
                of_weight = _product(layers[k], g)
                # The derivative of the positive part, from the part itself.
                g = torch.ops.aten.threshold_backward(g @ weights[k], layers[k], 0)
                following = g.sum(0)
            found = [of_weight, of_bias, *found]
            of_bias = following
        of_weight = _product(layers[0], g) if ctx.needs_input_grad[1] else None
        of_x = g @ weights[0] if ctx.needs_input_grad[0] else None
        return of_x, of_weight, of_bias, *found


def _differentiable(
    wanted: Sequence[bool],
    x: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    grad: Tensor,
) -> tuple[Tensor | None, ...]:
    layer = x
    for k, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        layer = nn.functional.linear(layer.relu() if k else layer, weight, bias)
    inputs = [x, *(part for pair in zip(weights, biases, strict=True) for part in pair)]
    asked = [part for part, of_it in zip(inputs, wanted, strict=True) if of_it]
    found = iter(torch.autograd.grad(layer, asked, grad, create_graph=True))
    return tuple(next(found) if of_it else None for of_it in wanted)


def _product(x: Tensor, g: Tensor) -> Tensor:
    """Multiply gᵀx; of the two ways to lay it out the one with the faster product."""
    return g.t() @ x if g.size(1) <= NARROW else (x.t() @ g).t()

"""PyG's ``MLP`` with a gradient that stays in the processor's caches."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import MLP, Linear

from fairmp.kernels import implementation

CHUNK_ROWS = 4096  # taken through all layers at once
MAX_NARROW_COLUMNS = 16  # of a gradient, up to which other ways to multiply it are faster
# Lazily initialised layers and parametrised weights have hooks as well.
HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


class Dense(MLP):
    """PyG's ``MLP``, weight for weight and result for result, with a faster gradient.

    On a CPU most of the training time that is not spent multiplying goes into hidden layers that
    travel to memory and back. Here a few thousand rows at a time pass through all layers, ReLU
    works in place, and the gradient of the last layer is one pass over its units. That requires
    ReLU, no normalization, no dropout and layers without hooks. Other networks, and those on a GPU,
    under ``torch.compile`` or ``torch.func``, run PyG's own code.

    Example:
        >>> network = Dense([3, 4, 2], norm=None)
        >>> network(torch.ones(5, 3)).shape
        torch.Size([5, 2])
    """

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Return the logits of each row; see PyG's ``MLP`` for further arguments."""
        if args or kwargs or not self._supported(x):
            return super().forward(x, *args, **kwargs)
        return _Layers.apply(x, *(p for lin in self.lins for p in (lin.weight, lin.bias)))

    def _supported(self, x: Tensor) -> bool:
        return (
            x.device.type == "cpu"
            and x.dim() == 2
            and x.layout == torch.strided
            and self.plain_last
            and type(self.act) is nn.ReLU
            and all(type(norm) is nn.Identity for norm in self.norms)
            and all(type(lin) is Linear and lin.bias is not None for lin in self.lins)
            and not any(getattr(m, h) for m in (self.act, *self.norms, *self.lins) for h in HOOKS)
            and not torch._C._are_functorch_transforms_active()
            and not (self.training and any(self.dropout))
            and not torch.is_autocast_enabled("cpu")
            and not torch.compiler.is_compiling()
        )


class _Layers(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *parameters: Tensor) -> Tensor:
        weights, biases = parameters[::2], parameters[1::2]
        layers = [x, *(x.new_empty(x.size(0), weight.size(0)) for weight in weights)]
        for start in range(0, x.size(0), CHUNK_ROWS):
            rows = slice(start, start + CHUNK_ROWS)
            for k, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
                out = torch.addmm(bias, layers[k][rows], weight.t(), out=layers[k + 1][rows])
                if k + 1 < len(weights):
                    out.relu_()
        ctx.save_for_backward(*weights, *layers[:-1], *biases)
        return layers[-1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        count = len(saved) // 3
        weights, layers, biases = saved[:count], saved[count : 2 * count], saved[2 * count :]
        if torch.is_grad_enabled():  # for a gradient of the gradient
            layer, inputs = layers[0], [layers[0]]
            for k, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
                layer = nn.functional.linear(layer.relu() if k else layer, weight, bias)
                inputs += [weight, bias]
            wanted = [x for x, needed in zip(inputs, ctx.needs_input_grad, strict=True) if needed]
            gradients = iter(torch.autograd.grad(layer, wanted, grad, create_graph=True))
            return tuple(next(gradients) if needed else None for needed in ctx.needs_input_grad)
        found: list[Tensor | None] = []
        g, grad_bias = grad.contiguous(), grad.sum(0)
        for k in reversed(range(1, count)):
            if g.size(1) <= MAX_NARROW_COLUMNS:
                kernels = implementation(g)
                g, following, grad_weight = kernels.linear_relu_backward(g, layers[k], weights[k])
            else:
                grad_weight = _product(layers[k], g)
                g = torch.ops.aten.threshold_backward(g @ weights[k], layers[k], 0)
                following = g.sum(0)
            found = [grad_weight, grad_bias, *found]
            grad_bias = following
        first = _product(layers[0], g) if ctx.needs_input_grad[1] else None
        grad_x = g @ weights[0] if ctx.needs_input_grad[0] else None
        return grad_x, first, grad_bias, *found


def _product(x: Tensor, g: Tensor) -> Tensor:
    """Multiply gᵀx, in the faster of two layouts."""
    return g.t() @ x if g.size(1) <= MAX_NARROW_COLUMNS else (x.t() @ g).t()

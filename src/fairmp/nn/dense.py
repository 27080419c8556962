"""PyG's ``MLP`` with a gradient that stays in the processor's caches."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from torch_geometric.nn import MLP

from fairmp.graph import TensorCache, to_scipy
from fairmp.kernels import apply, implementation
from fairmp.kernels.types import CSR

CHUNK_ROWS = 4096  # taken through all layers at once
BLOCK_ROWS = 1024  # of compressed features whose gradient fits the processor's cache
MAX_DENSITY = 0.25  # of features that are compressed; from about 0.4 on that is slower
MIN_COMPRESSED_NUMEL = 2**18
MAX_NARROW_COLUMNS = 16  # of a gradient, up to which other ways to multiply it are faster


class Dense(nn.Module):
    """PyG's ``MLP`` without normalization and dropout, weight for weight, with a faster gradient.

    On a CPU most of the training time that is not spent multiplying goes into hidden layers that
    travel to memory and back. Here a few thousand rows at a time pass through all layers, ReLU
    works in place, and the gradient of the last layer is one pass over its units. On a GPU, under
    ``torch.compile``, autocast or ``torch.func``, and with hooks on a layer, layers are called one
    by one.

    Where most features equal the most frequent value of their column (zeros, also after
    standardisation), the first layer multiplies the others alone. They are compressed the second
    time the same tensor is met. A sparse tensor stays sparse.

    Args:
        channels: numbers of features, of units of each hidden layer, and of classes.

    Example:
        >>> network = Dense([3, 4, 2])
        >>> network(torch.ones(5, 3)).shape
        torch.Size([5, 2])
    """

    takes_graph = False

    def __init__(self, channels: Sequence[int]) -> None:
        super().__init__()
        layers = MLP(list(channels), norm=None).lins
        self.lins = nn.ModuleList(_Linear.like(layer) for layer in layers)
        self._features = TensorCache()

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of each row."""
        if not self._fusible(x):
            return self._layer_by_layer(x)
        parameters = [p for layer in self.lins for p in (layer.weight, layer.bias)]
        try:
            return apply(_Layers, x, self._compressed(x), *parameters)
        except RuntimeError:  # torch.func refuses it, before it has run
            return self._layer_by_layer(x)

    def _layer_by_layer(self, x: Tensor) -> Tensor:
        *hidden, last = self.lins
        for layer in hidden:
            x = layer(x).relu()
        logits: Tensor = last(x)
        return logits

    def _compressed(self, x: Tensor) -> Compressed | None:
        if x.requires_grad or (x.numel() < MIN_COMPRESSED_NUMEL and not x.is_sparse):
            return None
        met: list[None] = self._features.get((x,), "met", list)
        if not met and not x.is_sparse:
            met.append(None)
            return None
        return self._features.get((x,), "compressed", partial(compress, x))

    def _fusible(self, x: Tensor) -> bool:
        return (
            x.device.type == "cpu"
            and x.dim() == 2
            and x.layout in (torch.strided, torch.sparse_coo)
            and not any(layer.is_hooked for layer in self.lins)
            and not torch.is_autocast_enabled("cpu")
            and not torch.compiler.is_compiling()
        )


class _Linear(nn.Linear):
    """A linear layer that knows of its hooks, pruning and weight norms included."""

    is_hooked = False

    @classmethod
    def like(cls, layer: nn.Module) -> _Linear:
        """Take over the parameters of a linear layer of PyG."""
        weight, bias = layer.get_parameter("weight"), layer.get_parameter("bias")
        linear = cls(weight.size(1), weight.size(0), device="meta")  # draws no random numbers
        linear.weight, linear.bias = weight, bias
        return linear

    def register_forward_pre_hook(self, *args: Any, **kwargs: Any) -> RemovableHandle:
        self.is_hooked = True
        return super().register_forward_pre_hook(*args, **kwargs)

    def register_forward_hook(self, *args: Any, **kwargs: Any) -> RemovableHandle:
        self.is_hooked = True
        return super().register_forward_hook(*args, **kwargs)

    def register_full_backward_pre_hook(self, *args: Any, **kwargs: Any) -> RemovableHandle:
        self.is_hooked = True
        return super().register_full_backward_pre_hook(*args, **kwargs)

    def register_full_backward_hook(self, *args: Any, **kwargs: Any) -> RemovableHandle:
        self.is_hooked = True
        return super().register_full_backward_hook(*args, **kwargs)


class Compressed(NamedTuple):
    """Features as the most frequent value of each column, and the rest in CSR format."""

    common: Tensor  # (d)
    rows: CSR  # of the features (n×d)
    columns: CSR  # of each block of rows (blocks·d×n)

    def product(self, weight: Tensor, bias: Tensor, *, relu: bool) -> Tensor:
        """X Wᵀ + b, for W (H×d)."""
        shifted = torch.addmv(bias, weight, self.common)
        kernels = implementation(weight)
        return kernels.sparse_linear(self.rows, weight.t().contiguous(), shifted, relu=relu)

    def backward(self, g: Tensor, total: Tensor) -> Tensor:
        """The gradient of W (H×d), given that of the product (n×H) and its sum over rows (H)."""
        kernels = implementation(g)
        parts = kernels.sparse_linear(self.columns, g, torch.zeros_like(total), relu=False)
        parts = parts.view(-1, self.common.numel(), g.size(1))
        return torch.addr(parts.sum(0).t(), total, self.common)


def compress(x: Tensor) -> Compressed | None:
    """Compress features; ``None`` where too few of them repeat."""
    if x.is_sparse:
        common, residual = torch.zeros(x.size(1), dtype=x.dtype), to_scipy(x)
    else:
        sample = x[:: max(x.size(0) // 1000, 1)]
        common = sample.median(0).values  # a value that most rows have is their median
        if float((sample != common).float().mean()) > MAX_DENSITY:
            return None
        residual = to_scipy(x - common)
    starts = range(0, x.size(0), BLOCK_ROWS)
    blocks = [residual[start : start + BLOCK_ROWS].tocsc() for start in starts]
    lengths = np.concatenate([np.diff(block.indptr) for block in blocks])
    pointers = np.concatenate([[0], lengths.cumsum()])
    indices = [block.indices + start for block, start in zip(blocks, starts, strict=True)]
    values = np.concatenate([block.data for block in blocks])
    columns = CSR(*map(torch.from_numpy, (pointers, np.concatenate(indices), values)))
    return Compressed(
        common,
        CSR(*map(torch.from_numpy, (residual.indptr, residual.indices, residual.data))),
        columns,
    )


class _Layers(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, features: Compressed | None, *parameters: Tensor) -> Tensor:
        weights, biases = parameters[::2], parameters[1::2]
        layers, first = [x], 0
        if features is not None:
            layers.append(features.product(weights[0], biases[0], relu=len(weights) > 1))
            first = 1
        layers += [weight.new_empty(x.size(0), weight.size(0)) for weight in weights[first:]]
        for start in range(0, x.size(0), CHUNK_ROWS):
            rows = slice(start, start + CHUNK_ROWS)
            for k in range(first, len(weights)):
                rows_in, rows_out = layers[k][rows], layers[k + 1][rows]
                out = torch.addmm(biases[k], rows_in, weights[k].t(), out=rows_out)
                if k + 1 < len(weights):
                    out.relu_()
        ctx.features = features
        ctx.save_for_backward(*weights, *layers[:-1], *biases)
        return layers[-1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # for a gradient of the gradient
            return _differentiable_gradients(ctx, grad)
        saved = ctx.saved_tensors
        count = len(saved) // 3
        weights, layers = saved[:count], saved[count : 2 * count]
        gradients: list[Tensor | None] = []  # of weights and biases, but for those of the first
        g, grad_bias = grad.contiguous(), grad.sum(0)
        for k in reversed(range(1, count)):
            if g.size(1) <= MAX_NARROW_COLUMNS:
                kernels = implementation(g)
                g, following, grad_weight = kernels.linear_relu_backward(g, layers[k], weights[k])
            else:
                grad_weight = _product(layers[k], g)
                g = torch.ops.aten.threshold_backward(g @ weights[k], layers[k], 0)
                following = g.sum(0)
            gradients = [grad_weight, grad_bias, *gradients]
            grad_bias = following
        first = None
        if ctx.needs_input_grad[2]:
            dense = ctx.features is None
            first = _product(layers[0], g) if dense else ctx.features.backward(g, grad_bias)
        grad_x = g @ weights[0] if ctx.needs_input_grad[0] else None
        return grad_x, None, first, grad_bias, *gradients


def _differentiable_gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """Compute the layers again, so that autograd differentiates their gradient."""
    saved = ctx.saved_tensors
    count = len(saved) // 3
    weights, x, biases = saved[:count], saved[count], saved[2 * count :]
    arguments, layer = [x, x], x  # the second stands for the compressed features
    for k, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        layer = nn.functional.linear(layer.relu() if k else layer, weight, bias)
        arguments += [weight, bias]
    wanted = [part for part, needed in zip(arguments, ctx.needs_input_grad, strict=True) if needed]
    gradients = iter(torch.autograd.grad(layer, wanted, grad, create_graph=True))
    return tuple(next(gradients) if needed else None for needed in ctx.needs_input_grad)


def _product(x: Tensor, g: Tensor) -> Tensor:
    """Multiply gᵀx, in the faster of two layouts."""
    return g.t() @ x if g.size(1) <= MAX_NARROW_COLUMNS else (x.t() @ g).t()

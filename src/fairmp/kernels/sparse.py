"""The sparse product Ã·F, for layers that autograd walks through step by step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


@torch.library.custom_op("fairmp::product", mutates_args=())
def product(
    row: Tensor,
    col: Tensor,
    weight: Tensor | None,
    row_t: Tensor,
    col_t: Tensor,
    weight_t: Tensor | None,
    scale: Tensor,
    x: Tensor,
) -> Tensor:
    """Multiply D A D, with A in compressed rows and D = diag(scale), with ``x`` (n×C).

    The arguments ending in ``_t`` are the transposed matrix, which the backward pass multiplies
    with; for a symmetric matrix they are the same tensors again and nothing is transposed.
    """
    from fairmp.kernels import implementation

    kernels = implementation(x)
    return kernels.aggregate(row, col, weight, scale, scale, x.contiguous(), None, 0.0)


@product.register_fake
def _(
    row: Tensor,
    col: Tensor,
    weight: Tensor | None,
    row_t: Tensor,
    col_t: Tensor,
    weight_t: Tensor | None,
    scale: Tensor,
    x: Tensor,
) -> Tensor:
    return x.new_empty(row.numel() - 1, x.size(1))


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:7])


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    row, col, weight, row_t, col_t, weight_t, scale = ctx.saved_tensors
    grad_x = product(row_t, col_t, weight_t, row, col, weight, scale, grad)
    return None, None, None, None, None, None, None, grad_x


product.register_autograd(_backward, setup_context=_setup)

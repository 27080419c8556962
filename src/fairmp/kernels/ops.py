"""Operations over groups and edges that autograd can differentiate."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fairmp.kernels.protocol import implementation

MAX_TRANSPOSED_CLASSES = 16


def softmax(f: Tensor) -> Tensor:
    """Softmax of each row, as ``f.softmax(1)``.

    For a handful of classes torch spends most of ``softmax(1)`` on overhead per row; along the
    other dimension it vectorises over the nodes.
    """
    return f.softmax(1) if f.size(1) > MAX_TRANSPOSED_CLASSES else f.T.contiguous().softmax(0).T


@torch.library.custom_op("fairmp::segment_sum", mutates_args=())
def segment_sum(values: Tensor, codes: Tensor, groups: int) -> Tensor:
    """Sum the rows of ``values`` (n×C) by group (groups×C); a code of −1 does not count."""
    kernels = implementation(values)
    return kernels.segment_sum(values.contiguous(), codes, groups).to(values.dtype)


@torch.library.custom_op("fairmp::gather", mutates_args=())
def gather(table: Tensor, codes: Tensor) -> Tensor:
    """Row of ``table`` of each node's group (n×C); zeros where the code is −1."""
    padded = torch.cat([table, table.new_zeros(1, table.size(1))])
    return padded[torch.where(codes < 0, table.size(0), codes)]


@segment_sum.register_fake
def _(values: Tensor, codes: Tensor, groups: int) -> Tensor:
    return values.new_empty(groups, values.size(1))


@gather.register_fake
def _(table: Tensor, codes: Tensor) -> Tensor:
    return table.new_empty(codes.numel(), table.size(1))


def _keep_codes(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[1])
    ctx.groups = inputs[0].size(0)


def _sum_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    (codes,) = ctx.saved_tensors
    return gather(grad, codes), None, None


def _gather_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    (codes,) = ctx.saved_tensors
    return segment_sum(grad, codes, ctx.groups), None


segment_sum.register_autograd(_sum_backward, setup_context=_keep_codes)
gather.register_autograd(_gather_backward, setup_context=_keep_codes)


@torch.library.custom_op("fairmp::spmm", mutates_args=())
def spmm(
    row: Tensor,
    col: Tensor,
    weight: Tensor | None,
    row_t: Tensor,
    col_t: Tensor,
    weight_t: Tensor | None,
    scale: Tensor,
    x: Tensor,
) -> Tensor:
    """Multiply D A D with ``x`` (n×C), where A is in CSR format and D = diag(scale).

    The arguments ending in ``_t`` are the transpose of A, for the backward pass; for a symmetric
    matrix they are the same tensors.
    """
    matrix = row, col, weight, scale, scale
    return implementation(x).aggregate(matrix, x.contiguous(), None, 0.0)


@spmm.register_fake
def _(row: Tensor, *args: Any) -> Tensor:
    x: Tensor = args[-1]
    return x.new_empty(row.numel() - 1, x.size(1))


def _keep_matrix(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:7])


def _spmm_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    row, col, weight, row_t, col_t, weight_t, scale = ctx.saved_tensors
    grad_x = spmm(row_t, col_t, weight_t, row, col, weight, scale, grad)
    return None, None, None, None, None, None, None, grad_x


spmm.register_autograd(_spmm_backward, setup_context=_keep_matrix)

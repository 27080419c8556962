"""Autograd operations over groups and edges."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


@torch.library.custom_op("fairmp::segment_sum", mutates_args=())
def segment_sum(values: Tensor, codes: Tensor, cells: int) -> Tensor:
    """Sum the rows of ``values`` (n×C) by cell (cells×C); a code of −1 does not count.

    Example:
        >>> codes = torch.tensor([1, -1, 1], dtype=torch.int32)
        >>> segment_sum(torch.ones(3, 1), codes, 2)
        tensor([[0.],
                [2.]])
    """
    from fairmp.kernels import implementation

    sums: Tensor = implementation(values).segment_sum(values.contiguous(), codes, cells)
    return sums.to(values.dtype)


@torch.library.custom_op("fairmp::gather", mutates_args=())
def gather(table: Tensor, codes: Tensor) -> Tensor:
    """Give each node its cell's row of ``table`` (n×C); zeros where the code is −1.

    Example:
        >>> codes = torch.tensor([1, -1], dtype=torch.int32)
        >>> gather(torch.tensor([[1.0], [2.0]]), codes)
        tensor([[2.],
                [0.]])
    """
    padded = torch.cat([table, table.new_zeros(1, table.size(1))])
    return padded[torch.where(codes < 0, table.size(0), codes)]


@segment_sum.register_fake
def _(values: Tensor, codes: Tensor, cells: int) -> Tensor:
    return values.new_empty(cells, values.size(1))


@gather.register_fake
def _(table: Tensor, codes: Tensor) -> Tensor:
    return table.new_empty(codes.numel(), table.size(1))


def _keep_codes(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[1])
    ctx.cells = inputs[0].size(0)


def _sum_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    (codes,) = ctx.saved_tensors
    return gather(grad, codes), None, None


def _gather_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    (codes,) = ctx.saved_tensors
    return segment_sum(grad, codes, ctx.cells), None


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
    """Multiply D A D, with A in compressed rows and D = diag(scale), with ``x`` (n×C).

    The arguments ending in ``_t`` are the transposed matrix, which the backward pass multiplies
    with; for a symmetric matrix they are the same tensors again and nothing is transposed.
    """
    from fairmp.kernels import implementation

    kernels = implementation(x)
    return kernels.aggregate(row, col, weight, scale, scale, x.contiguous(), None, 0.0)


@spmm.register_fake
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


def _keep_matrix(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:7])


def _spmm_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    row, col, weight, row_t, col_t, weight_t, scale = ctx.saved_tensors
    grad_x = spmm(row_t, col_t, weight_t, row, col, weight, scale, grad)
    return None, None, None, None, None, None, None, grad_x


spmm.register_autograd(_spmm_backward, setup_context=_keep_matrix)

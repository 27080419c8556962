"""The sparse product Ã·F."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

with warnings.catch_warnings():
    # torch says once a process that CSR tensors are in beta; users can do nothing about it.
    warnings.simplefilter("ignore")
    torch.sparse_csr_tensor(
        torch.tensor([0, 1]), torch.tensor([0]), torch.tensor([1.0]), size=(1, 1)
    )


@torch.library.custom_op("fairmp::spmm", mutates_args=())
def spmm(
    row: Tensor,
    col: Tensor,
    value: Tensor,
    row_t: Tensor,
    col_t: Tensor,
    value_t: Tensor,
    x: Tensor,
) -> Tensor:
    """Multiply a CSR matrix (row pointers, columns, values) with ``x`` (n×C).

    The arguments ending in ``_t`` are the transposed matrix, which the backward pass multiplies
    with; for a symmetric matrix they are the same tensors again and nothing is transposed.
    """
    n = row.numel() - 1
    matrix = torch.sparse_csr_tensor(row, col, value, size=(n, x.size(0)))
    return (matrix @ x.contiguous()).contiguous()


@spmm.register_fake
def _(
    row: Tensor,
    col: Tensor,
    value: Tensor,
    row_t: Tensor,
    col_t: Tensor,
    value_t: Tensor,
    x: Tensor,
) -> Tensor:
    return x.new_empty(row.numel() - 1, x.size(1))


def _setup(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:6])


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    row, col, value, row_t, col_t, value_t = ctx.saved_tensors
    grad_x = spmm(row_t, col_t, value_t, row, col, value, grad)
    return None, None, None, None, None, None, grad_x


spmm.register_autograd(_backward, setup_context=_setup)

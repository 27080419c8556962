"""From nodes to cells and back, for formulas that autograd walks through step by step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


@torch.library.custom_op("fairmp::by_cell", mutates_args=())
def by_cell(values: Tensor, codes: Tensor, cells: int) -> Tensor:
    """Sum the rows of ``values`` (n×C) by cell (cells×C); a code of −1 does not count.

    Example:
        >>> codes = torch.tensor([1, -1, 1], dtype=torch.int32)
        >>> by_cell(torch.ones(3, 1), codes, 2)
        tensor([[0.],
                [2.]])
    """
    from fairmp.kernels import implementation

    sums: Tensor = implementation(values).group_sums(values.contiguous(), codes, cells)
    return sums.to(values.dtype)


@torch.library.custom_op("fairmp::spread", mutates_args=())
def spread(table: Tensor, codes: Tensor) -> Tensor:
    """Give each node its cell's row of ``table`` (n×C); zeros where the code is −1.

    Example:
        >>> codes = torch.tensor([1, -1], dtype=torch.int32)
        >>> spread(torch.tensor([[1.0], [2.0]]), codes)
        tensor([[2.],
                [0.]])
    """
    padded = torch.cat([table, table.new_zeros(1, table.size(1))])
    return padded[torch.where(codes < 0, table.size(0), codes)]


@by_cell.register_fake
def _(values: Tensor, codes: Tensor, cells: int) -> Tensor:
    return values.new_empty(cells, values.size(1))


@spread.register_fake
def _(table: Tensor, codes: Tensor) -> Tensor:
    return table.new_empty(codes.numel(), table.size(1))


def _keep_codes(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[1])
    ctx.cells = inputs[0].size(0)


def _sum_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    (codes,) = ctx.saved_tensors
    return spread(grad, codes), None, None


def _spread_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    (codes,) = ctx.saved_tensors
    return by_cell(grad, codes, ctx.cells), None


by_cell.register_autograd(_sum_backward, setup_context=_keep_codes)
spread.register_autograd(_spread_backward, setup_context=_keep_codes)

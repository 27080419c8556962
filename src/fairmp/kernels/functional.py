"""The primitives as operations that autograd differentiates."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fairmp.kernels.protocol import MAX_TRANSPOSED_CLASSES, implementation, not_compiled
from fairmp.kernels.types import Matrix


def softmax(f: Tensor) -> Tensor:
    """Softmax of each row, as ``f.softmax(1)``.

    For a handful of classes torch spends most of ``softmax(1)`` on overhead per row; along the
    other dimension it vectorises over the nodes.
    """
    return f.softmax(1) if f.size(1) > MAX_TRANSPOSED_CLASSES else f.T.contiguous().softmax(0).T


def relative_to_largest(z: Tensor) -> Tensor:
    """Subtract each row's largest logit, as a constant: softmax does not change."""
    return z - z.detach().amax(1, keepdim=True)


@not_compiled
def segment_sum(values: Tensor, codes: Tensor, groups: int) -> Tensor:
    """Sum the rows of ``values`` (n×C) by group (groups×C); a code of −1 does not count."""
    return _SegmentSum.apply(values, codes, groups)


@not_compiled
def gather(table: Tensor, codes: Tensor) -> Tensor:
    """Row of ``table`` of each node's group (n×C); zeros where the code is −1."""
    return _Gather.apply(table, codes)


@not_compiled
def spmm(matrix: Matrix, transposed: Matrix, x: Tensor) -> Tensor:
    """Multiply a matrix with ``x`` (n×C); its transpose is for the gradient."""
    return _SpMM.apply(x, matrix, transposed)


def shift(z: Tensor, table: Tensor, codes: Tensor) -> Tensor:
    """Subtract the row of ``table`` of each node's group (n×C); nothing where the code is −1."""
    return _Shift.apply(z.contiguous(), table, codes)


class _SegmentSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, codes: Tensor, groups: int) -> Tensor:
        ctx.save_for_backward(codes)
        kernels = implementation(values)
        return kernels.segment_sum(values.contiguous(), codes, groups).to(values.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return gather(grad, *ctx.saved_tensors), None, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table: Tensor, codes: Tensor) -> Tensor:
        ctx.save_for_backward(codes)
        ctx.groups = table.size(0)
        padded = torch.cat([table, table.new_zeros(1, table.size(1))])
        return padded[torch.where(codes < 0, ctx.groups, codes)]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (codes,) = ctx.saved_tensors
        return segment_sum(grad, codes, ctx.groups), None


class _SpMM(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: Matrix, transposed: Matrix) -> Tensor:
        ctx.matrix, ctx.transposed = matrix, transposed
        return implementation(x).aggregate(matrix, x.contiguous(), None, 0.0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return spmm(ctx.transposed, ctx.matrix, grad), None, None


class _Shift(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, table: Tensor, codes: Tensor) -> Tensor:
        ctx.num_groups = table.size(0)
        ctx.save_for_backward(codes)
        return implementation(z).shift(z, codes, table)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        (codes,) = ctx.saved_tensors
        sums = implementation(grad).segment_sum(grad.contiguous(), codes, ctx.num_groups)
        return grad, -sums, None

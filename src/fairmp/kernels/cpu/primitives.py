"""The primitives for the CPU, compiled by numba, in one pass over memory each.

See :class:`fairmp.kernels.protocol.Kernels` for what each one computes. Results have the same bits
on any number of threads: chunks have a fixed size, and their results are added in order.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fairmp.kernels.cpu import edges, nodes
from fairmp.kernels.cpu.edges import strip_shape
from fairmp.kernels.cpu.fused import FusedProjection, gather_rows, scale_many, scale_two
from fairmp.kernels.cpu.threads import Array, array, chunk_size, matrix_arrays
from fairmp.kernels.reference import Matrix


def aggregate(matrix: Matrix, f: Tensor, x: Tensor | None, gamma: float) -> Tensor:
    """Propagate, with a skip to the input."""
    row, col, weight, left, right = matrix
    rows, classes = row.numel() - 1, f.size(1)
    out = f.new_empty(rows, classes)
    if not rows or not classes:
        return out
    scale, values = array(right, f.dtype), array(f)
    scaled: Array
    if classes == 2:
        scaled = np.empty(f.numel(), scale.dtype)
        scale_two(f.numel(), scale, values.reshape(-1), scaled)
    else:
        strips, lanes = strip_shape(classes)
        flat = np.empty((f.size(0), strips * lanes), scale.dtype)
        scale_many(f.numel(), scale, values, flat)
        scaled = flat.reshape(-1, strips, lanes)
    skip = (array(out), 0.0) if x is None else (array(x, f.dtype), float(gamma))
    arrays = matrix_arrays(row, col, weight, f.dtype)
    work = (rows + col.numel()) * classes
    gather_rows(work, arrays, array(left, f.dtype), scaled, *skip, array(out))
    return out


def moments(z: Tensor, codes: Tensor, shift: Tensor, temperature: float) -> Tensor:
    """Sum shifted softmaxes and their products by group."""
    groups, classes = shift.shape
    numbers = 1 + groups * classes * (1 + classes)
    size = chunk_size(z.size(0), numbers)
    parts = np.empty((-(-z.size(0) // size), numbers))
    logits = array(z), _codes(codes), _table(shift), float(temperature)
    nodes.moments(z.numel(), logits, size, parts)
    return torch.from_numpy(parts.sum(0))


def shift(z: Tensor, codes: Tensor, shift: Tensor) -> Tensor:
    """Subtract the shift of its group from each node's logits."""
    out = z.new_empty(z.shape)
    size = chunk_size(z.size(0))
    nodes.shift(z.numel(), array(z), _codes(codes), _table(shift), size, array(out))
    return out


def segment_sum(g: Tensor, codes: Tensor, groups: int) -> Tensor:
    """Sum rows by group."""
    size = chunk_size(g.size(0), groups * g.size(1))
    parts = np.empty((-(-g.size(0) // size), groups, g.size(1)))
    nodes.segment_sum(g.numel(), array(g), _codes(codes), size, parts)
    return torch.from_numpy(parts.sum(0))


def softmax_vjp(
    g: Tensor, z: Tensor, codes: Tensor, shift: Tensor, temperature: float, w: Tensor
) -> Tensor:
    """Add the gradient of the shifted softmax, weighted by group, to g."""
    out = g.new_empty(g.shape)
    logits = array(z), _codes(codes), _table(shift), float(temperature)
    nodes.softmax_vjp(z.numel(), array(g), logits, _table(w), chunk_size(z.size(0)), array(out))
    return out


def coupling_backward(g: Tensor, z: Tensor, codes: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of the softmax's coupling with a table."""
    out, size = torch.empty_like(g), chunk_size(z.size(0), w.numel())
    parts = np.empty((-(-z.size(0) // size), *w.shape))
    inputs = array(g), array(z), _codes(codes), _table(w)
    nodes.coupling_backward(z.numel(), *inputs, size, array(out), parts)
    return out, torch.from_numpy(parts.sum(0))


def linear_relu_backward(g: Tensor, h: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of a linear layer on top of a ReLU."""
    out = torch.empty_like(h)
    chunks, values = -(-h.size(0) // nodes.BACKWARD_ROWS), array(g)
    sums = np.empty((chunks, h.size(1)), values.dtype)
    pairs = np.empty((chunks, *weight.shape), values.dtype)
    layer = values, array(h), array(weight)
    nodes.linear_relu_backward(h.numel(), *layer, array(out), sums, pairs)
    return (
        out,
        torch.from_numpy(sums.sum(0, dtype=np.float64)).to(h.dtype),
        torch.from_numpy(pairs.sum(0, dtype=np.float64)).to(h.dtype),
    )


def sparse_linear(
    matrix: tuple[Tensor, Tensor, Tensor], weight: Tensor, bias: Tensor, *, relu: bool
) -> Tensor:
    """Multiply S W + b (r×H), for S in CSR format (r×d) and W (d×H); with a ReLU if asked."""
    row, col, value = matrix
    out = weight.new_empty(row.numel() - 1, weight.size(1))
    arrays = matrix_arrays(row, col, value, weight.dtype)
    floor = 0.0 if relu else -np.inf
    work = col.numel() * weight.size(1)
    edges.sparse_linear(work, arrays, array(weight), array(bias), floor, array(out))
    return out


fused_projection = FusedProjection  # all steps of the projection, for two classes and one gap


def _codes(codes: Tensor) -> Array:
    return array(codes, torch.int32)


def _table(table: Tensor) -> Array:
    """The table with a row of zeros before it, for the code −1."""
    padded = np.zeros((table.size(0) + 1, table.size(1)))
    padded[1:] = table.detach().numpy()
    return padded

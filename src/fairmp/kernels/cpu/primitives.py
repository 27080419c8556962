r"""The primitives for the CPU, compiled by numba, in one pass over memory each.

See :class:`fairmp.kernels.protocol.Kernels` for what each one computes. Results have the same bits
on any number of threads: chunks have a fixed size, and their results are added in order.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import prange
from torch import Tensor

from fairmp.kernels.cpu import edges, nodes
from fairmp.kernels.cpu.edges import CHUNK_LENGTH
from fairmp.kernels.cpu.fused import FusedProjection, FusedPropagation, gather_rows
from fairmp.kernels.cpu.threads import Array, Chunked, array, chunk_size, matrix_arrays
from fairmp.kernels.reference import Matrix

fused_projection, fused_propagation = FusedProjection, FusedPropagation


@Chunked
def scale_rows(right: Array, f: Array, g: Array) -> None:
    """Fill ``g`` with diag(right) F, padded with zeros."""
    for k in prange((f.shape[0] + CHUNK_LENGTH - 1) // CHUNK_LENGTH):
        start, stop = k * CHUNK_LENGTH, min((k + 1) * CHUNK_LENGTH, f.shape[0])
        for j in range(np.uint64(start), np.uint64(stop)):
            if g.shape[1] == 2:
                g[j, 0] = right[j] * f[j, 0]
                g[j, 1] = right[j] * f[j, 1]
                continue
            for c in range(np.uint64(f.shape[1])):
                g[j, c] = right[j] * f[j, c]
            for c in range(np.uint64(f.shape[1]), np.uint64(g.shape[1])):
                g[j, c] = 0


def aggregate(matrix: Matrix, f: Tensor, x: Tensor | None, gamma: float) -> Tensor:
    row, col, _, left, right = matrix
    rows, classes = row.numel() - 1, f.size(1)
    out = f.new_empty(rows, classes)
    if not rows or not classes:
        return out
    strips, lanes = (1, classes) if classes <= 2 else _strip_shape(classes)
    scale, filled = array(right, f.dtype), array(out)
    scaled: Array = np.empty((f.size(0), strips * lanes), scale.dtype)
    scale_rows(f.numel(), scale, array(f), scaled)
    skip, weight = (filled, 0.0) if x is None else (array(x, f.dtype), float(gamma))
    scaled = scaled.reshape(-1) if classes <= 2 else scaled.reshape(-1, strips, lanes)
    arrays = matrix_arrays(matrix, f.dtype), array(left, f.dtype)
    gather_rows((rows + col.numel()) * classes, *arrays, scaled, skip, weight, filled)
    return out


def moments(z: Tensor, codes: Tensor, shift: Tensor, temperature: float) -> Tensor:
    size, classes = chunk_size(z.size(0), shift.numel() * z.size(1)), z.size(1)
    sums = np.zeros((-(-z.size(0) // size), _lanes(z), len(shift), classes, classes))
    logits = array(z), _codes(codes), _table(shift), float(temperature)
    out = np.zeros(1 + shift.numel() * (1 + classes))
    nodes.moments(z.numel(), logits, size, sums, out)
    return torch.from_numpy(out)


def shift(z: Tensor, codes: Tensor, shift: Tensor) -> Tensor:
    out = z.new_empty(z.shape)
    size = chunk_size(z.size(0))
    nodes.shift(z.numel(), array(z), _codes(codes), _table(shift), size, array(out))
    return out


def segment_sum(g: Tensor, codes: Tensor, groups: int) -> Tensor:
    size = chunk_size(g.size(0), groups * g.size(1))
    parts = np.zeros((-(-g.size(0) // size), nodes.LANES, groups + 1, g.size(1)))
    nodes.segment_sum(g.numel(), array(g), _codes(codes), size, parts)
    return torch.from_numpy(parts.sum((0, 1))[1:])


def softmax_vjp(
    g: Tensor, z: Tensor, codes: Tensor, shift: Tensor, temperature: float, w: Tensor
) -> Tensor:
    out = g.new_empty(g.shape)
    logits = array(z), _codes(codes), _table(shift), float(temperature)
    nodes.softmax_vjp(z.numel(), array(g), logits, _table(w), chunk_size(z.size(0)), array(out))
    return out


def coupling_backward(g: Tensor, z: Tensor, codes: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    out, size = torch.empty_like(g), chunk_size(z.size(0), w.numel())
    table = _table(w)
    parts = np.zeros((-(-z.size(0) // size), _lanes(z), *table.shape))
    logits = array(z), _codes(codes), np.zeros_like(table), 1.0
    nodes.coupling_backward(z.numel(), array(g), logits, table, size, array(out), parts)
    sums = parts.sum((0, 1))[1:]
    if w.size(1) == 2:
        sums[:, 0] = -sums[:, 1]
    return out, torch.from_numpy(sums)


def linear_relu_backward(g: Tensor, h: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
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
    out = weight.new_empty(matrix[0].numel() - 1, weight.size(1))
    inputs = matrix_arrays(matrix, weight.dtype), array(weight), array(bias)
    floor, work = 0.0 if relu else -np.inf, matrix[1].numel() * weight.size(1)
    edges.sparse_linear(work, *inputs, floor, array(out))
    return out


def _lanes(z: Tensor) -> int:
    return nodes.LANES if z.size(1) == 2 else 1


def _codes(codes: Tensor) -> Array:
    return array(codes, torch.int32)


def _table(table: Tensor) -> Array:
    """The table with a row of zeros before it, for the code −1."""
    padded = np.zeros((table.size(0) + 1, table.size(1)))
    padded[1:] = table.detach().numpy()
    return padded


def _strip_shape(classes: int) -> tuple[int, int]:
    """Number of strips, and of classes in one."""
    lanes = 4 if classes <= 4 else 8
    return -(-classes // lanes), lanes

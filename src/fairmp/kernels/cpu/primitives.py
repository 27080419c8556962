"""The primitives for the CPU, compiled by numba, in one pass over memory each.

See :class:`fairmp.kernels.protocol.Kernels` for what each one computes. Results have the same bits
on any number of threads: chunks have a fixed size, and their results are added in order.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fairmp.kernels.cpu import coupling as cpu_coupling
from fairmp.kernels.cpu import edges, nodes
from fairmp.kernels.cpu.fused import FusedProjection, Matrix
from fairmp.kernels.cpu.threads import Array, chunk_size


def aggregate(
    row: Tensor,
    col: Tensor,
    weight: Tensor | None,
    left: Tensor,
    right: Tensor,
    f: Tensor,
    x: Tensor | None,
    gamma: float,
) -> Tensor:
    """Propagate, with a skip to the input."""
    rows, classes = row.numel() - 1, f.size(1)
    out = f.new_empty(rows, classes)
    if not rows or not classes:
        return out
    scale, values = _array(right, f.dtype), _array(f)
    scaled: Array
    if classes == 2:
        scaled = np.empty(f.numel(), scale.dtype)
        edges.scale_two(f.numel(), scale, values.reshape(-1), scaled)
    else:
        strips, lanes = edges.strip_shape(classes)
        flat = np.empty((f.size(0), strips * lanes), scale.dtype)
        edges.scale_many(f.numel(), scale, values, flat)
        scaled = flat.reshape(-1, strips, lanes)
    skip = (_array(out), 0.0) if x is None else (_array(x, f.dtype), float(gamma))
    matrix = _matrix(row, col, weight, f.dtype)
    work = (rows + col.numel()) * classes
    edges.gather_rows(work, matrix, _array(left, f.dtype), scaled, *skip, _array(out))
    return out


def moments(z: Tensor, codes: Tensor, shift: Tensor, temperature: float) -> Tensor:
    """Sum shifted softmaxes and their products by group."""
    groups, classes = shift.shape
    numbers = 1 + groups * classes * (1 + classes)
    size = chunk_size(z.size(0), numbers)
    parts = np.empty((-(-z.size(0) // size), numbers))
    arguments = _array(z), _codes(codes), _table(shift), float(temperature)
    nodes.moments(z.numel(), *arguments, size, parts)
    return torch.from_numpy(parts.sum(0))


def extremes(z: Tensor, codes: Tensor) -> Tensor:
    """Largest logit range and largest absolute logit."""
    size = chunk_size(z.size(0))
    parts = np.empty((-(-z.size(0) // size), 2))
    nodes.extremes(z.numel(), _array(z), _codes(codes), size, parts)
    return torch.from_numpy(parts.max(0, initial=0.0))


def shift(z: Tensor, codes: Tensor, shift: Tensor) -> Tensor:
    """Subtract the shift of its group from each node's logits."""
    out = z.new_empty(z.shape)
    size = chunk_size(z.size(0))
    nodes.shift(z.numel(), _array(z), _codes(codes), _table(shift), size, _array(out))
    return out


def segment_sum(g: Tensor, codes: Tensor, groups: int) -> Tensor:
    """Sum rows by group."""
    size = chunk_size(g.size(0), groups * g.size(1))
    parts = np.empty((-(-g.size(0) // size), groups, g.size(1)))
    nodes.segment_sum(g.numel(), _array(g), _codes(codes), size, parts)
    return torch.from_numpy(parts.sum(0))


def softmax_vjp(
    g: Tensor, z: Tensor, codes: Tensor, shift: Tensor, temperature: float, w: Tensor
) -> Tensor:
    """Add the gradient of the shifted softmax, weighted by group, to g."""
    out = g.new_empty(g.shape)
    softmax = _array(z), _codes(codes), _table(shift), float(temperature)
    size = chunk_size(z.size(0))
    nodes.softmax_vjp(z.numel(), _array(g), *softmax, _table(w), size, _array(out))
    return out


def linear_relu_backward(g: Tensor, h: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of a linear layer on top of a ReLU."""
    out = torch.empty_like(h)
    chunks, values = -(-h.size(0) // nodes.BACKWARD_ROWS), _array(g)
    sums = np.empty((chunks, h.size(1)), values.dtype)
    pairs = np.empty((chunks, *weight.shape), values.dtype)
    layer = values, _array(h), _array(weight)
    nodes.linear_relu_backward(h.numel(), *layer, _array(out), sums, pairs)
    return (
        out,
        torch.from_numpy(sums.sum(0, dtype=np.float64)).to(h.dtype),
        torch.from_numpy(pairs.sum(0, dtype=np.float64)).to(h.dtype),
    )


def fused_projection(
    forward: tuple[Tensor, Tensor, Tensor | None],
    backward: tuple[Tensor, Tensor, Tensor | None],
    scale: Tensor,
    codes: Tensor,
    measured: Tensor,
    order: tuple[Tensor, Tensor, Tensor],
    row: Tensor,
    gamma: float,
    temperature: float,
    dtype: torch.dtype,
) -> FusedProjection:
    """All steps of the projection for two classes and one gap; see :class:`FusedProjection`."""
    matrix = _matrix(*forward, dtype)
    transposed = matrix if backward is forward else _matrix(*backward, dtype)
    nodes, starts, place = map(_array, order)
    groups = _codes(codes), _codes(measured), nodes, starts, place, row.numpy()
    return FusedProjection(matrix, transposed, _array(scale, dtype), *groups, gamma, temperature)


def predicted(
    p: Tensor, agg: Tensor, reach: Tensor, measured: Tensor, pull: Tensor, gamma: float
) -> tuple[Tensor, Tensor]:
    """Predict and sum by cell; see :func:`fairmp.kernels.reference.predicted`."""
    out = agg.new_empty(agg.shape)
    size = chunk_size(agg.size(0), pull.numel())
    parts = np.empty((-(-agg.size(0) // size), *pull.shape))
    cpu_coupling.predicted(
        2 * agg.numel(),
        _array(p),
        _array(agg),
        _codes(reach),
        _codes(measured),
        _table(pull),
        float(gamma),
        size,
        _array(out),
        parts,
    )
    return out, torch.from_numpy(parts.sum(0))


def corrected(
    p: Tensor, agg: Tensor, reach: Tensor, pull: Tensor, gamma: float
) -> tuple[Tensor, Tensor]:
    """Correct logits; see :func:`fairmp.kernels.reference.corrected`."""
    out, soft = agg.new_empty(agg.shape), agg.new_empty(agg.shape)
    cpu_coupling.corrected(
        2 * agg.numel(),
        _array(p),
        _array(agg),
        _codes(reach),
        _table(pull),
        float(gamma),
        chunk_size(agg.size(0)),
        _array(out),
        _array(soft),
    )
    return out, soft


def coupling_pulls(p: Tensor, g: Tensor, reach: Tensor, cells: int) -> Tensor:
    """Sum what pulls feel; see :func:`fairmp.kernels.reference.coupling_pulls`."""
    size = chunk_size(p.size(0), cells * p.size(1))
    parts = np.empty((-(-p.size(0) // size), cells, p.size(1)))
    cpu_coupling.pulls(2 * p.numel(), _array(p), _array(g), _codes(reach), size, parts)
    return torch.from_numpy(parts.sum(0))


def coupling_back(
    p: Tensor,
    q: Tensor,
    g: Tensor,
    reach: Tensor,
    measured: Tensor,
    before: Tensor,
    after: Tensor,
    w: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Pass a gradient back; see :func:`fairmp.kernels.reference.coupling_back`."""
    a, e = g.new_empty(g.shape), g.new_empty(g.shape)
    size = chunk_size(g.size(0), w.numel())
    parts = np.empty((-(-g.size(0) // size), *w.shape))
    cpu_coupling.back(
        3 * g.numel(),
        _array(p),
        _array(q),
        _array(g),
        _codes(reach),
        _codes(measured),
        _table(before),
        _table(after),
        _table(w),
        size,
        _array(a),
        _array(e),
        parts,
    )
    return a, e, torch.from_numpy(parts.sum(0))


def _matrix(row: Tensor, col: Tensor, weight: Tensor | None, dtype: torch.dtype) -> Matrix:
    columns = _array(col)
    # Columns are never negative, and unsigned ones need no sign extension.
    columns = columns.view(np.uint32 if columns.itemsize == 4 else np.uint64)
    return _array(row), columns, None if weight is None else _array(weight, dtype)


def _array(tensor: Tensor, dtype: torch.dtype | None = None) -> Array:
    return tensor.detach().to(dtype or tensor.dtype).contiguous().numpy()


def _codes(codes: Tensor) -> Array:
    return _array(codes, torch.int32)


def _table(table: Tensor) -> Array:
    """The table with a row of zeros before it, for the code −1."""
    padded = np.zeros((table.size(0) + 1, table.size(1)))
    padded[1:] = table.detach().numpy()
    return padded

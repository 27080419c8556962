"""The primitives for the CPU, compiled by numba.

They do what those of :mod:`fairmp.kernels.reference` do, in one pass over memory each; ``walk``
does at once what several of them do in turns. Results are
the same to the last bit whatever the number of threads: chunks have a fixed size, and what they
yield is added in their order.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fairmp.kernels.cpu import coupling as cpu_coupling
from fairmp.kernels.cpu import dense as cpu_dense
from fairmp.kernels.cpu import edges as cpu_edges
from fairmp.kernels.cpu import segments as cpu_cells
from fairmp.kernels.cpu import softmax as cpu_softmax
from fairmp.kernels.cpu.fused import _array, _codes, _matrix, fused_projection
from fairmp.kernels.cpu.threads import Array, chunk_size

__all__ = ["fused_projection"]


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
    """Propagate; see :func:`fairmp.kernels.reference.aggregate`."""
    rows, classes = row.numel() - 1, f.size(1)
    if not rows or not classes:
        return f.new_empty(rows, classes)
    out = f.new_empty(rows, classes)
    work = (rows + col.numel()) * classes
    matrix = _matrix(row, col, weight, f.dtype)
    scales = (_array(left, f.dtype), _array(right, f.dtype))
    skip = (_array(out), 0.0) if x is None else (_array(x, f.dtype), float(gamma))
    if classes == 2:
        scaled = np.empty(f.numel(), scales[1].dtype)
        cpu_edges.scaled_two(f.numel(), scales[1], _array(f).reshape(-1), scaled)
        cpu_edges.gathered_two(work, *matrix, scales[0], scaled, *skip, _array(out))
        return out
    strips, lanes = cpu_edges.strips(classes)
    scaled = np.empty((f.size(0), strips * lanes), scales[1].dtype)
    split = scaled.reshape(-1, strips, lanes)
    cpu_edges.aggregate_many(work, *matrix, *scales, _array(f), *skip, scaled, split, _array(out))
    return out


def moments(z: Tensor, codes: Tensor, shift: Tensor, temperature: float) -> Tensor:
    """Pass over the nodes; see :func:`fairmp.kernels.reference.moments`."""
    cells, classes = shift.shape
    numbers = 1 + cells * classes * (1 + classes)
    size = chunk_size(z.size(0), numbers)
    parts = np.empty((-(-z.size(0) // size), numbers))
    run = cpu_softmax.moments_two if classes == 2 else cpu_softmax.moments_many
    run(z.numel(), _array(z), _codes(codes), _table(shift), float(temperature), size, parts)
    return torch.from_numpy(parts.sum(0))


def extremes(z: Tensor, codes: Tensor) -> Tensor:
    """Width and size of logits; see :func:`fairmp.kernels.reference.extremes`."""
    size = chunk_size(z.size(0))
    parts = np.empty((-(-z.size(0) // size), 2))
    cpu_cells.extremes(z.numel(), _array(z), _codes(codes), size, parts)
    return torch.from_numpy(parts.max(0, initial=0.0))


def shift(z: Tensor, codes: Tensor, shift: Tensor) -> Tensor:
    """Shift logits by cell; see :func:`fairmp.kernels.reference.shift`."""
    out = z.new_empty(z.shape)
    size = chunk_size(z.size(0))
    cpu_cells.shift(z.numel(), _array(z), _codes(codes), _table(shift), size, _array(out))
    return out


def segment_sum(g: Tensor, codes: Tensor, cells: int) -> Tensor:
    """Sum rows by cell; see :func:`fairmp.kernels.reference.segment_sum`."""
    size = chunk_size(g.size(0), cells * g.size(1))
    parts = np.empty((-(-g.size(0) // size), cells, g.size(1)))
    cpu_cells.segment_sum(g.numel(), _array(g), _codes(codes), size, parts)
    return torch.from_numpy(parts.sum(0))


def softmax_vjp(
    g: Tensor, z: Tensor, codes: Tensor, shift: Tensor, temperature: float, w: Tensor
) -> Tensor:
    """Add a cell's pull to its nodes; see :func:`fairmp.kernels.reference.softmax_vjp`."""
    out = g.new_empty(g.shape)
    run = cpu_softmax.pulled_two if z.size(1) == 2 else cpu_softmax.pulled_many
    run(
        z.numel(),
        _array(g),
        _array(z),
        _codes(codes),
        _table(shift),
        float(temperature),
        _table(w),
        chunk_size(z.size(0)),
        _array(out),
    )
    return out


def linear_relu_backward(g: Tensor, h: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Pass a gradient back to units; see :func:`fairmp.kernels.reference.linear_relu_backward`."""
    out = torch.empty_like(h)
    chunks, values = -(-h.size(0) // cpu_dense.SIZE), _array(g)
    sums = np.empty((chunks, h.size(1)), values.dtype)
    pairs = np.empty((chunks, *weight.shape), values.dtype)
    cpu_dense.linear_relu_backward(
        h.numel(), values, _array(h), _array(weight), _array(out), sums, pairs
    )
    return (
        out,
        torch.from_numpy(sums.sum(0, dtype=np.float64)).to(h.dtype),
        torch.from_numpy(pairs.sum(0, dtype=np.float64)).to(h.dtype),
    )


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


def _table(table: Tensor) -> Array:
    """The table with a row of zeros before it, for the code −1."""
    padded = np.zeros((table.size(0) + 1, table.size(1)))
    padded[1:] = table.detach().numpy()
    return padded

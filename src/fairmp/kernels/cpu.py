"""The primitives for the CPU, compiled by numba.

They do what those of :mod:`fairmp.kernels.reference` do, in one pass over memory each. Results are
the same to the last bit whatever the number of threads: chunks have a fixed size, and what they
yield is added in their order.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fairmp.kernels import cpu_cells, cpu_edges, cpu_softmax
from fairmp.kernels.cpu_threads import Array, chunk_size


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
    strips, lanes = cpu_edges.strips(classes)
    scaled = _array(f.new_empty(f.size(0), strips * lanes))
    out = f.new_empty(rows, classes)
    run = cpu_edges.aggregate_two if classes == 2 else cpu_edges.aggregate_many
    run(
        (rows + col.numel()) * classes,
        _array(row),
        _array(col),
        None if weight is None else _array(weight, f.dtype),
        _array(left, f.dtype),
        _array(right, f.dtype),
        _array(f),
        _array(out if x is None else x, f.dtype),
        0.0 if x is None else float(gamma),
        scaled,
        scaled.reshape(-1, strips, lanes),
        _array(out),
    )
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


def shifted(z: Tensor, codes: Tensor, shift: Tensor) -> Tensor:
    """Shift logits by cell; see :func:`fairmp.kernels.reference.shifted`."""
    out = z.new_empty(z.shape)
    size = chunk_size(z.size(0))
    cpu_cells.shifted(z.numel(), _array(z), _codes(codes), _table(shift), size, _array(out))
    return out


def group_sums(g: Tensor, codes: Tensor, cells: int) -> Tensor:
    """Sum rows by cell; see :func:`fairmp.kernels.reference.group_sums`."""
    size = chunk_size(g.size(0), cells * g.size(1))
    parts = np.empty((-(-g.size(0) // size), cells, g.size(1)))
    cpu_cells.group_sums(g.numel(), _array(g), _codes(codes), size, parts)
    return torch.from_numpy(parts.sum(0))


def pulled(
    g: Tensor, z: Tensor, codes: Tensor, shift: Tensor, temperature: float, w: Tensor
) -> Tensor:
    """Add a cell's pull to its nodes; see :func:`fairmp.kernels.reference.pulled`."""
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


def _array(tensor: Tensor, dtype: torch.dtype | None = None) -> Array:
    return tensor.detach().to(dtype or tensor.dtype).contiguous().numpy()


def _codes(codes: Tensor) -> Array:
    return _array(codes, torch.int32)


def _table(table: Tensor) -> Array:
    """The table with a row of zeros before it, for the code −1."""
    padded = np.zeros((table.size(0) + 1, table.size(1)))
    padded[1:] = table.detach().numpy()
    return padded

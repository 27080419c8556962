r"""The primitives for the CPU, compiled by numba, in one pass over memory each.

See :class:`fairmp.kernels.protocol.Kernels` for what each one computes. Results have the same bits
on any number of threads: chunks have a fixed size, and their results are added in order.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numba import prange
from torch import Tensor

from fairmp.kernels.cpu.edges import CHUNK_LENGTH, gather_chunk, join_parts, scale_rows
from fairmp.kernels.cpu.nodes import (
    BLOCK_NODES,
    LANES,
    Logits,
    add_moments,
    compiled_first_root,
    compiled_next_root,
    linear_relu_chunk,
    logistic_block,
    margin_sum,
    moments_chunk,
    shift_extreme_row,
    shift_margins_chunk,
    shift_pairs_chunk,
    skip_gradient_chunk,
    softmax_vjp_chunk,
)
from fairmp.kernels.cpu.threads import (
    Array,
    Chunked,
    CSRArrays,
    array,
    chunk_size,
    csr_arrays,
)
from fairmp.kernels.root import MAX_MARGIN, MAX_PASSES
from fairmp.kernels.types import (
    CSR,
    NO_CLIP,
    AggregateGradient,
    BinaryGroups,
    BinaryProblem,
    BinaryRoot,
    Clip,
    Matrix,
)

CHUNK_NODES = 4096
SPARSE_ROWS = 512  # of a sparse matrix with a dense one, per chunk
BACKWARD_ROWS = 1024  # rows whose gradients are summed in the layer's own precision
ONE, TWO = np.uint64(1), np.uint64(2)
NUMPY_TYPES = {torch.float32: np.float32, torch.float64: np.float64}


class MatrixArrays(NamedTuple):
    """The arrays of a :class:`~fairmp.kernels.types.Matrix`, diag(left) A diag(right)."""

    row: Array
    columns: Array
    weight: Any  # None for ones
    left: Array
    right: Array


class SkipGradient(NamedTuple):
    """What the gradient of an aggregate adds to its pass over the nodes."""

    gamma: float
    grad_x: Array  # filled with γ·grad
    x: Array  # empty where γ needs no gradient
    propagated: Array
    away: Array  # filled with ⟨grad, x − propagated⟩ of each chunk


class GroupArrays(NamedTuple):
    """The arrays of a :class:`~fairmp.kernels.types.BinaryGroups`."""

    nodes: Array
    starts: Array
    weight: Array
    column: Array


def empty(like: Tensor, *shape: int) -> tuple[Tensor, Array]:
    """A tensor of another's type, and the array it is a view of."""
    values: Array = np.empty(shape, NUMPY_TYPES[like.dtype])
    return torch.from_numpy(values), values


@Chunked
def _aggregate(
    matrix: MatrixArrays,
    f: Array,
    scaled: Array,
    x: Array,
    skip: float,
    rest: float,
    gradient: Any,
    out: Array,
) -> None:
    """Fill ``out`` with skip·X + rest·diag(left) A diag(right) F.

    ``scaled`` is filled with diag(right) F, n×classes for one class and for two, and otherwise
    n×strips×lanes. Where F is the gradient of an aggregate, ``gradient`` is a
    :class:`SkipGradient`, else ``None``.
    """
    rows = scaled.reshape(f.shape[0], -1)
    for k in prange((f.shape[0] + CHUNK_LENGTH - 1) // CHUNK_LENGTH):
        start, stop = k * CHUNK_LENGTH, min((k + 1) * CHUNK_LENGTH, f.shape[0])
        scale_rows(matrix.right, f, start, stop, rows)
        if gradient is not None:
            gradient.away[k] = skip_gradient_chunk(f, gradient, start, stop)
    g = scaled.reshape(-1) if scaled.ndim == 2 else scaled
    chunks = (out.shape[0] + matrix.columns.size + CHUNK_LENGTH - 1) // CHUNK_LENGTH
    first = np.empty(chunks + 1, np.int64)
    first[chunks] = out.shape[0]
    shape = chunks, rows.shape[1]
    heads, tails = np.zeros(shape), np.zeros(shape)
    result = matrix.left, x, skip, rest, out
    for k in prange(chunks):
        gather_chunk(np.int64(k), matrix[:3], g, result, first, heads, tails)
    join_parts(matrix.row, result, first, heads, tails)


def aggregate(matrix: Matrix, f: Tensor, x: Tensor | None, gamma: float) -> Tensor:
    return _multiply(matrix, f, x, gamma, None)


def aggregate_vjp(
    matrix: Matrix,
    grad: Tensor,
    gamma: float,
    x: Tensor | None = None,
    propagated: Tensor | None = None,
) -> AggregateGradient:
    grad_x, filled = empty(grad, *grad.shape)
    away = np.zeros(-(-grad.size(0) // CHUNK_LENGTH))
    skipped = filled[:0] if x is None else array(x)
    there = filled[:0] if propagated is None else array(propagated)
    gradient = SkipGradient(gamma, filled, skipped, there, away)
    grad_f = _multiply(matrix, grad, None, gamma, gradient)
    return AggregateGradient(grad_f, grad_x, 0.0 if x is None else float(away.sum()))


def _multiply(
    matrix: Matrix, f: Tensor, x: Tensor | None, gamma: float, gradient: SkipGradient | None
) -> Tensor:
    rows, classes = matrix.rows.row.numel() - 1, f.size(1)
    out, filled = empty(f, rows, classes)
    if not rows or not classes:
        return out
    arrays = _matrix_arrays(matrix, f.dtype)
    shape = (classes,) if classes <= 2 else _strip_shape(classes)
    scaled: Array = np.empty((f.size(0), *shape), filled.dtype)
    skipped, skip = (filled, 0.0) if x is None else (array(x, f.dtype), float(gamma))
    operations = (rows + arrays.columns.size) * classes
    _aggregate(operations, arrays, array(f), scaled, skipped, skip, 1.0 - gamma, gradient, filled)
    return out


def _matrix_arrays(matrix: Matrix, dtype: torch.dtype) -> MatrixArrays:
    arrays: MatrixArrays | None = matrix.cache.get(dtype)
    if arrays is None:
        left, right = array(matrix.left, dtype), array(matrix.right, dtype)
        arrays = MatrixArrays(*csr_arrays(matrix.rows, dtype), left, right)
        matrix.cache[dtype] = arrays
    return arrays


@Chunked
def _gather_rows(x: Array, order: Array, out: Array) -> None:
    """Fill ``out`` with the rows of x in another order."""
    for p in prange(order.size):
        row, i = np.uint64(p), np.uint64(order[p])
        if x.shape[1] == 2:  # a loop would take three times as long
            out[row, 0] = x[i, 0]
            out[row, 1] = x[i, 1]
        else:
            for c in range(np.uint64(x.shape[1])):
                out[row, c] = x[i, c]


def gather_rows(x: Tensor, order: Tensor) -> Tensor:
    out, filled = empty(x, order.numel(), x.size(1))
    _gather_rows(x.numel(), array(x), array(order), filled)
    return out


@Chunked
def _gather_margins(x: Array, order: Array, factor: float, out: Array) -> None:
    """Fill ``out`` with the margins of rows in another order, times a factor."""
    scale = out.dtype.type(factor)
    for p in prange(order.size):
        i = np.uint64(order[p])
        out[np.uint64(p), 0] = scale * (x[i, 1] - x[i, 0])


def gather_margins(x: Tensor, order: Tensor, factor: float) -> Tensor:
    out, filled = empty(x, order.numel(), 1)
    _gather_margins(x.numel(), array(x), array(order), factor, filled)
    return out


@Chunked
def _spread_margins(m: Array, order: Array, factor: float, out: Array) -> None:
    """Fill the rows of ``out`` with (−factor·m, factor·m)."""
    scale = out.dtype.type(factor)
    for p in prange(order.size):
        i, half = np.uint64(order[p]), scale * m[np.uint64(p), 0]
        out[i, 0] = -half
        out[i, 1] = half


def spread_margins(m: Tensor, order: Tensor, factor: float) -> Tensor:
    out, filled = empty(m, order.numel(), 2)
    _spread_margins(m.numel(), array(m), array(order), factor, filled)
    return out


@Chunked
def _moments(logits: Logits, size: int, sums: Array, out: Array) -> None:
    """Add up in ``out`` what ``sums`` collect by chunk: q_c on the diagonal, q_c·q_d above it."""
    z, values = logits[0], np.empty(sums.shape[0])
    for k in prange(values.size):
        start = np.int64(k) * size
        stop = min(start + size, z.shape[0])
        if z.shape[1] == 2:
            values[k] = moments_chunk(logits, 2, start, stop, sums[k])
        else:
            values[k] = moments_chunk(logits, z.shape[1], start, stop, sums[k])
    for k in range(values.size):
        out[0] += values[k]
    add_moments(sums, out)


def moments(z: Tensor, codes: Tensor, shift: Tensor, temperature: float) -> Tensor:
    size, classes = chunk_size(z.size(0), shift.numel() * z.size(1)), z.size(1)
    sums = np.zeros((-(-z.size(0) // size), _lanes(z), len(shift), classes, classes))
    logits = array(z), _codes(codes), _table(shift), float(temperature)
    out = np.zeros(1 + shift.numel() * (1 + classes))
    _moments(z.numel(), logits, size, sums, out)
    return torch.from_numpy(out)


@Chunked
def _binary_root(
    z: Array,
    groups: GroupArrays,
    scale: float,
    temperature: float,
    target: float,
    tolerance: float,
    start: float,
    slope: Array,
) -> tuple[float, float, float, float]:
    """Find the root w; return it, the residual, the number of passes and Σ δ²σ'.

    ``slope`` is filled with δσ', 0 outside the population.
    """
    nodes, starts, weight = groups.nodes, groups.starts, groups.weight
    chunks = (nodes.size + CHUNK_NODES - 1) // CHUNK_NODES
    parts, largest = np.empty((chunks, 2)), np.zeros(chunks)
    margin, weighted = np.empty(nodes.size), np.empty(nodes.size)
    inverse = 1 / temperature
    for k in prange(chunks):
        low, high = k * CHUNK_NODES, min((k + 1) * CHUNK_NODES, nodes.size)
        most = 0.0
        for p in range(np.uint64(low), np.uint64(high)):
            i = np.uint64(nodes[p])
            m = np.float64(z[i, 0]) if z.shape[1] == 1 else np.float64(z[i, 1]) - z[i, 0]
            margin[p] = min(max(m * inverse, -MAX_MARGIN), MAX_MARGIN)
            most = max(most, abs(margin[p]))
        largest[k] = most
    width = 0.0
    for k in range(chunks):
        width = max(width, largest[k])
    root, passes = compiled_first_root(start, width), 0.0
    while True:
        w = root.w
        for k in prange(chunks):
            low, high = k * CHUNK_NODES, min((k + 1) * CHUNK_NODES, nodes.size)
            q = np.empty((2, BLOCK_NODES + LANES))
            gap = curvature = 0.0
            for g in range(weight.size):
                first, last = max(low, starts[g]), min(high, starts[g + 1])
                for begin in range(first, last, BLOCK_NODES):
                    at, count = np.uint64(begin), np.uint64(min(BLOCK_NODES, last - begin))
                    sums = logistic_block(margin, weight[g], w, at, count, q, weighted)
                    gap += weight[g] * sums[0]
                    curvature += weight[g] * weight[g] * sums[1]
            parts[k, 0] = gap
            parts[k, 1] = curvature
        gap = curvature = 0.0
        for k in range(chunks):
            gap += parts[k, 0]
            curvature += parts[k, 1]
        following = compiled_next_root(root, scale * gap, scale * curvature, target, tolerance)
        passes += 1
        if following.done or passes == MAX_PASSES:
            break
        root = following
    slope[:] = 0
    for p in prange(nodes.size):
        slope[np.uint64(nodes[p])] = weighted[p]
    return w, following.residual, passes, curvature


def binary_root(problem: BinaryProblem, start: float | Tensor | None) -> BinaryRoot:
    groups = _group_arrays(problem.groups)
    slope, filled = empty(problem.z, problem.z.size(0))
    scale = problem.groups.scale
    w, residual, count, curvature = _binary_root(
        16 * filled.size,
        array(problem.z),
        groups,
        scale,
        problem.temperature,
        problem.target,
        problem.tolerance,
        0.0 if start is None else scale * float(start),
        filled,
    )
    return BinaryRoot(w / scale, residual, count, curvature, slope)


@Chunked
def _shift_margins(
    z: Array, column: Array, amount: float, limit: float, floor: float, out: Array
) -> None:
    """Fill ``out`` with logits whose margins are reduced by the amount times the column."""
    for k in prange((column.size + CHUNK_NODES - 1) // CHUNK_NODES):
        start = np.uint64(k * CHUNK_NODES)
        stop = np.uint64(min((k + 1) * CHUNK_NODES, column.size))
        if z.shape[1] == 1:
            shift_margins_chunk(z, column, amount, floor, start, stop, out)
        else:
            shift_pairs_chunk(z, column, amount, limit, floor, start, stop, out)


def shift_margins(z: Tensor, groups: BinaryGroups, amount: float | Tensor, clip: Clip) -> Tensor:
    out, filled = empty(z, *z.shape)
    column, by = _group_arrays(groups).column, float(amount)
    _shift_margins(z.numel(), array(z), column, by, clip.limit, clip.floor, filled)
    return out


@Chunked
def _shift_margins_vjp(grad: Array, column: Array, slope: Array, factor: float, out: Array) -> None:
    """Fill ``out`` with ``grad`` plus the slope times a number on the margins."""
    parts = np.empty((column.size + CHUNK_NODES - 1) // CHUNK_NODES)
    for k in prange(parts.size):
        start = np.uint64(k * CHUNK_NODES)
        stop = np.uint64(min((k + 1) * CHUNK_NODES, column.size))
        parts[k] = margin_sum(grad, column, start, stop)
    total = 0.0
    for k in range(parts.size):
        total += parts[k]
    pull = out.dtype.type(factor * total)
    for k in prange(parts.size):
        low, high = k * CHUNK_NODES, min((k + 1) * CHUNK_NODES, column.size)
        for i in range(np.uint64(low), np.uint64(high)):
            if out.shape[1] == 1:
                out[i, 0] = grad[i, 0] + pull * slope[i]
            else:
                out[i, 0] = grad[i, 0] - pull * slope[i]
                out[i, 1] = grad[i, 1] + pull * slope[i]


def shift_margins_vjp(
    grad: Tensor, groups: BinaryGroups, slope: Tensor, factor: float | Tensor
) -> Tensor:
    out, filled = empty(grad, *grad.shape)
    column, by = _group_arrays(groups).column, float(factor)
    _shift_margins_vjp(2 * grad.numel(), array(grad), column, array(slope), by, filled)
    return out


def _group_arrays(groups: BinaryGroups) -> GroupArrays:
    arrays: GroupArrays | None = groups.cache.get("arrays")
    if arrays is None:
        tensors = groups.nodes, groups.starts, groups.weight, groups.column
        arrays = groups.cache["arrays"] = GroupArrays(*map(array, tensors))
    return arrays


@Chunked
def _shift(
    z: Array, codes: Array, table: Array, limit: float, floor: float, size: int, out: Array
) -> None:
    """Fill ``out`` with the shifted logits."""
    for k in prange((z.shape[0] + size - 1) // size):
        start, stop = np.uint64(k * size), np.uint64(min((k + 1) * size, z.shape[0]))
        extreme = 0
        for i in range(start, stop):
            g = np.uint64(codes[i] + 1)
            if z.shape[1] == 2:
                extreme += 0 if max(abs(z[i, 0]), abs(z[i, 1])) <= limit else 1
                out[i, 0] = z[i, 0] - table[g, 0]
                out[i, 1] = z[i, 1] - table[g, 1]
                continue
            for c in range(np.uint64(z.shape[1])):
                extreme += 0 if abs(z[i, c]) <= limit else 1
                out[i, c] = z[i, c] - table[g, c]
        for i in range(start, stop if extreme else start):
            largest = 0.0
            for c in range(np.uint64(z.shape[1])):
                largest = max(largest, abs(z[i, c]))
            if largest > limit and codes[i] >= 0:
                shift_extreme_row(z, i, table[np.uint64(codes[i] + 1)], floor, out)


def shift(z: Tensor, codes: Tensor, table: Tensor, clip: Clip = NO_CLIP) -> Tensor:
    out = torch.empty_like(z)
    codes_array, rows, size = _codes(codes), _table(table), chunk_size(z.size(0))
    _shift(z.numel(), array(z), codes_array, rows, clip.limit, clip.floor, size, array(out))
    return out


@Chunked
def _segment_sum(g: Array, codes: Array, size: int, parts: Array) -> None:
    """Add the rows of each group to ``parts``, by chunk."""
    for k in prange(parts.shape[0]):
        for i in range(np.uint64(k * size), np.uint64(min((k + 1) * size, g.shape[0]))):
            group, lane = np.uint64(codes[i] + 1), i % np.uint64(LANES)
            if g.shape[1] == 2:
                parts[k, lane, group, 0] += g[i, 0]
                parts[k, lane, group, 1] += g[i, 1]
            else:
                for c in range(np.uint64(g.shape[1])):
                    parts[k, lane, group, c] += g[i, c]


def segment_sum(g: Tensor, codes: Tensor, groups: int) -> Tensor:
    size = chunk_size(g.size(0), groups * g.size(1))
    parts = np.zeros((-(-g.size(0) // size), LANES, groups + 1, g.size(1)))
    _segment_sum(g.numel(), array(g), _codes(codes), size, parts)
    return torch.from_numpy(parts.sum((0, 1))[1:])


@Chunked
def _softmax_vjp(grad: Array, logits: Logits, w: Array, size: int, out: Array) -> None:
    """Fill ``out`` with ``grad`` plus the gradient of the shifted softmax."""
    for k in prange((grad.shape[0] + size - 1) // size):
        start = np.int64(k) * size
        stop = min(start + size, grad.shape[0])
        if grad.shape[1] == 2:
            softmax_vjp_chunk(grad, logits, 2, w, start, stop, out)
        else:
            softmax_vjp_chunk(grad, logits, grad.shape[1], w, start, stop, out)


def softmax_vjp(
    g: Tensor, z: Tensor, codes: Tensor, shift: Tensor, temperature: float, w: Tensor
) -> Tensor:
    out = g.new_empty(g.shape)
    logits = array(z), _codes(codes), _table(shift), float(temperature)
    _softmax_vjp(z.numel(), array(g), logits, _table(w), chunk_size(z.size(0)), array(out))
    return out


@Chunked
def _linear_relu_backward(
    g: Array, h: Array, weight: Array, out: Array, sums: Array, pairs: Array
) -> None:
    """Fill ``out`` with the gradient before the ReLU whose output is ``h``.

    ``sums`` (chunks×units) add up to its sum over rows, ``pairs`` (chunks×classes×units) to gᵀh.
    """
    for k in prange(sums.shape[0]):
        start, stop = k * BACKWARD_ROWS, min((k + 1) * BACKWARD_ROWS, h.shape[0])
        linear_relu_chunk(g, h, weight, np.int64(start), np.int64(stop), out, sums[k], pairs[k])


def linear_relu_backward(g: Tensor, h: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    out = torch.empty_like(h)
    chunks, values = -(-h.size(0) // BACKWARD_ROWS), array(g)
    sums = np.empty((chunks, h.size(1)), values.dtype)
    pairs = np.empty((chunks, *weight.shape), values.dtype)
    _linear_relu_backward(h.numel(), values, array(h), array(weight), array(out), sums, pairs)
    return (
        out,
        torch.from_numpy(sums.sum(0, dtype=np.float64)).to(h.dtype),
        torch.from_numpy(pairs.sum(0, dtype=np.float64)).to(h.dtype),
    )


@Chunked
def _sparse_linear(matrix: CSRArrays, weight: Array, bias: Array, floor: float, out: Array) -> None:
    """Fill ``out`` with max(S W + b, floor), for a sparse S and few enough rows of W to be cached.

    Unlike above, rows of W are long: the loop over them vectorises, and takes four at a time.
    """
    row, col, value = matrix
    units, four, low = np.uint64(out.shape[1]), np.uint64(4), out.dtype.type(floor)
    for k in prange((out.shape[0] + SPARSE_ROWS - 1) // SPARSE_ROWS):
        start, stop = k * SPARSE_ROWS, min((k + 1) * SPARSE_ROWS, out.shape[0])
        for i in range(np.uint64(start), np.uint64(stop)):
            e, end = np.uint64(row[i]), np.uint64(row[i + ONE])
            for c in range(units):
                out[i, c] = bias[c]
            while e + four <= end:
                f, g, h = e + ONE, e + TWO, e + np.uint64(3)
                a, b = np.uint64(col[e]), np.uint64(col[f])
                p, q = np.uint64(col[g]), np.uint64(col[h])
                s, t, u, v = value[e], value[f], value[g], value[h]
                for c in range(units):
                    first = s * weight[a, c] + t * weight[b, c]
                    out[i, c] += first + (u * weight[p, c] + v * weight[q, c])
                e += four
            while e < end:
                a, s = np.uint64(col[e]), value[e]
                for c in range(units):
                    out[i, c] += s * weight[a, c]
                e += ONE
            for c in range(units):  # NaN stays NaN
                out[i, c] = low if out[i, c] <= low else out[i, c]


def sparse_linear(matrix: CSR, weight: Tensor, bias: Tensor, *, relu: bool) -> Tensor:
    out = weight.new_empty(matrix.row.numel() - 1, weight.size(1))
    floor, work = 0.0 if relu else -np.inf, matrix.col.numel() * weight.size(1)
    csr = csr_arrays(matrix, weight.dtype)
    _sparse_linear(work, csr, array(weight), array(bias), floor, array(out))
    return out


def _lanes(z: Tensor) -> int:
    return LANES if z.size(1) == 2 else 1


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

"""Sums over neighbours, compiled for the CPU.

Rows and edges are laid end to end, each row before its edges, and cut into chunks of equal length,
so neither a hub nor a run of isolated nodes holds up a thread. A row that spans several chunks is
summed from its parts, in order.

Scaled logits G = diag(right) F are stored flat for one class and for two (n, 2n), and otherwise in
strips of 4 or 8 classes (n×strips×lanes), whose sums are held in registers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from fairmp.kernels.cpu.threads import Array, CSRArrays, Index, compiled, inlined

# D_l, X, its weight, that of the product, and their sum γX + (1−γ)·D_l A G, to be filled.
Result = tuple[Array, Array, float, float, Array]

CHUNK_LENGTH = 8192  # rows and edges together
PIECE_EDGES = np.uint64(64)  # summed in the logits' own precision; pieces add up in float64
FAR_BYTES = 2**22  # of logits, above which neighbours are asked for this many edges ahead
AHEAD = np.uint64(256)
ONE, TWO = np.uint64(1), np.uint64(2)


@intrinsic
def _prefetch(typing_context: Any, array: Any, index: Any) -> Any:
    """Ask for ``array[index]`` to be brought to the second-level cache, without waiting for it."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        view = context.make_array(signature.args[0])(context, builder, values[0])
        address = builder.bitcast(builder.gep(view.data, [values[1]]), cgutils.voidptr_t)
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, number, number, number])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        read, second_level, data = number(0), number(2), number(1)
        builder.call(function, [address, read, second_level, data])
        return context.get_dummy_value()

    return types.void(array, types.uint64), generate


@inlined
def _first_row(row: Array, position: int) -> int:
    """Find the first row that starts at or after a position; row i starts at row[i] + i."""
    low, high = 0, row.size - 1
    while low < high:
        middle = (low + high) // 2
        if row[middle] + middle < position:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def _sum_one(col: Array, weight: Any, g: Array, e: Index, stop: Index) -> Any:
    total = 0.0
    while e < stop:
        piece = min(e + PIECE_EDGES, stop)
        s = g.dtype.type(0)
        while e < piece:
            s += g[np.uint64(col[e])] if weight is None else weight[e] * g[np.uint64(col[e])]
            e += ONE
        total += s
    return total


@compiled
def _sum_two(col: Array, weight: Any, g: Array, e: Index, stop: Index) -> tuple[float, float]:
    t0 = t1 = 0.0
    while e < stop:
        piece = min(e + PIECE_EDGES, stop)
        s0 = s1 = g.dtype.type(0)
        while e < piece:
            j = TWO * np.uint64(col[e])
            w = g.dtype.type(1) if weight is None else weight[e]
            s0 += w * g[j]
            s1 += w * g[j + ONE]
            e += ONE
        t0 += s0
        t1 += s1
    return t0, t1


@inlined
def _add_four(col: Array, weight: Any, g: Array, e: Index, stop: Index, total: Array) -> None:
    s0 = s1 = s2 = s3 = g.dtype.type(0)
    while e < stop:
        j = np.uint64(col[e])
        w = g.dtype.type(1) if weight is None else weight[e]
        s0 += w * g[j, 0, 0]
        s1 += w * g[j, 0, 1]
        s2 += w * g[j, 0, 2]
        s3 += w * g[j, 0, 3]
        e += ONE
    sums = s0, s1, s2, s3
    for c in range(np.uint64(4)):
        total[c] += sums[c]


@inlined
def _add_eight(
    col: Array, weight: Any, g: Array, k: Index, e: Index, stop: Index, total: Array
) -> None:
    s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = g.dtype.type(0)
    while e < stop:
        j = np.uint64(col[e])
        w = g.dtype.type(1) if weight is None else weight[e]
        s0 += w * g[j, k, 0]
        s1 += w * g[j, k, 1]
        s2 += w * g[j, k, 2]
        s3 += w * g[j, k, 3]
        s4 += w * g[j, k, 4]
        s5 += w * g[j, k, 5]
        s6 += w * g[j, k, 6]
        s7 += w * g[j, k, 7]
        e += ONE
    sums = s0, s1, s2, s3, s4, s5, s6, s7
    for c in range(np.uint64(8)):
        total[np.uint64(8) * k + c] += sums[c]


@inlined
def _sum_many(col: Array, weight: Any, g: Array, e: Index, stop: Index, total: Array) -> None:
    for c in range(np.uint64(total.size)):
        total[c] = 0.0
    while e < stop:
        piece = min(e + PIECE_EDGES, stop)
        if g.shape[2] == 4:
            _add_four(col, weight, g, e, piece, total)
        else:
            for k in range(np.uint64(g.shape[1])):
                _add_eight(col, weight, g, k, e, piece, total)
        e = piece


@compiled
def _sum_part(col: Array, weight: Any, g: Array, start: int, stop: int, total: Array) -> None:
    """Sum a part of a row."""
    if g.ndim > 1:
        _sum_many(col, weight, g, np.uint64(start), np.uint64(stop), total)
    elif total.size == 1:
        total[0] = _sum_one(col, weight, g, np.uint64(start), np.uint64(stop))
    else:
        total[0], total[1] = _sum_two(col, weight, g, np.uint64(start), np.uint64(stop))


@inlined
def _with_skip(total: float, scale: float, x: Array, skip: float, i: Index, c: Index) -> Any:
    # Without a skip x is not read: there may be none.
    return scale * total + (skip * x[i, c] if skip != 0 else 0.0)


@compiled
def _rows_one(
    start: int, stop: int, row: Array, col: Array, weight: Any, g: Array, result: Result
) -> None:
    # Most rows are short, so none calls a function: numba would count references to arrays.
    left, x, skip, rest, out = result
    skip, rest = left.dtype.type(skip), left.dtype.type(rest)
    far, last = g.size * g.itemsize > FAR_BYTES, np.uint64(col.size)
    e = np.uint64(row[start])
    for i in range(np.uint64(start), np.uint64(stop)):
        end = np.uint64(row[i + ONE])
        piece = min(e + PIECE_EDGES, end)
        if far:  # by itself the processor looks ahead by some fifty edges
            for a in range(min(e + AHEAD, last), min(end + AHEAD, last)):
                _prefetch(g, np.uint64(col[a]))
        s = r = g.dtype.type(0)
        while e + ONE < piece:  # two sums in turns, so that an addition need not wait for the last
            j, k = np.uint64(col[e]), np.uint64(col[e + ONE])
            s += g[j] if weight is None else weight[e] * g[j]
            r += g[k] if weight is None else weight[e + ONE] * g[k]
            e += TWO
        if e < piece:
            j = np.uint64(col[e])
            s += g[j] if weight is None else weight[e] * g[j]
            e += ONE
        s += r
        if e < end:
            s = g.dtype.type(s + _sum_one(col, weight, g, e, end))
            e = end
        s *= rest * left[i]
        if skip != 0:  # without a skip x is not read: there may be none
            s += skip * x[i, 0]
        out[i, 0] = s


@compiled
def _rows_two(
    start: int, stop: int, row: Array, col: Array, weight: Any, g: Array, result: Result
) -> None:
    # Most rows are short, so none calls a function: numba would count references to arrays.
    # G is flat, since numba would multiply each column index by the length of a row.
    left, x, skip, rest, out = result
    skip, rest = g.dtype.type(skip), g.dtype.type(rest)
    far, last = g.size * g.itemsize > FAR_BYTES, np.uint64(col.size)
    e = np.uint64(row[start])
    for i in range(np.uint64(start), np.uint64(stop)):
        end = np.uint64(row[i + ONE])
        piece = min(e + PIECE_EDGES, end)
        if far:
            for a in range(min(e + AHEAD, last), min(end + AHEAD, last)):
                _prefetch(g, TWO * np.uint64(col[a]))
        s0 = s1 = r0 = r1 = g.dtype.type(0)
        while e + ONE < piece:  # two sums in turns, so that an addition need not wait for the last
            j, k = TWO * np.uint64(col[e]), TWO * np.uint64(col[e + ONE])
            s0 += g[j] if weight is None else weight[e] * g[j]
            s1 += g[j + ONE] if weight is None else weight[e] * g[j + ONE]
            r0 += g[k] if weight is None else weight[e + ONE] * g[k]
            r1 += g[k + ONE] if weight is None else weight[e + ONE] * g[k + ONE]
            e += TWO
        if e < piece:
            j = TWO * np.uint64(col[e])
            s0 += g[j] if weight is None else weight[e] * g[j]
            s1 += g[j + ONE] if weight is None else weight[e] * g[j + ONE]
            e += ONE
        s0 += r0
        s1 += r1
        if e < end:
            t0, t1 = _sum_two(col, weight, g, e, end)
            s0 = g.dtype.type(s0 + t0)
            s1 = g.dtype.type(s1 + t1)
            e = end
        scale = rest * left[i]
        s0 *= scale
        s1 *= scale
        if skip != 0:  # without a skip x is not read: there may be none
            s0 += skip * x[i, 0]
            s1 += skip * x[i, 1]
        out[i, 0] = s0
        out[i, 1] = s1


@compiled
def _rows_many(
    start: int, stop: int, row: Array, col: Array, weight: Any, g: Array, result: Result
) -> None:
    left, x, skip, rest, out = result
    e = np.uint64(row[start])
    total = np.empty(g.shape[1] * g.shape[2])
    for i in range(np.uint64(start), np.uint64(stop)):
        end = np.uint64(row[i + ONE])
        _sum_many(col, weight, g, e, end, total)
        scale = rest * left[i]
        for c in range(np.uint64(out.shape[1])):
            out[i, c] = _with_skip(total[c], scale, x, skip, i, c)
        e = end


@inlined
def gather_chunk(
    k: int, matrix: CSRArrays, g: Array, result: Result, first: Array, heads: Array, tails: Array
) -> None:
    """Sum the rows of a chunk, and the parts of rows that span several."""
    row, col, weight = matrix
    start, stop = k * CHUNK_LENGTH, (k + 1) * CHUNK_LENGTH
    i, end = _first_row(row, start), _first_row(row, stop)
    first[k] = i
    cut = min(stop - end, row[end])  # the first edge of the next chunk
    if start - i < row[i]:
        _sum_part(col, weight, g, start - i, min(row[i], cut), heads[k])
    if end > i and row[end] > cut:
        end -= 1
        _sum_part(col, weight, g, row[end], cut, tails[k])
    if g.ndim > 1:
        _rows_many(i, end, row, col, weight, g, result)
    elif heads.shape[1] == 1:
        _rows_one(i, end, row, col, weight, g, result)
    else:
        _rows_two(i, end, row, col, weight, g, result)


@compiled
def join_parts(row: Array, result: Result, first: Array, heads: Array, tails: Array) -> None:
    """Finish the rows that span several chunks."""
    left, x, skip, rest, out = result
    total = np.zeros_like(heads[0])
    cut = False
    for k in range(first.size - 1):
        i, end = first[k] - 1, first[k + 1]
        continues = row[end] > (k + 1) * CHUNK_LENGTH - end
        starts = end > first[k]  # whether a row starts in this chunk
        if cut:
            for c in range(total.size):
                total[c] += heads[k, c]
            if starts or not continues:
                for c in range(out.shape[1]):
                    out[i, c] = _with_skip(total[c], rest * left[i], x, skip, i, c)
        if continues and starts:
            for c in range(total.size):
                total[c] = tails[k, c]
        cut = continues


@inlined
def scale_rows(right: Array, f: Array, start: int, stop: int, g: Array) -> None:
    """Fill rows of ``g`` with diag(right) F, padded with zeros."""
    if f.shape[1] == 1:
        for j in range(np.uint64(start), np.uint64(stop)):
            g[j, 0] = right[j] * f[j, 0]
        return
    if f.shape[1] == 2:
        for j in range(np.uint64(start), np.uint64(stop)):
            g[j, 0] = right[j] * f[j, 0]
            g[j, 1] = right[j] * f[j, 1]
        return
    for j in range(np.uint64(start), np.uint64(stop)):
        for c in range(np.uint64(f.shape[1])):
            g[j, c] = right[j] * f[j, c]
        for c in range(np.uint64(f.shape[1]), np.uint64(g.shape[1])):
            g[j, c] = 0

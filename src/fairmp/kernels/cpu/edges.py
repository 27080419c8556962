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
from numba import prange, types
from numba.core import cgutils
from numba.extending import intrinsic

from fairmp.kernels.cpu.threads import Array, Chunked, Index, Matrix, compiled, inlined

Result = tuple[Array, Array, float, Array]  # D_l, X, γ and γX + (1−γ)·D_l A G, to be filled

CHUNK_LENGTH = 8192  # rows and edges together
PIECE_EDGES = np.uint64(64)  # summed in the logits' own precision; pieces add up in float64
SPARSE_ROWS = 512  # of a sparse matrix with a dense one, per chunk
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
def _with_skip(total: float, scale: float, x: Array, gamma: float, i: Index, c: Index) -> Any:
    # Without a skip x is not read: there may be none.
    return scale * total + (gamma * x[i, c] if gamma != 0 else 0.0)


@compiled
def _rows_one(
    start: int, stop: int, row: Array, col: Array, weight: Any, g: Array, result: Result
) -> None:
    # Most rows are short, so none calls a function: numba would count references to arrays.
    left, x, gamma, out = result
    skip, rest = left.dtype.type(gamma), left.dtype.type(1 - gamma)
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
    left, x, gamma, out = result
    skip, rest = g.dtype.type(gamma), g.dtype.type(1 - gamma)
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
            w = g.dtype.type(1) if weight is None else weight[e]
            v = g.dtype.type(1) if weight is None else weight[e + ONE]
            s0 += w * g[j]
            s1 += w * g[j + ONE]
            r0 += v * g[k]
            r1 += v * g[k + ONE]
            e += TWO
        if e < piece:
            j = TWO * np.uint64(col[e])
            w = g.dtype.type(1) if weight is None else weight[e]
            s0 += w * g[j]
            s1 += w * g[j + ONE]
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
    left, x, gamma, out = result
    e = np.uint64(row[start])
    total = np.empty(g.shape[1] * g.shape[2])
    for i in range(np.uint64(start), np.uint64(stop)):
        end = np.uint64(row[i + ONE])
        _sum_many(col, weight, g, e, end, total)
        scale = (1 - gamma) * left[i]
        for c in range(np.uint64(out.shape[1])):
            out[i, c] = _with_skip(total[c], scale, x, gamma, i, c)
        e = end


@inlined
def gather_chunk(
    k: int, matrix: Matrix, g: Array, result: Result, first: Array, heads: Array, tails: Array
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
    left, x, gamma, out = result
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
                    out[i, c] = _with_skip(total[c], (1 - gamma) * left[i], x, gamma, i, c)
        if continues and starts:
            for c in range(total.size):
                total[c] = tails[k, c]
        cut = continues


@Chunked
def sparse_linear(matrix: Matrix, weight: Array, bias: Array, floor: float, out: Array) -> None:
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

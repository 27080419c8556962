"""Sums over neighbours, compiled for the CPU.

Rows and edges are laid end to end, a row before its edges, and cut into chunks of equal length.
So neither a hub nor a stretch of isolated nodes keeps a thread longer than others; a row that a cut
goes through is put together from its parts, in order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import prange

from fairmp.kernels.cpu.threads import Array, Chunked, Index, compiled, inlined

LENGTH = 8192  # of a chunk, rows and edges together
PIECE = np.uint64(64)  # edges summed in the logits' own precision; their sums add up in float64
ONE, TWO = np.uint64(1), np.uint64(2)


def strips(classes: int) -> tuple[int, int]:
    """How many strips the scaled logits are stored in, and how many classes in one.

    The sums of a strip's classes are held in registers, whatever the number of classes.

    Example:
        >>> strips(3), strips(10)
        ((1, 4), (2, 8))
    """
    lanes = 4 if classes <= 4 else 8
    return -(-classes // lanes), lanes


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
def _two(col: Array, weight: Any, g: Array, e: Index, stop: Index) -> tuple[float, float]:
    t0 = t1 = 0.0
    while e < stop:
        piece = min(e + PIECE, stop)
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
def _four(col: Array, weight: Any, g: Array, e: Index, stop: Index, total: Array) -> None:
    t0 = t1 = t2 = t3 = 0.0
    while e < stop:
        piece = min(e + PIECE, stop)
        s0 = s1 = s2 = s3 = g.dtype.type(0)
        while e < piece:
            j = np.uint64(col[e])
            w = g.dtype.type(1) if weight is None else weight[e]
            s0 += w * g[j, 0, 0]
            s1 += w * g[j, 0, 1]
            s2 += w * g[j, 0, 2]
            s3 += w * g[j, 0, 3]
            e += ONE
        t0 += s0
        t1 += s1
        t2 += s2
        t3 += s3
    total[0] = t0
    total[1] = t1
    total[2] = t2
    total[3] = t3


@inlined
def _eights(col: Array, weight: Any, g: Array, start: Index, stop: Index, total: Array) -> None:
    for c in range(np.uint64(total.size)):
        total[c] = 0.0
    while start < stop:
        piece = min(start + PIECE, stop)
        for k in range(np.uint64(g.shape[1])):
            s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = g.dtype.type(0)
            for e in range(start, piece):
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
            at = np.uint64(8) * k
            total[at] += s0
            total[at + np.uint64(1)] += s1
            total[at + np.uint64(2)] += s2
            total[at + np.uint64(3)] += s3
            total[at + np.uint64(4)] += s4
            total[at + np.uint64(5)] += s5
            total[at + np.uint64(6)] += s6
            total[at + np.uint64(7)] += s7
        start = piece


@inlined
def _many(col: Array, weight: Any, g: Array, start: Index, stop: Index, total: Array) -> None:
    if g.shape[2] == 4:
        _four(col, weight, g, start, stop, total)
    else:
        _eights(col, weight, g, start, stop, total)


@compiled
def _part_two(col: Array, weight: Any, g: Array, start: int, stop: int, total: Array) -> None:
    total[0], total[1] = _two(col, weight, g, np.uint64(start), np.uint64(stop))


@compiled
def _part_many(col: Array, weight: Any, g: Array, start: int, stop: int, total: Array) -> None:
    _many(col, weight, g, np.uint64(start), np.uint64(stop), total)


@inlined
def _skipped(total: float, scale: float, x: Array, gamma: float, i: Index, c: Index) -> Any:
    # Without a skip x is not read: there may be none.
    return scale * total + (gamma * x[i, c] if gamma != 0 else 0.0)


@compiled
def _rows_two(
    start: int,
    stop: int,
    row: Array,
    col: Array,
    weight: Any,
    left: Array,
    g: Array,
    x: Array,
    gamma: float,
    out: Array,
) -> None:
    # Most rows are short, and no function is called for them: numba would count who holds an array.
    # Both classes lie end to end: it would multiply each column number with the length of a row.
    skip, rest = g.dtype.type(gamma), g.dtype.type(1 - gamma)
    e = np.uint64(row[start])
    for i in range(np.uint64(start), np.uint64(stop)):
        end = np.uint64(row[i + ONE])
        piece = min(e + PIECE, end)
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
            t0, t1 = _two(col, weight, g, e, end)
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
    start: int,
    stop: int,
    row: Array,
    col: Array,
    weight: Any,
    left: Array,
    g: Array,
    x: Array,
    gamma: float,
    out: Array,
) -> None:
    e = np.uint64(row[start])
    total = np.empty(g.shape[1] * g.shape[2])
    for i in range(np.uint64(start), np.uint64(stop)):
        end = np.uint64(row[i + ONE])
        _many(col, weight, g, e, end, total)
        scale = (1 - gamma) * left[i]
        for c in range(np.uint64(out.shape[1])):
            out[i, c] = _skipped(total[c], scale, x, gamma, i, c)
        e = end


@inlined
def _chunk(
    k: int,
    fill_rows: Any,
    sum_part: Any,
    row: Array,
    col: Array,
    weight: Any,
    left: Array,
    g: Array,
    x: Array,
    gamma: float,
    out: Array,
    first: Array,
    heads: Array,
    tails: Array,
) -> None:
    start, stop = k * LENGTH, (k + 1) * LENGTH
    i, end = _first_row(row, start), _first_row(row, stop)
    first[k] = i
    cut = min(stop - end, row[end])  # the first edge of the next chunk
    if start - i < row[i]:
        sum_part(col, weight, g, start - i, min(row[i], cut), heads[k])
    if end > i and row[end] > cut:
        end -= 1
        sum_part(col, weight, g, row[end], cut, tails[k])
    fill_rows(i, end, row, col, weight, left, g, x, gamma, out)


@compiled
def _join(
    row: Array,
    left: Array,
    x: Array,
    gamma: float,
    out: Array,
    first: Array,
    heads: Array,
    tails: Array,
) -> None:
    """Finish the rows that a cut goes through."""
    total = np.zeros(heads.shape[1])
    cut = False
    for k in range(first.size - 1):
        i, end = first[k] - 1, first[k + 1]
        goes_on = row[end] > (k + 1) * LENGTH - end
        starts = end > first[k]  # a row does, in this chunk
        if cut:
            for c in range(total.size):
                total[c] += heads[k, c]
            if starts or not goes_on:
                for c in range(out.shape[1]):
                    out[i, c] = _skipped(total[c], (1 - gamma) * left[i], x, gamma, i, c)
        if goes_on and starts:
            for c in range(total.size):
                total[c] = tails[k, c]
        cut = goes_on


@compiled
def _scale(k: int, right: Array, f: Array, flat: Array) -> None:
    start, stop = np.uint64(k * LENGTH), np.uint64(min((k + 1) * LENGTH, f.shape[0]))
    classes = np.uint64(f.shape[1])
    for j in range(start, stop):
        for c in range(classes):
            flat[j, c] = right[j] * f[j, c]
        for c in range(classes, np.uint64(flat.shape[1])):
            flat[j, c] = 0


@Chunked
def scaled_two(right: Array, f: Array, g: Array) -> None:
    """Fill ``g`` with diag(right) F, of two classes; both end to end."""
    nodes = right.size
    for k in prange((nodes + LENGTH - 1) // LENGTH):
        for j in range(np.uint64(k * LENGTH), np.uint64(min((k + 1) * LENGTH, nodes))):
            at = TWO * j
            g[at] = right[j] * f[at]
            g[at + ONE] = right[j] * f[at + ONE]


@Chunked
def gathered_two(
    row: Array, col: Array, weight: Any, left: Array, g: Array, x: Array, gamma: float, out: Array
) -> None:
    """Fill ``out`` with γX + (1−γ)·diag(left) A G, of two classes; G end to end."""
    chunks = (out.shape[0] + col.size + LENGTH - 1) // LENGTH
    first = np.empty(chunks + 1, np.int64)
    first[chunks] = out.shape[0]
    heads, tails = np.empty((chunks, 2)), np.empty((chunks, 2))
    for k in prange(chunks):
        at = np.int64(k)
        _chunk(
            at, _rows_two, _part_two, row, col, weight, left, g, x, gamma, out, first, heads, tails
        )
    _join(row, left, x, gamma, out, first, heads, tails)


@Chunked
def aggregate_many(
    row: Array,
    col: Array,
    weight: Any,
    left: Array,
    right: Array,
    f: Array,
    x: Array,
    gamma: float,
    flat: Array,
    g: Array,
    out: Array,
) -> None:
    """Fill ``out`` with γX + (1−γ)·diag(left) A diag(right) F, of any number of classes.

    On the way ``flat`` is filled with diag(right) F; ``g`` is the same memory, strip by strip.
    """
    for k in prange((f.shape[0] + LENGTH - 1) // LENGTH):
        _scale(np.int64(k), right, f, flat)
    chunks = (out.shape[0] + col.size + LENGTH - 1) // LENGTH
    first = np.empty(chunks + 1, np.int64)
    first[chunks] = out.shape[0]
    heads, tails = np.empty((chunks, flat.shape[1])), np.empty((chunks, flat.shape[1]))
    for k in prange(chunks):
        at = np.int64(k)
        _chunk(
            at,
            _rows_many,
            _part_many,
            row,
            col,
            weight,
            left,
            g,
            x,
            gamma,
            out,
            first,
            heads,
            tails,
        )
    _join(row, left, x, gamma, out, first, heads, tails)

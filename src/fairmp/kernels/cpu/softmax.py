"""The passes over the nodes that take a softmax, compiled for the CPU.

A chunk is worked off in blocks small enough for the processor's nearest memory: what differs from
node to node is gathered into rows of plain numbers, which the arithmetic then runs over several at
a time.
"""

from __future__ import annotations

import numpy as np
from numba import prange

from fairmp.kernels.cpu.threads import Array, Chunked, Index, compiled, inlined

BLOCK = 256
LANES = 4  # sums that nodes take turns in, so that an addition need not wait for the one before

LOG2_E = 1.4426950408889634
# ln 2 in two parts, the first with zeros enough at its end for whole multiples to be exact.
LN2_HIGH = 0.693147180369123816490
LN2_LOW = 1.90821492927058770002e-10
ROUND = 6755399441055744.0  # 1.5·2⁵²: a number added to it loses its fraction
UNDERFLOW = 707.0
FULL = 1e200  # a product as large as this gives way to its logarithm


@inlined
def exp_minus(t: float) -> float:
    """Compute exp(−t) for t ≥ 0, to the last digit but one; 0 where it would be below 1e-307.

    Unlike a library's it is plain arithmetic, which runs on several numbers at a time.
    """
    rounded = ROUND - t * LOG2_E
    n = rounded - ROUND
    r = -t - n * LN2_HIGH - n * LN2_LOW
    p = 1 / 479001600
    p = p * r + 1 / 39916800
    p = p * r + 1 / 3628800
    p = p * r + 1 / 362880
    p = p * r + 1 / 40320
    p = p * r + 1 / 5040
    p = p * r + 1 / 720
    p = p * r + 1 / 120
    p = p * r + 1 / 24
    p = p * r + 1 / 6
    p = p * r + 0.5
    p = p * r + 1.0
    p = p * r + 1.0
    # Times 2ⁿ: the last bits of ``rounded`` are n, and n belongs into the exponent's.
    bits = np.float64(p).view(np.int64) + (np.float64(rounded).view(np.int64) << 52)
    return 0.0 if t > UNDERFLOW else np.int64(bits).view(np.float64)


@compiled
def _moments_two(
    z: Array, codes: Array, shift: Array, temperature: float, start: int, stop: int, result: Array
) -> None:
    cells = shift.shape[0] - 1
    inverse = 1 / temperature
    sums = np.zeros((LANES, cells + 1, 3))  # by cell, of q's two entries and their product
    cell = np.zeros(BLOCK + LANES, np.int32)
    margin, top = np.zeros(BLOCK + LANES), np.empty(BLOCK + LANES)
    q = np.empty((4, BLOCK + LANES))
    tops = logs = 0.0
    for begin in range(start, stop, BLOCK):
        m = np.uint64(0)
        for i in range(np.uint64(begin), np.uint64(min(begin + BLOCK, stop))):
            # A node that does not count is overwritten by the next.
            g = np.uint64(codes[i] + 1)
            first = z[i, 0] - shift[g, 0]
            second = z[i, 1] - shift[g, 1]
            cell[m] = g
            margin[m] = (second - first) * inverse
            top[m] = max(first, second)
            m += np.uint64(codes[i] >= 0)
        whole = (m + np.uint64(LANES - 1)) // np.uint64(LANES) * np.uint64(LANES)
        for i in range(whole):
            e = exp_minus(abs(margin[i]))
            total = 1 + e
            large = 1 / total
            small = e * large
            q[0, i] = small if margin[i] > 0 else large
            q[1, i] = large if margin[i] > 0 else small
            q[2, i] = large * small
            q[3, i] = total
        for i in range(m, whole):
            cell[i] = 0
            top[i] = 0.0
            q[3, i] = 1.0
        t0 = t1 = t2 = t3 = 0.0
        p0 = p1 = p2 = p3 = 1.0
        for i in range(np.uint64(0), whole, np.uint64(LANES)):
            t0 += top[i]
            t1 += top[i + np.uint64(1)]
            t2 += top[i + np.uint64(2)]
            t3 += top[i + np.uint64(3)]
            p0 *= q[3, i]
            p1 *= q[3, i + np.uint64(1)]
            p2 *= q[3, i + np.uint64(2)]
            p3 *= q[3, i + np.uint64(3)]
            for lane in range(np.uint64(LANES)):
                g = np.uint64(cell[i + lane])
                sums[lane, g, 0] += q[0, i + lane]
                sums[lane, g, 1] += q[1, i + lane]
                sums[lane, g, 2] += q[2, i + lane]
        tops += t0 + t1 + t2 + t3
        logs += np.log(p0 * p1 * p2 * p3)
    result[0] = tops + temperature * logs
    for k in range(cells):
        for c in range(3):
            for j in range(1, LANES):
                sums[0, k + 1, c] += sums[j, k + 1, c]
        result[1 + 2 * k] = sums[0, k + 1, 0]
        result[2 + 2 * k] = sums[0, k + 1, 1]
        for c in range(4):
            result[1 + 2 * cells + 4 * k + c] = sums[0, k + 1, 2]


@inlined
def _softmax_block(
    z: Array,
    codes: Array,
    shift: Array,
    inverse: float,
    start: int,
    stop: int,
    cell: Array,
    top: Array,
    total: Array,
    q: Array,
) -> Index:
    """Fill ``q`` (C×block), yet to be divided by ``total``, for the nodes that count."""
    m = np.uint64(0)
    for i in range(np.uint64(start), np.uint64(stop)):
        if codes[i] < 0:
            continue
        g = np.uint64(codes[i] + 1)
        cell[m] = codes[i]
        largest = -np.inf
        for c in range(np.uint64(z.shape[1])):
            value = z[i, c] - shift[g, c]
            largest = max(largest, value)
            q[c, m] = value
        top[m] = largest
        m += np.uint64(1)
    for i in range(m):
        total[i] = 0.0
    for c in range(np.uint64(z.shape[1])):
        for i in range(m):
            q[c, i] = exp_minus((top[i] - q[c, i]) * inverse)
            total[i] += q[c, i]
    return m


@compiled
def _moments_many(
    z: Array, codes: Array, shift: Array, temperature: float, start: int, stop: int, result: Array
) -> None:
    cells, classes = shift.shape[0] - 1, np.uint64(shift.shape[1])
    size = cells * shift.shape[1]
    sums = result[1 : 1 + size].reshape(cells, shift.shape[1])
    second = result[1 + size :].reshape(cells, shift.shape[1], shift.shape[1])
    result[:] = 0.0
    cell = np.empty(BLOCK, np.int32)
    top, total, row = np.empty(BLOCK), np.empty(BLOCK), np.empty(shift.shape[1])
    q = np.empty((shift.shape[1], BLOCK))
    tops, logs, product = 0.0, 0.0, 1.0
    for begin in range(start, stop, BLOCK):
        end = min(begin + BLOCK, stop)
        m = _softmax_block(z, codes, shift, 1 / temperature, begin, end, cell, top, total, q)
        for i in range(m):
            tops += top[i]
            product *= total[i]
            if product > FULL:
                logs += np.log(product)
                product = 1.0
            g = np.uint64(cell[i])
            inverse = 1 / total[i]
            for c in range(classes):
                row[c] = q[c, i] * inverse
                sums[g, c] += row[c]
            for c in range(classes):
                for d in range(c + np.uint64(1), classes):
                    second[g, c, d] += row[c] * row[d]
    result[0] = tops + temperature * (logs + np.log(product))
    for k in range(cells):
        for a in range(shift.shape[1]):
            for b in range(a):
                second[k, a, b] = second[k, b, a]
                second[k, a, a] += second[k, a, b]
                second[k, b, b] += second[k, a, b]


@Chunked
def moments_two(
    z: Array, codes: Array, shift: Array, temperature: float, size: int, parts: Array
) -> None:
    """Fill ``parts``, whose sum over chunks the moments are, of two classes."""
    for k in prange(parts.shape[0]):
        start = np.int64(k) * size
        stop = min(start + size, z.shape[0])
        _moments_two(z, codes, shift, temperature, start, stop, parts[k])


@Chunked
def moments_many(
    z: Array, codes: Array, shift: Array, temperature: float, size: int, parts: Array
) -> None:
    """Fill ``parts``, whose sum over chunks the moments are, of any number of classes."""
    for k in prange(parts.shape[0]):
        start = np.int64(k) * size
        stop = min(start + size, z.shape[0])
        _moments_many(z, codes, shift, temperature, start, stop, parts[k])


@compiled
def _pulled_two(
    grad: Array,
    z: Array,
    codes: Array,
    shift: Array,
    temperature: float,
    w: Array,
    start: int,
    stop: int,
    out: Array,
) -> None:
    inverse = 1 / temperature
    margin, pull = np.empty(BLOCK), np.empty(BLOCK)
    for begin in range(start, stop, BLOCK):
        size = np.uint64(min(BLOCK, stop - begin))
        for j in range(size):
            i = np.uint64(begin) + j
            g = np.uint64(codes[i] + 1)
            margin[j] = ((z[i, 1] - shift[g, 1]) - (z[i, 0] - shift[g, 0])) * inverse
            pull[j] = w[g, 1] - w[g, 0]
        for j in range(size):
            e = exp_minus(abs(margin[j]))
            large = 1 / (1 + e)
            # Not 0 times whatever it is: a node that does not count may have any logits.
            pull[j] = pull[j] * (e * large * large) if pull[j] != 0 else 0.0
        for j in range(size):
            i = np.uint64(begin) + j
            out[i, 0] = grad[i, 0] - pull[j]
            out[i, 1] = grad[i, 1] + pull[j]


@compiled
def _pulled_many(
    grad: Array,
    z: Array,
    codes: Array,
    shift: Array,
    temperature: float,
    w: Array,
    start: int,
    stop: int,
    out: Array,
) -> None:
    classes = np.uint64(z.shape[1])
    cell = np.empty(BLOCK, np.int32)
    top, total = np.empty(BLOCK), np.empty(BLOCK)
    q = np.empty((z.shape[1], BLOCK))
    for begin in range(start, stop, BLOCK):
        end = min(begin + BLOCK, stop)
        _softmax_block(z, codes, shift, 1 / temperature, begin, end, cell, top, total, q)
        m = np.uint64(0)
        for i in range(np.uint64(begin), np.uint64(end)):
            if codes[i] < 0:
                for c in range(classes):
                    out[i, c] = grad[i, c]
                continue
            g = np.uint64(codes[i] + 1)
            inner = 0.0
            for c in range(classes):
                inner += w[g, c] * q[c, m]
            inverse = 1 / total[m]
            inner *= inverse
            for c in range(classes):
                out[i, c] = grad[i, c] + q[c, m] * inverse * (w[g, c] - inner)
            m += np.uint64(1)


@Chunked
def pulled_two(
    grad: Array,
    z: Array,
    codes: Array,
    shift: Array,
    temperature: float,
    w: Array,
    size: int,
    out: Array,
) -> None:
    """Fill ``out`` with the pulled gradient, of two classes."""
    for k in prange((z.shape[0] + size - 1) // size):
        start = np.int64(k) * size
        stop = min(start + size, z.shape[0])
        _pulled_two(grad, z, codes, shift, temperature, w, start, stop, out)


@Chunked
def pulled_many(
    grad: Array,
    z: Array,
    codes: Array,
    shift: Array,
    temperature: float,
    w: Array,
    size: int,
    out: Array,
) -> None:
    """Fill ``out`` with the pulled gradient, of any number of classes."""
    for k in prange((z.shape[0] + size - 1) // size):
        start = np.int64(k) * size
        stop = min(start + size, z.shape[0])
        _pulled_many(grad, z, codes, shift, temperature, w, start, stop, out)

"""Passes over the nodes, compiled for the CPU: moments, segment sums, shifts and gradients.

Tables have an extra first row for the code −1: reading it is faster than branching. Passes that
take a softmax process a chunk in blocks that fit the processor's L1 cache: what differs from node
to node is gathered into plain arrays, which the arithmetic vectorises over.
"""

from __future__ import annotations

import numpy as np
from numba import prange

from fairmp.kernels.cpu.threads import Array, Chunked, Index, compiled, inlined

Logits = tuple[Array, Array, Array, float]  # z, codes, shift and temperature

BLOCK_NODES = 256
LANES = 4  # partial sums that nodes take turns in, so that an addition need not wait for the last
BACKWARD_ROWS = 1024  # rows whose gradients are summed in the layer's own precision

LOG2_E = 1.4426950408889634
# ln 2 in two parts, the first with enough trailing zeros for whole multiples to be exact.
LN2_HIGH = 0.693147180369123816490
LN2_LOW = 1.90821492927058770002e-10
ROUNDING_OFFSET = 6755399441055744.0  # 1.5·2⁵²: a number added to it loses its fraction
UNDERFLOW = 707.0
MAX_PRODUCT = 1e200  # a running product beyond this is replaced by its logarithm


@inlined
def exp_minus(t: float) -> float:
    """Compute exp(−t) for t ≥ 0, to the last digit but one; 0 where it would be below 1e-307.

    Unlike a library's it is plain arithmetic, which the compiler vectorises.
    """
    rounded = ROUNDING_OFFSET - t * LOG2_E
    n = rounded - ROUNDING_OFFSET
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
    # Times 2ⁿ: the last bits of ``rounded`` are n, which is added to the exponent.
    bits = np.float64(p).view(np.int64) + (np.float64(rounded).view(np.int64) << 52)
    return 0.0 if t > UNDERFLOW else np.int64(bits).view(np.float64)


@compiled
def _moments_two(logits: Logits, start: int, stop: int, result: Array) -> None:
    z, codes, shift, temperature = logits
    groups = shift.shape[0] - 1
    inverse = 1 / temperature
    sums = np.zeros((LANES, groups + 1, 3))  # by group, of both entries of q and their product
    group = np.zeros(BLOCK_NODES + LANES, np.int32)
    margin, top = np.zeros(BLOCK_NODES + LANES), np.empty(BLOCK_NODES + LANES)
    q = np.empty((4, BLOCK_NODES + LANES))
    tops = logs = 0.0
    for begin in range(start, stop, BLOCK_NODES):
        m = np.uint64(0)
        for i in range(np.uint64(begin), np.uint64(min(begin + BLOCK_NODES, stop))):
            # A node without a group is overwritten by the next.
            g = np.uint64(codes[i] + 1)
            first = z[i, 0] - shift[g, 0]
            second = z[i, 1] - shift[g, 1]
            group[m] = g
            margin[m] = (second - first) * inverse
            top[m] = max(first, second)
            m += np.uint64(codes[i] >= 0)
        padded = (m + np.uint64(LANES - 1)) // np.uint64(LANES) * np.uint64(LANES)
        for i in range(padded):
            e = exp_minus(abs(margin[i]))
            total = 1 + e
            large = 1 / total
            small = e * large
            q[0, i] = small if margin[i] > 0 else large
            q[1, i] = large if margin[i] > 0 else small
            q[2, i] = large * small
            q[3, i] = total
        for i in range(m, padded):
            group[i] = 0
            top[i] = 0.0
            q[3, i] = 1.0
        t0 = t1 = t2 = t3 = 0.0
        p0 = p1 = p2 = p3 = 1.0
        for i in range(np.uint64(0), padded, np.uint64(LANES)):
            t0 += top[i]
            t1 += top[i + np.uint64(1)]
            t2 += top[i + np.uint64(2)]
            t3 += top[i + np.uint64(3)]
            p0 *= q[3, i]
            p1 *= q[3, i + np.uint64(1)]
            p2 *= q[3, i + np.uint64(2)]
            p3 *= q[3, i + np.uint64(3)]
            for lane in range(np.uint64(LANES)):
                g = np.uint64(group[i + lane])
                sums[lane, g, 0] += q[0, i + lane]
                sums[lane, g, 1] += q[1, i + lane]
                sums[lane, g, 2] += q[2, i + lane]
        tops += t0 + t1 + t2 + t3
        logs += np.log(p0 * p1 * p2 * p3)
    result[0] = tops + temperature * logs
    for k in range(groups):
        for c in range(3):
            for j in range(1, LANES):
                sums[0, k + 1, c] += sums[j, k + 1, c]
        result[1 + 2 * k] = sums[0, k + 1, 0]
        result[2 + 2 * k] = sums[0, k + 1, 1]
        for c in range(4):
            result[1 + 2 * groups + 4 * k + c] = sums[0, k + 1, 2]


@inlined
def _softmax_block(
    logits: Logits, start: int, stop: int, group: Array, top: Array, total: Array, q: Array
) -> Index:
    """Fill ``q`` (C×block), yet to be divided by ``total``, for the nodes that have a group."""
    z, codes, shift, temperature = logits
    inverse = 1 / temperature
    m = np.uint64(0)
    for i in range(np.uint64(start), np.uint64(stop)):
        if codes[i] < 0:
            continue
        g = np.uint64(codes[i] + 1)
        group[m] = codes[i]
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
def _moments_many(logits: Logits, start: int, stop: int, result: Array) -> None:
    shift, temperature = logits[2:]
    groups, classes = shift.shape[0] - 1, np.uint64(shift.shape[1])
    size = groups * shift.shape[1]
    sums = result[1 : 1 + size].reshape(groups, shift.shape[1])
    second = result[1 + size :].reshape(groups, shift.shape[1], shift.shape[1])
    result[:] = 0.0
    group = np.empty(BLOCK_NODES, np.int32)
    top, total, row = np.empty(BLOCK_NODES), np.empty(BLOCK_NODES), np.empty(shift.shape[1])
    q = np.empty((shift.shape[1], BLOCK_NODES))
    tops, logs, product = 0.0, 0.0, 1.0
    for begin in range(start, stop, BLOCK_NODES):
        end = min(begin + BLOCK_NODES, stop)
        m = _softmax_block(logits, begin, end, group, top, total, q)
        for i in range(m):
            tops += top[i]
            product *= total[i]
            if product > MAX_PRODUCT:
                logs += np.log(product)
                product = 1.0
            g = np.uint64(group[i])
            inverse = 1 / total[i]
            for c in range(classes):
                row[c] = q[c, i] * inverse
                sums[g, c] += row[c]
            for c in range(classes):
                for d in range(c + np.uint64(1), classes):
                    second[g, c, d] += row[c] * row[d]
    result[0] = tops + temperature * (logs + np.log(product))
    for k in range(groups):
        for a in range(shift.shape[1]):
            for b in range(a):
                second[k, a, b] = second[k, b, a]
                second[k, a, a] += second[k, a, b]
                second[k, b, b] += second[k, a, b]


@Chunked
def moments(logits: Logits, size: int, parts: Array) -> None:
    """Fill ``parts``, one row per chunk; their sum are the moments."""
    z = logits[0]
    for k in prange(parts.shape[0]):
        start = np.int64(k) * size
        stop = min(start + size, z.shape[0])
        if z.shape[1] == 2:
            _moments_two(logits, start, stop, parts[k])
        else:
            _moments_many(logits, start, stop, parts[k])


@compiled
def _softmax_vjp_two(
    grad: Array, logits: Logits, w: Array, start: int, stop: int, out: Array
) -> None:
    z, codes, shift, temperature = logits
    inverse = 1 / temperature
    margin, pull = np.empty(BLOCK_NODES), np.empty(BLOCK_NODES)
    for begin in range(start, stop, BLOCK_NODES):
        size = np.uint64(min(BLOCK_NODES, stop - begin))
        for j in range(size):
            i = np.uint64(begin) + j
            g = np.uint64(codes[i] + 1)
            margin[j] = ((z[i, 1] - shift[g, 1]) - (z[i, 0] - shift[g, 0])) * inverse
            pull[j] = w[g, 1] - w[g, 0]
        for j in range(size):
            e = exp_minus(abs(margin[j]))
            large = 1 / (1 + e)
            # Not 0 times anything: a node without a group may have logits that are not finite.
            pull[j] = pull[j] * (e * large * large) if pull[j] != 0 else 0.0
        for j in range(size):
            i = np.uint64(begin) + j
            out[i, 0] = grad[i, 0] - pull[j]
            out[i, 1] = grad[i, 1] + pull[j]


@compiled
def _softmax_vjp_many(
    grad: Array, logits: Logits, w: Array, start: int, stop: int, out: Array
) -> None:
    z, codes = logits[:2]
    classes = np.uint64(z.shape[1])
    group = np.empty(BLOCK_NODES, np.int32)
    top, total = np.empty(BLOCK_NODES), np.empty(BLOCK_NODES)
    q = np.empty((z.shape[1], BLOCK_NODES))
    for begin in range(start, stop, BLOCK_NODES):
        end = min(begin + BLOCK_NODES, stop)
        _softmax_block(logits, begin, end, group, top, total, q)
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
def softmax_vjp(grad: Array, logits: Logits, w: Array, size: int, out: Array) -> None:
    """Fill ``out`` with ``grad`` plus the gradient of the shifted softmax."""
    for k in prange((grad.shape[0] + size - 1) // size):
        start = np.int64(k) * size
        stop = min(start + size, grad.shape[0])
        if grad.shape[1] == 2:
            _softmax_vjp_two(grad, logits, w, start, stop, out)
        else:
            _softmax_vjp_many(grad, logits, w, start, stop, out)


@compiled
def _coupling_two(
    g: Array, z: Array, codes: Array, w: Array, start: int, stop: int, out: Array, sums: Array
) -> None:
    margin, pull = np.empty(BLOCK_NODES), np.empty(BLOCK_NODES)
    parts = np.zeros((LANES, w.shape[0]))
    for begin in range(start, stop, BLOCK_NODES):
        size = np.uint64(min(BLOCK_NODES, stop - begin))
        for j in range(size):
            i = np.uint64(begin) + j
            k = np.uint64(codes[i] + 1)
            # A node without a group may have logits that are not finite.
            margin[j] = np.float64(z[i, 1]) - np.float64(z[i, 0]) if codes[i] >= 0 else np.inf
            pull[j] = w[k, 1] - w[k, 0]
        for j in range(size):
            e = exp_minus(abs(margin[j]))
            large = 1 / (1 + e)
            bend = (e - 1) * large * pull[j]  # 1 − 2q, of the second class
            pull[j] = bend if margin[j] > 0 else -bend
            margin[j] = e * large * large
        for j in range(size):
            i = np.uint64(begin) + j
            share = margin[j] * (np.float64(g[i, 1]) - np.float64(g[i, 0]))
            parts[j % np.uint64(LANES), np.uint64(codes[i] + 1)] += share
            out[i, 0] = -share * pull[j]
            out[i, 1] = share * pull[j]
    sums[:, 1] = ((parts[0] + parts[1]) + (parts[2] + parts[3]))[1:]
    sums[:, 0] = -sums[:, 1]


@compiled
def _coupling_many(
    g: Array, z: Array, codes: Array, w: Array, start: int, stop: int, out: Array, sums: Array
) -> None:
    classes = np.uint64(z.shape[1])
    group = np.empty(BLOCK_NODES, np.int32)
    top, total = np.empty(BLOCK_NODES), np.empty(BLOCK_NODES)
    q, product = np.empty((z.shape[1], BLOCK_NODES)), np.empty(z.shape[1])
    logits = z, codes, np.zeros_like(w), 1.0
    sums[:] = 0.0
    for begin in range(start, stop, BLOCK_NODES):
        end = min(begin + BLOCK_NODES, stop)
        _softmax_block(logits, begin, end, group, top, total, q)
        m = np.uint64(0)
        for i in range(np.uint64(begin), np.uint64(end)):
            if codes[i] < 0:
                for c in range(classes):
                    out[i, c] = 0
                continue
            k = np.uint64(codes[i])
            inverse = 1 / total[m]
            g_mean = w_mean = mean = 0.0
            for c in range(classes):
                q[c, m] *= inverse
                g_mean += g[i, c] * q[c, m]
                w_mean += w[k + np.uint64(1), c] * q[c, m]
            for c in range(classes):
                centred = g[i, c] - g_mean
                sums[k, c] += q[c, m] * centred
                product[c] = centred * (w[k + np.uint64(1), c] - w_mean)
                mean += product[c] * q[c, m]
            for c in range(classes):
                out[i, c] = q[c, m] * (product[c] - mean)
            m += np.uint64(1)


@Chunked
def coupling_backward(
    g: Array, z: Array, codes: Array, w: Array, size: int, out: Array, parts: Array
) -> None:
    """Fill ``out`` with the gradient of z; ``parts``, one table per chunk, add up to that of w."""
    for k in prange(parts.shape[0]):
        start = np.int64(k) * size
        stop = min(start + size, z.shape[0])
        if z.shape[1] == 2:
            _coupling_two(g, z, codes, w, start, stop, out, parts[k])
        else:
            _coupling_many(g, z, codes, w, start, stop, out, parts[k])


@Chunked
def shift(z: Array, codes: Array, shift: Array, size: int, out: Array) -> None:
    """Fill ``out`` with the shifted logits."""
    for k in prange((z.shape[0] + size - 1) // size):
        for i in range(np.uint64(k * size), np.uint64(min((k + 1) * size, z.shape[0]))):
            g = np.uint64(codes[i] + 1)
            if z.shape[1] == 2:
                out[i, 0] = z[i, 0] - shift[g, 0]
                out[i, 1] = z[i, 1] - shift[g, 1]
            else:
                for c in range(np.uint64(z.shape[1])):
                    out[i, c] = z[i, c] - shift[g, c]


@compiled
def _sum_chunk(g: Array, codes: Array, start: int, stop: int, result: Array) -> None:
    groups, classes = result.shape
    sums = np.zeros((LANES, groups + 1, classes))
    for i in range(np.uint64(start), np.uint64(stop)):
        group = np.uint64(codes[i] + 1)
        lane = i % np.uint64(LANES)
        if classes == 2:
            sums[lane, group, 0] += g[i, 0]
            sums[lane, group, 1] += g[i, 1]
        else:
            for c in range(np.uint64(classes)):
                sums[lane, group, c] += g[i, c]
    for k in range(groups):
        for c in range(classes):
            result[k, c] = 0.0
            for j in range(LANES):
                result[k, c] += sums[j, k + 1, c]


@Chunked
def segment_sum(g: Array, codes: Array, size: int, parts: Array) -> None:
    """Fill ``parts``, one table per chunk; their sum are the sums by group."""
    for k in prange(parts.shape[0]):
        start = np.int64(k) * size
        _sum_chunk(g, codes, start, min(start + size, g.shape[0]), parts[k])


@compiled
def _backward_chunk(
    g: Array, h: Array, weight: Array, start: int, stop: int, out: Array, sums: Array, pairs: Array
) -> None:
    units, classes = np.uint64(h.shape[1]), np.uint64(g.shape[1])
    for j in range(units):
        sums[j] = 0
        for c in range(classes):
            pairs[c, j] = 0
    for i in range(np.uint64(start), np.uint64(stop)):
        first = g[i, 0]
        for j in range(units):
            out[i, j] = first * weight[0, j]
            pairs[0, j] += first * h[i, j]
        for c in range(np.uint64(1), classes):
            other = g[i, c]
            for j in range(units):
                out[i, j] += other * weight[c, j]
                pairs[c, j] += other * h[i, j]
        for j in range(units):
            d = out.dtype.type(0) if h[i, j] <= 0 else out[i, j]
            out[i, j] = d
            sums[j] += d


@Chunked
def linear_relu_backward(
    g: Array, h: Array, weight: Array, out: Array, sums: Array, pairs: Array
) -> None:
    """Fill ``out`` with the gradient before the ReLU whose output is ``h``.

    ``sums`` (chunks×units) add up to its sum over rows, ``pairs`` (chunks×classes×units) to gᵀh.
    """
    for k in prange(sums.shape[0]):
        start, stop = k * BACKWARD_ROWS, min((k + 1) * BACKWARD_ROWS, h.shape[0])
        _backward_chunk(g, h, weight, np.int64(start), np.int64(stop), out, sums[k], pairs[k])

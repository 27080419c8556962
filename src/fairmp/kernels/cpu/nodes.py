"""Passes over the nodes, compiled for the CPU: moments, segment sums, shifts and gradients.

Tables have an extra first row for the code −1: reading it is faster than branching. Passes that
take a softmax process a chunk in blocks that fit the processor's L1 cache: what differs from node
to node is gathered into plain arrays, which the arithmetic vectorises over. The number of classes
is an argument that callers give as a constant where it is 2, so that loops over it are unrolled.
"""

from __future__ import annotations

import numpy as np
from numba import prange

from fairmp.kernels.cpu.threads import Array, Chunked, Index, compiled, inlined

Logits = tuple[Array, Array, Array, float]  # z, codes, shift and temperature
Scratch = tuple[Array, Array, Array, Array]  # of a block: groups, largest logits, totals, softmax

BLOCK_NODES = 256
LANES = 4  # partial sums that nodes take turns in, so that an addition need not wait for the last
BACKWARD_ROWS = 1024  # rows whose gradients are summed in the layer's own precision
ONE, TWO, THREE, FOUR = np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(4)

LOG2_E = 1.4426950408889634
# ln 2 in two parts, the first with enough trailing zeros for whole multiples to be exact.
LN2_HIGH = 0.693147180369123816490
LN2_LOW = 1.90821492927058770002e-10
ROUNDING_OFFSET = 6755399441055744.0  # 1.5·2⁵²: a number added to it loses its fraction
UNDERFLOW = 707.0


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


@inlined
def lane_sum(values: Array, size: Index) -> float:
    """Sum the first values; those after them, up to a multiple of LANES, must be 0."""
    a = b = c = d = 0.0
    for i in range(np.uint64(0), size, FOUR):
        a += values[i]
        b += values[i + ONE]
        c += values[i + TWO]
        d += values[i + THREE]
    return (a + b) + (c + d)


@inlined
def _scratch(classes: int) -> Scratch:
    size = BLOCK_NODES + LANES
    group, q = np.empty(size, np.int32), np.empty((classes, size))
    return group, np.empty(size), np.empty(size), q


@inlined
def _softmax_block(
    logits: Logits, classes: int, start: int, stop: int, grouped: bool, scratch: Scratch
) -> Index:
    """Take the softmax of nodes, of all or (``grouped``) of those in a group; return how many."""
    z, codes, shift, temperature = logits
    group, top, total, q = scratch
    inverse = 1 / temperature
    m = np.uint64(0)
    for i in range(np.uint64(start), np.uint64(stop)):
        # A node without a group is overwritten by the next.
        g = np.uint64(codes[i] + 1)
        if grouped:
            group[m] = codes[i]
        if classes == 2:
            first, second = z[i, 0] - shift[g, 0], z[i, 1] - shift[g, 1]
            # Of unknown group, logits may not be finite, and 0 times them is not 0.
            q[0, m] = (second - first) * inverse if grouped or g else 0.0
            if grouped:
                top[m] = max(first, second)
        else:
            top[m] = -np.inf
            for c in range(np.uint64(classes)):
                q[c, m] = z[i, c] - shift[g, c]
                top[m] = max(top[m], q[c, m])
        m += np.uint64(codes[i] >= 0) if grouped else ONE
    if classes == 2:  # one of the exponentials is 1
        for i in range(m):
            margin = q[0, i]
            e = exp_minus(abs(margin))
            large = 1 / (1 + e)
            if grouped:
                total[i] = 1 + e
                q[0, i] = e * large if margin > 0 else large
                q[1, i] = large if margin > 0 else e * large
            else:  # their product and difference, which are all that gradients need
                q[0, i] = e * large * large
                q[1, i] = (e - 1) * large if margin > 0 else (1 - e) * large
        return m
    for i in range(m):
        total[i] = 0.0
    for c in range(np.uint64(classes)):
        for i in range(m):
            q[c, i] = exp_minus((top[i] - q[c, i]) * inverse)
            total[i] += q[c, i]
    for c in range(np.uint64(classes)):
        for i in range(m):
            q[c, i] /= total[i]
    return m


@inlined
def _log_product(values: Array, size: Index) -> float:
    """As :func:`lane_sum`, of logarithms; the values after the last must be 1."""
    a = b = c = d = 1.0
    for i in range(np.uint64(0), size, FOUR):
        a *= values[i]
        b *= values[i + ONE]
        c *= values[i + TWO]
        d *= values[i + THREE]
    return np.log(a) + np.log(b) + np.log(c) + np.log(d)


@inlined
def _moments(logits: Logits, classes: int, start: int, stop: int, sums: Array) -> float:
    scratch, row, value, temperature = _scratch(classes), np.empty(classes), 0.0, logits[3]
    group, top, total, q = scratch
    for begin in range(start, stop, BLOCK_NODES):
        end = min(begin + BLOCK_NODES, stop)
        m = _softmax_block(logits, classes, begin, end, True, scratch)
        for i in range(m, m + FOUR):
            top[i], total[i] = 0.0, 1.0
        value += lane_sum(top, m) + temperature * _log_product(total, m)
        for i in range(m):
            g = np.uint64(group[i])
            if classes == 2:
                lane = i % np.uint64(LANES)
                sums[lane, g, 0, 0] += q[0, i]
                sums[lane, g, 1, 1] += q[1, i]
                sums[lane, g, 0, 1] += q[0, i] * q[1, i]
                continue
            for c in range(np.uint64(classes)):
                row[c] = q[c, i]
                sums[0, g, c, c] += row[c]
            for c in range(np.uint64(classes)):
                for d in range(c + ONE, np.uint64(classes)):
                    sums[0, g, c, d] += row[c] * row[d]
    return value


@compiled
def _add_moments(sums: Array, out: Array) -> None:
    chunks, lanes, groups, classes = sums.shape[:4]
    products = out[1 + groups * classes :].reshape(groups, classes, classes)
    for g, c in np.ndindex(groups, classes):
        for d in range(c, classes):
            total = 0.0
            for k, lane in np.ndindex(chunks, lanes):
                total += sums[k, lane, g, c, d]
            if c == d:
                out[1 + g * classes + c] = total
            else:
                products[g, c, c] += total
                products[g, d, d] += total
                products[g, c, d] = products[g, d, c] = total


@Chunked
def moments(logits: Logits, size: int, sums: Array, out: Array) -> None:
    """Add up in ``out`` what ``sums`` collect by chunk: q_c on the diagonal, q_c·q_d above it."""
    z, values = logits[0], np.empty(sums.shape[0])
    for k in prange(values.size):
        start = np.int64(k) * size
        stop = min(start + size, z.shape[0])
        if z.shape[1] == 2:
            values[k] = _moments(logits, 2, start, stop, sums[k])
        else:
            values[k] = _moments(logits, z.shape[1], start, stop, sums[k])
    for k in range(values.size):
        out[0] += values[k]
    _add_moments(sums, out)


@inlined
def _softmax_vjp(
    grad: Array, logits: Logits, classes: int, w: Array, start: int, stop: int, out: Array
) -> None:
    codes, scratch = logits[1], _scratch(classes)
    q = scratch[3]
    for begin in range(start, stop, BLOCK_NODES):
        end = min(begin + BLOCK_NODES, stop)
        size = _softmax_block(logits, classes, begin, end, False, scratch)
        for j in range(size):
            i = np.uint64(begin) + j
            g = np.uint64(codes[i] + 1)
            if classes == 2:
                pull = q[0, j] * (w[g, 1] - w[g, 0])
                out[i, 0] = grad[i, 0] - pull
                out[i, 1] = grad[i, 1] + pull
                continue
            mean = 0.0
            for c in range(np.uint64(classes)):
                mean += w[g, c] * q[c, j]
            for c in range(np.uint64(classes)):
                out[i, c] = grad[i, c] + (q[c, j] * (w[g, c] - mean) if g else 0.0)


@Chunked
def softmax_vjp(grad: Array, logits: Logits, w: Array, size: int, out: Array) -> None:
    """Fill ``out`` with ``grad`` plus the gradient of the shifted softmax."""
    for k in prange((grad.shape[0] + size - 1) // size):
        start = np.int64(k) * size
        stop = min(start + size, grad.shape[0])
        if grad.shape[1] == 2:
            _softmax_vjp(grad, logits, 2, w, start, stop, out)
        else:
            _softmax_vjp(grad, logits, grad.shape[1], w, start, stop, out)


@inlined
def _coupling_backward(
    g: Array, logits: Logits, classes: int, w: Array, start: int, stop: int, out: Array, sums: Array
) -> None:
    codes, scratch, product = logits[1], _scratch(classes), np.empty(classes)
    q = scratch[3]
    for begin in range(start, stop, BLOCK_NODES):
        end = min(begin + BLOCK_NODES, stop)
        size = _softmax_block(logits, classes, begin, end, False, scratch)
        for j in range(size):
            i = np.uint64(begin) + j
            k = np.uint64(codes[i] + 1)
            if classes == 2:
                share = q[0, j] * (np.float64(g[i, 1]) - np.float64(g[i, 0]))
                bend = q[1, j] * (w[k, 1] - w[k, 0])
                sums[j % np.uint64(LANES), k, 1] += share
                out[i, 0] = -share * bend
                out[i, 1] = share * bend
                continue
            g_mean = w_mean = mean = 0.0
            for c in range(np.uint64(classes)):
                g_mean += g[i, c] * q[c, j]
                w_mean += w[k, c] * q[c, j]
            for c in range(np.uint64(classes)):
                centred = g[i, c] - g_mean
                sums[0, k, c] += q[c, j] * centred
                product[c] = centred * (w[k, c] - w_mean)
                mean += product[c] * q[c, j]
            for c in range(np.uint64(classes)):
                out[i, c] = q[c, j] * (product[c] - mean) if k else 0.0


@Chunked
def coupling_backward(
    g: Array, logits: Logits, w: Array, size: int, out: Array, parts: Array
) -> None:
    """Fill ``out`` with the gradient of z, and add that of w to ``parts``, by chunk.

    Of two classes, that of the second: the first is its opposite.
    """
    for k in prange(parts.shape[0]):
        start = np.int64(k) * size
        stop = min(start + size, g.shape[0])
        if g.shape[1] == 2:
            _coupling_backward(g, logits, 2, w, start, stop, out, parts[k])
        else:
            _coupling_backward(g, logits, g.shape[1], w, start, stop, out, parts[k])


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


@Chunked
def segment_sum(g: Array, codes: Array, size: int, parts: Array) -> None:
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

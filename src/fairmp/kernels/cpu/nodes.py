"""Passes over the nodes, compiled for the CPU: moments, sums by group, shifts and gradients.

Tables have an extra first row for the code −1: reading it is faster than branching. Passes that
take a softmax process a chunk in blocks that fit the processor's L1 cache: what differs from node
to node is gathered into plain arrays, which the arithmetic vectorises over. The number of classes
is an argument that callers give as a constant where it is 2, so that loops over it are unrolled.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fairmp.kernels.cpu.threads import Array, Index, compiled, inlined
from fairmp.kernels.root import first_root, next_root

Logits = tuple[Array, Array, Array, float]  # z, codes, shift and temperature
Scratch = tuple[Array, Array, Array, Array]  # of a block: groups, largest logits, totals, softmax


BLOCK_NODES = 256
LANES = 4  # partial sums that nodes take turns in, so that an addition need not wait for the last
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
            # Logits of unknown group may not be finite, and 0 times them is not 0.
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
def moments_chunk(logits: Logits, classes: int, start: int, stop: int, sums: Array) -> float:
    """Sum the softmax of some nodes and its products by group; return the sum of logsumexp."""
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
def add_moments(sums: Array, out: Array) -> None:
    """Add up the sums of all chunks, and fill in what follows from them."""
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


@inlined
def softmax_vjp_chunk(
    grad: Array, logits: Logits, classes: int, w: Array, start: int, stop: int, out: Array
) -> None:
    """Add the gradient of the shifted softmax of some nodes."""
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


@inlined
def shift_extreme_row(z: Array, i: Index, by: Array, floor: float, out: Array) -> None:
    """Shift a row relative to its largest logit; see ``Kernels.shift``."""
    # In float64: in float32 the differences of large logits have too few digits.
    reach, top = abs(by[0]), np.float64(z[i, 0])
    for c in range(np.uint64(1), np.uint64(by.size)):
        reach, top = max(reach, abs(by[c])), max(top, np.float64(z[i, c]))
    if reach == 0:  # not shifted at all
        return
    lowest = -floor if reach > floor / 4 else -np.inf
    highest = -np.inf
    for c in range(np.uint64(by.size)):
        highest = max(highest, max(z[i, c] - top, lowest) - by[c])
    for c in range(np.uint64(by.size)):
        out[i, c] = (max(z[i, c] - top, lowest) - by[c]) - highest


@inlined
def shift_margins_chunk(
    z: Array, column: Array, amount: float, floor: float, start: Index, stop: Index, out: Array
) -> None:
    """Shift the margins of some nodes; see ``Kernels.shift_margins``."""
    extreme = 0  # counted, so that the loop vectorises
    for i in range(start, stop):
        extreme += 0 if abs(amount * column[i]) <= floor / 4 else 1
        out[i, 0] = z[i, 0] - amount * column[i]
    for i in range(start, stop if extreme else start):
        by = amount * column[i]
        if abs(by) > floor / 4:
            out[i, 0] = min(max(z[i, 0], -floor), floor) - by


@inlined
def shift_pairs_chunk(
    z: Array,
    column: Array,
    amount: float,
    limit: float,
    floor: float,
    start: Index,
    stop: Index,
    out: Array,
) -> None:
    """Shift the two logits of some nodes; see ``Kernels.shift_margins``."""
    extreme, bound, flat = np.int32(0), z.dtype.type(limit), z.reshape(-1)
    for i in range(TWO * start, TWO * stop):  # counted, so that the loop vectorises
        extreme += np.int32(0) if abs(flat[i]) <= bound else np.int32(1)
    for i in range(start, stop):
        half = z.dtype.type(amount / 2 * column[i])
        out[i, 0] = z[i, 0] + half
        out[i, 1] = z[i, 1] - half
    by = np.empty(2)
    for i in range(start, stop if extreme else start):
        if not (abs(z[i, 0]) <= limit and abs(z[i, 1]) <= limit):
            by[0], by[1] = -amount / 2 * column[i], amount / 2 * column[i]
            shift_extreme_row(z, i, by, floor, out)


@inlined
def skip_gradient_chunk(grad: Array, gradient: Any, start: int, stop: int) -> float:
    """Fill rows of ``gradient.grad_x`` with γ·grad; return ⟨grad, x − propagated⟩ over them."""
    first, last = np.uint64(start * grad.shape[1]), np.uint64(stop * grad.shape[1])
    g, grad_x = grad.reshape(-1), gradient.grad_x.reshape(-1)
    gamma = grad.dtype.type(gradient.gamma)
    for i in range(first, last):
        grad_x[i] = gamma * g[i]
    a = b = 0.0
    if gradient.x.size:
        x, propagated = gradient.x.reshape(-1), gradient.propagated.reshape(-1)
        even = first + (last - first) // TWO * TWO
        for i in range(first, even, TWO):
            a += g[i] * (x[i] - propagated[i])
            b += g[i + ONE] * (x[i + ONE] - propagated[i + ONE])
        for i in range(even, last):
            a += g[i] * (x[i] - propagated[i])
    return a + b


@inlined
def margin_sum(g: Array, column: Array, start: Index, stop: Index) -> float:
    """Σ column·(g₁ − g₀), or of the margins g, over some nodes."""
    a = b = c = d = 0.0
    last = start + (stop - start) // FOUR * FOUR
    if g.shape[1] == 1:
        for i in range(start, last, FOUR):
            a += column[i] * g[i, 0]
            b += column[i + ONE] * g[i + ONE, 0]
            c += column[i + TWO] * g[i + TWO, 0]
            d += column[i + THREE] * g[i + THREE, 0]
        for i in range(last, stop):
            a += column[i] * g[i, 0]
    else:
        for i in range(start, last, FOUR):
            a += column[i] * (g[i, 1] - g[i, 0])
            b += column[i + ONE] * (g[i + ONE, 1] - g[i + ONE, 0])
            c += column[i + TWO] * (g[i + TWO, 1] - g[i + TWO, 0])
            d += column[i + THREE] * (g[i + THREE, 1] - g[i + THREE, 0])
        for i in range(last, stop):
            a += column[i] * (g[i, 1] - g[i, 0])
    return (a + b) + (c + d)


@inlined
def logistic_block(
    margin: Array, weight: float, root: float, at: Index, count: Index, q: Array, slope: Array
) -> tuple[float, float]:
    """Sum σ(margin − weight·root) and its derivative over a block of nodes of one group."""
    for i in range(count):
        t = margin[at + i] - weight * root
        e = exp_minus(abs(t))
        large = 1 / (1 + e)
        q[0, i] = large if t > 0 else e * large
        q[1, i] = e * large * large
        slope[at + i] = weight * q[1, i]
    for i in range(count, count + FOUR):
        q[0, i] = q[1, i] = 0.0
    return lane_sum(q[0], count), lane_sum(q[1], count)


compiled_first_root, compiled_next_root = compiled(first_root), compiled(next_root)


@compiled
def linear_relu_chunk(
    g: Array, h: Array, weight: Array, start: int, stop: int, out: Array, sums: Array, pairs: Array
) -> None:
    """Gradients of some rows of a linear layer after a ReLU, and their sums."""
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

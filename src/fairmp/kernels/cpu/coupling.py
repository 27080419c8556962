"""The passes over the nodes of ``paper`` and ``papc``, compiled for the CPU.

Those that take a softmax work a chunk off in blocks, as :mod:`fairmp.kernels.cpu.softmax` does.
For two classes, the Jacobian of a softmax p takes v to −d and d, with d = p₀p₁(v₁ − v₀).
"""

from __future__ import annotations

import numpy as np
from numba import prange

from fairmp.kernels.cpu.nodes import BLOCK_NODES as BLOCK
from fairmp.kernels.cpu.nodes import LANES, exp_minus
from fairmp.kernels.cpu.threads import Array, Chunked, Index, compiled, inlined

PAD = 8  # rows of a block that start a power of two apart would share a place in the cache


@inlined
def _weight(t: float) -> float:
    """Compute exp(−t) for t ≥ 0, and keep what is not a number."""
    return exp_minus(t) if t == t else np.nan


@inlined
def _push(p: Array, i: Index, reach: Array, pull: Array) -> float:
    """What the Jacobian of one of two classes makes of a pull."""
    g = np.uint64(reach[i] + 1)
    push = np.float64(p[i, 0]) * p[i, 1] * (pull[g, 1] - pull[g, 0])
    # Not 0 times whatever it is: a node that is not reached may have any logits.
    return push if reach[i] >= 0 else 0.0


@compiled
def _softmax_two(margin: Array, size: Index, q: Array) -> None:
    """Fill ``q`` (2×block) with the softmax of rows of the given difference."""
    for j in range(size):
        e = _weight(abs(margin[j]))
        large = 1 / (1 + e)
        small = e * large
        q[0, j] = small if margin[j] > 0 else large
        q[1, j] = large if margin[j] > 0 else small


@inlined
def _pushed(
    p: Array, agg: Array, i: Index, reach: Array, pull: Array, gamma: float, z: Array, j: Index
) -> None:
    """Fill column j of ``z`` (C×block) with agg − γJ pull of node i."""
    classes, g = np.uint64(agg.shape[1]), np.uint64(reach[i] + 1)
    mean = 0.0
    for c in range(classes):
        mean += p[i, c] * pull[g, c]
    for c in range(classes):
        push = gamma * p[i, c] * (pull[g, c] - mean)
        z[c, j] = agg[i, c] - (push if reach[i] >= 0 else 0.0)


@compiled
def _softmax_many(q: Array, size: Index, top: Array, whole: Array) -> None:
    """Turn the logits in ``q`` (C×block) into probabilities."""
    classes = np.uint64(q.shape[0])
    for j in range(size):
        top[j] = q[0, j]
        whole[j] = 0.0
    for c in range(np.uint64(1), classes):
        for j in range(size):
            top[j] = max(top[j], q[c, j])
    for c in range(classes):
        for j in range(size):
            q[c, j] = _weight(top[j] - q[c, j])
            whole[j] += q[c, j]
    for j in range(size):
        whole[j] = 1 / whole[j]
    for c in range(classes):
        for j in range(size):
            q[c, j] *= whole[j]


@inlined
def _counted(measured: Array, begin: int, stop: int, node: Array, out: Array) -> Index:
    """List the nodes of a block that count, and write zeros for the others."""
    m = np.uint64(0)
    for i in range(np.uint64(begin), np.uint64(min(begin + BLOCK, stop))):
        # A node that does not count is overwritten by the next.
        node[m] = i
        m += np.uint64(measured[i] >= 0)
        for c in range(np.uint64(out.shape[1])):
            out[i, c] = 0.0
    return m


@compiled
def _collect(sums: Array, result: Array) -> None:
    """Add the lanes' sums up, but for those of no cell."""
    for k in range(result.shape[0]):
        for c in range(result.shape[1]):
            result[k, c] = 0.0
            for lane in range(LANES):
                result[k, c] += sums[lane, k + 1, c]


@compiled
def _predicted_chunk(
    p: Array,
    agg: Array,
    reach: Array,
    measured: Array,
    pull: Array,
    gamma: float,
    start: int,
    stop: int,
    out: Array,
    result: Array,
) -> None:
    classes = np.uint64(agg.shape[1])
    sums = np.zeros((LANES, pull.shape[0], agg.shape[1]))
    node = np.empty(BLOCK, np.uint64)
    q, top, whole = np.empty((agg.shape[1], BLOCK + PAD)), np.empty(BLOCK), np.empty(BLOCK)
    for begin in range(start, stop, BLOCK):
        m = _counted(measured, begin, stop, node, out)
        if classes == 2:
            for j in range(m):
                i = node[j]
                push = gamma * _push(p, i, reach, pull)
                top[j] = (np.float64(agg[i, 1]) - agg[i, 0]) - 2 * push
            _softmax_two(top, m, q)
        else:
            for j in range(m):
                _pushed(p, agg, node[j], reach, pull, gamma, q, j)
            _softmax_many(q, m, top, whole)
        for j in range(m):
            i, lane = node[j], j % np.uint64(LANES)
            g = np.uint64(measured[i] + 1)
            if classes == 2:
                out[i, 0] = q[0, j]
                out[i, 1] = q[1, j]
                sums[lane, g, 0] += q[0, j]
                sums[lane, g, 1] += q[1, j]
            else:
                for c in range(classes):
                    out[i, c] = q[c, j]
                    sums[lane, g, c] += q[c, j]
    _collect(sums, result)


@Chunked
def predicted(
    p: Array,
    agg: Array,
    reach: Array,
    measured: Array,
    pull: Array,
    gamma: float,
    size: int,
    out: Array,
    parts: Array,
) -> None:
    """Fill ``out`` with the predictions, and ``parts``, whose sum over chunks their sums are."""
    for k in prange(parts.shape[0]):
        start = np.int64(k) * size
        stop = min(start + size, agg.shape[0])
        _predicted_chunk(p, agg, reach, measured, pull, gamma, start, stop, out, parts[k])


@compiled
def _corrected_chunk(
    p: Array,
    agg: Array,
    reach: Array,
    pull: Array,
    gamma: float,
    start: int,
    stop: int,
    out: Array,
    soft: Array,
) -> None:
    classes = np.uint64(agg.shape[1])
    q, top, whole = np.empty((agg.shape[1], BLOCK + PAD)), np.empty(BLOCK), np.empty(BLOCK)
    for begin in range(start, stop, BLOCK):
        size = np.uint64(min(BLOCK, stop - begin))
        for j in range(size):
            i = np.uint64(begin) + j
            if classes == 2:
                push = gamma * _push(p, i, reach, pull)
                out[i, 0] = agg[i, 0] + push
                out[i, 1] = agg[i, 1] - push
                top[j] = (np.float64(agg[i, 1]) - agg[i, 0]) - 2 * push
            else:
                _pushed(p, agg, i, reach, pull, gamma, q, j)
                for c in range(classes):
                    out[i, c] = q[c, j]
        if classes == 2:
            _softmax_two(top, size, q)
            for j in range(size):
                soft[np.uint64(begin) + j, 0] = q[0, j]
                soft[np.uint64(begin) + j, 1] = q[1, j]
        else:
            _softmax_many(q, size, top, whole)
            for j in range(size):
                for c in range(classes):
                    soft[np.uint64(begin) + j, c] = q[c, j]


@Chunked
def corrected(
    p: Array,
    agg: Array,
    reach: Array,
    pull: Array,
    gamma: float,
    size: int,
    out: Array,
    soft: Array,
) -> None:
    """Fill ``out`` with the corrected logits, and ``soft`` with their softmax."""
    for k in prange((agg.shape[0] + size - 1) // size):
        start = np.int64(k) * size
        stop = min(start + size, agg.shape[0])
        _corrected_chunk(p, agg, reach, pull, gamma, start, stop, out, soft)


@compiled
def _pulls_chunk(p: Array, g: Array, reach: Array, start: int, stop: int, result: Array) -> None:
    classes = np.uint64(p.shape[1])
    sums = np.zeros((LANES, result.shape[0] + 1, p.shape[1]))
    for i in range(np.uint64(start), np.uint64(stop)):
        lane, r = i % np.uint64(LANES), np.uint64(reach[i] + 1)
        if classes == 2:
            felt = np.float64(p[i, 0]) * p[i, 1] * (np.float64(g[i, 1]) - g[i, 0])
            sums[lane, r, 0] -= felt
            sums[lane, r, 1] += felt
            continue
        mean = 0.0
        for c in range(classes):
            mean += np.float64(p[i, c]) * g[i, c]
        for c in range(classes):
            sums[lane, r, c] += p[i, c] * (g[i, c] - mean)
    _collect(sums, result)


@Chunked
def pulls(p: Array, g: Array, reach: Array, size: int, parts: Array) -> None:
    """Fill ``parts``, whose sum over chunks is what pulls feel."""
    for k in prange(parts.shape[0]):
        start = np.int64(k) * size
        _pulls_chunk(p, g, reach, start, min(start + size, p.shape[0]), parts[k])


@compiled
def _back_chunk(
    p: Array,
    q: Array,
    g: Array,
    reach: Array,
    measured: Array,
    before: Array,
    after: Array,
    w: Array,
    start: int,
    stop: int,
    a: Array,
    e: Array,
    result: Array,
) -> None:
    classes = np.uint64(p.shape[1])
    sums = np.zeros((LANES, result.shape[0] + 1, p.shape[1]))
    b, both = np.empty(p.shape[1]), np.empty(p.shape[1])
    for i in range(np.uint64(start), np.uint64(stop)):
        lane = i % np.uint64(LANES)
        r, m = np.uint64(reach[i] + 1), np.uint64(measured[i] + 1)
        if classes == 2:
            first, second = np.float64(p[i, 0]), np.float64(p[i, 1])
            push = np.float64(q[i, 0]) * q[i, 1] * (w[m, 1] - w[m, 0])
            felt = 2 * first * second * push
            given = (np.float64(g[i, 1]) - g[i, 0]) * (after[r, 1] - after[r, 0])
            given += 2 * push * (before[r, 1] - before[r, 0])
            given *= first * second * (second - first)
            given = given if reach[i] >= 0 else 0.0
            a[i, 0] = g[i, 0] - push
            a[i, 1] = g[i, 1] + push
            e[i, 0] = -given
            e[i, 1] = given
            sums[lane, r, 0] -= felt
            sums[lane, r, 1] += felt
            continue
        mean = 0.0
        for c in range(classes):
            mean += q[i, c] * w[m, c]
        in_g = in_b = in_after = in_before = 0.0
        for c in range(classes):
            b[c] = q[i, c] * (w[m, c] - mean)
            a[i, c] = g[i, c] + b[c]
            in_g += np.float64(p[i, c]) * g[i, c]
            in_b += p[i, c] * b[c]
            in_after += p[i, c] * after[r, c]
            in_before += p[i, c] * before[r, c]
        mean = 0.0
        for c in range(classes):
            b[c] -= in_b
            both[c] = (g[i, c] - in_g) * (after[r, c] - in_after) + b[c] * (
                before[r, c] - in_before
            )
            mean += p[i, c] * both[c]
        for c in range(classes):
            e[i, c] = p[i, c] * (mean - both[c]) if reach[i] >= 0 else 0.0
            sums[lane, r, c] += p[i, c] * b[c]
    _collect(sums, result)


@Chunked
def back(
    p: Array,
    q: Array,
    g: Array,
    reach: Array,
    measured: Array,
    before: Array,
    after: Array,
    w: Array,
    size: int,
    a: Array,
    e: Array,
    parts: Array,
) -> None:
    """Fill ``a``, ``e`` and ``parts``, whose sum over chunks is what pulls feel."""
    for k in prange(parts.shape[0]):
        start = np.int64(k) * size
        stop = min(start + size, p.shape[0])
        _back_chunk(p, q, g, reach, measured, before, after, w, start, stop, a, e, parts[k])

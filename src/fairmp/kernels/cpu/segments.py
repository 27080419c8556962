"""Passes over the nodes cell by cell, compiled for the CPU.

Tables have a row before the first cell's, for the code −1: looking there is faster than asking.
"""

from __future__ import annotations

import numpy as np
from numba import prange

from fairmp.kernels.cpu.threads import Array, Chunked, compiled

LANES = 4  # sums that nodes take turns in, so that an addition need not wait for the one before


@compiled
def _shifted_chunk(z: Array, codes: Array, shift: Array, start: int, stop: int, out: Array) -> None:
    for i in range(np.uint64(start), np.uint64(stop)):
        g = np.uint64(codes[i] + 1)
        if z.shape[1] == 2:
            out[i, 0] = z[i, 0] - shift[g, 0]
            out[i, 1] = z[i, 1] - shift[g, 1]
        else:
            for c in range(np.uint64(z.shape[1])):
                out[i, c] = z[i, c] - shift[g, c]


@Chunked
def shift(z: Array, codes: Array, shift: Array, size: int, out: Array) -> None:
    """Fill ``out`` with the shifted logits."""
    for k in prange((z.shape[0] + size - 1) // size):
        start = np.int64(k) * size
        _shifted_chunk(z, codes, shift, start, min(start + size, z.shape[0]), out)


@compiled
def _sums_chunk(g: Array, codes: Array, start: int, stop: int, result: Array) -> None:
    cells, classes = result.shape
    sums = np.zeros((LANES, cells + 1, classes))
    for i in range(np.uint64(start), np.uint64(stop)):
        cell = np.uint64(codes[i] + 1)
        lane = i % np.uint64(LANES)
        if classes == 2:
            sums[lane, cell, 0] += g[i, 0]
            sums[lane, cell, 1] += g[i, 1]
        else:
            for c in range(np.uint64(classes)):
                sums[lane, cell, c] += g[i, c]
    for k in range(cells):
        for c in range(classes):
            result[k, c] = 0.0
            for j in range(LANES):
                result[k, c] += sums[j, k + 1, c]


@Chunked
def segment_sum(g: Array, codes: Array, size: int, parts: Array) -> None:
    """Fill ``parts``, whose sum over chunks the sums by cell are."""
    for k in prange(parts.shape[0]):
        start = np.int64(k) * size
        _sums_chunk(g, codes, start, min(start + size, g.shape[0]), parts[k])


@compiled
def _extremes_chunk(z: Array, codes: Array, start: int, stop: int, result: Array) -> None:
    widest = largest = 0.0
    numbers = True
    for i in range(np.uint64(start), np.uint64(stop)):
        if codes[i] < 0:
            continue
        low = high = np.float64(z[i, 0])
        for c in range(np.uint64(z.shape[1])):
            value = np.float64(z[i, c])
            low, high = min(low, value), max(high, value)
            numbers &= value == value
        widest = max(widest, high - low)
        largest = max(largest, -low, high)
    result[0] = widest if numbers else np.nan
    result[1] = largest if numbers else np.nan


@Chunked
def extremes(z: Array, codes: Array, size: int, parts: Array) -> None:
    """Fill ``parts``, whose maximum over chunks the extremes are."""
    for k in prange(parts.shape[0]):
        start = np.int64(k) * size
        _extremes_chunk(z, codes, start, min(start + size, z.shape[0]), parts[k])

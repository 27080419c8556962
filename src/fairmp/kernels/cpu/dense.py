"""The gradient of a layer from many units to few, compiled for the CPU."""

from __future__ import annotations

import numpy as np
from numba import prange

from fairmp.kernels.cpu.threads import Array, Chunked, compiled

SIZE = 1024  # rows whose sums are kept in the layer's own precision


@compiled
def _rows(
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
    """Fill ``out`` with the gradient of what ``h`` was before its positive part was taken.

    ``sums`` (chunks×units) add up to its sum over rows, ``pairs`` (chunks×classes×units) to gᵀh.
    """
    for k in prange(sums.shape[0]):
        start, stop = k * SIZE, min((k + 1) * SIZE, h.shape[0])
        _rows(g, h, weight, np.int64(start), np.int64(stop), out, sums[k], pairs[k])

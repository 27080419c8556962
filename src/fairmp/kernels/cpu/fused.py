r"""All K steps of the projection for two classes and one gap, compiled for the CPU.

What a node's two logits mean for the gap is their difference, the *margin*. The nodes a gap is
measured on are laid out cell by cell, and their margins with them: a pass of Newton's method then
runs over plain numbers, at one shift a cell. The curvature :math:`q(1-q)` it leaves behind is all
that the gradient needs of a step. Shifting, scaling and adding up are done on the way of passes
that are there anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numba import prange
from torch import Tensor

from fairmp.kernels.cpu.edges import LENGTH, _chunk, _join, _part_two, _rows_two
from fairmp.kernels.cpu.softmax import BLOCK, LANES, exp_minus
from fairmp.kernels.cpu.threads import Array, Chunked, compiled

Matrix = tuple[Array, Array, Any]  # row pointers, columns, and values or None for ones

SIZE = 4096  # nodes of a chunk
ONE, TWO = np.uint64(1), np.uint64(2)


@compiled
def _curve(
    margin: Array, shift: float, start: int, stop: int, q: Array, slope: Array
) -> tuple[float, float]:
    """Sum σ(margin − shift) and its derivative over some nodes of one cell."""
    q_sum = slope_sum = 0.0
    for begin in range(start, stop, BLOCK):
        count = np.uint64(min(BLOCK, stop - begin))
        whole = (count + np.uint64(LANES - 1)) // np.uint64(LANES) * np.uint64(LANES)
        at = np.uint64(begin)
        for i in range(count):
            t = margin[at + i] - shift
            e = exp_minus(abs(t))
            large = 1 / (1 + e)
            q[0, i] = large if t > 0 else e * large
            q[1, i] = e * large * large
        for i in range(count, whole):
            q[0, i] = q[1, i] = 0.0
        for i in range(count):
            slope[at + i] = q[1, i]
        a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = 0.0
        for i in range(np.uint64(0), whole, np.uint64(LANES)):
            a0 += q[0, i]
            a1 += q[0, i + ONE]
            a2 += q[0, i + TWO]
            a3 += q[0, i + np.uint64(3)]
            b0 += q[1, i]
            b1 += q[1, i + ONE]
            b2 += q[1, i + TWO]
            b3 += q[1, i + np.uint64(3)]
        q_sum += (a0 + a1) + (a2 + a3)
        slope_sum += (b0 + b1) + (b2 + b3)
    return q_sum, slope_sum


@Chunked
def _scale(right: Array, f: Array, g: Array) -> None:
    """Scale the rows of f, two classes end to end."""
    for k in prange((right.size + SIZE - 1) // SIZE):
        for j in range(np.uint64(k * SIZE), np.uint64(min((k + 1) * SIZE, right.size))):
            g[TWO * j] = right[j] * f[TWO * j]
            g[TWO * j + ONE] = right[j] * f[TWO * j + ONE]


@Chunked
def _gather_rows(
    row: Array, col: Array, weight: Any, left: Array, g: Array, x: Array, gamma: float, out: Array
) -> None:
    """Propagate, two classes: an entry point of this module to what ``edges`` compiles."""
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
def _moments(
    z: Array,
    order: Array,
    inverse: float,
    margin: Array,
    fresh: bool,
    starts: Array,
    weight: Array,
    root: float,
    slope: Array,
    parts: Array,
) -> None:
    """Sum, chunk by chunk, the gap and how fast the root closes it, at a root.

    Where the logits are fresh their margins are taken on the way.
    """
    for k in prange(parts.shape[0]):
        start, stop = k * SIZE, min((k + 1) * SIZE, margin.size)
        if fresh:
            for p in range(np.uint64(start), np.uint64(stop)):
                at = TWO * np.uint64(order[p])
                margin[p] = (np.float64(z[at + ONE]) - np.float64(z[at])) * inverse
        q = np.empty((2, BLOCK + LANES))
        gap = curvature = 0.0
        for g in range(weight.size):
            low, high = max(start, starts[g]), min(stop, starts[g + 1])
            if low < high:
                sums = _curve(margin, weight[g] * root, low, high, q, slope)
                gap += weight[g] * sums[0]
                curvature += weight[g] * weight[g] * sums[1]
        parts[k, 0] = gap
        parts[k, 1] = curvature


@Chunked
def _shifted(
    z: Array, codes: Array, shift: Array, right: Array, out: Array, scaled: Array, largest: Array
) -> None:
    """Shift logits by cell and scale them, and see how large they were."""
    for k in prange(largest.size):
        top = z.dtype.type(0)
        for i in range(np.uint64(k * SIZE), np.uint64(min((k + 1) * SIZE, codes.size))):
            at = TWO * i
            half = shift[np.uint64(codes[i] + 1)]
            z0, z1 = z[at], z[at + ONE]
            top = max(top, abs(z0), abs(z1))
            out[at] = z0 + half
            out[at + ONE] = z1 - half
            scaled[at] = right[i] * out[at]
            scaled[at + ONE] = right[i] * out[at + ONE]
        largest[k] = top


@Chunked
def _difference(g: Array, codes: Array, weight: Array, parts: Array) -> None:
    """Sum, chunk by chunk, what a dual's change would change."""
    for k in prange(parts.size):
        a = b = 0.0
        for i in range(np.uint64(k * SIZE), np.uint64(min((k + 1) * SIZE, codes.size))):
            w = weight[np.uint64(codes[i] + 1)]
            a += w * g[TWO * i]
            b += w * g[TWO * i + ONE]
        parts[k] = b - a


@Chunked
def _pulled(
    g: Array,
    codes: Array,
    place: Array,
    slope: Array,
    pull: Array,
    gamma: float,
    right: Array,
    total: Array,
    scaled: Array,
) -> None:
    """Add a cell's pull to its nodes, γ of the result to the total, and scale the rest."""
    share, rest = g.dtype.type(gamma), g.dtype.type(1 - gamma)
    for k in prange((codes.size + SIZE - 1) // SIZE):
        for i in range(np.uint64(k * SIZE), np.uint64(min((k + 1) * SIZE, codes.size))):
            at = TWO * i
            extra = g.dtype.type(pull[np.uint64(codes[i] + 1)] * slope[np.uint64(place[i])])
            g0, g1 = g[at] - extra, g[at + ONE] + extra
            total[at] += share * g0
            total[at + ONE] += share * g1
            scaled[at] = rest * right[i] * g0
            scaled[at + ONE] = rest * right[i] * g1


class FusedProjection:
    """K steps forth, and their gradient back.

    Args:
        forward: A+I in compressed rows.
        backward: its transpose.
        scale: D̂^-½ (n).
        codes: cell of each node a correction reaches, −1 for none (n, int32).
        measured: cell of each node the gap is measured on, −1 for none (n, int32).
        order: those nodes, cell by cell.
        starts: where in it each cell starts, and the last ends (cells+1).
        place: where each node is in that order; its length for a node that is not in it (n, int32).
        row: the one row of M (cells).
        gamma: share of the input in each step.
        temperature: τ.
    """

    def __init__(
        self,
        forward: Matrix,
        backward: Matrix,
        scale: Array,
        codes: Array,
        measured: Array,
        order: Array,
        starts: Array,
        place: Array,
        row: Array,
        gamma: float,
        temperature: float,
    ) -> None:
        self.matrix, self.transpose, self.right = forward, backward, scale
        self.codes, self.measured = codes, measured
        self.order, self.starts, self.place = order, starts, place
        self.scale = np.array([max(float(np.abs(row).max()), np.finfo(np.float64).tiny)])
        self.weight = row / self.scale[0]
        self.gamma, self.temperature = gamma, temperature
        nodes, self.work = codes.size, 2 * codes.size
        self.margin = np.empty(order.size)
        self.parts = np.empty((-(-order.size // SIZE), 2))
        self.chunks = -(-nodes // SIZE)
        self.z, self.fresh = self.margin, True  # the logits of the present step, yet to be seen
        self.slopes: list[Array] = []
        self.duals: list[Any] = []

    def forward(self, x: Array, steps: int, solve: Any, bound: float) -> Array | None:
        """Run the steps from logits (n×2), and return the last one's.

        ``None`` once a logit is larger than the bound.
        """
        z, f = np.empty_like(x), np.empty_like(x)
        self.z = flat = z.reshape(-1)
        scaled, largest = np.empty_like(flat), np.empty(self.chunks)
        _scale(self.work, self.right, x.reshape(-1), scaled)
        u = np.zeros((1, 2))
        for _ in range(steps):
            self._gather(self.matrix, scaled, x, self.gamma, z)
            self.fresh = True
            # One more than nodes, for those without a place: they have no slope.
            self.slopes.append(np.empty(self.order.size + 1, x.dtype))
            self.slopes[-1][-1] = 0
            self.duals.append(solve(self, u))
            u = self.duals[-1].u
            half = self.temperature * self.weight * self.scale[0] * ((u[0, 1] - u[0, 0]) / 2)
            shift = np.concatenate([[0.0], half]).astype(x.dtype)
            _shifted(self.work, flat, self.codes, shift, self.right, f.reshape(-1), scaled, largest)
            if not largest.max(initial=0.0) <= bound:
                return None
        self.z = self.margin = np.empty(0)  # the way back needs neither
        return f

    def gap(self, root: float) -> tuple[float, float]:
        """Pass over the nodes at the dual (−root/2, root/2)."""
        _moments(
            2 * self.margin.size,
            self.z,
            self.order,
            1 / self.temperature,
            self.margin,
            self.fresh,
            self.starts,
            self.weight,
            root,
            self.slopes[-1],
            self.parts,
        )
        self.fresh = False
        return float(self.parts[:, 0].sum()), float(self.parts[:, 1].sum())

    def width(self) -> float:
        """How far apart the logits of a node in the population lie at most."""
        return float(np.abs(self.margin).max(initial=0.0))

    def backward(self, grad: Array, grad_duals: Sequence[Array] | None, respond: Any) -> Array:
        """Walk back, from the gradient of the logits (n×2) and those of the duals (1×2 each)."""
        # Nothing here is kept: several threads may ask for gradients of the same walk.
        total, scaled = np.zeros(grad.size, grad.dtype), np.empty(grad.size, grad.dtype)
        g, following, parts = grad, np.empty_like(grad), np.empty(self.chunks)
        row = np.concatenate([[0.0], self.weight * self.scale[0]])
        for k in reversed(range(len(self.duals))):
            flat = g.reshape(-1)
            _difference(self.work, flat, self.codes, row, parts)
            half = -self.temperature * parts.sum() / 2
            incoming = np.array([[-half, half]])
            if grad_duals is not None:
                incoming = incoming + grad_duals[k]
            w = respond(self.duals[k], self.scale, incoming)
            pull = np.concatenate([[0.0], self.weight * ((w[0, 1] - w[0, 0]) / self.temperature)])
            _pulled(
                self.work,
                flat,
                self.measured,
                self.place,
                self.slopes[k],
                pull,
                self.gamma,
                self.right,
                total,
                scaled,
            )
            g = following  # what was in it has been read
            self._gather(self.transpose, scaled, g, 0.0, g)
        total += g.reshape(-1)
        return total.reshape(grad.shape)

    def _gather(self, matrix: Matrix, scaled: Array, x: Array, gamma: float, out: Array) -> None:
        row, col, weight = matrix
        work = 2 * (self.codes.size + col.size)
        _gather_rows(work, row, col, weight, self.right, scaled, x, gamma, out)


def fused_projection(
    forward: tuple[Tensor, Tensor, Tensor | None],
    backward: tuple[Tensor, Tensor, Tensor | None],
    scale: Tensor,
    codes: Tensor,
    measured: Tensor,
    order: tuple[Tensor, Tensor, Tensor],
    row: Tensor,
    gamma: float,
    temperature: float,
    dtype: torch.dtype,
) -> FusedProjection:
    """All steps of the projection of two classes and one gap; see :class:`FusedProjection`."""
    there = _matrix(*forward, dtype)
    back = there if backward is forward else _matrix(*backward, dtype)
    nodes, starts, place = map(_array, order)
    groups = _codes(codes), _codes(measured), nodes, starts, place, row.numpy()
    return FusedProjection(there, back, _array(scale, dtype), *groups, gamma, temperature)


def _matrix(row: Tensor, col: Tensor, weight: Tensor | None, dtype: torch.dtype) -> Matrix:
    numbers = _array(col)
    # Columns are never negative, and what has no sign need not be extended by it.
    numbers = numbers.view(np.uint32 if numbers.itemsize == 4 else np.uint64)
    return _array(row), numbers, None if weight is None else _array(weight, dtype)


def _array(tensor: Tensor, dtype: torch.dtype | None = None) -> Array:
    return tensor.detach().to(dtype or tensor.dtype).contiguous().numpy()


def _codes(codes: Tensor) -> Array:
    return _array(codes, torch.int32)

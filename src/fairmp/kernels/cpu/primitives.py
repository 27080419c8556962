r"""The primitives for the CPU, compiled by numba, in one pass over memory each; a fused loop.

See :class:`fairmp.kernels.protocol.Kernels` for what each one computes. Results have the same bits
on any number of threads: chunks have a fixed size, and their results are added in order.

:class:`FusedProjection` does all K steps of the projection for two classes and one gap. A node's
two logits matter to the gap only by their difference, the *margin*. The margins of the population
are stored group by group, so that a pass of Newton's method runs over plain arrays with one shift
per group. The curvature :math:`q(1-q)` that the last pass leaves is all that the backward pass
needs of a step. Shifting, scaling and summing are done within passes that are needed anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numba import prange
from torch import Tensor

from fairmp.kernels.cpu import edges, nodes
from fairmp.kernels.cpu.edges import CHUNK_LENGTH, gather_chunk, join_parts
from fairmp.kernels.cpu.nodes import BLOCK_NODES, FOUR, LANES, exp_minus, lane_sum
from fairmp.kernels.cpu.threads import (
    Array,
    Chunked,
    array,
    chunk_size,
    compiled,
    matrix_arrays,
)
from fairmp.kernels.cpu.threads import Matrix as Arrays
from fairmp.kernels.reference import Matrix

CHUNK_NODES = 4096
ONE, TWO = np.uint64(1), np.uint64(2)


@Chunked
def scale_rows(right: Array, f: Array, g: Array) -> None:
    """Fill ``g`` with diag(right) F, padded with zeros."""
    for k in prange((f.shape[0] + CHUNK_LENGTH - 1) // CHUNK_LENGTH):
        start, stop = k * CHUNK_LENGTH, min((k + 1) * CHUNK_LENGTH, f.shape[0])
        for j in range(np.uint64(start), np.uint64(stop)):
            if g.shape[1] == 2:
                g[j, 0] = right[j] * f[j, 0]
                g[j, 1] = right[j] * f[j, 1]
                continue
            for c in range(np.uint64(f.shape[1])):
                g[j, c] = right[j] * f[j, c]
            for c in range(np.uint64(f.shape[1]), np.uint64(g.shape[1])):
                g[j, c] = 0


@Chunked
def gather_rows(matrix: Any, left: Array, g: Array, x: Array, gamma: float, out: Array) -> None:
    """Fill ``out`` with γX + (1−γ)·diag(left) A G."""
    chunks = (out.shape[0] + matrix[1].size + CHUNK_LENGTH - 1) // CHUNK_LENGTH
    first = np.empty(chunks + 1, np.int64)
    first[chunks] = out.shape[0]
    width = 2 if g.ndim == 1 else g.shape[1] * g.shape[2]
    heads, tails = np.empty((chunks, width)), np.empty((chunks, width))
    result = left, x, gamma, out
    for k in prange(chunks):
        gather_chunk(np.int64(k), matrix, g, result, first, heads, tails)
    join_parts(matrix[0], result, first, heads, tails)


@compiled
def _logistic_sums(
    margin: Array, shift: float, start: int, stop: int, q: Array, slope: Array
) -> tuple[float, float]:
    """Sum σ(margin − shift) and its derivative over some nodes of one group."""
    q_sum = slope_sum = 0.0
    for begin in range(start, stop, BLOCK_NODES):
        count = np.uint64(min(BLOCK_NODES, stop - begin))
        at = np.uint64(begin)
        for i in range(count):
            t = margin[at + i] - shift
            e = exp_minus(abs(t))
            large = 1 / (1 + e)
            q[0, i] = large if t > 0 else e * large
            q[1, i] = e * large * large
            slope[at + i] = q[1, i]
        for i in range(count, count + FOUR):
            q[0, i] = q[1, i] = 0.0
        q_sum += lane_sum(q[0], count)
        slope_sum += lane_sum(q[1], count)
    return q_sum, slope_sum


@Chunked
def _moments(
    logits: Any, margin: Array, groups: Any, root: float, slope: Array, parts: Array
) -> None:
    """Sum the gap and its decrease with the root by chunk; take margins of fresh logits."""
    z, order, inverse, fresh = logits
    starts, weight = groups
    for k in prange(parts.shape[0]):
        start, stop = k * CHUNK_NODES, min((k + 1) * CHUNK_NODES, margin.size)
        if fresh:
            for p in range(np.uint64(start), np.uint64(stop)):
                at = TWO * np.uint64(order[p])
                margin[p] = (np.float64(z[at + ONE]) - np.float64(z[at])) * inverse
        q = np.empty((2, BLOCK_NODES + LANES))
        gap = curvature = 0.0
        for g in range(weight.size):
            low, high = max(start, starts[g]), min(stop, starts[g + 1])
            if low < high:
                sums = _logistic_sums(margin, weight[g] * root, low, high, q, slope)
                gap += weight[g] * sums[0]
                curvature += weight[g] * weight[g] * sums[1]
        parts[k, 0] = gap
        parts[k, 1] = curvature


@Chunked
def _shift(
    z: Array, codes: Array, shift: Array, right: Array, out: Array, scaled: Array, largest: Array
) -> None:
    """Shift logits by group, scale them, and find the largest of each chunk."""
    for k in prange(largest.size):
        top = z.dtype.type(0)
        start, stop = k * CHUNK_NODES, min((k + 1) * CHUNK_NODES, codes.size)
        for i in range(np.uint64(start), np.uint64(stop)):
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
def _backward(
    g: Array, groups: Any, gamma: float, right: Array, skip: Any, total: Array, scaled: Array
) -> None:
    """Add the dual's share to the gradient, γ of the result to the total, and scale the rest.

    ``skip`` are X and what was propagated, and parts that add up to ⟨result, X − propagated⟩;
    empty where γ needs no gradient.
    """
    codes, place, slope, pull = groups
    x, z, parts = skip
    share, rest = g.dtype.type(gamma), g.dtype.type(1 - gamma)
    for k in prange((codes.size + CHUNK_NODES - 1) // CHUNK_NODES):
        start, stop = k * CHUNK_NODES, min((k + 1) * CHUNK_NODES, codes.size)
        inner = 0.0
        for i in range(np.uint64(start), np.uint64(stop)):
            at = TWO * i
            extra = g.dtype.type(pull[np.uint64(codes[i] + 1)] * slope[np.uint64(place[i])])
            g0, g1 = g[at] - extra, g[at + ONE] + extra
            total[at] += share * g0
            total[at + ONE] += share * g1
            scaled[at] = rest * right[i] * g0
            scaled[at + ONE] = rest * right[i] * g1
            if parts.size:
                inner += g0 * (x[at] - z[at]) + g1 * (x[at + ONE] - z[at + ONE])
        if parts.size:
            parts[k] = inner


class FusedProjection:
    """K steps forward, and their gradient, on an ``Adjacency`` and a ``GroupOperator``.

    ``gamma`` are the skip weights; with ``learned`` the gradient of each is found as well.
    """

    def __init__(
        self,
        graph: Any,
        groups: Any,
        gamma: Sequence[float],
        temperature: float,
        dtype: torch.dtype,
        learned: bool,
    ) -> None:
        self.matrix = self.transposed = matrix_arrays(graph.matrix(transposed=False), dtype)
        if not graph.symmetric:
            self.transposed = matrix_arrays(graph.matrix(transposed=True), dtype)
        self.degree_scale = array(graph.scale, dtype)
        self.codes = array(groups.codes, torch.int32)
        self.measured = array(groups.population_codes, torch.int32)
        self.order, self.starts, self.place = map(array, groups.population_order)
        row = array(groups.rows[0])
        self.scale = np.array([max(float(np.abs(row).max()), np.finfo(np.float64).tiny)])
        self.weight = row / self.scale[0]
        self.gamma, self.temperature, self.learned = gamma, temperature, learned
        self.work, self.chunks = 2 * self.codes.size, -(-self.codes.size // CHUNK_NODES)
        self.margin = np.empty(self.order.size)
        self.parts = np.empty((-(-self.order.size // CHUNK_NODES), 2))
        self.z, self.fresh = self.margin, True  # logits of the current step; margins not yet taken
        self.propagated: list[Array] = []
        self.slopes: list[Array] = []
        self.duals: list[Any] = []

    def forward(self, x: Array, solve: Callable[[Any, Array], Any], bound: float) -> Array | None:
        """Return the logits (n×2) after all steps; ``None`` if one is larger than the bound.

        ``solve`` finds a step's dual, given this object and the dual of the step before (1×2).
        """
        z, f = np.empty_like(x), np.empty_like(x)
        scaled, largest = np.empty(x.size, x.dtype), np.empty(self.chunks)
        scale_rows(self.work, self.degree_scale, x, scaled.reshape(-1, 2))
        u = np.zeros((1, 2))
        for gamma in self.gamma:
            if self.learned:
                z = np.empty_like(x)
                self.propagated.append(z.reshape(-1))
            self.z, self.fresh = z.reshape(-1), True
            self._gather(self.matrix, scaled, x, gamma, z)
            # One more than nodes: the slope of nodes outside the population, which is 0.
            self.slopes.append(np.empty(self.order.size + 1, x.dtype))
            self.slopes[-1][-1] = 0
            self.duals.append(solve(self, u))
            u = self.duals[-1].u
            half = self.temperature * self.weight * self.scale[0] * ((u[0, 1] - u[0, 0]) / 2)
            shift = np.concatenate([[0.0], half]).astype(x.dtype)
            right, out = self.degree_scale, f.reshape(-1)
            _shift(self.work, self.z, self.codes, shift, right, out, scaled, largest)
            if not largest.max(initial=0.0) <= bound:
                return None
        self.z = self.margin = np.empty(0)  # the backward pass needs neither
        return f

    def gap(self, root: float) -> tuple[float, float]:
        """Gap at the dual (−root/2, root/2), and its decrease with the root."""
        logits = self.z, self.order, 1 / self.temperature, self.fresh
        groups, slope = (self.starts, self.weight), self.slopes[-1]
        _moments(2 * self.margin.size, logits, self.margin, groups, root, slope, self.parts)
        self.fresh = False
        return float(self.parts[:, 0].sum()), float(self.parts[:, 1].sum())

    def width(self) -> float:
        """Largest absolute margin of the population."""
        return float(np.abs(self.margin).max(initial=0.0))

    def backward(
        self,
        x: Array,
        grad: Array,
        grad_duals: Sequence[Array] | None,
        respond: Callable[[Any, Array, Array], Array],
    ) -> tuple[Array, Array]:
        """Gradients of x and γ, given those of the logits (n×2) and of the duals (1×2 each)."""
        # Nothing is written to this object: several threads may ask for gradients.
        total, scaled = np.zeros(grad.size, grad.dtype), np.empty(grad.size, grad.dtype)
        g, following, parts = grad, np.empty_like(grad), np.empty(self.chunks)
        row = np.concatenate([[0.0], self.weight * self.scale[0]])
        grad_gamma, none = np.zeros(len(self.gamma)), np.empty(0, grad.dtype)
        skip = none, none, np.empty(0)
        for k in reversed(range(len(self.duals))):
            flat, gamma = g.reshape(-1), self.gamma[k]
            sums = np.zeros((self.chunks, LANES, row.size, 2))
            nodes.segment_sum(self.work, g, self.codes, CHUNK_NODES, sums)
            zero, one = row @ sums.sum((0, 1))
            half = -self.temperature * (one - zero) / 2
            incoming = np.array([[-half, half]])
            if grad_duals is not None:
                incoming = incoming + grad_duals[k]
            w = respond(self.duals[k], self.scale, incoming)
            pull = np.concatenate([[0.0], self.weight * ((w[0, 1] - w[0, 0]) / self.temperature)])
            groups = self.measured, self.place, self.slopes[k], pull
            if self.learned:
                skip = x.reshape(-1), self.propagated[k], parts
            _backward(self.work, flat, groups, gamma, self.degree_scale, skip, total, scaled)
            # What was propagated is γX + (1−γ)ÃF, and X − ÃF its derivative.
            grad_gamma[k] = skip[2].sum() / (1 - gamma)
            g = following  # its content has been read
            self._gather(self.transposed, scaled, g, 0.0, g)
        total += g.reshape(-1)
        return total.reshape(grad.shape), grad_gamma

    def _gather(self, matrix: Arrays, scaled: Array, x: Array, gamma: float, out: Array) -> None:
        work = 2 * (self.codes.size + matrix[1].size)
        gather_rows(work, matrix, self.degree_scale, scaled, x, gamma, out)


def aggregate(matrix: Matrix, f: Tensor, x: Tensor | None, gamma: float) -> Tensor:
    row, col, _, left, right = matrix
    rows, classes = row.numel() - 1, f.size(1)
    out = f.new_empty(rows, classes)
    if not rows or not classes:
        return out
    strips, lanes = (1, 2) if classes == 2 else _strip_shape(classes)
    scale = array(right, f.dtype)
    scaled: Array = np.empty((f.size(0), strips * lanes), scale.dtype)
    scale_rows(f.numel(), scale, array(f), scaled)
    scaled = scaled.reshape(-1) if classes == 2 else scaled.reshape(-1, strips, lanes)
    skip = (array(out), 0.0) if x is None else (array(x, f.dtype), float(gamma))
    arrays = matrix_arrays(matrix, f.dtype), array(left, f.dtype)
    gather_rows((rows + col.numel()) * classes, *arrays, scaled, *skip, array(out))
    return out


def moments(z: Tensor, codes: Tensor, shift: Tensor, temperature: float) -> Tensor:
    size, classes = chunk_size(z.size(0), shift.numel() * z.size(1)), z.size(1)
    sums = np.zeros((-(-z.size(0) // size), _lanes(z), len(shift), classes, classes))
    logits = array(z), _codes(codes), _table(shift), float(temperature)
    out = np.zeros(1 + shift.numel() * (1 + classes))
    nodes.moments(z.numel(), logits, size, sums, out)
    return torch.from_numpy(out)


def shift(z: Tensor, codes: Tensor, shift: Tensor) -> Tensor:
    out = z.new_empty(z.shape)
    size = chunk_size(z.size(0))
    nodes.shift(z.numel(), array(z), _codes(codes), _table(shift), size, array(out))
    return out


def segment_sum(g: Tensor, codes: Tensor, groups: int) -> Tensor:
    size = chunk_size(g.size(0), groups * g.size(1))
    parts = np.zeros((-(-g.size(0) // size), nodes.LANES, groups + 1, g.size(1)))
    nodes.segment_sum(g.numel(), array(g), _codes(codes), size, parts)
    return torch.from_numpy(parts.sum((0, 1))[1:])


def softmax_vjp(
    g: Tensor, z: Tensor, codes: Tensor, shift: Tensor, temperature: float, w: Tensor
) -> Tensor:
    out = g.new_empty(g.shape)
    logits = array(z), _codes(codes), _table(shift), float(temperature)
    nodes.softmax_vjp(z.numel(), array(g), logits, _table(w), chunk_size(z.size(0)), array(out))
    return out


def coupling_backward(g: Tensor, z: Tensor, codes: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    out, size = torch.empty_like(g), chunk_size(z.size(0), w.numel())
    table = _table(w)
    parts = np.zeros((-(-z.size(0) // size), _lanes(z), *table.shape))
    logits = array(z), _codes(codes), np.zeros_like(table), 1.0
    nodes.coupling_backward(z.numel(), array(g), logits, table, size, array(out), parts)
    sums = parts.sum((0, 1))[1:]
    if w.size(1) == 2:
        sums[:, 0] = -sums[:, 1]
    return out, torch.from_numpy(sums)


def linear_relu_backward(g: Tensor, h: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    out = torch.empty_like(h)
    chunks, values = -(-h.size(0) // nodes.BACKWARD_ROWS), array(g)
    sums = np.empty((chunks, h.size(1)), values.dtype)
    pairs = np.empty((chunks, *weight.shape), values.dtype)
    layer = values, array(h), array(weight)
    nodes.linear_relu_backward(h.numel(), *layer, array(out), sums, pairs)
    return (
        out,
        torch.from_numpy(sums.sum(0, dtype=np.float64)).to(h.dtype),
        torch.from_numpy(pairs.sum(0, dtype=np.float64)).to(h.dtype),
    )


def sparse_linear(
    matrix: tuple[Tensor, Tensor, Tensor], weight: Tensor, bias: Tensor, *, relu: bool
) -> Tensor:
    """Multiply S W + b (r×H), for S in CSR format (r×d) and W (d×H); with a ReLU if asked."""
    out = weight.new_empty(matrix[0].numel() - 1, weight.size(1))
    inputs = matrix_arrays(matrix, weight.dtype), array(weight), array(bias)
    floor, work = 0.0 if relu else -np.inf, matrix[1].numel() * weight.size(1)
    edges.sparse_linear(work, *inputs, floor, array(out))
    return out


fused_projection = FusedProjection  # all steps of the projection, for two classes and one gap


def _lanes(z: Tensor) -> int:
    return nodes.LANES if z.size(1) == 2 else 1


def _codes(codes: Tensor) -> Array:
    return array(codes, torch.int32)


def _table(table: Tensor) -> Array:
    """The table with a row of zeros before it, for the code −1."""
    padded = np.zeros((table.size(0) + 1, table.size(1)))
    padded[1:] = table.detach().numpy()
    return padded


def _strip_shape(classes: int) -> tuple[int, int]:
    """Number of strips, and of classes in one."""
    lanes = 4 if classes <= 4 else 8
    return -(-classes // lanes), lanes

r"""All K steps of propagation for two classes, plain or with the projection of one gap.

A node is one complex number, its two logits (a + ib). Softmax sees only their difference: where it
alone is wanted, (a−b, 0) do as well, and a node is one real number. The code is the same for both.

Nodes are renumbered by degree within windows, so that the processor can predict where rows end.
The population is stored group by group: a pass of Newton's method runs over plain arrays with one
shift per group. The curvature :math:`q(1-q)` that the last pass leaves is all that the backward
pass needs of a step. Shifting, scaling and summing are done within passes that are needed anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numba import prange
from torch.utils.weak import WeakIdKeyDictionary

from fairmp.kernels.cpu.edges import CHUNK_LENGTH, gather_chunk, join_parts
from fairmp.kernels.cpu.nodes import BLOCK_NODES, FOUR, LANES, exp_minus, lane_sum
from fairmp.kernels.cpu.threads import (
    Array,
    Chunked,
    Index,
    Matrix,
    array,
    compiled,
    matrix_arrays,
)

CHUNK_NODES = 4096
WINDOW_NODES = 4096  # renumbered by degree; what is near stays near
MAX_RENUMBERED_EDGES = 2**25  # above, memory is what a copy of the edges would cost
ONE, TWO = np.uint64(1), np.uint64(2)

Gradient = Callable[[Any, Array, Array], Array]


class Layout(NamedTuple):
    """A graph in the order its nodes are processed in."""

    order: Array  # the node at each place
    place: Array  # of each node
    forward: Matrix
    backward: Matrix
    scale: Array


class Members(NamedTuple):
    """Groups in the order of a layout."""

    layout: Layout
    population: Array  # its places, by group
    starts: Array  # of the groups therein
    scale: Array  # largest weight of a group in the gap (1)
    weight: Array  # of each group, relative to it
    column: Array  # weight of each node's group, 0 if that is unknown


_LAYOUTS: WeakIdKeyDictionary = WeakIdKeyDictionary()  # of an Adjacency, by dtype
_MEMBERS: WeakIdKeyDictionary = WeakIdKeyDictionary()  # of a GroupOperator, in its last layout


def layout(graph: Any, dtype: torch.dtype) -> Layout:
    """Renumber an ``Adjacency``; done once."""
    known = _LAYOUTS.setdefault(graph, {})
    if dtype not in known:
        row, col, _ = matrix_arrays(graph.matrix(transposed=False), dtype)
        n, scale = len(row) - 1, array(graph.scale, dtype)
        order = np.arange(n, dtype=np.uint32 if n < 2**32 else np.uint64)
        if col.size <= MAX_RENUMBERED_EDGES:
            degree = np.diff(row).astype(np.int64)
            window = order.astype(np.int64) // WINDOW_NODES
            keys = window * (degree.max(initial=0) + 1) + degree
            order = np.argsort(keys, kind="stable").astype(order.dtype)
        place = np.empty_like(order)
        place[order] = np.arange(n, dtype=order.dtype)
        matrices = [_renumbered(graph, dtype, order, place, transposed=False)]
        if not graph.symmetric:
            matrices.append(_renumbered(graph, dtype, order, place, transposed=True))
        known[dtype] = Layout(order, place, matrices[0], matrices[-1], scale[order])
    found: Layout = known[dtype]
    return found


def _renumbered(
    graph: Any, dtype: torch.dtype, order: Array, place: Array, *, transposed: bool
) -> Matrix:
    row, col, weight = matrix_arrays(graph.matrix(transposed=transposed), dtype)
    if col.size > MAX_RENUMBERED_EDGES:
        return row, col, weight
    lengths = np.diff(row)[order]
    pointers = np.concatenate([[0], lengths.cumsum()]).astype(row.dtype)
    edges = np.repeat(row[:-1][order] - pointers[:-1], lengths) + np.arange(col.size)
    columns = place.astype(col.dtype)[col[edges]]
    return pointers, columns, None if weight is None else weight[edges]


def members(groups: Any, found: Layout) -> Members:
    """Groups of a ``GroupOperator`` in the order of a layout; done once."""
    known = _MEMBERS.get(groups)
    if known is None or known.layout is not found:
        nodes, starts = map(array, groups.population_order)
        row, codes = array(groups.rows[0]), array(groups.codes, torch.int32)[found.order]
        scale = np.array([max(float(np.abs(row).max()), np.finfo(np.float64).tiny)])
        weight = row / scale[0]
        column = np.append(weight, 0.0)[codes]  # an unknown group is −1, the last
        known = Members(found, found.place[nodes], starts, scale, weight, column)
        _MEMBERS[groups] = known
    return known


@Chunked
def gather_rows(matrix: Any, left: Array, g: Array, x: Array, gamma: float, out: Array) -> None:
    """Fill ``out`` with γX + (1−γ)·diag(left) A G."""
    chunks = (out.shape[0] + matrix[1].size + CHUNK_LENGTH - 1) // CHUNK_LENGTH
    first = np.empty(chunks + 1, np.int64)
    first[chunks] = out.shape[0]
    shape = chunks, (out.shape[1] if g.ndim == 1 else g.shape[1] * g.shape[2])
    heads, tails = np.zeros(shape), np.zeros(shape)
    result = left, x, gamma, out
    for k in prange(chunks):
        gather_chunk(np.int64(k), matrix, g, result, first, heads, tails)
    join_parts(matrix[0], result, first, heads, tails)


@Chunked
def _enter(logits: Array, order: Array, scale: Array, z: Array, scaled: Array) -> None:
    """Logits (n×2), or their differences if there is no room for both, plain and scaled."""
    width = np.uint64(z.size // order.size)
    for k in prange((order.size + CHUNK_NODES - 1) // CHUNK_NODES):
        start, stop = k * CHUNK_NODES, min((k + 1) * CHUNK_NODES, order.size)
        for p in range(np.uint64(start), np.uint64(stop)):
            i, at = np.uint64(order[p]), width * p
            z[at] = logits[i, 0]
            if width == TWO:
                z[at + ONE] = logits[i, 1]
                scaled[at + ONE] = scale[p] * z[at + ONE]
            else:
                z[at] -= logits[i, 1]
            scaled[at] = scale[p] * z[at]


@Chunked
def _leave(z: Array, order: Array, logits: Array) -> None:
    """Logits (n×2) of nodes, those of differences with mean 0."""
    width = np.uint64(z.size // order.size)
    for k in prange((order.size + CHUNK_NODES - 1) // CHUNK_NODES):
        start, stop = k * CHUNK_NODES, min((k + 1) * CHUNK_NODES, order.size)
        for p in range(np.uint64(start), np.uint64(stop)):
            i, at = np.uint64(order[p]), width * p
            if width == TWO:
                logits[i, 0] = z[at]
                logits[i, 1] = z[at + ONE]
            else:
                logits[i, 0] = z[at] / z.dtype.type(2)
                logits[i, 1] = -logits[i, 0]


@compiled
def _logistic_sums(
    margin: Array, weight: float, root: float, at: Index, count: Index, q: Array
) -> tuple[float, float]:
    """Sum σ(margin − weight·root) and its derivative over a block of nodes of one group."""
    for i in range(count):
        t = margin[at + i] - weight * root
        e = exp_minus(abs(t))
        large = 1 / (1 + e)
        q[0, i] = large if t > 0 else e * large
        q[1, i] = e * large * large
    for i in range(count, count + FOUR):
        q[0, i] = q[1, i] = 0.0
    return lane_sum(q[0], count), lane_sum(q[1], count)


@Chunked
def _moments(
    z: Array, groups: Any, inverse: float, fresh: bool, root: float, margin: Array, slope: Array
) -> tuple[float, float]:
    """The gap, and its decrease with the root, to which nodes add ``slope`` times their weight.

    Take margins of fresh logits.
    """
    population, starts, weight = groups
    parts = np.empty(((margin.size + CHUNK_NODES - 1) // CHUNK_NODES, 2))
    for k in prange(parts.shape[0]):
        start, stop = k * CHUNK_NODES, min((k + 1) * CHUNK_NODES, margin.size)
        if fresh:
            for p in range(np.uint64(start), np.uint64(stop)):
                node = z[np.uint64(population[p])]
                margin[p] = (np.float64(node.imag) - np.float64(node.real)) * inverse
        q = np.empty((2, BLOCK_NODES + LANES))
        gap = curvature = 0.0
        for g in range(weight.size):
            low, high = max(start, starts[g]), min(stop, starts[g + 1])
            for begin in range(low, high, BLOCK_NODES):
                at, count = np.uint64(begin), np.uint64(min(BLOCK_NODES, high - begin))
                sums = _logistic_sums(margin, weight[g], root, at, count, q)
                gap += weight[g] * sums[0]
                curvature += weight[g] * weight[g] * sums[1]
                for i in range(count):
                    slope[np.uint64(population[at + i])] = weight[g] * q[1, i]
        parts[k, 0] = gap
        parts[k, 1] = curvature
    gap = curvature = 0.0
    for k in range(parts.shape[0]):
        gap += parts[k, 0]
        curvature += parts[k, 1]
    return gap, curvature


@Chunked
def _shift(z: Array, column: Array, step: Array, bound: float, right: Array, scaled: Array) -> int:
    """Shift z by group and scale it; return how many logits were not within the bound before."""
    beyond = np.zeros((column.size + CHUNK_NODES - 1) // CHUNK_NODES, np.int64)
    for k in prange(beyond.size):
        start, stop = k * CHUNK_NODES, min((k + 1) * CHUNK_NODES, column.size)
        count = 0
        for i in range(np.uint64(start), np.uint64(stop)):
            size = max(abs(z[i].real), abs(z[i].imag))
            count += 0 if size <= bound else 1
            z[i] += z.dtype.type(step[0] * column[i])
            scaled[i] = right[i] * z[i]
        beyond[k] = count
    return beyond.sum()


@Chunked
def _backward(
    g: Array, groups: Any, numbers: Any, right: Array, skip: Any, total: Array, scaled: Array
) -> float:
    """Add the dual's share to the gradient, γ of the result to the total, and scale the rest.

    ``numbers`` are γ, what a sum over the groups and the dual's own gradient are multiplied by, and
    the latter. ``skip`` are X and what was propagated, empty where γ needs no gradient; returned is
    ⟨result, X − propagated⟩.
    """
    column, slope, direction = groups
    gamma, response, pull = numbers
    x, z = skip
    share, rest = right.dtype.type(gamma), right.dtype.type(1 - gamma)
    parts = np.zeros((column.size + CHUNK_NODES - 1) // CHUNK_NODES)
    for k in prange(parts.size):
        start, stop = np.uint64(k * CHUNK_NODES), np.uint64(min((k + 1) * CHUNK_NODES, column.size))
        a = b = 0.0
        for i in range(start, stop - ONE, TWO):
            a += column[i] * (g[i].imag - g[i].real)
            b += column[i + ONE] * (g[i + ONE].imag - g[i + ONE].real)
        if (stop - start) % TWO:
            a += column[stop - ONE] * (g[stop - ONE].imag - g[stop - ONE].real)
        parts[k] = a + b
    for k in range(parts.size):
        pull += response * parts[k]
    towards = total.dtype.type(pull * direction[0])
    for k in prange(parts.size):
        start, stop = k * CHUNK_NODES, min((k + 1) * CHUNK_NODES, column.size)
        for i in range(np.uint64(start), np.uint64(stop)):
            g[i] += towards * slope[i]
            total[i] += share * g[i]
            scaled[i] = rest * right[i] * g[i]
        inner = 0.0
        if x.size:
            for i in range(np.uint64(start), np.uint64(stop)):
                away = x[i] - z[i]
                inner += g[i].real * away.real + g[i].imag * away.imag
        parts[k] = inner
    return parts.sum()


class _Steps:
    """Steps along a graph, on logits (n×2) or on differences (``centred``)."""

    def __init__(
        self, graph: Any, gamma: Sequence[float], dtype: torch.dtype, *, centred: bool
    ) -> None:
        self.layout, self.gamma = layout(graph, dtype), gamma
        self.n, self.real = len(self.layout.order), self.layout.scale.dtype
        self.dtype = self.real if centred else np.result_type(self.real, np.complex64)
        # What raises the margin by 2, in double precision.
        wide = np.result_type(self.dtype, np.float64)
        self.direction = np.array([-2.0 if centred else -1.0 + 1.0j], wide)

    def _enter(self, logits: Array) -> tuple[Array, Array]:
        z, scaled = np.empty(self.n, self.dtype), np.empty(self.n, self.dtype)
        parts = z.view(self.real), scaled.view(self.real)
        _enter(2 * self.n, logits, self.layout.order, self.layout.scale, *parts)
        return z, scaled

    def _leave(self, z: Array) -> Array:
        logits = np.empty((self.n, 2), self.real)
        _leave(2 * self.n, z.view(self.real), self.layout.order, logits)
        return logits

    def _gather(
        self, matrix: Matrix, left: Array, scaled: Array, x: Array, gamma: float, out: Array
    ) -> None:
        work = 2 * (self.n + matrix[1].size)
        flat, skip, filled = (part.view(self.real) for part in (scaled, x, out))
        columns = self.n, flat.size // max(self.n, 1)
        gather_rows(work, matrix, left, flat, skip.reshape(columns), gamma, filled.reshape(columns))


class FusedPropagation(_Steps):
    """K steps of plain propagation."""

    def run(self, logits: Array, *, transposed: bool) -> Array:
        """Propagate; with Ãᵀ it is the gradient, since both are the same polynomial."""
        x, scaled = self._enter(logits)
        found, out = self.layout, np.empty_like(x)
        matrix, squares = found.backward if transposed else found.forward, found.scale**2
        skip, *others = scaled, np.empty_like(x), np.empty_like(x)
        for k, gamma in enumerate(self.gamma):
            if k + 1 == len(self.gamma):
                self._gather(matrix, found.scale, scaled, x, gamma, out)
            else:  # what follows needs diag(scale) F alone
                self._gather(matrix, squares, scaled, skip, gamma, others[k % 2])
                scaled = others[k % 2]
        return self._leave(out)


class FusedProjection(_Steps):
    """K steps of the projection, and their gradient; with ``learned`` that of each γ as well."""

    def __init__(
        self,
        graph: Any,
        groups: Any,
        gamma: Sequence[float],
        temperature: float,
        dtype: torch.dtype,
        *,
        learned: bool,
        centred: bool,
    ) -> None:
        super().__init__(graph, gamma, dtype, centred=centred)
        self.members = members(groups, self.layout)
        self.scale, self.weight = self.members.scale, self.members.weight
        self.temperature, self.learned = temperature, learned
        self.margin = np.empty(self.members.population.size)
        self.z, self.fresh = self.margin, True  # logits of the current step; margins not yet taken
        self.x = np.empty(0, self.dtype)
        self.propagated: list[Array] = []
        self.slopes: list[Array] = []
        self.duals: list[Any] = []

    def forward(
        self, logits: Array, solve: Callable[[Any, Array], Any], bound: float
    ) -> Array | None:
        """Return the logits (n×2) after all steps; ``None`` if one is larger than the bound.

        ``solve`` finds a step's dual, given this object and the dual of the step before (1×2).
        """
        x, scaled = self._enter(logits)
        found, self.z, u = self.layout, np.empty_like(x), np.zeros((1, 2))
        for gamma in self.gamma:
            self._gather(found.forward, found.scale, scaled, x, gamma, self.z)
            self.fresh = True
            if self.learned:
                self.propagated.append(self.z.copy())
            self.slopes.append(np.zeros(self.n, self.real))
            self.duals.append(solve(self, u))
            u = self.duals[-1].u
            half = self.temperature * self.scale[0] * (u[0, 1] - u[0, 0]) / 2
            inputs = self.members.column, -half * self.direction, bound, found.scale, scaled
            if _shift(2 * self.n, self.z, *inputs):
                return None
        f = self._leave(self.z)
        self.x = x if self.learned else self.x
        self.z = self.margin = np.empty(0)  # the backward pass needs neither
        return f

    def gap(self, root: float) -> tuple[float, float]:
        """Gap at the dual (−root/2, root/2), and its decrease with the root."""
        groups = self.members.population, self.members.starts, self.weight
        inputs = groups, 1 / self.temperature, self.fresh, root, self.margin, self.slopes[-1]
        self.fresh = False
        found: tuple[float, float] = _moments(2 * self.margin.size, self.z, *inputs)
        return found

    def width(self) -> float:
        """Largest absolute margin of the population."""
        return float(np.abs(self.margin).max(initial=0.0))

    def backward(
        self, grad: Array, grad_duals: Sequence[Array] | None, respond: Gradient
    ) -> tuple[Array, Array]:
        """Gradients of x and γ, given those of the logits (n×2) and of the duals (1×2 each)."""
        # Nothing is written to this object: several threads may ask for gradients.
        g, scaled = self._enter(grad)
        total, found = np.zeros_like(g), self.layout
        grad_gamma, skip = np.zeros(len(self.gamma)), (self.x, self.x)
        for k in reversed(range(len(self.duals))):
            # A loss's gradient in u, of which the difference between classes matters alone.
            outer = 0.0 if grad_duals is None else float(grad_duals[k][0, 1] - grad_duals[k][0, 0])
            w = respond(self.duals[k], self.scale, np.array([[-0.5, 0.5]]))
            response = float(w[0, 1] - w[0, 0])
            pull = response * outer / self.temperature
            numbers = self.gamma[k], -response * self.scale[0], pull
            groups = self.members.column, self.slopes[k], self.direction
            if self.learned:
                skip = self.x, self.propagated[k]
            inner = _backward(2 * self.n, g, groups, numbers, found.scale, skip, total, scaled)
            # What was propagated is γX + (1−γ)ÃF, and X − ÃF its derivative. The product of two
            # differences is twice that of the logits.
            grad_gamma[k] = inner / (1 - self.gamma[k]) / (2 if self.dtype == self.real else 1)
            self._gather(found.backward, found.scale, scaled, g, 0.0, g)
        total += g
        return self._leave(total), grad_gamma

"""The primitives on CUDA, in Triton; see :class:`fairmp.kernels.protocol.Kernels`.

The dual of one gap between two classes stays on the device, so that the host never waits for it.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, NamedTuple, cast

import torch
import triton
from torch import Tensor

from fairmp.kernels.cuda import edges, nodes, scalar_dual
from fairmp.kernels.reference import gather_margins as gather_margins
from fairmp.kernels.reference import gather_rows as gather_rows
from fairmp.kernels.reference import linear_relu_backward as linear_relu_backward
from fairmp.kernels.reference import sparse_linear as sparse_linear
from fairmp.kernels.reference import spread_margins as spread_margins
from fairmp.kernels.root import MAX_PASSES
from fairmp.kernels.types import (
    NO_CLIP,
    AggregateGradient,
    BinaryGroups,
    BinaryProblem,
    BinaryRoot,
    Clip,
    Matrix,
)

REDUCTION_BLOCK = 2048  # numbers a program sums at once
ELEMENTWISE_BLOCK = 512  # numbers, or rows of two, per program
MAX_ROW_EDGES = 4096  # of one program; a row with more is a hub
TILE_NUMBERS = 1024  # that a program has in flight at once
LONG_ROW_LOOPS = 8  # over the lanes of a row, before it is left to the whole program
MAX_PROGRAMS = 256  # that synchronise with each other


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    """Launch a kernel on the device of its first argument; Triton alone uses the current one."""
    first: Tensor = arguments[0]
    elsewhere = first.is_cuda and first.device.index != torch.cuda.current_device()
    with torch.cuda.device(first.device) if elsewhere else nullcontext():
        kernel[grid](*arguments, **constants)


def block_sizes(classes: int, numbers: int) -> dict[str, int]:
    """Constants of a kernel over rows: classes, padded classes, and rows per block."""
    padded = triton.next_power_of_2(classes)
    return {"C": classes, "CP": padded, "B": max(1, numbers // padded)}


def programs_for(like: Tensor, n: int, block: int, most: int = 2**16) -> int:
    """Programs for a pass over n rows: no more than run at once, none without rows."""
    return max(1, min(triton.cdiv(n, block), 8 * processors(like), most))


def processors(like: Tensor) -> int:
    """Number of streaming multiprocessors."""
    if like.device.type != "cuda":  # Triton's interpreter runs one program after the other
        return 1
    return torch.cuda.get_device_properties(like.device).multi_processor_count


def reduction_buffers(like: Tensor, programs: int, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """The parts of each program, the result, and a counter at 0."""
    out = torch.zeros(size + 1, dtype=torch.float64, device=like.device)
    partial = torch.empty((programs, size), dtype=torch.float64, device=like.device)
    return partial, out[:size], out[size:].view(torch.int32)


class Hubs(NamedTuple):
    """Rows of more than ``MAX_ROW_EDGES`` edges, cut into pieces."""

    rows: Tensor  # their indices (h)
    first: Tensor  # the first piece of each, and the number of pieces (h+1)
    begin: Tensor  # the first edge of each piece
    end: Tensor  # the edge after its last


def find_hubs(row: Tensor) -> Hubs | None:
    """Find the hubs of a graph from its row pointers; synchronises with the host."""
    length = row[1:] - row[:-1]
    rows = (length > MAX_ROW_EDGES).nonzero().flatten()
    if not rows.numel():
        return None
    begin, end = row[rows].long(), row[rows + 1].long()
    pieces = (end - begin + MAX_ROW_EDGES - 1) // MAX_ROW_EDGES
    first = torch.cat([pieces.new_zeros(1), pieces.cumsum(0)])
    hub = torch.repeat_interleave(pieces)
    number = torch.arange(hub.numel(), device=row.device) - first[hub]
    starts = begin[hub] + MAX_ROW_EDGES * number
    return Hubs(rows, first, starts, torch.minimum(starts + MAX_ROW_EDGES, end[hub]))


def _hubs(matrix: Matrix) -> Hubs | None:
    if "hubs" not in matrix.cache:
        matrix.cache["hubs"] = find_hubs(matrix.rows.row)
    return cast("Hubs | None", matrix.cache["hubs"])


def aggregate(matrix: Matrix, f: Tensor, x: Tensor | None, gamma: float) -> Tensor:
    (row, col, weight), left, right = matrix.rows, matrix.left, matrix.right
    rows, classes = row.numel() - 1, f.size(1)
    # Scaled beforehand: gathering the scales edge by edge would cost as much as gathering f.
    f = f.contiguous() * right.unsqueeze(1)
    out = torch.empty((rows, classes), dtype=f.dtype, device=f.device)
    if not rows:
        return out
    x = None if x is None else x.contiguous()
    # Threads per row: half the mean degree, since most rows of most graphs are shorter than it.
    lanes = min(32, max(4, triton.next_power_of_2(int(col.numel() / rows / 2))))
    padded = triton.next_power_of_2(classes)
    height = max(1, TILE_NUMBERS // (lanes * padded))
    sizes: dict[str, Any] = {"C": classes, "CP": padded}
    limits = {"R": height, "L": lanes, "LONG": LONG_ROW_LOOPS * lanes, "CHUNK": MAX_ROW_EDGES}
    tiles = (triton.cdiv(rows, height),)
    launch(edges.rows, tiles, row, col, weight, left, f, x, out, gamma, rows, **sizes, **limits)
    hubs = _hubs(matrix)
    if hubs is not None:
        sizes["B"] = max(16, TILE_NUMBERS // padded)
        pieces = hubs.begin.numel()
        sums = torch.empty((pieces, classes), dtype=torch.float64, device=f.device)
        launch(edges.pieces, (pieces,), hubs.begin, hubs.end, col, weight, f, sums, **sizes)
        count = (hubs.rows.numel(),)
        launch(edges.join, count, hubs.rows, hubs.first, sums, left, x, out, gamma, **sizes)
    return out


def aggregate_vjp(
    matrix: Matrix,
    grad: Tensor,
    gamma: float,
    x: Tensor | None = None,
    propagated: Tensor | None = None,
) -> AggregateGradient:
    away: float | Tensor = 0.0
    if x is not None and propagated is not None:
        away = (grad * (x - propagated)).sum(dtype=torch.float64)
    return AggregateGradient(aggregate(matrix, grad, None, gamma), gamma * grad, away)


def moments(z: Tensor, codes: Tensor, shift: Tensor, temperature: float) -> Tensor:
    (groups, classes), n = shift.shape, z.size(0)
    width = min(triton.next_power_of_2(classes), 8)
    sizes = block_sizes(classes, REDUCTION_BLOCK // width)
    size = 1 + groups * classes * (classes + 1)
    programs = programs_for(z, n, sizes["B"], 2**16 // size)
    partial, out, counter = reduction_buffers(z, programs, size)
    launch(
        nodes.moments,
        (programs, sizes["CP"] // width),
        z.contiguous(),
        codes,
        shift.contiguous(),
        partial,
        out,
        counter,
        temperature,
        n,
        groups,
        D=width,
        **sizes,
    )
    return out


def shift(z: Tensor, codes: Tensor, table: Tensor, clip: Clip = NO_CLIP) -> Tensor:
    out = torch.empty_like(z, memory_format=torch.contiguous_format)
    _launch_over_rows(nodes.shift, z, codes, table, out, clip.limit, clip.floor)
    return out


def segment_sum(g: Tensor, codes: Tensor, groups: int) -> Tensor:
    n, classes = g.shape
    sizes = block_sizes(classes, REDUCTION_BLOCK)
    size = groups * classes
    programs = programs_for(g, n, sizes["B"], 2**16 // size)
    partial, out, counter = reduction_buffers(g, programs, size)
    launch(
        nodes.segment_sum,
        (programs,),
        g.contiguous(),
        codes,
        partial,
        out,
        counter,
        n,
        groups,
        **sizes,
    )
    return out.view(groups, classes)


def softmax_vjp(
    g: Tensor, z: Tensor, codes: Tensor, shift: Tensor, temperature: float, w: Tensor
) -> Tensor:
    out = torch.empty_like(g, memory_format=torch.contiguous_format)
    _launch_over_rows(nodes.softmax_vjp, g, z, codes, shift, w, out, temperature)
    return out


def _launch_over_rows(kernel: Any, first: Tensor, *others: Any) -> None:
    """Launch a kernel with one program per block of rows."""
    n, classes = first.shape
    sizes = block_sizes(classes, ELEMENTWISE_BLOCK)
    if n:
        others = tuple(x.contiguous() if isinstance(x, Tensor) else x for x in others)
        launch(kernel, (triton.cdiv(n, sizes["B"]),), first.contiguous(), *others, n, **sizes)


def binary_root(problem: BinaryProblem, start: float | Tensor | None) -> BinaryRoot:
    z, groups = problem.z.contiguous(), problem.groups
    n = z.size(0)
    # Few nodes are spread over all processors; with many, each keeps as much in flight as it can.
    block, warps = (512, 8) if n < 2**20 else (2048, 32)
    programs = min(programs_for(z, n, block, MAX_PROGRAMS), processors(z))
    state = torch.zeros(8 + 6 * MAX_PROGRAMS, dtype=torch.float64, device=z.device)
    # It is read before the first program writes its result.
    guess = state[:1] if start is None else torch.as_tensor(start, device=z.device)
    slope = torch.zeros(n, dtype=z.dtype, device=z.device)
    launch(
        scalar_dual.find_root,
        (programs,),
        z,
        groups.codes,
        groups.weight,
        guess,
        state,
        slope,
        groups.scale,
        problem.target,
        problem.tolerance,
        1 / problem.temperature,
        n,
        MAX_PASSES,
        C=z.size(1),
        B=block,
        S=MAX_PROGRAMS,
        num_warps=warps,
        launch_cooperative_grid=True,
    )
    return BinaryRoot(state[0:1], state[1:2], state[2:3], state[3:4], slope)


def shift_margins(z: Tensor, groups: BinaryGroups, amount: float | Tensor, clip: Clip) -> Tensor:
    by = torch.as_tensor(amount, dtype=torch.float64, device=z.device)
    out = torch.empty_like(z, memory_format=torch.contiguous_format)
    _launch_over_rows(scalar_dual.shift, z, groups.column, by, out, clip.limit, clip.floor)
    return out


def shift_margins_vjp(
    grad: Tensor, groups: BinaryGroups, slope: Tensor, factor: float | Tensor
) -> Tensor:
    n, classes = grad.shape
    programs = programs_for(grad, n, REDUCTION_BLOCK, MAX_PROGRAMS)
    partial = torch.empty(programs, dtype=torch.float64, device=grad.device)
    constants = {"C": classes, "B": REDUCTION_BLOCK, "num_warps": 8}
    launch(scalar_dual.margin_sum, (programs,), grad, groups.column, partial, n, **constants)
    pull = (factor * partial.sum(0, keepdim=True)).to(grad.dtype)
    signs = pull if classes == 1 else torch.cat([-pull, pull])
    return torch.addr(grad, slope, signs)

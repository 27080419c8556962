"""Triton kernels over the edges: one tile of rows per program, hubs cut into pieces."""

# mypy: allow-untyped-defs, allow-incomplete-defs
# Arguments of a kernel have types of Triton, known when it is compiled.

from __future__ import annotations

import triton
import triton.language as tl
from triton.language import constexpr, float64, int64


@triton.jit
def gather(col, weight, f, edge, live, C: constexpr, CP: constexpr):
    """Weighted logits of the nodes at the other end of some edges, classes last."""
    node = tl.load(col + edge, mask=live, other=0).to(tl.int64)
    c = tl.arange(0, CP)
    at = tl.expand_dims(node * C, -1) + c
    value = tl.load(f + at, mask=tl.expand_dims(live, -1) & (c < C), other=0.0)
    if weight is not None:
        value *= tl.expand_dims(tl.load(weight + edge, mask=live, other=0.0), -1)
    return value


@triton.jit(do_not_specialize=["rows"])
def rows(
    row,
    col,
    weight,
    left,
    f,
    x,
    out,
    gamma: float64,
    rows: int64,
    C: constexpr,
    CP: constexpr,
    R: constexpr,
    L: constexpr,
    LONG: constexpr,
    CHUNK: constexpr,
):
    """Propagate any number of classes."""
    number = tl.arange(0, R)
    i = tl.program_id(0).to(tl.int64) * R + number
    inside = i < rows
    begin = tl.load(row + i, mask=inside, other=0).to(tl.int64)
    length = tl.load(row + i + 1, mask=inside, other=0).to(tl.int64) - begin
    hub = length > CHUNK
    length = tl.where(hub, 0, length).to(tl.int32)
    short = tl.minimum(length, LONG)
    lane = tl.arange(0, L)
    sums = tl.zeros([R, L, CP], dtype=out.dtype.element_ty)
    for k in range(0, tl.max(short, 0), L):
        offset = k + lane[None, :]
        live = offset < short[:, None]
        sums += gather(col, weight, f, begin[:, None] + offset, live, C, CP)
    total = tl.sum(sums, 1)
    remaining = length - short
    while tl.max(remaining, 0) > 0:
        which = tl.argmax(remaining, 0)
        mine = number == which
        many = tl.max(remaining, 0)
        start = tl.sum(tl.where(mine, begin, 0), 0) + LONG
        offset = tl.arange(0, R * L)
        some = tl.zeros([R * L, CP], dtype=out.dtype.element_ty)
        for k in range(0, many, R * L):
            live = k + offset < many
            some += gather(col, weight, f, start + k + offset, live, C, CP)
        total += tl.where(mine[:, None], tl.sum(some, 0)[None, :], 0.0)
        remaining = tl.where(mine, 0, remaining)
    finish(i, inside & (hub == 0), total, left, x, out, gamma, C, CP)


@triton.jit
def finish(i, ours, total, left, x, out, gamma, C: constexpr, CP: constexpr):
    """Scale the sums of rows i, add the skip to the input, and store them."""
    c = tl.arange(0, CP)
    total *= (1 - gamma) * tl.load(left + i, mask=ours, other=0.0)[:, None]
    at = (i * C)[:, None] + c[None, :]
    live = ours[:, None] & (c < C)[None, :]
    if x is not None:
        total += gamma * tl.load(x + at, mask=live, other=0.0)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=live)


@triton.jit
def pieces(begins, ends, col, weight, f, sums, C: constexpr, CP: constexpr, B: constexpr):
    """Sum one piece of a hub."""
    piece = tl.program_id(0).to(tl.int64)
    begin = tl.load(begins + piece)
    many = (tl.load(ends + piece) - begin).to(tl.int32)
    offset = tl.arange(0, B)
    some = tl.zeros([B, CP], dtype=f.dtype.element_ty)
    for k in range(0, many, B):
        live = k + offset < many
        some += gather(col, weight, f, begin + k + offset, live, C, CP)
    c = tl.arange(0, CP)
    tl.store(sums + piece * C + c, tl.sum(some.to(tl.float64), 0), mask=c < C)


@triton.jit
def join(
    hubs, first, sums, left, x, out, gamma: float64, C: constexpr, CP: constexpr, B: constexpr
):
    """Sum the pieces of a hub, in order."""
    hub = tl.program_id(0).to(tl.int64) + tl.arange(0, 1)
    start = tl.load(first + tl.program_id(0))
    many = tl.load(first + tl.program_id(0) + 1) - start
    c = tl.arange(0, CP)
    some = tl.zeros([B, CP], dtype=tl.float64)
    for k in range(0, many, B):
        piece = k + tl.arange(0, B)
        live = (piece < many)[:, None] & (c < C)[None, :]
        at = ((start + piece) * C)[:, None] + c[None, :]
        some += tl.load(sums + at, mask=live, other=0.0)
    row = tl.load(hubs + hub)
    finish(row, row >= 0, tl.sum(some, 0)[None, :], left, x, out, gamma, C, CP)

"""Passes over the nodes on CUDA: the kernels behind moments, sums by cell, shifts and pulls.

Where a pass adds up, each program writes what it found, and the last to finish adds those in their
order: one launch, and the same bits every time.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
# What a kernel is handed has types of Triton's, known when it is compiled.

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def is_last(counter):
    """Say that this program's numbers are written; true for the last program to say so."""
    tl.debug_barrier()
    programs = tl.num_programs(0) * tl.num_programs(1)
    return tl.atomic_add(counter, 1, sem="acq_rel") == programs - 1


@triton.jit
def total(partial, out, programs, size, P: tl.constexpr, S: tl.constexpr):
    """Add the programs' numbers (programs×size), in their order."""
    for first in range(0, size, S):
        s = first + tl.arange(0, S)
        sums = tl.zeros([P, S], dtype=tl.float64)
        for start in range(0, programs, P):
            p = start + tl.arange(0, P)
            live = (p < programs)[:, None] & (s < size)[None, :]
            at = p.to(tl.int64)[:, None] * size + s[None, :]
            # Past the first-level cache: another program wrote them in this launch.
            sums += tl.load(partial + at, mask=live, other=0.0, cache_modifier=".cg")
        tl.store(out + s, tl.sum(sums, 0), mask=s < size)


@triton.jit
def load_rows(z, i, live, C: tl.constexpr, CP: tl.constexpr, other):
    """Rows i of z in float64, padded to CP classes."""
    c = tl.arange(0, CP)
    at = (i * C)[:, None] + c[None, :]
    return tl.load(z + at, mask=live[:, None] & (c < C)[None, :], other=other).to(tl.float64)


@triton.jit
def row_softmax(z, i, live, shift, temperature, C: tl.constexpr, CP: tl.constexpr):
    """softmax((z − shift)/T) of rows i, and their logsumexp; 0 for rows and classes not live."""
    real = (tl.arange(0, CP) < C)[None, :]
    logits = (load_rows(z, i, live, C, CP, 0.0) - shift) / temperature
    top = tl.max(tl.where(real, logits, -float("inf")), 1)
    weights = tl.where(real, tl.exp(logits - top[:, None]), 0.0)
    whole = tl.sum(weights, 1)
    q = tl.where(live[:, None], weights / whole[:, None], 0.0)
    return q, tl.where(live, top + tl.log(whole), 0.0)


@triton.jit(do_not_specialize=["n", "cells"])
def moments(
    z,
    codes,
    shift,
    partial,
    out,
    counter,
    temperature: tl.float64,
    n: tl.int64,
    cells: tl.int32,
    C: tl.constexpr,
    CP: tl.constexpr,
    D: tl.constexpr,
    B: tl.constexpr,
):
    """Sum the softmax and its products by cell; D classes a program of axis 1 in the products."""
    programs = tl.num_programs(0)
    share = tl.cdiv(tl.cdiv(n, programs), B) * B
    begin = tl.program_id(0).to(tl.int64) * share
    end = tl.minimum(begin + share, n)
    c = tl.arange(0, CP)
    d = tl.program_id(1) * D + tl.arange(0, D)
    size = 1 + cells * C * (C + 1)
    here = partial + tl.program_id(0).to(tl.int64) * size
    value = tl.zeros([B], dtype=tl.float64)
    for cell in range(cells):
        moved = tl.load(shift + cell * C + c, mask=c < C, other=0.0)[None, :]
        sums = tl.zeros([B, CP], dtype=tl.float64)
        several = tl.zeros([B, CP, D], dtype=tl.float64)
        for start in range(begin, end, B):
            i = start + tl.arange(0, B)
            live = tl.load(codes + i, mask=i < end, other=-1) == cell
            q, logsumexp = row_softmax(z, i, live, moved, temperature, C, CP)
            sums += q
            value += logsumexp
            if D == CP:
                several += q[:, :, None] * q[:, None, :]
            else:
                same = c[None, :, None] == d[None, None, :]
                mine = tl.sum(tl.where(same, q[:, :, None], 0.0), 1)
                several += q[:, :, None] * mine[:, None, :]
        products = tl.where(c[:, None] != d[None, :], tl.sum(several, 0), 0.0)
        # q − q² as a sum over the other classes: the difference has no digits left near 1.
        within = tl.sum(products, 0)[None, :]
        products = tl.where(c[:, None] == d[None, :], within, products)
        tl.store(here + 1 + cell * C + c, tl.sum(sums, 0), mask=c < C)
        at = 1 + cells * C + (cell * C + c[:, None]) * C + d[None, :]
        tl.store(here + at, products, mask=(c[:, None] < C) & (d[None, :] < C))
    if tl.program_id(1) == 0:
        tl.store(here, temperature * tl.sum(value, 0))
    if is_last(counter):
        total(partial, out, programs, size, 32, 32)


@triton.jit(do_not_specialize=["n", "cells"])
def segment_sum(
    g,
    codes,
    partial,
    out,
    counter,
    n: tl.int64,
    cells: tl.int32,
    C: tl.constexpr,
    CP: tl.constexpr,
    B: tl.constexpr,
):
    """Sum rows by cell."""
    programs = tl.num_programs(0)
    share = tl.cdiv(tl.cdiv(n, programs), B) * B
    begin = tl.program_id(0).to(tl.int64) * share
    end = tl.minimum(begin + share, n)
    c = tl.arange(0, CP)
    size = cells * C
    here = partial + tl.program_id(0).to(tl.int64) * size
    for cell in range(cells):
        sums = tl.zeros([B, CP], dtype=tl.float64)
        for start in range(begin, end, B):
            i = start + tl.arange(0, B)
            live = tl.load(codes + i, mask=i < end, other=-1) == cell
            sums += load_rows(g, i, live, C, CP, 0.0)
        tl.store(here + cell * C + c, tl.sum(sums, 0), mask=c < C)
    if is_last(counter):
        total(partial, out, programs, size, 32, 32)


@triton.jit(do_not_specialize=["n"])
def extremes(z, codes, out, n: tl.int64, C: tl.constexpr, CP: tl.constexpr, B: tl.constexpr):
    """Find the widest row and the largest entry.

    Bits of doubles that are not negative are ordered as integers are.
    """
    real = (tl.arange(0, CP) < C)[None, :]
    width = tl.zeros([B], dtype=tl.float64)
    size = tl.zeros([B], dtype=tl.float64)
    first = tl.program_id(0).to(tl.int64) * B
    for start in range(first, n, tl.num_programs(0) * B):
        i = start + tl.arange(0, B)
        live = tl.load(codes + i, mask=i < n, other=-1) >= 0
        rows = load_rows(z, i, live, C, CP, 0.0)
        top = tl.max(tl.where(real, rows, -float("inf")), 1)
        bottom = tl.min(tl.where(real, rows, float("inf")), 1)
        width = tl.maximum(width, top - bottom)
        size = tl.maximum(size, tl.maximum(tl.abs(top), tl.abs(bottom)))
    tl.atomic_max(out, tl.max(width, 0).to(tl.int64, bitcast=True), sem="relaxed")
    tl.atomic_max(out + 1, tl.max(size, 0).to(tl.int64, bitcast=True), sem="relaxed")


@triton.jit
def cell_rows(table, code, live, C: tl.constexpr, CP: tl.constexpr):
    """The rows of a table (cells×C) for some codes; 0 where there is none."""
    c = tl.arange(0, CP)
    at = code[:, None] * C + c[None, :]
    return tl.load(table + at, mask=live[:, None] & (c < C)[None, :], other=0.0)


@triton.jit(do_not_specialize=["n"])
def shift(z, codes, shift, out, n: tl.int64, C: tl.constexpr, CP: tl.constexpr, B: tl.constexpr):
    """Take its cell's shift off each row."""
    i = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    code = tl.load(codes + i, mask=i < n, other=-1)
    c = tl.arange(0, CP)
    at = (i * C)[:, None] + c[None, :]
    live = (i < n)[:, None] & (c < C)[None, :]
    kind = out.dtype.element_ty
    # Rounded first, as the reference does: equal shifts stay equal.
    moved = cell_rows(shift, code, code >= 0, C, CP).to(kind)
    tl.store(out + at, tl.load(z + at, mask=live, other=0.0) - moved, mask=live)


@triton.jit(do_not_specialize=["n"])
def softmax_vjp(
    g,
    z,
    codes,
    shift,
    w,
    out,
    temperature: tl.float64,
    n: tl.int64,
    C: tl.constexpr,
    CP: tl.constexpr,
    B: tl.constexpr,
):
    """Add q ⊙ (w − ⟨w, q⟩) to each row of g."""
    i = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    code = tl.load(codes + i, mask=i < n, other=-1)
    counted = code >= 0
    c = tl.arange(0, CP)
    moved = cell_rows(shift, code, counted, C, CP)
    q, _ = row_softmax(z, i, counted, moved, temperature, C, CP)
    pull = cell_rows(w, code, counted, C, CP)
    pull = q * (pull - tl.sum(pull * q, 1)[:, None])
    at = (i * C)[:, None] + c[None, :]
    live = (i < n)[:, None] & (c < C)[None, :]
    there = tl.load(g + at, mask=live, other=0.0).to(tl.float64)
    tl.store(out + at, (there + pull).to(out.dtype.element_ty), mask=live)

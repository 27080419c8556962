"""The passes over the nodes of ``paper`` and ``papc`` on CUDA.

See :mod:`fairmp.kernels.reference` for what they are, and :mod:`fairmp.kernels.cuda.nodes` for how
programs add up.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
# What a kernel is handed has types of Triton's, known when it is compiled.

from __future__ import annotations

import triton
import triton.language as tl

from fairmp.kernels.cuda.nodes import group_rows as cell_rows
from fairmp.kernels.cuda.nodes import is_last, load_rows, row_softmax, total


@triton.jit
def centred(p, v):
    """Take its mean under p off each row of v."""
    return v - tl.sum(p * v, 1)[:, None]


@triton.jit
def store_rows(out, i, live, value, C: tl.constexpr, CP: tl.constexpr):
    """Write rows i."""
    c = tl.arange(0, CP)
    at = (i * C)[:, None] + c[None, :]
    tl.store(out + at, value.to(out.dtype.element_ty), mask=live[:, None] & (c < C)[None, :])


@triton.jit
def pushed(p, i, inside, reach, pull, gamma, C: tl.constexpr, CP: tl.constexpr):
    """γJ pull of rows i; 0 for nodes that are not reached, whatever their logits."""
    code = tl.load(reach + i, mask=inside, other=-1)
    rows = load_rows(p, i, code >= 0, C, CP, 0.0)
    return gamma * rows * centred(rows, cell_rows(pull, code, code >= 0, C, CP))


@triton.jit
def in_cells(code, value, first, G: tl.constexpr):
    """Rows of value, each in its own of G cells from the first (rows×G×classes)."""
    cell = first + tl.arange(0, G)
    return tl.where(code[:, None, None] == cell[None, :, None], value[:, None, :], 0.0)


@triton.jit
def store_cells(here, sums, first, cells, C: tl.constexpr, CP: tl.constexpr, G: tl.constexpr):
    """Write a program's sums of G cells from the first."""
    cell, c = first + tl.arange(0, G), tl.arange(0, CP)
    at = cell[:, None] * C + c[None, :]
    tl.store(here + at, tl.sum(sums, 0), mask=(cell < cells)[:, None] & (c < C)[None, :])


@triton.jit(do_not_specialize=["n", "cells"])
def predicted(
    p,
    agg,
    reach,
    measured,
    pull,
    q,
    partial,
    out,
    counter,
    gamma: tl.float64,
    n: tl.int64,
    cells: tl.int32,
    C: tl.constexpr,
    CP: tl.constexpr,
    G: tl.constexpr,
    B: tl.constexpr,
):
    """Predict, and sum by cell; one pass for every G cells."""
    programs = tl.num_programs(0)
    share = tl.cdiv(tl.cdiv(n, programs), B) * B
    begin = tl.program_id(0).to(tl.int64) * share
    end = tl.minimum(begin + share, n)
    here = partial + tl.program_id(0).to(tl.int64) * cells * C
    for first in range(0, cells, G):
        sums = tl.zeros([B, G, CP], dtype=tl.float64)
        for start in range(begin, end, B):
            i = start + tl.arange(0, B)
            code = tl.load(measured + i, mask=i < end, other=-1)
            push = pushed(p, i, i < end, reach, pull, gamma, C, CP)
            soft, _ = row_softmax(agg, i, code >= 0, push, 1.0, C, CP)
            store_rows(q, i, (i < end) & (first == 0), soft, C, CP)
            sums += in_cells(code, soft, first, G)
        store_cells(here, sums, first, cells, C, CP, G)
    if is_last(counter):
        total(partial, out, programs, cells * C, 32, 32)


@triton.jit(do_not_specialize=["n"])
def corrected(
    p,
    agg,
    reach,
    pull,
    out,
    soft,
    gamma: tl.float64,
    n: tl.int64,
    C: tl.constexpr,
    CP: tl.constexpr,
    B: tl.constexpr,
):
    """Correct, and take the softmax."""
    i = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    push = pushed(p, i, i < n, reach, pull, gamma, C, CP)
    q, _ = row_softmax(agg, i, i < n, push, 1.0, C, CP)
    store_rows(out, i, i < n, load_rows(agg, i, i < n, C, CP, 0.0) - push, C, CP)
    store_rows(soft, i, i < n, q, C, CP)


@triton.jit(do_not_specialize=["n", "cells"])
def pulls(
    p,
    g,
    reach,
    partial,
    out,
    counter,
    n: tl.int64,
    cells: tl.int32,
    C: tl.constexpr,
    CP: tl.constexpr,
    G: tl.constexpr,
    B: tl.constexpr,
):
    """Sum the Jacobian's products by cell; one pass for every G cells."""
    programs = tl.num_programs(0)
    share = tl.cdiv(tl.cdiv(n, programs), B) * B
    begin = tl.program_id(0).to(tl.int64) * share
    end = tl.minimum(begin + share, n)
    here = partial + tl.program_id(0).to(tl.int64) * cells * C
    for first in range(0, cells, G):
        sums = tl.zeros([B, G, CP], dtype=tl.float64)
        for start in range(begin, end, B):
            i = start + tl.arange(0, B)
            code = tl.load(reach + i, mask=i < end, other=-1)
            rows = load_rows(p, i, code >= 0, C, CP, 0.0)
            felt = rows * centred(rows, load_rows(g, i, code >= 0, C, CP, 0.0))
            sums += in_cells(code, felt, first, G)
        store_cells(here, sums, first, cells, C, CP, G)
    if is_last(counter):
        total(partial, out, programs, cells * C, 32, 32)


@triton.jit(do_not_specialize=["n", "cells"])
def back(
    p,
    q,
    g,
    reach,
    measured,
    before,
    after,
    w,
    a,
    e,
    partial,
    out,
    counter,
    n: tl.int64,
    cells: tl.int32,
    C: tl.constexpr,
    CP: tl.constexpr,
    G: tl.constexpr,
    B: tl.constexpr,
):
    """Pass a gradient back, and sum by cell what pulls feel; one pass for every G cells."""
    programs = tl.num_programs(0)
    share = tl.cdiv(tl.cdiv(n, programs), B) * B
    begin = tl.program_id(0).to(tl.int64) * share
    end = tl.minimum(begin + share, n)
    here = partial + tl.program_id(0).to(tl.int64) * cells * C
    for first in range(0, cells, G):
        sums = tl.zeros([B, G, CP], dtype=tl.float64)
        for start in range(begin, end, B):
            i = start + tl.arange(0, B)
            code = tl.load(reach + i, mask=i < end, other=-1)
            counts = tl.load(measured + i, mask=i < end, other=-1)
            soft = load_rows(q, i, counts >= 0, C, CP, 0.0)
            b = soft * centred(soft, cell_rows(w, counts, counts >= 0, C, CP))
            rows = load_rows(p, i, code >= 0, C, CP, 0.0)
            there = load_rows(g, i, i < end, C, CP, 0.0)
            both = centred(rows, there) * centred(rows, cell_rows(after, code, code >= 0, C, CP))
            left = centred(rows, b)
            both += left * centred(rows, cell_rows(before, code, code >= 0, C, CP))
            turned = tl.where((code >= 0)[:, None], -rows * centred(rows, both), 0.0)
            written = (i < end) & (first == 0)
            store_rows(a, i, written, there + b, C, CP)
            store_rows(e, i, written, turned, C, CP)
            sums += in_cells(code, rows * left, first, G)
        store_cells(here, sums, first, cells, C, CP, G)
    if is_last(counter):
        total(partial, out, programs, cells * C, 32, 32)

"""Triton kernels over the nodes: moments, segment sums, shifts and gradients.

Where a pass sums over nodes, each program writes its part, and the last one to finish adds the
parts in order: one launch, and the same bits every time.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
# Arguments of a kernel have types of Triton, known when it is compiled.

from __future__ import annotations

import triton
import triton.language as tl
from triton.language import constexpr, float64, int32, int64


@triton.jit
def is_last(counter):
    """Count a program as done; true for the last one."""
    tl.debug_barrier()
    programs = tl.num_programs(0) * tl.num_programs(1)
    return tl.atomic_add(counter, 1, sem="acq_rel") == programs - 1


@triton.jit
def total(partial, out, programs, size, P: constexpr, S: constexpr):
    """Add the parts of all programs (programs×size), in order."""
    for first in range(0, size, S):
        s = first + tl.arange(0, S)
        sums = tl.zeros([P, S], dtype=tl.float64)
        for start in range(0, programs, P):
            p = start + tl.arange(0, P)
            live = (p < programs)[:, None] & (s < size)[None, :]
            at = p.to(tl.int64)[:, None] * size + s[None, :]
            # Bypass the L1 cache: other programs wrote these in this launch.
            sums += tl.load(partial + at, mask=live, other=0.0, cache_modifier=".cg")
        tl.store(out + s, tl.sum(sums, 0), mask=s < size)


@triton.jit
def load_rows(z, i, live, C: constexpr, CP: constexpr, other):
    """Rows i of z in float64, padded to CP classes."""
    c = tl.arange(0, CP)
    at = (i * C)[:, None] + c[None, :]
    return tl.load(z + at, mask=live[:, None] & (c < C)[None, :], other=other).to(tl.float64)


@triton.jit
def row_softmax(z, i, live, shift, temperature, C: constexpr, CP: constexpr):
    """softmax((z − shift)/T) of rows i and its logsumexp; 0 for masked rows and classes."""
    real = (tl.arange(0, CP) < C)[None, :]
    logits = (load_rows(z, i, live, C, CP, 0.0) - shift) / temperature
    top = tl.max(tl.where(real, logits, -float("inf")), 1)
    weights = tl.where(real, tl.exp(logits - top[:, None]), 0.0)
    whole = tl.sum(weights, 1)
    q = tl.where(live[:, None], weights / whole[:, None], 0.0)
    return q, tl.where(live, top + tl.log(whole), 0.0)


@triton.jit(do_not_specialize=["n", "groups"])
def moments(
    z,
    codes,
    shift,
    partial,
    out,
    counter,
    temperature: float64,
    n: int64,
    groups: int32,
    C: constexpr,
    CP: constexpr,
    D: constexpr,
    B: constexpr,
):
    """Sum the softmax and its products by group; a program of axis 1 takes D classes of these."""
    programs = tl.num_programs(0)
    share = tl.cdiv(tl.cdiv(n, programs), B) * B
    begin = tl.program_id(0).to(tl.int64) * share
    end = tl.minimum(begin + share, n)
    c = tl.arange(0, CP)
    d = tl.program_id(1) * D + tl.arange(0, D)
    size = 1 + groups * C * (C + 1)
    part = partial + tl.program_id(0).to(tl.int64) * size
    value = tl.zeros([B], dtype=tl.float64)
    for group in range(groups):
        moved = tl.load(shift + group * C + c, mask=c < C, other=0.0)[None, :]
        sums = tl.zeros([B, CP], dtype=tl.float64)
        several = tl.zeros([B, CP, D], dtype=tl.float64)
        for start in range(begin, end, B):
            i = start + tl.arange(0, B)
            live = tl.load(codes + i, mask=i < end, other=-1) == group
            q, logsumexp = row_softmax(z, i, live, moved, temperature, C, CP)
            sums += q
            value += logsumexp
            if D == CP:
                several += q[:, :, None] * q[:, None, :]
            else:
                diagonal = c[None, :, None] == d[None, None, :]
                mine = tl.sum(tl.where(diagonal, q[:, :, None], 0.0), 1)
                several += q[:, :, None] * mine[:, None, :]
        products = tl.where(c[:, None] != d[None, :], tl.sum(several, 0), 0.0)
        # q − q² as a sum over the other classes: the difference cancels where q is near 1.
        within = tl.sum(products, 0)[None, :]
        products = tl.where(c[:, None] == d[None, :], within, products)
        tl.store(part + 1 + group * C + c, tl.sum(sums, 0), mask=c < C)
        at = 1 + groups * C + (group * C + c[:, None]) * C + d[None, :]
        tl.store(part + at, products, mask=(c[:, None] < C) & (d[None, :] < C))
    if tl.program_id(1) == 0:
        tl.store(part, temperature * tl.sum(value, 0))
    if is_last(counter):
        total(partial, out, programs, size, 32, 32)


@triton.jit(do_not_specialize=["n", "groups"])
def segment_sum(
    g, codes, partial, out, done, n: int64, groups: int32, C: constexpr, CP: constexpr, B: constexpr
):
    """Sum rows by group."""
    programs = tl.num_programs(0)
    share = tl.cdiv(tl.cdiv(n, programs), B) * B
    begin = tl.program_id(0).to(tl.int64) * share
    end = tl.minimum(begin + share, n)
    c = tl.arange(0, CP)
    size = groups * C
    part = partial + tl.program_id(0).to(tl.int64) * size
    for group in range(groups):
        sums = tl.zeros([B, CP], dtype=tl.float64)
        for start in range(begin, end, B):
            i = start + tl.arange(0, B)
            live = tl.load(codes + i, mask=i < end, other=-1) == group
            sums += load_rows(g, i, live, C, CP, 0.0)
        tl.store(part + group * C + c, tl.sum(sums, 0), mask=c < C)
    if is_last(done):
        total(partial, out, programs, size, 32, 32)


@triton.jit
def group_rows(table, code, live, C: constexpr, CP: constexpr):
    """The rows of a table (groups×C) for some codes; 0 where masked."""
    c = tl.arange(0, CP)
    at = code[:, None] * C + c[None, :]
    return tl.load(table + at, mask=live[:, None] & (c < C)[None, :], other=0.0)


@triton.jit
def store_rows(out, i, live, rows, C: constexpr, CP: constexpr):
    """Write rows i, in their own type."""
    c = tl.arange(0, CP)
    at = (i * C)[:, None] + c[None, :]
    tl.store(out + at, rows.to(out.dtype.element_ty), mask=live[:, None] & (c < C)[None, :])


@triton.jit
def shifted(rows, by, limit, floor, C: constexpr, CP: constexpr):
    """Rows minus their shift; those of extreme logits relative to their largest.

    See ``Kernels.shift``. A single column is a margin, which is clipped on both sides.
    """
    real = (tl.arange(0, CP) < C)[None, :]
    reach = tl.max(tl.where(real, tl.abs(by), 0.0), 1)[:, None]
    far = reach > floor / 4
    if C == 1:
        return tl.where(far, tl.minimum(tl.maximum(rows, -floor), floor), rows) - by
    extreme = (tl.max(tl.where(real, tl.abs(rows), 0.0), 1)[:, None] > limit) & (reach > 0)
    relative = rows - tl.max(tl.where(real, rows, -float("inf")), 1)[:, None]
    relative = tl.where(far, tl.maximum(relative, -floor), relative) - by
    relative -= tl.max(tl.where(real, relative, -float("inf")), 1)[:, None]
    return tl.where(extreme, relative, rows - by)


@triton.jit(do_not_specialize=["n"])
def shift(
    z,
    codes,
    table,
    out,
    limit: float64,
    floor: float64,
    n: int64,
    C: constexpr,
    CP: constexpr,
    B: constexpr,
):
    """Subtract the shift of its group from each row."""
    i = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    live = i < n
    code = tl.load(codes + i, mask=live, other=-1)
    by = group_rows(table, code, code >= 0, C, CP)
    rows = load_rows(z, i, live, C, CP, 0.0)
    store_rows(out, i, live, shifted(rows, by, limit, floor, C, CP), C, CP)


@triton.jit(do_not_specialize=["n"])
def softmax_vjp(
    g, z, codes, shift, w, out, tau: float64, n: int64, C: constexpr, CP: constexpr, B: constexpr
):
    """Add q ⊙ (w − ⟨w, q⟩) to each row of g."""
    i = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    code = tl.load(codes + i, mask=i < n, other=-1)
    counted = code >= 0
    c = tl.arange(0, CP)
    moved = group_rows(shift, code, counted, C, CP)
    q, _ = row_softmax(z, i, counted, moved, tau, C, CP)
    weight = group_rows(w, code, counted, C, CP)
    weight = q * (weight - tl.sum(weight * q, 1)[:, None])
    at = (i * C)[:, None] + c[None, :]
    live = (i < n)[:, None] & (c < C)[None, :]
    grad = tl.load(g + at, mask=live, other=0.0).to(tl.float64)
    tl.store(out + at, (grad + weight).to(out.dtype.element_ty), mask=live)

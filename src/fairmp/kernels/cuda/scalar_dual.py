"""Triton kernels for two classes and one gap: the dual is one number that stays on the device.

See :class:`fairmp.kernels.types.BinaryProblem` for the problem.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
# Arguments of a kernel have types of Triton, known when it is compiled.

from __future__ import annotations

import triton
import triton.language as tl
from triton.language import constexpr, float64, int32, int64

from fairmp.kernels import root
from fairmp.kernels.cuda.nodes import load_rows, shifted, store_rows

# Layout of the state of a root: the result, a counter, and two rounds of partial sums.
COUNTER = tl.constexpr(4)
HEAD = tl.constexpr(8)
MAX_MARGIN = tl.constexpr(root.MAX_MARGIN)
SATURATION_LOGIT = tl.constexpr(root.SATURATION_LOGIT)


@triton.jit
def synchronise(counter, goal):
    """Wait until all programs have written their part."""
    tl.debug_barrier()
    tl.atomic_add(counter, 1, sem="acq_rel")
    while tl.atomic_add(counter, 0, sem="acq_rel") < goal:
        pass
    tl.debug_barrier()


@triton.jit
def load_parts(parts, slot, programs):
    """Parts of all programs, bypassing the L1 cache: other programs have just written them."""
    return tl.load(parts + slot, mask=slot < programs, other=0.0, cache_modifier=".cg")


@triton.jit
def logistic(t):
    """σ(t), and σ(t)(1 − σ(t)) with all its digits."""
    small = tl.exp(-tl.abs(t))
    near = 1.0 / (1.0 + small)
    return tl.where(t >= 0, near, small * near), small * near * near


@triton.jit
def load_margin(z, i, live, C: constexpr):
    """The margin of rows i, of two logits or as it is, in float64."""
    last = tl.load(z + C * i + (C - 1), mask=live, other=0.0).to(tl.float64)
    if C == 1:
        return last
    return last - tl.load(z + C * i, mask=live, other=0.0).to(tl.float64)


@triton.jit(do_not_specialize=["n", "passes"])
def find_root(
    z,
    codes,
    weight,
    start,
    state,
    slope,
    scale: float64,
    target: float64,
    tolerance: float64,
    inverse: float64,
    n: int64,
    passes: int32,
    C: constexpr,
    B: constexpr,
    S: constexpr,
):
    """A guarded Newton method for gap(w) = ±target, with the same state in every program.

    It is that of :func:`fairmp.kernels.root.next_root`. Each pass is a loop over the nodes and one
    synchronisation of all programs, so all must run at once. Partial sums alternate between two
    buffers: a program may still read those of the last round, and no other is ahead of it by more
    than one.
    """
    programs = tl.num_programs(0)
    counter = (state + COUNTER).to(tl.pointer_type(tl.int32))
    slot = tl.arange(0, S)
    w = scale * tl.load(start).to(tl.float64)
    low = tl.full([], -float("inf"), tl.float64)
    high = tl.full([], float("inf"), tl.float64)
    before = tl.full([], float("inf"), tl.float64)
    curvature = tl.full([], 0.0, tl.float64)
    residual = tl.full([], 0.0, tl.float64)
    counted = tl.full([], 0, tl.int32)
    rounds = tl.full([], 0, tl.int32)
    going = tl.full([], 1, tl.int32)
    while going != 0:
        gaps = tl.zeros([B], dtype=tl.float64)
        slopes = tl.zeros([B], dtype=tl.float64)
        widest = tl.zeros([B], dtype=tl.float64)
        for first in range(tl.program_id(0).to(tl.int64) * B, n, programs * B):
            i = first + tl.arange(0, B)
            code = tl.load(codes + i, mask=i < n, other=-1)
            live = code >= 0
            delta = tl.load(weight + code, mask=live, other=0.0)
            margin = load_margin(z, i, live, C) * inverse
            margin = tl.minimum(tl.maximum(margin, -MAX_MARGIN), MAX_MARGIN)
            q, derivative = logistic(margin - delta * w)
            gaps += delta * q
            slopes += delta * delta * derivative
            widest = tl.maximum(widest, tl.abs(margin))
            tl.store(slope + i, (delta * derivative).to(slope.dtype.element_ty), mask=i < n)
        parts = state + HEAD + (rounds % 2) * (3 * S)
        tl.store(parts + tl.program_id(0), tl.sum(gaps, 0))
        tl.store(parts + S + tl.program_id(0), tl.sum(slopes, 0))
        tl.store(parts + 2 * S + tl.program_id(0), tl.max(widest, 0))
        rounds += 1
        synchronise(counter, rounds * programs)
        gap = scale * tl.sum(load_parts(parts, slot, programs), 0)
        curvature = tl.sum(load_parts(parts + S, slot, programs), 0)
        if rounds == 1:
            high = tl.max(load_parts(parts + 2 * S, slot, programs), 0) + SATURATION_LOGIT
            low = -high
        if (low < w) & (w < high):
            counted += 1
            sign = tl.where((w > 0) | ((w == 0) & (gap > 0)), 1.0, -1.0).to(tl.float64)
            excess = gap - sign * target
            within = (w == 0) & (tl.abs(gap) <= target)
            residual = tl.where(within, 0.0, tl.abs(excess))
            low = tl.where(excess > 0, w, low)
            high = tl.where(excess > 0, high, w)
            middle = (low + high) / 2
            step = tl.where(curvature > 0, w + excess / (scale * curvature), middle)
            # Bisect where a step leaves the bracket or does not halve the excess.
            good = (low < step) & (step < high) & (tl.abs(excess) < before / 2)
            proposal = tl.where(good, step, middle)
            proposal = tl.where((w * proposal < 0) & (low < 0) & (high > 0), 0.0, proposal)
            stuck = (proposal == w) | (middle == low) | (middle == high)
            done = within | (residual <= tolerance) | stuck | (counted >= passes)
            before = tl.abs(excess)
            w = tl.where(done, w, proposal)
            going = tl.where(done, 0, 1).to(tl.int32)
        else:
            # A guess outside the bracket; at 0 already, the input is not finite.
            going = tl.where(w == 0, 0, 1).to(tl.int32)
            w = tl.full([], 0.0, tl.float64)
    if tl.program_id(0) == 0:
        tl.store(state, w / scale)
        tl.store(state + 1, residual)
        tl.store(state + 2, counted.to(tl.float64))
        tl.store(state + 3, curvature)


@triton.jit(do_not_specialize=["n"])
def shift(
    z,
    column,
    amount,
    out,
    limit: float64,
    floor: float64,
    n: int64,
    C: constexpr,
    CP: constexpr,
    B: constexpr,
):
    """Reduce margins by an amount times a column."""
    i = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    live = i < n
    by = tl.load(amount) * tl.load(column + i, mask=live, other=0.0)
    rows = load_rows(z, i, live, C, CP, 0.0)
    # With two classes, half of it is added to the first and half taken from the second.
    sign = 2.0 * tl.arange(0, CP) - 1.0
    share = (sign / 2 if C == 2 else sign * sign).to(tl.float64)
    moved = shifted(rows, by[:, None] * share[None, :], limit, floor, C, CP)
    store_rows(out, i, live, moved, C, CP)


@triton.jit(do_not_specialize=["n"])
def margin_sum(g, column, partial, n: int64, C: constexpr, B: constexpr):
    """Sum a column times margins, one number per program."""
    sums = tl.zeros([B], dtype=tl.float64)
    for first in range(tl.program_id(0).to(tl.int64) * B, n, tl.num_programs(0) * B):
        i = first + tl.arange(0, B)
        weight = tl.load(column + i, mask=i < n, other=0.0)
        sums += weight * load_margin(g, i, i < n, C)
    tl.store(partial + tl.program_id(0), tl.sum(sums, 0))

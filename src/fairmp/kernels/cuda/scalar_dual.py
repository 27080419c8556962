r"""Triton kernels for two classes and one gap: the dual is one number that stays on the device.

With :math:`d_g` a group's entry of M over the largest, s, and a node's margin
:math:`m_i = (z_{i1} - z_{i0})/\tau`, the dual is a root w of the decreasing function
:math:`s \sum_i d_{g(i)} \, \sigma(m_i - d_{g(i)} w) = \pm\,\text{target}`, or 0 if the gap there
is within the target. A node's logits are shifted by :math:`\tau d_{g(i)} w \cdot (-½, ½)`.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
# Arguments of a kernel have types of Triton, known when it is compiled.

from __future__ import annotations

import triton
import triton.language as tl
from triton.language import constexpr, float64, int32, int64

# Layout of the state of a root: the result, a counter, and two rounds of partial sums.
RESULT = tl.constexpr(5)
HEAD = tl.constexpr(8)
SATURATION_LOGIT = tl.constexpr(50.0)  # e^-50 is below the precision of a probability


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
def largest_entry(spread, groups, G: constexpr):
    """Max |M|, or 1 for an M of zeros."""
    group = tl.arange(0, G)
    largest = tl.max(tl.abs(tl.load(spread + group, mask=group < groups, other=0.0)), 0)
    return tl.where(largest > 0, largest, 1.0)


@triton.jit
def bounded_margin(zero, one, inverse, bound):
    """(z₁ − z₀)/τ, clipped to where the softmax has digits left."""
    return tl.minimum(tl.maximum((one - zero) * inverse, -bound), bound)


@triton.jit
def logistic(t):
    """σ(t), and σ(t)(1 − σ(t)) with all its digits."""
    small = tl.exp(-tl.abs(t))
    near = 1.0 / (1.0 + small)
    return tl.where(t >= 0, near, small * near), small * near * near


@triton.jit
def load_both(z, i, live):
    """Both logits of rows i, in float64."""
    zero = tl.load(z + 2 * i, mask=live, other=0.0).to(tl.float64)
    one = tl.load(z + 2 * i + 1, mask=live, other=0.0).to(tl.float64)
    return zero, one


@triton.jit(do_not_specialize=["n", "groups", "passes"])
def root(
    z,
    codes,
    spread,
    start,
    state,
    target: float64,
    tolerance: float64,
    inverse: float64,
    bound: float64,
    n: int64,
    groups: int32,
    passes: int32,
    G: constexpr,
    B: constexpr,
    S: constexpr,
):
    """A guarded Newton method for gap(w) = ±target, with the same state in every program.

    Each pass is a loop over the nodes and one synchronisation of all programs, so all must run at
    once. Partial sums alternate between two buffers: a program may still read those of the last
    round, and no other is ahead of it by more than one.
    """
    programs = tl.num_programs(0)
    counter = (state + RESULT).to(tl.pointer_type(tl.int32))
    slot = tl.arange(0, S)
    scale = largest_entry(spread, groups, G)
    unit = 1.0 / scale
    w = tl.load(start).to(tl.float64)
    low = tl.full([], -float("inf"), tl.float64)
    high = tl.full([], float("inf"), tl.float64)
    before = tl.full([], float("inf"), tl.float64)
    gap = tl.full([], 0.0, tl.float64)
    slope = tl.full([], 0.0, tl.float64)
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
            zero, one = load_both(z, i, live)
            d = tl.load(spread + code, mask=live, other=0.0) * unit
            margin = bounded_margin(zero, one, inverse, bound)
            q, curvature = logistic(margin - d * w)
            gaps += d * q
            slopes += d * d * curvature
            widest = tl.maximum(widest, tl.abs(margin))
        parts = state + HEAD + (rounds % 2) * (3 * S)
        tl.store(parts + tl.program_id(0), tl.sum(gaps, 0))
        tl.store(parts + S + tl.program_id(0), tl.sum(slopes, 0))
        tl.store(parts + 2 * S + tl.program_id(0), tl.max(widest, 0))
        rounds += 1
        synchronise(counter, rounds * programs)
        gap = scale * tl.sum(load_parts(parts, slot, programs), 0)
        slope = scale * tl.sum(load_parts(parts + S, slot, programs), 0)
        if rounds == 1:
            # By this far every node of the smaller group has changed sides, and so has the gap.
            high = tl.max(load_parts(parts + 2 * S, slot, programs), 0) + 45.0
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
            step = tl.where(slope > 0, w + excess / slope, middle)
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
        tl.store(state, w)
        tl.store(state + 1, residual)
        tl.store(state + 2, counted.to(tl.float64))
        tl.store(state + 3, gap)
        tl.store(state + 4, slope)


@triton.jit
def store_both(out, i, live, zero, one):
    """Write both logits of rows i, in their own type."""
    kind = out.dtype.element_ty
    tl.store(out + 2 * i, zero.to(kind), mask=live)
    tl.store(out + 2 * i + 1, one.to(kind), mask=live)


@triton.jit(do_not_specialize=["n", "groups"])
def shift(
    z,
    codes,
    spread,
    state,
    out,
    temperature: float64,
    bound: float64,
    n: int64,
    groups: int32,
    G: constexpr,
    B: constexpr,
):
    """Clip the logits and shift them by a root."""
    i = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    live = i < n
    code = tl.load(codes + i, mask=live, other=-1)
    d = tl.load(spread + code, mask=code >= 0, other=0.0) / largest_entry(spread, groups, G)
    zero, one = load_both(z, i, live)
    limit = bound * temperature
    top = tl.maximum(zero, one)
    shift = d * tl.load(state)
    extreme = ((tl.abs(one - zero) > limit) | (tl.abs(top) > limit)) & (shift != 0)
    # Rows are clipped only if the shift goes about as far as the bound.
    lowest = tl.where(tl.abs(shift) > bound - SATURATION_LOGIT, -limit, -float("inf"))
    zero = tl.where(extreme, tl.maximum(zero - top, lowest), zero)
    one = tl.where(extreme, tl.maximum(one - top, lowest), one)
    half = shift * temperature / 2
    store_both(out, i, live, zero + half, one - half)


@triton.jit(do_not_specialize=["n"])
def dual_gradient(g, codes, spread, partial, n: int64, B: constexpr):
    """Sum Σ δ(g₁ − g₀), one number per program."""
    sums = tl.zeros([B], dtype=tl.float64)
    for first in range(tl.program_id(0).to(tl.int64) * B, n, tl.num_programs(0) * B):
        i = first + tl.arange(0, B)
        code = tl.load(codes + i, mask=i < n, other=-1)
        zero, one = load_both(g, i, code >= 0)
        sums += tl.load(spread + code, mask=code >= 0, other=0.0) * (one - zero)
    tl.store(partial + tl.program_id(0), tl.sum(sums, 0))


@triton.jit(do_not_specialize=["n", "groups", "programs"])
def vjp(
    g,
    z,
    codes,
    reach,
    spread,
    state,
    partial,
    outer,
    out,
    target: float64,
    temperature: float64,
    bound: float64,
    n: int64,
    groups: int32,
    programs: int32,
    G: constexpr,
    B: constexpr,
    S: constexpr,
):
    """Propagate a gradient back through the shift, the root and the clipping."""
    scale = largest_entry(spread, groups, G)
    slot = tl.arange(0, S)
    sums = tl.sum(tl.load(partial + slot, mask=slot < programs, other=0.0), 0)
    w = tl.load(state)
    slope = tl.load(state + 4)
    pull = -temperature * sums / (2 * scale)
    if outer is not None:
        pull += tl.load(outer).to(tl.float64)
    held = ((w != 0) | (target + tl.zeros_like(w) == 0)) & (slope > 0)
    pull = tl.where(held, pull * scale / (slope * temperature), 0.0)
    i = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    live = i < n
    code = tl.load(codes + i, mask=live, other=-1)
    d = tl.load(spread + code, mask=code >= 0, other=0.0) / scale
    zero, one = load_both(z, i, live)
    _, curvature = logistic(bounded_margin(zero, one, 1 / temperature, bound) - d * w)
    g_zero, g_one = load_both(g, i, live)
    g_zero -= pull * d * curvature
    g_one += pull * d * curvature
    limit = bound * temperature
    far = tl.abs(one - zero) > limit
    extreme = far | (tl.abs(tl.maximum(zero, one)) > limit)
    code = tl.load(reach + i, mask=live & extreme, other=-1)
    shift = tl.load(spread + code, mask=code >= 0, other=0.0) / scale * w
    # A row taken relative to its larger logit depends on the lower one, unless that was clipped.
    extreme = extreme & (shift != 0)
    cut = far & (tl.abs(shift) > bound - SATURATION_LOGIT)
    lower = tl.where(cut, 0.0, tl.where(zero >= one, g_one, -g_zero))
    store_both(out, i, live, tl.where(extreme, -lower, g_zero), tl.where(extreme, lower, g_one))

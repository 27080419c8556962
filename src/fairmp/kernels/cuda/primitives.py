"""The primitives on CUDA, in Triton: see :mod:`fairmp.kernels.reference` for what they are.

Three more serve two classes and one gap, where the dual is one number: :func:`binary_root`,
:func:`binary_shift` and :func:`binary_vjp` leave it on the device, and the host never waits.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from fairmp.kernels.cuda import nodes as cuda_nodes
from fairmp.kernels.cuda import scalar_dual as cuda_binary
from fairmp.kernels.cuda.coupled import corrected, coupling_back, coupling_pulls, predicted
from fairmp.kernels.cuda.launch import (
    EACH,
    SUMMED,
    launch,
    processors,
    programs_for,
    room_for_sums,
)
from fairmp.kernels.cuda.sparse import aggregate

MAX_PASSES = 200
SLOTS = 256  # programs that meet, at most

__all__ = [
    "aggregate",
    "binary_root",
    "binary_shift",
    "binary_vjp",
    "corrected",
    "coupling_back",
    "coupling_pulls",
    "extremes",
    "moments",
    "predicted",
    "segment_sum",
    "shift",
    "softmax_vjp",
]


def moments(z: Tensor, codes: Tensor, shift: Tensor, temperature: float) -> Tensor:
    """Pass over the nodes once, at a shift of each cell's logits."""
    (cells, classes), n = shift.shape, z.size(0)
    padded = triton.next_power_of_2(classes)
    wide = min(padded, 8)
    block = max(1, SUMMED // (padded * wide))
    size = 1 + cells * classes * (classes + 1)
    programs = programs_for(z, n, block, 2**16 // size)
    out, counter, partial = room_for_sums(z, programs, size)
    launch(
        cuda_nodes.moments,
        (programs, padded // wide),
        z.contiguous(),
        codes,
        shift.contiguous(),
        partial,
        out,
        counter,
        temperature,
        n,
        cells,
        C=classes,
        CP=padded,
        D=wide,
        B=block,
    )
    return out


def extremes(z: Tensor, codes: Tensor) -> Tensor:
    """How far apart a counted node's logits lie at most, and how large they are (2, float64)."""
    n, classes = z.shape
    padded = triton.next_power_of_2(classes)
    block = max(1, SUMMED // padded)
    out = torch.zeros(2, dtype=torch.int64, device=z.device)
    launch(
        cuda_nodes.extremes,
        (programs_for(z, n, block),),
        z.contiguous(),
        codes,
        out,
        n,
        C=classes,
        CP=padded,
        B=block,
    )
    return out.view(torch.float64)


def shift(z: Tensor, codes: Tensor, shift: Tensor) -> Tensor:
    """Take its cell's shift (cells×C) off each node's logits."""
    n, classes = z.shape
    padded = triton.next_power_of_2(classes)
    block = max(1, EACH // padded)
    out = torch.empty_like(z, memory_format=torch.contiguous_format)
    if n:
        launch(
            cuda_nodes.shift,
            (triton.cdiv(n, block),),
            z.contiguous(),
            codes,
            shift.contiguous(),
            out,
            n,
            C=classes,
            CP=padded,
            B=block,
        )
    return out


def segment_sum(g: Tensor, codes: Tensor, cells: int) -> Tensor:
    """Sum rows by cell (cells×C, float64)."""
    n, classes = g.shape
    padded = triton.next_power_of_2(classes)
    block = max(1, SUMMED // padded)
    size = cells * classes
    programs = programs_for(g, n, block, 2**16 // size)
    out, counter, partial = room_for_sums(g, programs, size)
    launch(
        cuda_nodes.segment_sum,
        (programs,),
        g.contiguous(),
        codes,
        partial,
        out,
        counter,
        n,
        cells,
        C=classes,
        CP=padded,
        B=block,
    )
    return out.view(cells, classes)


def softmax_vjp(
    g: Tensor, z: Tensor, codes: Tensor, shift: Tensor, temperature: float, w: Tensor
) -> Tensor:
    """Add what a cell's pull ``w`` (cells×C) means for its nodes' logits."""
    n, classes = z.shape
    padded = triton.next_power_of_2(classes)
    block = max(1, EACH // padded)
    out = torch.empty_like(g, memory_format=torch.contiguous_format)
    if n:
        launch(
            cuda_nodes.softmax_vjp,
            (triton.cdiv(n, block),),
            g.contiguous(),
            z.contiguous(),
            codes,
            shift.contiguous(),
            w.contiguous(),
            out,
            temperature,
            n,
            C=classes,
            CP=padded,
            B=block,
        )
    return out


def binary_root(
    z: Tensor,
    codes: Tensor,
    spread: Tensor,
    start: Tensor,
    target: float,
    tolerance: float,
    temperature: float,
) -> Tensor:
    r"""Find the dual of two classes and one gap, on the device.

    With :math:`s = \max|M|` and :math:`d = M/s`, the root of the decreasing function

    .. math::
        \mathrm{gap}(w) = s \sum_i d_{g(i)} \, \sigma\!\left(\frac{z_{i1} - z_{i0}}{T}
        - d_{g(i)} w\right) = \pm\,\text{target},

    or 0 if the gap there is within the target.

    Args:
        z: logits (n×2).
        codes: cell of each node (n, int32), −1 for nodes that do not count.
        spread: the one row of M (cells, float64).
        start: a guess of w (1).
        target: the largest gap allowed.
        tolerance: how far from it the gap may end.
        temperature: T.

    Returns:
        w, the residual, the number of passes, and at w the gap and minus its derivative
        (5, float64).
    """
    n, cells = z.size(0), spread.numel()
    # Few nodes are spread over all processors; many want as much under way as one can hold.
    block, warps = (512, 8) if n < 2**20 else (2048, 32)
    programs = min(programs_for(z, n, block, SLOTS), processors(z))
    state = torch.zeros(8 + 6 * SLOTS, dtype=torch.float64, device=z.device)
    launch(
        cuda_binary.root,
        (programs,),
        z.contiguous(),
        codes,
        spread,
        start,
        state,
        target,
        tolerance,
        1 / temperature,
        _bound(z),
        n,
        cells,
        MAX_PASSES,
        G=triton.next_power_of_2(cells),
        B=block,
        S=SLOTS,
        num_warps=warps,
        launch_cooperative_grid=True,
    )
    return state[:5]


def binary_shift(
    z: Tensor, codes: Tensor, spread: Tensor, root: Tensor, temperature: float
) -> Tensor:
    r"""Shift logits (n×2) by a root: :math:`z_i - T d_{g(i)} w \cdot (-½, ½)`.

    Rows whose logits lie more than 5000 T apart (10⁶ T in float64), or are as large, are first seen
    from the larger logit, and cut there if the shift itself goes about as far.

    Args:
        z: logits (n×2).
        codes: cell of each node a correction reaches (n, int32), −1 for none.
        spread: the one row of M (cells, float64).
        root: what :func:`binary_root` returned.
        temperature: T.
    """
    n, cells = z.size(0), spread.numel()
    out = torch.empty_like(z, memory_format=torch.contiguous_format)
    if n:
        launch(
            cuda_binary.shifted,
            (triton.cdiv(n, EACH),),
            z.contiguous(),
            codes,
            spread,
            root,
            out,
            temperature,
            _bound(z),
            n,
            cells,
            G=triton.next_power_of_2(cells),
            B=EACH,
        )
    return out


def binary_vjp(
    g: Tensor,
    z: Tensor,
    measured: Tensor,
    reach: Tensor,
    spread: Tensor,
    root: Tensor,
    target: float,
    temperature: float,
    outer: Tensor | None = None,
) -> Tensor:
    """Pass the gradient of :func:`binary_shift`'s result back to z, through the root as well.

    Args:
        g: the gradient (n×2).
        z: the logits the root was found for (n×2).
        measured: the codes given to :func:`binary_root`.
        reach: the codes given to :func:`binary_shift`.
        spread: the one row of M (cells, float64).
        root: what :func:`binary_root` returned.
        target: the target it was found for.
        temperature: T.
        outer: a gradient of the root from elsewhere (1).
    """
    n, cells = z.size(0), spread.numel()
    out = torch.empty_like(g, memory_format=torch.contiguous_format)
    if not n:
        return out
    g = g.contiguous()
    programs = programs_for(g, n, SUMMED, SLOTS)
    partial = torch.empty(programs, dtype=torch.float64, device=g.device)
    launch(cuda_binary.pulls, (programs,), g, reach, spread, partial, n, B=SUMMED, num_warps=8)
    launch(
        cuda_binary.pulled,
        (triton.cdiv(n, EACH),),
        g,
        z.contiguous(),
        measured,
        reach,
        spread,
        root,
        partial,
        outer,
        out,
        target,
        temperature,
        _bound(z),
        n,
        cells,
        programs,
        G=triton.next_power_of_2(cells),
        B=EACH,
        S=SLOTS,
    )
    return out


def _bound(z: Tensor) -> float:
    """Margins, in units of T, beyond which a probability is 0 or 1 to the last digit."""
    return 1e6 if z.dtype == torch.float64 else 5e3

"""The primitives on CUDA, in Triton; see :class:`fairmp.kernels.protocol.Kernels`.

Three more serve two classes and one gap, where the dual is one number: :func:`binary_root`,
:func:`binary_shift` and :func:`binary_vjp` keep it on the device, and the host never waits.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from fairmp.kernels.cuda import nodes, scalar_dual
from fairmp.kernels.cuda.launch import (
    ELEMENTWISE_BLOCK,
    REDUCTION_BLOCK,
    block_sizes,
    launch,
    processors,
    programs_for,
    reduction_buffers,
)
from fairmp.kernels.cuda.sparse import aggregate
from fairmp.kernels.reference import linear_relu_backward

MAX_PASSES = 200
MAX_PROGRAMS = 256  # that synchronise with each other

__all__ = [
    "aggregate",
    "binary_root",
    "binary_shift",
    "binary_vjp",
    "coupling_backward",
    "extremes",
    "linear_relu_backward",
    "moments",
    "segment_sum",
    "shift",
    "softmax_vjp",
]


def moments(z: Tensor, codes: Tensor, shift: Tensor, temperature: float) -> Tensor:
    """Sum shifted softmaxes and their products by group."""
    (groups, classes), n = shift.shape, z.size(0)
    width = min(triton.next_power_of_2(classes), 8)
    sizes = block_sizes(classes, REDUCTION_BLOCK // width)
    size = 1 + groups * classes * (classes + 1)
    programs = programs_for(z, n, sizes["B"], 2**16 // size)
    partial, out, counter = reduction_buffers(z, programs, size)
    inputs = z.contiguous(), codes, shift.contiguous()
    grid, numbers = (programs, sizes["CP"] // width), (temperature, n, groups)
    launch(nodes.moments, grid, *inputs, partial, out, counter, *numbers, D=width, **sizes)
    return out


def extremes(z: Tensor, codes: Tensor) -> Tensor:
    """Largest logit range and largest absolute logit."""
    n, classes = z.shape
    sizes = block_sizes(classes, REDUCTION_BLOCK)
    out = torch.zeros(2, dtype=torch.int64, device=z.device)
    grid = (programs_for(z, n, sizes["B"]),)
    launch(nodes.extremes, grid, z.contiguous(), codes, out, n, **sizes)
    return out.view(torch.float64)


def shift(z: Tensor, codes: Tensor, shift: Tensor) -> Tensor:
    """Subtract the shift of its group from each node's logits."""
    n, classes = z.shape
    sizes = block_sizes(classes, ELEMENTWISE_BLOCK)
    out = torch.empty_like(z, memory_format=torch.contiguous_format)
    if n:
        grid = (triton.cdiv(n, sizes["B"]),)
        launch(nodes.shift, grid, z.contiguous(), codes, shift.contiguous(), out, n, **sizes)
    return out


def segment_sum(g: Tensor, codes: Tensor, groups: int) -> Tensor:
    """Sum rows by group."""
    n, classes = g.shape
    sizes = block_sizes(classes, REDUCTION_BLOCK)
    size = groups * classes
    programs = programs_for(g, n, sizes["B"], 2**16 // size)
    partial, out, counter = reduction_buffers(g, programs, size)
    inputs = g.contiguous(), codes
    launch(nodes.segment_sum, (programs,), *inputs, partial, out, counter, n, groups, **sizes)
    return out.view(groups, classes)


def softmax_vjp(
    g: Tensor, z: Tensor, codes: Tensor, shift: Tensor, temperature: float, w: Tensor
) -> Tensor:
    """Add the gradient of the shifted softmax, weighted by group, to g."""
    n, classes = z.shape
    sizes = block_sizes(classes, ELEMENTWISE_BLOCK)
    out = torch.empty_like(g, memory_format=torch.contiguous_format)
    if n:
        grid = (triton.cdiv(n, sizes["B"]),)
        inputs = g.contiguous(), z.contiguous(), codes, shift.contiguous(), w.contiguous()
        launch(nodes.softmax_vjp, grid, *inputs, out, temperature, n, **sizes)
    return out


def coupling_backward(g: Tensor, z: Tensor, codes: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of the softmax's coupling with a table."""
    n, classes = z.shape
    sizes = block_sizes(classes, ELEMENTWISE_BLOCK)
    out, felt = torch.empty_like(g), torch.empty_like(g, dtype=torch.float64)
    if n:
        grid = (triton.cdiv(n, sizes["B"]),)
        inputs = g.contiguous(), z.contiguous(), codes, w.contiguous()
        launch(nodes.coupling_backward, grid, *inputs, out, felt, n, **sizes)
    return out, segment_sum(felt, codes, w.size(0))


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
        codes: group of each node in the population (n, int32), −1 for the others.
        spread: the one row of M (groups, float64).
        start: a first guess of w (1).
        target: the largest gap allowed.
        tolerance: of the gap.
        temperature: T.

    Returns:
        w, the residual, the number of passes, and at w the gap and minus its derivative
        (5, float64).
    """
    n, groups = z.size(0), spread.numel()
    # Few nodes are spread over all processors; with many, each keeps as much in flight as it can.
    block, warps = (512, 8) if n < 2**20 else (2048, 32)
    programs = min(programs_for(z, n, block, MAX_PROGRAMS), processors(z))
    state = torch.zeros(8 + 6 * MAX_PROGRAMS, dtype=torch.float64, device=z.device)
    numbers = target, tolerance, 1 / temperature, _max_margin(z), n, groups, MAX_PASSES
    launch(
        scalar_dual.root,
        (programs,),
        *(z.contiguous(), codes, spread, start, state),
        *numbers,
        G=triton.next_power_of_2(groups),
        B=block,
        S=MAX_PROGRAMS,
        num_warps=warps,
        launch_cooperative_grid=True,
    )
    return state[:5]


def binary_shift(
    z: Tensor, codes: Tensor, spread: Tensor, root: Tensor, temperature: float
) -> Tensor:
    r"""Shift logits (n×2) by a root: :math:`z_i - T d_{g(i)} w \cdot (-½, ½)`.

    Rows whose logits lie more than 5000 T apart (10⁶ T in float64), or are as large, are first
    taken relative to the larger logit, and clipped if the shift itself goes about as far.

    Args:
        z: logits (n×2).
        codes: group of each node that is corrected (n, int32), −1 for the others.
        spread: the one row of M (groups, float64).
        root: result of :func:`binary_root`.
        temperature: T.
    """
    n, groups = z.size(0), spread.numel()
    out = torch.empty_like(z, memory_format=torch.contiguous_format)
    if n:
        grid, numbers = (triton.cdiv(n, ELEMENTWISE_BLOCK),), (temperature, _max_margin(z))
        sizes = {"G": triton.next_power_of_2(groups), "B": ELEMENTWISE_BLOCK}
        tensors = z.contiguous(), codes, spread, root, out
        launch(scalar_dual.shift, grid, *tensors, *numbers, n, groups, **sizes)
    return out


def binary_vjp(
    g: Tensor,
    z: Tensor,
    measured: Tensor,
    corrected: Tensor,
    spread: Tensor,
    root: Tensor,
    target: float,
    temperature: float,
    outer: Tensor | None = None,
) -> Tensor:
    """Gradient of z, given that of the result of :func:`binary_shift`, through the root as well.

    Args:
        g: the gradient (n×2).
        z: the logits the root was found for (n×2).
        measured: the codes given to :func:`binary_root`.
        corrected: the codes given to :func:`binary_shift`.
        spread: the one row of M (groups, float64).
        root: result of :func:`binary_root`.
        target: the target it was found for.
        temperature: T.
        outer: a gradient of the root itself (1).
    """
    n, groups = z.size(0), spread.numel()
    out = torch.empty_like(g, memory_format=torch.contiguous_format)
    if not n:
        return out
    g = g.contiguous()
    programs, block = programs_for(g, n, REDUCTION_BLOCK, MAX_PROGRAMS), REDUCTION_BLOCK
    partial = torch.empty(programs, dtype=torch.float64, device=g.device)
    first = g, corrected, spread, partial
    launch(scalar_dual.dual_gradient, (programs,), *first, n, B=block, num_warps=8)
    tensors = g, z.contiguous(), measured, corrected, spread, root, partial, outer, out
    numbers = target, temperature, _max_margin(z), n, groups, programs
    sizes = {"G": triton.next_power_of_2(groups), "B": ELEMENTWISE_BLOCK, "S": MAX_PROGRAMS}
    grid = (triton.cdiv(n, ELEMENTWISE_BLOCK),)
    launch(scalar_dual.vjp, grid, *tensors, *numbers, **sizes)
    return out


def _max_margin(z: Tensor) -> float:
    """Margin, in units of T, beyond which a probability is 0 or 1 to the last digit."""
    return 1e6 if z.dtype == torch.float64 else 5e3

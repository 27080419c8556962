"""The primitives of ``paper`` and ``papc`` on CUDA: see :mod:`fairmp.kernels.reference`."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from fairmp.kernels.cuda import coupling as cuda_coupling
from fairmp.kernels.cuda.launch import ELEMENTWISE_BLOCK as EACH
from fairmp.kernels.cuda.launch import REDUCTION_BLOCK as SUMMED
from fairmp.kernels.cuda.launch import launch, programs_for, reduction_buffers


def predicted(
    p: Tensor, agg: Tensor, reach: Tensor, measured: Tensor, pull: Tensor, gamma: float
) -> tuple[Tensor, Tensor]:
    """Predict with the pull there is, and sum by cell what is predicted."""
    n, (cells, classes) = agg.size(0), pull.shape
    q = torch.empty_like(agg, memory_format=torch.contiguous_format)
    programs, sizes = _by_cells(agg, cells)
    partial, out, counter = reduction_buffers(agg, programs, cells * classes)
    launch(
        cuda_coupling.predicted,
        (programs,),
        p.contiguous(),
        agg.contiguous(),
        reach,
        measured,
        pull.contiguous(),
        q,
        partial,
        out,
        counter,
        gamma,
        n,
        cells,
        **sizes,
    )
    return q, out.view(cells, classes)


def corrected(
    p: Tensor, agg: Tensor, reach: Tensor, pull: Tensor, gamma: float
) -> tuple[Tensor, Tensor]:
    """Correct logits, and take their softmax."""
    n, classes = agg.shape
    padded = triton.next_power_of_2(classes)
    block = max(1, EACH // padded)
    out = torch.empty_like(agg, memory_format=torch.contiguous_format)
    soft = torch.empty_like(out)
    if n:
        launch(
            cuda_coupling.corrected,
            (triton.cdiv(n, block),),
            p.contiguous(),
            agg.contiguous(),
            reach,
            pull.contiguous(),
            out,
            soft,
            gamma,
            n,
            C=classes,
            CP=padded,
            B=block,
        )
    return out, soft


def coupling_pulls(p: Tensor, g: Tensor, reach: Tensor, cells: int) -> Tensor:
    """Sum by cell what pulls feel of a gradient."""
    n, classes = p.shape
    programs, sizes = _by_cells(p, cells)
    partial, out, counter = reduction_buffers(p, programs, cells * classes)
    launch(
        cuda_coupling.pulls,
        (programs,),
        p.contiguous(),
        g.contiguous(),
        reach,
        partial,
        out,
        counter,
        n,
        cells,
        **sizes,
    )
    return out.view(cells, classes)


def coupling_back(
    p: Tensor,
    q: Tensor,
    g: Tensor,
    reach: Tensor,
    measured: Tensor,
    before: Tensor,
    after: Tensor,
    w: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Pass a gradient back through :func:`predicted` and :func:`corrected`."""
    n, (cells, classes) = g.size(0), w.shape
    a = torch.empty_like(g, memory_format=torch.contiguous_format)
    e = torch.empty_like(a)
    programs, sizes = _by_cells(g, cells)
    partial, out, counter = reduction_buffers(g, programs, cells * classes)
    launch(
        cuda_coupling.back,
        (programs,),
        p.contiguous(),
        q.contiguous(),
        g.contiguous(),
        reach,
        measured,
        before.contiguous(),
        after.contiguous(),
        w.contiguous(),
        a,
        e,
        partial,
        out,
        counter,
        n,
        cells,
        **sizes,
    )
    return a, e, out.view(cells, classes)


def _by_cells(like: Tensor, cells: int) -> tuple[int, dict[str, int]]:
    """Programs and sizes for a pass over rows (n×C) that sums a few cells at once."""
    n, classes = like.shape
    padded, several = triton.next_power_of_2(classes), min(triton.next_power_of_2(cells), 8)
    block = max(1, SUMMED // (padded * several))
    programs = programs_for(like, n, block, 2**16 // (cells * classes))
    return programs, {"C": classes, "CP": padded, "G": several, "B": block}

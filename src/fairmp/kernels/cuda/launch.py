"""Launching Triton kernels where their tensors are, with as many programs as are of use."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

SUMMED = 2048  # numbers a program adds up at once
EACH = 512  # numbers, or rows of two, a program treats one by one


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    """Launch a kernel where its first argument, a tensor, is; Triton alone asks for the current."""
    first: Tensor = arguments[0]
    if first.is_cuda and first.device.index != torch.cuda.current_device():
        with torch.cuda.device(first.device):
            kernel[grid](*arguments, **constants)
    else:
        kernel[grid](*arguments, **constants)


def programs_for(like: Tensor, n: int, block: int, most: int = 2**16) -> int:
    """Programs for a pass over n rows: no more than run at once, each with something to do."""
    return max(1, min(triton.cdiv(n, block), 8 * processors(like), most))


def processors(like: Tensor) -> int:
    """How many programs can run side by side."""
    if like.device.type != "cuda":  # Triton's interpreter runs one program after the other
        return 1
    return torch.cuda.get_device_properties(like.device).multi_processor_count


def room_for_sums(like: Tensor, programs: int, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """A result, a counter at 0, and room for what each program finds."""
    out = torch.zeros(size + 1, dtype=torch.float64, device=like.device)
    partial = torch.empty((programs, size), dtype=torch.float64, device=like.device)
    return out[:size], out[size:].view(torch.int32), partial

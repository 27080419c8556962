"""Launching Triton kernels on the device of their tensors."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

REDUCTION_BLOCK = 2048  # numbers a program sums at once
ELEMENTWISE_BLOCK = 512  # numbers, or rows of two, per program


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    """Launch a kernel on the device of its first argument; Triton alone uses the current one."""
    first: Tensor = arguments[0]
    if first.is_cuda and first.device.index != torch.cuda.current_device():
        with torch.cuda.device(first.device):
            kernel[grid](*arguments, **constants)
    else:
        kernel[grid](*arguments, **constants)


def block_sizes(classes: int, numbers: int) -> dict[str, int]:
    """Constants of a kernel over rows: classes, padded classes, and rows per block."""
    padded = triton.next_power_of_2(classes)
    return {"C": classes, "CP": padded, "B": max(1, numbers // padded)}


def programs_for(like: Tensor, n: int, block: int, most: int = 2**16) -> int:
    """Programs for a pass over n rows: no more than run at once, none without rows."""
    return max(1, min(triton.cdiv(n, block), 8 * processors(like), most))


def processors(like: Tensor) -> int:
    """Number of streaming multiprocessors."""
    if like.device.type != "cuda":  # Triton's interpreter runs one program after the other
        return 1
    return torch.cuda.get_device_properties(like.device).multi_processor_count


def reduction_buffers(like: Tensor, programs: int, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """The parts of each program, the result, and a counter at 0."""
    out = torch.zeros(size + 1, dtype=torch.float64, device=like.device)
    partial = torch.empty((programs, size), dtype=torch.float64, device=like.device)
    return partial, out[:size], out[size:].view(torch.int32)

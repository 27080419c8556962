"""Launching Triton kernels on the device their tensors are on."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    """Launch a kernel where its first argument, a tensor, is; Triton alone asks for the current."""
    first: Tensor = arguments[0]
    if first.is_cuda and first.device.index != torch.cuda.current_device():
        with torch.cuda.device(first.device):
            kernel[grid](*arguments, **constants)
    else:
        kernel[grid](*arguments, **constants)

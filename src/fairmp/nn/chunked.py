"""A transform in pieces: the same result and gradients in memory that does not grow with n."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm
from torch_geometric.nn.norm import BatchNorm

from fairmp.errors import InputError


def chunked(module: nn.Module, x: Tensor, size: int) -> Tensor:
    """Call a module on ``size`` rows of ``x`` at a time; like ``module(x)``, results and gradients.

    Nothing between the rows of ``x`` and those of the result is kept: the backward pass computes it
    again, piece by piece, with the same random numbers. So the memory it takes grows with ``size``
    and not with n, at the price of one more forward pass.

    Args:
        module: a transform that treats each row by itself, such as an MLP.
        x: input (n×…). It may lie on another device than the module: then its pieces travel.
        size: rows in a piece.

    Example:
        >>> module, x = nn.Linear(3, 2), torch.randn(10, 3)
        >>> torch.allclose(chunked(module, x, size=4), module(x))
        True
    """
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise InputError(
            "size", f"{size!r} is not a number of rows", "give a whole number, 1 or more"
        )
    if x.dim() == 0 or x.size(0) == 0:
        raise InputError(
            "x", f"shape {tuple(x.shape)} has no rows to transform", "give one or more"
        )
    for name, part in module.named_modules():
        if _mixes_rows(part):
            raise InputError(
                "module",
                f"{name or type(part).__name__} normalises over all rows, and a piece is not all",
                "use torch.nn.LayerNorm, or no normalisation",
            )
    weights = [p for p in module.parameters() if p.requires_grad]
    result: Tensor = _Chunked.apply(module, x, size, *weights)
    return result


def _mixes_rows(part: nn.Module) -> bool:
    if isinstance(part, _BatchNorm):
        return part.training
    # PyG's normalise over a graph, all but these two.
    if not type(part).__module__.startswith("torch_geometric.nn.norm"):
        return False
    return not isinstance(part, BatchNorm) and getattr(part, "mode", "graph") != "node"


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, module: nn.Module, x: Tensor, size: int, *weights: Tensor) -> Tensor:
        ctx.module, ctx.size, ctx.device = module, size, _device(module, x)
        ctx.random = _Random(ctx.device)
        ctx.casting = _Autocast(ctx.device)
        ctx.save_for_backward(x, *weights)
        out: Tensor | None = None
        for rows, piece in _pieces(x, size, ctx.device):
            y = module(piece)
            if out is None:
                out = y.new_empty(x.size(0), *y.shape[1:])
            out[rows] = y
        assert out is not None
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, *weights = ctx.saved_tensors
        sums: list[Tensor | None] = [None] * len(weights)
        grad_x = torch.empty_like(x) if ctx.needs_input_grad[1] else None
        with ctx.random.again(), ctx.casting.again(), torch.enable_grad():
            for rows, piece in _pieces(x, ctx.size, ctx.device):
                leaf = piece.detach().requires_grad_(grad_x is not None)
                wanted = weights if grad_x is None else [leaf, *weights]
                found = list(
                    torch.autograd.grad(ctx.module(leaf), wanted, grad[rows], allow_unused=True)
                    if wanted
                    else ()
                )
                if grad_x is not None:
                    grad_x[rows] = 0 if found[0] is None else found[0]
                    del found[0]
                sums = [_added(old, new) for old, new in zip(sums, found, strict=True)]
        return None, grad_x, None, *sums


def _pieces(x: Tensor, size: int, device: torch.device) -> Iterator[tuple[slice, Tensor]]:
    for start in range(0, x.size(0), size):
        rows = slice(start, start + size)
        yield rows, x[rows].to(device, non_blocking=True)


def _device(module: nn.Module, x: Tensor) -> torch.device:
    first = next(module.parameters(), None)
    return x.device if first is None else first.device


def _added(old: Tensor | None, new: Tensor | None) -> Tensor | None:
    if old is None or new is None:
        return new if old is None else old
    return old.add_(new)


class _Random:
    """The state of the random numbers, to draw the same ones once more."""

    def __init__(self, device: torch.device) -> None:
        self.devices = [device] if device.type == "cuda" else []
        self.cpu = torch.get_rng_state()
        self.cuda = [torch.cuda.get_rng_state(d) for d in self.devices]

    @contextmanager
    def again(self) -> Iterator[None]:
        with torch.random.fork_rng(self.devices):
            torch.set_rng_state(self.cpu)
            for device, state in zip(self.devices, self.cuda, strict=True):
                torch.cuda.set_rng_state(state, device)
            yield


class _Autocast:
    """The mixed precision of the forward pass, for the same pass in the backward one."""

    def __init__(self, device: torch.device) -> None:
        self.kind = device.type
        self.enabled = torch.is_autocast_enabled(self.kind)
        self.dtype = torch.get_autocast_dtype(self.kind)

    def again(self) -> torch.autocast:
        return torch.autocast(self.kind, dtype=self.dtype, enabled=self.enabled)

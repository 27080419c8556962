"""A transform applied to chunks of rows, in memory that does not grow with their number."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fairmp.errors import InputError, check_integer, check_number
from fairmp.kernels import apply

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def chunked(module: nn.Module, x: Tensor, size: int, *, keep: float = 0.0) -> Tensor:
    """Call a module on ``size`` rows of ``x`` at a time: as ``module(x)``, gradients included.

    The backward pass computes hidden layers again, chunk by chunk and with the same random numbers.
    So the memory for them grows with ``size`` and not with n, at the price of one more forward
    pass. Gradients reach the module's parameters and ``x``, once.

    Args:
        module: a transform that treats each row by itself, such as an MLP.
        x: input (n×…). It may be on another device than the module: chunks are copied to it.
        size: rows per chunk.
        keep: share of the free memory that hidden layers may take. Where all of them fit, judging
            by the first chunk, they are kept and not computed again.

    Example:
        >>> chunked(nn.ReLU(), torch.tensor([[-1.0, 2.0], [3.0, -4.0], [5.0, 6.0]]), size=2)
        tensor([[0., 2.],
                [3., 0.],
                [5., 6.]])
    """
    check_integer("size", size, "give the number of rows per chunk, 1 or more")
    check_number("keep", keep, "give a share of the free memory, in [0, 1]", low=0, high=1)
    if x.dim() == 0 or x.size(0) == 0:
        raise InputError("x", f"shape {tuple(x.shape)} has no rows", "give one or more")
    for name, part in module.named_modules():
        if _mixes_rows(part):
            value = f"{name or type(part).__name__} normalizes over all rows, not only over a chunk"
            raise InputError("module", value, "use torch.nn.LayerNorm, or no normalization")
    first = next(module.parameters(), x)

    def run(rows: Tensor) -> Tensor:
        result: Tensor = module(rows.to(first.device, non_blocking=True))
        return result

    def recomputed(rows: Tensor) -> Tensor:
        result: Tensor = apply(_Recomputed, run, size, first.device, rows, *module.parameters())
        return result

    if not keep:
        return recomputed(x)
    # Tensors that the gradient needs, by storage; those of the module and of x are there anyway.
    saved: dict[int, int] = {}
    present = {part.untyped_storage().data_ptr() for part in (x, *module.parameters())}

    def record(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = 0 if storage.data_ptr() in present else storage.nbytes()
        return tensor

    first_rows, *later_rows = x.split(size)
    free = free_bytes(first.device)
    with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
        parts = [run(first_rows)]
    if len(later_rows) * sum(saved.values()) <= keep * free:
        parts += [run(rows) for rows in later_rows]
    elif later_rows:
        parts.append(recomputed(x[size:]))
    return torch.cat(parts)


class _Recomputed(torch.autograd.Function):
    """A function of chunks of rows, whose hidden layers are computed again in the backward pass.

    Nothing that is allocated for a chunk outlives it: results and gradients go to tensors that are
    there before. Otherwise they would lie in the memory that a chunk's hidden layers leave, which
    then is too small for those of the next, and the process grows by every chunk.
    """

    @staticmethod
    def forward(
        ctx: Any,
        run: Callable[[Tensor], Tensor],
        size: int,
        device: torch.device,
        x: Tensor,
        *parameters: Tensor,
    ) -> Tensor:
        ctx.run, ctx.size, ctx.device, ctx.parameters = run, size, device, parameters
        ctx.random_states = _random_states(device)
        ctx.autocast = {kind: _autocast_type(kind) for kind in {"cpu", device.type}}
        ctx.save_for_backward(x, *parameters)
        result: Tensor | None = None
        with _autocast(ctx.autocast):
            for start in range(0, len(x), size):
                rows = run(x[start : start + size])
                if result is None:
                    result = rows.new_empty(len(x), *rows.shape[1:])
                result[start : start + size] = rows
        assert result is not None
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, *_ = ctx.saved_tensors  # raises if a parameter was changed since
        trained = [parameter for parameter in ctx.parameters if parameter.requires_grad]
        totals: list[Tensor | None] = [None] * len(trained)
        grad_x = torch.zeros_like(x) if ctx.needs_input_grad[3] else None
        with (
            _restored(ctx.random_states, ctx.device),
            _autocast(ctx.autocast),
            torch.enable_grad(),
        ):
            for start in range(0, len(x), ctx.size):
                part = slice(start, start + ctx.size)
                rows = x[part].detach().requires_grad_(grad_x is not None)
                out = ctx.run(rows)
                if not out.requires_grad:
                    continue
                wanted = trained if grad_x is None else [*trained, rows]
                gradients = torch.autograd.grad(out, wanted, grad[part], allow_unused=True)
                for k, gradient in enumerate(gradients[: len(trained)]):
                    totals[k] = _added(totals[k], gradient)
                if grad_x is not None and gradients[-1] is not None:
                    grad_x[part] = gradients[-1]
        remaining = iter(totals)
        return (
            *(None, None, None, grad_x),
            *(next(remaining) if parameter.requires_grad else None for parameter in ctx.parameters),
        )


def _added(total: Tensor | None, gradient: Tensor | None) -> Tensor | None:
    if total is None or gradient is None:
        return gradient if total is None else total
    return total.add_(gradient)


def _random_states(device: torch.device) -> list[Tensor]:
    """The random numbers of the CPU, and of a GPU."""
    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state(device)] if device.type == "cuda" else states


@contextmanager
def _restored(states: list[Tensor], device: torch.device) -> Iterator[None]:
    """Replay the random numbers of earlier states, then continue with the current ones."""
    with torch.random.fork_rng([device] if len(states) > 1 else []):
        torch.set_rng_state(states[0])
        if len(states) > 1:
            torch.cuda.set_rng_state(states[1], device)
        yield


def _autocast_type(kind: str) -> torch.dtype | None:
    """The type that a kind of device computes in under autocast, if that is on."""
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None


@contextmanager
def _autocast(types: dict[str, torch.dtype | None]) -> Iterator[None]:
    """Compute in these types; casts of weights are not kept, as they have no gradient here."""
    with ExitStack() as stack:
        for kind, dtype in types.items():
            if dtype is not None:
                stack.enter_context(torch.autocast(kind, dtype=dtype, cache_enabled=False))
        yield


def free_bytes(device: torch.device) -> int:
    """Memory of a device that is not in use; 0 where the system does not say."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError):
        return 0


def _mixes_rows(part: nn.Module) -> bool:
    if isinstance(part, BATCH_NORMS):
        return part.training
    # PyG's normalize over a graph, except for BatchNorm, which wraps torch's, and mode="node".
    kind = type(part)
    if not kind.__module__.startswith("torch_geometric.nn.norm") or kind.__name__ == "BatchNorm":
        return False
    return getattr(part, "mode", "graph") != "node"

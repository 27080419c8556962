"""A transform applied to chunks of rows, in memory that does not grow with their number."""

from __future__ import annotations

import os
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fairmp.errors import InputError, check_integer, check_number

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def chunked(module: nn.Module, x: Tensor, size: int, *, keep: float = 0.0) -> Tensor:
    """Call a module on ``size`` rows of ``x`` at a time; results and gradients of ``module(x)``.

    The backward pass computes hidden layers again, chunk by chunk and with the same random numbers
    (see :mod:`torch.utils.checkpoint`). So the memory for them grows with ``size`` and not with n,
    at the price of one more forward pass.

    Args:
        module: a transform that treats each row by itself, such as an MLP.
        x: input (n×…). It may be on another device than the module: chunks are copied to it.
        size: rows per chunk.
        keep: share of the free memory that hidden layers may take. Where all of them fit, judging
            by the first chunk, they are kept and not computed again.

    Example:
        >>> module, x = nn.Linear(3, 2), torch.randn(10, 3)
        >>> torch.allclose(chunked(module, x, size=4), module(x))
        True
    """
    check_integer("size", size, "give the number of rows per chunk, 1 or more")
    check_number("keep", keep, "give a share of the free memory, in [0, 1]", low=0, high=1)
    if x.dim() == 0 or x.size(0) == 0:
        raise InputError("x", f"shape {tuple(x.shape)} has no rows", "give one or more")
    for name, part in module.named_modules():
        if _mixes_rows(part):
            value = f"{name or type(part).__name__} normalizes over all rows, not only over a chunk"
            raise InputError("module", value, "use torch.nn.LayerNorm, or no normalization")
    # An argument on the module's device makes checkpoint restore its random numbers as well.
    first = next(module.parameters(), x)

    def run(rows: Tensor, _: Tensor) -> Tensor:
        result: Tensor = module(rows.to(first.device, non_blocking=True))
        return result

    if not keep:
        return torch.cat([checkpoint(run, r, first, use_reentrant=False) for r in x.split(size)])
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
        parts = [run(first_rows, first)]
    fits = len(later_rows) * sum(saved.values()) <= keep * free
    again = run if fits else partial(checkpoint, run, use_reentrant=False)
    return torch.cat(parts + [again(rows, first) for rows in later_rows])


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

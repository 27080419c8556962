"""The few operations that touch every node or edge, three ways.

``reference`` is plain torch. ``cpu`` (numba) and ``cuda`` (Triton) do the same in fewer passes
over memory, and take its place where their compiler is installed. All are deterministic, and tests
hold them equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

import torch

from fairmp.errors import InputError
from fairmp.kernels import reference
from fairmp.kernels.ops import gather, segment_sum, spmm
from fairmp.kernels.rows import softmax

COMPILERS = {"cpu": "numba", "cuda": "triton"}

_asked: ContextVar[str | None] = ContextVar("kernels", default=None)


def implementation(like: torch.Tensor) -> ModuleType:
    """The primitives for a tensor's device and type.

    Example:
        >>> with use("reference"):
        ...     implementation(torch.zeros(1)).__name__
        'fairmp.kernels.reference'
    """
    if _asked.get() == "reference" or like.dtype not in (torch.float32, torch.float64):
        return reference
    return _compiled(like.device.type)


@contextmanager
def use(name: str) -> Iterator[None]:
    """Use the ``"reference"`` primitives for a while, or the ``"fastest"`` there are.

    Example:
        >>> with use("reference"):
        ...     segment_sum(torch.ones(2, 1), torch.zeros(2, dtype=torch.int32), 1)
        tensor([[2.]])
    """
    if name not in ("reference", "fastest"):
        raise InputError("kernels", f"{name!r} is unknown", "choose 'reference' or 'fastest'")
    token = _asked.set(name)
    try:
        yield
    finally:
        _asked.reset(token)


@cache
def _compiled(device: str) -> ModuleType:
    compiler = COMPILERS.get(device)
    if compiler is None or find_spec(compiler) is None:
        return reference
    try:
        return import_module(f"fairmp.kernels.{device}.primitives")
    except ImportError:  # installed, but not for this Python or NumPy
        return reference


__all__ = ["gather", "implementation", "segment_sum", "softmax", "spmm", "use"]

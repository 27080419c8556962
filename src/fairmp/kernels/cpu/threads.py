"""How loops over chunks of fixed size are compiled, and spread over threads."""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import Lock
from types import FunctionType
from typing import Any

import numba
import torch
from numpy.typing import NDArray

Array = NDArray[Any]
Index = Any  # an unsigned number: for signed ones numba asks whether they count from the end

SMALL = 32_768  # numbers read, below which waking a thread costs more than it saves

_CONFIG: Any = numba.config
_PROCESS = os.getpid()
_ONE_AT_A_TIME = Lock()  # numba's own thread pool ends the process if two threads enter it


class _Vectorised:
    """Let what is compiled meanwhile add side by side what stands side by side.

    For the sums of a strip's classes, which then are one addition. Off in numba by default.
    """

    def __init__(self) -> None:
        self._lock, self._inside, self._before = Lock(), 0, 0

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._before = getattr(_CONFIG, "SLP_VECTORIZE", 0)
                _CONFIG.SLP_VECTORIZE = 1
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                _CONFIG.SLP_VECTORIZE = self._before


_VECTORISED = _Vectorised()


def chunk_size(nodes: int, numbers: int = 1) -> int:
    """How many nodes a chunk has whose result is so many numbers.

    Results are kept until all chunks are done, so there must be neither too many nor too large
    ones for their nodes. The number of threads has no say in it.

    Example:
        >>> chunk_size(1_000), chunk_size(100_000_000)
        (2048, 97657)
    """
    return max(2048, -(-nodes // 1024), 4 * numbers)


def compiled(function: Callable[..., Any], *, inline: bool = False) -> Callable[..., Any]:
    """Compile as a part of the compiled functions that call it.

    Arithmetic is as written, without ``fastmath``: the compiler may then change neither the order
    of a sum nor its rounding, and the bits do not depend on what a function is inlined into.
    """
    # No way in from Python: making one takes as long as compiling a small function.
    options: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return numba.njit(error_model="numpy", forceinline=inline, **options)(function)


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile into each caller: handing over an array costs as much as a row's sum."""
    return compiled(function, inline=True)


class Chunked:
    """A function that loops over chunks with ``prange``, for one thread and for several.

    A chunk writes to places of its own, so the result is the same however many threads share them.
    """

    def __init__(self, function: Callable[..., None]) -> None:
        assert isinstance(function, FunctionType)
        # A name of its own, since numba's cache does not tell the two apart.
        name = f"{function.__name__}_parallel"
        copy = FunctionType(function.__code__, function.__globals__, name)
        copy.__qualname__ = name
        self._serial = _entry(function, parallel=False)
        self._parallel = _entry(copy, parallel=True)

    def __call__(self, work: int, *args: Any) -> None:
        """Run on as many threads as torch would use, or on this one where ``work`` is little."""
        threads = 1 if work < SMALL else _threads()
        with _VECTORISED:
            if threads == 1:
                self._serial(*args)
                return
            with _ONE_AT_A_TIME:
                before = numba.get_num_threads()
                if threads != before:  # setting it takes as long as a small pass
                    numba.set_num_threads(threads)
                try:
                    self._parallel(*args)
                finally:
                    if threads != before:
                        numba.set_num_threads(before)


def _entry(function: Callable[..., Any], parallel: bool) -> Callable[..., Any]:
    """Compile on first call, once for good where a folder can be written to."""
    options: dict[str, Any] = {"error_model": "numpy", "nogil": True, "parallel": parallel}
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # numba found no folder to keep it in
        return numba.njit(**options)(function)


def _threads() -> int:
    if os.getpid() != _PROCESS:
        return 1  # a forked process has none of its parent's threads
    return min(torch.get_num_threads(), _CONFIG.NUMBA_NUM_THREADS)

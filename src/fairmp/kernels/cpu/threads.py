"""Compilation of loops over chunks of fixed size, their threads, and the arrays they take."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Lock
from types import FunctionType
from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairmp.kernels.types import CSR

Array = NDArray[Any]
CSRArrays = tuple[Array, Array, Any]  # row pointers, columns, and weights or None for ones
Index = Any  # an unsigned integer: for signed ones numba checks whether they count from the end

MIN_PARALLEL_WORK = 32_768  # numbers read, below which waking a thread costs more than it saves

_SOURCES = sorted(Path(__file__).parent.glob("*.py"))
_DIGEST = hashlib.sha256(b"".join(path.read_bytes() for path in _SOURCES)).hexdigest()[:16]
_PROCESS = os.getpid()
_SLP_VECTORIZE = numba.config.SLP_VECTORIZE
_POOL_LOCK = Lock()  # numba's own thread pool aborts the process if two threads enter it


def chunk_size(nodes: int, numbers: int = 1) -> int:
    """Nodes per chunk, for chunks that return so many numbers each; the same for any threads.

    Results are kept until all chunks are done, so they must be neither too many nor too large.
    """
    return max(2048, -(-nodes // 1024), 4 * numbers)


def compiled(function: Callable[..., Any], *, inline: bool = False) -> Callable[..., Any]:
    """Compile as a part of the compiled functions that call it."""
    # Without fastmath, so that the bits do not depend on what a function is inlined into.
    # No entry from Python: making one takes as long as compiling a small function.
    options: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return numba.njit(error_model="numpy", forceinline=inline, **options)(function)


# Compiled into each caller: passing an array costs as much as summing a row.
inlined = partial(compiled, inline=True)


class Chunked:
    """A function that loops over chunks with ``prange``, compiled for one thread and for several.

    Each chunk writes to its own part of the output, so threads do not change the result.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        assert isinstance(function, FunctionType)
        self._serial = _Entry(function, parallel=False)
        self._parallel = _Entry(function, parallel=True)

    def __call__(self, work: int, *args: Any) -> Any:
        """Run on as many threads as torch would use, or on this one where there is little work."""
        threads = min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS)
        # A forked process has none of its parent's threads.
        if threads == 1 or work < MIN_PARALLEL_WORK or os.getpid() != _PROCESS:
            return self._serial(*args)
        with _POOL_LOCK:
            before = numba.get_num_threads()
            if threads != before:  # setting it takes as long as a small pass
                numba.set_num_threads(threads)
            try:
                return self._parallel(*args)
            finally:
                if threads != before:
                    numba.set_num_threads(before)


class _Entry:
    """A function compiled on its first call, and kept on disk where there is room for it."""

    def __init__(self, function: FunctionType, *, parallel: bool) -> None:
        # numba's cache is keyed by the name of a function and the date of its file. A name with
        # the digest of all kernels makes it content-addressed: it never runs code of another
        # version.
        name = f"{function.__name__}_{'parallel' if parallel else 'serial'}_{_DIGEST}"
        self._function = FunctionType(function.__code__, function.__globals__, name)
        self._function.__qualname__ = name
        self._options: dict[str, Any] = {
            "error_model": "numpy", "nogil": True, "parallel": parallel
        }  # fmt: skip
        try:
            self._call = numba.njit(cache=True, **self._options)(self._function)
        except RuntimeError:  # numba found no directory for its cache
            self._call = numba.njit(**self._options)(self._function)

    def __call__(self, *args: Any) -> Any:
        # Superword vectorization, in case this call compiles: the sums of neighbouring classes
        # then are one instruction. It is for our functions only.
        numba.config.SLP_VECTORIZE = 1
        try:
            return self._call(*args)
        except OSError:  # a full disk, say: compile without a cache
            self._call = numba.njit(**self._options)(self._function)
            return self._call(*args)
        finally:
            numba.config.SLP_VECTORIZE = _SLP_VECTORIZE


def array(tensor: Tensor, dtype: torch.dtype | None = None) -> Array:
    """View a tensor as an array, converted and contiguous."""
    # This runs for every argument of every pass: what is not needed is not called.
    if tensor.requires_grad:
        tensor = tensor.detach()
    if dtype is not None and tensor.dtype != dtype:
        tensor = tensor.to(dtype)
    return (tensor if tensor.is_contiguous() else tensor.contiguous()).numpy()


def csr_arrays(matrix: CSR, dtype: torch.dtype) -> CSRArrays:
    """View a matrix as arrays, its values converted."""
    row, columns = array(matrix.row), array(matrix.col)
    # Columns are never negative, and unsigned ones need no sign extension.
    columns = columns.view(np.uint32 if columns.itemsize == 4 else np.uint64)
    return row, columns, None if matrix.weight is None else array(matrix.weight, dtype)

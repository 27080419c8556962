"""Compilation of loops over chunks of fixed size, their threads, and the arrays they take."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Lock
from types import FunctionType
from typing import Any

import numba
import numpy as np
import torch
from numba.core import compiler
from numba.core.caching import IndexDataCacheFile
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[Any]
Matrix = tuple[Array, Array, Any]  # row pointers, columns, and weights or None for ones
Index = Any  # an unsigned integer: for signed ones numba checks whether they count from the end

MIN_PARALLEL_WORK = 32_768  # numbers read, below which waking a thread costs more than it saves

# numba's own stamp is of the file that a function is in, without those it calls into.
_SOURCES = sorted(Path(__file__).parent.glob("*.py"))
_STAMP = hashlib.sha256(b"".join(path.read_bytes() for path in _SOURCES)).digest()
_CONFIG: Any = numba.config
_PROCESS = os.getpid()
_POOL_LOCK = Lock()  # numba's own thread pool aborts the process if two threads enter it


class _VectorizingCompiler(compiler.Compiler):
    """numba's compiler with superword vectorization, which only a global setting turns on."""

    # The sums of neighbouring classes then are one instruction. numba compiles under a lock.
    def _compile_core(self) -> Any:
        before, _CONFIG.SLP_VECTORIZE = _CONFIG.SLP_VECTORIZE, 1
        try:
            return super()._compile_core()
        finally:
            _CONFIG.SLP_VECTORIZE = before


class _CacheFile(IndexDataCacheFile):
    """numba's cache on disk, in which a name never stands for two pieces of code.

    numba numbers the files, and writes the index first: a process that is killed then leaves an
    index that names the code of an older version, and every later process runs that.
    """

    def save(self, key: Any, data: Any) -> None:
        overloads = self._load_index()
        digest = hashlib.sha256(repr((self._source_stamp, key)).encode()).digest()
        overloads[key] = self._data_name(int.from_bytes(digest[:8], "big"))
        with suppress(OSError):  # a full disk: it is compiled again next time
            self._save_data(overloads[key], data)
            self._save_index(overloads)


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
        # A name of its own, since numba's cache would mistake one for the other.
        name = f"{function.__name__}_parallel"
        copy = FunctionType(function.__code__, function.__globals__, name)
        copy.__qualname__ = name
        self._serial = _entry(function, parallel=False)
        self._parallel = _entry(copy, parallel=True)

    def __call__(self, work: int, *args: Any) -> Any:
        """Run on as many threads as torch would use, or on this one where there is little work."""
        threads = min(torch.get_num_threads(), _CONFIG.NUMBA_NUM_THREADS)
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


def _entry(function: Callable[..., Any], parallel: bool) -> Callable[..., Any]:
    """Compile on the first call, and keep the result on disk where a directory is writable."""
    options: dict[str, Any] = {"error_model": "numpy", "nogil": True, "parallel": parallel}
    options["pipeline_class"] = _VectorizingCompiler
    try:
        entry: Any = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # numba found no directory for its cache
        return numba.njit(**options)(function)
    entry._cache._cache_file.__class__ = _CacheFile
    entry._cache._cache_file._source_stamp = entry._cache._cache_file._source_stamp, _STAMP
    return entry


def array(tensor: Tensor, dtype: torch.dtype | None = None) -> Array:
    """View a tensor as an array, converted and contiguous."""
    tensor = tensor.detach() if dtype in (None, tensor.dtype) else tensor.detach().to(dtype)
    return tensor.contiguous().numpy()


def matrix_arrays(matrix: tuple[Any, ...], dtype: torch.dtype) -> Matrix:
    """View a matrix in CSR format, of row pointers, columns and weights or None, as arrays."""
    row, columns, weight = array(matrix[0]), array(matrix[1]), matrix[2]
    # Columns are never negative, and unsigned ones need no sign extension.
    columns = columns.view(np.uint32 if columns.itemsize == 4 else np.uint64)
    return row, columns, None if weight is None else array(weight, dtype)

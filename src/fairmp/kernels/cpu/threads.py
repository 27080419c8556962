"""Compilation of loops over chunks of fixed size, their threads, and the arrays they take."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Lock, get_ident
from types import FunctionType
from typing import Any

import numba
import numpy as np
import torch
from filelock import FileLock
from numba.core.event import Event, Listener, register
from numpy.typing import NDArray
from torch import Tensor

from fairmp.kernels import root
from fairmp.kernels.types import CSR

Array = NDArray[Any]
CSRArrays = tuple[Array, Array, Any]  # row pointers, columns, and weights or None for ones
Index = Any  # an unsigned integer: for signed ones numba checks whether they count from the end

MIN_PARALLEL_WORK = 32_768  # numbers read, below which waking a thread costs more than it saves

_SOURCES = [*sorted(Path(__file__).parent.glob("*.py")), Path(root.__file__)]
_DIGEST = hashlib.sha256(b"".join(path.read_bytes() for path in _SOURCES)).hexdigest()[:16]
_PROCESS = os.getpid()
_LOCKS: dict[Any, Path | None] = {}  # in the cache's directory, by numba's dispatcher
_HELD: dict[int, FileLock] = {}  # by thread, while it compiles
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
        self._serial = _jit(function, parallel=False)
        self._parallel = _jit(function, parallel=True)

    def __call__(self, work: int, *args: Any) -> Any:
        """Run on as many threads as torch would use, or on this one where there is little work."""
        threads = torch.get_num_threads()
        # A forked process has none of its parent's threads.
        if threads == 1 or work < MIN_PARALLEL_WORK or os.getpid() != _PROCESS:
            return _call(self._serial, args)
        threads = min(threads, numba.config.NUMBA_NUM_THREADS)
        with _POOL_LOCK:
            before = numba.get_num_threads()
            if threads != before:  # setting it takes as long as a small pass
                numba.set_num_threads(threads)
            try:
                return _call(self._parallel, args)
            finally:
                if threads != before:
                    numba.set_num_threads(before)


def _call(function: Any, args: tuple[Any, ...]) -> Any:
    try:
        return function(*args)
    except OSError:  # compiled, but not saved, on a full disk, say
        return function(*args)
    finally:
        if _HELD:
            _release_cache()


def _jit(function: FunctionType, *, parallel: bool) -> Any:
    """Compile a function for each new type of arguments, and cache the code on disk.

    numba's cache is keyed by the name of a function and the date of its file. With the digest of
    all kernels in the name, the cache is content-addressed: a change of any kernel is compiled
    again, and a process that is killed while it saves cannot leave older code under a newer date.
    """
    name = f"{function.__name__}_{'parallel' if parallel else 'serial'}_{_DIGEST}"
    renamed = FunctionType(function.__code__, function.__globals__, name)
    renamed.__qualname__ = name
    jit = partial(numba.njit, error_model="numpy", nogil=True, parallel=parallel)
    try:
        dispatcher = jit(cache=True)(renamed)
        _LOCKS[dispatcher] = Path(dispatcher.stats.cache_path) / "fairmp-kernels.lock"
    except RuntimeError:  # numba found no directory for its cache
        dispatcher = jit()(renamed)
        _LOCKS[dispatcher] = None
    return dispatcher


class _Compilation(Listener):
    """What happens while numba compiles one of our functions; others are left alone."""

    def on_start(self, event: Event) -> None:
        """Hold off other processes until the code is saved, and set the compiler's options."""
        if event.data["dispatcher"] not in _LOCKS:
            return
        # numba numbers the files of a function: without a lock, two processes might give the same
        # number to code for different types of arguments.
        path = _LOCKS[event.data["dispatcher"]]
        if path is not None and get_ident() not in _HELD:
            with suppress(OSError, NotImplementedError):  # a file system without locks
                lock = FileLock(path)
                lock.acquire()
                _HELD[get_ident()] = lock
        # Superword vectorization makes sums of neighbouring classes one instruction.
        self._before, numba.config.SLP_VECTORIZE = numba.config.SLP_VECTORIZE, 1

    def on_end(self, event: Event) -> None:
        """Restore the compiler's options."""
        if event.data["dispatcher"] in _LOCKS:
            numba.config.SLP_VECTORIZE = self._before


def _release_cache() -> None:
    lock = _HELD.pop(get_ident(), None)
    if lock is not None:
        lock.release()


register("numba:compile", _Compilation())


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

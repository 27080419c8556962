"""One pool of worker processes for everything that trains several models side by side."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from typing import Any, Generic, Self, TypeVar

import torch

from fairmp.errors import InputError, check_integer

Job = TypeVar("Job")
Result = TypeVar("Result")
MAX_REASON = 300  # characters


def default_workers() -> int:
    """One process per core, at most 8."""
    return min(os.cpu_count() or 1, 8)


def failure_reason(error: Exception) -> str:
    """One line that says why a job failed: a wrong input in its own words, or a bug by its type."""
    reason = " ".join(str(error).split())[:MAX_REASON]
    return reason if isinstance(error, InputError) else f"{type(error).__name__}: {reason}"


class WorkerPool(Generic[Job, Result]):
    """Processes that apply one function to many jobs, with one torch thread each.

    Sums over several threads round differently. With one thread a result depends neither on the
    number of workers nor on what else the machine does. Workers end with the process that started
    them, however it ends; those of joblib finish their jobs first.
    """

    def __init__(self, function: Callable[[Job], Result], workers: int = 1) -> None:
        self.workers = check_integer("workers", workers, "give a number of processes, 1 or more")
        self._function = function
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Self:
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)
        if self.workers > 1:
            self._other_children = set(multiprocessing.active_children())
            # A forked process would inherit torch's threads in an unknown state. Plain pickle,
            # because torch's own passes tensors in shared memory, which containers have little of.
            spawn, function = multiprocessing.get_context("spawn"), pickle.dumps(self._function)
            self._pool = ProcessPoolExecutor(self.workers, spawn, _start, (function,))
        return self

    def map(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Result]]:
        """Yield each job with its result, in the order in which they finish."""
        if self._pool is None:
            for job in jobs:
                yield job, self._function(job)
            return
        try:
            running = {self._pool.submit(_call, job): job for job in jobs}
            for future in as_completed(running):
                yield running[future], pickle.loads(future.result())
        except BrokenProcessPool:
            value = f"one of {self.workers} processes died, perhaps for lack of memory"
            hint = "run it again with fewer {workers}"
            raise InputError("workers", value, hint) from None

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        torch.set_num_threads(self._threads)
        if self._pool is None:
            return
        if error is not None:
            for child in set(multiprocessing.active_children()) - self._other_children:
                child.terminate()
        self._pool.shutdown(cancel_futures=True)


_worker: dict[str, Callable[[Any], Any]] = {}  # the function of this process, if it is a worker


def _start(function: bytes) -> None:
    # Ctrl-C reaches every process of a terminal; the parent ends the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    _worker["function"] = pickle.loads(function)


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _call(job: Any) -> bytes:
    return pickle.dumps(_worker["function"](job))

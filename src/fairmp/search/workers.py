"""Who makes a search's trials: this process, or several with one thread each."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.connection import wait as wait_for
from typing import Any

import torch
from optuna.study import Study
from torch_geometric.data import Data

from fairmp.datasets.checks import MASKS
from fairmp.errors import InputError
from fairmp.search.space import Settings, classifier
from fairmp.search.study import Search, opened
from fairmp.search.trials import work
from fairmp.training.classifier import FairClassifier, Run

_LOOK = 0.5
_NEEDED = ("x", "edge_index", "y", "sens", "edge_weight", *MASKS)


class WorkerPool:
    """The processes of a search; make one with :func:`crew`."""

    def __init__(
        self, search: Search, parts: Sequence[Data], pool: ProcessPoolExecutor | None, size: int
    ) -> None:
        self._search, self._parts, self._pool, self._size = search, parts, pool, size

    def work(self, study: Study, deadline: float | None, tell: Callable[[], None]) -> None:
        """Make trials until there are all, or the time is up; ``tell`` is called now and then."""
        if self._pool is None:
            work(study, self._search, self._parts, deadline=deadline, on_trial=tell)
            return
        running: set[Future[None]] = {self._pool.submit(_work, deadline) for _ in range(self._size)}
        while running:
            done, running = wait(running, timeout=_LOOK)
            for future in done:
                future.result()
            tell()

    def train(self, settings: Sequence[Settings]) -> Iterator[list[Run]]:
        """Train settings on every split with intervals, and yield their runs in order."""
        if self._pool is None:
            for one in settings:
                yield final(self._search, one, self._parts)[0]
            return
        for future in [self._pool.submit(_final, one) for one in settings]:
            yield future.result()


@contextmanager
def crew(
    search: Search, about: Mapping[str, Any], parts: Sequence[Data], workers: int
) -> Iterator[WorkerPool]:
    """Start the processes of a search, and end them whatever happens.

    With one worker all is done in this process, with one thread: sums over several round
    differently, and a trial's figures must not depend on who makes it.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    # A fresh interpreter each: a forked one would inherit torch's threads in an unknown state.
    # The graph goes as bytes: torch would hand tensors over in shared memory, of which a container
    # may have little.
    context = multiprocessing.get_context("spawn")
    others = set(multiprocessing.active_children())
    pool = None
    if workers > 1:
        given = (search, dict(about), pickle.dumps([_slim(part) for part in parts]))
        pool = ProcessPoolExecutor(workers, context, initializer=_start, initargs=given)
    well = False
    try:
        yield WorkerPool(search, parts, pool, workers)
        well = True
    except BrokenProcessPool:
        raise InputError(
            "workers",
            f"one of {workers} processes died, perhaps for want of memory",
            "the trials are kept, run the same again with fewer workers",
        ) from None
    finally:
        torch.set_num_threads(threads)
        if pool is not None:
            pool.shutdown(wait=well, cancel_futures=True)
            for child in set(multiprocessing.active_children()) - others:
                if not well:
                    child.terminate()
                child.join()


def final(
    search: Search, settings: Settings, parts: Sequence[Data]
) -> tuple[list[Run], FairClassifier]:
    """Train settings on every split with intervals; return the runs, and the first split's model.

    This is where the test nodes are looked at.
    """
    runs, first = [], None
    for data in parts:
        model = classifier(search.method, settings, search.device)
        runs.append(model.fit(data, seed=search.seed, bootstrap=1000, progress=False))
        first = first or model
    assert first is not None
    return runs, first


def _slim(data: Data) -> Data:
    """A graph without what only a model that is saved needs to know of it."""
    return Data(**{name: data[name] for name in _NEEDED if name in data})


_given: dict[str, Any] = {}


def _start(search: Search, about: Mapping[str, Any], parts: bytes) -> None:
    # Ctrl-C reaches every process of a terminal; the one that began the search ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    _given.update(search=search, about=about, parts=pickle.loads(parts))
    threading.Thread(target=_leave_with_parent, daemon=True).start()


def _leave_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait_for([parent.sentinel])
        os._exit(1)


def _work(deadline: float | None) -> None:
    with opened(_given["search"], _given["about"]) as study:
        work(study, _given["search"], _given["parts"], deadline=deadline)


def _final(settings: Settings) -> list[Run]:
    return final(_given["search"], settings, _given["parts"])[0]

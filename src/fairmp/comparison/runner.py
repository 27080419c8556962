"""One method on one split, and many of them side by side."""

from __future__ import annotations

import math
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any, Literal, TypeVar

import torch
from torch_geometric.data import Data

from fairmp.errors import InputError
from fairmp.training.classifier import FairClassifier

Record = dict[str, Any]
Job = TypeVar("Job")
Result = TypeVar("Result")


def temperature(text: str) -> float | Literal["decisions"]:
    """Read τ at prediction: a number above 0, or ``decisions``.

    Example:
        >>> temperature("0.1"), temperature("decisions")
        (0.1, 'decisions')
    """
    if text == "decisions":
        return "decisions"
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not value > 0:
        raise InputError(
            "predict_temperature", f"{text!r} is neither 'decisions' nor a number above 0"
        )
    return value


def one_split(
    name: str,
    make: Callable[[], FairClassifier],
    data: Data,
    *,
    split: int,
    seed: int = 0,
    bootstrap: int = 0,
    progress: bool | None = False,
) -> tuple[Record, FairClassifier]:
    """Train a method on a split; return a record and the fitted model.

    Split number i has ``split_seed = seed + i``; the initialisation has ``seed`` in all of them,
    so that what varies is the split.

    Args:
        name: of the method, in tables.
        make: makes a classifier that has not been fitted.
        data: the graph.
        split: the split's number.
        seed: of the initialisation, and of split 0.
        bootstrap: resamples for intervals within the split.
        progress: show a bar.

    Example:
        >>> from fairmp.datasets import social_network
        >>> data = social_network(n=200, average_degree=5)
        >>> record, _ = one_split("MLP", lambda: FairClassifier(None, epochs=2), data, split=1)
        >>> record["run"]["split_seed"]
        1
    """
    model = make()
    run = model.fit(
        data, seed=seed, split_seed=seed + split, bootstrap=bootstrap, progress=progress
    )
    record = {
        "name": name,
        "dataset": getattr(data, "name", "graph"),
        "split": split,
        "run": run.to_dict(),
    }
    return record, model


def parallel(
    work: Callable[[Job], Result], jobs: Sequence[Job], *, workers: int
) -> Iterator[tuple[Job, Result]]:
    """Do jobs in processes with one thread each, and yield them as they are done.

    Threads of one training wait for each other at every step, and for whatever else the machine
    does; whole trainings side by side do not. With one worker all is done in this process.
    """
    if workers == 1:
        for job in jobs:
            yield job, work(job)
        return
    # A fresh interpreter each: a forked one would inherit torch's threads in an unknown state.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_one_thread) as pool:
        running = {pool.submit(work, job): job for job in jobs}
        try:
            for done in as_completed(running):
                yield running[done], done.result()
        finally:
            for future in running:
                future.cancel()


def _one_thread() -> None:
    torch.set_num_threads(1)

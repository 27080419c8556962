"""The pool of worker processes."""

from __future__ import annotations

import multiprocessing
import os
import signal

import pytest
import torch

from fairmp.errors import InputError
from fairmp.parallel import WorkerPool


def work(job: int) -> tuple[torch.Tensor, int, int]:
    if job < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return torch.full((3,), job), torch.get_num_threads(), os.getpid()


def test_results_do_not_depend_on_the_number_of_workers() -> None:
    threads = torch.get_num_threads()
    with WorkerPool(work, 1) as pool:
        alone = dict(pool.map(range(4)))
    assert torch.get_num_threads() == threads
    with WorkerPool(work, 2) as pool:
        shared = dict(pool.map(range(4)))
    assert alone.keys() == shared.keys()
    for job, (values, count, process) in alone.items():
        assert torch.equal(values, shared[job][0])
        assert (count, shared[job][1]) == (1, 1)
        assert process == os.getpid() != shared[job][2]


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no SIGKILL here")
def test_a_killed_worker_ends_the_pool() -> None:
    before = set(multiprocessing.active_children())
    with pytest.raises(InputError) as error, WorkerPool(work, 2) as pool:
        list(pool.map([1, -1]))
    assert error.value.argument == "workers"
    assert "\n" not in str(error.value)
    assert set(multiprocessing.active_children()) == before


def test_an_interrupt_ends_the_workers() -> None:
    before = set(multiprocessing.active_children())

    def interrupted() -> None:
        with WorkerPool(work, 2) as pool:
            for _ in pool.map(range(100)):
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert set(multiprocessing.active_children()) == before


def test_the_number_of_workers_is_checked() -> None:
    with pytest.raises(InputError) as error:
        WorkerPool(work, 0)
    assert error.value.argument == "workers"

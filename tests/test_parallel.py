"""The pool of worker processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fairmp.errors import InputError
from fairmp.parallel import WorkerPool


def work(job: int) -> tuple[torch.Tensor, int, int]:
    if job < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return torch.full((3,), job), torch.get_num_threads(), os.getpid()


def test_map_results_do_not_depend_on_workers() -> None:
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
def test_map_raises_if_a_worker_is_killed() -> None:
    before = set(multiprocessing.active_children())
    with pytest.raises(InputError) as error, WorkerPool(work, 2) as pool:
        list(pool.map([1, -1]))
    assert error.value.argument == "workers"
    assert "\n" not in str(error.value)
    assert set(multiprocessing.active_children()) == before


def test_interrupt_ends_the_workers() -> None:
    before = set(multiprocessing.active_children())

    def interrupted() -> None:
        with WorkerPool(work, 2) as pool:
            for _ in pool.map(range(100)):
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert set(multiprocessing.active_children()) == before


PARENT = """
import os, time
from pathlib import Path
from fairmp.parallel import WorkerPool

def busy(folder):
    (Path(folder) / str(os.getpid())).touch()
    time.sleep(600)

if __name__ == "__main__":
    import sys
    with WorkerPool(busy, 2) as pool:
        list(pool.map([sys.argv[1]] * 2))
"""


@pytest.mark.skipif(not Path("/proc").exists(), reason="processes are watched in /proc")
def test_workers_end_with_a_killed_parent(tmp_path: Path) -> None:
    script, folder = tmp_path / "parent.py", tmp_path / "workers"
    script.write_text(PARENT)
    folder.mkdir()
    parent = subprocess.Popen([sys.executable, str(script), str(folder)])
    wait_until(lambda: len(list(folder.iterdir())) == 2 or parent.poll() is not None)
    assert parent.poll() is None
    workers = [Path("/proc") / file.name for file in folder.iterdir()]
    parent.kill()
    parent.wait()
    wait_until(lambda: not any(worker.exists() for worker in workers))


def wait_until(condition: Callable[[], bool], limit_s: float = 60.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_pool_refuses_zero_workers() -> None:
    with pytest.raises(InputError) as error:
        WorkerPool(work, 0)
    assert error.value.argument == "workers"

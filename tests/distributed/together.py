"""Run a function in several processes that form a process group, and return what each returned."""

from __future__ import annotations

import multiprocessing
import os
import socket
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from functools import cache
from multiprocessing.connection import Connection
from typing import Any

WAIT = 120


@cache
def _context() -> Any:
    # Forked from a process that has imported everything and started no thread.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fairmp.distributed.training", "fairmp.kernels.cpu.primitives"])
    return context


def event() -> Any:
    """An event that ranks share."""
    return _context().Event()


def together(
    size: int,
    function: Callable[..., Any],
    *arguments: Any,
    timeout: float = 60.0,
    group: bool = True,
) -> list[Any]:
    """Call ``work(rank, *arguments)`` on each rank; an exception is raised here.

    Without ``group`` each rank is told where to meet, as torchrun tells it, and has yet to join.
    """
    with tempfile.TemporaryDirectory() as folder:
        meeting = f"file://{folder}/meeting" if group else None
        processes, ends = started(size, function, *arguments, timeout=timeout, meeting=meeting)
        try:
            results = [
                end.recv() if end.poll(WAIT) else ("error", f"rank {k}: no answer")
                for k, end in enumerate(ends)
            ]
        finally:
            for process in processes:
                process.join(5)
                if process.is_alive():
                    process.kill()
    for kind, value in results:
        if kind == "error":
            raise AssertionError(value)
    return [value for _, value in results]


def started(
    size: int,
    function: Callable[..., Any],
    *arguments: Any,
    timeout: float = 60.0,
    meeting: str | None = None,
) -> tuple[list[Any], list[Connection]]:
    """Start the ranks, and return their processes and where their answers come out."""
    meeting = meeting or f"127.0.0.1:{free_port()}"
    ends, processes = [], []
    for rank in range(size):
        here, there = _context().Pipe(duplex=False)
        process = _context().Process(
            target=_one, args=(there, meeting, rank, size, timeout, function, arguments)
        )
        process.start()
        there.close()
        ends.append(here)
        processes.append(process)
    return processes, ends


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


def _one(
    end: Connection,
    meeting: str,
    rank: int,
    size: int,
    timeout: float,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    import torch
    import torch.distributed as dist

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    try:
        if meeting.startswith("file:"):
            dist.init_process_group(
                "gloo",
                init_method=meeting,
                rank=rank,
                world_size=size,
                timeout=timedelta(seconds=timeout),
            )
        else:
            address, port = meeting.split(":")
            os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size)}
            os.environ |= {"MASTER_ADDR": address, "MASTER_PORT": port}
        end.send(("value", function(rank, *arguments)))
    except BaseException:
        end.send(("error", traceback.format_exc()))
        os._exit(1)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()

"""Join the ranks that torchrun started."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from fairmp.distributed.ranks import LostTouch, Ranks, reason
from fairmp.errors import InputError

TIMEOUT = 600.0


@contextmanager
def joined(*, device: str = "cpu", timeout: float = TIMEOUT) -> Iterator[Ranks]:
    """Be one of the ranks for a while, or the only one where torchrun started none.

    Args:
        device: ``"cpu"`` (gloo) or ``"cuda"`` (NCCL, a GPU each).
        timeout: seconds to wait for another rank before giving up.

    Example:
        >>> with joined() as ranks:
        ...     ranks.size
        1
    """
    if not timeout > 0:
        raise InputError(
            "timeout", f"{timeout} seconds is no time to wait", "give a number above 0"
        )
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        yield Ranks()
        return
    on_gpu = device.startswith("cuda")
    if on_gpu:
        local, there = int(os.environ.get("LOCAL_RANK", 0)), torch.cuda.device_count()
        if local >= there:
            raise InputError(
                "device",
                f"{there} GPUs for {local + 1} ranks on this machine",
                "start as many ranks as there are GPUs (--nproc-per-node), or use --device cpu",
            )
        torch.cuda.set_device(local)
    try:
        store, rank, size = next(rendezvous("env://", timeout=timedelta(seconds=timeout)))
        dist.init_process_group(
            "nccl" if on_gpu else "gloo",
            store=fresh(store, rank, size, timeout),
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=timeout),
        )
    except (RuntimeError, ValueError) as error:
        raise LostTouch(
            f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']} could not join the others "
            f"({reason(error)})"
        ) from error
    yield Ranks()
    # Not after an error: others may be gone, and would be waited for.
    dist.destroy_process_group()


def fresh(store: Store, rank: int, size: int, timeout: float) -> Store:
    """Agree on a corner of a store that no earlier start of these ranks has written to.

    torchrun keeps its store when it starts ranks again, and the addresses of those that died are
    still in it: who reads one before it is replaced waits for a process that is gone. So rank 0
    names a corner, and tells each other rank that says hello; answers go to the one process that
    asked, so that what is left of earlier hellos does no harm.

    Args:
        store: the store all ranks share.
        rank: this one.
        size: how many there are.
        timeout: seconds to wait for the others.
    """
    mine = uuid.uuid4().hex
    if rank > 0:
        store.set(f"fairmp/hello/{rank}", mine)
        store.wait([f"fairmp/answer/{mine}"], timedelta(seconds=timeout))
        corner = store.get(f"fairmp/answer/{mine}").decode()
        store.set(f"fairmp/{corner}/here/{rank}", "")
        return PrefixStore(f"fairmp/{corner}", store)
    until = time.monotonic() + timeout
    waiting, answered = set(range(1, size)), set()
    while waiting:
        for other in sorted(waiting):
            if store.check([f"fairmp/{mine}/here/{other}"]):
                waiting.discard(other)
            elif store.check([f"fairmp/hello/{other}"]):
                asked = store.get(f"fairmp/hello/{other}").decode()
                if asked not in answered:
                    store.set(f"fairmp/answer/{asked}", mine)
                    answered.add(asked)
        if waiting and time.monotonic() > until:
            raise RuntimeError(f"no word of rank {min(waiting)} in {timeout:g} s")
        time.sleep(0.01 if waiting else 0)
    return PrefixStore(f"fairmp/{mine}", store)


def restarted() -> bool:
    """Whether torchrun has started this rank again."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0

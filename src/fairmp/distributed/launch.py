"""Joining the ranks that torchrun started."""

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

from fairmp.distributed.ranks import RankLostError, Ranks, reason
from fairmp.errors import InputError, check_number

TIMEOUT_S = 600.0


@contextmanager
def joined(*, device: str = "cpu", timeout: float = TIMEOUT_S) -> Iterator[Ranks]:
    """Join the process group (gloo, or NCCL with one GPU per rank), or be the only rank."""
    check_number("timeout", timeout, "give the seconds to wait, above 0", low=0, above=True)
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        yield Ranks()
        return
    on_gpu = device.startswith("cuda")
    if on_gpu:
        local, gpus = int(os.environ.get("LOCAL_RANK", 0)), torch.cuda.device_count()
        if local >= gpus:
            raise InputError(
                "device",
                f"{gpus} GPUs for {local + 1} ranks on this machine",
                "start as many ranks as there are GPUs (--nproc-per-node), or use --device cpu",
            )
        torch.cuda.set_device(local)
    try:
        store, rank, size = next(rendezvous("env://", timeout=timedelta(seconds=timeout)))
        dist.init_process_group(
            "nccl" if on_gpu else "gloo",
            store=fresh_store(store, rank, size, timeout),
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=timeout),
        )
    except (RuntimeError, ValueError) as error:
        raise RankLostError(
            f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']} could not join the others "
            f"({reason(error)})"
        ) from error
    yield Ranks()
    # Not after an error: it would wait for ranks that may be gone.
    dist.destroy_process_group()


def fresh_store(store: Store, rank: int, size: int, timeout: float) -> Store:
    """Agree on a prefix of a store that no earlier start of these ranks has written to.

    torchrun keeps its store when it restarts ranks, with the addresses of those that died: a rank
    that reads one before it is replaced waits for a process that is gone. So rank 0 chooses a
    prefix and answers every other rank that asks. An answer goes to the one process that asked, so
    that requests of earlier starts do no harm.
    """
    mine = uuid.uuid4().hex
    if rank > 0:
        store.set(f"fairmp/hello/{rank}", mine)
        store.wait([f"fairmp/answer/{mine}"], timedelta(seconds=timeout))
        prefix = store.get(f"fairmp/answer/{mine}").decode()
        store.set(f"fairmp/{prefix}/here/{rank}", "")
        return PrefixStore(f"fairmp/{prefix}", store)
    deadline = time.monotonic() + timeout
    waiting, answered = set(range(1, size)), set()
    while waiting:
        for other in sorted(waiting):
            if store.check([f"fairmp/{mine}/here/{other}"]):
                waiting.discard(other)
            elif store.check([f"fairmp/hello/{other}"]):
                request = store.get(f"fairmp/hello/{other}").decode()
                if request not in answered:
                    store.set(f"fairmp/answer/{request}", mine)
                    answered.add(request)
        if waiting and time.monotonic() > deadline:
            raise RuntimeError(f"no word from rank {min(waiting)} in {timeout:g} s")
        time.sleep(0.01 if waiting else 0)
    return PrefixStore(f"fairmp/{mine}", store)

from __future__ import annotations

import threading

import pytest
import torch.distributed as dist

from fairmp.distributed.ranks import fresh_store, joined
from fairmp.errors import InputError


def meet(store: dist.Store, size: int) -> list[dist.Store]:
    found: dict[int, dist.Store] = {}

    def join(rank: int) -> None:
        found[rank] = fresh_store(store, rank, size, timeout=20.0)

    threads = [threading.Thread(target=join, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[rank] for rank in range(size)]


def test_ranks_meet_where_nobody_was_before() -> None:
    store = dist.HashStore()
    first = meet(store, 3)
    first[0].set("address", "old")
    assert first[2].get("address") == b"old"
    # A rank that died half way: it said hello and heard nothing.
    store.set("fairmp/hello/1", "gone")
    for _ in range(3):
        again = meet(store, 3)
        assert not again[1].check(["address"])
        again[1].set("address", "new")
        assert [corner.get("address") for corner in again] == [b"new"] * 3
    assert first[0].get("address") == b"old"


def test_an_absent_rank_is_not_waited_for() -> None:
    with pytest.raises(RuntimeError, match=r"no word from rank 1 in 0\.1 s"):
        fresh_store(dist.HashStore(), 0, 2, timeout=0.1)


def test_alone_without_torchrun() -> None:
    with joined() as ranks:
        assert (ranks.rank, ranks.size) == (0, 1)
    with pytest.raises(InputError, match="timeout: 0"), joined(timeout=0):
        pass

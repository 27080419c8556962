"""Ranks that fail or disagree stop with one line, on all ranks, and in time."""

from __future__ import annotations

import threading
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from fairmp.distributed import RankLostError, Ranks, SharedError
from fairmp.distributed.ranks import fresh_store, joined
from fairmp.errors import InputError
from fairmp.groups import group_operator
from tests.distributed.jobs import awkward
from tests.distributed.together import event, together


def test_group_operator_is_that_of_one_process() -> None:
    for groups in (2, 3):
        data = awkward(groups, groups)
        population = data.train_mask | data.val_mask
        operator = Ranks().group_operator(data.sens, population, groups)
        expected = group_operator(data.sens, population)
        assert torch.equal(operator.rows, expected.rows)
        assert torch.equal(operator.matrix, expected.matrix)
        assert operator.norm == expected.norm
    with pytest.raises(InputError, match="group 1"):
        Ranks().group_operator(torch.tensor([0, 0, -1]), torch.ones(3).bool(), 2)


def fail_in_turn(rank: int, missing: Path) -> list[SharedError]:
    ranks = Ranks()

    def read_on_rank_one() -> None:
        if rank == 1:
            missing.read_bytes()

    def refuse() -> None:
        raise InputError("lr", "too large", "give less")

    errors = []
    for attempt in (
        lambda: ranks.check_equal("epochs", {"epochs": 20 + rank, "lr": 0.1}, "start all alike"),
        lambda: ranks.raise_on_all_ranks(read_on_rank_one),
        lambda: ranks.on_rank_zero(refuse),
    ):
        with pytest.raises(SharedError) as error:
            attempt()
        errors.append(error.value)
    assert ranks.on_rank_zero(lambda rows: int(rows.sum()), torch.tensor([rank + 1])) == 3
    return errors


def test_failure_on_one_rank_is_raised_on_all(tmp_path: Path) -> None:
    for different, unreadable, refused in together(2, fail_in_turn, tmp_path / "nothing"):
        assert different.argument == "epochs"
        assert "rank 0 has 20, rank 1 has 21" in different.value
        assert unreadable.argument == str(tmp_path / "nothing")
        assert "rank 1 of 2" in unreadable.value
        assert (refused.argument, refused.hint) == ("lr", "give less")
        assert "rank 0 of 2" in refused.value


def leave(rank: int, waits: bool, done: Event) -> str:
    ranks = Ranks()
    ranks.total(torch.ones(1))
    if rank == 1:
        if waits:
            done.wait(60)
        return "gone"
    try:
        ranks.total(torch.ones(1))
    except RankLostError as error:
        return str(error)
    finally:
        done.set()
    return "answered"


@pytest.mark.parametrize("waits", [False, True])
def test_silent_or_dead_rank_is_not_waited_for(waits: bool) -> None:
    line, _ = together(2, leave, waits, event(), timeout=1.0)
    assert line.startswith("rank 0 of 2 lost the others")
    assert "\n" not in line


def meet(store: dist.Store, size: int) -> list[dist.Store]:
    stores: dict[int, dist.Store] = {}

    def join(rank: int) -> None:
        stores[rank] = fresh_store(store, rank, size, timeout=20.0)

    threads = [threading.Thread(target=join, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [stores[rank] for rank in range(size)]


def test_restarted_ranks_share_a_fresh_store() -> None:
    store = dist.HashStore()
    first = meet(store, 3)
    first[0].set("address", "old")
    assert first[2].get("address") == b"old"
    store.set("fairmp/hello/1", "gone")  # of a rank that died before it heard an answer
    for _ in range(3):
        again = meet(store, 3)
        assert not again[1].check(["address"])
        again[1].set("address", "new")
        assert [corner.get("address") for corner in again] == [b"new"] * 3
    assert first[0].get("address") == b"old"


def test_absent_rank_is_not_waited_for() -> None:
    with pytest.raises(RuntimeError, match="rank 1"):
        fresh_store(dist.HashStore(), 0, 2, timeout=0.1)


def test_process_without_torchrun_is_the_only_rank() -> None:
    with joined() as ranks:
        assert (ranks.rank, ranks.size) == (0, 1)
    with pytest.raises(InputError, match="timeout"), joined(timeout=0):
        pass

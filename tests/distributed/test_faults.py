"""Ranks that fail or disagree stop with one line, on all ranks, and in time."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest
import torch

from fairmp.datasets import social_network
from fairmp.distributed import RankLostError, Ranks, SharedError, load_shard, shard
from tests.distributed.together import together


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two ranks' copies of the same shards."""
    place = tmp_path_factory.mktemp("copies")
    shard(social_network(100, average_degree=4), place / "0", parts=2)
    shutil.copytree(place / "0", place / "1")
    shard(social_network(100, average_degree=4, seed=1), place / "other", parts=2)
    return [place / "0", place / "1", place / "other"]


def load(rank: int, places: list[Path]) -> str:
    try:
        load_shard(places[rank])
    except SharedError as error:
        return str(error)
    return "loaded"


def test_a_rank_with_a_broken_shard_stops_all(folders: list[Path], tmp_path: Path) -> None:
    broken = shutil.copytree(folders[1], tmp_path / "broken")
    path = broken / "part-00001" / "x.npy"
    path.write_bytes(path.read_bytes()[:-1])
    one, other = together(2, load, [folders[0], broken])
    assert one == other
    assert one.startswith("rank 1 of 2: shards: ")
    assert "part-00001/x.npy has" in one
    path.unlink()
    assert "x.npy is missing" in together(2, load, [folders[0], broken])[0]
    (broken / "manifest.json").unlink()
    assert "has no manifest.json" in together(2, load, [folders[0], broken])[0]


def test_ranks_with_other_shards_stop(folders: list[Path]) -> None:
    one, other = together(2, load, [folders[0], folders[2]])
    assert one == other
    assert one.startswith("shards: the ranks disagree on the graph's fingerprint: rank 0 has")


def disagree(rank: int) -> str:
    try:
        Ranks().agree("configuration", {"epochs": 20 + rank, "lr": 0.1}, "start all alike")
    except SharedError as error:
        return str(error)
    return "agreed"


def test_ranks_with_another_configuration_stop() -> None:
    said = "configuration: the ranks disagree on epochs: rank 0 has 20, rank 1 has 21; "
    assert together(2, disagree) == [said + "start all alike"] * 2


def leave(rank: int, way: str) -> str:
    ranks = Ranks()
    ranks.total(torch.ones(1))
    if rank == 1:
        if way == "dies":
            time.sleep(0.5)
            return "gone"
        time.sleep(4)
        return "slept"
    begin = time.perf_counter()
    try:
        ranks.total(torch.ones(1))
    except RankLostError as error:
        assert time.perf_counter() - begin < 30
        return str(error)
    return "answered"


@pytest.mark.parametrize("way", ["dies", "sleeps"])
def test_a_rank_that_does_not_answer_is_not_waited_for(way: str) -> None:
    line = together(2, leave, way, timeout=2.0)[0]
    assert line.startswith("rank 0 of 2 lost the others in a sum (")
    assert "\n" not in line


def unexpected(rank: int, folder: Path) -> str:
    def work() -> None:
        if rank == 1:
            (folder / "nothing").read_bytes()

    try:
        Ranks().together(work)
    except SharedError as error:
        return str(error)
    return "done"


def test_a_file_that_can_not_be_read_stops_all(tmp_path: Path) -> None:
    one, other = together(2, unexpected, tmp_path)
    assert one == other
    assert f"rank 1 of 2: {tmp_path / 'nothing'}: No such file" in one
    assert os.sep in one

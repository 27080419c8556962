"""One configuration on several splits."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairmp import FMP, FairClassifier, InputError
from fairmp.comparison.training import (
    CHECKPOINTS,
    TrainingJob,
    remove_checkpoints,
    train_shards,
    train_splits,
)
from fairmp.datasets import social_network
from fairmp.distributed import shard
from fairmp.distributed.ranks import Ranks


def make() -> FairClassifier:
    return FairClassifier(FMP(2, 1.0), backbone="mlp", epochs=3, hidden=8)


def test_train_splits_records_every_split() -> None:
    data = social_network(n=200, average_degree=5)
    trained = train_splits(TrainingJob("fair", make, range(4, 6)), data)
    assert [(run.seed, run.split_seed) for run in trained.runs] == [(4, 4), (4, 5)]
    assert trained.model.run_ is trained.runs[0]
    records = trained.records("fair")
    assert [record["split"] for record in records] == [0, 1]
    assert {record["dataset"] for record in records} == {data.name}
    assert records[1]["run"] == trained.runs[1].to_dict()


def test_train_splits_of_a_fixed_split_varies_the_initialisation() -> None:
    data = social_network(n=200, average_degree=5)
    data.protocol = "nifty"
    runs = train_splits(TrainingJob("fair", make, range(2)), data).runs
    assert [(run.seed, run.split_seed) for run in runs] == [(0, None), (1, None)]


def test_train_shards_leaves_checkpoints_until_they_are_removed(tmp_path: Path) -> None:
    shard(social_network(n=200, average_degree=5), tmp_path / "g", parts=1)
    job, out = TrainingJob("fair", make, range(1)), tmp_path / "out"
    trained, folder = train_shards(job, tmp_path / "g", Ranks(), out=out, checkpoint_every=1)
    assert folder == out
    assert trained.data.nodes == 200
    assert [path.name for path in (out / CHECKPOINTS).iterdir()] == ["split-0.pt"]
    again, _ = train_shards(job, tmp_path / "g", Ranks(), out=out)  # resumes, and has nothing to do
    assert again.runs[0].test == trained.runs[0].test
    remove_checkpoints(out)
    assert not (out / CHECKPOINTS).exists()


def test_train_shards_refuses_a_split_that_was_not_written(tmp_path: Path) -> None:
    data = social_network(n=200, average_degree=5)
    for part in ("train_mask", "val_mask", "test_mask"):
        del data[part]
    shard(data, tmp_path / "g", parts=1)
    job = TrainingJob("fair", make, range(90, 92))
    with pytest.raises(InputError, match="split_seed"):
        train_shards(job, tmp_path / "g", Ranks(), out=tmp_path / "out")
    assert not (tmp_path / "out").exists()

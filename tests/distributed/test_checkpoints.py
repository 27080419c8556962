from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fairmp.datasets import social_network
from fairmp.distributed import FileCheckpoints, Ranks, fit_shard, load_shard, shard
from fairmp.distributed.loading import Shard
from fairmp.errors import InputError
from fairmp.training.trainer import State
from tests.distributed.jobs import classifier


class PowerCut(Exception):
    pass


class Interrupted(FileCheckpoints):
    """Goes dark after some checkpoints."""

    left = 2

    def save(self, state: State) -> None:
        super().save(state)
        self.left -= 1
        if not self.left:
            raise PowerCut


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Shard:
    folder = tmp_path_factory.mktemp("kept") / "s"
    shard(social_network(120, average_degree=4, features=4), folder, parts=1)
    return load_shard(folder)


def kept(path: Path, kind: type[FileCheckpoints] = FileCheckpoints, **change: Any) -> Any:
    return kind(path, Ranks(), {"lr": 0.01, **change}, every=4)


def trained(mine: Shard, checkpoints: Any, **settings: Any) -> dict[str, Any]:
    model = classifier("projection", dropout=0.5, epochs=18, **settings)
    run = fit_shard(model, mine, bootstrap=0, checkpoints=checkpoints)
    return {
        "weights": model.network_.state_dict(),
        "epochs": run.history.epochs,
        "best": run.history.best,
    }


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    equal = all(torch.equal(one["weights"][k], v) for k, v in other["weights"].items())
    return equal and one["epochs"] == other["epochs"] and one["best"] == other["best"]


@pytest.mark.parametrize("settings", [{}, {"patience": 3, "select": "loss", "eval_every": 1}])
def test_interrupted_training_resumes_exactly(
    mine: Shard, tmp_path: Path, settings: dict[str, Any]
) -> None:
    expected = trained(mine, None, **settings)
    path = tmp_path / "out" / "c.pt"
    with pytest.raises(PowerCut):
        trained(mine, kept(path, Interrupted), **settings)
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert same(trained(mine, kept(path), **settings), expected)
    # Finished: nothing is trained again.
    assert same(trained(mine, kept(path), **settings), expected)


def test_damaged_or_foreign_checkpoint_is_refused(mine: Shard, tmp_path: Path) -> None:
    path = tmp_path / "c.pt"
    with pytest.raises(PowerCut):
        trained(mine, kept(path, Interrupted))
    content = path.read_bytes()
    changed = bytearray(content)
    changed[-1] ^= 1
    for wrong in (content[:-10], content[:30], b"", bytes(changed)):
        path.write_bytes(wrong)
        with pytest.raises(InputError, match=r"checkpoint .*c\.pt is damaged"):
            kept(path).load()
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"another training: lr was 0\.01, and is 0\.02"):
        kept(path, lr=0.02).load()
    with pytest.raises(InputError, match="checkpoint_every: 0"):
        FileCheckpoints(path, Ranks(), {}, every=0)

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fairmp.distributed import Manifest, Ranks, SharedError, load_shard, loading, shard
from fairmp.distributed.shard_format import mapped
from fairmp.errors import InputError
from fairmp.graph import normalise
from tests.distributed.jobs import awkward, classifier
from tests.distributed.together import together


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("halo") / "s"
    shard(awkward(), folder, parts=6, order="locality")
    return folder


def signal(n: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(n, 3, dtype=torch.float64, generator=generator)


def product(rank: int, folder: Path) -> dict[str, Any]:
    mine = load_shard(folder)
    f = signal(mine.manifest.nodes)[mine.number]
    graph = mine.graph.adjacency(torch.float64)
    before = mine.ranks.sent["halo"]
    result = graph.aggregate(f, f.flip(1), 0.3)
    sent = mine.ranks.sent["halo"] - before
    x = f.clone().requires_grad_()
    ((graph @ x) * f.flip(1)).sum().backward()
    ones = torch.full((3,), float(rank), requires_grad=True)
    (mine.ranks.total(ones) * (rank + 1)).sum().backward()
    return {
        "number": mine.number.numpy(),
        "result": result.numpy(),
        "grad": x.grad.numpy(),
        "total": ones.grad.numpy(),
        "largest": mine.ranks.largest(torch.tensor([rank, -rank])).numpy(),
        "halo": mine.graph.exact.halo.size,
        "rows": int(sum(mine.graph.exact.halo.sent)),
        "sent": sent,
        "nodes": mine.data.x.size(0),
    }


@pytest.mark.parametrize("size", [1, 3])
def test_product_and_gradient_are_those_of_one_process(
    shards: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = awkward()
    whole = normalise(data.edge_index, data.num_nodes, dtype=torch.float64)
    f = signal(data.num_nodes)
    expected = whole.aggregate(f, f.flip(1), 0.3).numpy()
    gradient = (whole @ f.flip(1)).numpy()
    parts = together(size, product, shards)
    assert sorted(np.concatenate([part["number"] for part in parts])) == list(range(160))
    for part in parts:
        np.testing.assert_allclose(part["result"], expected[part["number"]], atol=1e-13)
        np.testing.assert_allclose(part["grad"], gradient[part["number"]], atol=1e-13)
        assert part["total"].tolist() == [size * (size + 1) / 2] * 3
        assert part["largest"].tolist() == [size - 1, 0]
        assert part["sent"] == part["rows"] * 3 * 8
        assert part["nodes"] < 160 or size == 1
    # No row is sent that is not needed: each rank needs its neighbours on other ranks, once.
    assert sum(part["rows"] for part in parts) == sum(part["halo"] for part in parts)
    for part in parts:
        near = np.isin(data.edge_index[0], part["number"])
        needed = np.setdiff1d(data.edge_index[1][near], part["number"])
        assert part["halo"] == len(needed)


def epoch_bytes(rank: int, folder: Path, setting: str) -> tuple[dict[str, int], int]:
    from fairmp.distributed import fit_shard

    mine = load_shard(folder)
    counted = []
    for epochs in (1, 3):
        mine.ranks.sent.clear()
        fit_shard(classifier(setting, epochs=epochs, eval_every=1), mine, bootstrap=0)
        counted.append(dict(mine.ranks.sent))
    return {k: counted[1][k] - counted[0][k] for k in counted[0]}, sum(mine.graph.exact.halo.sent)


def test_bytes_of_an_epoch_follow_the_formula(shards: Path) -> None:
    weights = 5 * 16 + 16 + 16 * 2 + 2
    for sent, rows in together(2, epoch_bytes, shards, "papc"):
        # Two epochs: K = 3 steps forward, backward and validation; 2 classes of 8 bytes.
        assert sent["halo"] == 2 * 3 * 3 * rows * 2 * 8
        assert sent["gradient"] == 2 * weights * 8
        # A gap of 2 groups and 2 classes per step: forward, backward and validation; that of the
        # regulariser, forward and backward; two losses, of training and validation.
        assert sent["total"] == 2 * ((3 * 3 + 2) * 4 + 2 * 2) * 8


def test_piece_size_does_not_change_rows(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = load_shard(shards).graph.exact
    for piece in (1, 7, 64):
        monkeypatch.setattr(loading, "COLUMNS_PER_READ", piece)
        exact = load_shard(shards).graph.exact
        assert torch.equal(exact.forward.row, expected.forward.row)
        assert torch.equal(exact.forward.col, expected.forward.col)


def test_rank_reads_only_its_own_parts(shards: Path, tmp_path: Path) -> None:
    folders = []
    for rank, rank_parts in enumerate(((0, 1, 2), (3, 4, 5))):
        folder = tmp_path / str(rank)
        folder.mkdir()
        shutil.copy(shards / "manifest.json", folder)
        for part in rank_parts:
            shutil.copytree(shards / f"part-{part:05d}", folder / f"part-{part:05d}")
        folders.append(folder)
    counts = together(2, read_own, folders)
    assert sum(counts) == Manifest.read(shards).nodes
    assert isinstance(mapped(shards, 0, "x"), np.memmap)


def read_own(rank: int, folders: list[Path]) -> int:
    return int(load_shard(folders[rank]).data.x.size(0))


def test_too_few_parts_and_unknown_splits_are_refused(shards: Path) -> None:
    with pytest.raises(InputError) as error:
        load_shard(shards, split_seed=7)
    assert error.value.argument == "split_seed"
    many = Ranks()
    many.size = 7
    with pytest.raises(InputError, match="6 parts for 7 ranks"):
        loading._parts_by_rank(Manifest.read(shards), many)


def load_in_turn(rank: int, places: list[list[Path]]) -> list[str]:
    lines = []
    for folders in places:
        with pytest.raises(SharedError) as error:
            load_shard(folders[rank])
        lines.append(str(error.value))
    return lines


def test_broken_shards_of_one_rank_stop_all(shards: Path, tmp_path: Path) -> None:
    for name in ("cut", "gone", "bare"):
        shutil.copytree(shards, tmp_path / name)
    path = tmp_path / "cut" / "part-00005" / "x.npy"
    path.write_bytes(path.read_bytes()[:-1])
    (tmp_path / "gone" / "part-00005" / "x.npy").unlink()
    (tmp_path / "bare" / "manifest.json").unlink()
    shard(awkward(3, 3), tmp_path / "other", parts=6)
    names = ("cut", "gone", "bare", "other")
    one, two = together(2, load_in_turn, [[shards, tmp_path / name] for name in names])
    assert one == two
    parts = ("x.npy has", "x.npy is missing", "manifest", "fingerprint")
    for line, part in zip(one, parts, strict=True):
        assert line.startswith("shards: ")
        assert part in line
        assert "\n" not in line

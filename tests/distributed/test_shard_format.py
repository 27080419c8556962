from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fairmp.datasets import social_network
from fairmp.distributed import Manifest, load_shard, shard
from fairmp.distributed.shard_format import ARRAYS, mapped, staged, verify
from fairmp.errors import InputError


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("original") / "shards"
    shard(social_network(120, average_degree=4), folder, parts=3)
    return folder


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    import shutil

    return Path(shutil.copytree(original, tmp_path / "shards"))


def test_arrays_are_private(original: Path) -> None:
    arrays = list(original.glob("part-*/*.npy"))
    assert len(arrays) == 3 * len(ARRAYS)
    assert not any(path.stat().st_mode & 0o077 for path in arrays)


def test_manifest_is_read_back(folder: Path) -> None:
    manifest = Manifest.read(folder)
    assert manifest.nodes == 120
    assert [part.start for part in manifest.parts[1:]] == [p.stop for p in manifest.parts[:-1]]
    for index, part in enumerate(manifest.parts):
        verify(folder, index, part)
        row = mapped(folder, index, "row")
        assert row[-1] == part.entries == len(mapped(folder, index, "col"))
        for name in ARRAYS:
            assert isinstance(mapped(folder, index, name), np.memmap)


@pytest.mark.parametrize("name", ARRAYS)
def test_missing_truncated_or_altered_file_is_named(folder: Path, name: str) -> None:
    path = folder / "part-00001" / f"{name}.npy"
    content = path.read_bytes()
    changed = bytearray(content)
    changed[-1] ^= 1
    for wrong, says in ((None, "missing"), (content[:-4], "bytes"), (bytes(changed), "altered")):
        path.unlink()
        if wrong is not None:
            path.write_bytes(wrong)
        with pytest.raises(InputError, match=rf"part-00001/{name}\.npy.*{says}"):
            load_shard(folder)
        path.write_bytes(content)
    load_shard(folder)


def test_wrong_manifest_is_refused(folder: Path) -> None:
    path = folder / "manifest.json"
    content = json.loads(path.read_text())
    for change, says in (
        ({"format": 99}, "format 99"),
        ({"nodes": 121}, "altered"),
        ({"parts": 7}, "damaged"),
    ):
        path.write_text(json.dumps({**content, **change}))
        with pytest.raises(InputError, match=says):
            Manifest.read(folder)
    path.write_text("{")
    with pytest.raises(InputError, match="damaged"):
        Manifest.read(folder)
    with pytest.raises(InputError, match=r"has no manifest\.json"):
        Manifest.read(folder / "part-00000")


def test_failure_leaves_nothing_and_replaces_nothing(folder: Path, tmp_path: Path) -> None:
    def fail() -> None:
        with staged(tmp_path / "new") as staging:
            (staging / "a").write_text("b")
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["shards"]
    data = social_network(120, average_degree=4)
    with pytest.raises(InputError, match="not empty"):
        shard(data, folder, parts=2)
    shard(data, folder, parts=2, overwrite=True)
    assert len(Manifest.read(folder).parts) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["shards"]
    (folder / "mine.txt").write_text("keep")
    with pytest.raises(InputError, match=r"mine\.txt.*not replaced"):
        shard(data, folder, parts=2, overwrite=True)
    assert (folder / "mine.txt").read_text() == "keep"

from __future__ import annotations

import os

import numpy as np
import pytest

from fairmp.datasets import cache

ARRAYS = {
    "x": np.array([[0, 1, 255]], dtype=np.float32),
    "fine": np.array([0.5, 2], dtype=np.float32),
    "edge_index": np.array([[2**31 - 1, 0]], dtype=np.int64),
    "long": np.array([2**40, -1], dtype=np.int64),
    "empty": np.zeros((0, 3), dtype=np.float32),
}

KINDS = {
    "x": "uint8",
    "fine": "float32",
    "edge_index": "int32",
    "long": "int64",
    "empty": "float32",
}


def test_load_returns_arrays_in_their_smallest_type(tmp_path):
    path = tmp_path / "deep" / "a.npz"
    cache.save(path, "key", ARRAYS, {"notes": ["é"]})
    arrays, metadata = cache.load(path, "key")
    assert metadata == {"notes": ["é"]}
    assert arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert arrays[name].dtype == KINDS[name]
        np.testing.assert_array_equal(arrays[name], array)
    assert [file.name for file in path.parent.iterdir()] == ["a.npz"]


def test_load_of_another_key_is_none(tmp_path):
    path = tmp_path / "a.npz"
    assert cache.load(path, "key") is None
    cache.save(path, "key", ARRAYS, {})
    assert cache.load(path, "other") is None


def test_load_of_a_damaged_file_is_none_or_right(tmp_path):
    path = tmp_path / "a.npz"
    cache.save(path, "key", ARRAYS, {"a": 1})
    good, used = path.read_bytes(), 0
    for at in range(0, len(good), 5):
        path.write_bytes(good[:at] + bytes([good[at] ^ 0x20]) + good[at + 1 :])
        loaded = cache.load(path, "key")
        if loaded is not None:  # a byte without meaning, such as one of a member's time
            used += 1
            assert loaded[1] == {"a": 1}
            assert loaded[0].keys() == ARRAYS.keys()
            for name, array in ARRAYS.items():
                np.testing.assert_array_equal(loaded[0][name], array)
    assert used < len(good) / 10
    for length in (0, 5, len(good) // 2, len(good) - 1):
        path.write_bytes(good[:length])
        assert cache.load(path, "key") is None


def test_save_to_an_unwritable_folder(tmp_path):
    (tmp_path / "file").write_text("in the way")
    cache.save(tmp_path / "file" / "a.npz", "key", ARRAYS, {})
    assert cache.load(tmp_path / "file" / "a.npz", "key") is None


@pytest.mark.parametrize("size", [10, 3_000_000])
def test_fingerprint_changes_with_the_file(tmp_path, size):
    path = tmp_path / "raw"
    path.write_bytes(bytes(size))
    first = cache.fingerprint([path], {"partial": False})
    assert cache.fingerprint([path], {"partial": False}) == first
    assert cache.fingerprint([path], {"partial": True}) != first

    stat = path.stat()
    path.write_bytes(bytes(size - 1) + b"x")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert cache.fingerprint([path], {"partial": False}) != first

    path.write_bytes(bytes(size))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert cache.fingerprint([path], {"partial": False}) == first
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    assert cache.fingerprint([path], {"partial": False}) != first

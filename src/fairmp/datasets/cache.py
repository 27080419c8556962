"""Parsed graphs in ``.npz`` files, so that raw files are read once."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fairmp.outputs import atomic_file

VERSION = 2
_BLOCK_BYTES = 1 << 16
_BLOCKS = 16
METADATA = "words"  # part of the file format

Arrays = dict[str, np.ndarray]


class Stored(NamedTuple):
    """What a file holds: arrays by name, and metadata that is plain data."""

    arrays: Arrays
    metadata: Any


def write_npz(
    path: Path,
    arrays: Mapping[str, np.ndarray],
    metadata: Any,
    *,
    compress: bool = False,
    private: bool = False,
) -> None:
    """Write arrays and JSON metadata; the file appears complete or not at all.

    Nobody but its owner may read a ``private`` file.
    """
    text = json.dumps(metadata, ensure_ascii=False).encode()
    content: dict[str, Any] = {METADATA: np.frombuffer(text, np.uint8), **arrays}
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path, private=private) as draft, draft.open("wb") as file:
        (np.savez_compressed if compress else np.savez)(file, **content)


def read_npz(path: Path) -> Stored:
    """Read what :func:`write_npz` wrote; nothing in it is ever executed."""
    with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    return Stored(arrays, json.loads(arrays.pop(METADATA).tobytes().decode()))


class Header(NamedTuple):
    """The shape and type of an array in a file."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def read_headers(path: Path) -> dict[str, Header]:
    """The arrays of a file by name, without expanding them; sizes that disagree are an error."""
    headers = {}
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            with archive.open(member) as stream:
                version = np.lib.format.read_magic(stream)
                reader = {
                    (1, 0): np.lib.format.read_array_header_1_0,
                    (2, 0): np.lib.format.read_array_header_2_0,
                }[version]
                shape, _, dtype = reader(stream)
                size = stream.tell() + math.prod(shape) * dtype.itemsize
            if size != member.file_size:
                raise ValueError(f"{member.filename} has {member.file_size} bytes, not {size}")
            name = member.filename.removesuffix(".npy")
            if name in headers or name == member.filename:
                raise ValueError(f"{member.filename} is there twice, or is no array")
            headers[name] = Header(shape, dtype)
    return headers


def checksum(arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 of arrays with their names, types and shapes."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name} {array.dtype.str} {array.shape} ".encode())
        digest.update(np.ascontiguousarray(array).view(np.uint8).data if array.size else b"")
    return digest.hexdigest()


def fingerprint(paths: Sequence[Path], options: Mapping[str, Any]) -> str:
    """Return a key for the options, and each file's size, time and 16 evenly spaced blocks."""
    digest = hashlib.blake2b(json.dumps([VERSION, options], sort_keys=True).encode())
    for path in paths:
        stat = path.stat()
        digest.update(f"{path.name} {stat.st_size} {stat.st_mtime_ns}".encode())
        with path.open("rb") as file:
            for k in range(_BLOCKS):
                file.seek(k * max(stat.st_size - _BLOCK_BYTES, 0) // (_BLOCKS - 1))
                digest.update(file.read(_BLOCK_BYTES))
    return digest.hexdigest()


def load(path: Path, key: str) -> Stored | None:
    """Return what is cached under ``key``; None if it is absent, outdated or damaged."""
    try:
        arrays, (stored_key, shapes, metadata) = read_npz(path)
    except Exception:  # a damaged zip file raises almost anything
        return None
    intact = stored_key == key and shapes == _shapes(arrays)
    return Stored(arrays, metadata) if intact else None


def save(path: Path, key: str, arrays: Mapping[str, np.ndarray], metadata: Any) -> None:
    """Cache arrays, in their smallest type, and metadata; an unwritable folder is ignored."""
    with contextlib.suppress(OSError):
        small = {name: narrow(array) for name, array in arrays.items()}
        write_npz(path, small, [key, _shapes(small), metadata])


def _shapes(arrays: Mapping[str, np.ndarray]) -> dict[str, list[Any]]:
    # The zip format has checksums of its members, unless a damaged header hides part of them.
    return {name: [array.dtype.str, *array.shape] for name, array in arrays.items()}


def narrow(array: np.ndarray) -> np.ndarray:
    """Return the array in the smallest integer type that holds it exactly, if there is one."""
    if not array.size or array.dtype.itemsize == 1:
        return array
    low, high = array.min(), array.max()
    for kind in (np.iinfo(np.uint8), np.iinfo(np.int32)):
        fits = kind.min <= low <= high <= kind.max and kind.bits < 8 * array.dtype.itemsize
        if fits and np.array_equal(small := array.astype(kind.dtype), array):
            return small
    return array

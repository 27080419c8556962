"""What was parsed once, kept on disk: no pickle, a checksum, and a key that notices a change."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

VERSION = 1
_BLOCK = 1 << 16
_BLOCKS = 16


def fingerprint(paths: Sequence[Path], options: Mapping[str, Any]) -> str:
    """Return a key for raw files and the options they are read with.

    It is made of each file's size, time of change and up to 16 blocks of its contents, evenly
    spaced, so that it costs a few milliseconds whatever the size.
    """
    digest = hashlib.blake2b(json.dumps([VERSION, options], sort_keys=True).encode())
    for path in paths:
        stat = path.stat()
        digest.update(f"{path.name} {stat.st_size} {stat.st_mtime_ns}".encode())
        with path.open("rb") as file:
            for k in range(_BLOCKS):
                file.seek(k * max(stat.st_size - _BLOCK, 0) // (_BLOCKS - 1))
                digest.update(file.read(_BLOCK))
    return digest.hexdigest()


def load(path: Path, key: str) -> tuple[dict[str, np.ndarray], dict[str, Any]] | None:
    """Return the arrays and the metadata kept at ``path``.

    None says that there is nothing to use: no file, another key, or a file that is damaged.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            header = file.metadata() or {}
            if header.get("key") != key:
                return None
            stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if header.pop("checksum", "") != _checksum(stored, header):
            return None
    except (OSError, SafetensorError, ValueError):
        return None
    kinds = json.loads(header["kinds"])
    arrays = {name: array.astype(kinds[name], copy=False) for name, array in stored.items()}
    return arrays, json.loads(header["metadata"])


def save(path: Path, key: str, arrays: Mapping[str, np.ndarray], metadata: Any) -> None:
    """Keep arrays and JSON metadata at ``path``; a folder that cannot be written is no error."""
    from safetensors.numpy import save_file

    stored = {name: narrow(np.ascontiguousarray(array)) for name, array in arrays.items()}
    header = {
        "key": key,
        "kinds": json.dumps({name: array.dtype.str for name, array in arrays.items()}),
        "metadata": json.dumps(metadata),
    }
    header["checksum"] = _checksum(stored, header)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(dir=path.parent, suffix=".part")
        os.close(handle)
        try:
            save_file(stored, part, metadata=header)
            Path(part).replace(path)
        finally:
            Path(part).unlink(missing_ok=True)


def narrow(array: np.ndarray) -> np.ndarray:
    """Return the array in the smallest type that holds it exactly; most features are 0 and 1.

    Example:
        >>> narrow(np.array([0.0, 7.0])).dtype, narrow(np.array([0.5])).dtype
        (dtype('uint8'), dtype('float64'))
    """
    if not array.size or array.dtype.itemsize == 1:
        return array
    low, high = array.min(), array.max()
    for kind in (np.uint8, np.int32):
        limits = np.iinfo(kind)
        if (
            np.dtype(kind).itemsize < array.dtype.itemsize
            and limits.min <= low <= high <= limits.max
        ):
            small = array.astype(kind)
            if np.array_equal(small, array):
                return small
    return array


def _checksum(arrays: Mapping[str, np.ndarray], header: Mapping[str, str]) -> str:
    shapes = {name: (array.dtype.str, array.shape) for name, array in arrays.items()}
    total = zlib.crc32(json.dumps([header, shapes], sort_keys=True).encode())
    for name in sorted(arrays):
        total = zlib.crc32(arrays[name].reshape(-1).view(np.uint8).data, total)
    return f"{total:08x}"

"""Shards on disk: a folder of memory-mapped arrays, and a manifest with their checksums."""

from __future__ import annotations

import hashlib
import io
import json
import math
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, cast

import numpy as np

from fairmp import outputs
from fairmp._version import __version__
from fairmp.errors import InputError
from fairmp.schema import conform

FORMAT = 1
MANIFEST, SCRATCH = "manifest.json", "scratch"
ARRAYS = ("x", "y", "sens", "split", "number", "row", "col")


@dataclass(frozen=True)
class File:
    """Size and SHA-256 of an array's file."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Part:
    """A range of nodes, numbered in the order of the shards, and their rows of Â = A + I.

    Its files are ``x`` (features), ``y`` and ``sens`` (int32, −1 unknown), ``split`` (int8, one
    column per split: 0 training, 1 validation, 2 test, −1 none), ``number`` (row of the node in its
    table), ``row`` (pointers, from 0) and ``col`` (neighbours).
    """

    start: int
    stop: int
    entries: int  # entries of Â in these rows: every neighbour, and the node itself
    halo: int  # neighbours in other parts
    files: dict[str, File]

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return self.stop - self.start

    @property
    def num_bytes(self) -> int:
        """Size of all files."""
        return sum(file.bytes for file in self.files.values())


@dataclass(frozen=True)
class Manifest:
    """Content of a folder of shards."""

    name: str
    order: str  # how nodes were ordered: "given", "locality" or "metis"
    feature_names: tuple[str, ...]
    class_names: tuple[str, ...]
    group_names: tuple[str, ...]
    split_seeds: tuple[int | None, ...]  # of the columns of split; None: masks of the data
    encoding: dict[str, Any] | None = None  # how the columns of a table became numbers
    nodes: int = 0
    edges: int = 0  # undirected, without self-loops
    statistics: dict[str, Any] = field(default_factory=dict)  # see fairmp.datasets.statistics
    report: tuple[str, ...] = ()  # lines of the load report
    parts: tuple[Part, ...] = ()  # in order, from node 0 to node n − 1

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the manifest, and so of the checksums of all arrays."""
        text = json.dumps(asdict(self), ensure_ascii=False, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def write(self, folder: Path) -> None:
        """Write ``manifest.json``."""
        head = {"format": FORMAT, "fairmp": __version__, "fingerprint": self.fingerprint}
        text = json.dumps(head | asdict(self), ensure_ascii=False, indent=1)
        (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: str | Path) -> Manifest:
        """Read a folder's manifest; one that is missing, damaged or altered is refused."""
        path, again = Path(folder) / MANIFEST, "shard the graph again"
        if not path.is_file():
            hint = "give a folder of shards"
            raise InputError("shards", f"{folder} has no {MANIFEST}", hint)
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            version, fingerprint = content["format"], content["fingerprint"]
            manifest = conform(content, cls, MANIFEST) if version == FORMAT else None
        except (ValueError, KeyError, TypeError):
            value = f"{path} is damaged or not a manifest of shards"
            raise InputError("shards", value, again) from None
        if manifest is None:
            value = f"format {version}, this fairmp ({__version__}) reads {FORMAT}"
            raise InputError("shards", f"{folder} has {value}", again)
        if manifest.fingerprint != fingerprint:
            raise InputError("shards", f"{path} was altered", again)
        return cast(Manifest, manifest)


def part_folder(folder: Path, index: int) -> Path:
    """Folder of the arrays of a part."""
    return folder / f"part-{index:05d}"


def verify(folder: Path, index: int, part: Part) -> None:
    """Refuse a part with a file that is missing, cut short or altered."""
    hint = "shard the graph again, or copy the file again"
    for name in ARRAYS:
        path = part_folder(folder, index) / f"{name}.npy"
        if name not in part.files:
            raise InputError("shards", f"the manifest of {folder} has no checksum of {path.name}")
        if not path.is_file():
            raise InputError("shards", f"{path} is missing", hint)
        size, expected = path.stat().st_size, part.files[name]
        if size != expected.bytes:
            value = f"{path} has {size:,} bytes where {expected.bytes:,} were written"
            raise InputError("shards", value, hint)
        with path.open("rb") as file:
            checksum = hashlib.file_digest(file, "sha256").hexdigest()
        if checksum != expected.sha256:
            raise InputError("shards", f"{path} was altered: its SHA-256 differs", hint)


def mapped(folder: Path, index: int, name: str) -> np.ndarray:
    """Memory-map an array of a part."""
    array: np.ndarray = np.load(part_folder(folder, index) / f"{name}.npy", mmap_mode="r")
    return array


def read_rows(folder: Path, index: int, name: str, out: np.ndarray) -> None:
    """Read an array of a part into ``out``, without a copy."""
    with (part_folder(folder, index) / f"{name}.npy").open("rb") as file:
        np.lib.format.read_magic(file)
        np.lib.format.read_array_header_1_0(file)
        file.readinto(out.reshape(-1).view(np.uint8).data)


def write_array(
    path: Path, pieces: Iterable[np.ndarray], shape: tuple[int, ...], dtype: Any
) -> File:
    """Write an array to a ``.npy`` file piece by piece, and return its size and checksum.

    Nobody but its owner may read the file.
    """
    dtype, header, digest = np.dtype(dtype), io.BytesIO(), hashlib.sha256()
    start = {"descr": dtype.str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, start)
    size = 0
    outputs.create_private(path)
    with path.open("wb") as file:
        arrays = (np.ascontiguousarray(piece, dtype=dtype).data for piece in pieces)
        for content in chain([header.getbuffer()], arrays):
            size += file.write(content)
            digest.update(content)
    assert size == len(header.getbuffer()) + math.prod(shape) * dtype.itemsize, path
    return File(size, digest.hexdigest())


def check_target(folder: Path, *, overwrite: bool) -> None:
    """Refuse a folder that shards cannot be written to, before any work is done."""
    outputs.check_free(folder, overwrite=overwrite)
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    names = {path.name for path in folder.iterdir()}
    others = sorted(n for n in names if n != MANIFEST and not n.startswith("part-"))
    if others or MANIFEST not in names:
        example = others[0] if others else "no manifest"
        value = f"{folder} holds something other than shards ({example}), and is not replaced"
        raise InputError("folder", value, "give another folder")


@contextmanager
def staged(folder: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Yield a folder to write shards to, which replaces ``folder`` if no exception is raised."""
    check_target(folder, overwrite=overwrite)
    with outputs.results(folder, overwrite=overwrite, keep=False) as staging:
        (staging / SCRATCH).mkdir()  # for temporary files
        yield staging
        shutil.rmtree(staging / SCRATCH)

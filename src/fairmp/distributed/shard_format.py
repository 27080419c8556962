"""Shards on disk: a folder of memory-mapped arrays, and a manifest with their checksums."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fairmp import outputs
from fairmp._version import __version__
from fairmp.errors import InputError

FORMAT = 1
MANIFEST = "manifest.json"
ARRAYS = ("x", "y", "sens", "split", "number", "row", "col")


@dataclass(frozen=True)
class File:
    """Size and SHA-256 of an array's file."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Part:
    """A range of nodes and their rows of Â = A + I.

    Attributes:
        start: Number of the first node, in the order of the shards.
        stop: One more than the number of the last node.
        entries: Entries of Â in these rows: every neighbour, and the node itself.
        halo: Number of neighbours in other parts.
        files: ``x`` (features), ``y`` and ``sens`` (int32, −1 unknown), ``split`` (int8, one
            column per split: 0 training, 1 validation, 2 test, −1 none), ``number`` (row of the
            node in its table), ``row`` (pointers, from 0) and ``col`` (neighbours).
    """

    start: int
    stop: int
    entries: int
    halo: int
    files: dict[str, File]


@dataclass(frozen=True)
class Manifest:
    """Content of a folder of shards.

    Attributes:
        name: Name of the graph.
        order: How nodes were ordered, ``"given"``, ``"locality"`` or ``"metis"``.
        feature_names: Names of the columns of ``x``.
        class_names: Names of the classes.
        group_names: Names of the sensitive groups.
        split_seeds: Seed of each column of ``split``; ``None`` for masks that came with the data.
        encoding: How the columns of a table became numbers, if there was one.
        nodes: Number of nodes.
        edges: Number of undirected edges, without self-loops.
        statistics: The row of :func:`fairmp.datasets.statistics.statistics`.
        report: Lines of the load report.
        parts: The parts in order, from node 0 to node n − 1.
    """

    name: str
    order: str
    feature_names: tuple[str, ...]
    class_names: tuple[str, ...]
    group_names: tuple[str, ...]
    split_seeds: tuple[int | None, ...]
    encoding: dict[str, Any] | None = None
    nodes: int = 0
    edges: int = 0
    statistics: dict[str, Any] = field(default_factory=dict)
    report: tuple[str, ...] = ()
    parts: tuple[Part, ...] = ()

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the manifest, and so of the checksums of all arrays."""
        text = json.dumps(asdict(self), ensure_ascii=False, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def write(self, folder: Path) -> None:
        """Write ``manifest.json``."""
        content = {
            "format": FORMAT,
            "fairmp": __version__,
            "fingerprint": self.fingerprint,
            **asdict(self),
        }
        text = json.dumps(content, ensure_ascii=False, indent=1)
        (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: str | Path) -> Manifest:
        """Read a folder's manifest.

        Raises:
            InputError: If it is missing, damaged or altered.
        """
        path = Path(folder) / MANIFEST
        if not path.is_file():
            raise InputError(
                "shards", f"{folder} has no {MANIFEST}", "give the folder 'fairmp shard' wrote"
            )
        damaged = InputError(
            "shards", f"{path} is damaged or no manifest of shards", "shard the graph again"
        )
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            version = content.pop("format")
            fingerprint, _ = content.pop("fingerprint"), content.pop("fairmp")
        except (ValueError, KeyError, TypeError, AttributeError):
            raise damaged from None
        if version != FORMAT:
            raise InputError(
                "shards",
                f"{folder} has format {version}, this fairmp ({__version__}) reads {FORMAT}",
                "shard the graph again",
            )
        try:
            lists = {key: tuple(value) for key, value in content.items() if isinstance(value, list)}
            parts = tuple(
                Part(**{**part, "files": {k: File(**file) for k, file in part["files"].items()}})
                for part in content["parts"]
            )
            manifest = cls(**{**content, **lists, "parts": parts})
        except (KeyError, TypeError, AttributeError):
            raise damaged from None
        if manifest.fingerprint != fingerprint:
            raise InputError("shards", f"{path} was altered", "shard the graph again")
        return manifest


def part_folder(folder: Path, index: int) -> Path:
    """Folder of the arrays of a part."""
    return folder / f"part-{index:05d}"


def verify(folder: Path, index: int, part: Part) -> None:
    """Compare the files of a part with their checksums.

    Raises:
        InputError: If a file is missing, cut short or altered; it names the file.
    """
    hint = "shard the graph again, or copy the file again"
    for name in ARRAYS:
        path = part_folder(folder, index) / f"{name}.npy"
        if name not in part.files:
            raise InputError("shards", f"the manifest of {folder} has no checksum of {path.name}")
        if not path.is_file():
            raise InputError("shards", f"{path} is missing", hint)
        size, expected = path.stat().st_size, part.files[name]
        if size != expected.bytes:
            raise InputError(
                "shards", f"{path} has {size:,} bytes where {expected.bytes:,} were written", hint
            )
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


class ArrayWriter:
    """Write a ``.npy`` file front to back, and compute its checksum."""

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: Any) -> None:
        self.path, self.shape, self.dtype = path, shape, np.dtype(dtype)
        self._rows, self._bytes, self._sum = 0, 0, hashlib.sha256()

    def __enter__(self) -> ArrayWriter:
        self._stream: BinaryIO = self.path.open("wb")
        header = {"descr": self.dtype.str, "fortran_order": False, "shape": self.shape}
        np.lib.format.write_array_header_1_0(self._stream, header)
        self._stream.flush()
        start = self.path.read_bytes()
        self._sum.update(start)
        self._bytes = len(start)
        return self

    def append(self, rows: np.ndarray) -> None:
        """Write the next rows."""
        content = np.ascontiguousarray(rows, dtype=self.dtype)
        self._stream.write(content.data)
        self._sum.update(content.data)
        self._rows, self._bytes = self._rows + len(content), self._bytes + content.nbytes

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stream.close()
        if kind is None and self._rows != self.shape[0]:
            raise AssertionError(f"{self.path.name}: {self._rows} rows of {self.shape[0]}")

    @property
    def file(self) -> File:
        """Size and checksum of the file, once all is written."""
        return File(self._bytes, self._sum.hexdigest())


def check_target(folder: Path, *, overwrite: bool) -> None:
    """Refuse a folder that shards cannot be written to, before any work is done."""
    outputs.check_free(folder, overwrite=overwrite)
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    others = [p.name for p in folder.iterdir() if p.name != MANIFEST and p.name[:5] != "part-"]
    if others or not (folder / MANIFEST).is_file():
        name = others[0] if others else "no manifest"
        raise InputError(
            "--out",
            f"{folder} holds something other than shards ({name}), and is not replaced",
            "give another folder",
        )


@contextmanager
def staged(folder: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Yield a folder to write shards to, which replaces ``folder`` if no exception is raised.

    Its ``scratch`` folder is for temporary files, and is removed at the end.
    """
    check_target(folder, overwrite=overwrite)
    parent = folder.absolute().parent
    parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=parent))
    try:
        (staging / "scratch").mkdir()
        yield staging
        shutil.rmtree(staging / "scratch")
        mask = os.umask(0)
        os.umask(mask)
        staging.chmod(0o777 & ~mask)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=parent) as aside:
            if folder.exists():
                os.rename(folder, Path(aside) / "old")
            os.rename(staging, folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)

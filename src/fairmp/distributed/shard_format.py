"""Shards on disk: one folder, memory-mapped arrays, and a manifest with their sums."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np

from fairmp._version import __version__
from fairmp.errors import InputError

FORMAT = 1
MANIFEST = "manifest.json"
ARRAYS = ("x", "y", "sens", "split", "number", "row", "col")
_PIECE = 1 << 24


@dataclass(frozen=True)
class File:
    """An array's file: how many bytes it has, and their SHA-256."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Part:
    """A range of nodes and their rows of Â = A + I.

    Attributes:
        start: the first node's number, in the shards' own order.
        stop: one more than the last node's.
        entries: entries of Â in these rows: every neighbour, and the node itself.
        halo: nodes of other parts among the neighbours.
        files: ``x`` (features), ``y`` and ``sens`` (int32, −1 unknown), ``split`` (int8, a column
            a split: 0 training, 1 validation, 2 test, −1 none), ``number`` (the node's row in the
            table it came from), ``row`` (pointers, from 0) and ``col`` (neighbours).
    """

    start: int
    stop: int
    entries: int
    halo: int
    files: dict[str, File]


@dataclass(frozen=True)
class Manifest:
    """What a folder of shards holds.

    Attributes:
        name: of the graph.
        nodes: n.
        edges: undirected edges, without self-loops.
        order: how nodes were ordered, ``"given"``, ``"locality"`` or ``"metis"``.
        feature_names: one a column of ``x``.
        class_names: one a class.
        group_names: one a sensitive group.
        split_seeds: the seed each column of ``split`` was drawn with; ``None`` for masks that came
            with the data.
        statistics: the row that :func:`fairmp.datasets.statistics.statistics` would find.
        report: what was read, kept and dropped, a line each.
        encoding: how a table's columns became numbers, where there was one.
        parts: in order, from node 0 to node n − 1.
    """

    name: str
    nodes: int
    edges: int
    order: str
    feature_names: tuple[str, ...]
    class_names: tuple[str, ...]
    group_names: tuple[str, ...]
    split_seeds: tuple[int | None, ...]
    statistics: dict[str, Any]
    report: tuple[str, ...]
    encoding: dict[str, Any] | None
    parts: tuple[Part, ...]

    @property
    def fingerprint(self) -> str:
        """A sum over all that is said here, and so over every array's sum."""
        return hashlib.sha256(self._text().encode()).hexdigest()

    def _text(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False, sort_keys=True)

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
            InputError: If there is none, or it is not what was written.
        """
        path = Path(folder) / MANIFEST
        if not path.is_file():
            raise InputError(
                "shards", f"{folder} has no {MANIFEST}", "give the folder 'fairmp shard' wrote"
            )
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            known = content.pop("format")
            if known != FORMAT:
                raise InputError(
                    "shards",
                    f"{folder} has format {known}, this fairmp ({__version__}) reads {FORMAT}",
                    "shard the graph again",
                )
            fingerprint, _ = content.pop("fingerprint"), content.pop("fairmp")
            manifest = _from_json(content)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(
                "shards", f"{path} is damaged or no manifest of shards", "shard the graph again"
            ) from None
        if manifest.fingerprint != fingerprint:
            raise InputError("shards", f"{path} was altered", "shard the graph again")
        return manifest


def _from_json(content: dict[str, Any]) -> Manifest:
    parts = tuple(
        Part(
            part["start"],
            part["stop"],
            part["entries"],
            part["halo"],
            {name: File(**file) for name, file in part["files"].items()},
        )
        for part in content.pop("parts")
    )
    lists = ("feature_names", "class_names", "group_names", "split_seeds", "report")
    return Manifest(**{**content, **{name: tuple(content[name]) for name in lists}}, parts=parts)


def part_folder(folder: Path, index: int) -> Path:
    """Return where a part's arrays lie.

    Example:
        >>> part_folder(Path("shards"), 3).as_posix()
        'shards/part-00003'
    """
    return folder / f"part-{index:05d}"


def verify(folder: Path, index: int, part: Part) -> None:
    """Read a part's files from end to end, and compare them with their sums.

    Raises:
        InputError: If one is missing, cut short or altered; it names the file.
    """
    for name in ARRAYS:
        path = part_folder(folder, index) / f"{name}.npy"
        if name not in part.files:
            raise InputError("shards", f"the manifest of {folder} has no sum for {path.name}")
        expected = part.files[name]
        again = "shard the graph again, or copy the file again"
        if not path.is_file():
            raise InputError("shards", f"{path} is missing", f"{again}")
        size = path.stat().st_size
        if size != expected.bytes:
            raise InputError(
                "shards",
                f"{path} has {size:,} bytes where {expected.bytes:,} were written",
                f"{again}",
            )
        if _sum(path) != expected.sha256:
            raise InputError("shards", f"{path} was altered: its SHA-256 is another", f"{again}")


def _sum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def mapped(folder: Path, index: int, name: str) -> np.ndarray:
    """Map an array of a part into memory: pages are read when they are looked at."""
    array: np.ndarray = np.load(part_folder(folder, index) / f"{name}.npy", mmap_mode="r")
    return array


def read_rows(folder: Path, index: int, name: str, out: np.ndarray) -> None:
    """Copy an array of a part to where there is room for it, and nowhere else on the way."""
    with (part_folder(folder, index) / f"{name}.npy").open("rb") as file:
        np.lib.format.read_magic(file)
        np.lib.format.read_array_header_1_0(file)
        file.readinto(out.reshape(-1).view(np.uint8).data)


class ArrayWriter:
    """Write a ``.npy`` file front to back, and its sum with it.

    Example:
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with ArrayWriter(Path(folder) / "a.npy", (3,), np.int32) as writer:
        ...         writer.append(np.array([1, 2]))
        ...         writer.append(np.array([3]))
        ...     np.load(Path(folder) / "a.npy").tolist(), writer.file.bytes
        ([1, 2, 3], 140)
    """

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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stream.close()
        if kind is None and self._rows != self.shape[0]:
            raise AssertionError(f"{self.path.name}: {self._rows} rows of {self.shape[0]}")

    @property
    def file(self) -> File:
        """The file's size and sum, once all is written."""
        return File(self._bytes, self._sum.hexdigest())


def check_target(folder: Path, *, overwrite: bool) -> None:
    """Raise if shards can not go to a folder, before any work is done for them."""
    if folder.exists() and not folder.is_dir():
        raise InputError("--out", f"{folder} is a file", "give the name of a folder")
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    if not overwrite:
        raise InputError(
            "--out", f"{folder} is not empty", "give another folder, or add --overwrite"
        )
    strangers = [p.name for p in folder.iterdir() if p.name != MANIFEST and p.name[:5] != "part-"]
    if strangers or not (folder / MANIFEST).is_file():
        name = strangers[0] if strangers else "no manifest"
        raise InputError(
            "--out",
            f"{folder} holds something else than shards ({name}), and is not replaced",
            "give another folder",
        )


@contextmanager
def staged(folder: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Give a folder to write shards to, which takes its place when all went well.

    Scratch files may go to its ``scratch`` folder, and are gone at the end.
    """
    check_target(folder, overwrite=overwrite)
    parent = folder.absolute().parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=parent))
    except OSError as error:
        raise InputError("--out", f"can not write to {parent} ({error.strerror})") from None
    try:
        (staging / "scratch").mkdir()
        yield staging
        shutil.rmtree(staging / "scratch")
        staging.chmod(0o777 & ~_umask())
        if folder.exists():
            with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=parent) as aside:
                os.rename(folder, Path(aside) / "old")
                os.rename(staging, folder)
        else:
            os.rename(staging, folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask

"""Unpack an archive from a stranger: plain files only, inside the folder, within a size."""

from __future__ import annotations

import gzip
import shutil
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, cast

from fairmp.errors import InputError

SUFFIXES = (".zip", ".tar.gz", ".tgz", ".tar", ".gz")
LIMIT = 4 << 30
_CHUNK = 1 << 20


def is_archive(name: str) -> bool:
    """Whether a file name ends as an archive's does.

    Example:
        >>> is_archive("credit_edges.txt.zip"), is_archive("nba.csv")
        (True, False)
    """
    return name.lower().endswith(SUFFIXES)


def unpack(archive: Path, folder: Path, *, limit: int = LIMIT) -> list[Path]:
    """Unpack a zip, tar, tar.gz or gz file into ``folder``; all of it or nothing.

    Args:
        archive: The archive.
        folder: Where its files go; made where it is not there.
        limit: The most bytes it may unpack to, counted as they come and not as it claims.

    Returns:
        The unpacked files.

    Raises:
        InputError: If it holds a link, a device, a path that leaves the folder, more than
            ``limit`` bytes, or cannot be read.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".unpack-") as scratch:
        try:
            names = _extract(archive, Path(scratch), limit)
        except (zipfile.BadZipFile, tarfile.TarError, EOFError, OSError, zlib.error) as error:
            raise InputError(
                archive.name, f"cannot be unpacked ({error})", "fetch it again"
            ) from None
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (Path(scratch) / name).replace(folder / name)
    return [folder / name for name in names]


def _extract(archive: Path, scratch: Path, limit: int) -> list[Path]:
    names, left = [], limit
    for member, stream in _members(archive):
        name = _inside(archive, member)
        target = scratch / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with stream, target.open("wb") as file:
            while chunk := stream.read(_CHUNK):
                left -= len(chunk)
                if left < 0:
                    raise InputError(
                        archive.name, f"unpacks to more than {limit:,} bytes", "it is not unpacked"
                    )
                file.write(chunk)
        names.append(name)
    return names


def _members(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    name = archive.name.lower()
    if name.endswith(".zip"):
        with zipfile.ZipFile(archive) as bundle:
            for info in bundle.infolist():
                # The upper half of external_attr is the Unix mode, 0 where the maker set none.
                kind = stat.S_IFMT(info.external_attr >> 16)
                if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                    raise _refused(archive, info.filename, "is a link or a device")
                if not info.is_dir():
                    yield info.filename, bundle.open(info)
    elif name.endswith((".tar.gz", ".tgz", ".tar")):
        with tarfile.open(archive) as tape:
            for entry in tape:
                if entry.isdir():
                    continue
                stream = tape.extractfile(entry) if entry.isreg() else None
                if stream is None:
                    raise _refused(archive, entry.name, "is a link or a device")
                yield entry.name, stream
    elif name.endswith(".gz"):
        with gzip.open(archive, "rb") as content:
            yield archive.name[: -len(".gz")], cast("IO[bytes]", content)
    else:
        raise InputError(archive.name, "is no archive", f"give one of {', '.join(SUFFIXES)}")


def _inside(archive: Path, member: str) -> Path:
    posix, windows = PurePosixPath(member), PureWindowsPath(member)
    if posix.is_absolute() or windows.anchor or ".." in (*posix.parts, *windows.parts):
        raise _refused(archive, member, "leaves the folder")
    if not posix.parts:
        raise _refused(archive, member, "has no name")
    return Path(*posix.parts)


def _refused(archive: Path, member: str, why: str) -> InputError:
    return InputError(archive.name, f"its entry {member!r} {why}", "it is not unpacked")


def take_out(archive: Path, name: str, folder: Path, *, limit: int = LIMIT) -> Path:
    """Unpack ``archive`` and keep the one file called ``name``, directly in ``folder``.

    Raises:
        InputError: As :func:`unpack`, or if the archive has no such file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".unpack-") as scratch:
        files = unpack(archive, Path(scratch), limit=limit)
        found = [file for file in files if file.name == name]
        if not found:
            held = ", ".join(file.name for file in files) or "nothing"
            raise InputError(archive.name, f"holds no {name}", f"it holds {held}")
        shutil.move(found[0], folder / name)
    return folder / name

"""Atomic result files and directories."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fairmp.errors import InputError


def free_name(name: str) -> Path:
    """Return the first of ``run.csv``, ``run-2.csv``, ``run-3.csv``, … that does not exist."""
    path, count = Path(name), 1
    while path.exists():
        count += 1
        path = Path(name).with_stem(f"{Path(name).stem}-{count}")
    return path


def check_free(path: Path, *, overwrite: bool) -> None:
    """Raise if results cannot go to a directory, before any work is done for them."""
    check_writable(path)
    if not overwrite and path.is_dir() and any(path.iterdir()):
        raise InputError("--out", f"{path} is not empty", "give another folder, or add --overwrite")


def check_writable(path: Path) -> None:
    """Raise if a directory cannot be created or written to; the attempt leaves nothing behind."""
    created: list[Path] = []
    try:
        if path.exists() and not path.is_dir():
            raise InputError("--out", f"{path} is a file", "give the name of a folder")
        goal = path.absolute()
        created = [folder for folder in (goal, *goal.parents) if not folder.exists()]
        goal.mkdir(parents=True, exist_ok=True)
        # Some file systems refuse what their permissions allow, so try it.
        os.rmdir(_staging(path))
        tempfile.TemporaryFile(dir=goal).close()
    except OSError as error:
        value = f"{path} cannot be written to ({error.strerror})"
        raise InputError("--out", value, "give another folder") from None
    finally:
        for folder in created:
            with suppress(OSError):
                folder.rmdir()


def _staging(path: Path) -> Path:
    # Part of the name is enough: all of a long one would exceed the limit of the file system.
    return Path(tempfile.mkdtemp(prefix=f".{path.name[:40]}-", dir=path.absolute().parent))


@contextmanager
def results(path: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Give a directory to write to, and move its files to ``path`` on success.

    With ``overwrite`` files of the same name are replaced, and others stay.
    """
    check_free(path, overwrite=overwrite)
    path.absolute().parent.mkdir(parents=True, exist_ok=True)
    staging = _staging(path)
    try:
        yield staging
        for source in sorted(staging.rglob("*")):
            if source.is_file():
                goal = path / source.relative_to(staging)
                goal.parent.mkdir(parents=True, exist_ok=True)
                os.replace(source, goal)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Give a name to write to, and move that file to ``path`` once it is on disk."""
    draft = path.with_name(f".{path.name[:40]}-{uuid.uuid4().hex[:8]}")
    try:
        yield draft
        _sync(draft)
        os.replace(draft, path)
        _sync(path.parent)
    finally:
        draft.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)

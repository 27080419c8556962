"""Result folders that are there whole, or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fairmp.errors import InputError


def free_name(stem: str) -> Path:
    """Return the first of ``stem``, ``stem-2``, ``stem-3``, … that is not there yet."""
    path, count = Path(stem), 1
    while path.exists():
        count += 1
        path = Path(f"{stem}-{count}")
    return path


def check_free(path: Path, *, overwrite: bool) -> None:
    """Raise if results can not go to a folder, before any work is done for them."""
    check_writable(path)
    if not overwrite and path.is_dir() and any(path.iterdir()):
        raise InputError("--out", f"{path} is not empty", "give another folder, or add --overwrite")


def check_writable(path: Path) -> None:
    """Raise if a folder can not be made or written to; the attempt leaves nothing behind."""
    made: list[Path] = []
    try:
        if path.exists() and not path.is_dir():
            raise InputError("--out", f"{path} is a file", "give the name of a folder")
        goal = path.absolute()
        for folder in reversed([goal, *goal.parents]):
            if not folder.exists():
                folder.mkdir(exist_ok=True)
                made.append(folder)
        # Permissions promise more than some file systems keep: only trying tells.
        os.rmdir(_staging(path))
        tempfile.TemporaryFile(dir=goal).close()
    except OSError as error:
        raise InputError(
            "--out", f"{path} can not be written to ({error.strerror})", "give another folder"
        ) from None
    finally:
        for folder in reversed(made):
            with suppress(OSError):
                folder.rmdir()


def _staging(path: Path) -> Path:
    # The beginning of the name is enough: the whole of a long one would leave no room.
    return Path(tempfile.mkdtemp(prefix=f".{path.name[:40]}-", dir=path.absolute().parent))


@contextmanager
def results(path: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Give a folder to write to, and move it to ``path`` when all went well.

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

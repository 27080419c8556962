"""Result files and directories that appear complete or not at all.

Results are written to a staging directory beside their goal, ``.out.partial`` for ``out``, which
holds a lock. A process that is killed leaves the directory behind without the lock, and the next
process that writes to the same goal removes it.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairmp.errors import InputError

if TYPE_CHECKING:
    from filelock import BaseFileLock

LOCK, OWNER = ".lock", ".owner"
WAIT_S = 60.0  # for another process that publishes to the same directory
POLL_S = 0.05


def check_free(path: Path, *, overwrite: bool) -> None:
    """Raise if results cannot go to a directory, before any work is done for them."""
    check_writable(path)
    if not overwrite and path.is_dir() and any(path.iterdir()):
        hint = "give another folder, or set {overwrite=True}"
        raise InputError("out", f"{path} is not empty", hint)


def check_writable(path: Path, *, beside: bool = True) -> None:
    """Raise if a directory, or ``beside`` it, cannot be written to; nothing is left behind."""
    created: list[Path] = []
    try:
        if path.exists() and not path.is_dir():
            raise InputError("out", f"{path} is a file", "give the name of a folder")
        goal = path.absolute()
        created = _missing_folders(goal)
        goal.mkdir(parents=True, exist_ok=True)
        # Some file systems refuse what their permissions allow, so try it.
        for folder in (goal, goal.parent) if beside else (goal,):
            tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        value = f"{path} cannot be written to ({error.strerror})"
        raise InputError("out", value, "give another folder") from None
    finally:
        _remove_empty(created)


def free_name(name: str) -> Path:
    """Return the first of ``run.csv``, ``run-2.csv``, ``run-3.csv``, … that nobody uses."""
    path, count = Path(name), 1
    while path.exists() or _Staging(path).owner() is not None:
        count += 1
        path = Path(name).with_stem(f"{Path(name).stem}-{count}")
    return path


def try_lock(path: Path) -> BaseFileLock | None:
    """Lock a file made for this purpose; None if another process holds the lock.

    A file system without locks is used without them.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(path, thread_local=False)
    try:
        lock.acquire(blocking=False)
    except (Timeout, FileNotFoundError):  # or its directory is being removed
        return None
    except (OSError, NotImplementedError):
        pass
    return lock


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold a lock on behalf of a file; raise if another process holds it."""
    place = path.with_name(f".{path.name}{LOCK}")
    lock = try_lock(place)
    if lock is None:
        hint = "wait for it, or give another folder"
        raise InputError("out", f"another process is writing to {path}", hint)
    try:
        yield
    finally:
        _unlock(place, lock)


def _unlock(path: Path, lock: BaseFileLock) -> None:
    """Remove a lock file while it is locked, so that processes waiting for it start over."""
    path.unlink(missing_ok=True)
    lock.release()


class _Staging:
    """The directory in which results are written before they are published, and its lock."""

    def __init__(self, path: Path) -> None:
        self.path, self.goal = path, path.resolve()
        name = self.goal.name
        if len(name.encode()) >= 200:  # file systems limit the length of names
            name = f"{name[:40]}-{uuid.uuid5(uuid.NAMESPACE_URL, name)}"
        self.folder = self.goal.with_name(f".{name}.partial")
        self.new = self.folder / "new"  # what is being written
        self.old = self.folder / "old"  # what it replaces, for a moment
        self.created: list[Path] = []
        self.lock: BaseFileLock | None = None

    def acquire(self, wait_s: float) -> None:
        """Lock the directory, and clear what a killed process left in it."""
        deadline = time.monotonic() + wait_s
        self.created = _missing_folders(self.folder)
        while not self._try_acquire():
            if time.monotonic() > deadline:
                value = f"{self.path} is being written to by {self.owner() or 'another process'}"
                raise InputError("out", value, "wait for it, or give another folder")
            time.sleep(POLL_S)
        self._clear()
        self.new.mkdir()

    def _try_acquire(self) -> bool:
        with suppress(FileNotFoundError):  # its owner is removing it
            self.folder.mkdir(parents=True, exist_ok=True)
            self.lock = try_lock(self.folder / LOCK)
            if self.lock is not None:
                process = f"process {os.getpid()} on {socket.gethostname()}"
                (self.folder / OWNER).write_text(f"{process} since {time.strftime('%H:%M')}")
        return self.lock is not None

    def owner(self) -> str | None:
        """Return the process that holds the lock; None if there is none."""
        if not (self.folder / LOCK).exists():
            return None
        lock = try_lock(self.folder / LOCK)
        if lock is not None:
            lock.release()
            return None
        with suppress(OSError):
            return (self.folder / OWNER).read_text()
        return "another process"

    def publish(self, *, keep: bool, in_place: bool) -> None:
        """Move the results to their goal."""
        # Renaming the working directory would leave a shell in a directory without a name.
        if in_place or os.path.ismount(self.goal) or Path.cwd().is_relative_to(self.goal):
            self._publish_files()
        elif not self.goal.is_dir() or not any(self.goal.iterdir()):
            os.rename(self.new, self.goal)
        else:
            if keep:
                shutil.copytree(
                    self.goal, self.new, symlinks=True, copy_function=_link, dirs_exist_ok=True
                )
            os.rename(self.goal, self.old)
            os.rename(self.new, self.goal)

    def _publish_files(self) -> None:
        for file in sorted(self.new.rglob("*")):
            if file.is_file():
                place = self.goal / file.relative_to(self.new)
                place.parent.mkdir(parents=True, exist_ok=True)
                os.replace(file, place)

    def _clear(self) -> None:
        """Remove what was not published, and restore what it was to replace."""
        if self.old.exists() and not self.goal.exists():  # stopped between two renames
            os.rename(self.old, self.goal)
        for folder in (self.new, self.old):
            shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        """Remove the directory, and give up the lock."""
        self._clear()
        (self.folder / OWNER).unlink(missing_ok=True)
        if self.lock is not None:
            _unlock(self.folder / LOCK, self.lock)
        _remove_empty([self.folder, *self.created])


_held: dict[Path, _Staging] = {}  # staging directories this process has locked, by goal


def hold(path: Path, *, overwrite: bool) -> None:
    """Check a directory for results, and lock it until they are there or this process ends."""
    check_free(path, overwrite=overwrite)
    _acquire(path, wait_s=0.0)


def release() -> None:
    """Give up all locks, and remove what was not finished."""
    while _held:
        _held.popitem()[1].close()


@contextmanager
def results(
    path: Path, *, overwrite: bool = False, keep: bool = True, in_place: bool = False
) -> Iterator[Path]:
    """Yield the staging directory, which becomes ``path`` in one step on success.

    With ``overwrite`` files of the same name are replaced, and others stay if ``keep``. With
    ``in_place``, for a directory that other processes use, each file is replaced on its own.
    """
    check_free(path, overwrite=overwrite)
    staging = _acquire(path, wait_s=WAIT_S)
    try:
        yield staging.new
        staging.publish(keep=keep, in_place=in_place)
    finally:
        if _held.pop(staging.goal, None):
            staging.close()


@contextmanager
def into(path: Path) -> Iterator[Path]:
    """Yield the staging directory of a folder this process holds; any other folder itself."""
    if path.resolve() not in _held:
        yield path
        return
    with results(path, overwrite=True) as staging:
        yield staging


def _acquire(path: Path, *, wait_s: float) -> _Staging:
    staging = _Staging(path)
    if staging.goal not in _held:
        try:
            staging.acquire(wait_s)
        except BaseException:
            _remove_empty(staging.created)
            raise
        _held[staging.goal] = staging
    return _held[staging.goal]


def _link(source: str, goal: str) -> None:
    """Put an older file beside the new ones, unless one of them replaces it."""
    if not os.path.exists(goal):
        try:
            os.link(source, goal)
        except OSError:  # a file system without links
            shutil.copy2(source, goal)


def _missing_folders(path: Path) -> list[Path]:
    """The directories that are to be created for a path, the innermost first."""
    return [folder for folder in (path, *path.parents) if not folder.exists()]


def _remove_empty(folders: Sequence[Path]) -> None:
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


def write_json(path: Path, content: Any) -> None:
    """Write plain data as a JSON file."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, indent=1)
    path.write_text(text + "\n", encoding="utf-8")


@contextmanager
def text_files(contents: Mapping[Path, str], *, new: bool) -> Iterator[None]:
    """Write files, which appear at the end; see :func:`atomic_file`."""
    with ExitStack() as drafts:
        for path, text in contents.items():
            draft = drafts.enter_context(atomic_file(path, new=new))
            draft.write_text(text, encoding="utf-8")
        yield


@contextmanager
def atomic_file(path: Path, *, new: bool = False) -> Iterator[Path]:
    """Yield the path of a draft, which becomes ``path`` on success; ``new`` replaces no file."""
    stem = f".{path.name[:40]}-"
    for other in path.parent.iterdir():
        if other.name.startswith(stem) and other.name.endswith(".partial"):
            _remove_stale(other)
    folder = path.with_name(f"{stem}{uuid.uuid4().hex[:8]}.partial")
    folder.mkdir()
    while (lock := try_lock(folder / LOCK)) is None:  # another process takes it for a stale one
        folder.mkdir(exist_ok=True)
    try:
        draft = folder / path.name
        yield draft
        _sync(draft)
        _move(draft, path, new=new)
        _sync(path.parent)
    finally:
        _discard(folder, lock)


def _remove_stale(folder: Path) -> None:
    """Remove the folder of a draft unless the process that writes it holds its lock."""
    lock = try_lock(folder / LOCK)
    if lock is not None and lock.is_locked:
        _discard(folder, lock)


def _discard(folder: Path, lock: BaseFileLock) -> None:
    for file in folder.iterdir():
        if file.name != LOCK:
            file.unlink()
    _unlock(folder / LOCK, lock)
    _remove_empty([folder])


def _move(draft: Path, path: Path, *, new: bool) -> None:
    if not new:
        os.replace(draft, path)
        return
    try:
        os.link(draft, path)  # unlike a rename, it fails where the file exists
    except FileExistsError:
        hint = "give another name, or set {overwrite=True}"
        raise InputError("out", f"{path} exists by now", hint) from None
    except OSError:  # a file system without links
        os.replace(draft, path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)

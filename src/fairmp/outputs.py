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
from collections.abc import Iterable, Iterator, Mapping
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
        hint = "give another folder, or add {overwrite=True}"
        raise InputError("out", f"{path} is not empty", hint)


def check_writable(path: Path, *, argument: str = "out", beside: bool = True) -> None:
    """Raise if a directory, or ``beside`` it, cannot be written to; nothing is left behind."""
    created: list[Path] = []
    try:
        if path.exists() and not path.is_dir():
            raise InputError(argument, f"{path} is a file", "give the name of a folder")
        goal = path.absolute()
        created = _missing_folders(goal)
        goal.mkdir(parents=True, exist_ok=True)
        # Some file systems refuse what their permissions allow, so try it.
        for folder in (goal, goal.parent) if beside else (goal,):
            tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        value = f"{path} cannot be written to ({error.strerror})"
        raise InputError(argument, value, "give another folder") from None
    finally:
        _remove_empty(created)


def check_file(
    argument: str, path: Path, inputs: Iterable[str | Path | None] = (), *, overwrite: bool
) -> None:
    """Refuse the name of a file that cannot be written, that exists, or that is an input."""
    if path.is_dir():
        raise InputError(argument, f"{path} is a folder", "give the name of a file")
    if path.exists() and not overwrite:
        hint = "give another name, or add {overwrite=True}"
        raise InputError(argument, f"{path} exists", hint)
    check_writable(path.absolute().parent, argument=argument, beside=False)
    for table in inputs:
        if table and path.exists() and Path(table).exists() and path.samefile(table):
            raise InputError(argument, f"{path} is an input table", "give another name")


def free_name(name: str) -> Path:
    """Return the first of ``run.csv``, ``run-2.csv``, ``run-3.csv``, … that nobody uses."""
    path, count = Path(name), 1
    while path.exists() or _LockedFolder(_staging_folder(path)).owner() is not None:
        count += 1
        path = Path(name).with_stem(f"{Path(name).stem}-{count}")
    return path


def try_lock(path: Path) -> BaseFileLock | None:
    """Lock a file made for this purpose; None if another process holds the lock.

    A file system without locks is used without them.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(path, thread_local=False)
    with suppress(NotImplementedError, OSError):
        try:
            lock.acquire(blocking=False)
        except (Timeout, FileNotFoundError):  # or its directory is being removed
            return None
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
        _remove_lock(place, lock)


def _remove_lock(path: Path, lock: BaseFileLock) -> None:
    """Remove a lock file while it is locked, so that processes waiting for it start over."""
    with suppress(PermissionError):  # Windows keeps files that are open
        path.unlink(missing_ok=True)
    lock.release()


class _LockedFolder:
    """A directory for drafts, with a lock that ends with its process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.new = folder / "new"  # what is being written
        self.old = folder / "old"  # what it replaces, for a moment
        self._lock: BaseFileLock | None = None
        self._created: list[Path] = []

    def try_acquire(self) -> bool:
        """Create and lock the directory; False if another process has it."""
        self._created = self._created or _missing_folders(self.folder)
        with suppress(FileNotFoundError):  # its owner is removing it
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = try_lock(self.folder / LOCK)
            if self._lock is not None:
                process = f"process {os.getpid()} on {socket.gethostname()}"
                (self.folder / OWNER).write_text(f"{process} since {time.strftime('%H:%M')}")
        return self._lock is not None

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

    def is_stale(self) -> bool:
        """Lock a directory that a killed process left; False if its process is alive."""
        self._lock = try_lock(self.folder / LOCK)
        return self._lock is not None and self._lock.is_locked

    def clear(self) -> None:
        """Remove drafts."""
        for folder in (self.new, self.old):
            shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        """Remove the directory, and give up the lock."""
        if self._lock is not None:
            self.clear()
            (self.folder / OWNER).unlink(missing_ok=True)
            _remove_lock(self.folder / LOCK, self._lock)
        _remove_empty([self.folder, *self._created])


_held: dict[Path, _LockedFolder] = {}  # staging directories this process has locked, by goal


def hold(path: Path, *, overwrite: bool) -> None:
    """Check a directory for results, and lock it until they are there or this process ends."""
    check_free(path, overwrite=overwrite)
    _acquire(path, wait_s=0.0)


def release() -> None:
    """Give up all locks, and remove what was not finished."""
    for goal in list(_held):
        _release(goal)


@contextmanager
def results(
    path: Path, *, overwrite: bool = False, keep: bool = True, in_place: bool = False
) -> Iterator[Path]:
    """Yield the staging directory, which becomes ``path`` in one step on success.

    With ``overwrite`` files of the same name are replaced, and others stay if ``keep``. With
    ``in_place``, for a directory that other processes use, each file is replaced on its own.
    """
    check_free(path, overwrite=overwrite)
    staging, goal = _acquire(path, wait_s=WAIT_S), path.resolve()
    try:
        yield staging.new
        # Renaming the working directory would leave a shell in a directory without a name.
        if in_place or os.path.ismount(goal) or Path.cwd().is_relative_to(goal):
            _publish_files(staging.new, goal)
        else:
            _publish(staging, goal, keep=keep)
    finally:
        _release(goal)


@contextmanager
def into(path: Path) -> Iterator[Path]:
    """Yield the staging directory of a folder this process holds; any other folder itself."""
    if path.resolve() not in _held:
        yield path
        return
    with results(path, overwrite=True) as staging:
        yield staging


def _staging_folder(path: Path) -> Path:
    name = path.resolve().name
    if len(name.encode()) >= 200:  # file systems limit the length of names
        name = f"{name[:40]}-{uuid.uuid5(uuid.NAMESPACE_URL, name)}"
    return path.resolve().with_name(f".{name}.partial")


def _acquire(path: Path, *, wait_s: float) -> _LockedFolder:
    """Lock the staging directory of a goal, and clear what a killed process left in it."""
    goal, deadline = path.resolve(), time.monotonic() + wait_s
    if goal in _held:
        return _held[goal]
    staging = _LockedFolder(_staging_folder(path))
    while not staging.try_acquire():
        if time.monotonic() > deadline:
            owner = staging.owner() or "another process"
            staging.close()
            value = f"{path} is being written to by {owner}"
            raise InputError("out", value, "wait for it, or give another folder")
        time.sleep(POLL_S)
    _restore(staging, goal)
    staging.clear()
    staging.new.mkdir()
    _held[goal] = staging
    return staging


def _release(goal: Path) -> None:
    if goal in _held:
        staging = _held.pop(goal)
        _restore(staging, goal)
        staging.close()


def _restore(staging: _LockedFolder, goal: Path) -> None:
    """Bring back what was to be replaced, if that was stopped between two renames."""
    if staging.old.exists() and not goal.exists():
        os.rename(staging.old, goal)


def _publish(staging: _LockedFolder, goal: Path, *, keep: bool) -> None:
    if goal.is_dir() and any(goal.iterdir()):
        if keep:
            shutil.copytree(goal, staging.new, True, copy_function=_link, dirs_exist_ok=True)
        os.rename(goal, staging.old)
    os.rename(staging.new, goal)


def _publish_files(folder: Path, goal: Path) -> None:
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            place = goal / file.relative_to(folder)
            place.parent.mkdir(parents=True, exist_ok=True)
            os.replace(file, place)


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


def _remove_empty(folders: Iterable[Path]) -> None:
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
            left = _LockedFolder(other)
            if left.is_stale():
                left.close()
    staging = _LockedFolder(path.with_name(f"{stem}{uuid.uuid4().hex[:8]}.partial"))
    while not staging.try_acquire():  # another process takes it for a stale one
        time.sleep(POLL_S)
    try:
        staging.new.mkdir()
        draft = staging.new / path.name
        yield draft
        _sync(draft)
        _move(draft, path, new=new)
        _sync(path.parent)
    finally:
        staging.close()


def _move(draft: Path, path: Path, *, new: bool) -> None:
    if not new:
        os.replace(draft, path)
        return
    try:
        os.link(draft, path)  # unlike a rename, it fails where the file exists
    except FileExistsError:
        hint = "give another name, or add {overwrite=True}"
        raise InputError("out", f"{path} exists by now", hint) from None
    except OSError:  # a file system without links
        os.replace(draft, path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)

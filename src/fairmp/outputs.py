"""Result files and directories that appear complete or not at all.

Results are written to a staging directory beside their goal, ``.out-k3w9x0ab.partial`` for ``out``:
a name nobody can foresee, made for this process alone, with a lock and the mark of its owner. A
process that is killed leaves the directory behind without the lock, and the next one that writes to
the same goal removes it. Links, and directories of others or without the mark, are left alone.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import stat
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairmp.errors import InputError

if TYPE_CHECKING:
    from filelock import BaseFileLock

LOCK, OWNER = ".lock", ".owner"
MARK = "process"  # the first word of an owner
PARTIAL = ".partial"  # how names of staging directories end
MAX_NAME_BYTES = 200  # of a goal's name in that of its staging directory
TURN_S = 0.5  # for another process that asks for the same goal at the same moment
WAIT_S = 60.0  # for another process that publishes to the same directory
POLL_S = 0.05
TRIES = 20  # to make a folder that other processes make and remove


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
        _try_writing(goal, (goal, goal.parent) if beside else (goal,))
    except OSError as error:
        value = f"{path} cannot be written to ({error.strerror})"
        raise InputError(argument, value, "give another folder") from None
    finally:
        _remove_empty(created)


def _try_writing(goal: Path, folders: Sequence[Path]) -> None:
    """Make a folder and write to some: file systems may refuse what their permissions allow."""
    for tries_left in reversed(range(TRIES)):
        try:
            goal.mkdir(parents=True, exist_ok=True)
            for folder in folders:
                tempfile.TemporaryFile(dir=folder).close()
            return
        except (FileExistsError, FileNotFoundError):
            # Another process that tries the same has removed what it had made.
            if not tries_left or goal.is_file():
                raise


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
    while path.exists() or _is_held(path):
        count += 1
        path = Path(name).with_stem(f"{Path(name).stem}-{count}")
    return path


def _is_held(path: Path) -> bool:
    return any(folder.owner() is not None for folder in _StagingName(path).marked())


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
    staging = _acquire(path, wait_s=0.0)
    try:
        yield
    finally:
        staging.close()


def _remove_lock(path: Path, lock: BaseFileLock) -> None:
    """Remove a lock file while it is locked, so that processes waiting for it start over."""
    with suppress(PermissionError):  # Windows keeps files that are open
        path.unlink(missing_ok=True)
    lock.release()


class _StagingName:
    """The names of staging directories of a goal, ``.out-k3w9x0ab.partial`` for ``out``."""

    def __init__(self, path: Path) -> None:
        goal = path.absolute() if path.is_symlink() and not path.is_dir() else path.resolve()
        self.parent, self.goal, name = goal.parent, goal.name, goal.name
        if len(name.encode()) >= MAX_NAME_BYTES:  # file systems limit the length of names
            name = f"{name[:40]}-{uuid.uuid5(uuid.NAMESPACE_URL, name)}"
        self.stem = f".{name}-"
        self._pattern = re.compile(re.escape(self.stem) + r"[a-z0-9_]{8}" + re.escape(PARTIAL))

    def make(self) -> _StagingFolder:
        """Make a directory that no other process has, and lock it."""
        while True:
            created = _missing_folders(self.parent)
            self.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):  # another process removes what it had created
                folder = tempfile.mkdtemp(suffix=PARTIAL, prefix=self.stem, dir=self.parent)
                staging = _StagingFolder(Path(folder), self.goal, created)
                if staging.lock_new():
                    return staging

    def _folders(self, own: Path | None) -> Iterator[_StagingFolder]:
        """The directories of such a name, except for that of this process."""
        with suppress(OSError):
            for entry in list(os.scandir(self.parent)):
                if self._pattern.fullmatch(entry.name) and Path(entry.path) != own:
                    yield _StagingFolder(Path(entry.path), self.goal)

    def marked(self, own: Path | None = None) -> list[_StagingFolder]:
        """Those that a process of this user has made for the goal."""
        return [folder for folder in self._folders(own) if folder.is_marked()]

    def unused(self, own: Path | None = None) -> Iterator[_StagingFolder]:
        """Those whose process was killed, locked by this one."""
        for folder in self._folders(own):
            if (folder.is_marked() or folder.is_unfinished()) and folder.lock_stale():
                yield folder


class _StagingFolder:
    """A directory for drafts, with a lock that ends with its process."""

    def __init__(self, path: Path, goal: str, created: Iterable[Path] = ()) -> None:
        self.path, self.goal = path, goal
        self.new = path / "new"  # what is being written
        self.old = path / "old"  # what it replaces, for a moment
        self._lock: BaseFileLock | None = None
        self._created = list(created)  # directories above it that did not exist

    def lock_new(self) -> bool:
        """Lock a directory that this process has made, and mark it; False if it was removed."""
        self._lock = try_lock(self.path / LOCK)
        if self._lock is None:
            return False
        process = f"{MARK} {os.getpid()} on {socket.gethostname()} since {time.strftime('%H:%M')}"
        (self.path / OWNER).write_text(f"{process}\n{self.goal}\n", encoding="utf-8")
        return True

    def is_marked(self) -> bool:
        """Whether a process of this user has made the directory for the goal; links never are."""
        try:
            if not self._is_own_folder() or not stat.S_ISREG(os.lstat(self.path / OWNER).st_mode):
                return False
            process, goal, _ = (self.path / OWNER).read_text(encoding="utf-8").split("\n")
        except (OSError, ValueError):
            return False
        return process.startswith(f"{MARK} ") and goal == self.goal

    def is_unfinished(self) -> bool:
        """Whether there is nothing in it to lose, as in one whose process was killed at once."""
        try:
            return self._is_own_folder() and set(os.listdir(self.path)) <= {LOCK}
        except OSError:
            return False

    def _is_own_folder(self) -> bool:
        folder = os.lstat(self.path)
        is_own = not hasattr(os, "getuid") or folder.st_uid == os.getuid()
        return is_own and stat.S_ISDIR(folder.st_mode)

    def owner(self) -> str | None:
        """Return the process that holds the lock; None if there is none."""
        if not os.path.lexists(self.path / LOCK):
            return None
        lock = try_lock(self.path / LOCK)
        if lock is not None:
            lock.release()
            return None
        with suppress(OSError):
            return (self.path / OWNER).read_text(encoding="utf-8").partition("\n")[0]
        return "another process"

    def lock_stale(self) -> bool:
        """Lock a directory that a killed process left; False if it is in use."""
        if os.path.islink(self.path / LOCK):
            return False
        self._lock = try_lock(self.path / LOCK)
        return self._lock is not None and self._lock.is_locked

    def clear(self) -> None:
        """Remove drafts."""
        for folder in (self.new, self.old):
            shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        """Remove the directory, and give up the lock."""
        if self._lock is not None:
            self.clear()
            (self.path / OWNER).unlink(missing_ok=True)
            _remove_lock(self.path / LOCK, self._lock)
            self._lock = None
        _remove_empty([self.path, *self._created])


_held: dict[Path, _StagingFolder] = {}  # staging directories this process has locked, by goal


def hold(path: Path, *, overwrite: bool) -> None:
    """Check a directory for results, and lock it until they are there or this process ends."""
    check_free(path, overwrite=overwrite)
    _hold(path, wait_s=0.0)


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
    staging, goal = _hold(path, wait_s=WAIT_S), path.resolve()
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


def _hold(path: Path, *, wait_s: float) -> _StagingFolder:
    """The staging directory this process has for a goal, with a place for drafts."""
    goal = path.resolve()
    if goal not in _held:
        staging = _acquire(path, wait_s=wait_s)
        staging.new.mkdir()
        _held[goal] = staging
    return _held[goal]


def _acquire(path: Path, *, wait_s: float) -> _StagingFolder:
    """Make a staging directory while no other process has one for the same goal.

    A process holds the goal when it sees no other directory after it has made its own. Of several
    that see each other, the first by name waits for the others, which step back.
    """
    name, deadline = _StagingName(path), time.monotonic() + max(wait_s, TURN_S)
    while True:
        staging = name.make()
        owner = _wait_for_others(name, staging, path.resolve(), deadline)
        if owner is None:
            return staging
        staging.close()
        if time.monotonic() > deadline:
            value = f"{path} is being written to by {owner}"
            raise InputError("out", value, "wait for it, or give another folder")
        time.sleep(POLL_S)


def _wait_for_others(
    name: _StagingName, staging: _StagingFolder, goal: Path, deadline: float
) -> str | None:
    """Return the process that has the goal; None once no other does."""
    while True:
        _remove_stale(name, staging.path, goal)
        owners = {folder.path: folder.owner() for folder in name.marked(staging.path)}
        alive = [place for place, owner in sorted(owners.items()) if owner is not None]
        if not alive:
            return None
        if alive[0] < staging.path or time.monotonic() > deadline:
            return owners[alive[0]]
        time.sleep(POLL_S)


def _remove_stale(name: _StagingName, own: Path, goal: Path) -> None:
    """Remove what killed processes left, after bringing back what they were about to replace."""
    for left in name.unused(own):
        _restore(left, goal)
        left.close()


def _release(goal: Path) -> None:
    if goal in _held:
        staging = _held.pop(goal)
        _restore(staging, goal)
        staging.close()


def _restore(staging: _StagingFolder, goal: Path) -> None:
    """Bring back what was to be replaced, if that was stopped between two renames."""
    if staging.old.exists() and not goal.exists():
        os.rename(staging.old, goal)


def _publish(staging: _StagingFolder, goal: Path, *, keep: bool) -> None:
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
def atomic_file(path: Path, *, new: bool = False, private: bool = False) -> Iterator[Path]:
    """Yield the path of a draft, which becomes ``path`` on success; ``new`` replaces no file.

    Nobody but its owner may read a ``private`` file.
    """
    name = _StagingName(path)
    for left in name.unused():
        left.close()
    staging = name.make()
    try:
        staging.new.mkdir()
        draft = staging.new / path.name
        if private:
            create_private(draft)
        yield draft
        _sync(draft)
        _move(draft, path, new=new)
        _sync(path.parent)
    finally:
        staging.close()


def create_private(path: Path) -> None:
    """Create an empty file that nobody but its owner may read, before people's data is in it."""
    path.touch(0o600)


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

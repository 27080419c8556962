"""Atomic result files and directories, and a progress bar.

What is being written lies beside its goal, under a name that ends in ``.partial`` and with a lock
on it. A process that dies leaves it there without the lock, and the next one removes it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from fairmp.errors import InputError

try:
    import fcntl
except ImportError:  # Windows: two writers are not detected there
    fcntl = None  # type: ignore[assignment]

LOCK, OLD = ".lock", ".old"
WAIT_S = 60.0
_held: dict[Path, tuple[Path, ExitStack]] = {}  # folders this process has locked


def free_name(name: str) -> Path:
    """Return the first of ``run.csv``, ``run-2.csv``, ``run-3.csv``, … that does not exist."""
    path, count = Path(name), 1
    while path.exists() or _owner(_staging(path)):
        count += 1
        path = Path(name).with_stem(f"{Path(name).stem}-{count}")
    return path


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
        created = _missing(goal)
        goal.mkdir(parents=True, exist_ok=True)
        # Some file systems refuse what their permissions allow, so try it.
        for folder in (goal, goal.parent)[: 1 + beside]:
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


def hold(path: Path, *, overwrite: bool) -> None:
    """Check a directory for results, and lock it until they are there or this process ends."""
    check_free(path, overwrite=overwrite)
    _take(path, wait=False)


def release() -> None:
    """Give up all locks, and remove what was not finished."""
    while _held:
        _held.popitem()[1][1].close()


@contextmanager
def results(
    path: Path, *, overwrite: bool = False, keep: bool = True, in_place: bool = False
) -> Iterator[Path]:
    """Give a directory to write to, which becomes ``path`` in one step on success.

    With ``overwrite`` files of the same name are replaced, and others stay if ``keep``. With
    ``in_place``, for a directory that other processes use, each file is replaced on its own.
    """
    check_free(path, overwrite=overwrite)
    staging = _take(path, wait=True)
    try:
        yield staging
        _publish(staging, path.resolve(), keep, in_place)
    finally:
        if path.resolve() in _held:
            _held.pop(path.resolve())[1].close()


@contextmanager
def into(path: Path) -> Iterator[Path]:
    """Give a directory for files: of results, if this process holds it, or else itself."""
    if path.resolve() not in _held:
        yield path
        return
    with results(path, overwrite=True) as staging:
        yield staging


def _publish(staging: Path, goal: Path, keep: bool, in_place: bool) -> None:
    (staging / LOCK).unlink(missing_ok=True)
    files = [file for file in sorted(staging.rglob("*")) if file.is_file()]
    # Renaming the working directory would leave a shell in a directory without a name.
    if in_place or os.path.ismount(goal) or Path.cwd().is_relative_to(goal):
        for file in files:
            place = goal / file.relative_to(staging)
            place.parent.mkdir(parents=True, exist_ok=True)
            os.replace(file, place)
        return
    if not goal.is_dir() or not any(goal.iterdir()):
        os.rename(staging, goal)
        return
    if keep:
        shutil.copytree(goal, staging, True, copy_function=_link, dirs_exist_ok=True)
    aside = staging.with_suffix(OLD)
    os.rename(goal, aside)
    os.rename(staging, goal)
    shutil.rmtree(aside, ignore_errors=True)


def _link(source: str, goal: str) -> None:
    """Put an older file beside the new ones, unless one of them replaces it."""
    if not os.path.exists(goal):
        try:
            os.link(source, goal)
        except OSError:
            shutil.copy2(source, goal)


def _take(path: Path, *, wait: bool) -> Path:
    """Lock a directory for results; return the staging directory beside it."""
    key, deadline = path.resolve(), time.monotonic() + WAIT_S * wait
    if key in _held:
        return _held[key][0]
    staging, stack = _staging(path), ExitStack()
    created = _missing(staging.parent)
    staging.parent.mkdir(parents=True, exist_ok=True)
    stack.callback(_remove_empty, created)
    while (lock := _lock(staging)) is None:
        if time.monotonic() > deadline:
            stack.close()
            value = f"{path} is being written to by {_owner(staging) or 'another process'}"
            raise InputError("out", value, "wait for it, or give another folder")
        time.sleep(0.05)
    stack.callback(shutil.rmtree, staging, ignore_errors=True)
    stack.enter_context(lock)
    aside = staging.with_suffix(OLD)
    if aside.exists() and not path.exists():  # a process died between two renames
        os.rename(aside, path)
    for left in (aside, *(entry for entry in staging.iterdir() if entry.name != LOCK)):
        shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink(missing_ok=True)
    _held[key] = staging, stack
    return staging


def _lock(staging: Path) -> IO[str] | None:
    """Create and lock a staging directory; None if another process has it."""
    with suppress(FileNotFoundError):  # its owner removes it right now
        staging.mkdir(exist_ok=True)
        file = (staging / LOCK).open("a+")
        held = try_lock(file) and (staging / LOCK).exists()
        if held and os.path.samestat(os.fstat(file.fileno()), (staging / LOCK).stat()):
            file.truncate(0)
            started = time.strftime("%H:%M")
            file.write(f"process {os.getpid()} on {socket.gethostname()} since {started}")
            file.flush()
            return file
        file.close()
    return None


def try_lock(file: IO[Any]) -> bool:
    """Try to lock a file; a file system without locks is taken as it is."""
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return not isinstance(error, BlockingIOError)
    return True


def _owner(staging: Path) -> str | None:
    """The process that has a staging directory locked; None if there is none."""
    with suppress(OSError), (staging / LOCK).open("r+") as file:
        return None if try_lock(file) else file.read() or None
    return None


def without_password(text: str) -> str:
    """Hide the password in the address of a database, for display."""
    return re.sub(r"(://[^:@/\s]*):\S*@", r"\1:***@", text)


def _staging(path: Path) -> Path:
    # Part of the name is enough: all of a long one would exceed the limit of the file system.
    goal = path.resolve()
    short = f"{goal.name[:40]}-{uuid.uuid5(uuid.NAMESPACE_URL, goal.name)}"
    name = goal.name if len(goal.name.encode()) < 200 else short
    return goal.with_name(f".{name}.partial")


def _missing(path: Path) -> list[Path]:
    """The directories that are to be created for a path, the innermost first."""
    return [folder for folder in (path, *path.parents) if not folder.exists()]


def _remove_empty(folders: list[Path]) -> None:
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
    """Give a name to write to, and move that file to ``path``, which may have to be ``new``."""
    stem = f".{path.name[:40]}-"
    for stale in path.parent.iterdir():
        if stale.name.startswith(stem) and stale.name.endswith(".partial"):
            with suppress(OSError), stale.open("r+b") as file:
                if try_lock(file):
                    stale.unlink()
    draft = path.with_name(f"{stem}{uuid.uuid4().hex[:8]}.partial")
    try:
        with draft.open("xb") as file:
            try_lock(file)
            yield draft
            _sync(draft)
            try:
                os.link(draft, path) if new else os.replace(draft, path)
            except FileExistsError:
                hint = "give another name, or add {overwrite=True}"
                raise InputError("out", f"{path} exists by now", hint) from None
            except OSError:  # a file system without links
                os.replace(draft, path)
            _sync(path.parent)
    finally:
        draft.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


@contextmanager
def bar(total: int, what: str, *, show: bool | None = None) -> Iterator[Callable[[str], None]]:
    """Show a bar of ``total`` steps, by default if standard error is a terminal.

    Example:
        >>> with bar(2, "counting") as advance:
        ...     for number in ("one", "two"):
        ...         advance(number)
    """
    if not (sys.stderr.isatty() if show is None else show):
        yield lambda text: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    done = TextColumn("{task.completed}/{task.total} {task.description}")
    columns = TextColumn(what), BarColumn(), done, TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task("", total=total)
        yield lambda text: shown.update(task, advance=1, description=text)

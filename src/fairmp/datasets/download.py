"""One file from the network to the disk: whole and checked, or not there at all."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import http.client
import os
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from fairmp.errors import InputError

CHUNK = 1 << 18
_PASSING = {408, 425, 429, 500, 502, 503, 504}

Advance = Callable[[int], None]


class DownloadError(InputError):
    """A file could not be fetched; nothing of it was kept."""


class NotThereError(DownloadError):
    """The server is there and the file is not."""


class _PassingFault(Exception):
    """A fault that may be gone at the next try."""


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's contents; those of a ``.gz`` file are what it unpacks to.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = (Path(folder) / "a.txt").write_text("abc")
        ...     sha256_of(Path(folder) / "a.txt")[:8]
        'ba7816bf'
    """
    with contextlib.ExitStack() as stack:
        file: BinaryIO = stack.enter_context(path.open("rb"))
        if path.suffix == ".gz":
            file = stack.enter_context(gzip.GzipFile(fileobj=file))  # type: ignore[assignment]
        return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]


def download(
    url: str,
    path: Path,
    *,
    sha256: str = "",
    attempts: int = 4,
    wait: float = 0.5,
    timeout: float = 30.0,
    progress: bool | None = None,
) -> None:
    """Fetch ``url`` to ``path``, streaming beside it and renaming once all is checked.

    Proxies and certificates are those that :mod:`urllib` finds in the environment.

    Args:
        url: Where the file is.
        path: Where it goes; its folder is made.
        sha256: The sum, or its first digits; empty checks nothing but the length.
        attempts: How often to try when the connection breaks or the server stumbles.
        wait: Seconds before the second try; doubled before each further one.
        timeout: Seconds of silence after which a connection counts as broken.
        progress: Whether to draw a progress bar; None draws one on a terminal.

    Raises:
        DownloadError: With one line that says what failed; no part of the file is left.
        NotThereError: If the server answers that it has no such file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for attempt in range(attempts):
        if attempt:
            time.sleep(wait * 2 ** (attempt - 1))
        try:
            _once(url, path, sha256, timeout, progress)
            return
        except _PassingFault as fault:
            last = fault
    tries = f"{attempts} tries" if attempts > 1 else "one try"
    raise DownloadError.parse(f"{path.name}: could not fetch {url} in {tries} ({last})") from None


def _once(url: str, path: Path, sha256: str, timeout: float, progress: bool | None) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    part = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            digest = _stream(url, file, path.name, timeout, progress)
        if not digest.startswith(sha256):
            raise DownloadError.parse(
                f"{path.name}: {url} has SHA-256 {digest[: max(8, len(sha256))]} where"
                f" {sha256} was expected; the download is corrupted or the file was changed there"
            )
        part.chmod(0o644)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _stream(url: str, file: BinaryIO, name: str, timeout: float, progress: bool | None) -> str:
    digest, received = hashlib.sha256(), 0
    try:
        request = urllib.request.Request(url, headers={"User-Agent": "fairmp"})
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            length = answer.headers.get("Content-Length")
            expected = int(length) if length else None
            with _bar(name, expected, progress) as advance:
                while chunk := answer.read(CHUNK):
                    file.write(chunk)
                    digest.update(chunk)
                    received += len(chunk)
                    advance(len(chunk))
    except urllib.error.HTTPError as error:
        error.close()
        if error.code in _PASSING:
            raise _PassingFault(f"HTTP {error.code} {error.reason}") from None
        kind = NotThereError if error.code in (404, 410) else DownloadError
        raise kind.parse(f"{name}: {url} answers HTTP {error.code} {error.reason}") from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise _PassingFault(str(reason) or type(error).__name__) from None
    except ValueError as error:
        raise DownloadError.parse(
            f"{name}: {url!r} is no address to fetch from ({error})"
        ) from None
    if expected is not None and received != expected:
        raise _PassingFault(f"cut short: {received:,} of {expected:,} bytes came")
    return digest.hexdigest()


@contextlib.contextmanager
def _bar(name: str, total: int | None, progress: bool | None) -> Iterator[Advance]:
    if not (sys.stderr.isatty() if progress is None else progress):
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    console = Console(stderr=True)
    with Progress(*columns, TransferSpeedColumn(), console=console) as bar:
        task = bar.add_task(name, total=total)
        yield lambda count: bar.advance(task, count)

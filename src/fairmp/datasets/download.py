"""Download a file with pooch, check it, and take it out of a zip archive."""

from __future__ import annotations

import gzip
import hashlib
import shutil
import sys
import tempfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast
from urllib.parse import urlsplit
from urllib.request import url2pathname

from fairmp.errors import InputError

MAX_EXTRACTED_BYTES = 4 << 30
_CHUNK_BYTES = 1 << 18


class DownloadError(InputError):
    """A file could not be downloaded; no part of it was kept."""


class NotFoundError(DownloadError):
    """The server has no such file."""


def open_raw(path: Path, gzipped: bool | None = None) -> BinaryIO:
    """Open a raw file; it is decompressed if ``gzipped``, by default if its name ends in .gz."""
    gzipped = path.suffix == ".gz" if gzipped is None else gzipped
    return cast("BinaryIO", gzip.open(path)) if gzipped else path.open("rb")


def sha256_of(path: Path, gzipped: bool | None = None) -> str:
    """Return the SHA-256 of a raw file's uncompressed content."""
    with open_raw(path, gzipped) as file:
        return hashlib.file_digest(cast("Any", file), "sha256").hexdigest()


def download(
    url: str, path: Path, *, sha256: str = "", retries: int = 3, progress: bool | None = None
) -> Path:
    """Download ``url`` (http, https or file) to ``path``; a file that fails its check is not kept.

    ``sha256`` may be the first digits only. Pooch repeats a failed attempt after 1, 2, … seconds.
    """
    import pooch

    if urlsplit(url).scheme not in ("http", "https", "file"):
        raise DownloadError(path.name, f"{url!r} is not an address", "give http(s):// or file://")

    def fetch(url: str, part: str, _: object) -> None:
        _fetch(url, part, path.name, sys.stderr.isatty() if progress is None else progress)
        # Pooch compares whole sums of the stored bytes; prefixes and .gz copies are checked here.
        if known is None and not sha256_of(Path(part), gzipped).startswith(sha256):
            raise ValueError(f"its SHA-256 does not start with the expected {sha256}")

    gzipped = path.suffix == ".gz"
    known = sha256 if len(sha256) == 64 and not gzipped else None
    pooch.get_logger().setLevel("ERROR")
    files = pooch.create(
        path=path.parent,
        base_url="",
        registry={path.name: known},
        urls={path.name: url},
        retry_if_failed=retries,
    )
    try:
        files.fetch(path.name, downloader=fetch)
    except FileNotFoundError as error:
        raise NotFoundError(path.name, f"{url} does not exist ({error})") from None
    except (OSError, ValueError) as error:
        raise DownloadError(path.name, f"cannot download {url} ({_reason(error)})") from None
    path.chmod(0o644)
    return path


def _fetch(url: str, part: str, name: str, progress: bool) -> None:
    """Copy ``url`` to the temporary file ``part``."""
    if url.startswith("file:"):
        shutil.copyfile(url2pathname(urlsplit(url).path), part)
        return
    import pooch
    import requests
    from tqdm import tqdm  # type: ignore[import-untyped]

    # Pooch sets the total, and ignores a bar without one.
    with tqdm(desc=name, total=1, unit="B", unit_scale=True, disable=not progress) as bar:
        get = pooch.HTTPDownloader(bar if progress else False, chunk_size=_CHUNK_BYTES)
        try:
            get(url, part, None)
        except requests.HTTPError as error:
            if error.response is not None:
                error.response.close()
                if error.response.status_code in (404, 410):  # pooch retries any HTTP error
                    raise FileNotFoundError(f"HTTP {error.response.status_code}") from None
            raise


def _reason(error: BaseException) -> str:
    """Return the message of the first cause: requests wraps it in several layers."""
    while error.__context__ is not None:
        error = error.__context__
    return " ".join(str(error).split()) or type(error).__name__


def extract(
    archive: Path, name: str, folder: Path, *, sha256: str = "", limit: int = MAX_EXTRACTED_BYTES
) -> Path:
    """Extract the file called ``name``, of at most ``limit`` bytes, from a zip archive.

    No path in the archive is used: the member is copied to a file whose name we choose.
    """
    with tempfile.TemporaryDirectory(dir=folder, prefix=".extract-") as scratch:
        part = Path(scratch) / name
        try:
            with zipfile.ZipFile(archive) as bundle:
                names = [m for m in bundle.namelist() if not m.endswith("/")]
                member = next((m for m in names if PurePosixPath(m).name == name), None)
                if member is None:
                    held = ", ".join(names) or "nothing"
                    raise InputError(archive.name, f"has no {name}", f"it has {held}")
                with bundle.open(member) as stream, part.open("wb") as file:
                    while chunk := stream.read(_CHUNK_BYTES):
                        limit -= len(chunk)
                        if limit < 0:
                            raise InputError(archive.name, f"{name} in it is too large")
                        file.write(chunk)
        except (zipfile.BadZipFile, EOFError, OSError, RuntimeError, zlib.error) as error:
            raise InputError(
                archive.name, f"cannot be unpacked ({error})", "download it again"
            ) from None
        if not sha256_of(part).startswith(sha256):
            raise InputError(
                archive.name, f"{name} in it does not have the SHA-256 {sha256}", "it was changed"
            )
        return part.replace(folder / name)

"""Download files, check them against a published SHA-256, and unpack archives."""

from __future__ import annotations

import gzip
import hashlib
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast
from urllib.parse import urlsplit
from urllib.request import url2pathname

from fairmp.errors import InputError, shorten, shortlist

MAX_EXTRACTED_BYTES = 4 << 30
_CHUNK_BYTES = 1 << 18


class DownloadError(InputError):
    """A file could not be downloaded; no part of it was kept."""


class NotFoundError(DownloadError):
    """The server has no such file."""


def open_raw(path: Path, suffix: str | None = None) -> BinaryIO:
    """Open a raw file; it is decompressed if its suffix, or the one given, is .gz."""
    gzipped = (path.suffix if suffix is None else suffix) == ".gz"
    return cast("BinaryIO", gzip.open(path)) if gzipped else path.open("rb")


def sha256_of(path: Path, suffix: str | None = None) -> str:
    """Return the SHA-256 of a raw file's uncompressed content."""
    with open_raw(path, suffix) as file:
        return hashlib.file_digest(cast("Any", file), "sha256").hexdigest()


def download(
    url: str, path: Path, *, sha256: str = "", retries: int = 3, progress: bool | None = None
) -> Path:
    """Download ``url`` to ``path``; ``sha256`` or its first digits must match to keep the file."""
    import pooch

    if urlsplit(url).scheme not in ("http", "https", "file"):
        raise DownloadError(path.name, f"{url!r} is not an address", "give http(s):// or file://")
    # Pooch compares whole sums of the stored bytes; prefixes and .gz copies are checked here.
    whole_sum = sha256 if len(sha256) == 64 and path.suffix != ".gz" else None

    def fetch(url: str, part: str, _: object) -> None:
        _copy(url, part, path.name, sys.stderr.isatty() if progress is None else progress)
        if whole_sum is None and not sha256_of(Path(part), path.suffix).startswith(sha256):
            raise ValueError(f"its SHA-256 does not start with the expected {sha256}")

    pooch.get_logger().setLevel("ERROR")
    registry, urls = {path.name: whole_sum}, {path.name: url}
    files = pooch.create(path.parent, "", registry=registry, urls=urls, retry_if_failed=retries)
    try:
        files.fetch(path.name, downloader=fetch)
    except FileNotFoundError as error:
        raise NotFoundError(path.name, f"{url} does not exist ({error})") from None
    except (OSError, ValueError) as error:
        cause: BaseException = error
        while cause.__context__ is not None:  # requests wraps the first cause in several layers
            cause = cause.__context__
        reason = " ".join(str(cause).split()) or type(cause).__name__
        raise DownloadError(path.name, f"cannot download {url} ({reason})") from None
    path.chmod(0o644)
    return path


def _copy(url: str, part: str, name: str, progress: bool) -> None:
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
            response = cast("requests.Response", error.response)
            response.close()
            if response.status_code in (404, 410):  # pooch retries any HTTP error
                raise FileNotFoundError(f"HTTP {response.status_code}") from None
            raise


def extract(
    archive: Path, name: str, folder: Path, *, sha256: str = "", limit: int = MAX_EXTRACTED_BYTES
) -> Path:
    """Extract the file called ``name``, of at most ``limit`` bytes and in any folder of a zip."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=".extract-") as scratch:
        part = Path(scratch) / name
        try:
            with zipfile.ZipFile(archive) as bundle:
                member = _find_member(archive, bundle, name)
                if bundle.getinfo(member).file_size > limit:  # no more is ever decompressed
                    raise InputError(archive.name, f"{name} in it is too large")
                with bundle.open(member) as stream, part.open("wb") as file:
                    shutil.copyfileobj(stream, file, _CHUNK_BYTES)
        except InputError:
            raise
        except Exception as error:  # a damaged zip file raises almost anything
            problem = f"cannot be unpacked ({shorten(error)})"
            raise InputError(archive.name, problem, "download it again") from None
        if not sha256_of(part).startswith(sha256):
            problem = f"{name} in it does not have the SHA-256 {sha256}"
            raise InputError(archive.name, problem, "it was changed")
        return part.replace(folder / name)


def _find_member(archive: Path, bundle: zipfile.ZipFile, name: str) -> str:
    files = [member.filename for member in bundle.infolist() if not member.is_dir()]
    matches = [file for file in files if PurePosixPath(file).name == name]
    if len(matches) != 1:
        hint = f"it has {shortlist(files) or 'nothing'}"
        raise InputError(archive.name, f"has {len(matches) or 'no'} {name}", hint)
    return matches[0]

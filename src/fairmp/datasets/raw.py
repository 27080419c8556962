"""Find the raw files of the benchmark graphs, check them, and download those that are missing."""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import sys
import tempfile
import zipfile
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Literal, NamedTuple, cast
from urllib.parse import quote, unquote, urlsplit
from urllib.request import url2pathname

from fairmp.datasets.sources import RawFile, Source
from fairmp.errors import InputError, shorten, shortlist

MAX_EXTRACTED_BYTES = 4 << 30
_CHUNK_BYTES = 1 << 18

PathLike = str | os.PathLike[str]
State = Literal["ok", "first digits ok", "sum unknown", "differs", "missing"]


class DownloadError(InputError):
    """A file could not be downloaded; no part of it was kept."""


class NotFoundError(DownloadError):
    """The server has no such file."""


class FoundFile(NamedTuple):
    """A raw file and its path; None if it was not found."""

    role: str
    file: RawFile
    path: Path | None

    def check(self) -> State:
        """Compare the file's SHA-256 with the published one, as far as that is known."""
        if self.path is None:
            return "missing"
        if not self.file.sha256:
            return "sum unknown"
        with suppress(OSError, EOFError):
            if sha256_of(self.path).startswith(self.file.sha256):
                return "ok" if self.file.checksum == "known" else "first digits ok"
        return "differs"


def cache_home() -> Path:
    """Return the folder for downloads and parsed graphs: ``fairmp`` in the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fairmp"


def data_folders(root: PathLike | None = None) -> list[Path]:
    """Return the folders searched for raw files, in order; downloads go to the last one."""
    if root is not None:
        return [Path(root).expanduser()]
    folders = [cache_home() / "raw"]
    if named := os.environ.get("FAIRMP_DATA"):
        folders.insert(0, Path(named).expanduser())
        if not folders[0].is_dir():
            hint = "name the one with the raw files"
            raise InputError("FAIRMP_DATA", f"{named!r} is not a folder", hint)
    return folders


def find(source: Source, root: PathLike | None = None) -> tuple[FoundFile, ...]:
    """Look for each raw file of a graph, plain or gzipped, without downloading anything."""
    found = []
    for role, candidates in source.files.items():
        paths = ((file, _locate(source, root, file.name, f"{file.name}.gz")) for file in candidates)
        file, path = next((hit for hit in paths if hit[1]), (candidates[0], None))
        found.append(FoundFile(role, file, path))
    return tuple(found)


def fetch(
    source: Source, root: PathLike | None = None, *, mirror: str | None = None
) -> tuple[FoundFile, ...]:
    """Find the raw files of a graph; download missing ones from ``mirror`` or the public homes."""
    mirror = mirror or os.environ.get("FAIRMP_MIRROR") or None
    files = find(source, root)
    return tuple(f if f.path else _get(source, f.role, root, mirror) for f in files)


def _get(source: Source, role: str, root: PathLike | None, mirror: str | None) -> FoundFile:
    """Extract the file of a role from a local archive, or download it."""
    folder = data_folders(root)[-1] / source.folders[0]
    folder.mkdir(parents=True, exist_ok=True)
    failures: list[DownloadError] = []
    for file in source.files[role]:
        zipped = file.url.rsplit("/", 1)[-1] if file.url.endswith(".zip") else ""
        if archive := _locate(source, root, zipped):
            return FoundFile(role, file, extract(archive, file.name, folder, sha256=file.sha256))
        urls = [file.url] if file.url else []
        if mirror:
            names = filter(None, (file.name, zipped, f"{file.name}.gz"))
            urls = [f"{mirror.rstrip('/')}/{source.folders[0]}/{quote(name)}" for name in names]
        for url in urls:
            try:
                return FoundFile(role, file, _download(url, file, folder))
            except DownloadError as error:
                failures.append(error)
                if not isinstance(error, NotFoundError):
                    break
    problem = f"no public home is known for this file of {source.title}"
    unknown = DownloadError(source.files[role][0].name, problem)
    # What is merely absent at one address says less than a failure at another.
    failure = min(failures, key=lambda e: isinstance(e, NotFoundError), default=unknown)
    wanted = ", ".join(files[0].name for files in source.files.values())
    hint = f"put {wanted} in a folder and name it with {{root}} or FAIRMP_DATA"
    raise DownloadError(failure.argument, failure.value, hint)


def _locate(source: Source, root: PathLike | None, *names: str) -> Path | None:
    """Find a file in the graph's own subfolders of the data folders, or directly in them."""
    places = (top / sub for top in data_folders(root) for sub in (*source.folders, "."))
    paths = (place / name for place in places for name in names if name)
    return next((path for path in paths if path.is_file()), None)


def _download(url: str, file: RawFile, folder: Path) -> Path:
    name = unquote(url.rsplit("/", 1)[-1])
    if not name.endswith(".zip"):
        return download(url, folder / name, sha256=file.sha256)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".download-") as scratch:
        archive = download(url, Path(scratch) / name)
        return extract(archive, file.name, folder, sha256=file.sha256)


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

    def fetch(url: str, part: str, _: object) -> None:
        _fetch(url, part, path.name, sys.stderr.isatty() if progress is None else progress)
        # Pooch compares whole sums of the stored bytes; prefixes and .gz copies are checked here.
        if known is None and not sha256_of(Path(part), path.suffix).startswith(sha256):
            raise ValueError(f"its SHA-256 does not start with the expected {sha256}")

    known = sha256 if len(sha256) == 64 and path.suffix != ".gz" else None
    pooch.get_logger().setLevel("ERROR")
    registry, urls = {path.name: known}, {path.name: url}
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
                files = [m.filename for m in bundle.infolist() if not m.is_dir()]
                held = [file for file in files if PurePosixPath(file).name == name]
                if len(held) != 1:
                    found = f"it has {shortlist(files) or 'nothing'}"
                    raise InputError(archive.name, f"has {len(held) or 'no'} {name}", found)
                if bundle.getinfo(held[0]).file_size > limit:  # no more is ever decompressed
                    raise InputError(archive.name, f"{name} in it is too large")
                with bundle.open(held[0]) as stream, part.open("wb") as file:
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

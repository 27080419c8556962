"""Find the raw files of the benchmark graphs, check them, and download those that are missing."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import quote, unquote

from fairmp.datasets.download import DownloadError, NotFoundError, download, extract, sha256_of
from fairmp.datasets.sources import RawFile, Source
from fairmp.errors import InputError

PathLike = str | os.PathLike[str]
State = Literal["ok", "first digits ok", "sum unknown", "differs", "missing"]


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


def cache_folder() -> Path:
    """Return the folder for downloads and parsed graphs."""
    import pooch

    return Path(pooch.os_cache("fairmp"))


def data_folders(root: PathLike | None = None) -> list[Path]:
    """Return the folders searched for raw files, in order; downloads go to the last one."""
    if root is not None:
        return [Path(root).expanduser()]
    folders = [cache_folder() / "raw"]
    if named := os.environ.get("FAIRMP_DATA"):
        folders.insert(0, Path(named).expanduser())
        if not folders[0].is_dir():
            hint = "name the one with the raw files"
            raise InputError("FAIRMP_DATA", f"{named!r} is not a folder", hint)
    return folders


def find(source: Source, root: PathLike | None = None) -> tuple[FoundFile, ...]:
    """Look for each raw file of a graph, plain or gzipped, without downloading anything."""
    files = []
    for role, candidates in source.files.items():
        paths = ((file, _locate(source, root, file.name, f"{file.name}.gz")) for file in candidates)
        file, path = next((hit for hit in paths if hit[1]), (candidates[0], None))
        files.append(FoundFile(role, file, path))
    return tuple(files)


def fetch(
    source: Source, root: PathLike | None = None, *, mirror: str | None = None
) -> tuple[FoundFile, ...]:
    """Find the raw files of a graph; download missing ones from ``mirror`` or public sources."""
    mirror = mirror or os.environ.get("FAIRMP_MIRROR") or None
    files = find(source, root)
    return tuple(f if f.path else _get(source, f.role, root, mirror) for f in files)


def _get(source: Source, role: str, root: PathLike | None, mirror: str | None) -> FoundFile:
    """Extract the file of a role from a local archive, or download it."""
    folder = data_folders(root)[-1] / source.folders[0]
    folder.mkdir(parents=True, exist_ok=True)
    failures: list[DownloadError] = []
    for file in source.files[role]:
        if archive := _locate(source, root, _archive_name(file)):
            return FoundFile(role, file, extract(archive, file.name, folder, sha256=file.sha256))
        for url in _addresses(source, file, mirror):
            try:
                return FoundFile(role, file, _download(url, file, folder))
            except DownloadError as error:
                failures.append(error)
                if not isinstance(error, NotFoundError):
                    break
    problem = f"no public home is known for this file of {source.title}"
    unknown = DownloadError(source.files[role][0].name, problem)
    # A file that is absent at one address says less than a failure at another.
    failure = min(failures, key=lambda e: isinstance(e, NotFoundError), default=unknown)
    wanted = ", ".join(files[0].name for files in source.files.values())
    hint = f"put {wanted} in a folder and name it with {{root}} or FAIRMP_DATA"
    raise DownloadError(failure.argument, failure.value, hint)


def _archive_name(file: RawFile) -> str:
    """The archive that holds a file; empty if none does."""
    return file.url.rsplit("/", 1)[-1] if file.url.endswith(".zip") else ""


def _addresses(source: Source, file: RawFile, mirror: str | None) -> list[str]:
    if not mirror:
        return [file.url] if file.url else []
    names = filter(None, (file.name, _archive_name(file), f"{file.name}.gz"))
    return [f"{mirror.rstrip('/')}/{source.folders[0]}/{quote(name)}" for name in names]


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

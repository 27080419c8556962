"""Find the raw files of the benchmark graphs, check them, and download those that are missing."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import quote, unquote

from fairmp.datasets.download import DownloadError, NotFoundError, download, extract, sha256_of
from fairmp.datasets.sources import SOURCES, RawFile, Source
from fairmp.errors import InputError

PathLike = str | os.PathLike[str]
State = Literal["ok", "first digits ok", "sum unknown", "differs", "missing"]


@dataclass(frozen=True)
class FoundFile:
    """A raw file and its path; None if it was not found."""

    role: str
    file: RawFile
    path: Path | None

    def check(self) -> State:
        """Compare the file's SHA-256 with the published one, as far as that is known."""
        if self.path is None:
            return "missing"
        if self.file.checksum == "unknown":
            return "sum unknown"
        try:
            same = sha256_of(self.path).startswith(self.file.sha256)
        except (OSError, EOFError):
            same = False
        if not same:
            return "differs"
        return "ok" if self.file.checksum == "known" else "first digits ok"


@dataclass(frozen=True)
class Availability:
    """A benchmark graph and its raw files."""

    source: Source
    files: tuple[FoundFile, ...]

    @property
    def found(self) -> bool:
        """Whether every raw file was found."""
        return all(file.path for file in self.files)


def cache_home() -> Path:
    """Return the folder for downloads and parsed graphs: ``fairmp`` in the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fairmp"


def data_folders(root: PathLike | None = None) -> list[Path]:
    """Return the folders searched for raw files, in order; downloads go to the last one.

    Only ``root`` if it is given; otherwise the folder in ``FAIRMP_DATA``, then the cache.
    """
    if root is not None:
        return [Path(root).expanduser()]
    folders = [cache_home() / "raw"]
    if named := os.environ.get("FAIRMP_DATA"):
        folders.insert(0, Path(named).expanduser())
        if not folders[0].is_dir():
            raise InputError(
                "FAIRMP_DATA", f"{named!r} is not a folder", "name the one with the raw files"
            )
    return folders


def find(source: Source, root: PathLike | None = None) -> tuple[FoundFile, ...]:
    """Look for each raw file of a graph, plain or gzipped, without downloading anything."""
    found = []
    for role, candidates in source.files.items():
        paths = ((file, _locate(source, root, file.name, f"{file.name}.gz")) for file in candidates)
        file, path = next((hit for hit in paths if hit[1]), (candidates[0], None))
        found.append(FoundFile(role, file, path))
    return tuple(found)


def listing(root: PathLike | None = None) -> list[Availability]:
    """List every benchmark graph with its raw files."""
    return [Availability(source, find(source, root)) for source in SOURCES]


def fetch(
    source: Source, root: PathLike | None = None, *, mirror: str | None = None
) -> tuple[FoundFile, ...]:
    """Find the raw files of a graph, downloading those that are missing.

    ``mirror`` is the address of a copy of a data folder, used instead of the public homes; by
    default that in the environment variable ``FAIRMP_MIRROR``.
    """
    mirror = mirror or os.environ.get("FAIRMP_MIRROR") or None
    return tuple(
        found if found.path else _get(source, found.role, root, mirror)
        for found in find(source, root)
    )


def _get(source: Source, role: str, root: PathLike | None, mirror: str | None) -> FoundFile:
    """Extract the file of a role from a local archive, or download it."""
    folder = data_folders(root)[-1] / source.folders[0]
    folder.mkdir(parents=True, exist_ok=True)
    failures: list[DownloadError] = []
    for file in source.files[role]:
        archive = _locate(source, root, _archive(file))
        if archive:
            return FoundFile(role, file, extract(archive, file.name, folder, sha256=file.sha256))
        for url in _addresses(source, file, mirror):
            try:
                return FoundFile(role, file, _download(url, file, folder))
            except DownloadError as error:
                failures.append(error)
                if not isinstance(error, NotFoundError):
                    break
    name = source.files[role][0].name
    unknown = DownloadError(name, f"no public home is known for this file of {source.title}")
    # What is merely absent at one address says less than a failure at another.
    failure = min(failures, key=lambda e: isinstance(e, NotFoundError), default=unknown)
    names = ", ".join(files[0].name for files in source.files.values())
    hint = f"put {names} in a folder and name it with root=, --data-dir or FAIRMP_DATA"
    raise DownloadError(failure.argument, failure.value, hint)


def _locate(source: Source, root: PathLike | None, *names: str) -> Path | None:
    """Find a file in the graph's own subfolders of the data folders, or directly in them."""
    places = (top / sub for top in data_folders(root) for sub in (*source.folders, "."))
    paths = (place / name for place in places for name in names if name)
    return next((path for path in paths if path.is_file()), None)


def _archive(file: RawFile) -> str:
    """Return the name of the zip archive that holds a file, or an empty string."""
    return file.url.rsplit("/", 1)[-1] if file.url.endswith(".zip") else ""


def _addresses(source: Source, file: RawFile, mirror: str | None) -> list[str]:
    if mirror is None:
        return [file.url] if file.url else []
    names = (file.name, _archive(file), f"{file.name}.gz")
    return [f"{mirror.rstrip('/')}/{source.folders[0]}/{quote(name)}" for name in names if name]


def _download(url: str, file: RawFile, folder: Path) -> Path:
    name = unquote(url.rsplit("/", 1)[-1])
    if not name.endswith(".zip"):
        return download(url, folder / name, sha256=file.sha256)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".download-") as scratch:
        archive = download(url, Path(scratch) / name)
        return extract(archive, file.name, folder, sha256=file.sha256)

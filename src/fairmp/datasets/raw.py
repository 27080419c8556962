"""Where raw files are: a folder you name, FAIRMP_DATA, or a cache they are downloaded to."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fairmp.datasets.archives import is_archive, take_out
from fairmp.datasets.download import DownloadError, NotThereError, download, sha256_of
from fairmp.datasets.sources import SOURCES, RawFile, Source, SumKnown
from fairmp.errors import InputError

PathLike = str | os.PathLike[str]
State = Literal["ok", "first digits ok", "sum unknown", "differs", "missing"]


@dataclass(frozen=True)
class FoundFile:
    """A raw file of a data set: what it is, and where it was found (None: nowhere)."""

    role: str
    file: RawFile
    path: Path | None

    @property
    def sum_known(self) -> SumKnown:
        """Whether the file's SHA-256 is known in full, by its first digits, or not at all."""
        return self.file.sum_known


@dataclass(frozen=True)
class Availability:
    """A data set and its raw files, as a listing shows them."""

    source: Source
    files: tuple[FoundFile, ...]

    @property
    def found(self) -> bool:
        """Whether every raw file is on this machine."""
        return all(file.path for file in self.files)


@dataclass(frozen=True)
class Checked:
    """A raw file and what its SHA-256 says."""

    found: FoundFile
    state: State


def cache_home() -> Path:
    """Return the folder for downloads and parsed files: ``fairmp`` in the user's cache folder.

    Example:
        >>> cache_home().name
        'fairmp'
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fairmp"


def data_folders(root: PathLike | None = None) -> list[Path]:
    """Return the folders searched for raw files, in order.

    A folder given as ``root`` is the only one. Otherwise it is the one the environment variable
    ``FAIRMP_DATA`` names, then the cache. Files that are in none are downloaded to the last.
    """
    if root is not None:
        return [Path(root).expanduser()]
    named = os.environ.get("FAIRMP_DATA")
    if not named:
        return [cache_home() / "raw"]
    if not Path(named).expanduser().is_dir():
        raise InputError(
            "FAIRMP_DATA", f"{named!r} is no folder", "name the one with the raw files"
        )
    return [Path(named).expanduser(), cache_home() / "raw"]


def find(source: Source, root: PathLike | None = None) -> tuple[FoundFile, ...]:
    """Look for each raw file of a data set, plain or gzipped, without fetching anything."""
    found = []
    for role, choices in source.files.items():
        hits = (
            FoundFile(role, file, place / f"{file.name}{suffix}")
            for folder in data_folders(root)
            for file in choices
            for place in (*(folder / name for name in source.folders), folder)
            for suffix in ("", ".gz")
            if (place / f"{file.name}{suffix}").is_file()
        )
        found.append(next(hits, FoundFile(role, choices[0], None)))
    return tuple(found)


def listing(root: PathLike | None = None) -> list[Availability]:
    """List every benchmark data set, its raw files, how well their sums are known, and where.

    Example:
        >>> [entry.source.key for entry in listing("an/empty/folder")][:3]
        ['nba', 'pokec-z', 'pokec-n']
    """
    return [Availability(source, find(source, root)) for source in SOURCES]


def check(found: FoundFile) -> Checked:
    """Compare a raw file's SHA-256 with the published one, as far as that is known."""
    if found.path is None:
        return Checked(found, "missing")
    if found.sum_known == "unknown":
        return Checked(found, "sum unknown")
    try:
        digest = sha256_of(found.path)
    except (OSError, EOFError):
        return Checked(found, "differs")
    if not digest.startswith(found.file.sha256):
        return Checked(found, "differs")
    return Checked(found, "ok" if found.sum_known == "known" else "first digits ok")


def verify(source: Source, root: PathLike | None = None) -> list[Checked]:
    """Check every raw file of a data set."""
    return [check(found) for found in find(source, root)]


def fetch(
    source: Source,
    root: PathLike | None = None,
    *,
    mirror: str | None = None,
    progress: bool | None = None,
    attempts: int = 4,
    wait: float = 0.5,
) -> tuple[FoundFile, ...]:
    """Find the raw files of a data set, downloading those that are nowhere.

    Args:
        source: The data set.
        root: The only folder to search and to download to; see :func:`data_folders`.
        mirror: The address of a copy of a data folder, used instead of the public homes; without
            it, the one in the environment variable ``FAIRMP_MIRROR`` if there is one.
        progress: Whether to draw a progress bar; None draws one on a terminal.
        attempts: How often to try each file.
        wait: Seconds before the second try of a file, doubled before each further one.

    Raises:
        DownloadError: If a file is nowhere to be found; no part of it is kept.
    """
    mirror = mirror or os.environ.get("FAIRMP_MIRROR") or None
    target = data_folders(root)[-1] / source.folders[0]

    def get(role: str) -> FoundFile:
        missing = None
        for file in source.files[role]:
            archive = _local_archive(source, file, root)
            if archive:
                return FoundFile(role, file, _unpacked(archive, file, target))
            for url in _addresses(source, file, mirror):
                path = target / url.rsplit("/", 1)[-1]
                packed = is_archive(path.name)
                expected = "" if packed else file.sha256
                try:
                    download(
                        url, path, sha256=expected, attempts=attempts, wait=wait, progress=progress
                    )
                    return FoundFile(role, file, _unpacked(path, file, target) if packed else path)
                except NotThereError as error:
                    missing = missing or error
                except DownloadError as error:
                    raise DownloadError.parse(f"{error}; {_way_out(source)}") from None
                finally:
                    if packed:
                        path.unlink(missing_ok=True)
        name = source.files[role][0].name
        reason = missing or f"{name}: no public home is known for this file of {source.title}"
        raise DownloadError.parse(f"{reason}; {_way_out(source)}")

    return tuple(found if found.path else get(found.role) for found in find(source, root))


def _addresses(source: Source, file: RawFile, mirror: str | None) -> list[str]:
    if mirror is None:
        return [file.url] if file.url else []
    names = [file.name]
    if file.url and is_archive(file.url):
        names.append(file.url.rsplit("/", 1)[-1])
    names.append(f"{file.name}.gz")
    return [f"{mirror.rstrip('/')}/{source.folders[0]}/{name}" for name in names]


def _local_archive(source: Source, file: RawFile, root: PathLike | None) -> Path | None:
    if not is_archive(file.url):
        return None
    name = file.url.rsplit("/", 1)[-1]
    for folder in data_folders(root):
        for place in (*(folder / name for name in source.folders), folder):
            if (place / name).is_file():
                return place / name
    return None


def _unpacked(archive: Path, file: RawFile, target: Path) -> Path:
    path = take_out(archive, file.name, target)
    if not sha256_of(path).startswith(file.sha256):
        path.unlink()
        raise DownloadError.parse(
            f"{archive.name}: the {file.name} in it has not the SHA-256 {file.sha256};"
            " the archive is corrupted or was changed"
        )
    return path


def _way_out(source: Source) -> str:
    names = ", ".join(choices[0].name for choices in source.files.values())
    return f"put {names} in a folder and name it with root=, --data-dir or FAIRMP_DATA"

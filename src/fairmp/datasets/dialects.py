"""How a text table is written: its separator, alignment and first lines, by evidence."""

from __future__ import annotations

import csv
import gzip
import mmap
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Literal, NamedTuple

from fairmp.datasets.columns import MISSING
from fairmp.datasets.parquet_folders import is_several_files
from fairmp.errors import InputError, shorten

# In the order in which they are tried: a tab is hardly ever part of a cell, a space often is.
SEPARATORS = {"\t": "tabs", "|": "bars", ";": "semicolons", ",": "commas", " ": "spaces"}
SAMPLE_BYTES = 1 << 16
SAMPLE_ROWS = 100
_NUMBER = re.compile(r"[+-]?([0-9]+[.,]?[0-9]*|[.,][0-9]+)([eE][+-]?[0-9]+)?")
NOT_UTF8 = "save the file as UTF-8, or read it yourself and pass a DataFrame"


@dataclass(frozen=True)
class Dialect:
    """How a text table is written, and the cells of its first lines."""

    separator: str
    comments: int  # lines at the top that start with # or % and are skipped
    sample: tuple[tuple[str, ...], ...]
    aligned: bool  # runs of spaces separate the cells
    gzipped: bool


class FileStart(NamedTuple):
    """The first bytes of a file, decompressed, and its format."""

    format: Literal["text", "json", "parquet", "ipc", "stream"]
    gzipped: bool
    content: bytes


def read_start(path: Path, argument: str) -> FileStart:
    """Read the first bytes of a file, and tell its format by them."""
    if is_several_files(path):
        return FileStart("parquet", False, b"")
    name = path.name
    try:
        with path.open("rb") as file:
            magic = file.read(6)
            file.seek(0)
            gzipped = magic.startswith(b"\x1f\x8b")
            stream = gzip.GzipFile(fileobj=file) if gzipped else file
            content = stream.read(SAMPLE_BYTES)
    except FileNotFoundError:
        raise InputError(argument, f"there is no file {str(path)!r}", "check the path") from None
    except (EOFError, OSError, zlib.error) as error:
        if isinstance(error, OSError) and error.strerror:
            raise InputError(argument, f"cannot read {str(path)!r} ({error.strerror})") from None
        raise InputError(argument, f"{name} is a broken gzip file ({error})") from None
    if magic.startswith(b"PAR1"):
        return FileStart("parquet", False, b"")
    if magic == b"ARROW1" or magic.startswith(b"\xff\xff\xff\xff"):
        return FileStart("ipc" if magic == b"ARROW1" else "stream", False, b"")
    if content.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        raise InputError(argument, f"{name} is a zip archive or an Excel sheet", "save it as CSV")
    if b"\0" in content:
        hint = "give separated text in UTF-8, JSON Lines, Parquet or Arrow"
        raise InputError(argument, f"{name} is a binary file (or UTF-16 text)", hint)
    opening = content.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    return FileStart("json" if opening == b"{" else "text", gzipped, content)


def sniff(path: Path, argument: str, start: FileStart) -> Dialect:
    """Detect the dialect of a text table from its first lines; refuse what is ambiguous."""
    name, content = path.name, start.content
    if cut := len(content) == SAMPLE_BYTES:  # it may end inside a character
        content = content[: content.rfind(b"\n") + 1] or content
    try:
        lines = re.split(r"\r\n|\n|\r", content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        value = f"{name} is not UTF-8 text (byte {error.start:,})"
        raise InputError(argument, value, NOT_UTF8) from None
    comments = sum(1 for _ in takewhile(lambda line: line[:1] in ("#", "%"), lines))
    lines = [f"{line}\n" for line in lines[comments:] if line.strip()]
    if not lines:
        raise InputError(argument, f"{name} is empty", "give a table with a header and rows")
    rows = {separator: _rows(lines, separator, cut) for separator in SEPARATORS}
    fitting = [one for one in rows if _agreement(rows[one])[0] == len(rows[one])]
    aligned = [tuple(tokens(line)) for line in lines]
    if " " not in fitting and _agreement(aligned)[0] == len(aligned):
        fitting.append(" ")
    commas = (cell for row in rows[";"] for cell in row if "," in cell)
    if {";", ","} <= set(fitting) and not all(map(_NUMBER.match, commas)):
        value = f"{name} may be separated by semicolons or by commas ({shorten(lines[0])!r})"
        raise InputError(argument, value, "quote the cells that hold either, or use tabs")
    if not fitting:
        # The one that explains most lines: the parser names the line that does not fit.
        most = max(",\t|;", key=lambda one: _agreement(rows[one]))
        spaces = max(_agreement(rows[" "])[0], _agreement(aligned)[0])
        fitting = [" " if len(rows[most][0]) < 2 and 2 * spaces > len(lines) else most]
    best = fitting[0]
    spread = best == " " and _aligned(path, start.gzipped, comments, argument)
    sample = tuple((aligned if spread else rows[best])[:SAMPLE_ROWS])
    return Dialect(best, comments, sample, spread, start.gzipped)


def _rows(lines: list[str], separator: str, cut: bool) -> list[tuple[str, ...]]:
    """The cells of some lines; the last may end inside a quoted cell."""
    rows = [tuple(row) for row in csv.reader(lines, delimiter=separator) if row]
    return rows[:-1] if cut and len(rows) > 1 else rows


def _agreement(rows: Sequence[Sequence[str]]) -> tuple[int, int]:
    """How many rows agree with the first, on how many cells."""
    width = len(rows[0])
    return (sum(len(row) == width for row in rows), width) if width > 1 else (0, 0)


def _aligned(path: Path, gzipped: bool, comments: int, argument: str) -> bool:
    """Whether runs of spaces separate cells, and not every space; refuse a file of neither."""
    if not gzipped:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as whole:
            unclear = b"  ", b"\n ", b"\r ", b" \n", b" \r"
            if b" " not in (whole[:1], whole[-1:]) and all(whole.find(run) < 0 for run in unclear):
                return False
    first: tuple[int, int] | None = None
    single = runs = True
    with (gzip.open if gzipped else open)(path, "rt", encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, start=1):
            text = line.rstrip("\n")
            if number <= comments or not text.strip():
                continue
            width = len(text.split(" ")), len(text.split())
            if '"' in text:
                width = len(next(csv.reader([text], delimiter=" "))), len(tokens(text))
            if first is None:
                first, single = width, width[0] == width[1]
            single, runs = single and width[0] == first[0], runs and width[1] == first[1]
            if not (single or runs):
                value = f"{path.name} line {number:,} ({shorten(text, 60)!r}) has {width[1]} cells"
                hint = "separate cells by tabs or commas, and leave empty ones between them"
                raise InputError(argument, f"{value} where {first[1]} were expected", hint)
    return not single


def tokens(line: str) -> list[str]:
    """The cells of an aligned line; a quoted one may hold spaces."""
    if '"' not in line:
        return line.split()
    return next(csv.reader([line.strip()], delimiter=" ", skipinitialspace=True))


def is_numeric(cells: Sequence[str]) -> bool:
    """Whether cells are numbers, missing ones aside."""
    known = [cell.strip() for cell in cells if cell.strip() not in MISSING]
    return bool(known) and all(_NUMBER.fullmatch(cell) for cell in known)

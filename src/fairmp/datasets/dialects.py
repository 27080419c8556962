"""How a table file is written: its format, and the separator of a text table, by evidence."""

from __future__ import annotations

import csv
import gzip
import mmap
import re
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, cast

import pyarrow as pa

from fairmp.datasets.parquet_folders import is_several_files
from fairmp.errors import InputError, shorten
from fairmp.frames import MISSING

# In the order in which they are tried: a tab is hardly ever part of a cell, a space often is.
SEPARATORS = {"\t": "tabs", "|": "bars", ";": "semicolons", ",": "commas", " ": "spaces"}
SAMPLE_BYTES = 1 << 16
SAMPLE_ROWS = 100
NUMBER = re.compile(r"[+-]?([0-9]+[.,]?[0-9]*|[.,][0-9]+)([eE][+-]?[0-9]+)?")
EXCEL_SEPARATOR = re.compile(r'"?sep=([\t|;,])"?', re.IGNORECASE)  # its first line, if there
NOT_UTF8 = "save the file as UTF-8, or read it yourself and pass a DataFrame"
READ_ERRORS = (pa.ArrowException, OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error)


class TableReadError(InputError):
    """A table file that is damaged, or whose cells are not of the type asked for."""


@dataclass(frozen=True)
class TableFile:
    """A table file and its format."""

    path: Path
    argument: str  # that names the file, for errors
    format: Literal["text", "json", "parquet", "ipc", "stream"]
    gzipped: bool = False
    start: bytes = b""  # the first bytes of text, decompressed

    def open_text(self, errors: str = "strict") -> IO[str]:
        """Open the file as text, decompressed."""
        opener = gzip.open if self.gzipped else open
        return cast("IO[str]", opener(self.path, "rt", encoding="utf-8-sig", errors=errors))

    def open_stream(self) -> Any:
        """Open the file for pyarrow, decompressed."""
        return pa.input_stream(str(self.path), compression="gzip" if self.gzipped else None)

    def explain(self, error: Exception) -> InputError:
        """Say what is wrong with a file that could not be read."""
        if self.format in ("text", "json") and not self.is_utf8():
            return InputError(self.argument, f"{self.path.name} is not UTF-8 text", NOT_UTF8)
        return TableReadError(self.argument, f"cannot read {self.path.name} ({shorten(error)})")

    def is_utf8(self) -> bool:
        """Whether the file is UTF-8 text, as far as it can be read."""
        with suppress(*READ_ERRORS), self.open_text() as lines:
            try:
                for _ in lines:
                    pass
            except UnicodeDecodeError:
                return False
        return True


@dataclass(frozen=True)
class Dialect:
    """How a text table is written, and the cells of its first lines."""

    separator: str
    comments: int  # lines at the top that start with # or % and are skipped
    sample: tuple[tuple[str, ...], ...]
    aligned: bool  # runs of spaces separate the cells


def open_table(path: Path, argument: str) -> TableFile:
    """Read the first bytes of a file, and tell its format by them."""
    if is_several_files(path):
        return TableFile(path, argument, "parquet")
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
        raise InputError(argument, f"{path.name} is a broken gzip file ({error})") from None
    if magic.startswith(b"PAR1"):
        return TableFile(path, argument, "parquet")
    if magic == b"ARROW1":
        return TableFile(path, argument, "ipc")
    if magic.startswith(b"\xff\xff\xff\xff"):
        return TableFile(path, argument, "stream")
    if content.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        value = f"{path.name} is a zip archive or an Excel sheet"
        raise InputError(argument, value, "save it as CSV")
    if b"\0" in content:
        hint = "give separated text in UTF-8, JSON Lines, Parquet or Arrow"
        raise InputError(argument, f"{path.name} is a binary file (or UTF-16 text)", hint)
    is_json = content.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{")
    return TableFile(path, argument, "json" if is_json else "text", gzipped, content)


class _Cut(NamedTuple):
    """The first lines, cut into cells in one way."""

    separator: str
    rows: Sequence[tuple[str, ...]]

    @property
    def width(self) -> int:
        """Cells of the first line."""
        return len(self.rows[0])

    @property
    def agreeing(self) -> int:
        """Number of lines with as many cells as the first; 0 if that is a single cell."""
        return sum(len(row) == self.width for row in self.rows) if self.width > 1 else 0

    @property
    def fits(self) -> bool:
        """Whether all lines have the same number of cells."""
        return self.agreeing == len(self.rows)


def sniff(file: TableFile) -> Dialect:
    """Detect the dialect of a text table from its first lines; refuse what is ambiguous."""
    lines = _first_lines(file)
    named = EXCEL_SEPARATOR.fullmatch(lines[0])
    comments = 1 if named else _count_comments(lines)
    lines = [f"{line}\n" for line in lines[comments:] if line.strip()]
    if not lines:
        hint = "give a table with a header and rows"
        raise InputError(file.argument, f"{file.path.name} is empty", hint)
    truncated = len(file.start) == SAMPLE_BYTES
    if named:
        cut = _cut(lines, named[1], truncated)
        return Dialect(named[1], comments, tuple(cut.rows[:SAMPLE_ROWS]), aligned=False)
    cuts = {separator: _cut(lines, separator, truncated) for separator in SEPARATORS}
    by_runs = _Cut(" ", [tuple(split_aligned(line)) for line in lines])
    if cuts[";"].fits and cuts[","].fits and not _has_decimal_commas(cuts[";"]):
        value = f"may be separated by semicolons or by commas ({shorten(lines[0])!r})"
        hint = "quote the cells that hold either, or use tabs"
        raise InputError(file.argument, f"{file.path.name} {value}", hint)
    best = next((cut for cut in (*cuts.values(), by_runs) if cut.fits), None)
    separator = best.separator if best else _most_likely(cuts, by_runs)
    aligned = separator == " " and _is_aligned(file, comments)
    sample = (by_runs if aligned else cuts[separator]).rows[:SAMPLE_ROWS]
    return Dialect(separator, comments, tuple(sample), aligned)


def _count_comments(lines: Sequence[str]) -> int:
    """Count the comments at the top: lines that start with # or % and are no rows.

    A row such as ``#1,#2`` has no space in its first cell and as many cells as the lines below.
    """
    marked = sum(1 for _ in takewhile(lambda line: line[:1] in ("#", "%"), lines))
    below = [line for line in lines[marked:] if line.strip()][:SAMPLE_ROWS]
    for number, line in enumerate(lines[:marked]):
        for separator in SEPARATORS:
            [cells, *others] = csv.reader([line, *below], delimiter=separator)
            alike = len(cells) > 1 and all(len(row) == len(cells) for row in others if row)
            if alike and not re.search(r"\s", cells[0].strip()) and len(cells[0].strip("#%")):
                return number
    return marked


def _first_lines(file: TableFile) -> list[str]:
    content = file.start
    if len(content) == SAMPLE_BYTES:  # it may end inside a character
        content = content[: content.rfind(b"\n") + 1] or content
    try:
        return re.split(r"\r\n|\n|\r", content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        value = f"{file.path.name} is not UTF-8 text (byte {error.start:,})"
        raise InputError(file.argument, value, NOT_UTF8) from None


def _cut(lines: list[str], separator: str, truncated: bool) -> _Cut:
    rows = [tuple(row) for row in csv.reader(lines, delimiter=separator) if row]
    if truncated and len(rows) > 1:  # the last may end inside a quoted cell
        rows = rows[:-1]
    return _Cut(separator, rows)


def _has_decimal_commas(cut: _Cut) -> bool:
    """Whether commas occur in numbers only."""
    return all(NUMBER.match(cell) for row in cut.rows for cell in row if "," in cell)


def _most_likely(cuts: dict[str, _Cut], by_runs: _Cut) -> str:
    """The separator that explains most lines; the parser names the line that does not fit."""
    best = max(
        (cuts[separator] for separator in ",\t|;"), key=lambda cut: (cut.agreeing, cut.width)
    )
    by_spaces = max(cuts[" "].agreeing, by_runs.agreeing)
    return " " if best.width < 2 and 2 * by_spaces > len(by_runs.rows) else best.separator


def _is_aligned(file: TableFile, comments: int) -> bool:
    """Whether runs of spaces separate cells, and not every space; refuse a file of neither."""
    if not file.gzipped and _has_single_spaces(file.path):
        return False
    single = runs = True
    width = 0  # number of cells of the first line
    with file.open_text(errors="replace") as lines:
        for number, line in enumerate(lines, start=1):
            if number <= comments or not line.strip():
                continue
            cells = len(split_aligned(line))
            width = width or cells
            single = single and len(_split_single(line)) == width
            runs = runs and cells == width
            if not (single or runs):
                place = f"{file.path.name} line {number:,} ({shorten(line, 60)!r})"
                value = f"{place} has {cells} cells where {width} were expected"
                hint = "separate cells by tabs or commas, and leave empty ones between them"
                raise InputError(file.argument, value, hint)
    return not single


def _has_single_spaces(path: Path) -> bool:
    """Whether no line of a file starts or ends with a space or has two in a row."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        unclear = (b"  ", b"\n ", b"\r ", b" \n", b" \r")
        at_ends = b" " in (content[:1], content[-1:])
        return not at_ends and all(content.find(spaces) < 0 for spaces in unclear)


def _split_single(line: str) -> list[str]:
    """The cells of a line if every space separates two; a quoted one may hold spaces."""
    return next(csv.reader([line], delimiter=" ")) if '"' in line else line.split(" ")


def split_aligned(line: str) -> list[str]:
    """The cells of an aligned line; a quoted one may hold spaces."""
    if '"' not in line:
        return line.split()
    return next(csv.reader([line.strip()], delimiter=" ", skipinitialspace=True))


def is_numeric(cells: Sequence[str]) -> bool:
    """Whether cells are numbers, missing ones aside."""
    present = [cell.strip() for cell in cells if cell.strip() not in MISSING]
    return bool(present) and all(NUMBER.fullmatch(cell) for cell in present)

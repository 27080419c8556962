"""Read tables from disk: CSV, TSV and other separated text, gzipped or not, and Parquet."""

from __future__ import annotations

import csv
import gzip
import mmap
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairmp.datasets.edges import counted
from fairmp.errors import InputError

SEPARATORS = (",", ";", "\t", "|", " ")
MISSING = ("", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "null", "NULL", "None", "?")
_NAMES = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars", " ": "spaces"}
_SAMPLE = 1 << 16


@dataclass(frozen=True)
class Layout:
    """How a text table is laid out.

    Attributes:
        separator: The character between two cells.
        comments: Lines at the top that start with ``#`` or ``%`` and are skipped.
        first: The cells of the first line after them.
        second: The cells of the line after that; empty where there is none.
        aligned: Whether runs of spaces separate the cells.
        decimal: The decimal point.
    """

    separator: str
    comments: int
    first: tuple[str, ...]
    second: tuple[str, ...]
    aligned: bool = False
    decimal: str = "."


def kind_of(path: Path, argument: str) -> str:
    """Tell "text" from "parquet" by a file's first bytes, and refuse what is neither.

    Raises:
        InputError: If the file is not there, is empty, or is something else.
    """
    try:
        with path.open("rb") as file:
            start = file.read(4)
    except FileNotFoundError:
        raise InputError(argument, f"there is no file {str(path)!r}", "check the path") from None
    except OSError as error:
        raise InputError(argument, f"cannot read {str(path)!r} ({error.strerror})") from None
    if not start:
        raise InputError(argument, f"{path.name} is empty", "give a table with a header and rows")
    if start == b"PAR1":
        return "parquet"
    if start.startswith(b"PK\x03\x04"):
        raise InputError(
            argument,
            f"{path.name} is a zip archive or an Excel sheet",
            "unpack it or save it as CSV",
        )
    return "text"


def layout_of(path: Path, argument: str) -> Layout:
    """Look at the start of a text table and tell how it is laid out.

    Raises:
        InputError: If it is binary, not UTF-8, or has no content.
    """
    lines, comments = _first_lines(path, argument)
    best = max(SEPARATORS, key=lambda separator: _fitness(lines, separator))
    if _fitness(lines, best) == (0, 0):
        best = ","
    aligned = best == " " and any(re.search(r"\S {2,}\S|^ ", line) for line in lines)
    rows = (
        [line.split() for line in lines[:2]]
        if aligned
        else list(csv.reader(lines[:2], delimiter=best))
    )
    comma = best != "," and any(
        re.fullmatch(r"-?\d+,\d+", cell)
        for row in csv.reader(lines[1:], delimiter=best)
        for cell in row
    )
    return Layout(
        separator=best,
        comments=comments,
        first=tuple(rows[0]),
        second=tuple(rows[1]) if len(rows) > 1 else (),
        aligned=aligned,
        decimal="," if comma else ".",
    )


def _fitness(lines: list[str], separator: str) -> tuple[int, int]:
    """How well a separator explains the lines: how many agree with the first, on how many cells."""
    widths = [len(row) for row in csv.reader(lines, delimiter=separator) if row]
    if not widths or widths[0] < 2:
        return 0, 0
    # A space occurs inside cells too, so that it must explain every line to count.
    agreeing = sum(width == widths[0] for width in widths)
    if separator == " " and agreeing < len(widths):
        aligned = {len(line.split()) for line in lines}
        return (len(widths), 1) if len(aligned) == 1 and aligned != {1} else (0, 0)
    return agreeing, widths[0]


def _first_lines(path: Path, argument: str) -> tuple[list[str], int]:
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            sample = gzip.GzipFile(fileobj=file).read(_SAMPLE) if packed else file.read(_SAMPLE)
    except (EOFError, OSError, zlib.error) as error:
        raise InputError(
            argument, f"{path.name} is a broken gzip file ({error})", "pack it again"
        ) from None
    if b"\0" in sample:
        raise InputError(
            argument,
            f"{path.name} is a binary file (or UTF-16 text)",
            "give CSV or TSV in UTF-8, gzipped or not, or Parquet",
        )
    whole = len(sample) < _SAMPLE
    # A sample may end inside a character or a line; what follows the last line end is left out.
    if not whole:
        sample = sample[: sample.rfind(b"\n") + 1] or sample
    try:
        text = sample.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            argument,
            f"{path.name} is not UTF-8 text (byte {error.start:,})",
            "save it as UTF-8, or read it yourself and pass a DataFrame",
        ) from None
    lines = text.splitlines()
    comments = 0
    while comments < len(lines) and lines[comments][:1] in ("#", "%"):
        comments += 1
    rest = [line for line in lines[comments:] if line.strip()][:50]
    if not rest:
        raise InputError(argument, f"{path.name} is empty", "give a table with a header and rows")
    return rest, comments


def read_text(
    path: Path,
    argument: str,
    layout: Layout,
    *,
    names: Sequence[str] | None = None,
    text_columns: Sequence[str] = (),
    partial: bool = False,
    notes: list[str] | None = None,
) -> Any:
    """Read a text table with several threads into a pyarrow table.

    Args:
        path: The file; gzip is recognised by its first bytes.
        argument: The name that errors begin with.
        layout: What :func:`layout_of` says of it.
        names: The column names where the file has no header line.
        text_columns: Columns read as text, whatever they look like.
        partial: Drop rows that are cut short, with a note, instead of refusing the file.
        notes: Where notes go.

    Raises:
        InputError: If a row has too few or too many cells; it names the line.
    """
    import pyarrow as pa
    import pyarrow.csv as arrow

    if layout.aligned:
        return _read_aligned(path, argument, layout, names, text_columns)
    short: list[Any] = []

    def judge(row: Any) -> str:
        if partial and row.actual_columns < row.expected_columns:
            short.append(row)
            return "skip"
        return "error"

    # A parser that need not watch for quotes is twice as fast.
    quotes = _has_quotes(path)
    parse = arrow.ParseOptions(
        delimiter=layout.separator,
        quote_char='"' if quotes else False,
        newlines_in_values=quotes,
        invalid_row_handler=judge,
    )
    convert = arrow.ConvertOptions(
        column_types={name: pa.string() for name in text_columns},
        null_values=list(MISSING),
        strings_can_be_null=False,
        decimal_point=layout.decimal,
    )
    read = arrow.ReadOptions(
        skip_rows=layout.comments,
        column_names=None if names is None else list(names),
        block_size=1 << 22,
    )
    try:
        with _opened(path) as stream:
            table = arrow.read_csv(stream, read, parse, convert)
    except (pa.ArrowInvalid, OSError, EOFError) as error:
        raise _explained(path, argument, error, read, parse, convert) from None
    if short and notes is not None:
        notes.append(f"{path.name}: {counted(len(short), 'row')} cut short, dropped")
    return table


def _has_quotes(path: Path) -> bool:
    with path.open("rb") as file:
        if file.read(2) == b"\x1f\x8b":
            return True
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return content.find(b'"') >= 0


def _opened(path: Path) -> Any:
    import pyarrow as pa

    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return pa.input_stream(str(path), compression="gzip" if packed else None)


def _explained(
    path: Path, argument: str, error: Exception, read: Any, parse: Any, convert: Any
) -> InputError:
    """Read again with one thread, which alone knows line numbers, to say where it went wrong."""
    import pyarrow as pa
    import pyarrow.csv as arrow

    bad: list[Any] = []

    def note(row: Any) -> str:
        bad.append(row)
        return "error"

    read.use_threads = False
    parse.invalid_row_handler = note
    try:
        with _opened(path) as stream:
            arrow.read_csv(stream, read, parse, convert)
    except (pa.ArrowInvalid, OSError, EOFError) as again:
        error = again
    if bad:
        row = bad[0]
        line = f"line {row.number:,}" if row.number is not None else "a line"
        cause = (
            "the file is cut short or broken there"
            if row.actual_columns < row.expected_columns
            else "a cell holds the separator unquoted, or the file is broken there"
        )
        return InputError(
            argument,
            f"{path.name} {line} has {counted(row.actual_columns, 'cell')} where "
            f"{row.expected_columns:,} were expected",
            f"{cause}",
        )
    return InputError(argument, f"cannot read {path.name} ({' '.join(str(error).split())})")


def _read_aligned(
    path: Path,
    argument: str,
    layout: Layout,
    names: Sequence[str] | None,
    text_columns: Sequence[str],
) -> Any:
    import pandas as pd
    import pyarrow as pa

    try:
        frame = pd.read_csv(
            path,
            sep=r"\s+",
            skiprows=layout.comments,
            header=0 if names is None else None,
            names=None if names is None else list(names),
            dtype=dict.fromkeys(text_columns, str),
            keep_default_na=False,
            na_values=list(MISSING),
            compression="infer",
        )
    except (ValueError, OSError) as error:
        raise InputError(
            argument, f"cannot read {path.name} ({' '.join(str(error).split())})"
        ) from None
    return pa.Table.from_pandas(frame, preserve_index=False)


def read_parquet(path: Path, argument: str) -> Any:
    """Read a Parquet file into a pyarrow table.

    Raises:
        InputError: If it cannot be read.
    """
    import pyarrow as pa
    import pyarrow.parquet as parquet

    try:
        return parquet.read_table(path)
    except (pa.ArrowException, OSError):
        raise InputError(
            argument, f"cannot read the Parquet file {path.name}", "it is broken or cut short"
        ) from None


def separator_note(path: Path, layout: Layout) -> str | None:
    """Say which separator was used where a file's ending promises another.

    Example:
        >>> separator_note(Path("nodes.csv"), Layout(";", 0, ("id", "y"), ()))
        'nodes.csv: read as separated by semicolons'
    """
    suffixes = [suffix.lower() for suffix in path.suffixes]
    promised = "," if ".csv" in suffixes else "\t" if ".tsv" in suffixes else None
    if promised in (None, layout.separator) or len(layout.first) < 2:
        return None
    decimal = ", with decimal commas" if layout.decimal == "," else ""
    return f"{path.name}: read as separated by {_NAMES[layout.separator]}{decimal}"

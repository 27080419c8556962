"""One reader of table files: CSV, TSV and other separated text, gzipped or not, and Parquet."""

from __future__ import annotations

import csv
import gzip
import io
import mmap
import re
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow
import pyarrow.parquet as parquet

from fairmp.datasets.columns import MISSING, counted
from fairmp.errors import InputError

SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars", " ": "spaces"}
SAMPLE_BYTES = 1 << 16
SAMPLE_ROWS = 100
BLOCK_BYTES = 1 << 22  # text parsed at a time by each thread
BATCH_BYTES = 1 << 24  # text parsed at a time where a file is read in batches
BATCH_ROWS = 1 << 21  # rows of a batch of a Parquet file
READ_ERRORS = (pa.ArrowException, OSError, EOFError, zlib.error)

CommaMeaning = Literal["decimal", "thousands"]
# Numbers in which a comma can only be the one or the other; 2,101 is among both.
_COMMAS: dict[CommaMeaning, str] = {
    "decimal": r"^[+-]?[0-9]*,?[0-9]+([eE][+-]?[0-9]+)?$",
    "thousands": r"^[+-]?(([0-9]+|[1-9][0-9]{0,2}(,[0-9]{3})+)(\.[0-9]*)?|\.[0-9]+)"
    r"([eE][+-]?[0-9]+)?$",
}
_NOT_UTF8 = "save the file as UTF-8, or read it yourself and pass a DataFrame"


class TableReadError(InputError):
    """A table file that is damaged, or whose cells are not of the type asked for."""


@dataclass(frozen=True)
class Dialect:
    """How a text table is written, and the cells of its first two lines."""

    separator: str
    comments: int  # lines at the top that start with # or % and are skipped
    first: tuple[str, ...]
    second: tuple[str, ...]
    aligned: bool  # runs of spaces separate the cells
    gzipped: bool


def sniff(path: Path, argument: str) -> Dialect | None:
    """Detect the dialect of a text table from its first lines; None for a Parquet file."""
    name = path.name
    try:
        with path.open("rb") as file:
            start = file.read(4)
            if start == b"PAR1":
                return None
            file.seek(0)
            gzipped = start.startswith(b"\x1f\x8b")
            stream = gzip.GzipFile(fileobj=file) if gzipped else file
            sample = stream.read(SAMPLE_BYTES)
    except FileNotFoundError:
        raise InputError(argument, f"there is no file {str(path)!r}", "check the path") from None
    except (EOFError, OSError, zlib.error) as error:
        if isinstance(error, OSError) and error.strerror:
            raise InputError(argument, f"cannot read {str(path)!r} ({error.strerror})") from None
        raise InputError(argument, f"{name} is a broken gzip file ({error})") from None
    if sample.startswith(b"PK\x03\x04"):
        raise InputError(argument, f"{name} is a zip archive or an Excel sheet", "save it as CSV")
    if b"\0" in sample:
        hint = "give CSV or TSV in UTF-8, gzipped or not, or Parquet"
        raise InputError(argument, f"{name} is a binary file (or UTF-16 text)", hint)
    if len(sample) == SAMPLE_BYTES:  # it may end inside a character
        sample = sample[: sample.rfind(b"\n") + 1] or sample
    try:
        lines = sample.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        value = f"{name} is not UTF-8 text (byte {error.start:,})"
        raise InputError(argument, value, _NOT_UTF8) from None
    comments = 0
    while comments < len(lines) and lines[comments][:1] in ("#", "%"):
        comments += 1
    lines = [line for line in lines[comments:] if line.strip()][:50]
    if not lines:
        raise InputError(argument, f"{name} is empty", "give a table with a header and rows")
    # The first separator is the comma: it wins where none fits.
    best = max(SEPARATORS, key=lambda separator: _fitness(lines, separator))
    aligned = best == " " and any(re.search(r"\S {2,}\S|^ ", line) for line in lines)
    cells = csv.reader(lines[:2], delimiter=best)
    rows = [tuple(line.split()) for line in lines[:2]] if aligned else list(map(tuple, cells))
    return Dialect(best, comments, rows[0], rows[1] if len(rows) > 1 else (), aligned, gzipped)


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


def _has_quotes(path: Path) -> bool:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(b'"') >= 0


def is_text(kind: Any) -> bool:
    """Whether a pyarrow type is text."""
    checks = pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view
    return any(check(kind) for check in checks)


class TableReader:
    """A table file, read whole or in batches; errors begin with ``argument``.

    ``names`` are the column names of a text file without a header line, and ``notes`` is where
    notes go.
    """

    def __init__(
        self,
        path: Path,
        argument: str,
        *,
        names: Sequence[str] = (),
        notes: list[str] | None = None,
    ) -> None:
        self.path, self.argument = path, argument
        self.notes = [] if notes is None else notes
        self.dialect = sniff(path, argument)
        self.header = not names
        self.commas: dict[str, CommaMeaning] = {}
        if self.dialect is None:
            self.stored_names = list(self._parquet().schema_arrow.names)
            return
        self.stored_names = list(names or self.dialect.first)
        suffixes = [suffix.lower() for suffix in path.suffixes]
        expected = "," if ".csv" in suffixes else "\t" if ".tsv" in suffixes else None
        used = self.dialect.separator
        if expected not in (None, used) and len(self.dialect.first) > 1:
            self.notes.append(f"{path.name}: read as separated by {SEPARATORS[used]}")

    @property
    def names(self) -> list[str]:
        """Column names, without surrounding spaces."""
        return [name.strip() for name in self.stored_names]

    def unique_names(self) -> list[str]:
        """Column names, which must differ."""
        names = self.names
        for k, name in enumerate(names):
            if name in names[:k]:
                raise InputError(self.argument, f"two columns are named {name!r}", "rename one")
        return names

    def drop_header(self) -> None:
        """Treat the first line as a row."""
        self.header = False
        self.stored_names = [f"column {k + 1}" for k in range(len(self.stored_names))]
        self.notes.append(f"{self.path.name}: has no header line")

    def locate(self, row: int) -> str:
        """Name the place of a row (from 0) in the file."""
        if self.dialect is None:
            return f"row {row + 1:,}"
        return f"line {row + 1 + self.header + self.dialect.comments:,}"

    def table(
        self, columns: Sequence[str] = (), *, text: Sequence[str] = (), partial: bool = False
    ) -> Any:
        """Read columns (by default all) as a pyarrow table, with several threads.

        The ``text`` columns of a text file are read as text, the types of others are inferred.
        ``partial`` drops rows that are cut short, with a note, instead of refusing the file.
        """
        wanted = self._stored(columns or self.names)
        short: list[Any] = []

        def on_invalid_row(row: Any) -> str:
            if partial and row.actual_columns < row.expected_columns:
                short.append(row)
                return "skip"
            return "error"

        try:
            if self.dialect is None:
                return self._parquet().read(columns=wanted).select(wanted)
            types = dict.fromkeys(self._stored(text), pa.string())
            # A parser that need not watch for quotes is twice as fast.
            quotes = self.dialect.gzipped or _has_quotes(self.path)
            options = self._options(
                BLOCK_BYTES,
                wanted,
                types,
                quote_char='"' if quotes else False,
                newlines_in_values=quotes,
                invalid_row_handler=on_invalid_row,
            )
            with self._stream() as stream:
                table = arrow.read_csv(stream, *options)
        except READ_ERRORS as error:
            raise self._explain(error) from None
        if short:
            rows = counted(len(short), "row")
            self.notes.append(f"{self.path.name}: {rows} cut short, dropped")
        return table

    def batches(
        self, columns: Sequence[str] = (), type: Any = None, *, multiline: bool = True
    ) -> Iterator[Any]:
        """Read columns front to back as record batches, of a type or else as text.

        By default a Parquet file's columns keep their types. ``multiline`` allows line breaks
        inside quoted cells.
        """
        wanted = self._stored(columns or self.names)
        try:
            if self.dialect is None:
                for batch in self._parquet().iter_batches(BATCH_ROWS, columns=wanted):
                    batch = batch.select(wanted)
                    yield batch.cast(pa.schema([(f.name, type or f.type) for f in batch.schema]))
                return
            types = dict.fromkeys(wanted, type or pa.string())
            options = self._options(BATCH_BYTES, wanted, types, newlines_in_values=multiline)
            with self._stream() as stream, arrow.open_csv(stream, *options) as reader:
                yield from reader
        except READ_ERRORS as error:
            raise self._explain(error) from None

    def frame(
        self, table: Any = None, *, text: Sequence[str] = (), unused: Sequence[str] = ()
    ) -> pd.DataFrame:
        """Read the file, or take a table that was read from it, as a DataFrame.

        Text is stripped, text in :data:`~fairmp.datasets.columns.MISSING` is missing, and the cells
        of a text file become numbers, booleans or dates where a whole column can. Columns in
        ``text`` stay as they are, and unclear numbers in ``unused`` columns are not refused.
        """
        table = self.table(text=text) if table is None else table
        cells = {
            name.strip(): self.strip(name, column, missing=name.strip() not in text)
            for name, column in zip(table.column_names, table.columns, strict=True)
        }
        inferred = {name: column for name, column in cells.items() if name not in text}
        self.settle_commas(inferred.items(), unused)
        cells |= {name: self.infer(name, column) for name, column in inferred.items()}
        return pa.table(cells).to_pandas(date_as_object=False)

    def strip(self, name: str, cells: Any, *, missing: bool) -> Any:
        """Strip a column of text, and with ``missing`` empty the cells that mark missing values."""
        if pa.types.is_binary(cells.type):
            value = f"column {name!r} of {self.path.name} is not UTF-8 text"
            raise InputError(self.argument, value, _NOT_UTF8)
        if pa.types.is_dictionary(cells.type) and is_text(cells.type.value_type):
            cells = cells.cast(cells.type.value_type)
        if not is_text(cells.type):
            return cells
        cells = pc.utf8_trim_whitespace(cells)
        if not missing:
            return cells
        gone = pc.is_in(cells, value_set=pa.array(MISSING, cells.type))
        return pc.if_else(gone, pa.scalar(None, cells.type), cells)

    def settle_commas(self, columns: Iterable[tuple[str, Any]], unused: Sequence[str] = ()) -> None:
        """Decide what commas inside numbers mean in each column of a text file.

        A comma is a decimal mark if some value of the column cannot be grouped by thousands
        (``0,5``), and a thousands separator if some value can only be (``1,234,567`` or
        ``1,234.5``). Where every value fits both, as ``2,101`` does, the other columns decide, and
        the file is refused if they cannot. In files separated by commas nothing is changed.
        """
        if self.dialect is None or self.dialect.separator == ",":
            return
        unclear: dict[str, str] = {}
        for name, cells in columns:
            commas = pc.match_substring(cells, ",") if is_text(cells.type) else None
            if commas is None or not pc.any(commas).as_py():
                continue
            possible = [
                meaning
                for meaning, pattern in _COMMAS.items()
                if pc.all(pc.match_substring_regex(cells, pattern)).as_py()
            ]
            if len(possible) == 1:
                self.commas[name] = possible[0]
            elif possible:
                row = pc.index(commas, True).as_py()
                unclear[name] = f"{self.locate(row)} has {cells[row].as_py()!r}"
        meanings = set(self.commas.values())
        for name, example in unclear.items():
            if len(meanings) == 1:
                (self.commas[name],) = meanings
            elif name not in unused:
                value = f"column {name!r} of {self.path.name}, {example}: decimals or thousands?"
                hint = "write the numbers without commas, with a decimal point"
                raise InputError(self.argument, value, hint)
        titles = {"decimal": "decimal commas", "thousands": "thousands separators"}
        for kind, title in titles.items():
            found = [name for name, settled in self.commas.items() if settled == kind]
            if found:
                self.notes.append(f"{self.path.name}: {title} in column {', '.join(found)}")

    def infer(self, name: str, cells: Any) -> Any:
        """Convert a stripped column of text to numbers, booleans or dates if all of it is."""
        if self.dialect is None or not is_text(cells.type):
            return cells
        if name in self.commas:
            mark = "." if self.commas[name] == "decimal" else ""
            cells = pc.replace_substring(cells, ",", mark)
        if cells.null_count == len(cells):
            return pa.nulls(len(cells))
        # The order in which pyarrow's CSV reader tries types.
        times = [pa.timestamp(unit, zone) for zone in (None, "UTC") for unit in ("s", "ns")]
        for kind in (pa.int64(), pa.bool_(), pa.date32(), *times, pa.float64()):
            with suppress(pa.ArrowInvalid):
                pc.cast(cells.slice(0, SAMPLE_ROWS), kind)  # a cast that fails is slow
                return pc.cast(cells, kind)
        return cells

    def _stored(self, columns: Sequence[str]) -> list[str]:
        """The names of columns as the file has them."""
        stored = dict(zip(self.names, self.stored_names, strict=True))
        return [stored[name] for name in columns if name in stored]

    def _options(self, block: int, columns: list[str], types: Any, **parse: Any) -> Any:
        """Options of pyarrow's CSV reader."""
        assert self.dialect is not None
        return (
            arrow.ReadOptions(
                skip_rows=self.dialect.comments,
                column_names=None if self.header else self.stored_names,
                block_size=block,
            ),
            arrow.ParseOptions(delimiter=self.dialect.separator, **parse),
            arrow.ConvertOptions(
                column_types=types,
                include_columns=[] if columns == self.stored_names else columns,
                null_values=list(MISSING),
                strings_can_be_null=False,
            ),
        )

    def _explain(self, error: Exception) -> InputError:
        """Say what is wrong with the file; pyarrow does not know the line of a broken row."""
        name = self.path.name
        if "UTF8" in str(error):
            return InputError(self.argument, f"{name} is not UTF-8 text", _NOT_UTF8)
        if self.dialect is not None and "CSV parse error" in str(error):
            width = len(self.stored_names)
            with suppress(*READ_ERRORS, csv.Error, StopIteration), self._stream() as stream:
                lines = io.TextIOWrapper(stream, "utf-8", "replace", newline="")
                for _ in range(self.dialect.comments):
                    next(lines)
                rows = csv.reader(lines, delimiter=self.dialect.separator)
                found = next(row for row in rows if row and len(row) != width)
                line, cells = rows.line_num + self.dialect.comments, counted(len(found), "cell")
                value = f"{name} line {line:,} has {cells} where {width:,} were expected"
                cause = "it is cut short" if len(found) < width else "the separator is unquoted"
                return InputError(self.argument, value, f"{cause}, or the file is broken there")
        return TableReadError(self.argument, f"cannot read {name} ({' '.join(str(error).split())})")

    def _stream(self) -> Any:
        """Open a text file; runs of spaces in an aligned one become single spaces."""
        assert self.dialect is not None
        if not self.dialect.aligned:
            compression = "gzip" if self.dialect.gzipped else None
            return pa.input_stream(str(self.path), compression=compression)
        squeezed = tempfile.TemporaryFile()  # noqa: SIM115
        with gzip.open(self.path) if self.dialect.gzipped else self.path.open("rb") as lines:
            squeezed.writelines(b" ".join(line.split()) + b"\n" for line in lines)
        squeezed.seek(0)
        return pa.PythonFile(squeezed, mode="r")

    def _parquet(self) -> Any:
        try:
            return parquet.ParquetFile(self.path)
        except READ_ERRORS as error:
            raise self._explain(error) from None

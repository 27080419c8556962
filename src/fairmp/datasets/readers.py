"""One reader of table files: CSV, TSV and other separated text, gzipped or not, and Parquet."""

from __future__ import annotations

import csv
import gzip
import mmap
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fairmp.datasets.columns import MISSING
from fairmp.datasets.edges import counted, is_text
from fairmp.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars", " ": "spaces"}
SAMPLE_BYTES = 1 << 16
SAMPLE_ROWS = 100
BLOCK_BYTES = 1 << 22  # text parsed at a time by each thread
BATCH_BYTES = 1 << 24  # text parsed at a time where a file is read in batches
BATCH_ROWS = 1 << 21  # rows of a batch of a Parquet file

CommaMeaning = Literal["decimal", "thousands", "unclear"]

# A number with one comma and three digits behind it: 2,101 is 2.101 or 2101.
_UNCLEAR = r"^[+-]?[1-9][0-9]{0,2},[0-9]{3}$"
_GROUPED = r"^[+-]?[1-9][0-9]{0,2}(,[0-9]{3})+(\.[0-9]*)?$"
_DECIMAL = r"^[+-]?[0-9]*,[0-9]+([eE][+-]?[0-9]+)?$"
_NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"


class TableReadError(InputError):
    """A table file that is damaged, or whose cells are not of the type asked for."""


@dataclass(frozen=True)
class Dialect:
    """How a text table is written.

    Attributes:
        separator: The character between two cells.
        comments: Lines at the top that start with ``#`` or ``%`` and are skipped.
        first: The cells of the first line after them.
        second: The cells of the line after that; empty if there is none.
        aligned: Whether runs of spaces separate the cells.
    """

    separator: str
    comments: int
    first: tuple[str, ...]
    second: tuple[str, ...]
    aligned: bool = False


def sniff(path: Path, argument: str) -> Dialect | None:
    """Detect the dialect of a text table from its first lines; None for a Parquet file.

    Raises:
        InputError: If the file is absent, empty, binary or not UTF-8.
    """
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
        raise InputError(
            argument, f"{path.name} is a broken gzip file ({error})", "compress it again"
        ) from None
    lines, comments = _first_lines(sample, path, argument)
    best = max(SEPARATORS, key=lambda separator: _fitness(lines, separator))
    if _fitness(lines, best) == (0, 0):
        best = ","
    aligned = best == " " and any(re.search(r"\S {2,}\S|^ ", line) for line in lines)
    rows = (
        [line.split() for line in lines[:2]]
        if aligned
        else list(csv.reader(lines[:2], delimiter=best))
    )
    second = tuple(rows[1]) if len(rows) > 1 else ()
    return Dialect(best, comments, tuple(rows[0]), second, aligned)


def _first_lines(sample: bytes, path: Path, argument: str) -> tuple[list[str], int]:
    """Decode up to fifty lines after the comments, and count the comments."""
    if sample.startswith(b"PK\x03\x04"):
        raise InputError(
            argument, f"{path.name} is a zip archive or an Excel sheet", "save it as CSV"
        )
    if b"\0" in sample:
        raise InputError(
            argument,
            f"{path.name} is a binary file (or UTF-16 text)",
            "give CSV or TSV in UTF-8, gzipped or not, or Parquet",
        )
    if len(sample) == SAMPLE_BYTES:  # it may end inside a character
        sample = sample[: sample.rfind(b"\n") + 1] or sample
    try:
        lines = sample.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise _not_utf8(argument, f"{path.name} is not UTF-8 text (byte {error.start:,})") from None
    comments = 0
    while comments < len(lines) and lines[comments][:1] in ("#", "%"):
        comments += 1
    rest = [line for line in lines[comments:] if line.strip()][:50]
    if not rest:
        raise InputError(argument, f"{path.name} is empty", "give a table with a header and rows")
    return rest, comments


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


class TableReader:
    """A table file, read whole or in batches.

    Args:
        path: The file; gzip and Parquet are recognised by their first bytes.
        argument: The name that errors begin with.
        names: Column names of a text file without a header line.
        notes: Where notes go.
    """

    def __init__(
        self,
        path: Path,
        argument: str,
        *,
        names: Sequence[str] | None = None,
        notes: list[str] | None = None,
    ) -> None:
        self.path, self.argument = path, argument
        self.notes = [] if notes is None else notes
        self.dialect = sniff(path, argument)
        self.header = names is None
        self.commas: dict[str, CommaMeaning] = {}
        if self.dialect is None:
            self.stored_names = list(self._parquet().schema_arrow.names)
            return
        self.stored_names = list(self.dialect.first) if names is None else list(names)
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
        twice = [name for k, name in enumerate(names) if name in names[:k]]
        if twice:
            raise InputError(self.argument, f"two columns are named {twice[0]!r}", "rename one")
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
        self,
        columns: Sequence[str] | None = None,
        *,
        text: Sequence[str] = (),
        partial: bool = False,
    ) -> Any:
        """Read the file as a pyarrow table, with several threads.

        Args:
            columns: Columns to read; by default all.
            text: Columns of a text file to read as text; the types of others are inferred.
            partial: Drop rows that are cut short, with a note, instead of refusing the file.

        Raises:
            InputError: If a row has too few or too many cells; it names the line.
        """
        import pyarrow as pa
        import pyarrow.csv as arrow

        wanted = self._stored(columns)
        if self.dialect is None:
            try:
                return self._parquet().read(columns=wanted).select(wanted)
            except (pa.ArrowException, OSError):
                raise self._broken_parquet() from None
        types = dict.fromkeys(self._stored(text), pa.string())
        if self.dialect.aligned:
            table = pa.Table.from_batches(self.batches(columns))
            cells = {
                name: column if name in types else self.infer(name, column)
                for name, column in zip(table.column_names, table.columns, strict=True)
            }
            return pa.table(cells)
        short: list[Any] = []

        def on_invalid_row(row: Any) -> str:
            if partial and row.actual_columns < row.expected_columns:
                short.append(row)
                return "skip"
            return "error"

        # A parser that need not watch for quotes is twice as fast.
        quotes = self._has_quotes()
        options = self._options(BLOCK_BYTES, wanted, types, on_invalid_row, quotes, quotes)
        try:
            with self._stream() as stream:
                table = arrow.read_csv(stream, *options)
        except (pa.ArrowInvalid, OSError, EOFError) as error:
            raise self._explain(error, quotes) from None
        if short:
            rows = counted(len(short), "row")
            self.notes.append(f"{self.path.name}: {rows} cut short, dropped")
        return table

    def batches(
        self,
        columns: Sequence[str] | None = None,
        type: Any = None,
        *,
        multiline: bool = True,
    ) -> Iterator[Any]:
        """Read the file front to back as pyarrow record batches.

        Args:
            columns: Columns to read; by default all.
            type: Type to read them as; by default text (Parquet: the type in the file).
            multiline: Whether a quoted cell of a text file may hold a line break.

        Raises:
            TableReadError: If a cell is not of the type.
        """
        import pyarrow as pa
        import pyarrow.csv as arrow

        wanted = self._stored(columns)
        try:
            if self.dialect is None:
                for batch in self._parquet().iter_batches(BATCH_ROWS, columns=wanted):
                    batch = batch.select(wanted)
                    yield batch.cast(pa.schema([(f.name, type or f.type) for f in batch.schema]))
                return
            types = dict.fromkeys(wanted, type or pa.string())
            if self.dialect.aligned:
                yield from self._aligned_batches(types)
                return
            options = self._options(BATCH_BYTES, wanted, types, None, True, multiline)
            with self._stream() as stream, arrow.open_csv(stream, *options) as reader:
                yield from reader
        except (pa.ArrowException, OSError, EOFError, ValueError) as error:
            if self.dialect is None and type is None:
                raise self._broken_parquet() from None
            raise self._explain(error, multiline) from None

    def frame(
        self, table: Any = None, *, text: Sequence[str] = (), unused: Sequence[str] = ()
    ) -> pd.DataFrame:
        """Read the file, or take a table that was read from it, as a DataFrame.

        Text is stripped, text in :data:`~fairmp.datasets.columns.MISSING` is missing, and the
        cells of a text file become numbers, booleans or dates where a whole column can.

        Args:
            table: What :meth:`table` returned.
            text: Columns that stay text as they are, such as ids.
            unused: Columns in which unclear numbers need not be refused.
        """
        import pyarrow as pa

        table = self.table(text=text) if table is None else table
        table = table.rename_columns([name.strip() for name in table.column_names])
        cells = {
            name: self.strip(name, column, missing=name not in text)
            for name, column in zip(table.column_names, table.columns, strict=True)
        }
        inferred = {name: column for name, column in cells.items() if name not in text}
        self.settle_commas(inferred.items(), unused)
        cells |= {name: self.infer(name, column) for name, column in inferred.items()}
        frame: pd.DataFrame = pa.table(cells).to_pandas(date_as_object=False)
        return frame

    def strip(self, name: str, cells: Any, *, missing: bool) -> Any:
        """Strip a column of text, and with ``missing`` empty the cells that mark missing values."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if pa.types.is_binary(cells.type):
            raise _not_utf8(self.argument, f"column {name!r} of {self.path.name} is not UTF-8 text")
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
            meaning, example = self._comma_meaning(cells)
            if meaning == "unclear":
                unclear[name] = example
            elif meaning is not None:
                self.commas[name] = meaning
        meanings = set(self.commas.values())
        for name, example in unclear.items():
            if len(meanings) == 1:
                (self.commas[name],) = meanings
            elif name not in unused:
                raise InputError(
                    self.argument,
                    f"column {name!r} of {self.path.name}, {example}: the comma can be a decimal"
                    " mark or a thousands separator",
                    "write the numbers without commas, with a decimal point",
                )
        for meaning, title in (
            ("decimal", "decimal commas"),
            ("thousands", "thousands separators"),
        ):
            found = [name for name, settled in self.commas.items() if settled == meaning]
            if found:
                self.notes.append(f"{self.path.name}: {title} in column {', '.join(found)}")

    def _comma_meaning(self, cells: Any) -> tuple[CommaMeaning | None, str]:
        import pyarrow.compute as pc

        if not is_text(cells.type):
            return None, ""

        def matches(pattern: str) -> Any:
            return pc.fill_null(pc.match_substring_regex(cells, pattern), False)

        comma = pc.fill_null(pc.match_substring(cells, ","), False)
        if not pc.any(comma).as_py():
            return None, ""
        unclear, grouped, decimal = matches(_UNCLEAR), matches(_GROUPED), matches(_DECIMAL)
        number = pc.or_(pc.or_(grouped, decimal), pc.or_(matches(_NUMBER), pc.is_null(cells)))
        point = pc.fill_null(pc.match_substring(cells, "."), False)
        certain = pc.and_not(grouped, unclear)
        is_thousands = pc.any(pc.or_(certain, point)).as_py()
        is_decimal = pc.any(pc.and_not(decimal, unclear)).as_py()
        if not pc.all(number).as_py() or (is_thousands and is_decimal):
            return None, ""
        if is_thousands or is_decimal:
            return ("thousands" if is_thousands else "decimal"), ""
        row = pc.index(unclear, True).as_py()
        return "unclear", f"{self.locate(row)} has {cells[row].as_py()!r}"

    def infer(self, name: str, cells: Any) -> Any:
        """Convert a stripped column of text to numbers, booleans or dates if all of it is."""
        import pyarrow as pa
        import pyarrow.compute as pc

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
            try:
                pc.cast(cells.slice(0, SAMPLE_ROWS), kind)  # a cast that fails is slow
                return pc.cast(cells, kind)
            except pa.ArrowInvalid:
                continue
        return cells

    def _stored(self, columns: Sequence[str] | None) -> list[str]:
        """The names of columns as the file has them."""
        if columns is None:
            return list(self.stored_names)
        stored = dict(zip(self.names, self.stored_names, strict=True))
        return [stored[name] for name in columns if name in stored]

    def _options(
        self,
        block: int,
        columns: Sequence[str],
        types: dict[str, Any],
        on_invalid_row: Any,
        quotes: bool,
        multiline: bool,
    ) -> tuple[Any, Any, Any]:
        import pyarrow.csv as arrow

        assert self.dialect is not None
        read = arrow.ReadOptions(
            skip_rows=self.dialect.comments,
            column_names=None if self.header else self.stored_names,
            block_size=block,
        )
        parse = arrow.ParseOptions(
            delimiter=self.dialect.separator,
            quote_char='"' if quotes else False,
            newlines_in_values=multiline,
            invalid_row_handler=on_invalid_row,
        )
        convert = arrow.ConvertOptions(
            column_types=types,
            include_columns=[] if list(columns) == self.stored_names else list(columns),
            null_values=list(MISSING),
            strings_can_be_null=False,
        )
        return read, parse, convert

    def _aligned_batches(self, types: dict[str, Any]) -> Iterator[Any]:
        import pandas as pd
        import pyarrow as pa

        assert self.dialect is not None
        with pd.read_csv(
            self.path,
            sep=r"\s+",
            skiprows=self.dialect.comments,
            header=0 if self.header else None,
            names=None if self.header else self.stored_names,
            usecols=list(types),
            dtype=str,
            keep_default_na=False,
            chunksize=1 << 20,
        ) as frames:
            for frame in frames:
                cells = [pa.array(frame[name], pa.string()) for name in types]
                cells = [c.cast(kind) for c, kind in zip(cells, types.values(), strict=True)]
                yield pa.record_batch(cells, names=list(types))

    def _explain(self, error: Exception, multiline: bool) -> InputError:
        """Read again with one thread, which alone knows line numbers, to find the broken row."""
        import pyarrow as pa
        import pyarrow.csv as arrow

        name = self.path.name
        if "UTF8" in str(error):
            return _not_utf8(self.argument, f"{name} is not UTF-8 text")
        if self.dialect is not None and "CSV parse error" in str(error):
            bad: list[Any] = []

            def on_invalid_row(row: Any) -> str:
                bad.append(row)
                return "error"

            types = dict.fromkeys(self.stored_names, pa.string())
            options = self._options(BATCH_BYTES, [], types, on_invalid_row, True, multiline)
            options[0].use_threads = False
            try:
                with self._stream() as stream, arrow.open_csv(stream, *options) as reader:
                    for _ in reader:
                        pass
            except (pa.ArrowInvalid, OSError, EOFError):
                pass
            if bad:
                row = bad[0]
                cause = (
                    "the file is cut short or broken there"
                    if row.actual_columns < row.expected_columns
                    else "a cell holds the separator unquoted, or the file is broken there"
                )
                return InputError(
                    self.argument,
                    f"{name} line {row.number:,} has {counted(row.actual_columns, 'cell')} where "
                    f"{row.expected_columns:,} were expected",
                    cause,
                )
        return TableReadError(self.argument, f"cannot read {name} ({' '.join(str(error).split())})")

    def _has_quotes(self) -> bool:
        with self.path.open("rb") as file:
            if file.read(2) == b"\x1f\x8b":
                return True
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return content.find(b'"') >= 0

    def _stream(self) -> Any:
        import pyarrow as pa

        with self.path.open("rb") as file:
            gzipped = file.read(2) == b"\x1f\x8b"
        return pa.input_stream(str(self.path), compression="gzip" if gzipped else None)

    def _parquet(self) -> Any:
        import pyarrow as pa
        import pyarrow.parquet as parquet

        try:
            return parquet.ParquetFile(self.path)
        except (pa.ArrowException, OSError):
            raise self._broken_parquet() from None

    def _broken_parquet(self) -> InputError:
        return TableReadError(
            self.argument,
            f"cannot read the Parquet file {self.path.name}",
            "it is broken or cut short",
        )


def _not_utf8(argument: str, value: str) -> InputError:
    return InputError(
        argument, value, "save the file as UTF-8, or read it yourself and pass a DataFrame"
    )


def layout_of(path: Path, argument: str) -> Dialect:
    """Return the dialect of a text table."""
    dialect = sniff(path, argument)
    if dialect is None:
        raise InputError(argument, f"{path.name} is a Parquet file", "give a text table")
    return dialect


def read_text(
    path: Path,
    argument: str,
    dialect: Dialect,
    *,
    names: Sequence[str] | None = None,
    partial: bool = False,
    notes: list[str] | None = None,
) -> Any:
    """Read a text table into a pyarrow table; see :meth:`TableReader.table`."""
    return TableReader(path, argument, names=names, notes=notes).table(partial=partial)

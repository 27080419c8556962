"""One reader of table files: separated text, gzipped or not, JSON Lines, Parquet and Arrow."""

from __future__ import annotations

import csv
import gzip
import io
import mmap
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow

from fairmp.datasets.columns import MISSING, counted
from fairmp.datasets.dialects import (
    NOT_UTF8,
    SAMPLE_ROWS,
    SEPARATORS,
    Dialect,
    FileStart,
    is_numeric,
    read_start,
    sniff,
    tokens,
)
from fairmp.datasets.parquet_folders import is_several_files, open_files
from fairmp.errors import InputError, shorten, shortlist

BLOCK_BYTES = 1 << 22  # text parsed at a time by each thread
BATCH_BYTES = 1 << 24  # text parsed at a time where a file is read in batches
BATCH_ROWS = 1 << 21  # rows of a batch of a Parquet file
READ_ERRORS = (pa.ArrowException, OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error)

CommaMeaning = Literal["decimal", "thousands"]
_POINT = r"\."
_DIGITS = r"([0-9]+|[1-9][0-9]{0,2}(%s[0-9]{3})+)"
_EXPONENT = r"([eE][+-]?[0-9]+)?$"
# Numbers in which a comma can only be the one or the other; 2,101 is among both.
_COMMAS: dict[CommaMeaning, str] = {
    "decimal": rf"^[+-]?({_DIGITS % _POINT}(,[0-9]*)?|,[0-9]+){_EXPONENT}",
    "thousands": rf"^[+-]?({_DIGITS % ','}(\.[0-9]*)?|\.[0-9]+){_EXPONENT}",
}
_EITHER = rf"^[+-]?[0-9]*[.,]?[0-9]+{_EXPONENT}"
_GROUPED = r"^[+-]?[1-9][0-9]{0,2}(\.[0-9]{3})+$"  # thousands where commas are decimal marks


class TableReadError(InputError):
    """A table file that is damaged, or whose cells are not of the type asked for."""


def check_unique(names: Sequence[str], argument: str) -> None:
    """Refuse two columns of the same name."""
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise InputError(argument, f"two columns are named {twice[0]!r}", "rename one")


def _has_quotes(path: Path) -> bool:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(b'"') >= 0


def is_text(kind: Any) -> bool:
    """Whether a pyarrow type is text."""
    checks = pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view
    return any(check(kind) for check in checks)


def convert_text(cells: Any) -> Any:
    """Convert a column of text to numbers, booleans or dates if all of it is."""
    if cells.null_count == len(cells):
        return pa.nulls(len(cells))
    signed = pc.replace_substring_regex(cells, r"^\+([0-9.])", r"\1")
    # The order in which pyarrow's CSV reader tries types.
    times = [pa.timestamp(unit, zone) for zone in (None, "UTC") for unit in ("s", "ns")]
    for kind in (pa.int64(), pa.bool_(), pa.date32(), *times, pa.float64()):
        with suppress(pa.ArrowInvalid):
            pc.cast(signed.slice(0, SAMPLE_ROWS), kind)  # a cast that fails is slow
            return pc.cast(signed, kind)
    return cells


class TableReader:
    """A table file, read whole or in batches; ``names`` stand in for a header line."""

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
        self.header = not names
        self.commas: dict[str, CommaMeaning] = {}
        start = read_start(path, argument)
        self.dialect: Dialect | None = None
        try:
            if start.format == "text":
                self.dialect = sniff(path, argument, start)
            else:
                self._columns = self._columnar(start)
                self.stored_names = list(self._columns.schema.names)
        except READ_ERRORS as error:
            raise self._explain(error) from None
        if self.dialect is None:
            return
        self.stored_names = list(names or self.dialect.sample[0])
        used = self.dialect.separator
        suffix = {",": ".csv", "\t": ".tsv"}.get(used, "")
        if suffix not in map(str.lower, path.suffixes) and len(self.stored_names) > 1:
            runs = "runs of " if self.dialect.aligned else ""
            self.notes.append(f"{path.name}: read as separated by {runs}{SEPARATORS[used]}")

    @property
    def names(self) -> list[str]:
        """Column names, without surrounding spaces."""
        return [name.strip() for name in self.stored_names]

    def find_header(self, wanted: Iterable[str | None]) -> list[str]:
        """Return the column names, which must differ; the first line may prove to be a row."""
        # A line that lacks a wanted column, and has numbers above numbers, is a row.
        if self.dialect and not all(n in self.names for n in wanted if n is not None):
            first, *rest = self.dialect.sample
            below = [[cell for row in rest for cell in row[k : k + 1]] for k in range(len(first))]
            above = [cell for cell, cells in zip(first, below, strict=True) if is_numeric(cells)]
            if is_numeric(above):
                self.drop_header()
        check_unique(self.names, self.argument)
        return self.names

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
        """Read columns as a pyarrow table, with inferred types of those not in ``text``."""
        wanted = self._stored(columns or self.names)
        short: list[Any] = []

        def on_invalid_row(row: Any) -> str:
            if partial and row.actual_columns < row.expected_columns:
                short.append(row)
                return "skip"
            return "error"

        try:
            if self.dialect is None:
                table = self._columns.to_table(columns=wanted)
                table.validate(full=True)  # damaged files have text that is no UTF-8
                return table
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
        """Read columns as record batches, of a type, or of their own (text, in a text file)."""
        wanted = self._stored(columns or self.names)
        try:
            if self.dialect is None:
                for batch in self._columns.to_batches(columns=wanted, batch_size=BATCH_ROWS):
                    batch.validate(full=True)
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
        """Read the file, or take a table read from it; ``unused`` columns may be unclear."""
        table = self.table(text=text) if table is None else table
        cells = {
            name.strip(): self.strip(name, column, missing=name.strip() not in text)
            for name, column in zip(table.column_names, table.columns, strict=True)
        }
        inferred = [name for name in cells if name not in text]
        self.settle_commas(inferred, cells.__getitem__, unused)
        cells |= {name: self.infer(name, cells[name]) for name in inferred}
        whole = pa.table(cells)
        del table, cells  # column by column, so that a wide table is not in memory twice
        return whole.to_pandas(date_as_object=False, split_blocks=True, self_destruct=True)

    def strip(self, name: str, cells: Any, *, missing: bool) -> Any:
        """Strip a column of text, and with ``missing`` empty the cells that mark missing values."""
        if isinstance(cells.type, pa.BaseExtensionType):
            cells = cells.cast(cells.type.storage_type)
        if pa.types.is_dictionary(cells.type) and is_text(cells.type.value_type):
            cells = cells.cast(cells.type.value_type)
        kind, types = cells.type, pa.types
        if types.is_decimal(kind):
            return cells.cast(pa.float64())
        if types.is_nested(kind) or "binary" in str(kind):
            problem = "is not UTF-8 text" if self.dialect else f"holds {kind}"
            value = f"column {name!r} of {self.path.name} {problem}"
            hint = NOT_UTF8 if self.dialect else "give one number, date or text per cell"
            raise InputError(self.argument, value, hint)
        cells = pc.utf8_trim_whitespace(cells) if is_text(kind) else cells
        if not (missing and is_text(kind)):
            return cells
        gone = pc.is_in(cells, value_set=pa.array(MISSING, kind))
        return pc.if_else(gone, pa.scalar(None, kind), cells)

    def settle_commas(
        self, names: Sequence[str], load: Callable[[str], Any], unused: Sequence[str] = ()
    ) -> None:
        """Decide what commas inside numbers mean in each stripped column of a text file.

        Where every value of a column fits both meanings, as ``2,101`` does, the other columns
        decide, and the file is refused if they cannot.
        """
        if self.dialect is None:
            return
        unclear: dict[str, str] = {}
        mixed: set[str] = set()  # columns such as 0,5 and 1.5
        for name in names:
            cells = load(name)
            if not is_text(cells.type) or not pc.any(pc.match_substring(cells, ",")).as_py():
                continue
            fits = {k: pc.match_substring_regex(cells, pattern) for k, pattern in _COMMAS.items()}
            possible = [meaning for meaning, rows in fits.items() if pc.all(rows).as_py()]
            if len(possible) == 1:
                self.commas[name] = possible[0]
            elif possible or pc.all(pc.match_substring_regex(cells, _EITHER)).as_py():
                unclear[name] = self._example(cells, ",")
                mixed |= set() if possible else {name}
        meanings = set(self.commas.values())
        for name, example in unclear.items():
            if len(meanings) == 1 and name not in mixed:
                (self.commas[name],) = meanings
            elif name not in unused:
                value = f"column {name!r} of {self.path.name}, {example}: decimals or thousands?"
                hint = "write the numbers without commas, with a decimal point"
                raise InputError(self.argument, value, hint)
        for kind, title in (("decimal", "decimal commas"), ("thousands", "thousands separators")):
            found = [name for name, settled in self.commas.items() if settled == kind]
            if found:
                self.notes.append(f"{self.path.name}: {title} in column {shortlist(found)}")
        if "decimal" in self.commas.values():
            self._refuse_points([name for name in names if name not in unused], load)

    def _refuse_points(self, names: Sequence[str], load: Callable[[str], Any]) -> None:
        """Refuse numbers such as 1.234 where other columns have decimal commas."""
        floats = [name for name in names if pa.types.is_floating(load(name).type)]
        again = self.table(floats, text=floats).columns if floats else ()
        written = dict(zip(floats, again, strict=True))
        for name in names:
            cells = written[name] if name in written else load(name)
            if not is_text(cells.type) or name in self.commas:
                continue
            points = pc.match_substring(cells, ".")
            groups = pc.or_(pc.match_substring_regex(cells, _GROUPED), pc.invert(points))
            if pc.any(points).as_py() and pc.all(groups).as_py():
                value = f"column {name!r} of {self.path.name}, {self._example(cells, '.')}"
                hint = "write the numbers with one decimal mark"
                raise InputError(self.argument, f"{value}, and others have decimal commas", hint)

    def _example(self, cells: Any, mark: str) -> str:
        row = pc.index(pc.match_substring(cells, mark), True).as_py()
        return f"{self.locate(row)} has {cells[row].as_py()!r}"

    def infer(self, name: str, cells: Any) -> Any:
        """Convert a stripped column of text to numbers, booleans or dates if all of it is."""
        if self.dialect is None or not is_text(cells.type):
            return cells
        if meaning := self.commas.get(name):
            group, mark = (".", ".") if meaning == "decimal" else (",", "")
            cells = pc.replace_substring(pc.replace_substring(cells, group, ""), ",", mark)
        return convert_text(cells)

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
        if "UTF8" in str(error) or isinstance(error, UnicodeDecodeError):
            return InputError(self.argument, f"{name} is not UTF-8 text", NOT_UTF8)
        if self.dialect is not None and "CSV parse error" in str(error):
            width = len(self.stored_names)
            with suppress(*READ_ERRORS, StopIteration), self._stream() as stream:
                lines = io.TextIOWrapper(stream, "utf-8", "replace", newline="")
                for _ in range(self.dialect.comments):
                    next(lines)
                rows = csv.reader(lines, delimiter=self.dialect.separator)
                found = next(row for row in rows if row and len(row) != width)
                line, cells = rows.line_num + self.dialect.comments, counted(len(found), "cell")
                row = shorten(self.dialect.separator.join(found), 60)
                value = f"{name} line {line:,} ({row!r}) has {cells} where {width:,} were expected"
                cause = "it is cut short" if len(found) < width else "the separator is unquoted"
                return InputError(self.argument, value, f"{cause}, or the file is broken there")
        return TableReadError(self.argument, f"cannot read {name} ({shorten(error)})")

    def _stream(self) -> Any:
        """Open a text file; runs of spaces in an aligned one become single spaces."""
        assert self.dialect is not None
        if not self.dialect.aligned:
            compression = "gzip" if self.dialect.gzipped else None
            return pa.input_stream(str(self.path), compression=compression)
        squeezed = io.TextIOWrapper(tempfile.TemporaryFile(), "utf-8", newline="")  # noqa: SIM115
        writer = csv.writer(squeezed, delimiter=" ", lineterminator="\n")
        with gzip.open(self.path) if self.dialect.gzipped else self.path.open("rb") as file:
            lines = io.TextIOWrapper(file, "utf-8-sig")
            writer.writerows(map(tokens, lines))
            lines.detach()
        squeezed.seek(0)
        return pa.PythonFile(squeezed.detach(), mode="r")

    def _columnar(self, start: FileStart) -> Any:
        """Open a Parquet or Arrow file, or read JSON Lines, as a pyarrow dataset."""
        import pyarrow.dataset as ds
        import pyarrow.json as json

        if is_several_files(self.path):
            return open_files(self.path, self.argument, convert_text)
        if start.format in ("parquet", "ipc"):
            return ds.dataset(str(self.path), format=start.format)
        compression = "gzip" if start.gzipped else None
        with pa.input_stream(str(self.path), compression=compression) as stream:
            if start.format == "stream":
                return ds.dataset(pa.ipc.open_stream(stream).read_all())
            return ds.dataset(json.read_json(stream))

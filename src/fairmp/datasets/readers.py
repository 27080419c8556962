"""One reader of table files: separated text, gzipped or not, JSON Lines, Parquet and Arrow."""

from __future__ import annotations

import csv
import io
import mmap
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow
import pyarrow.dataset as ds
import pyarrow.json as json

from fairmp.datasets import dialects, numerals
from fairmp.datasets.dialects import READ_ERRORS, Dialect, TableFile, sniff, split_aligned
from fairmp.datasets.numerals import CommaMeaning, is_text
from fairmp.datasets.parquet_folders import is_several_files, open_files
from fairmp.datasets.values import check_unique
from fairmp.errors import InputError, plural, shorten, shortlist
from fairmp.frames import MISSING, arrow_to_pandas

BLOCK_BYTES = 1 << 22  # text parsed at a time by each thread
BATCH_BYTES = 1 << 24  # text parsed at a time where a file is read in batches


class _RowHandler:
    """Called by the parser for rows with too many or too few cells."""

    def __init__(self, *, skip_short: bool = False) -> None:
        self.skip_short = skip_short
        self.skipped = self.refused = 0

    def __call__(self, row: Any) -> str:
        if self.skip_short and row.actual_columns < row.expected_columns:
            self.skipped += 1
            return "skip"
        self.refused += 1
        return "error"


class TextFile:
    """A text table; ``names`` stand in for a header line."""

    def __init__(self, file: TableFile, names: Sequence[str]) -> None:
        self.file = file
        try:
            self.dialect = sniff(file)
        except READ_ERRORS as error:
            raise file.explain(error) from None
        self.header = not names
        self.names = list(names or self.dialect.sample[0])

    def locate(self, row: int) -> str:
        """Name the line of a row (from 0)."""
        return f"line {row + 1 + self.header + self.dialect.comments:,}"

    def read(
        self, columns: list[str], text: Sequence[str], notes: list[str], *, partial: bool
    ) -> Any:
        """Read columns, with inferred types of those not in ``text``.

        With ``partial`` rows that are cut short are dropped, with a note.
        """
        # A parser that need not watch for quotes is twice as fast.
        quotes = self.file.gzipped or self._has_quotes()
        handler = _RowHandler(skip_short=partial)
        parsing = self._parsing(handler, quotes=quotes, multiline=quotes)
        types = dict.fromkeys(text, pa.string())
        with self._explained(handler), self._stream() as stream:
            table = arrow.read_csv(
                stream, self._blocks(BLOCK_BYTES), parsing, self._conversion(columns, types)
            )
        if handler.skipped:
            rows = plural(handler.skipped, "row")
            notes.append(f"{self.file.path.name}: {rows} cut short, dropped")
        return table

    def batches(self, columns: list[str], type: Any, *, multiline: bool) -> Iterator[Any]:
        """Read columns of a type as record batches."""
        handler = _RowHandler()
        options = (
            self._blocks(BATCH_BYTES),
            self._parsing(handler, quotes=True, multiline=multiline),
            self._conversion(columns, dict.fromkeys(columns, type)),
        )
        with (
            self._explained(handler),
            self._stream() as stream,
            arrow.open_csv(stream, *options) as reader,
        ):
            yield from reader

    def _blocks(self, size: int) -> Any:
        return arrow.ReadOptions(
            skip_rows=self.dialect.comments,
            column_names=None if self.header else self.names,
            block_size=size,
        )

    def _parsing(self, handler: _RowHandler, *, quotes: bool, multiline: bool) -> Any:
        return arrow.ParseOptions(
            delimiter=self.dialect.separator,
            quote_char='"' if quotes else False,
            newlines_in_values=multiline,
            invalid_row_handler=handler,
        )

    def _conversion(self, columns: list[str], types: dict[str, Any]) -> Any:
        return arrow.ConvertOptions(
            column_types=types,
            include_columns=[] if columns == self.names else columns,
            null_values=list(MISSING),
            strings_can_be_null=False,
        )

    def _has_quotes(self) -> bool:
        with (
            self.file.path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            return content.find(b'"') >= 0

    @contextmanager
    def _explained(self, handler: _RowHandler) -> Iterator[None]:
        """Say what is wrong with the file if it cannot be parsed."""
        try:
            yield
        except READ_ERRORS as error:
            wrong_row = self._find_wrong_row() if handler.refused else None
            if wrong_row is not None:
                raise wrong_row from None
            raise self.file.explain(error) from None

    def _find_wrong_row(self) -> InputError | None:
        """Name a row with another number of cells; pyarrow does not know its line."""
        width, comments = len(self.names), self.dialect.comments
        with suppress(*READ_ERRORS, StopIteration), self._stream() as stream:
            lines = io.TextIOWrapper(stream, "utf-8", "replace", newline="")
            for _ in range(comments):
                next(lines)
            rows = csv.reader(lines, delimiter=self.dialect.separator)
            row = next(row for row in rows if row and len(row) != width)
            text = shorten(self.dialect.separator.join(row), 60)
            line = f"{self.file.path.name} line {rows.line_num + comments:,} ({text!r})"
            value = f"{line} has {plural(len(row), 'cell')} where {width:,} were expected"
            cause = "it is cut short" if len(row) < width else "the separator is unquoted"
            return InputError(self.file.argument, value, f"{cause}, or the file is broken there")
        return None

    def _stream(self) -> Any:
        """Open the file for pyarrow; runs of spaces in an aligned one become single spaces."""
        if not self.dialect.aligned:
            return self.file.open_stream()
        squeezed = io.TextIOWrapper(tempfile.TemporaryFile(), "utf-8", newline="")  # noqa: SIM115
        writer = csv.writer(squeezed, delimiter=" ", lineterminator="\n")
        with self.file.open_text() as lines:
            writer.writerows(map(split_aligned, lines))
        squeezed.seek(0)
        return pa.PythonFile(squeezed.detach(), mode="r")


BATCH_ROWS = 1 << 21  # rows of a batch of a Parquet file


class _ColumnarFile:
    """A Parquet or Arrow file, or JSON Lines, as a pyarrow dataset."""

    dialect = None
    header = True

    def __init__(self, file: TableFile) -> None:
        self.file = file
        try:
            self.dataset = _open_dataset(file)
            self.names = list(self.dataset.schema.names)
        except READ_ERRORS as error:
            raise file.explain(error) from None

    def locate(self, row: int) -> str:
        """Name a row (from 0)."""
        return f"row {row + 1:,}"

    def read(self, columns: list[str]) -> Any:
        """Read columns with their types."""
        try:
            table = self.dataset.to_table(columns=columns)
            table.validate(full=True)  # damaged files have text that is not UTF-8
            return table
        except READ_ERRORS as error:
            raise self.file.explain(error) from None

    def batches(self, columns: list[str], type: Any) -> Iterator[Any]:
        """Read columns as record batches, of a type or of their own."""
        try:
            for batch in self.dataset.to_batches(columns=columns, batch_size=BATCH_ROWS):
                batch.validate(full=True)
                yield batch if type is None else self._ids(batch, type)
        except READ_ERRORS as error:
            raise self.file.explain(error) from None

    def _ids(self, batch: Any, type: Any) -> Any:
        """A batch of ids in columns of a type."""
        columns = []
        for column in batch.columns:
            if pa.types.is_dictionary(column.type):
                column = column.dictionary_decode()
            if pa.types.is_floating(column.type):
                column = numerals.whole_floats(column, self.file.argument)
            columns.append(pc.cast(column, type))
        return pa.record_batch(columns, names=batch.schema.names)


def _open_dataset(file: TableFile) -> Any:
    if is_several_files(file.path):
        return open_files(file.path, file.argument)
    if file.format in ("parquet", "ipc"):
        return ds.dataset(str(file.path), format=file.format)
    with file.open_stream() as stream:
        if file.format == "stream":
            return ds.dataset(pa.ipc.open_stream(stream).read_all())
        return ds.dataset(json.read_json(stream))


class TableReader:
    """A table file, read whole or in batches; ``names`` stand in for a header line.

    Text is read in two steps: cells first, then what they mean. Types, and the meaning of commas
    in numbers, are decided by all cells of a column.
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
        self.commas: dict[str, CommaMeaning] = {}
        file = dialects.open_table(path, argument)
        self.file = TextFile(file, names) if file.format == "text" else _ColumnarFile(file)
        self.dialect: Dialect | None = self.file.dialect  # None if the file is not text
        if self.dialect is None:
            return
        separator = self.dialect.separator
        suffix = {",": ".csv", "\t": ".tsv"}.get(separator, "")
        if suffix not in map(str.lower, path.suffixes) and len(self.file.names) > 1:
            runs = "runs of " if self.dialect.aligned else ""
            cut = f"separated by {runs}{dialects.SEPARATORS[separator]}"
            self.notes.append(f"{path.name}: read as {cut}")

    @property
    def header(self) -> bool:
        """Whether the file names its columns."""
        return self.file.header

    @property
    def names(self) -> list[str]:
        """Column names, without surrounding spaces."""
        return [name.strip() for name in self.file.names]

    def find_header(self, wanted: Iterable[str | None]) -> list[str]:
        """Return the column names, which must differ; the first line may prove to be a row."""
        # A line that lacks a wanted column, and has numbers above numbers, is a row.
        if self.dialect and not all(name in self.names for name in wanted if name is not None):
            first, *others = self.dialect.sample
            below = [[row[k] for row in others if k < len(row)] for k in range(len(first))]
            above = [
                cell for cell, cells in zip(first, below, strict=True) if dialects.is_numeric(cells)
            ]
            if dialects.is_numeric(above):
                self.drop_header()
        check_unique(self.names, self.argument)
        return self.names

    def drop_header(self) -> None:
        """Treat the first line as a row."""
        assert isinstance(self.file, TextFile)
        self.file.header = False
        self.file.names = [f"column {k + 1}" for k in range(len(self.file.names))]
        self.notes.append(f"{self.path.name}: has no header line")

    def locate(self, row: int) -> str:
        """Name the place of a row (from 0) in the file."""
        return self.file.locate(row)

    def table(
        self, columns: Sequence[str] = (), *, text: Sequence[str] = (), partial: bool = False
    ) -> Any:
        """Read columns as a pyarrow table, with inferred types of those not in ``text``.

        With ``partial`` rows of a text file that are cut short are dropped, with a note.
        """
        stored = self._stored(columns or self.names)
        if isinstance(self.file, TextFile):
            return self.file.read(stored, self._stored(text), self.notes, partial=partial)
        return self.file.read(stored)

    def batches(
        self, columns: Sequence[str] = (), type: Any = None, *, multiline: bool = True
    ) -> Iterator[Any]:
        """Read columns as record batches, of a type, or of their own (text, in a text file)."""
        stored = self._stored(columns or self.names)
        if isinstance(self.file, TextFile):
            return self.file.batches(stored, type or pa.string(), multiline=multiline)
        return self.file.batches(stored, type)

    def frame(
        self,
        table: Any = None,
        *,
        text: Sequence[str] = (),
        categories: Sequence[str] = (),
        exact: Sequence[str] = (),
        unused: Sequence[str] = (),
    ) -> pd.DataFrame:
        """Read the file, or take a table read from it.

        Args:
            table: What :meth:`table` read.
            text: Columns of ids: text without missing values.
            categories: Columns of text whatever their cells look like.
            exact: Columns whose distinct values stay distinct, as text if numbers would not.
            unused: Columns that may be unclear.
        """
        table = self.table(text=(*text, *categories, *exact)) if table is None else table
        cells = {
            name.strip(): self.strip(name, column, missing=name.strip() not in text)
            for name, column in zip(table.column_names, table.columns, strict=True)
        }
        inferred = [name for name in cells if name not in (*text, *categories)]
        self.settle_commas(inferred, cells.__getitem__, unused)
        cells |= {name: self.infer(name, cells[name], exact=name in exact) for name in inferred}
        whole = pa.table(cells)
        del table, cells  # so that a wide table is not in memory twice
        return arrow_to_pandas(whole, self_destruct=True)

    def strip(self, name: str, cells: Any, *, missing: bool) -> Any:
        """Strip a column of text and empty its cells that mark missing values, unless it is ids."""
        if isinstance(cells.type, pa.BaseExtensionType):
            cells = cells.cast(cells.type.storage_type)
        if pa.types.is_dictionary(cells.type) and is_text(cells.type.value_type):
            cells = cells.cast(cells.type.value_type)
        if pa.types.is_decimal(cells.type):
            return numerals.from_decimals(cells) if missing else cells.cast(pa.string())
        self._refuse_type(name, cells.type)
        if not missing or not is_text(cells.type):
            return cells
        cells = pc.utf8_trim_whitespace(cells)
        is_missing = pc.is_in(cells, value_set=pa.array(MISSING, cells.type))
        return pc.if_else(is_missing, pa.scalar(None, cells.type), cells)

    def _refuse_type(self, name: str, type: Any) -> None:
        """Refuse cells of several values, and bytes, which is how pyarrow reads broken text."""
        types = pa.types
        is_bytes = types.is_binary(type) or types.is_large_binary(type)
        is_bytes = is_bytes or types.is_binary_view(type) or types.is_fixed_size_binary(type)
        if not is_bytes and not types.is_nested(type):
            return
        title = f"column {name!r} of {self.path.name}"
        if self.dialect:
            raise InputError(self.argument, f"{title} is not UTF-8 text", dialects.NOT_UTF8)
        hint = "give one number, date or text per cell"
        raise InputError(self.argument, f"{title} holds {type}", hint)

    def settle_commas(
        self, names: Sequence[str], load: Callable[[str], Any], unused: Sequence[str] = ()
    ) -> None:
        """Decide what commas inside numbers mean in each stripped column of a text file.

        Where every value of a column fits both meanings, as ``2,101`` does, the other columns
        decide, and the file is refused if they cannot. So are columns that fit neither, such as
        ``0,5`` above ``1.5``.
        """
        if self.dialect is None:
            return
        unclear: dict[str, list[CommaMeaning]] = {}
        for name in names:
            meanings = numerals.comma_meanings(load(name))
            if meanings is None:
                continue
            if len(meanings) == 1:
                (self.commas[name],) = meanings
            else:
                unclear[name] = meanings
        settled = set(self.commas.values())
        for name, meanings in unclear.items():
            if meanings and len(settled) == 1:
                (self.commas[name],) = settled
            elif name not in unused:
                value = f"{self._example(name, load(name), ',')}: decimals or thousands?"
                hint = "write the numbers without commas, with a decimal point"
                raise InputError(self.argument, value, hint)
        self._note_commas()
        if "decimal" in settled:
            self._refuse_points([name for name in names if name not in unused], load)

    def _note_commas(self) -> None:
        for meaning, title in numerals.COMMA_TITLES.items():
            columns = [name for name in self.commas if self.commas[name] == meaning]
            if columns:
                self.notes.append(f"{self.path.name}: {title} in column {shortlist(columns)}")

    def _refuse_points(self, names: Sequence[str], load: Callable[[str], Any]) -> None:
        """Refuse numbers such as 1.234 where other columns have decimal commas."""
        floats = [name for name in names if pa.types.is_floating(load(name).type)]
        reread = self.table(floats, text=floats).columns if floats else ()
        as_written = dict(zip(floats, reread, strict=True))
        for name in names:
            cells = as_written[name] if name in as_written else load(name)
            if name in self.commas or not is_text(cells.type):
                continue
            if numerals.has_points_for_thousands(cells):
                value = f"{self._example(name, cells, '.')}, and others have decimal commas"
                raise InputError(self.argument, value, "write the numbers with one decimal mark")

    def _example(self, name: str, cells: Any, mark: str) -> str:
        row = pc.index(pc.match_substring(cells, mark), True).as_py()
        title = f"column {name!r} of {self.path.name}"
        return f"{title}, {self.locate(row)} has {cells[row].as_py()!r}"

    def infer(self, name: str, cells: Any, *, exact: bool = False) -> Any:
        """Convert a stripped column of text to numbers, booleans or dates if all of it is.

        With ``exact`` only if distinct numbers stay distinct.
        """
        if self.dialect is None or not is_text(cells.type):
            return cells
        if name in self.commas:
            cells = numerals.without_commas(cells, self.commas[name])
        return numerals.infer_type(cells, exact=exact)

    def _stored(self, columns: Sequence[str]) -> list[str]:
        """The names of columns as the file has them."""
        stored = dict(zip(self.names, self.file.names, strict=True))
        return [stored[name] for name in columns if name in stored]

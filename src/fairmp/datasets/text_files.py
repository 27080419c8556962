"""Separated text, parsed by pyarrow in the dialect that was detected."""

from __future__ import annotations

import csv
import gzip
import io
import mmap
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as arrow

from fairmp.datasets.dialects import NOT_UTF8, FileStart, sniff, split_aligned
from fairmp.datasets.values import MISSING
from fairmp.errors import InputError, plural, shorten

BLOCK_BYTES = 1 << 22  # text parsed at a time by each thread
BATCH_BYTES = 1 << 24  # text parsed at a time where a file is read in batches
READ_ERRORS = (pa.ArrowException, OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error)


class TableReadError(InputError):
    """A table file that is damaged, or whose cells are not of the type asked for."""


def is_utf8(path: Path, gzipped: bool) -> bool:
    """Whether a file is UTF-8 text, as far as it can be read."""
    opener = gzip.open if gzipped else open
    with suppress(*READ_ERRORS), opener(path, "rt", encoding="utf-8") as lines:
        try:
            for _ in lines:
                pass
        except UnicodeDecodeError:
            return False
    return True


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

    def __init__(self, path: Path, argument: str, start: FileStart, names: Sequence[str]) -> None:
        self.path, self.argument = path, argument
        try:
            self.dialect = sniff(path, argument, start)
        except READ_ERRORS as error:
            raise TableReadError(argument, f"cannot read {path.name} ({shorten(error)})") from None
        self.header = not names
        self.names = list(names or self.dialect.sample[0])

    def line_of(self, row: int) -> int:
        """Return the line (from 1) of a row (from 0)."""
        return row + 1 + self.header + self.dialect.comments

    def read(
        self, columns: list[str], text: Sequence[str], notes: list[str], *, partial: bool
    ) -> Any:
        """Read columns, with inferred types of those not in ``text``.

        With ``partial`` rows that are cut short are dropped, with a note.
        """
        # A parser that need not watch for quotes is twice as fast.
        quotes = self.dialect.gzipped or self._has_quotes()
        handler = _RowHandler(skip_short=partial)
        parsing = self._parsing(handler, quotes=quotes, multiline=quotes)
        types = dict.fromkeys(text, pa.string())
        with self._explained(handler), self._stream() as stream:
            table = arrow.read_csv(
                stream, self._blocks(BLOCK_BYTES), parsing, self._conversion(columns, types)
            )
        if handler.skipped:
            rows = plural(handler.skipped, "row")
            notes.append(f"{self.path.name}: {rows} cut short, dropped")
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
            self.path.open("rb") as file,
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
            if isinstance(error, UnicodeDecodeError) or not is_utf8(
                self.path, self.dialect.gzipped
            ):
                value = f"{self.path.name} is not UTF-8 text"
                raise InputError(self.argument, value, NOT_UTF8) from None
            value = f"cannot read {self.path.name} ({shorten(error)})"
            raise TableReadError(self.argument, value) from None

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
            line = f"{self.path.name} line {rows.line_num + comments:,} ({text!r})"
            value = f"{line} has {plural(len(row), 'cell')} where {width:,} were expected"
            cause = "it is cut short" if len(row) < width else "the separator is unquoted"
            return InputError(self.argument, value, f"{cause}, or the file is broken there")
        return None

    def _open(self) -> Any:
        return gzip.open(self.path) if self.dialect.gzipped else self.path.open("rb")

    def _stream(self) -> Any:
        """Open the file for pyarrow; runs of spaces in an aligned one become single spaces."""
        if not self.dialect.aligned:
            compression = "gzip" if self.dialect.gzipped else None
            return pa.input_stream(str(self.path), compression=compression)
        squeezed = io.TextIOWrapper(tempfile.TemporaryFile(), "utf-8", newline="")  # noqa: SIM115
        writer = csv.writer(squeezed, delimiter=" ", lineterminator="\n")
        with self._open() as file:
            lines = io.TextIOWrapper(file, "utf-8-sig")
            writer.writerows(map(split_aligned, lines))
            lines.detach()
        squeezed.seek(0)
        return pa.PythonFile(squeezed.detach(), mode="r")

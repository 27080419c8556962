"""Separated text, parsed by pyarrow in the dialect that was detected."""

from __future__ import annotations

import csv
import io
import mmap
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa
import pyarrow.csv as arrow

from fairmp.datasets.dialects import READ_ERRORS, TableFile, sniff, split_aligned
from fairmp.datasets.values import MISSING
from fairmp.errors import InputError, plural, shorten

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

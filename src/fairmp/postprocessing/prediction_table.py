"""A table of predictions: read, and written again with more columns."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as parquet

from fairmp.datasets.dialects import is_numeric
from fairmp.datasets.load_report import LoadReport
from fairmp.datasets.readers import TableReader
from fairmp.datasets.values import as_numbers, require_column
from fairmp.errors import InputError, plural
from fairmp.outputs import atomic_file

PARQUET = (".parquet", ".pq")
TEXT = (".csv", ".tsv", ".txt", ".gz")
QUOTED_FORMULA = r"^'([=+@\t\r-].)"
QUOTED_NUMBER = r"^'[+-]?[0-9.,]+([eE][+-]?[0-9]+)?$"  # never written by without_formulas
TRUE = ("true", "1", "1.0", "yes", "y", "t")
FALSE = ("false", "0", "0.0", "no", "n", "f", "")


@dataclass
class PredictionTable:
    """A table of predictions."""

    path: Path
    reader: TableReader
    raw: pa.Table  # to write again; that of a text file has every cell as written
    plain: pa.Table  # the same without the apostrophes before formulas
    frame: pd.DataFrame  # the columns as numbers and text
    report: LoadReport

    @classmethod
    def read(
        cls,
        path: Path,
        *,
        id: str | None = None,
        columns: Iterable[str | None] = (),
        exact: Sequence[str | None] = (),
        categories: Sequence[str] = (),
    ) -> PredictionTable:
        """Read a CSV, TSV or Parquet table.

        Apostrophes that :func:`without_formulas` wrote are left out. A file whose first line has
        none of the ``columns`` may lack a header.

        Args:
            path: the file.
            id: column with the ids.
            columns: columns with a role.
            exact: columns whose distinct values stay distinct: ``007`` is not 7 beside a 7.
            categories: columns of text whatever their cells look like.
        """
        report = LoadReport()
        reader = TableReader(path, "predictions", notes=report.notes)
        raw = reader.table(text=reader.find_header((id, *columns)))
        plain = raw
        if reader.dialect is not None:
            names = [re.sub(QUOTED_FORMULA, r"\1", name) for name in raw.column_names]
            plain = pa.table([_without_apostrophes(c) for c in raw.columns], names=names)
        if not raw.num_rows:
            value = "the table has a header and no rows"
            raise InputError("predictions", value, "give predictions")
        frame = reader.frame(
            plain,
            text=() if id is None else (id,),
            categories=[name for name in categories if name != id],
            exact=[name for name in exact if name is not None and name != id],
        )
        return cls(path, reader, raw, plain, frame, report)

    @property
    def columns(self) -> list[str]:
        """Column names."""
        return [str(column) for column in self.frame.columns]

    def require(self, argument: str, *columns: str) -> None:
        """Refuse the name of a column that the table lacks."""
        for column in columns:
            require_column(argument, column, self.columns, self.path.name)

    def first_place(self, rows: np.ndarray) -> str:
        """Name the place in the file of the first row of a mask."""
        return self.reader.locate(int(np.argmax(rows)))

    def cells(self, argument: str, column: str) -> list[Any]:
        """The cells of a column as they are written."""
        self.require(argument, column)
        cells: list[Any] = self.plain.column(column).to_pylist()
        return cells

    def numbers(self, argument: str, column: str) -> np.ndarray:
        """A column of finite numbers."""
        self.require(argument, column)
        values = as_numbers(self.frame[column])
        if values is None:
            raise InputError(argument, f"column {column!r} of {self.path.name} holds no numbers")
        missing = ~np.isfinite(values)
        if missing.any():
            rows, place = plural(int(missing.sum()), "row"), self.first_place(missing)
            value = f"column {column!r} has no number in {rows}, the first is {place}"
            raise InputError(argument, value, "fill or drop them")
        return values

    def mask(self, argument: str, column: str) -> np.ndarray:
        """Rows that are true in a column."""
        self.require(argument, column)
        cells = self.frame[column].astype(object)
        words = cells.where(cells.notna(), "").astype(str).str.strip().str.lower()
        true = words.isin(TRUE).to_numpy(dtype=bool)
        wrong = ~(true | words.isin(FALSE).to_numpy(dtype=bool))
        if wrong.any():
            place = self.first_place(wrong)
            value = f"{words[wrong].iloc[0]!r} in {place} is neither true nor false"
            raise InputError(argument, value, "give 1 and 0, or true and false")
        return true


def _without_apostrophes(cells: Any) -> Any:
    """Leave out the apostrophes that :func:`without_formulas` wrote; ``'-5`` stays."""
    stripped = pc.replace_substring_regex(cells, QUOTED_FORMULA, r"\1")
    return pc.if_else(pc.match_substring_regex(cells, QUOTED_NUMBER), cells, stripped)


def without_formulas(frame: pd.DataFrame) -> pd.DataFrame:
    """Put an apostrophe before text that a spreadsheet would run, in cells and column names."""

    def quoted(cell: Any) -> Any:
        if not isinstance(cell, str) or len(cell) < 2 or cell[0] not in "=+-@\t\r":
            return cell
        return cell if is_numeric([cell]) else f"'{cell}"

    text = frame.select_dtypes(exclude=["number", "bool", "datetime"]).columns
    changed = {name: frame[name].astype(object).map(quoted) for name in text}
    return frame.assign(**changed).rename(columns=quoted)


def write(
    table: PredictionTable,
    extra: Mapping[str, Sequence[Any] | np.ndarray],
    path: Path,
    *,
    safe: bool = True,
    new: bool = False,
) -> None:
    """Write the table with more columns, in the format of the path's suffix, atomically.

    ``safe`` quotes text that a spreadsheet would run, ``new`` refuses to replace a file. Nobody but
    its owner may read it.
    """
    with atomic_file(path.absolute(), new=new, private=True) as staging:
        if path.suffix.lower() in PARQUET:
            _write_parquet(table, extra, staging)
        else:
            _write_text(table, extra, staging, safe=safe, gzip=path.suffix.lower() == ".gz")


def _write_parquet(table: PredictionTable, extra: Mapping[str, Any], path: Path) -> None:
    raw = table.raw
    if table.reader.dialect is not None:  # cells of text become numbers where they are
        raw = pa.Table.from_pandas(table.frame, preserve_index=False)
    for name, values in extra.items():
        raw = raw.append_column(name, pa.array(values))
    parquet.write_table(raw, path)


def _write_text(
    table: PredictionTable, extra: Mapping[str, Any], path: Path, *, safe: bool, gzip: bool
) -> None:
    # Arrow types, so that a column of integers with missing values stays one.
    frame = table.raw.to_pandas(types_mapper=pd.ArrowDtype)
    decimal = "," if "decimal" in table.reader.commas.values() else "."
    for name, values in extra.items():
        column = pd.Series(values, index=frame.index)
        if column.dtype.kind == "f":
            column = column.map("{:.9g}".format).str.replace(".", decimal, regex=False)
        frame[name] = column
    dialect = table.reader.dialect
    (without_formulas(frame) if safe else frame).to_csv(
        path,
        sep=dialect.separator if dialect else ",",
        index=False,
        lineterminator="\n",
        compression="gzip" if gzip else None,
    )

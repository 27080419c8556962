"""A table of predictions: read once, written again with more columns."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fairmp.errors import InputError
from fairmp.outputs import atomic_file

if TYPE_CHECKING:
    import pandas as pd

    from fairmp.datasets.columns import LoadReport
    from fairmp.datasets.readers import TableReader

PARQUET = (".parquet", ".pq")
TEXT = (".csv", ".tsv", ".txt", ".gz")
QUOTED = r"^'([=+@\t\r-].)"


@dataclass
class PredictionTable:
    """A table of predictions."""

    path: Path
    reader: TableReader
    raw: Any  # a pyarrow table to write again; that of a text file has every cell as written
    frame: pd.DataFrame  # the columns as numbers and text
    report: LoadReport

    @property
    def columns(self) -> list[str]:
        """Column names."""
        return [str(column) for column in self.frame.columns]

    def require(self, option: str, *columns: str) -> None:
        """Refuse the name of a column that the table lacks."""
        from fairmp.datasets.columns import require_column

        for column in columns:
            require_column(option, column, self.columns, self.path.name)

    def place(self, rows: np.ndarray) -> str:
        """Name the place of the first of some rows (a mask) in the file."""
        return self.reader.locate(int(np.argmax(rows)))

    def numbers(self, option: str, column: str) -> np.ndarray:
        """A column of finite numbers."""
        from fairmp.datasets.columns import as_numbers, counted

        self.require(option, column)
        values = as_numbers(self.frame[column])
        if values is None:
            raise InputError(option, f"column {column!r} of {self.path.name} holds no numbers")
        missing = ~np.isfinite(values)
        if missing.any():
            rows = counted(int(missing.sum()), "row")
            value = f"column {column!r} has no number in {rows}, the first is {self.place(missing)}"
            raise InputError(option, value, "fill or drop them")
        return values


def read(path: Path, id: str | None, wanted: Iterable[str | None] = ()) -> PredictionTable:
    """Read a CSV, TSV or Parquet table of predictions; one without a header lacks those wanted.

    Apostrophes that :func:`without_formulas` wrote are left out.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    from fairmp.datasets.columns import LoadReport
    from fairmp.datasets.readers import TableReader

    report = LoadReport()
    reader = TableReader(path, "PREDICTIONS", notes=report.notes)
    reader.find_header((id, *wanted))
    raw = reader.table(text=reader.unique_names())
    if reader.dialect is not None:
        plain = [pc.replace_substring_regex(cells, QUOTED, r"\1") for cells in raw.columns]
        raw = pa.table(plain, names=[re.sub(QUOTED, r"\1", name) for name in raw.column_names])
    if not raw.num_rows:
        raise InputError("PREDICTIONS", "the table has a header and no rows", "give predictions")
    frame = reader.frame(raw, text=() if id is None else (id,))
    return PredictionTable(path, reader, raw, frame, report)


def without_formulas(frame: pd.DataFrame) -> pd.DataFrame:
    """Put an apostrophe before text that a spreadsheet would run: what begins with =, +, - or @.

    Numbers stay as they are, and so do cells of one character; names of columns are text too.
    """

    def quoted(cell: Any) -> Any:
        if not isinstance(cell, str) or len(cell) < 2 or cell[0] not in "=+-@\t\r":
            return cell
        return cell if is_numeric([cell]) else f"'{cell}"

    from fairmp.datasets.dialects import is_numeric

    text = frame.select_dtypes(exclude=["number", "bool", "datetime"]).columns
    changed = {name: frame[name].astype(object).map(quoted) for name in text}
    return frame.assign(**changed).rename(columns=quoted)


def write(
    table: PredictionTable,
    extra: Mapping[str, Any],
    goal: Path,
    *,
    safe: bool = True,
    new: bool = False,
) -> None:
    """Write the table with more columns, in the format of the file's ending, atomically.

    Text is written in the dialect of the file that was read; missing values are empty. ``safe``
    writes CSV :func:`without_formulas`.
    """
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as parquet

    for name in extra:
        if name in table.columns:
            value = f"{table.path.name} has a column {name!r} already"
            raise InputError("PREDICTIONS", value, "rename it")
    dialect, ending = table.reader.dialect, goal.suffix.lower()
    with atomic_file(goal.absolute(), new=new) as staging:
        if ending in PARQUET:
            raw = table.raw
            if dialect is not None:  # cells of text become numbers where they are
                raw = pa.Table.from_pandas(table.frame, preserve_index=False)
            for name, values in extra.items():
                raw = raw.append_column(name, pa.array(values))
            parquet.write_table(raw, staging)
        else:
            # Arrow types, so that a column of integers with missing values stays one.
            frame = table.raw.to_pandas(types_mapper=pd.ArrowDtype)
            decimal = "," if "decimal" in table.reader.commas.values() else "."
            for name, values in extra.items():
                column = pd.Series(values, index=frame.index)
                if column.dtype.kind == "f":
                    column = column.map("{:.9g}".format).str.replace(".", decimal, regex=False)
                frame[name] = column
            (without_formulas(frame) if safe else frame).to_csv(
                staging,
                sep=dialect.separator if dialect else ",",
                index=False,
                lineterminator="\n",
                compression="gzip" if ending == ".gz" else None,
            )

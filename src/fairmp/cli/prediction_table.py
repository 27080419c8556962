"""A table of predictions: read once, written again with more columns."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fairmp.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from fairmp.datasets.edges import LoadReport
    from fairmp.datasets.readers import TableReader

PARQUET = (".parquet", ".pq")
TEXT = (".csv", ".tsv", ".txt", ".gz")


@dataclass
class PredictionTable:
    """A table of predictions.

    Attributes:
        path: The file.
        reader: Its reader.
        raw: A pyarrow table to write again; that of a text file has every cell as written.
        frame: The columns as numbers and text.
        report: Notes on reading it.
    """

    path: Path
    reader: TableReader
    raw: Any
    frame: pd.DataFrame
    report: LoadReport

    @property
    def columns(self) -> list[str]:
        """Column names."""
        return [str(column) for column in self.frame.columns]

    def require(self, option: str, column: str) -> None:
        """Refuse the name of a column that the table lacks."""
        from fairmp.datasets.columns import require_column

        require_column(option, column, self.columns, self.path.name)

    def line(self, row: int) -> str:
        """Name the place of a row (from 0) in the file."""
        return self.reader.locate(row)

    def numbers(self, option: str, column: str) -> np.ndarray:
        """A column of finite numbers."""
        from fairmp.datasets.columns import as_numbers
        from fairmp.datasets.edges import counted

        self.require(option, column)
        values = as_numbers(self.frame[column])
        if values is None:
            raise InputError(option, f"column {column!r} of {self.path.name} holds no numbers")
        missing = np.flatnonzero(~np.isfinite(values))
        if len(missing):
            raise InputError(
                option,
                f"column {column!r} has no number in {counted(len(missing), 'row')}, the first is "
                f"{self.line(int(missing[0]))}",
                "fill or drop them",
            )
        return values


def read(path: Path, id: str | None) -> PredictionTable:
    """Read a CSV, TSV or Parquet table of predictions."""
    from fairmp.datasets.edges import LoadReport
    from fairmp.datasets.readers import TableReader

    report = LoadReport()
    reader = TableReader(path, "PREDICTIONS", notes=report.notes)
    raw = reader.table(text=reader.unique_names())
    if not raw.num_rows:
        raise InputError("PREDICTIONS", "the table has a header and no rows", "give predictions")
    frame = reader.frame(raw, text=() if id is None else (id,))
    return PredictionTable(path, reader, raw, frame, report)


def write(table: PredictionTable, extra: Mapping[str, Any], goal: Path) -> None:
    """Write the table with more columns, in the format of the file's ending, atomically."""
    import pyarrow as pa

    for name in extra:
        if name in table.columns:
            raise InputError(
                "PREDICTIONS", f"{table.path.name} has a column {name!r} already", "rename it"
            )
    goal.absolute().parent.mkdir(parents=True, exist_ok=True)
    handle, staging = tempfile.mkstemp(prefix=f".{goal.name}-", dir=goal.absolute().parent)
    os.close(handle)
    try:
        if goal.suffix.lower() in PARQUET:
            import pyarrow.parquet as parquet

            raw = table.raw
            if table.reader.dialect is not None:  # cells of text become numbers where they are
                raw = pa.Table.from_pandas(table.frame, preserve_index=False)
            for name, values in extra.items():
                raw = raw.append_column(name, pa.array(values))
            parquet.write_table(raw, staging)
        else:
            _write_text(table, extra, staging, gzipped=goal.suffix.lower() == ".gz")
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(staging, 0o666 & ~mask)
        os.replace(staging, goal)
    finally:
        Path(staging).unlink(missing_ok=True)


def _write_text(
    table: PredictionTable, extra: Mapping[str, Any], path: str, *, gzipped: bool
) -> None:
    """Write separated text in the dialect of the file that was read; missing values are empty."""
    import pandas as pd

    dialect = table.reader.dialect
    decimal = "," if "decimal" in table.reader.commas.values() else "."
    # Arrow types, so that a column of integers with missing values stays one.
    frame = table.raw.to_pandas(types_mapper=pd.ArrowDtype)
    for name, values in extra.items():
        column = pd.Series(values, index=frame.index)
        if column.dtype.kind == "f":
            column = column.map("{:.9g}".format).str.replace(".", decimal, regex=False)
        frame[name] = column
    frame.to_csv(
        path,
        sep=dialect.separator if dialect else ",",
        index=False,
        lineterminator="\n",
        compression="gzip" if gzipped else None,
    )

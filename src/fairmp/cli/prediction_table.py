"""A table of predictions: find the columns, read them, and write the table with more."""

from __future__ import annotations

import csv
import gzip
import io
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fairmp.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from fairmp.datasets.edges import LoadReport
    from fairmp.datasets.readers import Layout

PARQUET = (".parquet", ".pq")
TEXT = (".csv", ".tsv", ".txt", ".gz")


@dataclass
class PredictionTable:
    """A table as read: values that mean something, and the cells as they were written.

    Attributes:
        path: the file.
        frame: its columns, read as numbers and text.
        raw: a pyarrow table to write again; text tables keep every cell as it was.
        layout: how a text table is laid out; ``None`` for Parquet.
        report: notes on reading it.
    """

    path: Path
    frame: pd.DataFrame
    raw: Any
    layout: Layout | None
    report: LoadReport

    @property
    def columns(self) -> list[str]:
        """The columns' names."""
        return [str(column) for column in self.frame.columns]

    def require(self, option: str, column: str) -> None:
        """Refuse a column that is not there."""
        from fairmp.datasets.table_files import require

        require(option, column, self.columns, self.path.name)

    def line(self, row: int) -> str:
        """Where a row is, in words."""
        if self.layout is None:
            return f"row {row + 1:,}"
        return f"line {row + 2 + self.layout.comments:,}"

    def numbers(self, option: str, column: str) -> np.ndarray:
        """A column of finite numbers."""
        from fairmp.datasets.columns import as_numbers

        self.require(option, column)
        values = as_numbers(self.frame[column])
        if values is None:
            raise InputError(option, f"column {column!r} of {self.path.name} holds no numbers")
        gone = np.flatnonzero(~np.isfinite(values))
        if len(gone):
            raise InputError(
                option,
                f"column {column!r} has no number in {len(gone):,} row{'s' * (len(gone) != 1)}, "
                f"the first is {self.line(int(gone[0]))}",
                "fill or drop them",
            )
        return np.asarray(values)


def read(path: Path, id: str | None) -> PredictionTable:
    """Read a CSV, TSV or Parquet table of predictions."""
    from fairmp.datasets.edges import LoadReport
    from fairmp.datasets.readers import kind_of, layout_of, read_parquet, read_text
    from fairmp.datasets.table_files import node_table

    report = LoadReport()
    try:
        frame = node_table(path, id, report)
        layout = None
        if kind_of(path, "nodes") == "parquet":
            raw = read_parquet(path, "nodes")
        else:
            layout = layout_of(path, "nodes")
            raw = read_text(path, "nodes", layout, text_columns=layout.first)
    except InputError as error:
        message = str(error).removeprefix("nodes: ").replace("one row a node", "one row a person")
        raise InputError("PREDICTIONS", f"{message}") from None
    return PredictionTable(path, frame, raw, layout, report)


def write(table: PredictionTable, extra: Mapping[str, Any], goal: Path) -> None:
    """Write the table with more columns, as what the file's ending says; all of it or nothing."""
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
            if table.layout is not None:  # a text table's cells become numbers where they are
                raw = pa.Table.from_pandas(table.frame, preserve_index=False)
            for name, values in extra.items():
                raw = raw.append_column(name, pa.array(values))
            parquet.write_table(raw, staging)
        else:
            _write_text(table, extra, Path(staging), packed=goal.suffix.lower() == ".gz")
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(staging, 0o666 & ~mask)
        os.replace(staging, goal)
    finally:
        Path(staging).unlink(missing_ok=True)


def _write_text(
    table: PredictionTable, extra: Mapping[str, Any], path: Path, *, packed: bool
) -> None:
    separator, decimal = ",", "."
    if table.layout is not None:
        separator, decimal = table.layout.separator, table.layout.decimal
    columns = [_cells(column.to_pylist(), ".") for column in table.raw.columns]
    columns += [_cells(list(values), decimal) for values in extra.values()]
    with gzip.open(path, "wb") if packed else path.open("wb") as binary:
        file = io.TextIOWrapper(binary, encoding="utf-8", newline="")
        writer = csv.writer(file, delimiter=separator, lineterminator="\n")
        writer.writerow([*table.raw.column_names, *extra])
        writer.writerows(zip(*columns, strict=True))
        file.flush()
        file.detach()


def _cells(values: Sequence[Any], decimal: str) -> list[str]:
    if values and isinstance(values[0], float | np.floating):
        texts = [f"{value:.9g}" for value in values]
        return texts if decimal == "." else [text.replace(".", decimal) for text in texts]
    return ["" if value is None else str(value) for value in values]

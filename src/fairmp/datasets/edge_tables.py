"""Edge tables: files or DataFrames, read whole or in batches, as positions of node ids."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from fairmp.datasets.columns import require_column
from fairmp.datasets.edges import (
    LoadReport,
    blank_to_null,
    check_ids,
    comparable,
    finder,
    id_array,
    positions,
)
from fairmp.datasets.readers import TableReader
from fairmp.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    Table = str | os.PathLike[str] | pd.DataFrame

Endpoints = tuple[np.ndarray, np.ndarray]


def is_path(table: Any) -> TypeGuard[str | os.PathLike[str]]:
    """Whether a table is given as a path."""
    return isinstance(table, str | os.PathLike)


def check_frame(table: Any, argument: str) -> pd.DataFrame:
    """Return a DataFrame with text as column names, or refuse what is none."""
    import pandas as pd

    if not isinstance(table, pd.DataFrame):
        kind = type(table).__name__
        raise InputError(argument, f"a {kind} is no table", "give a path or a pandas DataFrame")
    return table.rename(columns=str)


class EdgeTable:
    """The source and target columns of an edge table.

    Args:
        edges: A file (CSV, TSV, gzipped or not, or Parquet) or DataFrame with one row per edge.
        ids: Node ids, a pyarrow array.
        source: Source column; by default the first.
        target: Target column; by default the second.
        report: Where notes go.
    """

    def __init__(
        self, edges: Table, ids: Any, source: str | None, target: str | None, report: LoadReport
    ) -> None:
        self.ids = ids
        self.reader: TableReader | None = None
        if is_path(edges):
            self.reader = TableReader(Path(edges), "edges", notes=report.notes)
            dialect = self.reader.dialect
            named = source is not None or target is not None
            if dialect and not named and _is_edge(dialect.first, dialect.second, ids):
                self.reader.drop_header()
            columns = self.reader.names
        else:
            self.frame = check_frame(edges, "edges")
            columns = list(self.frame.columns)
        if len(columns) < 2:
            raise InputError(
                "edges", f"the table has one column, {columns[0]!r}", "give a source and a target"
            )
        self.endpoints = source or columns[0], target or columns[1]
        for argument, name in zip(("source", "target"), self.endpoints, strict=True):
            require_column(argument, name, columns, "the edge table")
        if self.endpoints[0] == self.endpoints[1]:
            raise InputError(
                "source", f"{self.endpoints[0]!r} is the target too", "name two columns"
            )
        unused = [column for column in columns if column not in self.endpoints]
        if unused:
            report.notes.append(f"edge columns not used: {', '.join(unused)}")

    def read(self) -> tuple[Any, Any]:
        """Return the endpoints of all rows, as ids."""
        if self.reader is None:
            source, target = (id_array(self.frame[name]) for name in self.endpoints)
        else:
            table = self.reader.table(self.endpoints, text=self.endpoints)
            source, target = (blank_to_null(column).combine_chunks() for column in table.columns)
        return source, target

    def integer_ids(self) -> bool:
        """Whether all node ids are integers, so that endpoints can be read as integers."""
        import pyarrow as pa

        known, *_ = comparable(self.ids, pa.array([0]), pa.array([0]))
        return bool(pa.types.is_integer(known.type))

    def batches(self, *, integers: bool) -> Iterator[Endpoints]:
        """Read a file front to back, as positions among the ids; −1 where an id is unknown.

        Args:
            integers: Read endpoints as integers, which is faster than as text.

        Raises:
            TableReadError: If an endpoint is not an integer after all.
        """
        import pyarrow as pa

        assert self.reader is not None
        known, *_ = comparable(self.ids, pa.array([0]), pa.array([0 if integers else "a"]))
        if known.type != self.ids.type:
            check_ids(known, "id")
        find = finder(known)
        joined, rows = 0, 0
        example: tuple[Any, Any] = None, None
        kind = pa.int64() if integers else pa.string()
        for batch in self.reader.batches(self.endpoints, kind, multiline=False):
            one, other = (blank_to_null(column) for column in batch.columns)
            source, target = find(one), find(other)
            joined += int(((source >= 0) & (target >= 0)).sum())
            if not rows and len(source):
                example = one[0].as_py(), other[0].as_py()
            rows += len(source)
            yield source, target
        if not rows:
            raise InputError("edges", "the table has a header and no rows", "give edges")
        if not joined:
            raise InputError("edges", _no_match(rows, example, known))


def edge_positions(
    edges: Table,
    ids: Any,
    source: str | None,
    target: str | None,
    report: LoadReport,
    *,
    isolated: bool = False,
) -> Endpoints:
    """Endpoints of each edge row as positions among the ids; −1 where an id is unknown.

    A table that joins no two ids is refused, or noted if all nodes may be ``isolated``.
    """
    one, other = EdgeTable(edges, ids, source, target, report).read()
    if not len(one):
        if not isolated:
            raise InputError("edges", "the table has a header and no rows", "give edges")
        report.notes.append("the edge table has no rows: no node has an edge")
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    known, one, other = comparable(ids, one, other)
    if known.type != ids.type:
        check_ids(known, "id")
    found = positions(known, one, other)
    if not ((found[0] >= 0) & (found[1] >= 0)).any():
        message = _no_match(len(one), (one[0].as_py(), other[0].as_py()), known)
        if not isolated:
            raise InputError("edges", message)
        report.notes.append(f"no node has an edge: of the edge table {message}")
    return found[0], found[1]


def _no_match(rows: int, example: tuple[Any, Any], known: Any) -> str:
    return (
        f"none of the {rows:,} rows joins two ids of the node table; an edge has"
        f" {example[0]!r} and {example[1]!r}, a node has {known[0].as_py()!r}"
    )


def _is_edge(first: Sequence[str], second: Sequence[str], ids: Any) -> bool:
    """Whether a first line is an edge and not a header: it holds ids, or nothing but numbers."""
    import pyarrow as pa

    if len(first) < 2:
        return False
    line = [pa.array([cell.strip()]) for cell in first[:2]]
    known, *ends = comparable(ids, *line)
    if all((row >= 0).all() for row in positions(known, *ends)):
        return True
    try:
        return bool([float(cell) for cell in (*first, *second)])
    except ValueError:
        return False

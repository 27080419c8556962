"""Distinct undirected edges in DuckDB, which groups and sorts more rows than memory holds."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
import pyarrow as pa

from fairmp.datasets.load_report import LoadReport

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

# Memory of DuckDB, in bytes; what is beyond it goes to files in the scratch folder. Sorting needs a
# share of all rows in memory: 5 bytes per row were enough, and 1 was not.
MIN_MEMORY, MEMORY_PER_ROW = 10**9, 10
MAX_THREADS = 4  # threads share the memory, and each has buffers of its own
BATCH_ROWS = 1 << 20


class EdgeStore:
    """Edges between nodes that are numbered from 0, with temporary files in ``scratch``.

    Rows are added, then :meth:`find_edges` makes them distinct undirected edges.
    """

    def __init__(self, scratch: Path, num_nodes: int) -> None:
        import duckdb

        self.num_nodes = num_nodes
        self.dtype = np.dtype(np.int32 if num_nodes < 2**31 else np.int64)  # of node numbers
        self._type = "INTEGER" if self.dtype == np.int32 else "BIGINT"
        self._scratch = scratch
        self._out_of_space = duckdb.IOException, duckdb.OutOfMemoryException
        self._connection = duckdb.connect(
            ":memory:",
            config={
                "memory_limit": f"{MIN_MEMORY}B",
                "threads": min(os.cpu_count() or 1, MAX_THREADS),
                "temp_directory": str(scratch / "duckdb"),
                "preserve_insertion_order": False,
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
            },
        )
        self._create("edge_row", "source", "target")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def add(self, source: np.ndarray, target: np.ndarray) -> None:
        """Add rows of an edge table, without self-loops."""
        self._insert("edge_row", source=source, target=target)

    def clear(self) -> None:
        """Remove all rows that were added."""
        self._execute("TRUNCATE edge_row")

    def find_edges(self, report: LoadReport) -> None:
        """Merge rows that join the same two nodes to one edge, and count both."""
        (rows,) = self._counts("SELECT count(*) FROM edge_row")
        self._execute(f"SET memory_limit = '{max(MIN_MEMORY, MEMORY_PER_ROW * rows)}B'")
        self._execute(
            """
            CREATE TABLE edge AS
            SELECT
                least(source, target) AS low,
                greatest(source, target) AS high,
                bool_or(source < target) AS forward,
                bool_or(source > target) AS backward
            FROM edge_row
            GROUP BY low, high
            """
        )
        self._execute("DROP TABLE edge_row")
        report.edges, directed, report.reciprocal = self._counts(
            """
            SELECT
                count(*),
                count(*) FILTER (forward) + count(*) FILTER (backward),
                count(*) FILTER (forward AND backward)
            FROM edge
            """
        )
        report.repeated = rows - directed

    def edges(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield batches of edges, each of them once, in any order."""
        for batch in self._batches("SELECT low, high FROM edge"):
            yield batch["low"].to_numpy(), batch["high"].to_numpy()

    def renumber(self, number: np.ndarray) -> None:
        """Give each node a new number (n)."""
        self._create("renumbered", "low", "high")
        for low, high in self.edges():
            self._insert("renumbered", low=number[low], high=number[high])
        self._execute("DROP TABLE edge")
        self._execute("ALTER TABLE renumbered RENAME TO edge")

    def columns(self, *, loops: bool) -> Iterator[np.ndarray]:
        """Yield the columns of A, or with loops of A+I, row by row in ascending order."""
        entries = ["SELECT low AS row, high AS col FROM edge", "SELECT high, low FROM edge"]
        if loops:
            node = f"range::{self._type}"
            entries.append(f"SELECT {node}, {node} FROM range({self.num_nodes})")
        query = f"SELECT col FROM ({' UNION ALL '.join(entries)}) ORDER BY row, col"
        for batch in self._batches(query):
            yield batch["col"].to_numpy()

    def _create(self, table: str, *columns: str) -> None:
        self._execute(f"CREATE TABLE {table} ({', '.join(f'{c} {self._type}' for c in columns)})")

    def _insert(self, table: str, **columns: np.ndarray) -> None:
        rows = pa.table({name: values.astype(self.dtype) for name, values in columns.items()})
        with self._cursor() as cursor:
            cursor.register("rows", rows)
            cursor.execute(f"INSERT INTO {table} SELECT {', '.join(columns)} FROM rows").complete()

    def _execute(self, statement: str) -> None:
        with self._cursor() as cursor:
            cursor.execute(statement).complete()

    def _counts(self, query: str) -> tuple[int, ...]:
        with self._cursor() as cursor:
            (row,) = cursor.execute(query).fetchall()
            return row

    def _batches(self, query: str) -> Iterator[pa.RecordBatch]:
        with self._cursor() as cursor:
            yield from cursor.sql(query).to_arrow_reader(BATCH_ROWS)

    @contextmanager
    def _cursor(self) -> Iterator[DuckDBPyConnection]:
        """Yield a cursor; raise what Python raises when a disk is full, or at Ctrl-C."""
        try:
            with self._connection.cursor() as cursor:
                yield cursor
        except (*self._out_of_space, OSError):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._scratch)) from None
        except RuntimeError:  # DuckDB's "Query interrupted"
            raise KeyboardInterrupt from None

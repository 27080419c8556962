"""A node table larger than memory: read once in batches, encoded column by column."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from fairmp.datasets.columns import Column, LoadReport
from fairmp.datasets.edges import node_ids
from fairmp.datasets.encoding import Encoding, Roles, fit_encoding
from fairmp.datasets.readers import TableReader
from fairmp.distributed.shard_format import write_array
from fairmp.errors import InputError

FEATURE_ROWS = 1 << 18  # rows of features computed at a time


class Nodes(NamedTuple):
    """Classes and groups (n, int32, −1 unknown), and the features of any rows.

    Without ``features``, log(1 + degree) is the only feature.
    """

    y: np.ndarray
    sens: np.ndarray
    features: Callable[[np.ndarray], np.ndarray] | None


def read_nodes(
    path: Path, roles: Roles, folder: Path, report: LoadReport
) -> tuple[Nodes, Any, Encoding]:
    """Read and encode a node table, with one column in memory at a time; features stay on disk.

    Every column becomes the numbers that :func:`fairmp.datasets.from_tables` makes of it. Returns
    the nodes, their ids (a pyarrow array), and the encoding.
    """
    table = _ColumnStore(path, roles, folder, report)
    files: list[Path] = []

    def save(column: Column, codes: np.ndarray) -> None:
        files.append(folder / f"features-{len(files)}.npy")
        shape = len(codes), len(column.feature_names)
        # In blocks of rows: twenty categories take twenty times the room of their column.
        starts = range(0, len(codes), FEATURE_ROWS)
        blocks = (column.expand(codes[start : start + FEATURE_ROWS]) for start in starts)
        write_array(files[-1], blocks, shape, np.float32)

    def features(rows: np.ndarray) -> np.ndarray:
        blocks = [np.take(np.load(file, mmap_mode="r"), rows, axis=0) for file in files]
        return np.concatenate(blocks, axis=1)

    encoding, y, sens = fit_encoding(table.names, table.load, roles, report, save)
    report.nodes = len(y)
    ids = node_ids(y if roles.id is None else {roles.id: table.load(roles.id)}, roles.id)
    nodes = Nodes(y.astype(np.int32), sens.astype(np.int32), features if files else None)
    return nodes, ids, encoding


class _ColumnStore:
    """The columns of a table file, loaded one at a time; text is copied to an Arrow file first."""

    def __init__(self, path: Path, roles: Roles, folder: Path, report: LoadReport) -> None:
        self.reader, self.copy = TableReader(path, "nodes", notes=report.notes), folder / "nodes"
        self.reader.find_header((roles.id, roles.label, *roles.groups))
        self.names, self.id = self.reader.unique_names(), roles.id
        used = {roles.id, roles.label, *roles.groups, *roles.feature_columns(self.names)}
        wanted = [name for name in self.names if name in used]
        if self.reader.dialect is None:
            return
        schema, with_comma = pa.schema([(name, pa.string()) for name in wanted]), set()
        with pa.OSFile(str(self.copy), "wb") as file, pa.ipc.new_file(file, schema) as writer:
            for batch in self.reader.batches(wanted):
                writer.write(pa.record_batch(batch.columns, schema=schema))
                for name, cells in zip(wanted, batch.columns, strict=True):
                    if name not in with_comma and pc.any(pc.match_substring(cells, ",")).as_py():
                        with_comma.add(name)
        names = [name for name in wanted if name in with_comma and name != self.id]
        self.reader.settle_commas((name, self._cells(name)) for name in names)
        if "decimal" in self.reader.commas.values():
            others = [name for name in wanted if name not in names and name != self.id]
            self.reader.refuse_points((name, self._cells(name)) for name in others)

    def _cells(self, name: str) -> Any:
        if self.reader.dialect is None:
            column = self.reader.table([name]).column(0)
        else:
            with pa.memory_map(str(self.copy)) as file:
                column = pa.ipc.open_file(file).read_all().column(name)
        return self.reader.strip(name, column, missing=name != self.id)

    def load(self, name: str) -> pd.Series:
        """Return a column, with the types that :meth:`TableReader.frame` gives it."""
        cells = self._cells(name)
        if not len(cells):
            raise InputError("nodes", "the table has a header and no rows", "give one row per node")
        cells = cells if name == self.id else self.reader.infer(name, cells)
        return pa.table({name: cells}).to_pandas(date_as_object=False)[name]

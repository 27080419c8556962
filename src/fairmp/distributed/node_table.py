"""Node tables larger than memory: one column at a time becomes features, classes and groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from fairmp.datasets.columns import Column
from fairmp.datasets.edges import node_ids
from fairmp.datasets.encoding import Encoding, Roles, fit_encoding
from fairmp.datasets.load_report import LoadReport
from fairmp.datasets.readers import TableReader
from fairmp.distributed.shard_format import write_array
from fairmp.errors import InputError
from fairmp.frames import arrow_to_pandas

FEATURE_ROWS = 1 << 16  # rows of features computed or copied at a time


@dataclass(frozen=True)
class NodeTable:
    """An encoded node table; its features are on disk."""

    ids: pa.Array
    y: np.ndarray  # class of each node (n, int32), −1 unknown
    sens: np.ndarray  # group of each node (n, int32), −1 unknown
    encoding: Encoding
    feature_files: tuple[Path, ...]  # one per feature column, none if the degree is the feature

    def features(self, rows: np.ndarray) -> np.ndarray:
        """Return the features of some nodes."""
        files = (np.load(file, mmap_mode="r") for file in self.feature_files)
        return np.concatenate([np.take(values, rows, axis=0) for values in files], axis=1)


def read_nodes(path: Path, roles: Roles, scratch: Path, report: LoadReport) -> NodeTable:
    """Read and encode a node table, with one column in memory at a time."""
    columns = ColumnStore(path, roles, scratch, report)
    files: list[Path] = []

    def save(column: Column, codes: np.ndarray) -> None:
        files.append(scratch / f"features-{len(files)}.npy")
        # In blocks of rows: twenty categories take twenty times the room of their column.
        starts = range(0, len(codes), FEATURE_ROWS)
        blocks = (column.expand(codes[start : start + FEATURE_ROWS]) for start in starts)
        write_array(files[-1], blocks, (len(codes), len(column.feature_names)), np.float32)

    encoding, y, sens = fit_encoding(columns.names, columns.load, roles, report, save)
    report.nodes = len(y)
    id_column = y if roles.id is None else {roles.id: columns.load(roles.id)}
    ids = node_ids(id_column, roles.id, report)
    return NodeTable(ids, y.astype(np.int32), sens.astype(np.int32), encoding, tuple(files))


class ColumnStore:
    """The columns of a table file, loaded one at a time.

    A text file is read once, front to back, and its columns are copied to an Arrow file.
    """

    def __init__(self, path: Path, roles: Roles, scratch: Path, report: LoadReport) -> None:
        self.reader = TableReader(path, "nodes", notes=report.notes)
        self.names = self.reader.find_header((roles.id, roles.label, *roles.groups))
        self._id, self._copy = roles.id, scratch / "nodes"
        self._exact = (roles.label, *roles.groups)
        used = {roles.id, roles.label, *roles.groups, *roles.feature_columns(self.names)}
        if self.reader.dialect is not None:
            self._copy_columns([name for name in self.names if name in used])

    def load(self, name: str) -> pd.Series:
        """Return a column, with the types that :meth:`TableReader.frame` gives it."""
        cells = self._cells(name)
        if not len(cells):
            raise InputError("nodes", "the table has a header and no rows", "give one row per node")
        if name != self._id:
            cells = self.reader.infer(name, cells, exact=name in self._exact)
        return arrow_to_pandas(pa.table({name: cells}))[name]

    def _copy_columns(self, names: Sequence[str]) -> None:
        schema = pa.schema([(name, pa.string()) for name in names])
        with pa.OSFile(str(self._copy), "wb") as file, pa.ipc.new_file(file, schema) as writer:
            for batch in self.reader.batches(names):
                writer.write(pa.record_batch(batch.columns, schema=schema))
        self.reader.settle_commas([name for name in names if name != self._id], self._cells)

    def _cells(self, name: str) -> Any:
        if self.reader.dialect is None:
            column = self.reader.table([name]).column(0)
        else:
            with pa.memory_map(str(self._copy)) as file:
                column = pa.ipc.open_file(file).read_all().column(name)
        return self.reader.strip(name, column, missing=name != self._id)

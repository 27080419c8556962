"""A node table larger than memory: read once in batches, encoded column by column."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fairmp.datasets.edges import LoadReport, check_ids, id_array
from fairmp.datasets.encoding import Encoding, Roles, fit_encoding
from fairmp.datasets.features import Column
from fairmp.datasets.readers import TableReader
from fairmp.distributed.shard_format import ArrayWriter
from fairmp.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

FEATURE_ROWS = 1 << 18  # rows of features computed at a time


@dataclass(frozen=True)
class EncodedNodes:
    """An encoded node table: labels and groups in memory, features on disk, one file each.

    Attributes:
        ids: Node ids, a pyarrow array.
        y: Classes (n), −1 unknown.
        sens: Groups (n), −1 unknown.
        encoding: How columns became numbers.
        folder: Where the features are.
    """

    ids: Any
    y: np.ndarray
    sens: np.ndarray
    encoding: Encoding
    folder: Path

    def features(self, rows: np.ndarray) -> np.ndarray:
        """Return the features of some nodes (len(rows)×d)."""
        count = len(self.encoding.feature_names)
        result = np.empty((len(rows), count), dtype=np.float32)
        for k in range(count):
            result[:, k] = np.load(self.folder / f"feature-{k}.npy", mmap_mode="r")[rows]
        return result

    def set_degree(self, degree: np.ndarray) -> None:
        """Make the degree the only feature, if there is no other."""
        if self.encoding.degree:
            np.save(self.folder / "feature-0.npy", np.log1p(degree).astype(np.float32))


def read_nodes(path: Path, roles: Roles, folder: Path, report: LoadReport) -> EncodedNodes:
    """Read and encode a node table, with one column in memory at a time.

    Every column becomes the numbers that :func:`fairmp.datasets.from_tables` makes of it.

    Args:
        path: CSV, TSV (gzipped or not) or Parquet.
        roles: What each column is.
        folder: Where the files of the columns go.
        report: Where notes go.
    """
    import pyarrow as pa

    table = _ColumnStore(path, roles, folder, report)
    made = 0

    def save(column: Column, codes: np.ndarray) -> None:
        nonlocal made
        count = len(column.feature_names)
        with ExitStack() as stack:
            files = [
                stack.enter_context(
                    ArrayWriter(folder / f"feature-{made + k}.npy", (len(codes),), np.float32)
                )
                for k in range(count)
            ]
            # In blocks of rows: twenty categories take twenty times the room of their column.
            for start in range(0, len(codes), FEATURE_ROWS):
                x = column.expand(codes[start : start + FEATURE_ROWS])
                for k, file in enumerate(files):
                    file.append(x[:, k])
        made += count

    encoding, y, sens = fit_encoding(table.names, table.load, roles, report, save)
    report.nodes = len(y)
    if roles.id is None:
        ids = pa.array(np.arange(len(y)))
    else:
        ids = id_array(table.load(roles.id))
        check_ids(ids, f"id: column {roles.id!r}")
    return EncodedNodes(ids, y.astype(np.int32), sens.astype(np.int32), encoding, folder)


class _ColumnStore:
    """The columns of a table file, loaded one at a time; those of text are split into files."""

    def __init__(self, path: Path, roles: Roles, folder: Path, report: LoadReport) -> None:
        self.reader = TableReader(path, "nodes", notes=report.notes)
        self.names, self.folder, self.id = self.reader.unique_names(), folder, roles.id
        features = roles.feature_columns(self.names)
        used = {roles.id, roles.label, *roles.groups, *features}
        self.wanted = [name for name in self.names if name in used]
        if self.reader.dialect is not None:
            self._split()

    def _split(self) -> None:
        """Write each column to a file of its own, and settle what commas in numbers mean."""
        import pyarrow as pa
        import pyarrow.compute as pc

        with_comma = dict.fromkeys(self.wanted, False)
        with ExitStack() as stack:
            writers = {}
            for k, name in enumerate(self.wanted):
                schema = pa.schema([(name, pa.string())])
                sink = stack.enter_context(pa.OSFile(str(self.folder / f"column-{k}.arrow"), "wb"))
                writers[name] = stack.enter_context(pa.ipc.new_file(sink, schema))
            for batch in self.reader.batches(self.wanted):
                for name, cells in zip(self.wanted, batch.columns, strict=True):
                    writers[name].write(pa.record_batch([cells], names=[name]))
                    if not with_comma[name]:
                        with_comma[name] = bool(pc.any(pc.match_substring(cells, ",")).as_py())
        names = [name for name, found in with_comma.items() if found and name != self.id]
        self.reader.settle_commas((name, self._cells(name)) for name in names)

    def _cells(self, name: str) -> Any:
        import pyarrow as pa

        if self.reader.dialect is None:
            column = self.reader.table([name]).column(0)
        else:
            path = self.folder / f"column-{self.wanted.index(name)}.arrow"
            with pa.memory_map(str(path)) as file:
                column = pa.ipc.open_file(file).read_all().column(0)
        return self.reader.strip(name, column, missing=name != self.id)

    def load(self, name: str) -> pd.Series:
        """Return a column, with the types that :meth:`TableReader.frame` gives it."""
        import pyarrow as pa

        cells = self._cells(name)
        if not len(cells):
            raise InputError("nodes", "the table has a header and no rows", "give one row per node")
        cells = cells if name == self.id else self.reader.infer(name, cells)
        series: pd.Series = pa.table({name: cells}).to_pandas(date_as_object=False)[name]
        return series

"""An edge table larger than memory: read once, a block of node numbers at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fairmp.datasets.edges import LoadReport, check_ids, comparable
from fairmp.datasets.readers import Layout, kind_of, layout_of, separator_note
from fairmp.datasets.table_files import _is_edge, require
from fairmp.distributed.nodes import Unread, text_batches
from fairmp.errors import InputError

DENSE = 64
Ends = tuple[np.ndarray, np.ndarray]
Find = Callable[[Any], np.ndarray]


class EdgeTable:
    """The edges of a file, as pairs of node numbers; −1 where an id is not in the node table.

    Args:
        path: CSV, TSV (gzipped or not) or Parquet, a row an edge.
        ids: the nodes' ids, a pyarrow array; ``None`` where row numbers are ids.
        nodes: their number.
        source: the column with one end; by default the first.
        target: the column with the other end; by default the second.
        report: where notes go.
    """

    def __init__(
        self,
        path: Path,
        ids: Any,
        nodes: int,
        source: str | None,
        target: str | None,
        report: LoadReport,
    ) -> None:
        import pyarrow as pa

        self.path, self.nodes, self.named = path, nodes, ids is not None
        self.ids = pa.array(np.arange(nodes)) if ids is None else ids
        self.layout: Layout | None = None
        self.headless = False
        if kind_of(path, "edges") == "parquet":
            names = _parquet(path).schema_arrow.names
        else:
            self.layout = layout_of(path, "edges")
            note = separator_note(path, self.layout)
            if note:
                report.notes.append(note)
            names = list(self.layout.first)
            self.headless = (
                source is None
                and target is None
                and _is_edge(self.layout.first, self.layout.second, self.ids)
            )
            if self.headless:
                names = [f"column {k + 1}" for k in range(len(names))]
                report.notes.append(f"{path.name}: has no header line")
        self.names = names
        self.wanted = _wanted([name.strip() for name in names], source, target)
        rest = [name.strip() for name in names if name.strip() not in self.wanted]
        if rest:
            report.notes.append(f"edge columns not used: {', '.join(rest)}")

    def whole_numbers(self) -> bool:
        """Whether the ids are whole numbers, so that the ends can be read as such."""
        import pyarrow as pa

        known, *_ = comparable(self.ids, pa.array([0]), pa.array([0]))
        return bool(pa.types.is_integer(known.type))

    def blocks(self, *, whole: bool) -> Iterator[Ends]:
        """Read the table front to back.

        Args:
            whole: read ends as whole numbers, which is quicker than as text.

        Raises:
            Unread: If an end is no whole number after all.
        """
        import pyarrow as pa

        known, *_ = comparable(self.ids, pa.array([0]), pa.array([0 if whole else "a"]))
        if self.named:
            check_ids(known, "id")
        find = _finder(known)
        joined, rows = 0, 0
        example: tuple[Any, Any] | None = None
        for one, other in self._columns(pa.int64() if whole else pa.string()):
            source, target = find(one), find(other)
            joined += int(((source >= 0) & (target >= 0)).sum())
            if not rows and len(source):
                example = one[0].as_py(), other[0].as_py()
            rows += len(source)
            yield source, target
        if not rows:
            raise InputError("edges", "the table has a header and no rows", "give one row an edge")
        if not joined:
            assert example is not None
            raise InputError(
                "edges",
                f"none of the {rows:,} rows joins two ids of the node table",
                f"an edge has {example[0]!r} and {example[1]!r}, a node has {known[0].as_py()!r}",
            )

    def _columns(self, kind: Any) -> Iterator[tuple[Any, Any]]:
        import pyarrow as pa
        import pyarrow.compute as pc

        if self.layout is None:
            file = _parquet(self.path)
            for batch in file.iter_batches(batch_size=1 << 21, columns=list(self.wanted)):
                try:
                    one, other = (batch.column(name).cast(kind) for name in self.wanted)
                except pa.ArrowInvalid as error:
                    raise Unread.parse(f"edges: cannot read {self.path.name} ({error})") from None
                yield one, other
            return
        stored = {name.strip(): name for name in self.names}
        types = {stored[name]: kind for name in self.wanted}
        for batch in text_batches(
            self.path,
            "edges",
            self.layout,
            names=self.names if self.headless else None,
            types=types,
        ):
            ends = [batch.column(stored[name]) for name in self.wanted]
            if pa.types.is_string(kind):
                ends = [pc.utf8_trim_whitespace(end) for end in ends]
            yield ends[0], ends[1]


def _wanted(names: list[str], source: str | None, target: str | None) -> tuple[str, str]:
    if len(names) < 2:
        raise InputError(
            "edges", f"the table has one column, {names[0]!r}", "give two, the ends of each edge"
        )
    wanted = source or names[0], target or names[1]
    for argument, name in zip(("source", "target"), wanted, strict=True):
        require(argument, name, names, "the edge table")
    if wanted[0] == wanted[1]:
        raise InputError("source", f"{wanted[0]!r} is the target too", "name two columns")
    return wanted


def _parquet(path: Path) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    try:
        return parquet.ParquetFile(path)
    except (pa.ArrowException, OSError):
        raise InputError(
            "edges", f"cannot read the Parquet file {path.name}", "it is broken or cut short"
        ) from None


def _finder(ids: Any) -> Find:
    """Return what finds each value of a column among the ids: its row, or −1."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_integer(ids.type):
        return lambda column: pc.fill_null(
            pc.index_in(pc.cast(column, ids.type), value_set=ids), -1
        ).to_numpy()
    numbers = ids.to_numpy()
    low, high = int(numbers.min()), int(numbers.max())
    if high - low >= DENSE * len(numbers):
        import pandas as pd

        index = pd.Index(numbers)
        return lambda column: index.get_indexer(_filled(column, int(low) - 1))
    kind = np.int32 if len(numbers) < 2**31 else np.int64
    # One place more on either side, for what lies outside.
    table = np.full(high - low + 3, -1, dtype=kind)
    table[numbers - (low - 1)] = np.arange(len(numbers), dtype=kind)
    return lambda column: table[np.clip(_filled(column, low - 1), low - 1, high + 1) - (low - 1)]


def _filled(column: Any, value: int) -> np.ndarray:
    import pyarrow.compute as pc

    filled = pc.fill_null(column, value) if column.null_count else column
    numbers: np.ndarray = filled.to_numpy()
    return numbers

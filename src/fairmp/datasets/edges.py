"""Node ids, and edge tables: from ids to undirected edges between node numbers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import scipy.sparse as sp

from fairmp.datasets.dialects import Dialect, is_numeric
from fairmp.datasets.load_report import LoadReport
from fairmp.datasets.numerals import is_text
from fairmp.datasets.readers import TableReader
from fairmp.datasets.values import CHECK_SEPARATOR, require_column
from fairmp.errors import InputError, plural

MAX_IDS_PER_NODE = 64  # range of integer ids, per node, up to which rows are looked up in an array
_INTEGER = r"^(0|-?[1-9][0-9]*)$"
_DECIMAL = r"^(0|-?[1-9][0-9]*)(\.[0-9]+(e[+-]?[0-9]+)?)?$"


def id_array(series: Any) -> Any:
    """A column of ids as a pyarrow array, text if it mixes types; blank text is missing."""
    try:
        array = pa.array(series, from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        array = pa.array(series.astype(str).where(series.notna(), None), from_pandas=True)
    return blank_to_null(array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array)


def node_ids(table: Any, id: str | None) -> Any:
    """The ids of a node table as a pyarrow array; row numbers without a column."""
    if id is None:
        return pa.array(np.arange(len(table)))
    ids = id_array(table[id])
    check_ids(ids, "id")
    return ids


def blank_to_null(ids: Any) -> Any:
    """Strip ids that are text, and treat blank ones as missing."""
    if not is_text(ids.type):
        return ids
    ids = pc.utf8_trim_whitespace(ids)
    return pc.if_else(pc.equal(ids, ""), pa.scalar(None, ids.type), ids)


def check_ids(ids: Any, argument: str) -> None:
    """Refuse node ids that are missing or repeated."""
    if ids.null_count:
        rows = plural(ids.null_count, "row")
        raise InputError(argument, f"{rows} without an id", "give every node one, or drop them")
    counts = pc.value_counts(ids)
    repeated = counts.filter(pc.greater(counts.field("counts"), 1))
    if len(repeated):
        value = f"{plural(len(repeated), 'id')} given more than once"
        example = repeated[0]["values"].as_py()
        raise InputError(argument, f"{value} (such as {example!r})", "give every node one row")


def positions(ids: Any, column: Any) -> np.ndarray:
    """Find each value of a column among the ids: its row, or −1 if it is absent."""
    ids = ids.combine_chunks() if isinstance(ids, pa.ChunkedArray) else ids
    rows = pc.index_in(pc.cast(column, ids.type), value_set=ids)
    return pc.fill_null(rows, -1).to_numpy()


def position_finder(ids: Any) -> Callable[[Any], np.ndarray]:
    """Return :func:`positions` for many columns of the ids' type.

    Integers are found in an index that is built once: an array, where they are close together.
    """
    if not pa.types.is_integer(ids.type):
        return partial(positions, ids)
    numbers = ids.to_numpy()
    low, high = int(numbers.min()), int(numbers.max())
    if high - low < MAX_IDS_PER_NODE * len(numbers):
        rows = np.full(high - low + 1, -1, dtype=np.int32 if len(numbers) < 2**31 else np.int64)
        rows[numbers - low] = np.arange(len(numbers), dtype=rows.dtype)
    else:
        index = pd.Index(numbers)
        rows = None

    def find(column: Any) -> np.ndarray:
        if column.null_count:
            is_valid = column.is_valid().to_numpy(zero_copy_only=False)
            return np.where(is_valid, find(pc.fill_null(column, low)), -1)
        values = column.to_numpy()
        if rows is None:
            return index.get_indexer(values)
        inside = (values >= low) & (values <= high)
        if inside.all():
            return rows[values - low]
        return np.where(inside, rows[np.where(inside, values - low, 0)], -1)

    return find


def comparable(*columns: Any) -> list[Any]:
    """Bring columns of ids of any type to one: integers if all of them are, otherwise text."""
    plain = [
        pc.cast(column, column.type.value_type) if pa.types.is_dictionary(column.type) else column
        for column in columns
    ]
    integers = [_as_integers(column) for column in plain]
    if all(column is not None for column in integers):
        return integers
    return [
        pc.cast(column if number is None or is_text(column.type) else number, pa.large_string())
        for column, number in zip(plain, integers, strict=True)
    ]


def _as_integers(column: Any) -> Any | None:
    """Text counts as integers only in canonical form, so that ``007`` matches only ``007``."""
    try:
        # A safe cast: it fails on 1.5, infinities and floats too large to be exact.
        if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
            return pc.cast(column, pa.int64())
        if not is_text(column.type):
            return None
        if pc.all(pc.match_substring_regex(column, _INTEGER)).as_py() is not False:
            return pc.cast(column, pa.int64())
        if pc.all(pc.match_substring_regex(column, _DECIMAL)).as_py():
            return pc.cast(pc.cast(column, pa.float64()), pa.int64())
    except pa.ArrowInvalid:
        pass
    return None


Table = str | os.PathLike[str] | pd.DataFrame

CHECK_IDS = "check {id}, the column with the node ids; without one, ids are row numbers"


class Endpoints(NamedTuple):
    """The node numbers of the two ends of each edge row, −1 where an id is unknown."""

    source: np.ndarray
    target: np.ndarray


def check_frame(table: Any, argument: str) -> pd.DataFrame:
    """Return a DataFrame with text as column names, or refuse what is none."""
    if not isinstance(table, pd.DataFrame):
        value = f"expected a table, got {type(table).__name__}"
        raise InputError(argument, value, "give a path or a pandas DataFrame")
    return table.rename(columns=str)


class EdgeTable:
    """The source and target columns (by default the first two) of an edge table."""

    def __init__(
        self, edges: Table, ids: Any, source: str | None, target: str | None, report: LoadReport
    ) -> None:
        self.ids = ids
        self.reader: TableReader | None = None
        if isinstance(edges, str | os.PathLike):
            self.reader = TableReader(Path(edges), "edges", notes=report.notes)
            named = source is not None or target is not None
            if self.reader.dialect and not named and _starts_with_edge(self.reader.dialect, ids):
                self.reader.drop_header()
            columns = self.reader.names
        else:
            self.frame = check_frame(edges, "edges")
            columns = list(self.frame.columns)
        if len(columns) < 2:
            value = f"the table has one column, {columns[0]!r}"
            raise InputError("edges", value, f"give a source and a target; {CHECK_SEPARATOR}")
        self.endpoints = (source or columns[0], target or columns[1])
        for argument, column in zip(("source", "target"), self.endpoints, strict=True):
            require_column(argument, column, columns, "the edge table")
        if self.endpoints[0] == self.endpoints[1]:
            value = f"{self.endpoints[0]!r} is the target too"
            raise InputError("source", value, "name two columns")
        unused = [column for column in columns if column not in self.endpoints]
        if unused:
            report.notes.append(f"edge columns not used: {', '.join(unused)}")

    def read(self) -> list[Any]:
        """Return the endpoints of all rows, as ids."""
        if self.reader is None:
            return [id_array(self.frame[name]) for name in self.endpoints]
        table = self.reader.table(self.endpoints, text=self.endpoints)
        return [blank_to_null(column).combine_chunks() for column in table.columns]

    def batches(self, *, integers: bool) -> Iterator[Endpoints]:
        """Read a file front to back, as text or, faster, integers."""
        assert self.reader is not None
        ids = _check_again(comparable(self.ids, pa.array([0 if integers else "a"]))[0], self.ids)
        find = position_finder(ids)
        matched, rows = False, 0
        example: list[Any] = []
        type = pa.int64() if integers else pa.string()
        for batch in self.reader.batches(self.endpoints, type, multiline=False):
            columns = [blank_to_null(column) for column in batch.columns]
            ends = Endpoints(*map(find, columns))
            matched = matched or _any_match(ends)
            rows += len(ends.source)
            example = example or [column[0].as_py() for column in columns if len(column)]
            yield ends
        if not matched:
            raise InputError("edges", _describe_mismatch(example, ids, rows), CHECK_IDS)


def read_edges(
    edges: Table,
    ids: Any,
    source: str | None,
    target: str | None,
    report: LoadReport,
    *,
    isolated: bool = False,
) -> np.ndarray:
    """Read an edge table as ``edge_index`` among the ids; all nodes may be ``isolated``."""
    node_ids, *columns = comparable(ids, *EdgeTable(edges, ids, source, target, report).read())
    _check_again(node_ids, ids)
    ends = Endpoints(*(positions(node_ids, column) for column in columns))
    if not _any_match(ends):
        example = [column[0].as_py() for column in columns if len(column)]
        problem = _describe_mismatch(example, node_ids, len(ends.source))
        if not isolated:
            raise InputError("edges", problem, CHECK_IDS)
        report.notes.append(f"no node has an edge: {problem}")
    return undirected(ends.source, ends.target, len(ids), report)


def _any_match(ends: Endpoints) -> bool:
    return bool(((ends.source >= 0) & (ends.target >= 0)).any())


def _check_again(ids: Any, before: Any) -> Any:
    """Check ids that were brought to another type, in which they may be repeated."""
    if ids.type != before.type:
        check_ids(ids, "id")
    return ids


def _describe_mismatch(example: list[Any], ids: Any, rows: int) -> str:
    if not rows:
        return "the table has a header and no rows"
    ends = f"an edge has {example[0]!r} and {example[1]!r}, a node has {ids[0].as_py()!r}"
    return f"none of the {rows:,} rows joins two ids of the node table; {ends}"


def _starts_with_edge(dialect: Dialect, ids: Any) -> bool:
    """Whether a first line is an edge and not a header: it holds ids, or nothing but numbers."""
    first = dialect.sample[0]
    if len(first) < 2:
        return False
    node_ids, *ends = comparable(ids, *(pa.array([cell.strip()]) for cell in first[:2]))
    if all((positions(node_ids, end) >= 0).all() for end in ends):
        return True
    return is_numeric([cell for row in dialect.sample[:2] for cell in row])


def proper_rows(source: np.ndarray, target: np.ndarray, report: LoadReport) -> Endpoints:
    """Drop and count rows with an unknown id (−1), and self-loops."""
    known_mask = (source >= 0) & (target >= 0)
    loops = known_mask & (source == target)
    report.edge_rows += len(source)
    report.dangling += len(source) - int(known_mask.sum())
    report.self_loops += int(loops.sum())
    keep = known_mask & ~loops
    return Endpoints(source, target) if keep.all() else Endpoints(source[keep], target[keep])


def undirected(
    source: np.ndarray, target: np.ndarray, num_nodes: int, report: LoadReport
) -> np.ndarray:
    """Turn edge rows into ``edge_index``: both directions, sorted, no repeats, no self-loops."""
    ends = proper_rows(source, target, report)
    rows = sp.coo_array(
        (np.ones(len(ends.source), dtype=bool), (ends.source, ends.target)),
        shape=(num_nodes, num_nodes),
    )
    directed = rows.tocsr()  # adds up repeated rows
    both = (directed + directed.T).tocsr()
    both.sort_indices()
    edges = both.nnz // 2
    report.repeated += len(ends.source) - directed.nnz
    report.reciprocal += directed.nnz - edges
    report.edges += edges
    edge_index = np.empty((2, both.nnz), dtype=np.int64)
    edge_index[0] = np.repeat(np.arange(num_nodes), np.diff(both.indptr))
    edge_index[1] = both.indices
    return edge_index

"""Edge tables: from ids, in files or DataFrames, to undirected edges between node numbers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from fairmp.datasets.columns import SEPARATORS, LoadReport, counted, require_column
from fairmp.datasets.dialects import Dialect
from fairmp.datasets.readers import TableReader, is_text
from fairmp.errors import InputError

Table = str | os.PathLike[str] | pd.DataFrame
Endpoints = tuple[np.ndarray, np.ndarray]

CHECK_IDS = "check {id}, the column with the node ids; without one, ids are row numbers"
MAX_IDS_PER_NODE = 64  # range of integer ids, per node, up to which rows are looked up in an array


def check_frame(table: Any, argument: str) -> pd.DataFrame:
    """Return a DataFrame with text as column names, or refuse what is none."""
    if not isinstance(table, pd.DataFrame):
        kind = type(table).__name__
        raise InputError(argument, f"a {kind} is no table", "give a path or a pandas DataFrame")
    return table.rename(columns=str)


def id_array(series: Any) -> Any:
    """Make a pyarrow array of a column of ids, text if it mixes types; blank text is missing."""
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
        rows = counted(ids.null_count, "row")
        raise InputError(argument, f"{rows} without an id", "give every node one, or drop them")
    counts = pc.value_counts(ids)
    twice = counts.filter(pc.greater(counts.field("counts"), 1))
    if len(twice):
        value = f"{counted(len(twice), 'id')} given more than once"
        example = twice[0]["values"].as_py()
        raise InputError(argument, f"{value} (such as {example!r})", "give every node one row")


def positions(ids: Any, *columns: Any) -> list[np.ndarray]:
    """Find each value of each column among the ids: its row, or −1 if it is absent."""
    return list(map(finder(ids), columns))


def finder(ids: Any) -> Callable[[Any], np.ndarray]:
    """Return a function that finds the row of each value of a column among the ids, or −1."""
    ids = ids.combine_chunks() if isinstance(ids, pa.ChunkedArray) else ids
    if not pa.types.is_integer(ids.type):
        return lambda column: pc.fill_null(
            pc.index_in(pc.cast(column, ids.type), value_set=ids), -1
        ).to_numpy()
    numbers = ids.to_numpy()
    low, high = int(numbers.min()), int(numbers.max())
    absent = low - 1 if low > -(2**63) else high + 1
    dense = high - low < MAX_IDS_PER_NODE * len(numbers)
    kind = np.int32 if len(numbers) < 2**31 else np.int64
    if dense:
        table = np.full(high - low + 1, -1, dtype=kind)
        table[numbers - low] = np.arange(len(numbers), dtype=kind)
    else:
        index = pd.Index(numbers)

    def find(column: Any) -> np.ndarray:
        values = (pc.fill_null(column, absent) if column.null_count else column).to_numpy()
        if not dense:
            return index.get_indexer(values)
        inside = (values >= low) & (values <= high)
        if inside.all():
            return table[values - low]
        return np.where(inside, table[np.where(inside, values - low, 0)], -1)

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
        if pc.all(pc.match_substring_regex(column, r"^(0|-?[1-9][0-9]*)$")).as_py() is not False:
            return pc.cast(column, pa.int64())
        decimal = r"^(0|-?[1-9][0-9]*)(\.[0-9]+(e[+-]?[0-9]+)?)?$"
        if pc.all(pc.match_substring_regex(column, decimal)).as_py():
            return pc.cast(pc.cast(column, pa.float64()), pa.int64())
    except pa.ArrowInvalid:
        pass
    return None


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
            raise InputError("edges", value, f"give a source and a target; {SEPARATORS}")
        one, other = self.endpoints = source or columns[0], target or columns[1]
        require_column("source", one, columns, "the edge table")
        require_column("target", other, columns, "the edge table")
        if one == other:
            raise InputError("source", f"{one!r} is the target too", "name two columns")
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
        """Read a file front to back, as text or, faster, integers; −1 where an id is unknown."""
        assert self.reader is not None
        known = _checked(comparable(self.ids, pa.array([0 if integers else "a"]))[0], self.ids)
        find = finder(known)
        joined, rows = False, 0
        example: list[Any] = []
        kind = pa.int64() if integers else pa.string()
        for batch in self.reader.batches(self.endpoints, kind, multiline=False):
            ends = [blank_to_null(column) for column in batch.columns]
            source, target = map(find, ends)
            joined = joined or bool(((source >= 0) & (target >= 0)).any())
            rows += len(source)
            example = example or [column[0].as_py() for column in ends if len(column)]
            yield source, target
        if not joined:
            raise InputError("edges", _no_match(example, known, rows), CHECK_IDS)


def edge_positions(
    edges: Table,
    ids: Any,
    source: str | None,
    target: str | None,
    report: LoadReport,
    *,
    isolated: bool = False,
) -> Endpoints:
    """Endpoints of each edge row among the ids, −1 if unknown; all nodes may be ``isolated``."""
    known, *ends = comparable(ids, *EdgeTable(edges, ids, source, target, report).read())
    one, other = positions(_checked(known, ids), *ends)
    if not ((one >= 0) & (other >= 0)).any():
        example = [column[0].as_py() for column in ends if len(column)]
        problem = _no_match(example, known, len(one))
        if not isolated:
            raise InputError("edges", problem, CHECK_IDS)
        report.notes.append(f"no node has an edge: {problem}")
    return one, other


def _checked(known: Any, ids: Any) -> Any:
    """Check node ids that were brought to another type, in which they may be repeated."""
    if known.type != ids.type:
        check_ids(known, "id")
    return known


def _no_match(example: list[Any], known: Any, rows: int) -> str:
    if not rows:
        return "the table has a header and no rows"
    ends = f"an edge has {example[0]!r} and {example[1]!r}, a node has {known[0].as_py()!r}"
    return f"none of the {rows:,} rows joins two ids of the node table; {ends}"


def _starts_with_edge(dialect: Dialect, ids: Any) -> bool:
    """Whether a first line is an edge and not a header: it holds ids, or nothing but numbers."""
    first = dialect.sample[0]
    if len(first) < 2:
        return False
    known, *ends = comparable(ids, *(pa.array([cell.strip()]) for cell in first[:2]))
    if all((row >= 0).all() for row in positions(known, *ends)):
        return True
    try:
        return bool([float(cell) for row in dialect.sample[:2] for cell in row])
    except ValueError:
        return False


def undirected(
    source: np.ndarray, target: np.ndarray, num_nodes: int, report: LoadReport
) -> np.ndarray:
    """Turn edge rows into ``edge_index``: both directions, sorted, no repeats, no self-loops."""
    source, target = proper_rows(source, target, report)
    # One sortable integer per row: the pair in ascending order, and the direction as its last bit.
    # Shifts, because a division per edge takes longer than sorting, and in place, because
    # allocation does too.
    bits = max(num_nodes - 1, 1).bit_length()
    last = (1 << bits) - 1
    rows = np.minimum(source, target).astype(np.int64)
    rows <<= bits
    rows |= np.maximum(source, target)
    rows <<= 1
    rows |= source > target
    pairs = distinct_pairs(rows, report)
    both = np.concatenate([pairs, pairs & last])
    backward = both[len(pairs) :]
    backward <<= bits
    backward |= pairs >> bits
    both.sort()
    result = np.empty((2, len(both)), dtype=np.int64)
    np.right_shift(both, bits, out=result[0])
    np.bitwise_and(both, last, out=result[1])
    return result


def proper_rows(source: np.ndarray, target: np.ndarray, report: LoadReport) -> Endpoints:
    """Drop and count rows with an unknown id (−1), and self-loops."""
    known = (source >= 0) & (target >= 0)
    loops = known & (source == target)
    report.edge_rows += len(source)
    report.dangling += len(source) - int(known.sum())
    report.self_loops += int(loops.sum())
    keep = known & ~loops
    return (source, target) if keep.all() else (source[keep], target[keep])


def distinct_pairs(rows: np.ndarray, report: LoadReport) -> np.ndarray:
    """Sort rows in place, one integer each whose last bit is the direction; count repeats."""
    rows.sort()
    directed = _distinct(rows)
    report.repeated += len(rows) - len(directed)
    directed >>= 1
    pairs = _distinct(directed)
    report.reciprocal += len(directed) - len(pairs)
    report.edges += len(pairs)
    return pairs


def _distinct(ascending: np.ndarray) -> np.ndarray:
    """The distinct values of a sorted array; np.unique would sort it again."""
    first = np.ones(len(ascending), dtype=bool)
    np.not_equal(ascending[1:], ascending[:-1], out=first[1:])
    return ascending[first]

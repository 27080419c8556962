"""Node ids, undirected edge lists, and the report on what was loaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fairmp.errors import InputError

MAX_IDS_PER_NODE = 64
"""Range of integer ids, per node, up to which rows are looked up in an array."""


def counted(count: int, noun: str) -> str:
    """Write a count with its noun: "1 row", "1,200 rows"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


@dataclass
class LoadReport:
    """What a loader read, kept and dropped; ``data.report`` of every loaded graph.

    Attributes:
        nodes: Nodes of the graph.
        edge_rows: Rows of the edge table.
        dangling: Rows with an id that is not in the node table; dropped.
        self_loops: Rows that join a node to itself; dropped.
        repeated: Rows that repeat an earlier one, in the same direction; dropped.
        reciprocal: Edges given in both directions.
        edges: Undirected edges kept.
        unknown_labels: Nodes without a label (−1).
        unknown_groups: Nodes without a sensitive group (−1).
        missing: Number of missing values of each feature column that has some.
        notes: Everything else a reader should know, one sentence each.

    Example:
        >>> print(LoadReport(nodes=3, edge_rows=4, self_loops=1, edges=3, notes=["a note"]))
        3 nodes, 3 undirected edges from 4 edge rows
        1 self-loop dropped
        a note
    """

    nodes: int = 0
    edge_rows: int = 0
    dangling: int = 0
    self_loops: int = 0
    repeated: int = 0
    reciprocal: int = 0
    edges: int = 0
    unknown_labels: int = 0
    unknown_groups: int = 0
    missing: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Return the report as lines, without the counts that are 0."""
        counts = [
            (self.dangling, "dangling edge row", " dropped: an end is not in the node table"),
            (self.self_loops, "self-loop", " dropped"),
            (self.repeated, "repeated edge row", " dropped"),
            (self.reciprocal, "edge", " given in both directions"),
            (self.unknown_labels, "node", " without a label"),
            (self.unknown_groups, "node", " without a sensitive group"),
        ]
        head = (
            f"{counted(self.nodes, 'node')}, {counted(self.edges, 'undirected edge')}"
            f" from {counted(self.edge_rows, 'edge row')}"
        )
        lines = [f"{counted(n, noun)}{rest}" for n, noun, rest in counts if n]
        if self.missing:
            most = sorted(self.missing.items(), key=lambda item: -item[1])
            shown = ", ".join(f"{name} {count:,}" for name, count in most[:8])
            more = f" and {len(most) - 8} more columns" if len(most) > 8 else ""
            lines.append(f"missing values filled: {shown}{more}")
        return [head, *lines, *self.notes]

    def __str__(self) -> str:
        return "\n".join(self.lines())


def undirected(
    source: np.ndarray, target: np.ndarray, num_nodes: int, report: LoadReport
) -> np.ndarray:
    """Turn edge rows into ``edge_index``: both directions, sorted, no repeats, no self-loops.

    Args:
        source: Source node of each row, from 0; −1 where its id is unknown.
        target: Target node of each row.
        num_nodes: Number of nodes.
        report: Where dangling rows, self-loops, repeated and reciprocal edges are counted.

    Returns:
        An int64 array of shape (2, 2·edges).

    Example:
        >>> report = LoadReport()
        >>> rows = np.array([0, 1, 1, 2, 2]), np.array([1, 0, -1, 2, 1])
        >>> undirected(*rows, 3, report).tolist()
        [[0, 1, 1, 2], [1, 0, 2, 1]]
        >>> report.dangling, report.self_loops, report.repeated, report.reciprocal
        (1, 1, 0, 1)
    """
    report.edge_rows = len(source)
    known = (source >= 0) & (target >= 0)
    loops = known & (source == target)
    report.dangling, report.self_loops = int((~known).sum()), int(loops.sum())
    keep = known & ~loops
    if not keep.all():
        source, target = source[keep], target[keep]

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
    rows.sort()
    directed = distinct(rows)
    report.repeated = len(rows) - len(directed)
    directed >>= 1
    pairs = distinct(directed)
    report.reciprocal = len(directed) - len(pairs)
    report.edges = len(pairs)

    both = np.concatenate([pairs, pairs & last])
    backward = both[len(pairs) :]
    backward <<= bits
    backward |= pairs >> bits
    both.sort()
    result = np.empty((2, len(both)), dtype=np.int64)
    np.right_shift(both, bits, out=result[0])
    np.bitwise_and(both, last, out=result[1])
    return result


def distinct(ascending: np.ndarray) -> np.ndarray:
    """The distinct values of a sorted array; np.unique would sort it again."""
    first = np.ones(len(ascending), dtype=bool)
    np.not_equal(ascending[1:], ascending[:-1], out=first[1:])
    return ascending[first]


def positions(ids: Any, *columns: Any) -> list[np.ndarray]:
    """Find each value of each column among the ids: its row, or −1 if it is absent.

    Args:
        ids: The node ids, a pyarrow array without repeats.
        columns: Pyarrow arrays of the same type as ``ids``.
    """
    find = finder(ids)
    return [find(column) for column in columns]


def finder(ids: Any) -> Callable[[Any], np.ndarray]:
    """Return a function that finds the row of each value of a column among the ids, or −1.

    Integers in a small range are looked up in an array, everything else by hashing.
    """
    import pandas as pd
    import pyarrow as pa
    import pyarrow.compute as pc

    ids = ids.combine_chunks() if isinstance(ids, pa.ChunkedArray) else ids
    if not pa.types.is_integer(ids.type):
        return lambda column: pc.fill_null(
            pc.index_in(pc.cast(column, ids.type), value_set=ids), -1
        ).to_numpy()
    numbers = ids.to_numpy()
    low, high = int(numbers.min()), int(numbers.max())
    kind = np.int32 if len(numbers) < 2**31 else np.int64
    dense = high - low < MAX_IDS_PER_NODE * len(numbers)
    table = np.full(high - low + 1 if dense else 0, -1, dtype=kind)
    index = pd.Index([] if dense else numbers)
    if dense:
        table[numbers - low] = np.arange(len(numbers), dtype=kind)

    def find(column: Any) -> np.ndarray:
        values = (pc.fill_null(column, low) if column.null_count else column).to_numpy()
        if not dense:
            rows = index.get_indexer(values)
        else:
            inside = (values >= low) & (values <= high)
            if inside.all():
                rows = table[values - low]
            else:
                rows = np.where(inside, table[np.where(inside, values - low, 0)], -1)
        if column.null_count:
            rows = np.where(pc.is_null(column).to_numpy(zero_copy_only=False), -1, rows)
        return rows

    return find


def comparable(nodes: Any, source: Any, target: Any) -> tuple[Any, Any, Any]:
    """Bring ids of any type to one: integers if all three columns are, otherwise text.

    Text counts as integers only in canonical form, so that ``007`` stays text and matches only
    ``007``.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    columns = [
        pc.cast(column, column.type.value_type) if pa.types.is_dictionary(column.type) else column
        for column in (nodes, source, target)
    ]
    integers = [_as_integers(column) for column in columns]
    if all(column is not None for column in integers):
        return integers[0], integers[1], integers[2]
    text = [
        pc.cast(column if number is None or is_text(column.type) else number, pa.large_string())
        for column, number in zip(columns, integers, strict=True)
    ]
    return text[0], text[1], text[2]


def is_text(kind: Any) -> bool:
    """Whether a pyarrow type is text."""
    import pyarrow as pa

    checks = pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view
    return any(check(kind) for check in checks)


def _as_integers(column: Any) -> Any | None:
    import pyarrow as pa
    import pyarrow.compute as pc

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


def id_array(series: Any) -> Any:
    """Make a pyarrow array of a column of ids, text if it mixes types; blank text is missing."""
    import pyarrow as pa

    try:
        array = pa.array(series, from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        array = pa.array(series.astype(str).where(series.notna(), None), from_pandas=True)
    return blank_to_null(array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array)


def node_ids(table: Any, id: str | None) -> Any:
    """The ids of a node table as a pyarrow array; row numbers without a column."""
    import pyarrow as pa

    if id is None:
        return pa.array(np.arange(len(table)))
    ids = id_array(table[id])
    check_ids(ids, f"id: column {id!r}")
    return ids


def blank_to_null(ids: Any) -> Any:
    """Strip ids that are text, and treat blank ones as missing."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not (pa.types.is_string(ids.type) or pa.types.is_large_string(ids.type)):
        return ids
    ids = pc.utf8_trim_whitespace(ids)
    return pc.if_else(pc.equal(ids, ""), pa.scalar(None, ids.type), ids)


def check_ids(ids: Any, argument: str) -> None:
    """Refuse node ids that are missing or repeated.

    Raises:
        InputError: With an example of what is wrong.
    """
    import pyarrow.compute as pc

    if ids.null_count:
        raise InputError(
            argument,
            f"{counted(ids.null_count, 'row')} without an id",
            "give every node one, or drop them",
        )
    counts = pc.value_counts(ids)
    twice = counts.filter(pc.greater(counts.field("counts"), 1))
    if len(twice):
        example = twice[0]["values"].as_py()
        raise InputError(
            argument,
            f"{counted(len(twice), 'id')} given more than once (such as {example!r})",
            "give every node one row",
        )

"""From edge rows to one undirected edge list, and the report of what was met on the way."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fairmp.errors import InputError

_DENSE = 64


def counted(count: int, noun: str) -> str:
    """Write a number of things.

    Example:
        >>> counted(1, "row"), counted(1200, "row")
        ('1 row', '1,200 rows')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


@dataclass
class LoadReport:
    """What a loader read, kept and dropped; ``data.report`` of every loaded graph.

    Attributes:
        nodes: Nodes of the graph.
        edge_rows: Rows of the edge table.
        dangling: Rows that name an id which is not in the node table; dropped.
        self_loops: Rows that join a node to itself; dropped.
        repeated: Rows that say again what an earlier row says, in the same direction; dropped.
        reciprocal: Edges that are given in both directions.
        edges: Undirected edges that are kept.
        unknown_labels: Nodes without a label (−1).
        unknown_groups: Nodes without a sensitive group (−1).
        missing: For each feature column with missing values, how many.
        notes: Everything else a reader should know, a sentence each.

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
        """Return the report a line at a time, without the counts that are 0."""
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
        source: The row's first node, from 0; −1 where its id is not known.
        target: The row's second node.
        num_nodes: The number of nodes.
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

    # One sortable number a row: the pair in ascending order, and the direction as its last bit.
    # Shifts, since a division for each of a million edges takes longer than sorting them, and in
    # place, since so does fresh memory.
    bits = max(num_nodes - 1, 1).bit_length()
    last = (1 << bits) - 1
    rows = np.minimum(source, target).astype(np.int64)
    rows <<= bits
    rows |= np.maximum(source, target)
    rows <<= 1
    rows |= source > target
    rows.sort()
    directed = _distinct(rows)
    report.repeated = len(rows) - len(directed)
    directed >>= 1
    pairs = _distinct(directed)
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


def _distinct(rising: np.ndarray) -> np.ndarray:
    first = np.ones(len(rising), dtype=bool)
    np.not_equal(rising[1:], rising[:-1], out=first[1:])
    return rising[first]


def positions(ids: Any, *columns: Any) -> list[np.ndarray]:
    """Find each value of each column among the ids: its row, or −1 where there is none.

    Whole numbers that lie close together are looked up in a table, everything else by hashing.

    Args:
        ids: The node ids, a pyarrow array without repeats.
        columns: Pyarrow arrays of the same type as ``ids``.

    Example:
        >>> import pyarrow as pa
        >>> [rows.tolist() for rows in positions(pa.array([7, 9]), pa.array([9, 8, None]))]
        [[1, -1, -1]]
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    ids = ids.combine_chunks() if isinstance(ids, pa.ChunkedArray) else ids
    if pa.types.is_int64(ids.type):
        low, high = (value.as_py() for value in pc.min_max(ids).values())
        if high - low < _DENSE * len(ids):
            table = np.full(high - low + 1, -1, dtype=np.int32)
            table[ids.to_numpy() - low] = np.arange(len(ids), dtype=np.int32)
            return [_looked_up(table, column, low, high) for column in columns]
    return [pc.fill_null(pc.index_in(column, value_set=ids), -1).to_numpy() for column in columns]


def _looked_up(table: np.ndarray, column: Any, low: int, high: int) -> np.ndarray:
    import pyarrow.compute as pc

    values = pc.fill_null(column, low).to_numpy()
    inside = (values >= low) & (values <= high)
    if column.null_count:
        inside &= pc.is_valid(column).to_numpy(zero_copy_only=False)
    if inside.all():
        return table[values - low]
    return np.where(inside, table[np.where(inside, values - low, 0)], -1)


def comparable(nodes: Any, source: Any, target: Any) -> tuple[Any, Any, Any]:
    """Bring ids of any type to one: whole numbers if all three columns are, else text.

    Text counts as whole numbers only where it is written as one writes them, so ``007`` stays
    text, and then matches ``007`` alone.

    Example:
        >>> import pyarrow as pa
        >>> [a.to_pylist() for a in comparable(pa.array(["7"]), pa.array([7]), pa.array([7.0]))]
        [[7], [7], [7]]
        >>> [a.to_pylist() for a in comparable(pa.array(["007"]), pa.array(["7"]), pa.array([7]))]
        [['007'], ['7'], ['7']]
    """
    columns = [_plain(column) for column in (nodes, source, target)]
    whole = [_as_integers(column) for column in columns]
    if all(column is not None for column in whole):
        return whole[0], whole[1], whole[2]
    import pyarrow as pa
    import pyarrow.compute as pc

    text = [
        pc.cast(column if number is None else number, pa.large_string())
        if not _is_text(column)
        else pc.cast(column, pa.large_string())
        for column, number in zip(columns, whole, strict=True)
    ]
    return text[0], text[1], text[2]


def _plain(column: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(column.type):
        column = pc.cast(column, column.type.value_type)
    return column


def _is_text(column: Any) -> bool:
    import pyarrow as pa

    return any(
        check(column.type)
        for check in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    )


def _as_integers(column: Any) -> Any | None:
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        if pa.types.is_integer(column.type):
            return pc.cast(column, pa.int64())
        if pa.types.is_floating(column.type):
            # Safe: 1.5, infinities and what is too large for a float to hold exactly are refused.
            return pc.cast(column, pa.int64())
        if not _is_text(column):
            return None
        if pc.all(pc.match_substring_regex(column, r"^(0|-?[1-9][0-9]*)$")).as_py() is not False:
            return pc.cast(column, pa.int64())
        decimal = r"^(0|-?[1-9][0-9]*)(\.[0-9]+(e[+-]?[0-9]+)?)?$"
        if pc.all(pc.match_substring_regex(column, decimal)).as_py():
            return pc.cast(pc.cast(column, pa.float64()), pa.int64())
    except pa.ArrowInvalid:
        return None
    return None


def check_ids(ids: Any, argument: str) -> None:
    """Refuse node ids that are missing or appear twice.

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
            f"{counted(len(twice), 'id')} given more than once, {example!r} for one",
            "give every node one row",
        )

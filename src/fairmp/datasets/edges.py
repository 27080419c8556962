"""Undirected edge lists, and the report on what was loaded."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


def counted(count: int, noun: str) -> str:
    """Write a count with its noun: "1 row", "1,200 rows"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


@dataclass
class LoadReport:
    """What a loader read, kept and dropped; ``data.report`` of every loaded graph.

    Example:
        >>> print(LoadReport(nodes=3, edge_rows=4, self_loops=1, edges=3, notes=["a note"]))
        3 nodes, 3 undirected edges from 4 edge rows
        1 self-loop dropped
        a note
    """

    nodes: int = 0
    edge_rows: int = 0  # rows of the edge table
    dangling: int = 0  # rows with an id that is not in the node table; dropped
    self_loops: int = 0  # rows that join a node to itself; dropped
    repeated: int = 0  # rows that repeat an earlier one, in the same direction; dropped
    reciprocal: int = 0  # edges given in both directions
    edges: int = 0  # undirected edges kept
    unknown_labels: int = 0  # nodes without a label (−1)
    unknown_groups: int = 0  # nodes without a sensitive group (−1)
    missing: dict[str, int] = field(default_factory=dict)  # missing values of feature columns
    notes: list[str] = field(default_factory=list)  # all else, one sentence each

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

    Endpoints are node numbers from 0, −1 where an id is unknown; what is dropped is counted in the
    report.
    """
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


def proper_rows(
    source: np.ndarray, target: np.ndarray, report: LoadReport
) -> tuple[np.ndarray, np.ndarray]:
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

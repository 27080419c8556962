"""Edges larger than memory: from rows of a table to distinct edges, and to CSR rows.

Each edge is one integer, and integers are sorted one bucket at a time. Rows of the table go to
buckets by their smaller endpoint, so that all copies of an edge meet and repeats are found. The
distinct edges, in both directions, then go to buckets by row, and leave them as CSR rows.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from fairmp.datasets.edges import proper_rows
from fairmp.datasets.load_report import LoadReport
from fairmp.errors import InputError

EDGES_PER_PIECE = 1 << 22  # edges worked on at a time
BUCKET_ENTRIES = 1 << 25  # entries of a bucket that is sorted in memory
BUCKETS = 256
MIN_BLOCKS = 256  # blocks of rows before they grow beyond BUCKET_ENTRIES


class Buckets:
    """Files of int64, filled side by side and read one by one."""

    def __init__(self, folder: Path, count: int) -> None:
        folder.mkdir()
        self.folder, self.count = folder, count

    def append(self, keys: np.ndarray, bucket: np.ndarray) -> None:
        """Write each key to its bucket."""
        keys = keys[np.argsort(bucket, kind="stable")]
        stops = np.cumsum(np.bincount(bucket, minlength=self.count)).tolist()
        for k, (start, stop) in enumerate(pairwise([0, *stops])):
            if stop > start:
                # Opened each time: there may be more buckets than files a process may hold open.
                with (self.folder / str(k)).open("ab", buffering=0) as file:
                    file.write(keys[start:stop].data)

    def take(self, bucket: int) -> np.ndarray:
        """Read a bucket and remove its file."""
        path = self.folder / str(bucket)
        path.touch()
        keys = np.fromfile(path, dtype=np.int64)
        path.unlink()
        return keys


class EdgeSet:
    """The distinct undirected edges of a graph, on disk, and the degree of each node (n)."""

    def __init__(self, folder: Path, nodes: int, report: LoadReport) -> None:
        self.folder, self.nodes, self.report = folder, nodes, report
        self.bits = max(nodes - 1, 1).bit_length()
        self.low_bits = BUCKETS.bit_length() - 1
        if 2 * self.bits - self.low_bits + 1 > 63:
            raise InputError("nodes", f"{nodes:,} are more than a folder of shards can number")
        self.degree = np.zeros(nodes, dtype=np.int64)
        self.kind = np.int32 if nodes < 2**31 else np.int64  # of node numbers on disk
        self._rows = Buckets(folder / "rows", BUCKETS)
        self._edges = folder / "edges"

    def add(self, source: np.ndarray, target: np.ndarray) -> None:
        """Add rows of the edge table, as node numbers; −1 where an id is unknown."""
        source, target = proper_rows(source, target, self.report)
        small = np.minimum(source, target).astype(np.int64)
        bucket = (small & (BUCKETS - 1)).astype(np.uint16)
        keys = small >> self.low_bits
        keys <<= self.bits
        keys |= np.maximum(source, target)
        keys <<= 1
        keys |= source > target
        self._rows.append(keys, bucket)

    def discard(self) -> None:
        """Remove all that was added."""
        self.report.edge_rows = self.report.dangling = self.report.self_loops = 0
        shutil.rmtree(self._rows.folder)

    def finish(self, y: np.ndarray, sens: np.ndarray) -> tuple[float | None, ...]:
        """Find the distinct edges; return the homophily of labels, of known ones, of groups."""
        self._edges.mkdir()
        same, total = np.zeros(3, dtype=np.int64), np.zeros(3, dtype=np.int64)
        for bucket in range(BUCKETS):
            edges = distinct_pairs(self._rows.take(bucket), self.report)
            edges.tofile(self._edges / str(bucket))
            for one, other in self._split(bucket, edges):
                np.add.at(self.degree, one, 1)
                np.add.at(self.degree, other, 1)
                labelled = (y[one] >= 0) & (y[other] >= 0)
                grouped = (sens[one] >= 0) & (sens[other] >= 0)
                alike = y[one] == y[other]
                near = grouped & (sens[one] == sens[other])
                same += [alike.sum(), (alike & labelled).sum(), near.sum()]
                total += [len(one), labelled.sum(), grouped.sum()]
        return tuple(int(k) / int(n) if n else None for k, n in zip(same, total, strict=True))

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for bucket in range(BUCKETS):
            keys = np.fromfile(self._edges / str(bucket), dtype=np.int64)
            yield from self._split(bucket, keys)

    def _split(self, bucket: int, keys: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for start in range(0, len(keys), EDGES_PER_PIECE):
            piece = keys[start : start + EDGES_PER_PIECE]
            yield ((piece >> self.bits) << self.low_bits) | bucket, piece & ((1 << self.bits) - 1)


def csr_blocks(
    edges: EdgeSet, rank: np.ndarray | None, cuts: Sequence[int], folder: Path, *, loops: bool
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the columns of A, or with loops of A+I, in blocks of rows that cross no cut.

    Each block comes with the row after its last; ``rank`` is the new number of each node.
    """
    entries = edges.degree + loops
    if rank is not None:
        entries[rank] = edges.degree + loops
    bounds = _block_bounds(entries, cuts)
    block_of = np.repeat(np.arange(len(bounds) - 1, dtype=np.uint16), np.diff(bounds))
    buckets = Buckets(folder, len(bounds) - 1)
    for one, other in edges:
        if rank is not None:
            one, other = rank[one], rank[other]
        for row, col in ((one, other), (other, one)):
            block = block_of[row]
            buckets.append(((row - bounds[block]) << edges.bits) | col, block)
    for k, (start, stop) in enumerate(pairwise(bounds.tolist())):
        keys = buckets.take(k)
        if loops:
            own = np.arange(stop - start, dtype=np.int64)
            keys = np.concatenate([keys, (own << edges.bits) | (own + start)])
        keys.sort()
        keys &= (1 << edges.bits) - 1
        yield stop, keys
    folder.rmdir()


def _block_bounds(entries: np.ndarray, cuts: Sequence[int]) -> np.ndarray:
    """Cut rows into blocks that can be sorted in memory, at the given cuts among others."""
    room = max(BUCKET_ENTRIES, int(entries.sum()) // MIN_BLOCKS)
    bounds = []
    for start, stop in pairwise(cuts):
        total = np.cumsum(entries[start:stop])
        steps = np.arange(room, int(total[-1]) if stop > start else 0, room)
        inner = np.unique(np.searchsorted(total, steps, side="left"))
        bounds += [start, *(start + inner[(inner > 0) & (inner < stop - start)]).tolist()]
    return np.array([*bounds, cuts[-1]], dtype=np.int64)


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

"""Edges larger than memory: from rows of a table to distinct pairs, and to compressed rows.

What is sorted is one whole number an edge, a bucket at a time. Rows of the table go to buckets by
their smaller end, so that all that is said of a pair lies together; there repeats are found. The
pairs, each in both directions, then go to buckets by row, whose sizes are known by then, and leave
them as rows of the adjacency.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fairmp.datasets.edges import LoadReport
from fairmp.errors import InputError

PIECE = 1 << 22  # edges worked on at a time
ROOM = 1 << 25  # entries of a bucket that is sorted in memory
BUCKETS = 256
_MANY = 256  # blocks of rows, at least, before they grow beyond ROOM


class Buckets:
    """Files of int64, filled side by side and read one by one."""

    def __init__(self, folder: Path, count: int) -> None:
        folder.mkdir()
        self.folder, self.count = folder, count

    def append(self, keys: np.ndarray, home: np.ndarray) -> None:
        """Write each key to its bucket."""
        keys = keys[np.argsort(home, kind="stable")]
        ends = np.cumsum(np.bincount(home, minlength=self.count))
        start = 0
        for bucket, end in enumerate(ends.tolist()):
            if end > start:
                # Opened each time: there may be more buckets than files a process may hold open.
                with (self.folder / str(bucket)).open("ab", buffering=0) as file:
                    file.write(keys[start:end].data)
            start = end

    def take(self, bucket: int) -> np.ndarray:
        """Read a bucket and remove its file."""
        path = self.folder / str(bucket)
        if not path.exists():
            return np.zeros(0, dtype=np.int64)
        keys = np.fromfile(path, dtype=np.int64)
        path.unlink()
        return keys


class Homophily(NamedTuple):
    """Pairs of nodes that agree, and those that could."""

    same: int
    pairs: int

    def __add__(self, other: tuple[object, ...]) -> Homophily:
        assert isinstance(other, Homophily)
        return Homophily(self.same + other.same, self.pairs + other.pairs)

    @property
    def share(self) -> float | None:
        """The share that agrees; ``None`` of nothing."""
        return self.same / self.pairs if self.pairs else None


class Pairs:
    """The distinct pairs of a graph, on disk, and what was found on the way.

    Attributes:
        degree: neighbours of each node (n).
    """

    def __init__(self, folder: Path, nodes: int, report: LoadReport) -> None:
        self.folder, self.nodes, self.report = folder, nodes, report
        self.bits = max(nodes - 1, 1).bit_length()
        self.low = BUCKETS.bit_length() - 1
        if 2 * self.bits - self.low + 1 > 63:
            raise InputError("nodes", f"{nodes:,} are more than one folder of shards can number")
        self.degree = np.zeros(nodes, dtype=np.int64)
        self._rows = Buckets(folder / "rows", BUCKETS)

    def add(self, source: np.ndarray, target: np.ndarray) -> None:
        """Take rows of the edge table, as node numbers; −1 where an end is not known."""
        report = self.report
        report.edge_rows += len(source)
        known = (source >= 0) & (target >= 0)
        loops = known & (source == target)
        report.dangling += len(source) - int(known.sum())
        report.self_loops += int(loops.sum())
        keep = known & ~loops
        if not keep.all():
            source, target = source[keep], target[keep]
        small = np.minimum(source, target).astype(np.int64)
        home = (small & (BUCKETS - 1)).astype(np.uint16)
        keys = small >> self.low
        keys <<= self.bits
        keys |= np.maximum(source, target)
        keys <<= 1
        keys |= source > target
        self._rows.append(keys, home)

    def forget(self) -> None:
        """Take back all that was added."""
        report = self.report
        report.edge_rows = report.dangling = report.self_loops = 0
        shutil.rmtree(self._rows.folder)

    def finish(self, y: np.ndarray, sens: np.ndarray) -> dict[str, Homophily]:
        """Find the distinct pairs, bucket by bucket; return how alike their ends are."""
        self._found = self.folder / "pairs"
        self._found.mkdir()
        alike = dict.fromkeys(("label", "labelled", "sens"), Homophily(0, 0))
        for bucket in range(BUCKETS):
            rows = self._rows.take(bucket)
            rows.sort()
            directed = _distinct(rows)
            self.report.repeated += len(rows) - len(directed)
            directed >>= 1
            pairs = _distinct(directed)
            self.report.reciprocal += len(directed) - len(pairs)
            self.report.edges += len(pairs)
            pairs.tofile(self._found / str(bucket))
            for one, other in self._split(bucket, pairs):
                np.add.at(self.degree, one, 1)
                np.add.at(self.degree, other, 1)
                same = y[one] == y[other]
                both = (y[one] >= 0) & (y[other] >= 0)
                alike["label"] += Homophily(int(same.sum()), len(one))
                alike["labelled"] += Homophily(int((same & both).sum()), int(both.sum()))
                both = (sens[one] >= 0) & (sens[other] >= 0)
                same = (sens[one] == sens[other]) & both
                alike["sens"] += Homophily(int(same.sum()), int(both.sum()))
        return alike

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for bucket in range(BUCKETS):
            keys = np.fromfile(self._found / str(bucket), dtype=np.int64)
            yield from self._split(bucket, keys)

    def _split(self, bucket: int, keys: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for start in range(0, len(keys), PIECE):
            piece = keys[start : start + PIECE]
            yield ((piece >> self.bits) << self.low) | bucket, piece & ((1 << self.bits) - 1)


class Rows(NamedTuple):
    """Some rows of Â = A + I, next to each other.

    Attributes:
        start: the first row.
        counts: entries a row.
        col: their columns, rising within a row.
    """

    start: int
    counts: np.ndarray
    col: np.ndarray


def compressed(
    pairs: Pairs, place: np.ndarray | None, cuts: Sequence[int], folder: Path, *, loops: bool
) -> Iterator[Rows]:
    """Yield the rows of the adjacency in a numbering, front to back.

    Args:
        pairs: the graph.
        place: the new number of each node; ``None`` keeps the old ones.
        cuts: no block of rows that is yielded crosses one of these.
        folder: for scratch files; it must not be there yet.
        loops: whether each node is its own neighbour too.
    """
    degree = pairs.degree
    if place is not None:
        degree = np.empty_like(pairs.degree)
        degree[place] = pairs.degree
    bounds = _blocks(degree + loops, cuts)
    home = np.repeat(np.arange(len(bounds) - 1, dtype=np.uint16), np.diff(bounds))
    buckets = Buckets(folder, len(bounds) - 1)
    for one, other in pairs:
        if place is not None:
            one, other = place[one], place[other]
        for row, col in ((one, other), (other, one)):
            where = home[row]
            buckets.append(((row - bounds[where]) << pairs.bits) | col, where)
    for k, (start, stop) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)):
        keys = buckets.take(k)
        if loops:
            own = np.arange(stop - start, dtype=np.int64)
            keys = np.concatenate([keys, (own << pairs.bits) | (own + start)])
        keys.sort()
        keys &= (1 << pairs.bits) - 1
        yield Rows(start, degree[start:stop] + loops, keys)
    folder.rmdir()


def _blocks(entries: np.ndarray, cuts: Sequence[int]) -> np.ndarray:
    """Cut rows into blocks that can be sorted in memory, at the given cuts among others."""
    room = max(ROOM, int(entries.sum()) // _MANY)
    bounds = []
    for start, stop in pairwise(cuts):
        heaped = np.cumsum(entries[start:stop])
        steps = np.arange(room, int(heaped[-1]) if stop > start else 0, room)
        inner = np.unique(np.searchsorted(heaped, steps, side="left"))
        bounds += [start, *(start + inner[(inner > 0) & (inner < stop - start)]).tolist()]
    return np.array([*bounds, cuts[-1]], dtype=np.int64)


def _distinct(rising: np.ndarray) -> np.ndarray:
    first = np.ones(len(rising), dtype=bool)
    np.not_equal(rising[1:], rising[:-1], out=first[1:])
    return rising[first]

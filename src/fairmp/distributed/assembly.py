"""Order the nodes of a graph and write its parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fairmp.datasets.statistics import Statistics
from fairmp.distributed import partition
from fairmp.distributed.external_sort import EdgeSet, RowBlock, csr_blocks
from fairmp.distributed.partition import Partition
from fairmp.distributed.shard_format import ArrayWriter, File, Manifest, Part, part_folder

FEATURE_ROWS = 1 << 16  # rows of features copied at a time
Progress = Callable[[str], None]


class Nodes(Protocol):
    """Labels, groups and features of the nodes."""

    @property
    def y(self) -> np.ndarray:
        """Classes (n, int32), −1 unknown."""

    @property
    def sens(self) -> np.ndarray:
        """Groups (n, int32), −1 unknown."""

    def features(self, rows: np.ndarray) -> np.ndarray:
        """Return the features of some nodes (len(rows)×d)."""

    def set_degree(self, degree: np.ndarray) -> None:
        """Take the degrees of the nodes, which may be a feature."""


def write_parts(
    staging: Path,
    manifest: Manifest,
    edges: EdgeSet,
    nodes: Nodes,
    splits: np.ndarray,
    parts: int,
    advance: Progress,
) -> Manifest:
    """Order the nodes, and write the parts and the manifest.

    Args:
        staging: Where to; its ``scratch`` folder takes temporary files.
        manifest: Names, order and split seeds of the graph; the rest is filled in.
        edges: The edges.
        nodes: The nodes.
        splits: The subset each node is in (n×splits, −1 none).
        parts: Number of parts.
        advance: Called after each step.
    """
    homophily = edges.finish(nodes.y, nodes.sens)
    nodes.set_degree(edges.degree)
    advance("edges sorted")
    features = len(manifest.feature_names)
    ordered = _ordered(edges, manifest.order, parts, features, staging / "scratch")
    advance("order")

    def sizes(codes: np.ndarray, names: Sequence[str]) -> dict[str, int]:
        counts = np.bincount(codes[codes >= 0], minlength=len(names)).tolist()
        return dict(zip(names, counts, strict=True))

    statistics = Statistics(
        manifest.name,
        edges.nodes,
        features,
        2 * edges.report.edges,
        homophily["label"],
        homophily["labelled"],
        homophily["sens"],
        int((nodes.y >= 0).sum()),
        sizes(nodes.y, manifest.class_names),
        sizes(nodes.sens, manifest.group_names),
    )
    manifest = replace(
        manifest,
        nodes=edges.nodes,
        edges=edges.report.edges,
        statistics=statistics.as_dict(),
        report=manifest.report or tuple(edges.report.lines()),
        parts=_write(staging, edges, nodes, splits, ordered, advance),
    )
    manifest.write(staging)
    return manifest


def _ordered(edges: EdgeSet, order: str, parts: int, features: int, scratch: Path) -> Partition:
    weight = partition.cost(edges.degree, features)
    if order == "given":
        return partition.given(weight, parts)
    row = np.concatenate([[0], np.cumsum(edges.degree)])
    kind = np.int32 if edges.nodes < 2**31 else np.int64
    path = scratch / "neighbours"
    with path.open("wb") as file:
        for block in csr_blocks(edges, None, [0, edges.nodes], scratch / "plain", loops=False):
            file.write(block.col.astype(kind).data)
    col = np.memmap(path, kind, "c") if path.stat().st_size else np.zeros(0, kind)
    find = partition.locality if order == "locality" else partition.metis
    ordered = find(row, col, weight, parts)
    path.unlink()
    return ordered


def _write(
    staging: Path,
    edges: EdgeSet,
    nodes: Nodes,
    splits: np.ndarray,
    ordered: Partition,
    advance: Progress,
) -> tuple[Part, ...]:
    number = np.empty(edges.nodes, dtype=np.int64)
    number[ordered.place] = np.arange(edges.nodes)
    bounds = ordered.bounds.tolist()
    kind = np.int32 if edges.nodes < 2**31 else np.int64
    first = nodes.features(number[:1])
    scratch = staging / "scratch" / "ordered"
    blocks = csr_blocks(edges, ordered.place, bounds, scratch, loops=True)
    neighbour = np.zeros(edges.nodes, dtype=bool)
    parts = []
    for index, (start, stop) in enumerate(pairwise(bounds)):
        count, own = stop - start, number[start:stop]
        row = np.concatenate([[0], np.cumsum(edges.degree[own] + 1)])
        entries = int(row[-1])
        features = (
            nodes.features(own[k : k + FEATURE_ROWS]) for k in range(0, count, FEATURE_ROWS)
        )
        arrays: dict[str, tuple[Any, tuple[int, ...], Any]] = {
            "x": (features, (count, first.shape[1]), first.dtype),
            "y": ([nodes.y[own]], (count,), np.int32),
            "sens": ([nodes.sens[own]], (count,), np.int32),
            "split": ([splits[own]], (count, splits.shape[1]), np.int8),
            "number": ([own], (count,), np.int64),
            "row": ([row], (count + 1,), np.int64),
            "col": (_columns(blocks, stop, neighbour), (entries,), kind),
        }
        folder = part_folder(staging, index)
        folder.mkdir()
        files: dict[str, File] = {}
        for name, (pieces, shape, dtype) in arrays.items():
            with ArrayWriter(folder / f"{name}.npy", shape, dtype) as writer:
                for piece in pieces:
                    writer.append(piece)
            files[name] = writer.file
        neighbour[start:stop] = False
        parts.append(Part(start, stop, entries, int(np.count_nonzero(neighbour)), files))
        neighbour[:] = False
        advance(f"part {index + 1}")
    return tuple(parts)


def _columns(blocks: Iterator[RowBlock], stop: int, neighbour: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the columns of the rows up to ``stop``, and mark the neighbours."""
    for block in blocks:
        neighbour[block.col] = True
        yield block.col
        if block.start + len(block.counts) == stop:
            return

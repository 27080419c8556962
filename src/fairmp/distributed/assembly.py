"""Write the parts of a graph whose pairs and nodes are known."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fairmp.datasets.statistics import Statistics
from fairmp.distributed import partition
from fairmp.distributed.external_sort import Homophily, Pairs, compressed
from fairmp.distributed.partition import Order, Partition
from fairmp.distributed.shard_format import ArrayWriter, File, Manifest, Part, part_folder

_ROWS = 1 << 16
Say = Callable[[str], None]


class Nodes(Protocol):
    """What is written of the nodes."""

    @property
    def y(self) -> np.ndarray:
        """Classes (n, int32), −1 unknown."""

    @property
    def sens(self) -> np.ndarray:
        """Groups (n, int32), −1 unknown."""

    def features(self, numbers: np.ndarray) -> np.ndarray:
        """Return some nodes' features (len(numbers)×d)."""

    def know_degree(self, degree: np.ndarray) -> None:
        """Hear of the nodes' degrees."""


@dataclass(frozen=True)
class Names:
    """What things are called, and how a table's columns became numbers."""

    name: str
    features: tuple[str, ...]
    classes: tuple[str, ...]
    groups: tuple[str, ...]
    encoding: dict[str, Any] | None


def write_parts(
    staging: Path,
    pairs: Pairs,
    nodes: Nodes,
    names: Names,
    drawn: np.ndarray,
    seeds: tuple[int | None, ...],
    parts: int,
    order: Order,
    lines: tuple[str, ...] | None,
    say: Say,
) -> Manifest:
    """Order the nodes, and write the parts and the manifest.

    Args:
        staging: where to; its ``scratch`` folder takes what is in between.
        pairs: the edges, all added.
        nodes: the nodes.
        names: what things are called.
        drawn: the part of each split that each node is in (n×splits, −1 none).
        seeds: of the splits.
        parts: number of parts.
        order: how to order the nodes.
        lines: the report; by default what ``pairs`` met.
        say: told of each step.
    """
    alike = pairs.finish(nodes.y, nodes.sens)
    nodes.know_degree(pairs.degree)
    say("pairs")
    placed = _placed(pairs, order, parts, len(names.features), staging / "scratch")
    say("order")
    made = _parts(staging, pairs, nodes, drawn, placed, say)
    manifest = Manifest(
        names.name,
        len(nodes.y),
        pairs.report.edges,
        order,
        names.features,
        names.classes,
        names.groups,
        seeds,
        _statistics(pairs, nodes, names, alike),
        tuple(pairs.report.lines()) if lines is None else lines,
        names.encoding,
        made,
    )
    manifest.write(staging)
    return manifest


def _placed(pairs: Pairs, order: Order, parts: int, features: int, scratch: Path) -> Partition:
    weight = partition.cost(pairs.degree, features)
    if order == "given":
        return partition.given(weight, parts)
    row = np.concatenate([[0], np.cumsum(pairs.degree)])
    kind = np.int32 if pairs.nodes < 2**31 else np.int64
    path = scratch / "neighbours"
    with path.open("wb") as file:
        for rows in compressed(pairs, None, [0, pairs.nodes], scratch / "plain", loops=False):
            file.write(rows.col.astype(kind).data)
    col = np.memmap(path, kind, "c") if path.stat().st_size else np.zeros(0, kind)
    find = partition.locality if order == "locality" else partition.metis
    placed = find(row, col, weight, parts)
    path.unlink()
    return placed


def _parts(
    staging: Path,
    pairs: Pairs,
    nodes: Nodes,
    drawn: np.ndarray,
    placed: Partition,
    say: Say,
) -> tuple[Part, ...]:
    number = np.empty(pairs.nodes, dtype=np.int64)
    number[placed.place] = np.arange(pairs.nodes)
    bounds = placed.bounds.tolist()
    kind = np.int32 if pairs.nodes < 2**31 else np.int64
    first = nodes.features(number[:1])
    scratch = staging / "scratch" / "placed"
    blocks = compressed(pairs, placed.place, bounds, scratch, loops=True)
    seen = np.zeros(pairs.nodes, dtype=bool)
    made = []
    for index, (start, stop) in enumerate(pairwise(bounds)):
        count, own = stop - start, number[start:stop]
        row = np.concatenate([[0], np.cumsum(pairs.degree[own] + 1)])
        entries = int(row[-1])
        arrays: dict[str, Iterator[np.ndarray]] = {
            "x": (nodes.features(own[k : k + _ROWS]) for k in range(0, count, _ROWS)),
            "y": iter([nodes.y[own]]),
            "sens": iter([nodes.sens[own]]),
            "split": iter([drawn[own]]),
            "number": iter([own]),
            "row": iter([row]),
            "col": _until(blocks, stop, seen),
        }
        shapes: dict[str, tuple[tuple[int, ...], Any]] = {
            "x": ((count, first.shape[1]), first.dtype),
            "y": ((count,), np.int32),
            "sens": ((count,), np.int32),
            "split": ((count, drawn.shape[1]), np.int8),
            "number": ((count,), np.int64),
            "row": ((count + 1,), np.int64),
            "col": ((entries,), kind),
        }
        place = part_folder(staging, index)
        place.mkdir()
        files: dict[str, File] = {}
        for name, blocks_of in arrays.items():
            shape, dtype = shapes[name]
            with ArrayWriter(place / f"{name}.npy", shape, dtype) as writer:
                for block in blocks_of:
                    writer.append(block)
            files[name] = writer.file
        seen[start:stop] = False
        made.append(Part(start, stop, entries, int(np.count_nonzero(seen)), files))
        seen[:] = False
        say(f"part {index + 1}")
    return tuple(made)


def _until(blocks: Any, stop: int, seen: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the columns of the blocks of rows up to one, which none crosses, and mark them."""
    for rows in blocks:
        seen[rows.col] = True
        yield rows.col
        if rows.start + len(rows.counts) == stop:
            return


def _statistics(
    pairs: Pairs, nodes: Nodes, names: Names, alike: dict[str, Homophily]
) -> dict[str, Any]:
    def sizes(codes: np.ndarray, titles: Sequence[str]) -> dict[str, int]:
        counts = np.bincount(codes[codes >= 0], minlength=len(titles)).tolist()
        return dict(zip(titles, counts, strict=True))

    return Statistics(
        names.name,
        pairs.nodes,
        len(names.features),
        2 * pairs.report.edges,
        alike["label"].share,
        alike["labelled"].share,
        alike["sens"].share,
        int((nodes.y >= 0).sum()),
        sizes(nodes.y, names.classes),
        sizes(nodes.sens, names.groups),
    ).as_dict()

"""Assignment of nodes to parts: contiguous ranges after a reordering, or METIS."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from fairmp.errors import InputError
from fairmp.graph import locality_order

Order = Literal["given", "locality", "metis"]

HIDDEN_NUMBERS = 128  # kept per node in training, beside the features: two hidden layers of 64
_ROWS = 1 << 17  # rows whose entries are counted at a time


class Partition(NamedTuple):
    """The new number of each node (n), and the bounds of the parts' ranges (parts + 1)."""

    place: np.ndarray
    bounds: np.ndarray


def check_parts(parts: int, nodes: int) -> None:
    """Refuse a number of parts that would leave one empty."""
    if not 1 <= parts <= nodes:
        raise InputError("parts", f"{parts} for {nodes:,} nodes", "give 1 to the number of nodes")


def cost(degree: np.ndarray, features: int) -> np.ndarray:
    """Memory cost of each node: its features, hidden units and edges."""
    return degree + (1 + features + HIDDEN_NUMBERS)


def ranges(weight: np.ndarray, parts: int) -> np.ndarray:
    """Cut a sequence of nodes into ranges of about equal weight, none of them empty."""
    check_parts(parts, len(weight))
    total = np.concatenate([[0.0], np.cumsum(weight, dtype=np.float64)])
    goals = total[-1] * np.arange(1, parts) / parts
    cuts = np.searchsorted(total, goals, side="left")
    # The nearer side of the node that is cut.
    cuts -= goals - total[cuts - 1] <= total[cuts] - goals
    # A heavy node may hold several cuts: move them apart, and leave each later part a node.
    room = np.arange(1, parts)
    cuts = np.maximum.accumulate(np.maximum(cuts, room) - room) + room
    cuts = np.minimum(cuts, len(weight) - parts + room)
    return np.concatenate([[0], cuts, [len(weight)]]).astype(np.int64)


def given(weight: np.ndarray, parts: int) -> Partition:
    """Keep the order of the node table."""
    return Partition(np.arange(len(weight), dtype=np.int64), ranges(weight, parts))


def locality(row: np.ndarray, col: np.ndarray, weight: np.ndarray, parts: int) -> Partition:
    """Order nodes by reverse Cuthill-McKee, unless the given order cuts fewer edges."""
    order = locality_order(row, col)
    reordered = Partition(inverse(order), ranges(weight[order], parts))
    unchanged = given(weight, parts)
    return reordered if cut(row, col, reordered) < cut(row, col, unchanged) else unchanged


def cut(row: np.ndarray, col: np.ndarray, partition: Partition) -> int:
    """Count the entries whose endpoints are in different parts."""
    part = np.searchsorted(partition.bounds, partition.place, side="right").astype(np.int32)
    count = 0
    for start in range(0, len(part), _ROWS):
        rows = row[start : start + _ROWS + 1]
        source = np.repeat(part[start : start + _ROWS], np.diff(rows))
        count += int((source != part[col[rows[0] : rows[-1]]]).sum())
    return count


def metis(row: np.ndarray, col: np.ndarray, weight: np.ndarray, parts: int) -> Partition:
    """Let METIS find parts of equal weight with few edges between them."""
    check_parts(parts, len(weight))
    try:
        import pymetis
    except ImportError:
        hint = "run pip install 'fairmp[scale]', or choose {order='locality'}"
        raise InputError("order", "'metis' needs the package pymetis", hint) from None
    kind = pymetis.zero_copy_dtype() if hasattr(pymetis, "zero_copy_dtype") else np.int32
    if len(col) > np.iinfo(kind).max:
        value = f"this METIS was not built for {len(col):,} entries"
        raise InputError("order", value, "choose {order='locality'}")
    graph = pymetis.CSRAdjacency(np.asarray(row, dtype=kind), np.asarray(col, dtype=kind))
    _, part = pymetis.part_graph(parts, graph, vweights=np.asarray(weight, dtype=kind))
    sizes = np.bincount(part, minlength=parts)
    if not sizes.all():
        value = f"METIS left part {int(np.argmin(sizes))} of {parts} empty"
        raise InputError("parts", value, "give fewer parts, or choose {order='locality'}")
    place = inverse(np.argsort(part, kind="stable"))
    return Partition(place, np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))


def inverse(order: np.ndarray) -> np.ndarray:
    """The inverse of a permutation."""
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    return place

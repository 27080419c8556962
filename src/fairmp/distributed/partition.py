"""Which node goes to which part: contiguous ranges after a reordering, or METIS."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import numpy as np

from fairmp.errors import InputError

Order = Literal["given", "locality", "metis"]
ORDERS: tuple[Order, ...] = get_args(Order)

HIDDEN = 128
"""What training keeps of a node beside its features, in numbers: two hidden layers of 64."""


_ROWS = 1 << 17


class Partition(NamedTuple):
    """A numbering of the nodes, and where its parts begin.

    Attributes:
        place: the new number of each node (n).
        bounds: part p has the new numbers from ``bounds[p]`` to ``bounds[p + 1]`` (parts + 1).
    """

    place: np.ndarray
    bounds: np.ndarray


def check_parts(parts: int, nodes: int) -> None:
    """Refuse a number of parts that can not each have a node.

    Example:
        >>> check_parts(4, nodes=100)
    """
    if not 1 <= parts <= nodes:
        raise InputError(
            "parts", f"{parts} for {nodes:,} nodes", "give a whole number from 1 to them"
        )


def cost(degree: np.ndarray, features: int) -> np.ndarray:
    """What a node weighs in memory: its features and hidden units, and its edges.

    Example:
        >>> cost(np.array([0, 10]), features=2).tolist()
        [131, 141]
    """
    return degree + (1 + features + HIDDEN)


def ranges(weight: np.ndarray, parts: int) -> np.ndarray:
    """Cut a sequence of nodes into ranges of about equal weight, none of them empty.

    Example:
        >>> ranges(np.array([1, 1, 1, 1, 9]), 2).tolist()
        [0, 4, 5]
    """
    check_parts(parts, len(weight))
    heaped = np.concatenate([[0.0], np.cumsum(weight, dtype=np.float64)])
    aims = heaped[-1] * np.arange(1, parts) / parts
    cuts = np.searchsorted(heaped, aims, side="left")
    cuts -= aims - heaped[cuts - 1] <= heaped[cuts] - aims  # the nearer side of the node it is in
    # A heavy node may swallow several cuts: move them apart, and leave each later part a node.
    room = np.arange(1, parts)
    cuts = np.maximum.accumulate(np.maximum(cuts, room) - room) + room
    cuts = np.minimum(cuts, len(weight) - parts + room)
    return np.concatenate([[0], cuts, [len(weight)]]).astype(np.int64)


def given(weight: np.ndarray, parts: int) -> Partition:
    """Keep the order of the node table."""
    return Partition(np.arange(len(weight), dtype=np.int64), ranges(weight, parts))


def locality(row: np.ndarray, col: np.ndarray, weight: np.ndarray, parts: int) -> Partition:
    """Order nodes by reverse Cuthill-McKee, so that neighbours have numbers close together.

    Where the order they are in cuts fewer edges already, as that of a crawl may, it is kept.

    Args:
        row: pointers of the adjacency in compressed rows (n + 1).
        col: neighbours.
        weight: what each node weighs (n).
        parts: number of parts.

    Example:
        >>> row, col = np.array([0, 1, 2, 4, 6]), np.array([2, 3, 0, 3, 2, 1])  # 0-2-3-1
        >>> place = locality(row, col, np.ones(4), 2).place
        >>> np.abs(np.diff(place[[0, 2, 3, 1]])).tolist()
        [1, 1, 1]
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    kind = np.int32 if len(col) < 2**31 else np.int64
    graph = csr_array((len(weight), len(weight)), dtype=np.int8)
    # Set as they are: the constructor would ask for a value an entry, which nobody reads.
    graph.indptr = np.asarray(row, dtype=kind)
    graph.indices = np.asarray(col, dtype=kind)
    order = reverse_cuthill_mckee(graph, symmetric_mode=True)
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    found, kept = Partition(place, ranges(weight[order], parts)), given(weight, parts)
    return found if cut(row, col, found) < cut(row, col, kept) else kept


def cut(row: np.ndarray, col: np.ndarray, found: Partition) -> int:
    """Count the entries whose two ends are in different parts.

    Example:
        >>> row, col = np.array([0, 1, 2, 4, 6]), np.array([2, 3, 0, 3, 2, 1])  # 0-2-3-1
        >>> cut(row, col, given(np.ones(4), 2))
        4
    """
    part = np.searchsorted(found.bounds, found.place, side="right").astype(np.int32)
    count = 0
    for start in range(0, len(part), _ROWS):
        rows = row[start : start + _ROWS + 1]
        source = np.repeat(part[start : start + _ROWS], np.diff(rows))
        count += int((source != part[col[rows[0] : rows[-1]]]).sum())
    return count


def metis(row: np.ndarray, col: np.ndarray, weight: np.ndarray, parts: int) -> Partition:
    """Let METIS look for parts of equal weight with few edges between them.

    Arguments are those of :func:`locality`. Within a part nodes keep their order.
    """
    check_parts(parts, len(weight))
    try:
        import pymetis
    except ImportError:
        raise InputError(
            "order",
            "'metis' needs the package pymetis, which is not installed",
            "run pip install 'fairmp[scale]', or choose 'locality'",
        ) from None
    kind = pymetis.zero_copy_dtype() if hasattr(pymetis, "zero_copy_dtype") else np.int32
    if len(col) > np.iinfo(kind).max:
        raise InputError(
            "order",
            f"METIS was built for {np.iinfo(kind).max:,} entries, the graph has {len(col):,}",
            "choose 'locality'",
        )
    graph = pymetis.CSRAdjacency(np.asarray(row, dtype=kind), np.asarray(col, dtype=kind))
    _, found = pymetis.part_graph(parts, graph, vweights=np.asarray(weight, dtype=kind))
    part = np.asarray(found, dtype=np.int64)
    sizes = np.bincount(part, minlength=parts)
    if not sizes.all():
        raise InputError(
            "parts",
            f"METIS left part {int(np.argmin(sizes))} of {parts} empty",
            "give fewer parts, or choose the order 'locality'",
        )
    place = np.empty(len(part), dtype=np.int64)
    place[np.argsort(part, kind="stable")] = np.arange(len(part))
    return Partition(place, np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))

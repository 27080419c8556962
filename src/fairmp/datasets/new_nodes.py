"""New nodes with their edges to the nodes of a graph, and to each other."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias, cast

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import scipy.sparse as sp
import torch
from torch_geometric.data import Data

from fairmp.datasets.edges import (
    EdgeColumns,
    EdgeTable,
    Endpoints,
    Table,
    comparable,
    undirected_edges,
)
from fairmp.datasets.encoding import EncodedNodes, Encoding, Features
from fairmp.datasets.load_report import LoadReport
from fairmp.datasets.tables import NodeTable, encode_nodes
from fairmp.datasets.targets import UnknownGroups
from fairmp.errors import InputError, plural
from fairmp.graph import to_scipy

Weights: TypeAlias = np.ndarray | sp.csr_array  # dense for a few nodes, which is faster
MAX_DENSE = 2**16
CANONICAL_INTEGER = re.compile("0|-?[1-9][0-9]*")


class NodeIndex:
    """Finds nodes by id in constant time, whether ids are written as numbers or as text."""

    def __init__(self, ids: Any) -> None:
        [self.ids] = comparable(ids)
        self._is_integer = pa.types.is_integer(self.ids.type)

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def _integers(self) -> pd.Index:
        return pd.Index(self.ids.to_numpy())

    @cached_property
    def _texts(self) -> pd.Index:
        return pd.Index(_as_text(self.ids), dtype=object)

    def number(self, id: str | int) -> int:
        """The number of one id, −1 if there is none; text must be in canonical form."""
        key: str | int = id
        if not self._is_integer:
            key = str(id)
        elif isinstance(id, str):
            if not CANONICAL_INTEGER.fullmatch(id):
                return -1
            key = int(id)
        try:
            return cast(int, (self._integers if self._is_integer else self._texts).get_loc(key))
        except (KeyError, OverflowError):
            return -1

    def find(self, ids: Any) -> np.ndarray:
        """The number of each id (a pyarrow array), −1 where there is none."""
        [wanted] = comparable(ids)
        if self._is_integer and pa.types.is_integer(wanted.type) and not wanted.null_count:
            return self._integers.get_indexer(pd.Index(wanted.to_numpy()))
        return self._texts.get_indexer(pd.Index(_as_text(wanted), dtype=object))


def _as_text(ids: Any) -> np.ndarray:
    return pc.cast(ids, pa.large_string()).to_numpy(zero_copy_only=False)


@dataclass(frozen=True)
class NewEdges:
    """Edges of m new nodes: to k known nodes, and among each other.

    Attributes:
        known: the numbers of the known nodes, ascending (k).
        from_known: weights of the edges to them (m×k).
        among: weights of the edges between new nodes (m×m), symmetric, without self-loops.
    """

    known: np.ndarray
    from_known: Weights
    among: Weights

    @classmethod
    def of(
        cls, num_new: int, receiver: np.ndarray, sender: np.ndarray, weight: np.ndarray
    ) -> NewEdges:
        """Build from receivers, all of them new, and senders: known node j has number m + j."""
        known = np.unique(sender[sender >= num_new]) - num_new
        place = np.where(sender < num_new, sender, num_new + known.searchsorted(sender - num_new))
        width = num_new + len(known)
        sparse = sp.csr_array((weight, (receiver, place)), shape=(num_new, width))
        received: Weights = sparse.toarray() if num_new * width <= MAX_DENSE else sparse
        return cls(known, received[:, num_new:], received[:, :num_new])

    @classmethod
    def none(cls, num_new: int) -> NewEdges:
        """New nodes without edges."""
        nowhere = np.empty(0, dtype=np.int64)
        return cls.of(num_new, nowhere, nowhere, np.empty(0))

    @property
    def degree(self) -> np.ndarray:
        """Sum of the weights of each new node's edges (m)."""
        return np.asarray(self.from_known.sum(axis=1) + self.among.sum(axis=1)).ravel()

    @property
    def num_neighbours(self) -> np.ndarray:
        """Number of each new node's edges (m)."""
        parts = (sp.csr_array(part) for part in (self.from_known, self.among))
        to_known, among = (np.diff(part.indptr) for part in parts)
        return np.asarray(to_known + among)


@dataclass(frozen=True)
class NewNodes:
    """Encoded rows of new nodes, and their edges."""

    table: NodeTable
    edges: NewEdges
    has_degree: bool = False  # log(1 + degree) is their only feature

    @classmethod
    def of_joined(cls, data: Data) -> NewNodes:
        """The nodes that were joined to a training graph (``data.origin``), in their order."""
        origin, num_nodes = data.origin.numpy(), data.x.size(0)
        known_number = np.full(num_nodes, -1)
        known_number[origin] = np.arange(len(origin))
        new = np.flatnonzero(known_number < 0)
        new_number = np.full(num_nodes, -1)
        new_number[new] = np.arange(len(new))
        is_received = new_number[data.edge_index[1]] >= 0
        sender, receiver = data.edge_index.numpy()[:, is_received]
        number = np.where(new_number >= 0, new_number, len(new) + known_number)
        weight = np.ones(len(sender))
        if "edge_weight" in data:
            weight = data.edge_weight.double().numpy()[is_received]
        rows = data.x.index_select(0, torch.from_numpy(new))
        x = to_scipy(rows) if rows.is_sparse else rows.numpy()
        arrays = EncodedNodes(x, data.y.numpy()[new], data.sens.numpy()[new])
        table = NodeTable(arrays, data.__dict__["ids"].take(pa.array(new)), None)
        return cls(table, NewEdges.of(len(new), number[receiver], number[sender], weight))

    @property
    def x(self) -> Features:
        """Their features (m×d)."""
        if not self.has_degree:
            return self.table.arrays.x
        return np.log1p(self.edges.num_neighbours, dtype=np.float32)[:, None]

    def without_edges(self) -> NewNodes:
        """The same nodes, each of them alone."""
        return replace(self, edges=NewEdges.none(len(self.table.ids)))


def read_new_nodes(
    nodes: Table,
    edges: Table | None,
    index: NodeIndex | None,
    *,
    encoding: Encoding,
    report: LoadReport,
    unknown_groups: UnknownGroups = "refuse",
) -> NewNodes:
    """Encode new nodes as those of a training graph, and find their edges to it.

    Args:
        nodes: One row per new node. Where the training table had no ids, theirs continue its row
            numbers.
        edges: One row per edge, by id. Edges between two known nodes are left out.
        index: The known nodes; without it there can be no edges.
        encoding: How the training table was encoded.
        report: Notes on what was read.
        unknown_groups: See :func:`~fairmp.datasets.from_tables`.
    """
    table = encode_nodes(nodes, encoding, report, unknown_groups=unknown_groups)
    if encoding.id is None and index is not None:
        table = table._replace(ids=pa.array(len(index) + np.arange(len(table.ids))))
    if index is not None:
        refuse_known(index, table.ids)
    if edges is None:
        return NewNodes(table, NewEdges.none(len(table.ids)), encoding.degree)
    if index is None:
        value = "the model was saved without its graph, so edges to it cannot be read"
        raise InputError("edges", value, "leave them out, or save the model with its graph")
    columns = EdgeColumns(encoding.edge_source, encoding.edge_target, encoding.edge_weight)
    edge_table = EdgeTable(edges, table.ids, columns, report)
    return NewNodes(table, _read_edges(edge_table, table.ids, index, report), encoding.degree)


def refuse_known(index: NodeIndex, ids: Any) -> None:
    """Raise if one of these ids is known already."""
    is_known = index.find(ids) >= 0
    if is_known.any():
        count, example = int(is_known.sum()), ids[int(is_known.argmax())].as_py()
        others = f" ({plural(count, 'row')})" if count > 1 else ""
        value = f"{example!r}{others} is in the training graph already"
        raise InputError("nodes", value, "give new people, with ids of their own")


def _read_edges(
    edge_table: EdgeTable, new_ids: Any, index: NodeIndex, report: LoadReport
) -> NewEdges:
    """Edges with a new node at one end or both."""
    ids, new_index, num_new = edge_table.read(), NodeIndex(new_ids), len(new_ids)
    new_number = np.stack([new_index.find(column) for column in ids])
    known_number = np.stack([index.find(column) for column in ids])
    _refuse_unknown(ids, (new_number < 0) & (known_number < 0))
    # Known nodes receive nothing, so that edges between them change nothing.
    kept = np.flatnonzero((new_number >= 0).any(0))
    number = np.where(new_number >= 0, new_number, num_new + known_number)[:, kept]
    # As many numbers as there are nodes at these edges: the known graph may be large.
    neighbours = np.unique(number[number >= num_new])
    place = np.where(number < num_new, number, num_new + neighbours.searchsorted(number))
    weight = edge_table.read_weights()
    joined = undirected_edges(
        Endpoints(*place),
        num_new + len(neighbours),
        report,
        None if weight is None else weight[kept],
    )
    receiver, sender = joined.edge_index
    values = np.ones(len(receiver)) if joined.weight is None else joined.weight
    is_new = receiver < num_new
    number_of = np.concatenate([np.arange(num_new), neighbours])
    return NewEdges.of(num_new, receiver[is_new], number_of[sender[is_new]], values[is_new])


def _refuse_unknown(ids: list[Any], missing: np.ndarray) -> None:
    """Raise if an end of an edge is missing, or is neither a known nor a new node."""
    for column, absent in zip(ids, missing, strict=True):
        if not absent.any():
            continue
        row = int(absent.argmax())
        example = column[row].as_py()
        hint = "give ids of the training table or of these people"
        if example is None:
            raise InputError("edges", f"row {row + 1} has no id at one end", hint)
        count = f" ({plural(int(absent.sum()), 'row')})" if absent.sum() > 1 else ""
        value = f"{example!r} in row {row + 1}{count} is neither known nor among these people"
        raise InputError("edges", value, hint)

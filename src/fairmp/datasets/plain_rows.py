"""A few plain rows, read without pandas.

pandas takes milliseconds for the columns of one row. Here cells that need no interpretation, such
as a number in a column of numbers or a category seen in training, are encoded one by one. Where a
cell, an id or a column needs more care, :class:`NotPlainError` is raised, and
:func:`~fairmp.datasets.new_nodes.read_new_nodes` reads the rows: it gives the same encoding, or
the error in words.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from fairmp.datasets.columns import Column, Number
from fairmp.datasets.edges import INDEX_NAMES, usual_endpoints
from fairmp.datasets.encoding import EncodedNodes, Encoding
from fairmp.datasets.new_nodes import NewEdges, NewNodes, NodeIndex
from fairmp.datasets.tables import NodeTable
from fairmp.datasets.targets import Sensitive
from fairmp.datasets.values import MAX_NUMBER
from fairmp.frames import MISSING
from fairmp.metrics.inputs import CROSS

Row = Mapping[str, Any]
MAX_PEOPLE, MAX_EDGES = 64, 2000  # up to which this is faster than pandas
SPECIAL = frozenset(".+ \t\n\r")  # characters of an id that may have another spelling


class NotPlainError(Exception):
    """A row needs more care."""


def read_plain_rows(
    people: Sequence[Row],
    edges: Sequence[Row] | None,
    index: NodeIndex | None,
    *,
    encoding: Encoding,
    reads_groups: bool = True,
) -> NewNodes:
    """Encode people and find their neighbours; ``reads_groups`` says that groups are needed."""
    edges = edges or ()
    if not 0 < len(people) <= MAX_PEOPLE or len(edges) > MAX_EDGES or (edges and index is None):
        raise NotPlainError
    ids = _ids(people, index, encoding)
    features = [
        column.expand(np.array([_code(column, _cell(row, column.name)) for row in people]))
        for column in encoding.columns
    ]
    x = np.hstack(features).astype(np.float32) if features else np.empty((len(people), 0))
    sens = [_group(row, encoding) if reads_groups else -1 for row in people]
    arrays = EncodedNodes(x, np.full(len(people), -1), np.array(sens, dtype=np.int64))
    new_edges = NewEdges.none(len(people))
    if edges and index is not None:
        new_edges = _edges(edges, ids, index, encoding)
    return NewNodes(NodeTable(arrays, pa.array(ids), None), new_edges, encoding.degree)


def _cell(row: Row, name: str) -> Any:
    if name not in row:
        raise NotPlainError
    return row[name]


def _code(column: Column, cell: Any) -> float:
    """The number or the index of a cell, as ``column.codes`` returns it."""
    is_missing = cell is None or (type(cell) is float and cell != cell)
    if isinstance(column, Number):
        if is_missing:
            return math.nan
        if column.dates or type(cell) not in (int, float, bool) or abs(cell) > MAX_NUMBER:
            raise NotPlainError
        return float(cell)
    if is_missing:
        return -1
    is_plain = type(cell) in (str, int, float, bool) and cell not in MISSING
    if not is_plain or cell not in column.places:
        raise NotPlainError
    return column.places[cell]


def _group(row: Row, encoding: Encoding) -> int:
    """The group of a person, −1 where it is unknown."""
    names = [_group_name(part, _cell(row, part.column)) for part in encoding.sensitive]
    if None in names:
        return -1
    name = CROSS.join(names)  # type: ignore[arg-type]
    if name not in encoding.groups:
        raise NotPlainError
    return encoding.groups.index(name)


def _group_name(part: Sensitive, cell: Any) -> str | None:
    """The name of a value, as ``part.transform`` gives it."""
    if cell is None:
        return None
    is_plain = type(cell) is (str if part.text else int) and part.cuts is None
    if not is_plain or cell in MISSING or str(cell) in part.unknown:
        raise NotPlainError
    return f"{part.column} = {cell}" if part.named else str(cell)


def _ids(people: Sequence[Row], index: NodeIndex | None, encoding: Encoding) -> list[str | int]:
    """Ids in canonical form, which are new."""
    if encoding.id is None:
        first = 0 if index is None else len(index)
        return list(range(first, first + len(people)))
    ids = [_id(row, encoding.id) for row in people]
    is_new = index is None or all(index.number(id) < 0 for id in ids)
    # Text and integers side by side may be the same ids.
    if not is_new or len(set(ids)) < len(ids) or len({type(id) for id in ids}) > 1:
        raise NotPlainError
    return ids


def _id(row: Row, name: str) -> str | int:
    cell = _cell(row, name)
    if type(cell) is int:
        return cell
    if type(cell) is not str or not cell or not SPECIAL.isdisjoint(cell):
        raise NotPlainError
    return cell


def _edges(
    edges: Sequence[Row], ids: Sequence[str | int], index: NodeIndex, encoding: Encoding
) -> NewEdges:
    names = list(edges[0])
    if len(names) < 2 or names[0] in INDEX_NAMES:
        raise NotPlainError
    usual = usual_endpoints(names)
    source, target = encoding.edge_source or usual[0], encoding.edge_target or usual[1]
    num_new, new = len(ids), {str(id): number for number, id in enumerate(ids)}
    pairs: dict[tuple[int, int], float] = {}
    for row in edges:
        ends = []
        for id in (_id(row, source), _id(row, target)):
            number = new.get(str(id), -1)
            if number < 0 and (place := index.number(id)) >= 0:
                number = num_new + place
            if number < 0:
                raise NotPlainError
            ends.append(number)
        weight = 1.0 if encoding.edge_weight is None else _weight(row, encoding.edge_weight)
        pair = (min(ends), max(ends))
        if encoding.edge_weight is not None and pair in pairs:
            raise NotPlainError  # the weights of repeated rows add up
        pairs[pair] = weight
    return _new_edges(pairs, num_new)


def _weight(row: Row, name: str) -> float:
    cell = _cell(row, name)
    if type(cell) not in (int, float) or not 0 < cell < math.inf:
        raise NotPlainError
    return float(cell)


def _new_edges(pairs: Mapping[tuple[int, int], float], num_new: int) -> NewEdges:
    """Edges with an end that is new, in the direction of those that are."""
    ends, weights = [], []
    for (low, high), weight in pairs.items():
        if low < num_new and low != high:
            ends += [(low, high), (high, low)] if high < num_new else [(low, high)]
            weights += [weight, weight] if high < num_new else [weight]
    receiver, sender = np.array(ends, dtype=np.int64).reshape(-1, 2).T
    return NewEdges.of(num_new, receiver, sender, np.array(weights))

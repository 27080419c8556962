"""Columns of a row's neighbours, from which groups are estimated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from fairmp.errors import InputError
from fairmp.postprocessing.blind import Floats, Integers
from fairmp.postprocessing.corrections import numbers_from


@dataclass(frozen=True)
class KnownPeople:
    """The people a correction was found on, as neighbours of each other and of new people.

    To the features of a row are added the mean of its neighbours' features, their number, and the
    share of each group among those of known group, as logarithm relative to the overall share. A
    person's own group enters none of their columns.

    Attributes:
        features: n×d.
        group: −1 where unknown (n).
        num_groups: G.
        ids: how a table names them (n); empty if it does not.
    """

    features: Floats
    group: Integers
    num_groups: int
    ids: tuple[str, ...] = ()

    def columns(self, edge_index: Any) -> Floats:
        """Columns of the people themselves; edges (2×E) join their row numbers."""
        edges = _read_edges(edge_index, len(self.features), "row numbers")
        return self._columns(self.features, self.group, edges)

    def columns_of_new(self, features: Floats, edge_index: Any) -> Floats:
        """Columns of new people, who are numbered after the known ones; ``None`` for no edges."""
        num_known, num_new = len(self.features), len(features)
        edges = np.zeros((2, 0), dtype=np.int64)
        if edge_index is not None:
            hint = f"numbers of the {num_known} fitting rows, followed by these"
            edges = _read_edges(edge_index, num_known + num_new, hint)
        group = np.append(self.group, np.full(num_new, -1))
        everyone = np.vstack([self.features, features])
        return self._columns(everyone, group, edges)[num_known:]

    def _columns(self, features: Floats, group: Integers, edges: Integers) -> Floats:
        n, (source, target) = len(features), edges[:, edges[0] != edges[1]]
        receives = sp.csr_array((np.ones(len(source)), (target, source)), shape=(n, n))
        receives.data[:] = 1  # repeated edges count once
        degree = np.asarray(receives.sum(axis=1)).reshape(-1, 1)
        centre = self.features.mean(0)  # of people without neighbours
        mean = centre + (receives @ (features - centre)) / np.maximum(degree, 1)
        one_hot = (group[:, None] == np.arange(self.num_groups)).astype(float)
        counts = receives @ one_hot
        total = counts.sum(1, keepdims=True)
        overall = np.bincount(self.group[self.group >= 0], minlength=self.num_groups)
        overall = overall / overall.sum()
        shares = np.log((counts + overall) / (total + 1) / overall)
        return np.hstack([features, mean, np.log1p(degree), shares, np.log1p(total)])

    def to_dict(self) -> dict[str, Any]:
        """The people as plain JSON values."""
        return {
            "ids": list(self.ids),
            "features": self.features.tolist(),
            "group": self.group.tolist(),
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Any], groups: int) -> KnownPeople:
        """Rebuild what :meth:`to_dict` described; raise ``ValueError`` where it is damaged."""
        rows = record["features"]
        features = numbers_from(record, "features", (len(rows), len(rows[0])))
        group = numbers_from(record, "group", (len(rows),))
        if not np.isin(group, range(-1, groups)).all() or not np.isin(range(groups), group).all():
            raise ValueError(f"group does not hold each of {groups} groups")
        ids = tuple(map(str, record["ids"]))
        if len(ids) not in (0, len(rows)) or len(set(ids)) < len(ids):
            raise ValueError("ids do not name each person once")
        return cls(features, group.astype(np.int64), groups, ids)


def num_columns(features: int, groups: int) -> int:
    """Number of columns made from this many features and groups."""
    return 2 * features + groups + 2


def _read_edges(edge_index: Any, count: int, numbers: str) -> Integers:
    edges = np.asarray(edge_index)
    hint = f"give a 2×E array of {numbers}, below {count}"
    if edges.ndim != 2 or len(edges) != 2 or not np.issubdtype(edges.dtype, np.integer):
        raise InputError("edge_index", f"{edges.dtype} of shape {edges.shape}", hint)
    if edges.size and not (edges.min() >= 0 and edges.max() < count):
        raise InputError("edge_index", f"numbers from {edges.min()} to {edges.max()}", hint)
    return edges.astype(np.int64)

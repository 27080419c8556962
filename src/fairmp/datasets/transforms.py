"""Any PyG data set as fairmp reads graphs: which column is sensitive, and edges given as adj_t."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.transforms import BaseTransform

from fairmp.datasets.values import MAX_CATEGORIES, as_text, require_column
from fairmp.errors import InputError
from fairmp.groups import SIGNS, is_soft, recode_signs


class SensitiveColumn(BaseTransform):
    """Make a column of the features of any PyG data set the sensitive groups.

    ``data.sens`` gets a code per value of the column, in ascending order, ``data.group_names`` the
    values, and the column is removed from ``data.x``.

    Args:
        column: Number of the column, or its name in ``data.feature_names``.
        keep: Leave the column among the features.

    Example:
        >>> data = Data(x=torch.tensor([[1.0, 0.2], [0.0, 0.5], [1.0, 0.1]]))
        >>> data = SensitiveColumn(0)(data)
        >>> data.sens.tolist(), data.group_names, tuple(data.x.shape)
        ([1, 0, 1], ['0', '1'], (3, 1))
    """

    def __init__(self, column: int | str, *, keep: bool = False) -> None:
        self.column, self.keep = column, keep

    def forward(self, data: Data) -> Data:
        """Return a copy of the graph with ``sens``."""
        result = copy.copy(data)
        x = data.x.to_dense() if data.x.layout != torch.strided else data.x
        names = data.get("feature_names")
        place = self._place(names, x.size(1))
        values, codes = x[:, place].unique(return_inverse=True)
        if not 2 <= len(values) <= MAX_CATEGORIES:
            value = f"column {self.column!r} has {len(values):,} different values"
            hint = f"choose one with 2 to {MAX_CATEGORIES}, or set data.sens yourself"
            raise InputError("column", value, hint)
        result.sens, result.group_names = codes, [as_text(value) for value in values.tolist()]
        if not self.keep:
            others = [k for k in range(x.size(1)) if k != place]
            result.x = x[:, others]
            if names is not None and len(names) == x.size(1):
                result.feature_names = [names[k] for k in others]
        return result

    def _place(self, names: Sequence[str] | None, width: int) -> int:
        if isinstance(self.column, str):
            require_column("column", self.column, list(names or ()), "data.feature_names")
            return list(names or ()).index(self.column)
        if not -width <= self.column < width:
            raise InputError("column", f"{self.column} of {width} columns", "columns count from 0")
        return self.column % width


def as_read(data: Data, group_names: Sequence[str] | None = None) -> Data:
    """A graph with ``edge_index``, also if it has ``adj_t``, and groups −1 and 1 as 0 and 1.

    With the names of a model's groups, groups of a model that was trained on −1 and 1 are read
    alike, also where one is absent.
    """
    if not isinstance(data, Data):
        return data
    if data.get("edge_index") is None and data.get("adj_t") is not None:
        data = _with_edge_index(data)
    sens = data.get("sens")
    if not isinstance(sens, Tensor) or is_soft(sens):
        return data
    if tuple(group_names or ()) == SIGNS and bool((sens.abs() == 1).all()):
        recoded = (sens > 0).long()
    else:
        recoded = recode_signs(sens, "data.sens")
    if recoded is not sens:
        data = copy.copy(data)
        data.sens, data.group_names = recoded, data.get("group_names") or list(SIGNS)
    return data


def _with_edge_index(data: Data) -> Data:
    """A copy with the edges of ``adj_t``, which has a row per target."""
    adjacency = data.adj_t
    if not isinstance(adjacency, Tensor):
        adjacency = adjacency.to_torch_sparse_coo_tensor()  # of torch_sparse
    matrix = adjacency.to_sparse_coo().t().coalesce()  # a row per source
    result = copy.copy(data)
    result.edge_index = matrix.indices()
    if data.get("edge_weight") is None and not bool((matrix.values() == 1).all()):
        result.edge_weight = matrix.values()
    return result

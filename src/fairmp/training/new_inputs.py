"""Inputs of models for new nodes: the columns of their neighbourhoods in a fixed graph.

New nodes receive messages and known nodes stay as they were. So the columns of a known neighbour
(:mod:`fairmp.training.graph_features`) are those of the training graph, computed once, and a new
node costs as much as it has edges.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from fairmp.datasets.new_nodes import NewEdges
from fairmp.graph import Graph, from_scipy, to_scipy
from fairmp.training.graph_features import (
    MAX_SECOND,
    FeatureView,
    GraphInputs,
    adjacency_matrix,
    averaging,
    moments,
    one_hot,
    share_columns,
    side_by_side,
)

Rows: TypeAlias = Tensor | sp.csr_array


@dataclass(frozen=True)
class NewRows:
    """Features of m new nodes, their edges, and the columns computed from them so far."""

    x: Tensor  # m×d, dense or sparse
    edges: NewEdges
    columns: dict[object, Rows] = field(default_factory=dict, repr=False)


class KnownNeighbourhoods:
    """What new nodes need of the columns of known nodes, whichever model reads them."""

    def __init__(self, x: Tensor, graph: Graph) -> None:
        self.adjacency = adjacency_matrix(graph)
        is_narrow = x.size(1) <= MAX_SECOND
        self.features: np.ndarray | sp.csr_array
        self.features = x.to_dense().cpu().numpy() if is_narrow or not x.is_sparse else to_scipy(x)
        self.mean: np.ndarray | None = None
        if is_narrow:
            _, average = averaging(self.adjacency)
            self.mean = (average @ self.features.astype(np.float64)).astype(np.float32)

    def columns(self, new: NewRows) -> Tensor:
        """Features and the columns of the neighbourhood that read no labels (m×…)."""
        x, edges = new.x, new.edges
        is_sparse = sp.issparse(self.features)
        features = to_scipy(x) if is_sparse else x.to_dense().cpu().numpy()
        near = self.features[edges.known]
        joined = (
            sp.csr_array(sp.vstack([features, near], format="csr"))
            if is_sparse
            else np.concatenate([features, near])
        )
        parts = [edges.among, edges.from_known]
        is_dense = isinstance(edges.among, np.ndarray)
        received = np.hstack(parts) if is_dense else sp.csr_array(sp.hstack(parts, format="csr"))
        degree, average = averaging(received)
        known_mean = None if self.mean is None else self.mean[edges.known]
        parts = [features, *moments(joined, average, known_mean), np.log1p(degree)[:, None]]
        return side_by_side(parts, x if is_sparse else x.to_dense())


class NewInputs:
    """What the members of one blend read of new nodes; see :class:`GraphInputs`."""

    def __init__(self, inputs: GraphInputs, known: KnownNeighbourhoods) -> None:
        self.known, self.num_classes = known, inputs.num_classes
        self.labels, self.folds = inputs.labels.cpu().numpy(), inputs.folds.cpu().numpy()
        self._near: dict[int, np.ndarray] = {}  # numbers of labels one step from known nodes (n×C)

    def rows(self, view: FeatureView, fold: int, new: NewRows) -> Rows:
        """One row per new node; the labels held out in a fold are unknown to its models."""
        if view == "features":
            return new.x
        key = (self, view, fold if view == "neighbourhood" else 0)
        if key not in new.columns:
            new.columns[key] = (
                self._edges(new) if view == "edges" else self._neighbourhood(fold, new)
            )
        return new.columns[key]

    def _neighbourhood(self, fold: int, new: NewRows) -> Tensor:
        if "columns" not in new.columns:
            new.columns["columns"] = self.known.columns(new)
        columns, edges = new.columns["columns"], new.edges
        assert isinstance(columns, Tensor)
        labels = np.where(self.folds[edges.known] == fold, -1, self.labels[edges.known])
        near = edges.from_known @ one_hot(labels, self.num_classes)
        far = edges.among @ near  # new nodes have no labels, so that no walk returns to one
        if len(edges.known):
            far = far + edges.from_known @ self._near_known(fold)[edges.known]
        return torch.cat([columns, side_by_side(share_columns(near, far), columns)], dim=1)

    def _near_known(self, fold: int) -> np.ndarray:
        if fold not in self._near:
            labels = np.where(self.folds == fold, -1, self.labels)
            near = self.known.adjacency @ one_hot(labels, self.num_classes)
            self._near[fold] = near.astype(np.float32)
        return self._near[fold]

    def _edges(self, new: NewRows) -> sp.csr_array:
        """Rows of the adjacency matrix beside the features."""
        edges = new.edges
        near = sp.csr_array(edges.from_known)
        shape = near.shape[0], len(self.labels)
        row = sp.csr_array((near.data, edges.known[near.indices], near.indptr), shape=shape)
        return sp.csr_array(sp.hstack([row, to_scipy(new.x).astype(np.float64)], format="csr"))


def as_tensor(features: np.ndarray | sp.csr_array, dtype: torch.dtype) -> Tensor:
    """Encoded features as a tensor, sparse where they are."""
    x = from_scipy(sp.csr_array(features)) if sp.issparse(features) else torch.from_numpy(features)
    return x.to(dtype)

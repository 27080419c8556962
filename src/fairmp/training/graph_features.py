r"""Features of a node's neighbourhood, for models that do not read the graph themselves.

To the features X of the nodes these columns are added, A being the adjacency without self-loops:

- the mean of each feature over the neighbours, :math:`D^{-1} A X`, and if there are at most 64
  features, their standard deviation and the mean of the neighbours' means, :math:`(D^{-1} A)^2 X`;
- the degree, as :math:`\log(1 + d_i)`;
- the share of each class among the neighbours that are labelled, :math:`(c_{ik} + 1/C)/(c_i + 1)`
  with the counts :math:`c = A Y`, and their number, :math:`\log(1 + c_i)`;
- the same shares among the neighbours' neighbours, over walks that do not return to the node.

Y holds the labels of the training nodes only, in cross-fitting those of the other folds. A node's
own label enters none of its columns, so they mean the same for training nodes as for others.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn

from fairmp.graph import Graph, TensorCache, from_scipy, to_scipy

MAX_SECOND = 64  # features up to which their deviations and second means are added

Matrix: TypeAlias = np.ndarray | sp.csr_array
FeatureView = Literal["features", "neighbourhood", "edges"]
"""What a model sees of a node: its features; its features and the columns of its neighbourhood; or
its features and its row of the adjacency matrix."""


def adjacency_matrix(graph: Graph) -> sp.csr_array:
    """Adjacency without self-loops; a row holds what a node receives."""
    source, target = graph.edge_index.cpu().numpy()
    weight = np.ones(len(source))
    if graph.edge_weight is not None:
        weight = graph.edge_weight.cpu().double().numpy()
    proper = source != target
    entries = weight[proper], (target[proper], source[proper])
    return sp.csr_array(entries, shape=(graph.num_nodes, graph.num_nodes))


class Neighbourhoods:
    """The parts of the neighbourhood columns that do not depend on labels, computed once.

    Example:
        >>> graph = Graph(torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), num_nodes=3)
        >>> x, y = torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([0, -1, 1])
        >>> Neighbourhoods(x, graph).rows(y, num_classes=2)[1].round(decimals=2)
        tensor([2.0000, 2.0000, 1.0000, 2.0000, 1.1000, 0.5000, 0.5000, 1.1000, 0.5000,
                0.5000])
    """

    def __init__(self, x: Tensor, graph: Graph) -> None:
        if x.size(1) <= MAX_SECOND:
            x = x.to_dense()
        features = to_scipy(x) if x.is_sparse else x.cpu().numpy()
        self.adjacency = adjacency_matrix(graph)
        degree, average = averaging(self.adjacency)
        columns = [features, *moments(features, average), np.log1p(degree)[:, None]]
        self.columns = side_by_side(columns, x)
        walks = self.adjacency.multiply(self.adjacency.T).sum(axis=1)
        self.returning = np.asarray(walks).reshape(-1, 1)  # walks of two steps back to each node

    def rows(self, y: Tensor, num_classes: int) -> Tensor:
        """Add the columns of the neighbours' labels (n; −1 unknown)."""
        shares = _label_shares(self.adjacency, self.returning, y.cpu().numpy(), num_classes)
        labels = side_by_side(shares, self.columns)
        return torch.cat([self.columns, labels], dim=1)


def averaging(adjacency: Matrix) -> tuple[np.ndarray, Matrix]:
    """Degrees, and the matrix of means over the neighbours, D⁻¹A."""
    degree = np.asarray(adjacency.sum(axis=1)).ravel()
    inverse = np.divide(1, degree, out=np.zeros_like(degree), where=degree > 0)
    if not sp.issparse(adjacency):
        return degree, inverse[:, None] * adjacency
    return degree, sp.csr_array(sp.diags_array(inverse) @ adjacency)


def side_by_side(parts: Sequence[np.ndarray | sp.csr_array], like: Tensor) -> Tensor:
    """Columns of several arrays, sparse if the tensor is, of its type and on its device."""
    if like.is_sparse:
        dtype = torch.empty(0, dtype=like.dtype).numpy().dtype
        sparse = [sp.csr_array(part, dtype=dtype) for part in parts]
        return from_scipy(sp.csr_array(sp.hstack(sparse, format="csr"))).to(like.device)
    return torch.cat([torch.from_numpy(part).to(like) for part in parts], dim=1)


def moments(
    features: Matrix, average: Matrix, known_mean: np.ndarray | None = None
) -> list[np.ndarray | sp.csr_array]:
    """Mean over the neighbours; with few features also deviation and mean of means.

    For new nodes, ``known_mean`` has the means of their known neighbours, which come after them.
    """
    if features.shape[1] > MAX_SECOND:
        return [average.astype(features.dtype) @ features]
    features = features.astype(np.float64)
    mean = average @ features
    deviation = np.sqrt(np.maximum(average @ features**2 - mean**2, 0))
    means = mean if known_mean is None else np.concatenate([mean, known_mean])
    return [mean, deviation, average @ means]


def _label_shares(
    adjacency: sp.csr_array, returning: np.ndarray, y: np.ndarray, num_classes: int
) -> list[np.ndarray]:
    """Shares of the classes one step away, the number of labels there, and shares two steps away.

    Rounded, so that nothing is left of a node's own label.
    """
    labels = one_hot(y, num_classes)
    near = adjacency @ labels
    return share_columns(near, adjacency @ near - returning * labels)


def one_hot(y: np.ndarray, num_classes: int) -> np.ndarray:
    """One row per node, of zeros where its label is unknown (−1)."""
    rows, labelled = np.zeros((len(y), num_classes)), np.flatnonzero(y >= 0)
    rows[labelled, y[labelled]] = 1
    return rows


def share_columns(near: np.ndarray, far: np.ndarray) -> list[np.ndarray]:
    """Columns of the numbers of labels one and two steps away."""
    columns = [_smoothed_shares(near), np.log1p(near.sum(1, keepdims=True)), _smoothed_shares(far)]
    return [column.round(6) for column in columns]


def column_names(features: Sequence[str], classes: Sequence[str], kind: str = "class") -> list[str]:
    """Name the columns there are, for readers; ``kind`` is what the classes are.

    Example:
        >>> column_names(["age"], ["no", "yes"])[1:5]
        ['mean age of neighbours', 'spread of age of neighbours', \
'mean age two steps away', 'number of neighbours']
    """
    views = ["mean {} of neighbours"]
    if len(features) <= MAX_SECOND:
        views += ["spread of {} of neighbours", "mean {} two steps away"]
    names = [*features, *(view.format(name) for view in views for name in features)]
    near = [f"share of {kind} {name} among neighbours" for name in classes]
    far = [f"share of {kind} {name} two steps away" for name in classes]
    return [*names, "number of neighbours", *near, f"neighbours of known {kind}", *far]


def num_columns(features: int, num_classes: int) -> int:
    """Return the number of columns there are in all."""
    return (4 if features <= MAX_SECOND else 2) * features + 2 * num_classes + 2


def _smoothed_shares(counts: np.ndarray) -> np.ndarray:
    """Shares of a row's total, with one more node that belongs to all classes equally."""
    return (counts + 1 / counts.shape[1]) / (counts.sum(1, keepdims=True) + 1)


class GraphInputs(nn.Module):
    """Inputs of models for the nodes, and the training labels they are made from.

    The shares of the classes, and who the neighbours are, are known in the graph the model was
    trained on, and in one that contains it (``Graph.origin``). In another graph they count as
    unknown, and a warning says so.
    """

    labels: Tensor  # classes of the training nodes, −1 for all others (n)
    folds: Tensor  # the fold each of them is held out in, −1 for none (n)
    trained_on: Tensor  # fingerprint of the graph they belong to

    def __init__(
        self,
        labels: Tensor,
        trained_on: Tensor,
        num_classes: int,
        folds: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.register_buffer("labels", labels)
        self.register_buffer("folds", torch.full_like(labels, -1) if folds is None else folds)
        self.register_buffer("trained_on", trained_on)
        self._neighbourhoods, self._cache = TensorCache(size=2), TensorCache(size=3)

    def forward(
        self, view: FeatureView, x: Tensor, graph: Graph, fold: int = 0
    ) -> Tensor | sp.csr_array:
        """Return one row per node: dense, or sparse if a model reads the edges.

        The labels of the nodes held out in a fold are unknown to its models.
        """
        if view == "features":
            return x
        key = (x, graph.edge_index, graph.edge_weight, self.labels)
        if view == "edges":
            return self._cache.get(key, view, lambda: self._edges(x, graph))
        return self._cache.get(key, (view, fold), lambda: self._neighbourhood(x, graph, fold))

    def _neighbourhood(self, x: Tensor, graph: Graph, fold: int) -> Tensor:
        y = self.labels.new_full((graph.num_nodes,), -1)
        has_labels = bool((self.labels >= 0).any())
        origin = self._origin(graph) if has_labels else None
        if origin is not None:
            y[origin.to(y.device)] = torch.where(self.folds == fold, -1, self.labels)
        key = (x, graph.edge_index, graph.edge_weight)
        shared = self._neighbourhoods.get(key, "columns", lambda: Neighbourhoods(x, graph))
        return shared.rows(y, self.num_classes)

    def _edges(self, x: Tensor, graph: Graph) -> sp.csr_array:
        origin = self._origin(graph)
        edges = sp.csr_array((graph.num_nodes, self.labels.numel()))
        if origin is not None:
            edges = adjacency_matrix(graph)[:, origin.cpu().numpy()]
        return sp.csr_array(sp.hstack([edges, to_scipy(x).astype(np.float64)]))

    def _origin(self, graph: Graph) -> Tensor | None:
        """Where the nodes of the training graph are in this one, if it contains them."""
        origin = graph.origin
        if origin is None and torch.equal(fingerprint(graph), self.trained_on.cpu()):
            origin = torch.arange(graph.num_nodes)
        if origin is not None and origin.numel() == self.labels.numel():
            return origin
        text = (
            "the model was trained on another graph: labels of neighbours, and what it learned "
            "about single nodes, are not used; graph_features=False trains without them"
        )
        warnings.warn(text, UserWarning, stacklevel=3)
        return None


def fingerprint(graph: Graph) -> Tensor:
    """Number of nodes and a hash of the edges, whatever their order (2)."""
    source, target = graph.edge_index.cpu()
    mixed = (source * graph.num_nodes + target) * 0x1E3779B97F4A7C15
    mixed = (mixed ^ (mixed >> 29)) * 0x3F58476D1CE4E5B9
    return torch.stack([torch.tensor(graph.num_nodes), (mixed ^ (mixed >> 32)).sum()])

r"""Features of a node's neighbourhood, for models that do not read the graph themselves.

To the features X of the nodes these columns are added, A being the adjacency without self-loops:

- the mean of each feature over the neighbours, :math:`D^{-1} A X`, and if there are at most 64
  features, their standard deviation and the mean of the neighbours' means, :math:`(D^{-1} A)^2 X`;
- the degree, as :math:`\log(1 + d_i)`;
- the share of each class among the neighbours that are labelled, :math:`(c_{ik} + 1/C)/(c_i + 1)`
  with the counts :math:`c = A Y`, and their number, :math:`\log(1 + c_i)`;
- the same shares among the neighbours' neighbours, over walks that do not return to the node.

Y holds the labels of the training nodes only. A node's own label enters none of its columns, so
they mean the same for training nodes as for others.
"""

from __future__ import annotations

import warnings
from typing import Literal

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn

from fairmp.errors import InputError
from fairmp.graph import Graph, TensorCache, from_scipy, to_scipy

MAX_SECOND = 64  # features up to which their deviations and second means are added

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


def neighbourhood(x: Tensor, graph: Graph, y: Tensor, num_classes: int) -> Tensor:
    """Return features with the columns above; labels are −1 outside the training nodes.

    Example:
        >>> graph = Graph(torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), num_nodes=3)
        >>> x, y = torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([0, -1, 1])
        >>> neighbourhood(x, graph, y, num_classes=2)[1].round(decimals=2)
        tensor([2.0000, 2.0000, 1.0000, 2.0000, 1.1000, 0.5000, 0.5000, 1.1000, 0.5000,
                0.5000])
    """
    if y.shape != (graph.num_nodes,):
        raise InputError("y", f"shape {tuple(y.shape)}", f"give one per node, {graph.num_nodes}")
    if x.size(1) <= MAX_SECOND:
        x = x.to_dense()
    features = to_scipy(x) if x.is_sparse else x.cpu().numpy()
    adjacency = adjacency_matrix(graph)
    degree = np.asarray(adjacency.sum(axis=1)).ravel()
    inverse = np.divide(1, degree, out=np.zeros_like(degree), where=degree > 0)
    columns = [
        features,
        *_moments(features, sp.diags_array(inverse) @ adjacency),
        np.log1p(degree)[:, None],
        *_label_shares(adjacency, y.cpu().numpy(), num_classes),
    ]
    if x.is_sparse:
        parts = [sp.csr_array(part, dtype=features.dtype) for part in columns]
        return from_scipy(sp.csr_array(sp.hstack(parts, format="csr"))).to(x.device)
    return torch.cat([torch.from_numpy(part).to(x) for part in columns], dim=1)


def _moments(
    features: np.ndarray | sp.csr_array, average: sp.csr_array
) -> list[np.ndarray | sp.csr_array]:
    """Mean over the neighbours; with few features also deviation and mean of means."""
    if features.shape[1] > MAX_SECOND:
        return [average.astype(features.dtype) @ features]
    features = features.astype(np.float64)
    mean = average @ features
    deviation = np.sqrt(np.maximum(average @ features**2 - mean**2, 0))
    return [mean, deviation, average @ mean]


def _label_shares(adjacency: sp.csr_array, y: np.ndarray, num_classes: int) -> list[np.ndarray]:
    """Shares of the classes one step away, the number of labels there, and shares two steps away.

    Rounded, so that nothing is left of a node's own label.
    """
    one_hot, labelled = np.zeros((len(y), num_classes)), np.flatnonzero(y >= 0)
    one_hot[labelled, y[labelled]] = 1
    near = adjacency @ one_hot
    returning = np.asarray(adjacency.multiply(adjacency.T).sum(axis=1))  # walks of two steps
    far = adjacency @ near - returning.reshape(-1, 1) * one_hot
    columns = [_smoothed_shares(near), np.log1p(near.sum(1, keepdims=True)), _smoothed_shares(far)]
    return [column.round(6) for column in columns]


def num_columns(features: int, num_classes: int) -> int:
    """Return the number of columns there are in all."""
    return (4 if features <= MAX_SECOND else 2) * features + 2 * num_classes + 2


def _smoothed_shares(counts: np.ndarray) -> np.ndarray:
    """Shares of a row's total, with one more node that belongs to all classes equally."""
    return (counts + 1 / counts.shape[1]) / (counts.sum(1, keepdims=True) + 1)


class GraphInputs(nn.Module):
    """What models read of the nodes, and the training labels that this takes.

    The shares of the classes, and who the neighbours are, are known in the graph the model was
    trained on, and in one that contains it (``Graph.origin``). In another graph they count as
    unknown, and a warning says so.
    """

    labels: Tensor  # classes of the training nodes, −1 for all others (n)
    trained_on: Tensor  # fingerprint of the graph they belong to

    def __init__(self, labels: Tensor, trained_on: Tensor, num_classes: int) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.register_buffer("labels", labels)
        self.register_buffer("trained_on", trained_on)
        self._cache = TensorCache(size=8)

    def forward(self, view: FeatureView, x: Tensor, graph: Graph) -> Tensor | sp.csr_array:
        """Return one row per node: dense, or sparse if a model reads the edges."""
        if view == "features":
            return x
        key = (x, graph.edge_index, graph.edge_weight, self.labels)
        return self._cache.get(key, view, lambda: self._rows(view, x, graph))

    def _rows(self, view: FeatureView, x: Tensor, graph: Graph) -> Tensor | sp.csr_array:
        origin = self._origin(graph)
        if view == "neighbourhood":
            y = self.labels.new_full((graph.num_nodes,), -1)
            if origin is not None:
                y[origin.to(y.device)] = self.labels
            return neighbourhood(x, graph, y, self.num_classes)
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

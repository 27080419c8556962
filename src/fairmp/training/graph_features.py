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
from functools import cached_property
from typing import Literal

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn

from fairmp.errors import InputError
from fairmp.graph import Graph, TensorCache

MAX_SECOND = 64  # features up to which their deviations and second means are added

Reads = Literal["features", "neighbourhood", "edges"]
"""What a model sees of a node: its features; those with the columns of its neighbourhood; or its
features and who its neighbours are, a row of the adjacency matrix."""


class Neighbourhood:
    """The features of a graph's nodes, and what can be computed from those of their neighbours.

    Args:
        x: features (n×d).
        graph: the graph; a row of its adjacency holds what a node receives.

    Example:
        >>> graph = Graph(torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), num_nodes=3)
        >>> around = Neighbourhood(torch.tensor([[1.0], [2.0], [3.0]]), graph)
        >>> around.columns(torch.tensor([0, -1, 1]), num_classes=2)[1].round(decimals=2)
        tensor([2.0000, 2.0000, 1.0000, 2.0000, 1.1000, 0.5000, 0.5000, 1.1000, 0.5000,
                0.5000])
    """

    def __init__(self, x: Tensor, graph: Graph) -> None:
        self.x = x
        source, target = graph.edge_index.cpu().numpy()
        given, proper = graph.edge_weight, source != target
        weight = np.ones(len(source)) if given is None else given.cpu().double().numpy()
        entries = weight[proper], (target[proper], source[proper])
        self.adjacency = sp.csr_array(entries, shape=(graph.num_nodes, graph.num_nodes))
        self.degree = np.asarray(self.adjacency.sum(axis=1)).ravel()

    @cached_property
    def unlabelled(self) -> Tensor:
        """The columns that no label enters: X, moments of the neighbours' features, the degree."""
        x = self.x.cpu().numpy()
        inverse = np.divide(1, self.degree, out=np.zeros_like(self.degree), where=self.degree > 0)
        average, narrow = sp.diags_array(inverse) @ self.adjacency, x.shape[1] <= MAX_SECOND
        mean = average @ x.astype(np.float64) if narrow else average.astype(x.dtype) @ x
        columns = [x, mean]
        if narrow:
            square = average @ x.astype(np.float64) ** 2
            columns += [np.sqrt(np.maximum(square - mean**2, 0)), average @ mean]
        columns.append(np.log1p(self.degree)[:, None])
        return torch.cat([torch.from_numpy(part).to(self.x) for part in columns], dim=1)

    @cached_property
    def _returns(self) -> np.ndarray:
        """Weight of the walks of two steps that return to their node."""
        return np.asarray(self.adjacency.multiply(self.adjacency.T).sum(axis=1)).ravel()

    def shares(self, labels: Tensor, num_classes: int) -> Tensor:
        """Shares of the classes among labelled neighbours, their number, and at two steps.

        ``labels`` are those of the training nodes, −1 for all others. Returns n×(2C+1).
        """
        n = self.adjacency.shape[0]
        if labels.shape != (n,):
            raise InputError("labels", f"shape {tuple(labels.shape)}", f"give one per node, {n}")
        y = labels.cpu().numpy()
        known = np.flatnonzero(y >= 0)
        truth = np.zeros((n, num_classes))
        truth[known, y[known]] = 1
        near = self.adjacency @ truth
        far = self.adjacency @ near - self._returns[:, None] * truth
        number = near.sum(1, keepdims=True)
        columns = np.concatenate([_smoothed(near), np.log1p(number), _smoothed(far)], axis=1)
        # What is left of a node's own label by rounding is cut off.
        return torch.from_numpy(columns.round(6)).to(self.x)

    def columns(self, labels: Tensor, num_classes: int) -> Tensor:
        """All columns, with the labels of the training nodes, −1 for all others."""
        return torch.cat([self.unlabelled, self.shares(labels, num_classes)], dim=1)


def num_columns(features: int, num_classes: int) -> int:
    """Return the number of columns there are in all."""
    return (4 if features <= MAX_SECOND else 2) * features + 2 * num_classes + 2


def _smoothed(counts: np.ndarray) -> np.ndarray:
    """Shares of a row's total, with one more node that belongs to all classes equally."""
    return (counts + 1 / counts.shape[1]) / (counts.sum(1, keepdims=True) + 1)


class GraphInputs(nn.Module):
    """What models read of the nodes, and the training labels that this takes.

    The shares of the classes, and who the neighbours are, are known in the graph the model was
    trained on, and in one that contains it (``Graph.origin``). In another graph they count as
    unknown, and a warning says so.

    Args:
        labels: classes of the training nodes, −1 for all others (n).
        trained_on: fingerprint of the graph they belong to.
        num_classes: number of classes.
    """

    labels: Tensor
    trained_on: Tensor

    def __init__(self, labels: Tensor, trained_on: Tensor, num_classes: int) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.register_buffer("labels", labels)
        self.register_buffer("trained_on", trained_on)
        self._cache = TensorCache(size=8)

    @classmethod
    def of(cls, labels: Tensor, graph: Graph, num_classes: int) -> GraphInputs:
        """Build from the graph itself."""
        return cls(labels, fingerprint(graph), num_classes)

    def forward(self, reads: Reads, x: Tensor, graph: Graph) -> Tensor | sp.csr_array:
        """Return one row per node: dense, or sparse if a model reads the edges."""
        if reads == "features":
            return x
        key = (x, graph.edge_index, graph.edge_weight)
        around = self._cache.get(key, "neighbourhood", lambda: Neighbourhood(x, graph))
        return self._cache.get((*key, self.labels), reads, lambda: self._rows(reads, around, graph))

    def _rows(self, reads: Reads, around: Neighbourhood, graph: Graph) -> Tensor | sp.csr_array:
        n, known, place = graph.num_nodes, self.labels.numel(), graph.origin
        if place is None and torch.equal(fingerprint(graph), self.trained_on.cpu()):
            place = torch.arange(n)
        if place is None or place.numel() != known:
            place = None
            warnings.warn(
                "the model was trained on another graph: labels of neighbours, and what it learned "
                "about single nodes, are not used; graph_features=False trains without them",
                UserWarning,
                stacklevel=2,
            )
        if reads == "neighbourhood":
            labels = self.labels.new_full((n,), -1)
            if place is not None:
                labels[place.to(labels.device)] = self.labels
            return around.columns(labels, self.num_classes)
        edges = sp.csr_array((n, known))
        if place is not None:
            edges = around.adjacency[:, place.cpu().numpy()]
        return sp.csr_array(sp.hstack([edges, sp.csr_array(around.x.cpu().double().numpy())]))


def fingerprint(graph: Graph) -> Tensor:
    """Number of nodes and a hash of the edges, whatever their order (2)."""
    source, target = graph.edge_index.cpu()
    mixed = (source * graph.num_nodes + target) * 0x1E3779B97F4A7C15
    mixed = (mixed ^ (mixed >> 29)) * 0x3F58476D1CE4E5B9
    return torch.stack([torch.tensor(graph.num_nodes), (mixed ^ (mixed >> 32)).sum()])

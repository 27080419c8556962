"""Which epoch of a rival is kept: chosen on validation nodes, as its paper does."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch_geometric.data import Data


class LowestLoss:
    """Keeps the weights of the epoch with the lowest cross-entropy of the validation nodes."""

    def __init__(self, network: nn.Module, data: Data) -> None:
        self.network = network
        self.val = labelled(data, data.val_mask)
        self.y = data.y[self.val].float()
        self.lowest = float("inf")
        self.weights = copy.deepcopy(network.state_dict())

    def add(self, logits: Tensor) -> None:
        """Judge an epoch by the logits of class 1 of the validation nodes, ``val``."""
        loss = float(binary_cross_entropy_with_logits(logits, self.y))
        if loss < self.lowest:
            self.lowest, self.weights = loss, copy.deepcopy(self.network.state_dict())

    def restore(self) -> None:
        """Give the network the weights that were kept."""
        self.network.load_state_dict(self.weights)


class SmallestGap:
    """Keeps the weights of the epoch with the smallest gap among accurate ones.

    Among epochs within ``max_loss`` of the highest validation accuracy so far the smallest gap of
    decisions wins; with ``max_loss=0`` accuracy alone decides.
    """

    def __init__(self, network: nn.Module, data: Data, max_loss: float) -> None:
        self.network, self.max_loss = network, max_loss
        self.val = labelled(data, data.val_mask)
        self.y, self.sens = data.y[self.val], data.sens[self.val]
        self.epochs: list[tuple[float, float]] = []
        self.kept = (-1.0, 1.0)
        self.weights = copy.deepcopy(network.state_dict())

    def add(self, logits: Tensor) -> None:
        """Judge an epoch by the logits of class 1 of the validation nodes, ``val``."""
        decided = logits > 0
        accuracy = float((decided == (self.y == 1)).double().mean())
        rates = [decided[self.sens == group].double().mean() for group in (0, 1)]
        gap = float((rates[0] - rates[1]).abs()) if self.max_loss else 0.0
        highest = max(accuracy, *(epoch[0] for epoch in self.epochs), 0.0)
        self.epochs.append((accuracy, gap))
        limit = highest - self.max_loss
        is_better = gap < self.kept[1] or (gap == self.kept[1] and accuracy > self.kept[0])
        if accuracy >= limit and (is_better or self.kept[0] < limit):
            self.kept, self.weights = (accuracy, gap), copy.deepcopy(self.network.state_dict())

    def restore(self) -> None:
        """Give the network the weights that were kept."""
        self.network.load_state_dict(self.weights)


def labelled(data: Data, mask: Tensor) -> Tensor:
    """Numbers of the labelled nodes in a mask."""
    return (mask & (data.y >= 0)).nonzero().flatten()


def as_probabilities(logits: Tensor) -> Tensor:
    """Probabilities of two classes, from the logits of class 1."""
    p = logits.sigmoid()
    return torch.stack([1 - p, p], 1)

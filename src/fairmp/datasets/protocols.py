"""Evaluation protocols of the literature."""

from __future__ import annotations

import copy
import random

import torch
from torch import Tensor
from torch_geometric.data import Data

from fairmp.datasets.splits import Split
from fairmp.errors import InputError, check_integer

LABEL_NUMBERS = {  # training nodes, by data set
    **dict.fromkeys(("German", "Bail", "Bail without TIME"), 100),
    "Credit": 6000,
}
SEED = 20


def nifty_split(y: Tensor, label_number: int, *, seed: int = SEED) -> Split:
    """Split the nodes as NIFTY, EDITS, FairVGNN, FairSIN and PyGDebias do.

    The nodes of each class are shuffled. Training takes the first ``label_number / 2`` of two
    classes, but no more than half of a class, so that its classes are balanced; validation takes
    the third quarter of each class and test the fourth. Groups are not used.

    Args:
        y: class of each node; −1 is unknown.
        label_number: training nodes of all classes together.
        seed: of the shuffling.

    Example:
        >>> y = torch.tensor([0] * 20 + [1] * 100)
        >>> [torch.bincount(y[mask]).tolist() for mask in nifty_split(y, 40)]
        [[10, 20], [5, 25], [5, 25]]
    """
    check_integer("label_number", label_number, "give the number of training nodes", low=2)
    classes = y[y >= 0].unique().tolist()
    if len(classes) < 2:
        raise InputError("y", "fewer than two classes are known", "give labelled nodes")
    generator = random.Random(seed)
    part = torch.full(y.shape, -1)
    for label in classes:
        train, val, test = _parts(y == label, generator)
        part[train[: label_number // len(classes)]], part[val], part[test] = 0, 1, 2
    return Split(*(part == k for k in range(3)))


def _parts(mask: Tensor, generator: random.Random) -> list[list[int]]:
    """Shuffle the nodes of a mask, and cut them into 50, 25 and 25 %."""
    nodes = mask.nonzero()[:, 0].tolist()
    generator.shuffle(nodes)
    half, three_quarters = int(0.5 * len(nodes)), int(0.75 * len(nodes))
    return [nodes[:half], nodes[half:three_quarters], nodes[three_quarters:]]


def nifty(data: Data, *, label_number: int | None = None, seed: int = SEED) -> Data:
    """Prepare a graph for NIFTY's protocol: its split, and its scale of the features.

    Each feature is scaled to [−1, 1], except on German. The sensitive column is a feature in this
    protocol: load the graph with ``sens_in_features=True, scale="none"``.

    Args:
        data: a graph.
        label_number: training nodes; 100 for German and Bail and 6,000 for Credit by default.
        seed: of the split.

    Returns:
        A shallow copy with masks and scaled features.

    Example:
        >>> from fairmp.datasets import social_network
        >>> data = nifty(social_network(n=2000, average_degree=10), label_number=100)
        >>> [int(data[part].sum()) for part in ("train_mask", "val_mask", "test_mask")]
        [100, 500, 500]
        >>> round(float(data.x.min()), 2), round(float(data.x.max()), 2)
        (-1.0, 1.0)
    """
    name = str(data.get("name", ""))
    if label_number is None and name not in LABEL_NUMBERS:
        value = f"unknown for the graph {name!r}"
        raise InputError("label_number", value, "give the number of training nodes")
    result = copy.copy(data)
    count = LABEL_NUMBERS[name] if label_number is None else label_number
    result.train_mask, result.val_mask, result.test_mask = nifty_split(data.y, count, seed=seed)
    if name != "German":
        low, high = data.x.amin(0), data.x.amax(0)
        result.x = 2 * (data.x - low) / (high - low).clamp(min=1e-12) - 1
    return result


def fairgnn(data: Data, *, known_groups: int = 500, seed: int = SEED) -> Data:
    """Prepare a graph for the protocol of FairGNN's code, which the paper on FMP uses.

    The labelled nodes are shuffled once and split 50/25/25, without regard to class or group.
    The groups of at most ``known_groups`` nodes outside validation and test are known in training.

    Args:
        data: a graph.
        known_groups: number of known groups.
        seed: of the split.

    Returns:
        A shallow copy with masks, and −1 for the groups that are not known.

    Example:
        >>> from fairmp.datasets import social_network
        >>> data = fairgnn(social_network(n=2000, average_degree=10), known_groups=200)
        >>> int(data.train_mask.sum()), int((data.sens >= 0).sum())
        (1000, 1200)
    """
    train, val, test = _parts(data.y >= 0, random.Random(seed))
    part = torch.zeros_like(data.y)
    part[train], part[val], part[test] = 1, 2, 3
    others = ((data.sens >= 0) & (part < 2)).nonzero()[:, 0].tolist()
    random.Random(seed).shuffle(others)
    result = copy.copy(data)
    result.sens = torch.where(part < 2, -1, data.sens)
    result.sens[others[:known_groups]] = data.sens[others[:known_groups]]
    result.train_mask, result.val_mask, result.test_mask = (part == k for k in (1, 2, 3))
    return result

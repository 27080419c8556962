from __future__ import annotations

import torch

from benchmarks.balanced import split_by_protocol
from fairmp.datasets import social_network
from fairmp.datasets.splits import with_split


def test_training_classes_are_balanced_whatever_split_the_graph_came_with() -> None:
    graph = with_split(social_network(n=400, average_degree=6), seed=0)
    data = split_by_protocol(graph, seed=20, label_number=100)
    assert torch.bincount(data.y[data.train_mask]).tolist() == [50, 50]
    assert not torch.equal(data.train_mask, split_by_protocol(graph, 21, 100).train_mask)
    graph.protocol = "nifty"
    assert split_by_protocol(graph, seed=20) is graph

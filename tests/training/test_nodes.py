from __future__ import annotations

import torch
from torch_geometric.data import Data

from fairmp import FMP, PPR
from fairmp.datasets import social_network
from fairmp.training.nodes import LocalReducer, Names, TrainingNodes, graph_of


def nodes_of(data: Data) -> TrainingNodes:
    return TrainingNodes(data, graph_of(data), Names.of(data))


def test_names_of_a_graph_and_of_one_without() -> None:
    data = social_network(n=100, average_degree=4, features=3)
    assert Names.of(data) == Names(data.feature_names, data.class_names, data.group_names)
    data.x = data.x[:, :2]  # which names are left is unknown
    assert Names.of(data).features == ["0", "1"]
    bare = Data(x=data.x, y=data.y, sens=torch.nn.functional.one_hot(data.sens, 3).float())
    assert Names.of(bare) == Names(["0", "1"], ["0", "1"], ["0", "1", "2"])


def test_group_operator_is_built_once_per_part() -> None:
    data = social_network(n=100, average_degree=4)
    data.sens[::5] = -1
    nodes = nodes_of(data)
    operator = nodes.group_operator("val_mask")
    assert nodes.group_operator("val_mask") is operator
    assert torch.equal(operator.population, data.val_mask & (data.sens >= 0))
    assert nodes.with_features(data.x[:, :1]).group_operator("val_mask") is operator


def test_groups_for_fair_and_plain_propagation() -> None:
    nodes = nodes_of(social_network(n=100, average_degree=4))
    fair, plain = (nodes.groups_for(layer, "train_mask") for layer in (FMP(), PPR()))
    assert fair.sens is nodes.group_operator("train_mask")
    assert fair.population is None
    assert plain.sens is nodes.data.sens
    assert torch.equal(plain.population, nodes.data.train_mask)


def test_local_reducer_returns_what_it_gets() -> None:
    reducer, part = LocalReducer(), torch.ones(3)
    assert reducer.total(part) is part
    assert reducer.on_rank_zero(lambda rows, none: (rows, none), part, None) == (part, None)

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch_geometric.data import Data

from benchmarks import baselines, networks
from fairmp import FairClassifier
from fairmp.datasets import social_network
from fairmp.datasets.splits import with_split
from fairmp.graph import Graph


@pytest.fixture(scope="module")
def data() -> Data:
    return with_split(social_network(n=200, seed=0), seed=0)


def network(name: str, data: Data) -> nn.Module:
    torch.manual_seed(0)
    return networks.build(name, data, hidden=8, num_layers=2, dropout=0.5).eval()


@pytest.mark.parametrize("name", networks.RESIDUAL)
def test_permuting_nodes_permutes_the_output(name: str, data: Data) -> None:
    model = network(name, data)
    order = torch.randperm(data.num_nodes, generator=torch.Generator().manual_seed(1))
    permuted_edges = torch.argsort(order)[data.edge_index]
    plain = model(data.x, Graph(data.edge_index, num_nodes=data.num_nodes))
    permuted = model(data.x[order], Graph(permuted_edges, num_nodes=data.num_nodes))
    torch.testing.assert_close(permuted, plain[order], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", networks.RESIDUAL)
def test_residual_network_without_convolutions_is_a_dense_network(name: str, data: Data) -> None:
    model = network(name, data)
    for parameter in model.convolutions.parameters():
        nn.init.zeros_(parameter)
    graph = Graph(data.edge_index, num_nodes=data.num_nodes)
    dense = model.leave(model.norms[-1](model.enter(data.x)).relu())
    torch.testing.assert_close(model(data.x, graph), dense)


def test_link_reads_the_rows_of_the_adjacency_matrix(data: Data) -> None:
    model = network("link", data)
    logits = model(data.x, Graph(data.edge_index, num_nodes=data.num_nodes))
    adjacency = torch.zeros(data.num_nodes, data.num_nodes)
    adjacency[data.edge_index[1], data.edge_index[0]] = 1.0
    weight, bias = model.linear.weight, model.linear.bias
    torch.testing.assert_close(logits, adjacency @ weight + bias, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", networks.NETWORKS)
def test_network_trains_as_a_backbone(name: str, data: Data) -> None:
    model = FairClassifier(None, backbone=network(name, data), epochs=3)
    model.fit(data, bootstrap=0, progress=False)
    assert 0 <= model.run_.test.accuracy <= 1


def test_every_method_has_as_many_trials_as_the_default_has_candidates() -> None:
    for settings in (baselines.SETTINGS, baselines.TREE_SETTINGS):
        assert len({str(setting) for setting in settings}) == baselines.TRIALS
    for name in ("hidden", "num_layers"):
        assert len({setting[name] for setting in baselines.SETTINGS}) > 1


@pytest.mark.parametrize("method", ["residual-gcn", "trees", "neighbourhood-trees"])
def test_measure_reports_validation_and_test_figures(
    method: str, data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(baselines, "read_graph", lambda *_: data)
    is_tree = method in baselines.TREES
    setting = dict((baselines.TREE_SETTINGS if is_tree else baselines.SETTINGS)[0])
    job = {"data": "embedded", "method": method, "split": 0, "setting": setting}
    record = baselines.measure(None, None, "cpu", job)
    parts = {"val", "test", "fair"} if is_tree else {"val", "test"}
    assert parts <= record.keys()
    assert record["setting"] == job["setting"]
    assert all(0 <= record[part]["accuracy"] <= 1 for part in parts)


def test_neighbourhood_trees_never_read_labels_outside_training(data: Data) -> None:
    train = data.train_mask
    job = {"method": "neighbourhood-trees"}
    hidden = data.clone()
    hidden.y = torch.where(train, data.y, 1 - data.y)
    assert torch.equal(*(baselines._columns(graph, job, train) for graph in (data, hidden)))
    assert baselines._columns(data, job, train).size(1) > data.num_features

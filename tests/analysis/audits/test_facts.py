from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import assume, given
from torch_geometric.data import Data
from torch_geometric.utils import to_undirected

from fairmp import InputError, audit
from fairmp.analysis.audits.facts import CleanGraph, describe, sensitive_homophily
from fairmp.datasets import social_network
from tests.graphs import problems


@pytest.fixture(scope="module")
def network() -> Data:
    return social_network(n=2000, average_degree=12)


@given(problems())
def test_adjusted_homophily_is_the_assortativity_of_the_groups(problem):
    _, edges, sens = problem
    edges = to_undirected(edges[:, edges[0] != edges[1]], num_nodes=len(sens))
    graph = nx.Graph(edges.T.tolist())
    nx.set_node_attributes(graph, dict(enumerate(sens.tolist())), "group")
    graph = graph.subgraph([node for node in graph if sens[node] >= 0])
    result = sensitive_homophily(edges, sens)
    assert (result.raw is None) == (not graph.number_of_edges())
    assume(graph.number_of_edges())
    inside = [sens[a] == sens[b] for a, b in graph.edges]
    assert result.raw == pytest.approx(np.mean(inside))
    if len({int(sens[node]) for edge in graph.edges for node in edge}) > 1:
        expected = nx.attribute_assortativity_coefficient(graph, "group")
        assert result.adjusted == pytest.approx(expected)
    else:
        assert result.adjusted is None


def test_clean_graph_is_undirected_without_self_loops_and_named() -> None:
    data = Data(
        x=torch.eye(3),
        edge_index=torch.tensor([[0, 1, 2], [1, 1, 0]]),
        sens=torch.tensor([0, 1, 1]),
        group_names=["a"],  # too few
    )
    clean = CleanGraph.of(data)
    assert clean.data.edge_index.tolist() == [[0, 0, 1, 2], [1, 2, 0, 0]]
    assert clean.data.group_names == ["0", "1"]
    assert clean.data.feature_names == ["0", "1", "2"]
    assert clean.data.y.tolist() == [-1, -1, -1]
    assert len(clean.notes) == 2


def test_description_is_the_part_of_an_audit_that_needs_no_averaging(network: Data) -> None:
    record = audit(network, steps=1).to_dict()
    for key, value in describe(network).items():
        if key != "verdict":
            assert record[key] == value


def test_groups_are_counted(network: Data) -> None:
    result = audit(network, steps=1)
    assert (result.nodes, result.directed_edges) == (2000, network.edge_index.size(1))
    assert result.edges == result.directed_edges // 2
    assert result.density == pytest.approx(result.directed_edges / (2000 * 1999))
    assert result.c == pytest.approx(float((network.sens == 1).double().mean()))
    degree = torch.bincount(network.edge_index[0], minlength=2000)
    for g, row in enumerate(result.groups):
        member = network.sens == g
        assert row.nodes == int(member.sum())
        assert row.mean_degree == pytest.approx(float(degree[member].double().mean()))
        assert row.median_degree == np.median(degree[member])
        assert row.base_rates[1] == pytest.approx(float(network.y[member].double().mean()))
        reached = network.sens[network.edge_index[1][network.sens[network.edge_index[0]] == g]]
        assert row.inside == pytest.approx(float((reached == g).double().mean()))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sens": None}, "data.sens: missing"),
        ({"x": None}, "data.x: missing"),
        ({"sens": torch.zeros(2000, dtype=torch.int64)}, "sens: 1 group"),
        ({"sens": torch.full((2000,), -1)}, "sens: 0 groups"),
        ({"sens": 2 * (torch.arange(2000) % 2)}, "sens: group 1 has no node"),
        ({"edge_index": torch.tensor([[0], [2000]])}, "data.edge_index"),
        ({"edge_index": torch.tensor([[0], [-1]])}, "data.edge_index"),
    ],
)
def test_wrong_graph_is_refused(network, change, words):
    broken = network.clone()
    for key, value in change.items():
        broken[key] = value
    with pytest.raises(InputError, match=words):
        audit(broken)

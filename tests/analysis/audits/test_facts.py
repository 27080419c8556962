from __future__ import annotations

import os
from dataclasses import astuple
from itertools import product

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import assume, given
from numpy.testing import assert_allclose
from sklearn.metrics import balanced_accuracy_score
from torch_geometric.data import Data
from torch_geometric.utils import to_undirected

from fairmp import InputError, audit
from fairmp.analysis.audits.facts import CleanGraph, best_thresholds, describe, sensitive_homophily
from fairmp.datasets import social_network
from fairmp.graph import to_scipy
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


@pytest.mark.parametrize("seed", range(20))
def test_best_threshold_equals_brute_force(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(4, 60))
    x = rng.integers(0, rng.integers(2, 12), (n, 3)).astype(float)
    positive = rng.random(n) < rng.random()
    positive[:2] = [True, False]
    for column, best in zip(x.T, best_thresholds(x, positive), strict=True):
        assert best.smallest == column.min()
        rules = [(column > t) == up for t, up in product(np.unique(column)[:-1], (True, False))]
        scores = [balanced_accuracy_score(positive, rule) for rule in rules]
        assert best.balanced == pytest.approx(max([*scores, 0.5]))
        if rules:
            rule = (column > best.value) == best.above
            assert balanced_accuracy_score(positive, rule) == pytest.approx(best.balanced)
            assert best.agreement == pytest.approx((rule == positive).mean())


def test_thresholds_of_sparse_columns_are_those_of_dense_ones() -> None:
    rng = np.random.default_rng(2)
    x = rng.normal(size=(50, 20)) * (rng.random((50, 20)) < 0.2)
    x[:, 0], x[:, 1] = 0, 1.0
    positive = rng.random(50) < 0.4
    dense = [astuple(best) for best in best_thresholds(x, positive)]
    sparse = [astuple(best) for best in best_thresholds(to_scipy(torch.tensor(x)), positive)]
    assert_allclose(dense, sparse)


def leaking() -> Data:
    data = social_network(n=600, average_degree=6)
    rng = np.random.default_rng(0)
    days = np.where(data.y.numpy() == 1, rng.integers(1, 400, 600), 0)
    days[:6] = np.where(days[:6] > 0, 0, 200)
    group = data.sens.numpy() * 3.0 + 1
    extra = torch.from_numpy(np.stack([days, group], 1)).float()
    data.x = torch.cat([data.x, extra], 1)
    data.feature_names = [*data.feature_names, "days", "code"]
    return data


def test_leaks_are_named_in_the_audit_and_in_the_report() -> None:
    data = leaking()
    result = audit(data, steps=1)
    assert [(leak.column, leak.of) for leak in result.leaks] == [
        ("code", "group"),
        ("days", "label"),
    ]
    group, label = result.leaks
    assert (group.agreement, group.rule) == (1.0, "code > 1 (its smallest value)")
    assert label.agreement == pytest.approx(1 - 6 / 600)
    assert label.rule == "days > 0 (its smallest value)"
    assert "'days' gives the label away" in str(result).replace("\n  ", " ")
    assert result.to_dict()["leaks"][1]["column"] == "days"
    assert any("'code' gives the group away" in line for line in describe(data)["verdict"])


def test_ordinary_columns_and_rare_classes_are_not_leaks() -> None:
    data = social_network(n=400, average_degree=6)
    assert audit(data, steps=1).leaks == ()
    data.y = torch.full((400,), 0)
    data.y[0] = 1  # one node can be singled out by chance
    data.x[0, 0] = 1e6
    assert audit(data, steps=1).leaks == ()


@pytest.mark.skipif("FAIRMP_DATA" not in os.environ, reason="FAIRMP_DATA is not set")
def test_bail_leaks_its_label() -> None:
    from fairmp.datasets import Bail

    data = Bail()[0]
    (leak,) = [line for line in describe(data)["verdict"] if "label" in line]
    assert "'TIME'" in leak
    assert "99.4 %" in leak

import math

import numpy as np
import pytest
import torch

from fairmp.graph import Graph
from fairmp.training.graph_features import GraphInputs, Neighbourhoods, fingerprint, num_columns
from tests.training import problems


@pytest.fixture
def problem():
    generator = torch.Generator().manual_seed(0)
    n = 30
    edges = torch.randint(n - 2, (2, 90), generator=generator)  # two nodes have no neighbour
    edges = torch.cat([edges, torch.tensor([[0, 3], [0, 3]])], dim=1)  # and two have self-loops
    x = torch.randn(n, 3, generator=generator)
    y = torch.randint(3, (n,), generator=generator)
    train = torch.rand(n, generator=generator) < 0.6
    return x, edges, y, train


def brute_force(x, edges, weights, labels, classes):
    """All columns, node by node and walk by walk."""
    incoming = {i: [] for i in range(len(x))}
    for (source, target), weight in zip(edges.T.tolist(), weights.tolist(), strict=True):
        if source != target:
            incoming[target].append((source, weight))
    rows, zero = [], torch.zeros(x.size(1)).double()

    def average(values, i):
        total = sum(w for _, w in incoming[i])
        return sum((w * values[j].double() for j, w in incoming[i]), zero) / (total or 1)

    means = torch.stack([average(x, i) for i in incoming])
    for i, neighbours in incoming.items():
        degree = sum(weight for _, weight in neighbours)
        spread = average((x - means[i]) ** 2, i).sqrt()
        moments = [*means[i].tolist(), *spread.tolist(), *average(means, i).tolist()]
        near, far = np.zeros(classes), np.zeros(classes)
        for j, w in neighbours:
            if labels[j] >= 0:
                near[labels[j]] += w
            for k, v in incoming[j]:
                if k != i and labels[k] >= 0:
                    far[labels[k]] += w * v
        shares = [(c + 1 / classes) / (c.sum() + 1) for c in (near, far)]
        count = math.log1p(near.sum())
        around = math.log1p(degree), *shares[0], count, *shares[1]
        rows.append([*x[i].tolist(), *moments, *around])
    return torch.tensor(rows, dtype=x.dtype)


@pytest.mark.parametrize("weighted", [False, True])
def test_columns_equal_brute_force(problem, weighted):
    x, edges, y, train = problem
    weights = torch.rand(edges.size(1), generator=torch.Generator().manual_seed(1)) + 0.5
    graph = Graph(edges, len(x), weights if weighted else None)
    labels = torch.where(train, y, -1)
    expected = brute_force(x, edges, weights if weighted else torch.ones(len(weights)), labels, 3)
    columns = Neighbourhoods(x, graph).rows(labels, 3)
    torch.testing.assert_close(columns, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("weighted", [False, True])
def test_own_label_does_not_enter_own_columns(problem, weighted):
    x, edges, y, train = problem
    edges = torch.cat([edges, edges.flip(0)], dim=1)
    weights = torch.rand(edges.size(1), generator=torch.Generator().manual_seed(1)) + 0.5
    graph = Graph(edges, len(x), weights if weighted else None)
    labels = torch.where(train, y, -1)
    before = Neighbourhoods(x, graph).rows(labels, 3)
    others = 0
    for node in train.nonzero().flatten().tolist():
        for value in (-1, 0, 1, 2):
            changed = labels.clone()
            changed[node] = value
            after = Neighbourhoods(x, graph).rows(changed, 3)
            assert torch.equal(before[node], after[node])
            others += not torch.equal(before, after)
    assert others  # the labels matter to other nodes


def test_isolated_node_has_even_shares(problem):
    x, edges, y, _ = problem
    row = Neighbourhoods(x, Graph(edges, len(x))).rows(y, 3)[-1]
    expected = [0.0] * 10 + [1 / 3] * 3 + [0.0] + [1 / 3] * 3
    torch.testing.assert_close(row[3:], torch.tensor(expected))


@pytest.mark.parametrize("features", [3, 100])
def test_number_of_columns(problem, features):
    _, edges, y, _ = problem
    columns = Neighbourhoods(torch.rand(len(y), features), Graph(edges, len(y))).rows(y, 3)
    assert columns.size(1) == num_columns(features, 3)


def test_another_graph_warns_and_hides_labels():
    x, y, train, graph = problems.problem(2)
    inputs = GraphInputs(torch.where(train, y, -1), fingerprint(graph), 2)
    shuffled = torch.randperm(graph.edge_index.size(1), generator=torch.Generator().manual_seed(0))
    reordered = Graph(graph.edge_index[:, shuffled], graph.num_nodes)
    assert torch.equal(
        inputs("neighbourhood", x, reordered), inputs("neighbourhood", x, graph)
    )  # the order of the edges is of no interest
    other = Graph(graph.edge_index[:, 1:], graph.num_nodes)
    with pytest.warns(UserWarning, match="another graph"):
        rows = inputs("neighbourhood", x, other)
    assert (rows[:, -5:-3] == 0.5).all()
    with pytest.warns(UserWarning, match="another graph"):
        assert inputs("edges", x[:10], Graph(torch.zeros(2, 0).long(), 10)).shape == (10, 306)


def test_joined_nodes_see_the_labels_of_their_neighbours():
    x, y, train, graph = problems.problem(2)
    inputs = GraphInputs(torch.where(train, y, -1), fingerprint(graph), 2)
    new, n = 5, len(x)
    # The new nodes come first, and two of them are connected to old ones.
    place = new + torch.randperm(n, generator=torch.Generator().manual_seed(1))
    joined = torch.stack([torch.tensor([0, 0, 1]), place[torch.tensor([3, 4, 9])]])
    edges = torch.cat([place[graph.edge_index], joined, joined.flip(0)], 1)
    larger = Graph(edges, n + new)
    larger.origin = place
    both = torch.zeros(n + new, x.size(1))
    both[place] = x
    untouched = torch.ones(n, dtype=torch.bool)
    near = torch.tensor([3, 4, 9])
    reached = graph.edge_index[1][torch.isin(graph.edge_index[0], near)]
    untouched[near] = untouched[reached] = False
    for view in ("neighbourhood", "edges"):
        before, after = inputs(view, x, graph), inputs(view, both, larger)
        if view == "edges":
            before, after = (torch.from_numpy(part.toarray()) for part in (before, after))
            assert after[0].nonzero().flatten().tolist() == [3, 4]
            assert after[1].nonzero().flatten().tolist() == [9]
        torch.testing.assert_close(before[untouched], after[place][untouched])
    near_labels = torch.where(train, y, -1)[near[:2]]
    counts = torch.stack([(near_labels == label).sum() for label in (0, 1)])
    shares = inputs("neighbourhood", both, larger)[0, -5:-3]
    torch.testing.assert_close(shares, (counts + 0.5) / (counts.sum() + 1))

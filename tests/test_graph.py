"""The normalised adjacency against PyG's, its layout, and the cache of what tensors make."""

from __future__ import annotations

import copy
import pickle
import warnings
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric import EdgeIndex
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from fairmp import PPR, InputError
from fairmp import graph as graph_module
from fairmp.graph import (
    Adjacency,
    Graph,
    TensorCache,
    aggregate,
    compute_dtype,
    from_scipy,
    locality_order,
    normalise,
    to_scipy,
)
from fairmp.groups import group_operator
from tests.graphs import edge_indices


def dense(edge_index: torch.Tensor, n: int, weight: torch.Tensor | None = None) -> torch.Tensor:
    """Ã as a dense matrix, from PyG's normalisation."""
    index, value = gcn_norm(edge_index, weight, n, dtype=torch.float64)
    matrix = torch.zeros(n, n, dtype=torch.float64)
    return matrix.index_put((index[1], index[0]), value, accumulate=True)


@given(edge_index=edge_indices(nodes=7), weighted=st.booleans())
def test_product_and_gradient_of_undirected_graphs(
    edge_index: torch.Tensor, weighted: bool
) -> None:
    half = torch.rand(edge_index.size(1) // 2, dtype=torch.float64) + 0.1
    weight = torch.cat([half, half]) if weighted else None
    expected = dense(edge_index, 7, weight)
    adjacency = normalise(edge_index, 7, weight, torch.float64)
    # Repeated self-loops of different weight are the one thing PyG does not treat symmetrically,
    # and they lie on the diagonal.
    assert adjacency.symmetric
    x = torch.randn(7, 3, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(adjacency @ x, expected @ x)
    grad = torch.randn(7, 3, dtype=torch.float64)
    (actual,) = torch.autograd.grad(adjacency @ x, x, grad)
    torch.testing.assert_close(actual, expected.T @ grad)


@given(edge_index=edge_indices(nodes=6, undirected=False))
def test_gradient_of_directed_graphs(edge_index: torch.Tensor) -> None:
    expected = dense(edge_index, 6)
    adjacency = normalise(edge_index, 6, dtype=torch.float64)
    x = torch.randn(6, 2, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(adjacency @ x, expected @ x)
    grad = torch.randn(6, 2, dtype=torch.float64)
    (actual,) = torch.autograd.grad(adjacency @ x, x, grad)
    torch.testing.assert_close(actual, expected.T @ grad)


@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_sparse_tensors(layout: str) -> None:
    index = torch.tensor([[0, 1, 2, 2], [1, 2, 0, 1]])  # directed: rows and columns differ
    value = torch.tensor([1.0, 2.0, 3.0, 0.5], dtype=torch.float64)
    matrix = torch.sparse_coo_tensor(index, value, (3, 3))
    matrix = matrix.coalesce() if layout == "coo" else matrix.to_sparse_csr()
    # A sparse matrix's rows receive; in an edge_index the second row does.
    same = normalise(index.flip(0), 3, value, torch.float64)
    x = torch.eye(3, dtype=torch.float64)
    torch.testing.assert_close(normalise(matrix, 3, dtype=torch.float64) @ x, same @ x)


def test_a_symmetric_graph_is_its_own_transpose() -> None:
    adjacency = normalise(torch.tensor([[0, 1], [1, 0]]), 3)
    assert adjacency.forward is adjacency.backward
    assert adjacency.matrix is adjacency.transposed_matrix
    assert not normalise(torch.tensor([[0], [1]]), 3).symmetric
    assert adjacency.to("meta").symmetric


class Adjacencies:
    """A cache of adjacencies, as the layers keep one."""

    def __init__(self, size: int = 4) -> None:
        self.cache = TensorCache(size)

    def get(self, edges: torch.Tensor, n: int, weight: torch.Tensor | None = None) -> object:
        return self.cache.get((edges, weight), n, lambda: normalise(edges, n, weight))


def test_cache_computes_again_after_a_change_in_place() -> None:
    cache = Adjacencies()
    edge_index = torch.tensor([[0, 1, 2, 3], [1, 0, 3, 2]])
    first = cache.get(edge_index, 4)
    assert cache.get(edge_index, 4) is first
    edge_index[:, 2:] = torch.tensor([[0, 2], [2, 0]])
    second = cache.get(edge_index, 4)
    assert second is not first
    edge_index[1].fill_(3)  # through a view
    assert cache.get(edge_index, 4) is not second
    assert cache.get(edge_index.clone(), 4) is not first


def test_cache_tells_weights_and_sizes_apart() -> None:
    cache = Adjacencies()
    edge_index, weight = torch.tensor([[0, 1], [1, 0]]), torch.ones(2)
    first = cache.get(edge_index, 2, weight)
    assert cache.get(edge_index, 2) is not first
    assert cache.get(edge_index, 3, weight) is not first
    assert cache.get(edge_index, 2, weight) is first
    weight.mul_(2)
    assert cache.get(edge_index, 2, weight) is not first


def test_cache_computes_again_after_values_of_a_sparse_tensor_change() -> None:
    matrix = torch.eye(3).roll(1, 0).to_sparse().coalesce()
    for sparse in (matrix, matrix.to_sparse_csr()):
        cache = Adjacencies()
        first = cache.get(sparse, 3)
        assert cache.get(sparse, 3) is first
        sparse.values().mul_(2)
        assert cache.get(sparse, 3) is not first


def test_cache_forgets_the_oldest_and_the_deleted() -> None:
    cache = Adjacencies(size=1)
    first, second = torch.tensor([[0], [1]]), torch.tensor([[1], [0]])
    result = weakref.ref(cache.get(first, 2))
    cache.get(second, 2)
    assert result() is None
    cache = Adjacencies()
    result = weakref.ref(cache.get(first, 2))
    del first
    cache.get(second, 2)
    assert result() is None
    assert not pickle.loads(pickle.dumps(cache.cache))._entries


def test_inference_tensors_are_not_cached() -> None:
    with torch.inference_mode():
        edges = torch.tensor([[0, 1], [1, 0]])
    layer, x = PPR(1), torch.eye(2)
    before = layer(x, edges)
    with torch.inference_mode():
        edges[:, 1] = 0
    assert not torch.equal(layer(x, edges), before)


def test_edge_index_of_pyg() -> None:
    edges = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    layer, x = PPR(2), torch.randn(3, 2)
    plain = layer(x, edges)
    wrapped = EdgeIndex(edges.clone(), sparse_size=(3, 3))
    torch.testing.assert_close(layer(x, wrapped), plain)
    torch.testing.assert_close(layer(x, wrapped), plain)


@pytest.mark.parametrize(
    ("edge_index", "weight", "word"),
    [
        (torch.tensor([[0, 5], [1, 0]]), None, "nodes 0 to 5"),
        (torch.tensor([0, 1]), None, "shape (2,)"),
        (torch.tensor([[0.0], [1.0]]), None, "float32"),
        (torch.tensor([[0, 1], [1, 0]]), torch.ones(3), "edge_weight: shape (3,)"),
        (torch.tensor([[0, 1], [1, 0]]), torch.tensor([1.0, -1.0]), "from -1"),
        (torch.tensor([[0, 1], [1, 0]]), torch.ones(2, requires_grad=True), "detach"),
        (torch.eye(4).to_sparse(), None, "4, 4"),
        (torch.eye(3).to_sparse(), torch.ones(3), "has its own"),
    ],
)
def test_normalise_names_wrong_graphs(
    edge_index: torch.Tensor, weight: torch.Tensor | None, word: str
) -> None:
    with pytest.raises(InputError, match="edge") as error:
        normalise(edge_index, 3, weight)
    assert word in str(error.value)


def test_weights_of_zero_differ_from_no_weights() -> None:
    edges, x = torch.tensor([[0, 1], [1, 0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    layer = PPR(2)
    plain, alone = layer(x, edges), layer(x, edges, edge_weight=torch.zeros(2))
    torch.testing.assert_close(alone, x)
    torch.testing.assert_close(layer(x, edges), plain)
    assert not torch.equal(plain, alone)


@pytest.mark.parametrize(("reciprocal", "warned"), [(6, True), (14, False)])
def test_a_graph_is_taken_for_undirected_from_a_share_of_reciprocal_edges(
    reciprocal: int, warned: bool
) -> None:
    """A tenth of the edges with a reverse is a directed graph; fewer are edges that lack one."""
    forward = torch.stack([torch.arange(100), torch.arange(100, 200)])
    edges = torch.cat([forward, forward[:, : reciprocal // 2].flip(0)], 1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        normalise(edges, 200)
    assert ["to_undirected" in str(w.message) for w in caught] == [True] * warned


def random_adjacency(n: int, *, weighted: bool = False, dtype: torch.dtype) -> Adjacency:
    edges = torch.randint(n, (2, 5 * n))
    edges[1, : n // 2] = 1  # a hub
    weight = torch.rand(edges.size(1)) + 0.1 if weighted else None
    return normalise(edges, n, weight, dtype)


@pytest.mark.parametrize("weighted", [False, True])
def test_layout_sorts_nodes_by_degree_and_back(weighted: bool) -> None:
    n = 2 * graph_module.WINDOW_NODES + 100
    adjacency = random_adjacency(n, weighted=weighted, dtype=torch.float64)
    layout = adjacency.layout
    assert adjacency.layout is layout
    assert layout.order is not None
    degree = adjacency.forward.row.diff()[layout.order]
    for window in range(0, n, graph_module.WINDOW_NODES):
        part = degree[window : window + graph_module.WINDOW_NODES]
        assert bool((part.diff() >= 0).all())
        nodes = layout.order[window : window + graph_module.WINDOW_NODES]
        assert int(nodes.min()) == window  # what is near stays near
    x = torch.randn(n, 3, dtype=torch.float64)
    moved = layout.to_layout(x)
    torch.testing.assert_close(layout.from_layout(layout.graph @ moved), adjacency @ x)
    torch.testing.assert_close(
        layout.from_layout(layout.graph.aggregate_vjp(moved, 0.3).f),
        adjacency.aggregate_vjp(x, 0.3).f,
    )


def test_layout_keeps_the_order_of_graphs_too_large_to_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(graph_module, "MAX_RENUMBERED_EDGES", 10)
    adjacency = random_adjacency(20, dtype=torch.float64)
    assert adjacency.layout.graph is adjacency
    x, groups = torch.randn(20, 2), group_operator(torch.arange(20) % 2)
    assert adjacency.layout.to_layout(x) is x
    assert adjacency.layout.from_layout(x) is x
    assert adjacency.layout.reorder(groups) is groups


def test_layout_reorders_groups_once() -> None:
    layout = random_adjacency(50, dtype=torch.float64).layout
    groups = group_operator(torch.arange(50) % 2)
    moved = layout.reorder(groups)
    assert layout.reorder(groups) is moved
    assert layout.order is not None
    assert torch.equal(moved.matrix, groups.matrix[:, layout.order])


@pytest.mark.parametrize("sorted_nodes", [False, True])
def test_layout_of_margins_and_its_gradients(
    sorted_nodes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not sorted_nodes:
        monkeypatch.setattr(graph_module, "MAX_RENUMBERED_EDGES", 0)
    layout = random_adjacency(12, dtype=torch.float64).layout
    x = torch.randn(12, 2, dtype=torch.float64, requires_grad=True)
    margins = layout.to_layout(x, margins=True)
    order = torch.arange(12) if layout.order is None else layout.order
    torch.testing.assert_close(margins[:, 0], (x[:, 1] - x[:, 0])[order])
    torch.testing.assert_close(layout.from_layout(margins), x - x.mean(1, keepdim=True))
    assert torch.autograd.gradcheck(lambda x: layout.to_layout(x, margins=True), (x,))
    assert torch.autograd.gradcheck(
        lambda m: layout.from_layout(m), (margins.detach().requires_grad_(),)
    )
    assert torch.autograd.gradcheck(lambda x: layout.from_layout(layout.to_layout(x).sin()), (x,))


@pytest.mark.parametrize("classes", [1, 2, 3])
@pytest.mark.parametrize("gamma", [0.0, 0.3, 1.0])
def test_aggregate_and_its_gradients_equal_dense_matrices(classes: int, gamma: float) -> None:
    adjacency = random_adjacency(12, weighted=True, dtype=torch.float64)
    matrix = adjacency @ torch.eye(12, dtype=torch.float64)
    f, x = torch.randn(2, 12, classes, dtype=torch.float64).requires_grad_().unbind()
    weight = torch.tensor(gamma, dtype=torch.float64, requires_grad=True)
    expected = weight * x + (1 - weight) * matrix @ f
    grad = torch.randn_like(expected)
    gradients = torch.autograd.grad(expected, (f, x, weight), grad, retain_graph=True)
    learned = aggregate(f, x, adjacency, weight)
    torch.testing.assert_close(learned, expected)
    for one, other in zip(
        torch.autograd.grad(learned, (f, x, weight), grad, retain_graph=True),
        gradients,
        strict=True,
    ):
        torch.testing.assert_close(one, other)
    fixed = aggregate(f, x, adjacency, gamma)
    torch.testing.assert_close(fixed, expected)
    (one,) = torch.autograd.grad(fixed, x, grad)
    torch.testing.assert_close(one, gradients[1])
    with torch.no_grad():
        torch.testing.assert_close(aggregate(f, x, adjacency, weight), expected)


def test_copies_and_pickles_of_an_adjacency_hold_the_matrix_alone() -> None:
    adjacency = random_adjacency(12, dtype=torch.float64)
    x = torch.randn(12, 2, dtype=torch.float64)
    expected = adjacency.layout.graph @ x
    assert expected.shape == x.shape
    for again in (copy.deepcopy(adjacency), pickle.loads(pickle.dumps(adjacency))):
        assert "layout" not in vars(again)
        assert "matrix" not in vars(again)
        torch.testing.assert_close(again @ x, adjacency @ x)


def test_half_precision_is_computed_in_single() -> None:
    assert compute_dtype(torch.float16) == compute_dtype(torch.bfloat16) == torch.float32
    assert compute_dtype(torch.float64) == torch.float64
    edges, x = torch.tensor([[0, 1], [1, 0]]), torch.randn(2, 2)
    half = normalise(edges, 2, dtype=torch.float16) @ x.half()
    assert half.dtype == torch.float16
    assert torch.equal(half, (normalise(edges, 2) @ x.half().float()).half())


@pytest.mark.parametrize("layout", [torch.strided, torch.sparse_coo])
def test_matrices_go_to_scipy_and_back(layout: torch.layout) -> None:
    x = torch.tensor([[0.0, 2.0], [0.0, 0.0], [3.0, 0.0]])
    matrix = to_scipy(x if layout == torch.strided else x.to_sparse())
    assert matrix.indices.dtype == np.int32
    assert torch.equal(from_scipy(matrix).to_dense(), x)


def test_locality_order_puts_neighbours_near_each_other() -> None:
    n = 200
    names = torch.randperm(n)
    path = torch.stack([names[:-1], names[1:]])
    adjacency = normalise(torch.cat([path, path.flip(0)], 1), n)
    rows: Any = adjacency.forward
    order = locality_order(rows.row.numpy(), rows.col.numpy())
    assert sorted(order.tolist()) == list(range(n))
    place = np.empty(n, dtype=np.int64)
    place[order] = np.arange(n)
    assert np.abs(place[path[0].numpy()] - place[path[1].numpy()]).max() == 1


def test_graph_normalises_its_edges_once_for_each_type() -> None:
    edges = torch.tensor([[0, 1, 1], [1, 0, 2]])
    graph = Graph(edges, 3)
    adjacency = graph.adjacency(torch.float32)
    assert graph.adjacency(torch.float32) is adjacency
    assert graph.adjacency(torch.float64).scale.dtype == torch.float64
    loops = graph.with_self_loops()
    assert graph.with_self_loops() is loops
    assert loops.tolist() == [[0, 1, 0, 1, 1, 2], [0, 0, 1, 1, 2, 2]]

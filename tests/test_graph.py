from __future__ import annotations

import pickle
import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric import EdgeIndex
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from fairmp import PPR, InputError
from fairmp.graph import TensorCache, normalise
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


def test_the_transpose_of_a_symmetric_graph_is_not_kept() -> None:
    adjacency = normalise(torch.tensor([[0, 1], [1, 0]]), 3)
    assert adjacency.forward is adjacency.backward
    assert not normalise(torch.tensor([[0], [1]]), 3).symmetric


class Adjacencies:
    """A cache of adjacencies, as the layers keep one."""

    def __init__(self, size: int = 4) -> None:
        self.cache = TensorCache(size)

    def get(self, edges: torch.Tensor, n: int, weight: torch.Tensor | None = None) -> object:
        return self.cache.get((edges, weight), n, lambda: normalise(edges, n, weight))


def test_the_cache_notices_changes_in_place() -> None:
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


def test_the_cache_sees_weights_and_size() -> None:
    cache = Adjacencies()
    edge_index, weight = torch.tensor([[0, 1], [1, 0]]), torch.ones(2)
    first = cache.get(edge_index, 2, weight)
    assert cache.get(edge_index, 2) is not first
    assert cache.get(edge_index, 3, weight) is not first
    assert cache.get(edge_index, 2, weight) is first
    weight.mul_(2)
    assert cache.get(edge_index, 2, weight) is not first


def test_the_cache_notices_changed_values_of_sparse_tensors() -> None:
    matrix = torch.eye(3).roll(1, 0).to_sparse().coalesce()
    for sparse in (matrix, matrix.to_sparse_csr()):
        cache = Adjacencies()
        first = cache.get(sparse, 3)
        assert cache.get(sparse, 3) is first
        sparse.values().mul_(2)
        assert cache.get(sparse, 3) is not first


def test_the_cache_forgets_the_oldest_and_the_deleted() -> None:
    cache = Adjacencies(size=1)
    first, second = torch.tensor([[0], [1]]), torch.tensor([[1], [0]])
    held = weakref.ref(cache.get(first, 2))
    cache.get(second, 2)
    assert held() is None
    cache = Adjacencies()
    held = weakref.ref(cache.get(first, 2))
    del first
    cache.get(second, 2)
    assert held() is None
    assert not pickle.loads(pickle.dumps(cache.cache))._held


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
def test_wrong_graphs_are_named(
    edge_index: torch.Tensor, weight: torch.Tensor | None, word: str
) -> None:
    with pytest.raises(InputError, match="edge") as error:
        normalise(edge_index, 3, weight)
    assert word in str(error.value)


def test_weights_of_zero_are_not_no_weights() -> None:
    edges, x = torch.tensor([[0, 1], [1, 0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    layer = PPR(2)
    plain, alone = layer(x, edges), layer(x, edges, edge_weight=torch.zeros(2))
    torch.testing.assert_close(alone, x)
    torch.testing.assert_close(layer(x, edges), plain)
    assert not torch.equal(plain, alone)

"""Layers as gradient steps on the objectives of docs/theory.md; the gradients are autograd's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch_geometric.nn import APPNP, GATConv, GCNConv, SGConv
from torch_geometric.utils import erdos_renyi_graph

from fairmp.graph import normalise
from fairmp.nn.solvers import coupling_gradient

Graph = tuple[Tensor, Tensor]


@pytest.fixture(scope="module")
def graph() -> Graph:
    torch.manual_seed(0)
    return torch.randn(30, 4, dtype=torch.float64), erdos_renyi_graph(30, 0.15)


@pytest.fixture(scope="module")
def dual() -> Graph:
    torch.manual_seed(1)
    return torch.randn(3, 30, dtype=torch.float64), torch.randn(3, 4, dtype=torch.float64)


def gradient(objective: Callable[..., Tensor], f: Tensor, *arguments: object) -> Tensor:
    f = f.clone().requires_grad_()
    (grad,) = torch.autograd.grad(objective(f, *arguments), f)
    return grad


def smooth(f: Tensor, edge_index: Tensor) -> Tensor:
    """Ã F, with the Ã that our layers use."""
    identity = torch.eye(len(f), dtype=f.dtype)
    return normalise(edge_index, len(f), dtype=f.dtype).aggregate(identity, None, 0.0) @ f


def smoothness(f: Tensor, edge_index: Tensor) -> Tensor:
    return (f * (f - smooth(f, edge_index))).sum()


def ppnp(f: Tensor, x: Tensor, edge_index: Tensor, alpha: float) -> Tensor:
    return ((f - x) ** 2).sum() + (1 / alpha - 1) * smoothness(f, edge_index)


def attention(f: Tensor, x: Tensor, edge_index: Tensor, scores: Tensor) -> Tensor:
    difference = f[edge_index[1]] - x[edge_index[0]]
    return (scores.unsqueeze(1) * difference**2).sum() / 2


def coupling(f: Tensor, delta: Tensor, u: Tensor) -> Tensor:
    return (u * (delta @ f.softmax(1))).sum()


def fair(
    f: Tensor, x: Tensor, edge_index: Tensor, delta: Tensor, u: Tensor, lambda_s: float
) -> Tensor:
    close = ((f - x) ** 2).sum() / 2
    return lambda_s / 2 * smoothness(f, edge_index) + close + coupling(f, delta, u)


def test_coupling_gradient_is_autograds(graph: Graph, dual: Graph) -> None:
    (x, _), (delta, u) = graph, dual
    torch.testing.assert_close(coupling_gradient(x, delta.T @ u), gradient(coupling, x, delta, u))


def test_gcn_is_half_a_gradient_step(graph: Graph) -> None:
    x, edge_index = graph
    layer = GCNConv(4, 4, bias=False).double()
    with torch.no_grad():
        layer.lin.weight.copy_(torch.eye(4))
        expected = layer(x, edge_index)
    torch.testing.assert_close(x - gradient(smoothness, x, edge_index) / 2, expected)


def test_sgc_is_as_many_gradient_steps(graph: Graph) -> None:
    x, edge_index = graph
    layer = SGConv(4, 4, K=3, bias=False).double()
    with torch.no_grad():
        layer.lin.weight.copy_(torch.eye(4))
        expected = layer(x, edge_index)
    f = x
    for _ in range(3):
        before = smoothness(f, edge_index)
        f = f - gradient(smoothness, f, edge_index) / 2
        assert smoothness(f, edge_index) < before
    torch.testing.assert_close(f, expected)


@pytest.mark.parametrize("alpha", [0.1, 0.5, 1.0])
def test_appnp_descends_to_ppnp(graph: Graph, alpha: float) -> None:
    x, edge_index = graph
    identity = torch.eye(30, dtype=torch.float64)
    inverse = torch.linalg.inv(identity - (1 - alpha) * smooth(identity, edge_index))
    exact = alpha * inverse @ x
    assert gradient(ppnp, exact, x, edge_index, alpha).abs().max() < 1e-12
    f = x
    for _ in range(5):
        f = f - alpha / 2 * gradient(ppnp, f, x, edge_index, alpha)
    torch.testing.assert_close(f, APPNP(K=5, alpha=alpha)(x, edge_index))
    torch.testing.assert_close(APPNP(K=400, alpha=alpha)(x, edge_index), exact)
    assert ppnp(exact, x, edge_index, alpha) <= ppnp(f, x, edge_index, alpha) + 1e-12


def test_gat_is_a_step_of_each_nodes_own_size(graph: Graph) -> None:
    x, edge_index = graph
    torch.manual_seed(2)
    layer = GATConv(4, 4, bias=False).double()
    with torch.no_grad():
        layer.lin.weight.copy_(torch.eye(4))
        expected, (edges, normalised) = layer(x, edge_index, return_attention_weights=True)
        to_source, to_target = (x @ a.flatten() for a in (layer.att_src, layer.att_dst))
        score = torch.nn.functional.leaky_relu(to_source[edges[0]] + to_target[edges[1]], 0.2)
    a = score.exp()
    curvature = torch.zeros(30, dtype=torch.float64).index_add(0, edges[1], a)
    step = x - gradient(attention, x, x, edges, a) / curvature.unsqueeze(1)
    torch.testing.assert_close(step, expected)
    # With attention already normalised, every node's step is 1.
    plain = x - gradient(attention, x, x, edges, normalised.flatten())
    torch.testing.assert_close(plain, expected)


def test_gat_with_additive_attention_is_a_step_on_a_symmetric_penalty(graph: Graph) -> None:
    x, edge_index = graph
    loops = torch.arange(len(x)).expand(2, -1)
    adjacency = torch.zeros(len(x), len(x), dtype=torch.float64)
    adjacency[edge_index[0], edge_index[1]] = 1
    adjacency = torch.maximum(adjacency, adjacency.T)
    adjacency[loops[0], loops[1]] = 1
    c = torch.rand(len(x), dtype=torch.float64, generator=torch.Generator().manual_seed(3)) + 0.1

    def penalty(f: Tensor) -> Tensor:
        distances = (f.unsqueeze(1) - f.unsqueeze(0)).square().sum(2)
        return (c.unsqueeze(1) * adjacency * distances).sum() / 2

    scores = adjacency * (c.unsqueeze(1) + c.unsqueeze(0))
    attention_weights = scores / scores.sum(1, keepdim=True)
    step = x - gradient(penalty, x) / scores.sum(1, keepdim=True)
    torch.testing.assert_close(step, attention_weights @ x)


@pytest.mark.parametrize("lambda_s", [0.0, 0.5, 4.0])
def test_fmp_is_a_gradient_step_too(graph: Graph, dual: Graph, lambda_s: float) -> None:
    (x, edge_index), (delta, u) = graph, dual
    f, gamma = x.flip(0), 1 / (1 + lambda_s)
    step = f - gamma * gradient(fair, f, x, edge_index, delta, u, lambda_s)
    smoothed = gamma * x + (1 - gamma) * smooth(f, edge_index)
    torch.testing.assert_close(step, smoothed - gamma * coupling_gradient(f, delta.T @ u))
    # Without the dual it is APPNP's, and half of its objective.
    nothing = (x, edge_index, delta, torch.zeros_like(u), lambda_s)
    step = x - gamma * gradient(fair, x, *nothing)
    torch.testing.assert_close(step, APPNP(K=1, alpha=gamma)(x, edge_index))
    torch.testing.assert_close(2 * fair(x, *nothing), ppnp(x, x, edge_index, gamma))


def test_best_dual_gives_the_l1_norm(graph: Graph, dual: Graph) -> None:
    (x, _), (delta, _) = graph, dual
    gap = delta @ x.softmax(1)
    torch.testing.assert_close(coupling(x, delta, 0.7 * gap.sign()), 0.7 * gap.abs().sum())

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch_geometric.nn import APPNP, GATConv, GCNConv, SGConv
from torch_geometric.utils import erdos_renyi_graph

from fairmp.analysis.theory import (
    attention_objective,
    fair_objective,
    fairness_coupling,
    ppnp_objective,
    ppnp_solution,
    smoothness,
)
from fairmp.errors import InputError


@pytest.fixture(scope="module")
def graph() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(30, 4, dtype=torch.float64), erdos_renyi_graph(30, 0.15)


@pytest.fixture(scope="module")
def dual() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(3, 30, dtype=torch.float64), torch.randn(3, 4, dtype=torch.float64)


def assert_gradient(objective: Callable[[Tensor], tuple[Tensor, Tensor]], f: Tensor) -> None:
    f = f.clone().requires_grad_()
    value, gradient = objective(f)
    (expected,) = torch.autograd.grad(value, f)
    torch.testing.assert_close(gradient, expected)


def test_every_gradient_is_autograds(
    graph: tuple[Tensor, Tensor], dual: tuple[Tensor, Tensor]
) -> None:
    x, edge_index = graph
    f = x.flip(0)
    scores = torch.rand(edge_index.size(1), dtype=torch.float64)
    assert_gradient(lambda f: smoothness(f, edge_index), f)
    assert_gradient(lambda f: ppnp_objective(f, x, edge_index, 0.2), f)
    assert_gradient(lambda f: attention_objective(f, x, edge_index, scores), f)
    assert_gradient(lambda f: fairness_coupling(f, *dual), f)
    assert_gradient(lambda f: fair_objective(f, x, edge_index, *dual, lambda_s=2.5), f)


def test_gcn_is_half_a_gradient_step(graph: tuple[Tensor, Tensor]) -> None:
    x, edge_index = graph
    layer = GCNConv(4, 4, bias=False).double()
    with torch.no_grad():
        layer.lin.weight.copy_(torch.eye(4))
        expected = layer(x, edge_index)
    torch.testing.assert_close(x - smoothness(x, edge_index).gradient / 2, expected)


def test_sgc_is_as_many_gradient_steps(graph: tuple[Tensor, Tensor]) -> None:
    x, edge_index = graph
    layer = SGConv(4, 4, K=3, bias=False).double()
    with torch.no_grad():
        layer.lin.weight.copy_(torch.eye(4))
        expected = layer(x, edge_index)
    f = x
    for _ in range(3):
        before, gradient = smoothness(f, edge_index)
        f = f - gradient / 2
        assert smoothness(f, edge_index).value < before
    torch.testing.assert_close(f, expected)


@pytest.mark.parametrize("alpha", [0.1, 0.5, 1.0])
def test_appnp_descends_to_ppnp(graph: tuple[Tensor, Tensor], alpha: float) -> None:
    x, edge_index = graph
    exact = ppnp_solution(x, edge_index, alpha)
    assert ppnp_objective(exact, x, edge_index, alpha).gradient.abs().max() < 1e-12
    f = x
    for _ in range(5):
        f = f - alpha / 2 * ppnp_objective(f, x, edge_index, alpha).gradient
    torch.testing.assert_close(f, APPNP(K=5, alpha=alpha)(x, edge_index))
    limit = APPNP(K=400, alpha=alpha)(x, edge_index)
    torch.testing.assert_close(limit, exact)
    best = ppnp_objective(exact, x, edge_index, alpha).value
    assert best <= ppnp_objective(f, x, edge_index, alpha).value + 1e-12


def test_gat_is_a_step_of_each_nodes_own_size(graph: tuple[Tensor, Tensor]) -> None:
    x, edge_index = graph
    torch.manual_seed(2)
    layer = GATConv(4, 4, bias=False).double()
    with torch.no_grad():
        layer.lin.weight.copy_(torch.eye(4))
        expected, (edges, attention) = layer(x, edge_index, return_attention_weights=True)
        to_source, to_target = (x @ a.flatten() for a in (layer.att_src, layer.att_dst))
        score = torch.nn.functional.leaky_relu(to_source[edges[0]] + to_target[edges[1]], 0.2)
    a = score.exp()
    curvature = torch.zeros(30, dtype=torch.float64).index_add(0, edges[1], a)
    step = x - attention_objective(x, x, edges, a).gradient / curvature.unsqueeze(1)
    torch.testing.assert_close(step, expected)
    # With attention already normalised, every node's step is 1.
    plain = x - attention_objective(x, x, edges, attention.flatten()).gradient
    torch.testing.assert_close(plain, expected)


@pytest.mark.parametrize("lambda_s", [0.0, 0.5, 4.0])
def test_fmp_is_a_gradient_step_too(
    graph: tuple[Tensor, Tensor], dual: tuple[Tensor, Tensor], lambda_s: float
) -> None:
    x, edge_index = graph
    delta, u = dual
    f = x.flip(0)
    gamma = 1 / (1 + lambda_s)
    step = f - gamma * fair_objective(f, x, edge_index, delta, u, lambda_s).gradient
    smoothed = f - smoothness(f, edge_index).gradient / 2
    coupling = fairness_coupling(f, delta, u).gradient
    torch.testing.assert_close(step, gamma * x + (1 - gamma) * smoothed - gamma * coupling)
    # Without the dual it is APPNP's, and half of its objective.
    nothing = torch.zeros_like(u)
    value, gradient = fair_objective(x, x, edge_index, delta, nothing, lambda_s)
    torch.testing.assert_close(x - gamma * gradient, APPNP(K=1, alpha=gamma)(x, edge_index))
    torch.testing.assert_close(2 * value, ppnp_objective(x, x, edge_index, gamma).value)


def test_the_best_dual_gives_the_l1_norm(
    graph: tuple[Tensor, Tensor], dual: tuple[Tensor, Tensor]
) -> None:
    x, _ = graph
    delta, _ = dual
    gap = delta @ x.softmax(1)
    best = 0.7 * gap.sign()
    torch.testing.assert_close(fairness_coupling(x, delta, best).value, 0.7 * gap.abs().sum())


def test_wrong_input_is_named(graph: tuple[Tensor, Tensor], dual: tuple[Tensor, Tensor]) -> None:
    x, edge_index = graph
    for alpha in (0.0, 1.2):
        with pytest.raises(InputError, match=f"alpha: {alpha}"):
            ppnp_objective(x, x, edge_index, alpha)
        with pytest.raises(InputError, match=f"alpha: {alpha}"):
            ppnp_solution(x, edge_index, alpha)
    with pytest.raises(InputError, match="lambda_s: -1"):
        fair_objective(x, x, edge_index, *dual, lambda_s=-1)

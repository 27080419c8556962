"""The fused propagation and projection against their steps one by one in plain torch."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

pytest.importorskip("numba")

from fairmp import FMP, PPR
from fairmp.graph import Adjacency, normalise
from fairmp.groups import GroupOperator, group_operator
from fairmp.kernels import use
from fairmp.kernels.cpu import fused
from fairmp.nn import functional
from fairmp.nn.solvers import projection


def problem(
    n: int, seed: int, *, directed: bool = False, weighted: bool = False
) -> tuple[Tensor, Adjacency, GroupOperator]:
    """Logits in float64, a graph with a hub and an isolated node, some groups unknown."""
    generator = torch.Generator().manual_seed(seed)
    source = torch.randint(1, n, (4 * n,), generator=generator)
    target = torch.randint(1, n, (4 * n,), generator=generator)
    target[: n // 2] = 1
    edges = torch.stack([source, target])
    edges = edges if directed else torch.cat([edges, edges.flip(0)], 1)
    weight = torch.rand(edges.size(1), generator=generator) + 0.1 if weighted else None
    x = 2 * torch.randn(n, 2, generator=generator, dtype=torch.float64)
    sens = torch.randint(-1, 2, (n,), generator=generator)
    sens[:4] = torch.tensor([0, 1, 0, 1])
    x[:, 1] += sens
    population = torch.rand(n, generator=generator) < 0.6
    population[:4] = True
    return x, normalise(edges, n, weight, x.dtype), group_operator(sens, population, dtype=x.dtype)


def solved(x: Tensor, graph: Adjacency, delta: GroupOperator, **options: Any) -> tuple[Tensor, ...]:
    """Logits, duals and the gradient of a function of both."""
    x = x.clone().requires_grad_()
    solution = projection(x, graph, delta, **options)
    weight = torch.linspace(-1, 1, x.numel(), dtype=x.dtype).view_as(x)
    ((solution.f * weight).sum() + solution.duals.sin().sum()).backward()
    assert x.grad is not None
    return solution.f.detach(), solution.duals.detach(), x.grad


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.integers(5, 60),
    st.integers(0, 10**6),
    st.booleans(),
    st.sampled_from([0.0, 0.05, 0.9]),
    st.sampled_from([0.1, 1.0]),
    st.integers(1, 4),
)
def test_equals_the_steps_one_by_one(
    n: int, seed: int, directed: bool, target: float, temperature: float, K: int
) -> None:
    x, graph, delta = problem(n, seed, directed=directed)
    options = {"K": K, "lambda_s": 2.0, "target": target, "temperature": temperature}
    ours = solved(x, graph, delta, **options)
    with use("reference"):
        theirs = solved(x, graph, delta, **options)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("weighted", [False, True])
def test_single_precision_against_double(weighted: bool) -> None:
    x, graph, delta = problem(20_000, 3, directed=True, weighted=weighted)
    single = Adjacency(
        graph.num_nodes, graph.scale.float(), *map(_single, (graph.forward, graph.backward))
    )
    options = {"K": 5, "lambda_s": 3.0, "target": 0.01}
    with use("reference"):
        exact = solved(x, graph, delta, **options)
    found = solved(x.float(), single, delta, **options)
    for a, b in zip(found, exact, strict=True):
        assert (a - b).abs().max() <= 1e-5 * b.abs().max()


def _single(rows: Any) -> Any:
    weight = None if rows.weight is None else rows.weight.float()
    return type(rows)(rows.row, rows.col, weight)


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("kind", [PPR, FMP])
def test_softmax_alone_is_that_of_the_loop(kind: type[PPR], learned: bool) -> None:
    # Enough nodes for several windows, and hubs that several chunks share.
    x, graph, delta = problem(9_000, 4, directed=True, weighted=True)
    layer = kind(3, "learned" if learned else 2.0).double()
    layer.theta = None if layer.theta is None else nn.Parameter(torch.tensor([0.1, -0.4, 0.3]))

    def run(**options: Any) -> list[Tensor]:
        leaf = x.clone().requires_grad_()
        p = layer(leaf, graph, delta, **options).softmax(1)
        leaves = [leaf, *layer.parameters()]
        weight = torch.linspace(-1, 1, p.numel(), dtype=p.dtype).view_as(p)
        return [p.detach(), *torch.autograd.grad((p * weight).sum(), leaves)]

    ours = run(softmax_only=True)
    with use("reference"):
        theirs = run()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b.to(a), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("edges", [0, 2**25])
def test_the_order_of_nodes_does_not_matter(edges: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "MAX_RENUMBERED_EDGES", edges)
    x, graph, delta = problem(6_000, 5, directed=True)
    found = fused.layout(graph, x.dtype)
    assert sorted(found.order.tolist()) == list(range(6_000))
    assert fused.layout(graph, x.dtype) is found
    degree = graph.forward.row.diff().numpy()[found.order]
    assert bool((degree[: fused.WINDOW_NODES - 1] <= degree[1 : fused.WINDOW_NODES]).all()) == (
        edges > 0
    )
    ours = solved(x, graph, delta, K=2, lambda_s=1.0)
    with use("reference"):
        theirs = solved(x, graph, delta, K=2, lambda_s=1.0)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


def test_gradient_by_finite_differences() -> None:
    x, graph, delta = problem(12, 1, directed=True, weighted=True)

    def of(x: Tensor) -> tuple[Tensor, Tensor]:
        solution = projection(x, graph, delta, K=3, lambda_s=1.5, target=0.02)
        return solution.f, solution.duals

    assert torch.autograd.gradcheck(of, x.requires_grad_(), atol=1e-6)


def test_is_used_where_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    x, graph, delta = problem(30, 0)
    seen: list[bool] = []
    steps = functional.projection_steps
    monkeypatch.setattr(
        functional, "projection_steps", lambda *a, **k: (seen.append(True), steps(*a, **k))[1]
    )
    projection(x, graph, delta, K=2, lambda_s=1.0)
    assert not seen
    # Logits that a shift would be lost in are seen to step by step.
    far = projection(1e7 * x, graph, delta, K=2, lambda_s=1.0, target=0.05)
    assert seen
    assert far.f.isfinite().all()
    p = far.f.softmax(1)
    assert delta.gap(p).abs().max() <= 0.05 + 1e-4
    seen.clear()
    projection(x, graph, delta, K=2, lambda_s=0.0)
    projection(x, graph, delta, K=2, lambda_s=1.0, trace=True)
    assert len(seen) == 2


def test_an_empty_population_changes_nothing() -> None:
    x, graph, delta = problem(30, 0)
    empty = GroupOperator(
        None, torch.zeros(30, dtype=torch.bool), torch.zeros_like(delta.rows), codes=delta.codes
    )
    with use("reference"):
        plain = solved(x, graph, empty, K=3, lambda_s=1.0, target=0.1)
    for a, b in zip(solved(x, graph, empty, K=3, lambda_s=1.0, target=0.1), plain, strict=True):
        torch.testing.assert_close(a, b)


def test_computes_in_the_logits_precision() -> None:
    x, _, delta = problem(40, 2)
    edges = torch.randint(40, (2, 200), generator=torch.Generator().manual_seed(0))
    graph = normalise(edges, 40)  # in single precision, and the logits in double
    options = {"K": 3, "lambda_s": 1.0}
    with use("reference"):
        theirs = solved(x, graph, delta, **options)
    for a, b in zip(solved(x, graph, delta, **options), theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


def test_a_custom_graph_is_used() -> None:
    class Silent(Adjacency):
        is_local = False

        def aggregate(self, *args: Any, **options: Any) -> Tensor:
            return 0 * super().aggregate(*args, **options)

    x, graph, delta = problem(30, 0)
    silent = Silent(graph.num_nodes, graph.scale, graph.forward, graph.backward)
    assert projection(x, silent, delta, K=2, lambda_s=1.0, target=1.0).f.abs().max() == 0


def test_several_threads_may_ask_for_gradients() -> None:
    x, graph, delta = problem(40_000, 0)
    x.requires_grad_()
    f = projection(x, graph, delta, K=3, lambda_s=1.0).f
    weights = [torch.randn(x.shape, dtype=x.dtype) for _ in range(4)]

    def gradient(weight: Tensor) -> Tensor:
        return torch.autograd.grad(f, x, weight, retain_graph=True)[0]

    alone = [gradient(weight) for weight in weights]
    with ThreadPoolExecutor(4) as pool:
        for ours, theirs in zip(pool.map(gradient, weights), alone, strict=True):
            assert torch.equal(ours, theirs)

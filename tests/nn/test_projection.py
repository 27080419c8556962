"""The steps of the projection where logits lie far apart, in units of the temperature."""

from __future__ import annotations

import pytest
import torch

from fairmp.graph import Adjacency, normalise
from fairmp.groups import group_operator
from fairmp.nn.solvers import frozen, projection, propagate


def ring(n: int, dtype: torch.dtype = torch.float32) -> Adjacency:
    """A graph in which everyone has two neighbours."""
    here = torch.arange(n)
    edges = torch.stack([here, (here + 1) % n])
    return normalise(torch.cat([edges, edges.flip(0)], 1), n, dtype=dtype)


@pytest.mark.parametrize("temperature", [1.0, 0.01, 0.001, 0.0003])
@pytest.mark.parametrize("classes", [2, 3])
def test_a_small_temperature_leaves_alone_whom_it_does_not_reach(
    temperature: float, classes: int
) -> None:
    """In float32 logits thousands of τ apart are all but certain, and stay what they are."""
    torch.manual_seed(12)
    sens = torch.randint(-1, 2, (300,))
    x, graph = 3 * torch.randn(300, classes), ring(300)
    delta = group_operator(sens)
    for target in (0.0, 1.0):
        solution = projection(
            x, graph, delta, K=2, lambda_s=1.0, target=target, temperature=temperature
        )
        assert float(delta.gap((solution.f / temperature).softmax(1)).abs().max()) <= target + 1e-4
        again = frozen(
            x, graph, delta.membership, solution.group_duals, lambda_s=1.0, projected=True
        )
        torch.testing.assert_close(again.softmax(1), solution.f.softmax(1), atol=1e-5, rtol=0)
        if target:
            plain = propagate(x, graph, K=2, lambda_s=1.0)
            torch.testing.assert_close(solution.f.softmax(1), plain.softmax(1))


def test_gradients_of_rows_far_apart() -> None:
    """float32 sees rows thousands of τ apart from their largest logit; float64 has no need to."""
    torch.manual_seed(13)
    sens = torch.randint(-1, 2, (400,))
    x, weight = 3 * torch.randn(400, 2), torch.randn(400, 2)
    found = []
    for dtype in (torch.float32, torch.float64):
        given = x.to(dtype, copy=True).requires_grad_()
        run = projection(
            given,
            ring(400, dtype),
            group_operator(sens, dtype=dtype),
            K=2,
            lambda_s=1.0,
            temperature=0.0005,
        )
        (run.f.softmax(1) * weight).sum().backward()
        assert given.grad is not None
        found.append(given.grad.double())
    assert float(x.abs().max()) > 2 * 0.0005 * 5e3
    torch.testing.assert_close(found[0], found[1], atol=2e-3, rtol=1e-3)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("classes", "groups"), [(2, 3), (3, 2), (3, 3)])
def test_parity_of_several_groups_and_classes_is_found_at_any_temperature(
    classes: int, groups: int, seed: int
) -> None:
    torch.manual_seed(seed)
    sens = torch.randint(0, groups, (400,))
    x = 60 * torch.randn(400, classes, dtype=torch.float64) * torch.rand(400, 1).double()
    x[:, 0] += sens
    solution = projection(
        x, ring(400, x.dtype), group_operator(sens), K=1, lambda_s=1.0, temperature=0.001
    )
    assert solution.residual is not None
    assert solution.residual <= 1e-4

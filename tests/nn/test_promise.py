"""The promise of the projection on random problems, checked by an independent computation."""

from __future__ import annotations

import pytest
import torch

from fairmp import FMP
from fairmp.groups import group_operator
from fairmp.nn import dual
from fairmp.nn.solvers import papc, projection
from tests.fuzz.promise import excess, gradient_is_finite
from tests.nn.test_projection import ring


def test_two_groups_are_no_farther_apart_than_the_target() -> None:
    for seed in range(10_000, 10_040):
        over, kind, warned = excess(seed)
        assert over <= 1e-4, (seed, kind)
        assert not warned


def test_gradients_are_finite() -> None:
    for seed in range(10_000, 10_040):
        finite, kind = gradient_is_finite(seed)
        assert finite, (seed, kind)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize(("classes", "groups"), [(2, 2), (3, 3)])
def test_gradients_of_large_logits_are_finite(
    classes: int, groups: int, soft: bool, dtype: torch.dtype
) -> None:
    for seed in range(8):
        torch.manual_seed(seed)
        x = (1000 * torch.randn(60, classes)).to(dtype).requires_grad_()
        sens = torch.arange(60) % groups
        if soft:
            sens = 0.1 / groups + 0.9 * torch.nn.functional.one_hot(sens, groups)
        edges = torch.randint(0, 60, (2, 120))
        f = FMP(2, 1.0, target=0.02, temperature=0.1)(x, edges, sens)
        f.log_softmax(1).square().sum().backward()
        assert x.grad is not None
        assert x.grad.isfinite().all()


def test_a_miss_is_warned_about(monkeypatch: pytest.MonkeyPatch) -> None:
    x, sens = torch.randn(40, 3), torch.arange(40) % 3
    method = dual.solve
    monkeypatch.setattr(dual, "solve", lambda *a: method(*a)._replace(residual=0.1))
    with pytest.warns(UserWarning, match="did not meet the target"):
        projection(x, ring(40), group_operator(sens), K=1, lambda_s=1.0)


def test_papc_of_one_node_shared_between_groups() -> None:
    """Its groups' means are the same whatever is predicted, so there is nothing to correct."""
    x = torch.randn(5, 2, dtype=torch.float64)
    sens = torch.zeros(5, 2, dtype=torch.float64)
    sens[2] = torch.tensor([0.3, 0.7])
    solution = papc(
        x, ring(5, x.dtype), group_operator(sens, dtype=x.dtype), K=3, lambda_s=1.0, lambda_f=1.0
    )
    assert solution.f.isfinite().all()
    plain = FMP(3, 1.0, target=1.0)(x, torch.empty(2, 0, dtype=torch.long), sens)
    assert plain.isfinite().all()

"""Learned smoothing: γ = σ(θ) per step, a parameter of the layer."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from fairmp.nn.fused import Gamma, Problem, collect, differentiated
from torch import Tensor

from fairmp import FMP, PPR, InputError
from fairmp.graph import normalise
from fairmp.groups import group_operator
from fairmp.kernels import use
from fairmp.nn.solvers import projection_steps

SOLVERS: list[dict[str, Any]] = [
    {"target": 0.02},
    {"solver": "papc", "lambda_f": 2.0},
    {"solver": "paper", "lambda_f": 2.0},
]


def problem(classes: int = 2, n: int = 40) -> tuple[Tensor, Tensor, Tensor]:
    edge_index = torch.randint(n, (2, 3 * n))
    sens = torch.randint(-1, 2, (n,))
    x = torch.randn(n, classes, dtype=torch.float64)
    return x + sens.unsqueeze(1) * torch.arange(classes), edge_index, sens


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("options", SOLVERS)
@pytest.mark.parametrize("start", [1.0, 3.0])
def test_starts_as_the_layer_of_a_fixed_strength(
    classes: int, options: dict[str, Any], start: float
) -> None:
    x, edge_index, sens = problem(classes)
    learned = FMP(4, "learned", initial_lambda_s=start, **options)
    fixed = FMP(4, start, **options)
    torch.testing.assert_close(
        learned(x, edge_index, sens), fixed(x, edge_index, sens), rtol=1e-5, atol=1e-5
    )
    assert learned.gamma == pytest.approx(fixed.gamma)


def test_plain_propagation_learns_too() -> None:
    x, edge_index, _ = problem()
    learned = PPR(3, "learned", initial_lambda_s=2.0).double()
    torch.testing.assert_close(
        learned(x, edge_index), PPR(3, 2.0)(x, edge_index), rtol=1e-6, atol=1e-6
    )
    assert learned.theta is not None
    assert torch.autograd.gradcheck(lambda theta: _at(learned, theta, x, edge_index), learned.theta)


@pytest.mark.parametrize("kernels", ["fastest", "reference"])
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("options", SOLVERS)
def test_gradients_equal_finite_differences(
    options: dict[str, Any], classes: int, kernels: str
) -> None:
    x, edge_index, sens = problem(classes, n=12)
    layer = FMP(3, "learned", initial_lambda_s=2.0, **options).double()
    theta = torch.tensor([0.3, -0.5, 0.1], dtype=torch.float64, requires_grad=True)
    population = torch.arange(12) % 4 != 0
    with use(kernels):
        assert torch.autograd.gradcheck(
            lambda x, theta: _at(layer, theta, x, edge_index, sens, population),
            (x.requires_grad_(), theta),
            atol=1e-4,
        )


def _at(layer: PPR, theta: Tensor, *inputs: Tensor) -> Tensor:
    return torch.func.functional_call(layer, {"theta": theta}, inputs)  # type: ignore[no-any-return]


def test_gradient_with_the_gradient_of_logits_only_or_of_duals() -> None:
    x, edge_index, sens = problem()
    layer = FMP(3, "learned", target=0.01).double()
    (grad,) = torch.autograd.grad(layer.solve(x, edge_index, sens).duals.sum(), [layer.theta])
    with use("reference"):
        loop = torch.autograd.grad(layer.solve(x, edge_index, sens).duals.sum(), [layer.theta])
    torch.testing.assert_close(grad, loop[0], rtol=1e-6, atol=1e-9)


def test_gives_up_a_graph_that_hurts() -> None:
    n = 200
    x = torch.randn(n, 2)
    y, edge_index = x.argmax(1), torch.randint(n, (2, 10 * n))
    layer = PPR(2, "learned")
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.1)
    for _ in range(40):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(layer(x, edge_index), y).backward()
        optimizer.step()
    assert min(layer.gamma) > 0.8


def test_state_dict_config_repr_and_copies() -> None:
    layer = FMP(2, "learned", initial_lambda_s=3.0)
    assert repr(layer).startswith("FMP(K=2, lambda_s='learned', initial_lambda_s=3.0, ")
    assert layer.gamma == pytest.approx((0.25, 0.25))
    with torch.no_grad():
        layer.theta.copy_(torch.tensor([0.0, 1.0]))  # type: ignore[union-attr]
    again = FMP(**layer.config())  # type: ignore[arg-type]
    again.load_state_dict(layer.state_dict())
    assert again.gamma == layer.gamma == copy.deepcopy(layer).gamma
    assert not FMP().state_dict()
    assert "initial_lambda_s" not in FMP().config()


@pytest.mark.parametrize("value", ["learn", -1.0, None])
def test_refuses_other_strengths(value: Any) -> None:
    with pytest.raises(InputError) as error:
        FMP(lambda_s=value)
    assert error.value.argument == "lambda_s"
    with pytest.raises(InputError) as error:
        PPR(lambda_s="learned", initial_lambda_s=0.0)
    assert error.value.argument == "initial_lambda_s"


def test_what_a_recording_replays_equals_the_layer() -> None:
    """A CUDA graph is made of these two functions; here they run as they are."""
    x, edge_index, sens = problem()
    graph, groups = normalise(edge_index, len(x), dtype=x.dtype), group_operator(sens)
    gamma = torch.tensor([0.3, 0.6], dtype=torch.float64, requires_grad=True)

    def run(x: Tensor, gamma: Gamma) -> tuple[Tensor, ...]:
        return collect(projection_steps(x, Problem(graph, groups, gamma, (0.01, 1.0))), x)

    forward, backward = differentiated(run, gamma)
    results, kept = forward(x, gamma)
    gradients = tuple(torch.randn_like(part) for part in results)
    found = backward(kept, gradients)
    f, duals, _ = run(x.requires_grad_(), gamma)
    loss = (f * gradients[0]).sum() + (duals * gradients[1]).sum()
    for ours, expected in zip(found, torch.autograd.grad(loss, [x, gamma]), strict=True):
        torch.testing.assert_close(ours, expected)


@pytest.mark.gpu
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("options", SOLVERS)
def test_cuda_gives_the_same(classes: int, options: dict[str, Any]) -> None:
    given = problem(classes, n=2000)
    weights = torch.randn(2000, classes, dtype=torch.float64)
    layer = FMP(3, "learned", **options).double()
    runs = [(layer, *given), (copy.deepcopy(layer).cuda(), *(part.cuda() for part in given))]
    for _ in range(4):  # the second call on the device makes a recording, the others replay it
        found = []
        for module, x, edge_index, sens in runs:
            leaf = x.clone().requires_grad_()
            f = module(leaf, edge_index, sens)
            loss = (f * weights.to(f.device)).sum()
            gradients = torch.autograd.grad(loss, [leaf, *module.parameters()])
            found.append([part.detach().cpu() for part in (f, *gradients)])
        for ours, expected in zip(*found, strict=True):
            torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-6)
        with torch.no_grad():
            for module, *_ in runs:
                for parameter in module.parameters():
                    parameter.add_(0.1)

"""The network that reads each node alone, against PyG's."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import MLP

from fairmp.dense import PIECE, Dense


def pair(channels: list[int], **options: Any) -> tuple[Dense, MLP]:
    """One of ours and PyG's with the same weights, in double precision."""
    torch.manual_seed(0)
    ours = Dense(channels, norm=None, **options).double()
    theirs = MLP(channels, norm=None, **options).double()
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


def gradients(network: nn.Module, x: Tensor, weight: Tensor) -> list[Tensor | None]:
    x = x.clone().requires_grad_()
    (network(x) * weight).sum().backward()
    return [x.grad, *(p.grad for p in network.parameters())]


@pytest.mark.parametrize("channels", [[3, 2], [5, 8, 2], [5, 8, 20, 3], [4, 40, 30]])
@pytest.mark.parametrize("n", [1, 50, PIECE, 2 * PIECE + 7])
def test_is_pygs(channels: list[int], n: int) -> None:
    ours, theirs = pair(channels)
    x = torch.randn(n, channels[0], dtype=torch.float64)
    torch.testing.assert_close(ours(x), theirs(x))
    weight = torch.randn(n, channels[-1], dtype=torch.float64)
    for a, b in zip(gradients(ours, x, weight), gradients(theirs, x, weight), strict=True):
        torch.testing.assert_close(a, b)


def test_gradient_by_finite_differences() -> None:
    ours, _ = pair([3, 4, 2])
    x = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    parameters = tuple(ours.parameters())

    def of(x: Tensor, *_: Tensor) -> Tensor:
        return ours(x)

    assert torch.autograd.gradcheck(of, (x, *parameters))


def test_frozen_weights_get_no_gradient() -> None:
    ours, theirs = pair([3, 4, 2])
    x = torch.randn(10, 3, dtype=torch.float64)
    for network in (ours, theirs):
        network.lins[0].weight.requires_grad_(False)
        network(x).square().sum().backward()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        if b.grad is None:
            assert a.grad is None
        else:
            torch.testing.assert_close(a.grad, b.grad)


def test_a_gradient_can_be_asked_for_twice() -> None:
    ours, _ = pair([3, 4, 2])
    out = ours(torch.randn(5, 3, dtype=torch.float64)).square().sum()
    first = torch.autograd.grad(out, ours.lins[0].weight, retain_graph=True)[0]
    assert torch.equal(first, torch.autograd.grad(out, ours.lins[0].weight)[0])


def test_features_keep_their_values() -> None:
    ours, _ = pair([3, 4, 2])
    x = torch.randn(5, 3, dtype=torch.float64)
    before = x.clone()
    ours(x).sum().backward()
    assert torch.equal(x, before)


@pytest.mark.parametrize("options", [{"dropout": 0.5}, {"act": "elu"}, {"bias": False}])
def test_what_it_is_not_made_for_is_pygs_own(options: dict[str, Any]) -> None:
    ours, theirs = pair([3, 4, 2], **options)
    x = torch.randn(9, 3, dtype=torch.float64)
    results = []
    for network in (ours, theirs):
        torch.manual_seed(1)
        results.append(network(x))
    assert torch.equal(*results)
    assert "_Layers" not in type(results[0].grad_fn).__name__


def test_dropout_is_for_training_alone() -> None:
    ours, theirs = pair([3, 4, 2], dropout=0.5)
    x = torch.randn(9, 3, dtype=torch.float64)
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(x))
    assert "_Layers" in type(ours(x).grad_fn).__name__


def test_normalisation_is_pygs_own() -> None:
    torch.manual_seed(0)
    ours, theirs = Dense([3, 4, 2], norm="batch_norm"), MLP([3, 4, 2], norm="batch_norm")
    theirs.load_state_dict(copy.deepcopy(ours.state_dict()))
    x = torch.randn(9, 3)
    assert torch.equal(ours(x), theirs(x))


def test_half_precision_by_autocast() -> None:
    ours, theirs = Dense([3, 4, 2], norm=None), MLP([3, 4, 2], norm=None)
    theirs.load_state_dict(ours.state_dict())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        a, b = ours(torch.ones(5, 3)), theirs(torch.ones(5, 3))
    assert a.dtype == b.dtype == torch.bfloat16
    assert torch.equal(a, b)

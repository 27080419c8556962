"""``Dense`` against PyG's ``MLP``."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune
from torch_geometric.nn import MLP

from fairmp.nn.dense import BLOCK_ROWS, CHUNK_ROWS, MIN_COMPRESSED_NUMEL, Dense, compress


def pair(channels: list[int]) -> tuple[Dense, MLP]:
    """One of ours and PyG's with the same weights, in double precision."""
    torch.manual_seed(0)
    ours, theirs = Dense(channels).double(), MLP(channels, norm=None).double()
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


def is_fused(result: Tensor) -> bool:
    return "_Layers" in type(result.grad_fn).__name__


def gradients(network: nn.Module, x: Tensor, weight: Tensor) -> list[Tensor | None]:
    x = x.clone().requires_grad_()
    (network(x) * weight).sum().backward()
    return [x.grad, *(p.grad for p in network.parameters())]


@pytest.mark.parametrize("channels", [[3, 2], [5, 8, 2], [5, 8, 20, 3], [4, 40, 30]])
@pytest.mark.parametrize("n", [1, 50, CHUNK_ROWS, 2 * CHUNK_ROWS + 7])
def test_results_and_gradients_equal_pyg(channels: list[int], n: int) -> None:
    ours, theirs = pair(channels)
    x = torch.randn(n, channels[0], dtype=torch.float64)
    torch.testing.assert_close(ours(x), theirs(x))
    weight = torch.randn(n, channels[-1], dtype=torch.float64)
    for a, b in zip(gradients(ours, x, weight), gradients(theirs, x, weight), strict=True):
        torch.testing.assert_close(a, b)


def test_gradients_equal_finite_differences() -> None:
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


def test_the_input_is_not_modified() -> None:
    ours, _ = pair([3, 4, 2])
    x = torch.randn(5, 3, dtype=torch.float64)
    before = x.clone()
    ours(x).sum().backward()
    assert torch.equal(x, before)


def test_half_precision_by_autocast() -> None:
    ours, theirs = Dense([3, 4, 2]), MLP([3, 4, 2], norm=None)
    theirs.load_state_dict(ours.state_dict())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        a, b = ours(torch.ones(5, 3)), theirs(torch.ones(5, 3))
    assert a.dtype == b.dtype == torch.bfloat16
    assert torch.equal(a, b)


def test_layers_are_fused_on_a_cpu() -> None:
    ours, _ = pair([3, 8, 2])
    assert is_fused(ours(torch.randn(9, 3, dtype=torch.float64)))


REGISTRATIONS = {
    "forward": lambda layer, hook: layer.register_forward_hook(hook),
    "forward_pre": lambda layer, hook: layer.register_forward_pre_hook(hook),
    "backward": lambda layer, hook: layer.register_full_backward_hook(hook),
    "backward_pre": lambda layer, hook: layer.register_full_backward_pre_hook(hook),
}


@pytest.mark.parametrize("kind", REGISTRATIONS)
@pytest.mark.parametrize("copied", [False, True])
def test_hooks_of_layers_are_called(kind: str, copied: bool) -> None:
    ours, theirs = pair([3, 8, 2])
    calls: list[int] = []
    REGISTRATIONS[kind](ours.lins[0], lambda *_: calls.append(1))
    ours = copy.deepcopy(ours) if copied else ours
    x = torch.randn(9, 3, dtype=torch.float64, requires_grad=True)
    result = ours(x)
    torch.testing.assert_close(result, theirs(x))
    result.sum().backward()
    assert len(calls) == 1


def test_pruned_weights_take_effect() -> None:
    ours, theirs = pair([3, 8, 2])
    x = torch.randn(9, 3, dtype=torch.float64)
    for network in (ours, theirs):
        prune.l1_unstructured(network.lins[1], "weight", 0.3)
        with torch.no_grad():
            network.lins[1].weight_orig.mul_(3)
    torch.testing.assert_close(ours(x), theirs(x))


def test_gradients_of_gradients() -> None:
    ours, theirs = pair([3, 8, 2])
    gradients = []
    for network in (ours, theirs):
        x = torch.linspace(-1, 1, 15, dtype=torch.float64).view(5, 3).requires_grad_()
        (first,) = torch.autograd.grad(network(x).square().sum(), x, create_graph=True)
        first.square().sum().backward()
        gradients.append([x.grad, *(p.grad for p in network.parameters())])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)


def test_transformed_by_torch_func() -> None:
    ours, theirs = pair([3, 8, 2])
    x = torch.randn(4, 5, 3, dtype=torch.float64)
    torch.testing.assert_close(torch.vmap(ours)(x), torch.vmap(theirs)(x))
    gradients = [torch.func.grad(lambda v, m=m: m(v).square().sum())(x[0]) for m in (ours, theirs)]
    torch.testing.assert_close(*gradients)
    jacobians = [torch.func.jacfwd(network)(x[0]) for network in (ours, theirs)]
    torch.testing.assert_close(*jacobians)


def test_an_error_is_that_of_torch() -> None:
    with pytest.raises(RuntimeError, match="shape"):
        Dense([3, 4, 2])(torch.ones(5, 7))


def test_construction_on_the_meta_device() -> None:
    with torch.device("meta"):
        network = Dense([3, 4, 2])
    assert {part.device.type for part in network.parameters()} == {"meta"}


def sparse_features(n: int, columns: int, standardised: bool = False) -> Tensor:
    x = torch.randn(n, columns, dtype=torch.float64) * (torch.rand(n, columns) < 0.1)
    return (x - x.mean(0)) / x.std(0) if standardised else x


@pytest.mark.parametrize("standardised", [False, True])
@pytest.mark.parametrize("channels", [[100, 64, 2], [100, 20, 30, 3], [100, 2]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_compressed_features_equal_pyg(
    channels: list[int], standardised: bool, dtype: torch.dtype
) -> None:
    ours, theirs = (network.to(dtype) for network in pair(channels))
    n = MIN_COMPRESSED_NUMEL // 100 + BLOCK_ROWS // 2
    x = sparse_features(n, 100, standardised).to(dtype)
    compressed = compress(x)
    assert compressed is not None
    assert bool((compressed.common == 0).all()) != standardised
    weight = torch.randn(n, channels[-1], dtype=dtype)
    for _ in range(3):
        for network in (ours, theirs):
            network.zero_grad()
            (network(x) * weight).sum().backward()
        torch.testing.assert_close(ours(x), theirs(x))
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert a.grad is not None
            scale = float(a.grad.abs().max())
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-5 * scale)
    assert ours._compressed(x) is not None


def test_dense_small_and_differentiable_features_are_not_compressed() -> None:
    ours, _ = pair([100, 8, 2])
    n = MIN_COMPRESSED_NUMEL // 100 + 1
    dense, sparse = torch.randn(n, 100, dtype=torch.float64), sparse_features(n, 100)
    for x in (dense, sparse[:50], sparse.requires_grad_()):
        ours(x)
        assert ours._compressed(x) is None
    assert compress(dense) is None


def test_compressed_again_when_features_change_in_place() -> None:
    ours, theirs = pair([100, 8, 2])
    x = sparse_features(MIN_COMPRESSED_NUMEL // 100 + 1, 100)
    for _ in range(4):
        torch.testing.assert_close(ours(x), theirs(x))
    x[5] = 3.0
    for _ in range(3):
        torch.testing.assert_close(ours(x), theirs(x))
    x[7, 3] = torch.nan
    for _ in range(3):
        assert bool(ours(x)[7].isnan().all())
    assert copy.deepcopy(ours)(x).isnan().sum() == 2

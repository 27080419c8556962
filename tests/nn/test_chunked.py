from __future__ import annotations

import subprocess
import sys
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch_geometric.nn import MLP

from fairmp.errors import InputError
from fairmp.nn.chunked import chunked, free_bytes


def mlp(dropout: float = 0.0, norm: str | None = None) -> MLP:
    torch.manual_seed(0)
    return MLP([5, 8, 3], dropout=dropout, norm=norm).double()


def gradients(module: nn.Module, x: Tensor, out: Tensor) -> list[Tensor]:
    weights = torch.linspace(-1, 2, out.numel(), dtype=out.dtype).view_as(out)
    return list(torch.autograd.grad((weights * out.square()).sum(), [x, *module.parameters()]))


@given(rows=st.integers(1, 20), size=st.integers(1, 25))
def test_results_and_gradients_are_those_of_the_whole(rows: int, size: int) -> None:
    module = nn.Sequential(mlp(), nn.LayerNorm(3).double())
    x = torch.randn(rows, 5, dtype=torch.float64, requires_grad=True)
    whole, pieces = module(x), chunked(module, x, size)
    torch.testing.assert_close(pieces, whole, rtol=0, atol=1e-14)
    for one, other in zip(gradients(module, x, pieces), gradients(module, x, whole), strict=True):
        assert float((one - other).abs().max()) <= 1e-12 * max(1, float(other.abs().max()))


def test_dropout_drops_the_same_units_in_the_backward_pass() -> None:
    module = nn.Dropout(0.5)
    x = torch.rand(1000, 4, dtype=torch.float64).add(1).requires_grad_()
    out = chunked(module, x, 130)
    (grad,) = torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close(grad, out / x)
    assert 0.3 < float((grad == 0).double().mean()) < 0.7


def test_the_backward_pass_leaves_the_random_numbers_alone() -> None:
    module = mlp(dropout=0.5)
    x = torch.rand(10, 5, dtype=torch.float64)
    out = chunked(module, x, 3)
    before = torch.get_rng_state()
    out.sum().backward()
    assert torch.equal(torch.get_rng_state(), before)


def test_hidden_layers_are_not_kept() -> None:
    hidden: list[weakref.ref[np.ndarray]] = []

    class Copy(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            values = x.detach().numpy().copy()
            hidden.append(weakref.ref(values))
            return torch.from_numpy(values)

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad

    class Sine(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return Copy.apply(x).sin()  # its gradient needs the copy

    x = torch.rand(64, 5, requires_grad=True)
    whole = Sine()(x)
    assert hidden.pop()() is not None
    pieces = chunked(Sine(), x, 8)
    assert len(hidden) == 8
    assert all(reference() is None for reference in hidden)
    torch.testing.assert_close(pieces, whole)


@pytest.mark.skipif(sys.platform != "linux", reason="the peak has another unit elsewhere")
def test_memory_of_hidden_layers_is_that_of_a_few_chunks() -> None:
    """A hundred chunks of 4 MB, whose small results must not keep their memory apart."""
    code = """
import resource, torch
from fairmp.nn.chunked import chunked
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
module = torch.nn.Sequential(torch.nn.Linear(2, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
chunked(module, torch.randn(2**15, 2), 2**14).sum().backward()
x = torch.randn(100 * 2**14, 2)
before = peak()
chunked(module, x, 2**14).sum().backward()
print(peak() - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 100  # megabytes; results and their gradient are 25


def test_a_frozen_weight_and_an_unused_one() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used = nn.Linear(5, 2).double()
            self.unused = nn.Parameter(torch.ones(3))
            self.used.bias.requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)

    module = Odd()
    x = torch.rand(7, 5, dtype=torch.float64)
    chunked(module, x, 2).sum().backward()
    assert module.unused.grad is None
    assert module.used.bias.grad is None
    torch.testing.assert_close(module.used.weight.grad, x.sum(0).expand(2, 5))


def test_mixed_precision_is_that_of_the_forward_pass() -> None:
    module = nn.Linear(5, 2)
    x = torch.rand(9, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, whole = chunked(module, x, 4), module(x)
    assert out.dtype == torch.bfloat16
    one = torch.autograd.grad(out.float().sum(), module.weight)[0]
    other = torch.autograd.grad(whole.float().sum(), module.weight)[0]
    torch.testing.assert_close(one, other, rtol=0.02, atol=0.02)


def test_without_gradients() -> None:
    module, x = mlp(), torch.rand(7, 5, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(chunked(module, x, 3), module(x))


@pytest.mark.parametrize("size", [0, -1, 2.0, True])
def test_size_must_be_a_number_of_rows(size: object) -> None:
    with pytest.raises(InputError) as error:
        chunked(nn.Linear(2, 2), torch.zeros(3, 2), size)  # type: ignore[arg-type]
    assert error.value.argument == "size"


def test_chunked_refuses_zero_rows() -> None:
    with pytest.raises(InputError) as error:
        chunked(nn.Linear(2, 2), torch.zeros(0, 2), 4)
    assert error.value.argument == "x"


def test_batch_normalisation_needs_the_whole_batch() -> None:
    module = mlp(norm="batch_norm")
    x = torch.rand(6, 5, dtype=torch.float64)
    with pytest.raises(InputError, match=r"norms\.0\.module normalizes over all rows"):
        chunked(module, x, 2)
    module.eval()
    torch.testing.assert_close(chunked(module, x, 2), module(x))


def test_normalisation_over_a_graph_needs_the_graph() -> None:
    with pytest.raises(InputError, match=r"norms\.0 normalizes over all rows"):
        chunked(mlp(norm="layer_norm"), torch.rand(6, 5, dtype=torch.float64), 2)


@pytest.mark.gpu
def test_pieces_travel_to_the_module() -> None:
    x = torch.rand(1000, 5, dtype=torch.float64)
    here, there = mlp(), mlp().cuda()
    chunked(here, x, 300).sum().backward()
    out = chunked(there, x, 300)
    assert out.is_cuda
    out.sum().backward()
    for one, other in zip(here.parameters(), there.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad.cpu())


@pytest.mark.parametrize(("free", "calls"), [(10**9, 4), (0, 7), (700, 7), (1000, 4)])
def test_hidden_layers_that_fit_are_kept(
    monkeypatch: pytest.MonkeyPatch, free: int, calls: int
) -> None:
    """Four chunks; three are computed again unless what they keep fits."""
    monkeypatch.setattr("fairmp.nn.chunked.free_bytes", lambda device: free)
    counted: list[int] = []

    class Counting(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            counted.append(len(x))
            hidden = self[0](x).relu()  # 2 rows of 8 numbers in double precision, 128 bytes
            return self[1](hidden)

    module = Counting(nn.Linear(5, 8), nn.Linear(8, 2)).double()
    x = torch.rand(8, 5, dtype=torch.float64)
    weights = torch.rand(8, 2, dtype=torch.float64)
    out = chunked(module, x, 2, keep=0.5)
    gradients = torch.autograd.grad((out * weights).sum(), list(module.parameters()))
    assert len(counted) == calls
    expected = torch.autograd.grad((module(x) * weights).sum(), list(module.parameters()))
    for ours, theirs in zip(gradients, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_chunked_refuses_keep_above_one() -> None:
    with pytest.raises(InputError) as error:
        chunked(nn.Linear(2, 2), torch.zeros(3, 2), 1, keep=2.0)
    assert error.value.argument == "keep"
    assert free_bytes(torch.device("cpu")) > 0

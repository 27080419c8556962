"""The primitives as a protocol, their reference implementation, and the choice between them."""

from __future__ import annotations

import inspect

import pytest
import torch

from fairmp.errors import InputError
from fairmp.kernels import Kernels, implementation, reference, use

PRIMITIVES = [name for name in vars(Kernels) if not name.startswith("_")]
CODES = torch.tensor([0, -1, 1], dtype=torch.int32)
ZERO = torch.zeros(2, 2, dtype=torch.float64)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", PRIMITIVES)
def test_implementations_have_the_same_signatures(device: str, name: str) -> None:
    pytest.importorskip({"cpu": "numba", "cuda": "triton"}[device])
    compiled = pytest.importorskip(f"fairmp.kernels.{device}.primitives")
    wanted = inspect.signature(getattr(reference, name))
    assert inspect.signature(getattr(compiled, name)) == wanted
    declared = inspect.signature(getattr(Kernels, name)).parameters
    assert list(declared)[1:] == list(wanted.parameters)


def test_the_reference_serves_other_types_and_on_request() -> None:
    assert implementation(torch.zeros(1, dtype=torch.float16)) is reference
    with use("reference"):
        assert implementation(torch.zeros(1)) is reference
        with use("fastest"):
            assert implementation(torch.zeros(1)).__name__.startswith("fairmp.kernels.")
    with pytest.raises(InputError) as error, use("slowest"):
        pass
    assert error.value.argument == "kernels"


def test_reference_aggregate() -> None:
    row, col = torch.tensor([0, 2, 4]), torch.tensor([0, 1, 0, 1])
    half, f = torch.full((2,), 0.5).sqrt(), torch.tensor([[1.0], [3.0]])
    product = reference.aggregate((row, col, None, half, half), f, None, 0.0)
    torch.testing.assert_close(product, torch.full((2, 1), 2.0))
    skip = reference.aggregate((row, col, None, half, half), f, f, 0.5)
    torch.testing.assert_close(skip, torch.tensor([[1.5], [2.5]]))


def test_reference_passes_over_nodes() -> None:
    z = torch.tensor([[0.0, 0.0], [5.0, 9.0], [0.0, 3.0]])
    moments = reference.moments(z[:2], CODES[:2], ZERO, 1.0)
    assert moments[1:5].tolist() == [0.5, 0.5, 0.0, 0.0]
    assert moments[5:9].tolist() == [0.25] * 4
    assert reference.shift(z, CODES, ZERO + 1).tolist() == [[-1, -1], [5, 9], [-1, 2]]
    assert reference.segment_sum(z, CODES, 2).tolist() == [[0, 0], [0, 3]]
    w = torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    added = reference.softmax_vjp(torch.zeros_like(z), z, CODES, ZERO, 1.0, w)
    assert added.tolist() == [[0.25, -0.25], [0, 0], [0, 0]]


def test_reference_linear_relu_backward() -> None:
    h, weight = torch.tensor([[0.0, 2.0]]), torch.tensor([[3.0, 5.0]])
    found = reference.linear_relu_backward(torch.ones(1, 1), h, weight)
    assert [part.tolist() for part in found] == [[[0, 5]], [0, 5], [[0, 2]]]

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from fairmp.errors import InputError
from fairmp.kernels import Kernels, apply, implementation, not_compiled, protocol, reference, use

PRIMITIVES = [name for name in vars(Kernels) if not name.startswith("_")]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", PRIMITIVES)
def test_implementations_have_the_same_signatures(device: str, name: str) -> None:
    pytest.importorskip({"cpu": "numba", "cuda": "triton"}[device])
    compiled = pytest.importorskip(f"fairmp.kernels.{device}.primitives")
    expected = inspect.signature(getattr(reference, name))
    assert inspect.signature(getattr(compiled, name)) == expected
    declared = inspect.signature(getattr(Kernels, name)).parameters
    assert list(declared)[1:] == list(expected.parameters)


def test_implementation_is_the_reference_for_other_types_and_on_request() -> None:
    assert implementation(torch.zeros(1, dtype=torch.float16)) is reference
    assert implementation(torch.zeros(1, device="meta")) is reference
    with use("reference"):
        assert implementation(torch.zeros(1)) is reference
        with use("fastest"):
            assert implementation(torch.zeros(1)) is not reference
    assert implementation(torch.zeros(1)) is not reference


@pytest.fixture
def _no_compiled_kernels() -> Iterator[None]:
    protocol._compiled.cache_clear()
    yield
    protocol._compiled.cache_clear()


@pytest.mark.usefixtures("_no_compiled_kernels")
def test_implementation_is_the_reference_without_a_compiler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(protocol, "find_spec", lambda name: None)
    assert implementation(torch.zeros(1)) is reference


@pytest.mark.usefixtures("_no_compiled_kernels")
def test_implementation_is_the_reference_if_the_compiler_does_not_import(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(name: str) -> Any:
        raise ImportError("numba needs another version of NumPy")

    monkeypatch.setattr(protocol, "import_module", fail)
    assert implementation(torch.zeros(1)) is reference


def test_use_refuses_unknown_names() -> None:
    with pytest.raises(InputError) as error, use("slowest"):
        pass
    assert error.value.argument == "kernels"


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return 2 * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return 2 * grad


def test_apply_without_gradients_equals_apply_with_them() -> None:
    x = torch.ones(3, requires_grad=True)
    with_gradient = apply(Double, x)
    with torch.no_grad():
        without = apply(Double, x)
    assert torch.equal(with_gradient, without)
    assert with_gradient.requires_grad
    assert not without.requires_grad


def test_not_compiled_functions_are_called_as_they_are() -> None:
    calls: list[int] = []

    @not_compiled
    def function(x: Tensor) -> Tensor:
        calls.append(1)
        return x.sin()

    compiled = torch.compile(lambda x: 2 * function(x), backend="eager")
    x = torch.ones(2)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), 2 * x.sin())
    assert len(calls) == 3  # not traced once and replayed
    torch._dynamo.reset()

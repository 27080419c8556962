"""Recordings of functions, and the cache that keeps them."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor

from fairmp.kernels.cuda import graphs
from fairmp.kernels.cuda.graphs import CUDAGraphCache, Recording


def weighted_square(x: Tensor, w: Tensor) -> Tensor:
    return w * x.square()


@pytest.mark.gpu
def test_a_recording_is_the_function_and_its_gradient() -> None:
    inputs = [(torch.randn(4, 2).cuda(), torch.randn(2).cuda()) for _ in range(3)]
    recording = Recording(inputs[0], weighted_square)
    calls = [recording.forward(*pair) for pair in inputs]
    # In another order than they were called, and twice.
    for k in (2, 0, 1, 1):
        x, w = (part.clone().requires_grad_() for part in inputs[k])
        expected = weighted_square(x, w)
        result, replay_id = calls[k]
        torch.testing.assert_close(result, expected)
        grad = torch.randn_like(expected)
        gradients = recording.backward(replay_id, inputs[k], grad)
        for part, other in zip(gradients, torch.autograd.grad(expected, (x, w), grad), strict=True):
            torch.testing.assert_close(part, other)


@pytest.mark.gpu
def test_calls_through_the_cache_equal_the_function() -> None:
    recordings, w = CUDAGraphCache(), torch.randn(2, device="cuda", requires_grad=True)
    for _ in range(4):  # the second call makes a recording, the others replay it
        x = torch.randn(4, 2, device="cuda", requires_grad=True)
        result = recordings.call(weighted_square, (x, w), (), ())
        expected = weighted_square(x, w)
        grad = torch.randn_like(expected)
        torch.testing.assert_close(result, expected)
        for part, other in zip(
            torch.autograd.grad(result, (x, w), grad),
            torch.autograd.grad(expected, (x, w), grad),
            strict=True,
        ):
            torch.testing.assert_close(part, other)


class FakeRecording:
    """In place of a recording, which needs a device."""

    def __init__(self, inputs: tuple[Tensor, ...], function: Any) -> None:
        self.inputs, self.function = inputs, function

    def forward(self, *inputs: Tensor) -> tuple[Tensor, int]:
        return -self.function(*inputs), 0


@pytest.fixture
def _no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "Recording", FakeRecording)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)


@pytest.mark.usefixtures("_no_device")
def test_recordings_are_made_on_the_second_call_and_few_are_kept() -> None:
    recordings, x = CUDAGraphCache(size=2), torch.ones(4, 2)
    objects = [object() for _ in range(9)]

    def replayed(k: int, option: float = 1.0, x: Tensor = x) -> bool:
        """Whether a call is answered by a recording; ours change the sign."""
        result = recordings.call(lambda x: x, (x,), (objects[k],), (option,))
        return bool((result == -1).all())

    assert not replayed(0)
    assert replayed(0)
    assert not replayed(0, 2.0)
    assert not replayed(0, x=x[:2])
    assert not replayed(0, x=x.double())
    # Functions met only once do not evict a recording; two other recordings do.
    for k in range(1, 9):
        assert not replayed(k)
    assert replayed(0)
    assert not replayed(1)  # forgotten
    for k in (7, 8):
        replayed(k)
        assert replayed(k)
    assert not replayed(0)


@pytest.mark.usefixtures("_no_device")
def test_nothing_is_recorded_within_another_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    recordings, x = CUDAGraphCache(), torch.ones(4, 2)
    for _ in range(3):
        assert recordings.call(lambda x: x, (x,), (), ()) is x


def test_copies_of_a_cache_are_empty() -> None:
    cache = CUDAGraphCache(size=7)
    cache._met[("key",)] = ()
    copy = deepcopy(cache)
    assert copy.size == 7
    assert not copy._met

"""CUDA graphs: work on the device recorded once, and replayed with a single launch.

On graphs of some ten thousand nodes a kernel takes less time than its launch.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Function = Callable[..., Tensor]
Tensors = tuple[Tensor, ...]


class Recording:
    """A function of tensors and its gradients, as two CUDA graphs over the same memory.

    The memory holds the last call. For the gradient of an earlier one the function is run again on
    its input, which for a deterministic function restores the memory.
    """

    def __init__(self, tensors: Tensors, function: Function) -> None:
        self._inputs = tuple(x.detach().clone() for x in tensors)
        self._device = device = tensors[0].device
        # A first run compiles and inspects the graph, which cannot be recorded. It uses a stream
        # of its own, as the recording does.
        side, current = torch.cuda.Stream(device), torch.cuda.current_stream(device)
        side.wait_stream(current)
        with torch.no_grad(), torch.cuda.stream(side):
            leaves, output = _call(function, self._inputs)
            torch.autograd.grad(output, leaves, torch.zeros_like(output))
            del leaves, output
        current.wait_stream(side)
        pool = torch.cuda.graph_pool_handle()
        # Other threads may go on using the device.
        options: dict[str, Any] = {"stream": side, "capture_error_mode": "thread_local"}
        self._forward, self._backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.no_grad():
            with torch.cuda.graph(self._forward, pool=pool, **options):
                leaves, output = _call(function, self._inputs)
            self._result = output.detach()
            self._gradient = torch.zeros_like(self._result)
            with torch.cuda.graph(self._backward, pool=pool, **options):
                gradients = torch.autograd.grad(output, leaves, self._gradient, retain_graph=True)
            self._input_gradients = gradients
        self._tape = leaves, output  # keeps the memory of the gradient alive
        self._replay_id = 0

    def forward(self, *tensors: Tensor) -> tuple[Tensor, int]:
        """Return the result, and an identifier of the call for :meth:`backward`."""
        with torch.cuda.device(self._device):
            self._run(tensors)
        return self._result.clone(), self._replay_id

    def backward(self, replay_id: int, tensors: Tensors, gradient: Tensor) -> Tensors:
        """Gradients of the tensors of a call, given that of its result."""
        with torch.cuda.device(self._device):
            if replay_id != self._replay_id:
                self._run(tensors)
            self._gradient.copy_(gradient)
            self._backward.replay()
        return tuple(part.clone() for part in self._input_gradients)

    def _run(self, tensors: Tensors) -> None:
        for buffer, x in zip(self._inputs, tensors, strict=True):
            buffer.copy_(x)
        self._forward.replay()
        self._replay_id += 1


def _call(function: Function, tensors: Tensors) -> tuple[Tensors, Tensor]:
    """Call a function of tensors with gradients; return what it was called with, and its result."""
    with torch.enable_grad():
        leaves = tuple(tensor.detach().requires_grad_() for tensor in tensors)
        return leaves, function(*leaves)


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, recording: Recording, *tensors: Tensor) -> Tensor:
        result, ctx.replay_id = recording.forward(*tensors)
        ctx.recording = recording
        ctx.save_for_backward(*tensors)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return None, *ctx.recording.backward(ctx.replay_id, ctx.saved_tensors, gradient)


class CUDAGraphCache:
    """LRU cache of recordings, each made the second time its function is met."""

    def __init__(self, size: int = 4) -> None:
        self.size = size
        self._recordings: OrderedDict[tuple[object, ...], Recording] = OrderedDict()
        # The objects of each key are kept alive: an identity is valid only as long as they are.
        self._met: OrderedDict[tuple[object, ...], tuple[object, ...]] = OrderedDict()

    def call(
        self,
        function: Function,
        tensors: Tensors,
        objects: tuple[object, ...],
        options: tuple[object, ...],
    ) -> Tensor:
        """Call a function of tensors, from its recording if there is one.

        ``objects`` are what the function was made of, compared by identity, and ``options`` what
        else it depends on, compared by value.
        """
        tensors = tuple(tensor.contiguous() for tensor in tensors)
        recording = self._get(function, tensors, objects, options)
        if recording is None:
            return function(*tensors)
        result: Tensor = _Replay.apply(recording, *tensors)
        return result

    def _get(
        self,
        function: Function,
        tensors: Tensors,
        objects: tuple[object, ...],
        options: tuple[object, ...],
    ) -> Recording | None:
        """Return the recording of a function, or ``None`` the first time it is met."""
        if torch.cuda.is_current_stream_capturing():
            return None
        shapes = ((x.shape, x.dtype, x.device) for x in tensors)
        key = (*map(id, objects), *options, *shapes)
        recording = self._recordings.get(key)
        if recording is None and key in self._met:
            recording = self._recordings[key] = Recording(tensors, function)
        if recording is None:
            self._met[key] = objects
        else:
            self._recordings.move_to_end(key)
            self._met.move_to_end(key)
        if len(self._recordings) > self.size:
            self._met.pop(self._recordings.popitem(last=False)[0])
        for old in [k for k in self._met if k not in self._recordings][: -self.size]:
            del self._met[old]
        return recording

    def __reduce__(self) -> tuple[type[CUDAGraphCache], tuple[int]]:
        """Copies and pickles start empty: a recording lives on its device."""
        return CUDAGraphCache, (self.size,)

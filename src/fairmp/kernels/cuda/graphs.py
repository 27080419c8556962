"""CUDA graphs: work on the device recorded once, and replayed with a single launch.

On graphs of some ten thousand nodes a kernel takes less time than its launch.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Tensors = tuple[Tensor, ...]
Forward = Callable[..., tuple[Tensors, Any]]  # the results, and what the gradient needs
Backward = Callable[[Any, Tensors], Tensors]


class Recording:
    """A function of tensors and its gradients, as two CUDA graphs over the same memory.

    The memory holds the last call. For the gradient of an earlier one the function is run again on
    its input, which for a deterministic function restores the memory.
    """

    def __init__(self, inputs: Tensors, forward: Forward, backward: Backward) -> None:
        self._inputs = tuple(x.detach().clone() for x in inputs)
        self._device = device = inputs[0].device
        # A first run compiles and inspects the graph, which cannot be recorded. It uses a stream
        # of its own, as the recording does.
        side, current = torch.cuda.Stream(device), torch.cuda.current_stream(device)
        side.wait_stream(current)
        with torch.no_grad(), torch.cuda.stream(side):
            results, saved = forward(*self._inputs)
            backward(saved, tuple(torch.zeros_like(r) for r in results))
            del results, saved
        current.wait_stream(side)
        pool = torch.cuda.graph_pool_handle()
        # Other threads may go on using the device.
        options: dict[str, Any] = {"stream": side, "capture_error_mode": "thread_local"}
        self._forward, self._backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.no_grad():
            with torch.cuda.graph(self._forward, pool=pool, **options):
                self._results, self._saved = forward(*self._inputs)
            self._gradients = tuple(torch.zeros_like(r) for r in self._results)
            with torch.cuda.graph(self._backward, pool=pool, **options):
                self._found = backward(self._saved, self._gradients)
        self._is_zero = [True] * len(self._results)
        self._replay_id = 0

    def forward(self, *inputs: Tensor) -> tuple[Tensors, int]:
        """Return the results, and an identifier of the call for :meth:`backward`."""
        with torch.cuda.device(self._device):
            self._run(inputs)
        return tuple(result.clone() for result in self._results), self._replay_id

    def backward(
        self, replay_id: int, inputs: Tensors, gradients: tuple[Tensor | None, ...]
    ) -> Tensors:
        """Gradients of the inputs of a call, given those of its results (``None`` for 0)."""
        with torch.cuda.device(self._device):
            if replay_id != self._replay_id:
                self._run(inputs)
            for k, (buffer, gradient) in enumerate(zip(self._gradients, gradients, strict=True)):
                if gradient is not None:
                    buffer.copy_(gradient)
                elif not self._is_zero[k]:
                    buffer.zero_()
                self._is_zero[k] = gradient is None
            self._backward.replay()
        return tuple(gradient.clone() for gradient in self._found)

    def _run(self, inputs: Tensors) -> None:
        for buffer, x in zip(self._inputs, inputs, strict=True):
            buffer.copy_(x)
        self._forward.replay()
        self._replay_id += 1


class CUDAGraphCache:
    """The last ``size`` recordings in use, each made the second time its function is met."""

    def __init__(self, size: int = 4) -> None:
        self.size = size
        self._recordings: OrderedDict[tuple[object, ...], Recording] = OrderedDict()
        # The objects of each key are kept alive: an identity is valid only as long as they are.
        self._met: OrderedDict[tuple[object, ...], tuple[object, ...]] = OrderedDict()

    def get(
        self,
        objects: tuple[object, ...],
        numbers: tuple[object, ...],
        inputs: Tensors,
        forward: Forward,
        backward: Backward,
    ) -> Recording | None:
        """Return the recording of a function, or ``None`` the first time it is met.

        ``objects`` are what the function was made of, compared by identity, and ``numbers`` what
        else it depends on, compared by value.
        """
        if torch.cuda.is_current_stream_capturing():
            return None
        shapes = ((x.shape, x.dtype, x.device) for x in inputs)
        key = (*map(id, objects), *numbers, *shapes)
        recording = self._recordings.get(key)
        if recording is None and key in self._met:
            recording = self._recordings[key] = Recording(inputs, forward, backward)
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

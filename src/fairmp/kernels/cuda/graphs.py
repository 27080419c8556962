"""CUDA graphs: work on the device recorded once, and replayed with a single launch.

On graphs of some ten thousand nodes a kernel takes less time than its launch.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Tensors = tuple[Tensor, ...]
Function = Callable[..., Tensors]


@dataclass(frozen=True)
class Tape:
    """A call of a function, and what its gradient needs."""

    leaves: Tensors
    outputs: Tensors

    @classmethod
    def record(cls, function: Function, inputs: Tensors) -> Tape:
        """Call the function on copies of the inputs that require a gradient."""
        with torch.enable_grad():
            leaves = tuple(tensor.detach().requires_grad_() for tensor in inputs)
            return cls(leaves, function(*leaves))

    @property
    def results(self) -> Tensors:
        """What the function returned, without a gradient."""
        return tuple(output.detach() for output in self.outputs)

    def backward(self, gradients: Tensors) -> Tensors:
        """Gradients of the inputs, given those of the results."""
        pairs = zip(self.outputs, gradients, strict=True)
        differentiable = [(output, grad) for output, grad in pairs if output.requires_grad]
        outputs, incoming = zip(*differentiable, strict=True)
        return torch.autograd.grad(outputs, self.leaves, incoming)


class Recording:
    """A function of tensors and its gradients, as two CUDA graphs over the same memory.

    The memory holds the last call. For the gradient of an earlier one the function is run again on
    its input, which for a deterministic function restores the memory.
    """

    def __init__(self, inputs: Tensors, function: Function) -> None:
        self._inputs = tuple(x.detach().clone() for x in inputs)
        self._device = device = inputs[0].device
        # A first run compiles and inspects the graph, which cannot be recorded. It uses a stream
        # of its own, as the recording does.
        side, current = torch.cuda.Stream(device), torch.cuda.current_stream(device)
        side.wait_stream(current)
        with torch.no_grad(), torch.cuda.stream(side):
            tape = Tape.record(function, self._inputs)
            tape.backward(tuple(torch.zeros_like(result) for result in tape.results))
            del tape
        current.wait_stream(side)
        pool = torch.cuda.graph_pool_handle()
        # Other threads may go on using the device.
        options: dict[str, Any] = {"stream": side, "capture_error_mode": "thread_local"}
        self._forward, self._backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.no_grad():
            with torch.cuda.graph(self._forward, pool=pool, **options):
                self._tape = Tape.record(function, self._inputs)
            self._results = self._tape.results
            self._gradients = tuple(torch.zeros_like(result) for result in self._results)
            with torch.cuda.graph(self._backward, pool=pool, **options):
                self._input_gradients = self._tape.backward(self._gradients)
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
        return tuple(gradient.clone() for gradient in self._input_gradients)

    def _run(self, inputs: Tensors) -> None:
        for buffer, x in zip(self._inputs, inputs, strict=True):
            buffer.copy_(x)
        self._forward.replay()
        self._replay_id += 1


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, recording: Recording, *inputs: Tensor) -> Tensors:
        ctx.set_materialize_grads(False)
        ctx.recording = recording
        results, ctx.replay_id = recording.forward(*inputs)
        ctx.save_for_backward(*inputs)
        return results

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        return None, *ctx.recording.backward(ctx.replay_id, ctx.saved_tensors, gradients)


class CUDAGraphCache:
    """The last ``size`` recordings in use, each made the second time its function is met."""

    def __init__(self, size: int = 4) -> None:
        self.size = size
        self._recordings: OrderedDict[tuple[object, ...], Recording] = OrderedDict()
        # The objects of each key are kept alive: an identity is valid only as long as they are.
        self._met: OrderedDict[tuple[object, ...], tuple[object, ...]] = OrderedDict()

    def call(
        self,
        function: Function,
        inputs: Tensors,
        objects: tuple[object, ...],
        numbers: tuple[object, ...],
    ) -> Tensors:
        """Call a function of tensors, from its recording if there is one.

        ``objects`` are what the function was made of, compared by identity, and ``numbers`` what
        else it depends on, compared by value.
        """
        inputs = tuple(tensor.contiguous() for tensor in inputs)
        recording = self._get(function, inputs, objects, numbers)
        return function(*inputs) if recording is None else _Replay.apply(recording, *inputs)

    def _get(
        self,
        function: Function,
        inputs: Tensors,
        objects: tuple[object, ...],
        numbers: tuple[object, ...],
    ) -> Recording | None:
        """Return the recording of a function, or ``None`` the first time it is met."""
        if torch.cuda.is_current_stream_capturing():
            return None
        shapes = ((x.shape, x.dtype, x.device) for x in inputs)
        key = (*map(id, objects), *numbers, *shapes)
        recording = self._recordings.get(key)
        if recording is None and key in self._met:
            recording = self._recordings[key] = Recording(inputs, function)
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

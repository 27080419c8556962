"""Work on the device recorded once and replayed: one launch for many, and the host is free again.

On graphs of some ten thousand nodes a kernel takes less time than launching it. What is run again
and again on the same graph, as in training, is therefore captured as a CUDA graph.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

MAX_RECORDED_NUMEL = 2**22  # numbers up to which launching the steps costs more than running them

Kept = TypeVar("Kept")
Ahead = Callable[[Tensor], tuple[tuple[Tensor, ...], Kept]]
Back = Callable[[Kept, tuple[Tensor, ...]], Tensor]


class Recording(Generic[Kept]):
    """A function of one tensor and its gradient, as two CUDA graphs over the same memory.

    The gradient belongs to the last call. For an earlier one the function is run again on its
    input, which for a deterministic function leaves the memory as it was.

    Args:
        x: an input; others must have its shape.
        ahead: the function: its results, and what its gradient needs.
        back: from that, and the gradients of the results, to the gradient of the input.
    """

    def __init__(self, x: Tensor, ahead: Ahead[Kept], back: Back[Kept]) -> None:
        self._x = x.detach().clone()
        # Compiles and looks at the graph, which can not be recorded; on a stream of its own, as
        # the recording is.
        side, here = torch.cuda.Stream(x.device), torch.cuda.current_stream(x.device)
        side.wait_stream(here)
        with torch.no_grad(), torch.cuda.stream(side):
            results, kept = ahead(self._x)
            back(kept, tuple(torch.zeros_like(r) for r in results))
            del results, kept
        here.wait_stream(side)
        pool = torch.cuda.graph_pool_handle()
        self._ahead, self._back = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.no_grad():
            with _record(self._ahead, pool, side):
                self._results, self._kept = ahead(self._x)
            self._gradients = tuple(torch.zeros_like(r) for r in self._results)
            with _record(self._back, pool, side):
                self._gradient = back(self._kept, self._gradients)
        self._empty = [True] * len(self._results)
        self._turn = 0

    def forward(self, x: Tensor) -> tuple[tuple[Tensor, ...], int]:
        """The function's results, and a number to ask for their gradient with."""
        with torch.cuda.device(self._x.device):
            self._run(x)
        return tuple(result.clone() for result in self._results), self._turn

    def backward(self, replay_id: int, x: Tensor, gradients: tuple[Tensor | None, ...]) -> Tensor:
        """The gradient of the input x of a call, from those of its results (``None`` for 0)."""
        with torch.cuda.device(self._x.device):
            if replay_id != self._turn:
                self._run(x)
            self._take(gradients)
            self._back.replay()
        return self._gradient.clone()

    def _run(self, x: Tensor) -> None:
        self._x.copy_(x)
        self._ahead.replay()
        self._turn += 1

    def _take(self, gradients: tuple[Tensor | None, ...]) -> None:
        for k, (place, gradient) in enumerate(zip(self._gradients, gradients, strict=True)):
            if gradient is not None:
                place.copy_(gradient)
            elif not self._empty[k]:
                place.zero_()
            self._empty[k] = gradient is None


def _record(graph: torch.cuda.CUDAGraph, pool: Any, stream: torch.cuda.Stream) -> torch.cuda.graph:
    # What other threads do meanwhile is their own business.
    return torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local")


class CUDAGraphCache:
    """The recordings in use, each made the second time its function is asked for.

    Args:
        size: how many are kept.
    """

    def __init__(self, size: int = 4) -> None:
        self.size = size
        self._made: OrderedDict[tuple[object, ...], Recording[Any]] = OrderedDict()
        # Of what was met, the objects are held too: an identity is one only as long as they live.
        self._met: OrderedDict[tuple[object, ...], tuple[object, ...]] = OrderedDict()

    def get(
        self,
        objects: tuple[object, ...],
        numbers: tuple[object, ...],
        x: Tensor,
        ahead: Ahead[Kept],
        back: Back[Kept],
    ) -> Recording[Kept] | None:
        """Return the recording of a function, or ``None`` the first time it is met.

        Args:
            objects: what the function was made of, known by identity.
            numbers: what else it depends on, known by value.
            x: an input.
            ahead: the function, see :class:`Recording`.
            back: its gradient.
        """
        if torch.cuda.is_current_stream_capturing():
            return None
        key = (*map(id, objects), *numbers, x.shape, x.dtype, x.device)
        made = self._made.get(key)
        if made is None and key in self._met:
            made = self._made[key] = Recording(x, ahead, back)
        if made is None:
            self._met[key] = objects
        else:
            self._made.move_to_end(key)
            self._met.move_to_end(key)
        if len(self._made) > self.size:
            self._met.pop(self._made.popitem(last=False)[0])
        for old in [k for k in self._met if k not in self._made][: -self.size]:
            del self._met[old]
        return made

    def __reduce__(self) -> tuple[type[CUDAGraphCache], tuple[int]]:
        """Copies and pickles start anew: a recording lives on its device."""
        return CUDAGraphCache, (self.size,)

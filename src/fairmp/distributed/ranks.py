"""The processes that hold a graph together, and the few things they say to each other."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from fairmp.errors import InputError

Result = TypeVar("Result")


class SharedError(InputError):
    """A wrong input that every rank knows of: one of them says it, and all stop."""


class LostTouch(RuntimeError):
    """Another rank is gone, or did not answer in time."""


class Ranks:
    """All ranks of the default process group; one rank alone where there is none.

    What they add up is added in the order of ranks, so that every rank has the same bits.

    Attributes:
        rank: this one's number.
        size: how many there are.
        sent: bytes this rank has sent, by what for: ``"halo"``, ``"total"``, ``"gradient"``,
            ``"plan"`` and ``"gather"``.

    Example:
        >>> alone = Ranks()
        >>> alone.size, alone.total(torch.tensor([2.0]))
        (1, tensor([2.]))
    """

    def __init__(self) -> None:
        there = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank() if there else 0
        self.size = dist.get_world_size() if there else 1
        self.sent: Counter[str] = Counter()
        # What is not a tensor of the computation travels from here.
        on_gpu = there and dist.get_backend() == "nccl"
        self.device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else None

    def total(self, part: Tensor) -> Tensor:
        """Sum a small tensor over all ranks.

        Autograd sees it: what every rank uses, every rank has a gradient for, and these are summed
        in turn. A loss that counts once must therefore be divided among the ranks.
        """
        if self.size == 1:
            return part
        return _Total.apply(part, self)

    def largest(self, part: Tensor) -> Tensor:
        """Take the largest of each number over all ranks; autograd does not see it."""
        if self.size == 1:
            return part
        return torch.stack(self._all(part.detach(), "total")).amax(0)

    def add_gradients(self, parameters: Iterator[torch.nn.Parameter]) -> None:
        """Sum the gradients of the ranks' shares of the loss, in place, in one message."""
        if self.size == 1:
            return
        held = [p for p in parameters if p.requires_grad]
        # A parameter that no node here reached has a gradient of 0 here, not none.
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in held]
        flat = torch.cat([part.flatten() for part in parts])
        with self._talking("the gradients' sum"):
            dist.all_reduce(flat)
        self.sent["gradient"] += 2 * (self.size - 1) * _bytes(flat) // self.size
        start = 0
        for parameter in held:
            count = parameter.numel()
            parameter.grad = flat[start : start + count].view_as(parameter).clone()
            start += count

    def gather(self, rows: Tensor) -> Tensor | None:
        """Bring all ranks' rows to rank 0, in the order of ranks; ``None`` elsewhere."""
        if self.size == 1:
            return rows
        own = torch.tensor([rows.size(0)], device=rows.device)
        counts = [int(count) for count in self._all(own, "gather")]
        parts = [rows.new_empty(count, *rows.shape[1:]) for count in counts]
        with self._talking("gathering rows"):
            if self.rank == 0:
                parts[0] = rows
                for source in range(1, self.size):
                    if counts[source]:
                        dist.recv(parts[source], source)
            elif counts[self.rank]:
                dist.send(rows.contiguous(), 0)
                self.sent["gather"] += _bytes(rows)
        return torch.cat(parts) if self.rank == 0 else None

    def swap(
        self, out: Tensor, rows: Tensor, received: list[int], sent: list[int], kind: str
    ) -> Callable[[], None]:
        """Start to send each rank its rows, and return what waits for those that come back."""
        with self._talking("an exchange of rows"):
            work = dist.all_to_all_single(out, rows, received, sent, async_op=True)
        own = sent[self.rank]
        self.sent[kind] += _bytes(rows) - (own * rows[:1].numel() * rows.element_size())

        def wait() -> None:
            with self._talking("an exchange of rows"):
                work.wait()

        return wait

    def objects(self, mine: Any) -> list[Any]:
        """What every rank says, in the order of ranks."""
        if self.size == 1:
            return [mine]
        found: list[Any] = [None] * self.size
        with self._talking("comparing notes"):
            dist.all_gather_object(found, mine)
        return found

    def from_first(self, mine: Any) -> Any:
        """What rank 0 says."""
        if self.size == 1:
            return mine
        held = [mine]
        with self._talking("hearing rank 0"):
            dist.broadcast_object_list(held, 0, device=self.device)
        return held[0]

    def together(self, work: Callable[[], Result]) -> Result:
        """Do something on each rank that may fail on some, and then fail on all.

        Raises:
            SharedError: With the first failing rank's line.
        """
        result: Result | None = None
        error: str | None = None
        try:
            result = work()
        except InputError as failure:
            error = str(failure)
        except OSError as failure:
            error = f"{failure.filename or 'a file'}: {failure.strerror}; look at its disk"
        failed = [(rank, line) for rank, line in enumerate(self.objects(error)) if line]
        if failed:
            rank, line = failed[0]
            raise SharedError.parse(
                line if self.size == 1 else f"rank {rank} of {self.size}: {line}"
            )
        return result  # type: ignore[return-value]

    def agree(self, what: str, mine: Mapping[str, Any], remedy: str) -> None:
        """Make sure that all ranks say the same of something.

        Raises:
            SharedError: On every rank, with one line that names the first difference.
        """
        said = self.objects({key: json.dumps(value, sort_keys=True) for key, value in mine.items()})
        for rank, other in enumerate(said):
            for key in sorted({*said[0], *other}):
                one, two = (words.get(key, "nothing") for words in (said[0], other))
                if one != two:
                    raise SharedError.parse(
                        f"{what}: the ranks disagree on {key}: rank 0 has {one[:60]}, rank {rank} "
                        f"has {two[:60]}; {remedy}"
                    )

    def _all(self, part: Tensor, kind: str) -> list[Tensor]:
        part = part.contiguous()
        parts = [torch.empty_like(part) for _ in range(self.size)]
        with self._talking("a sum"):
            dist.all_gather(parts, part)
        self.sent[kind] += (self.size - 1) * _bytes(part)
        return parts

    @contextmanager
    def _talking(self, what: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise LostTouch(
                f"rank {self.rank} of {self.size} lost touch with the others in {what} "
                f"({reason(error)}); where torchrun may restart, training goes on from the last "
                "checkpoint"
            ) from error


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        return torch.stack(ranks._all(part, "total")).sum(0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.ranks.total(grad), None


def reason(error: Exception) -> str:
    """The first sentence of an error of torch.distributed, without the place in its source.

    Example:
        >>> reason(RuntimeError("[/a/pair.cc:537] Read error: Connection reset. Some more."))
        'Read error: Connection reset'
    """
    first = (str(error).strip().splitlines() or ["no answer"])[0]
    return re.sub(r"^\[[^\]]*\] *", "", first).split(". ")[0].rstrip(".")[:160]


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()

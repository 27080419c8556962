"""The processes that hold a graph together, and their collective operations."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from fairmp.errors import InputError
from fairmp.groups import GroupOperator, mean_rows
from fairmp.training.loop import LocalReducer

Result = TypeVar("Result")


class SharedError(InputError):
    """A wrong input that every rank knows of: one of them reports it, and all stop."""


class RankLostError(RuntimeError):
    """Another rank has died, or did not answer in time."""


class Ranks(LocalReducer):
    """All ranks of the default process group, or one rank alone if there is none.

    Sums are added in the order of ranks, so that every rank has the same bits.

    Attributes:
        rank: number of this rank.
        size: number of ranks.
        sent: bytes this rank has sent, by purpose: ``"halo"``, ``"total"``, ``"gradient"``,
            ``"plan"`` and ``"gather"``.

    Example:
        >>> alone = Ranks()
        >>> alone.size, alone.total(torch.tensor([2.0]))
        (1, tensor([2.]))
    """

    def __init__(self) -> None:
        joined = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank() if joined else 0
        self.size = dist.get_world_size() if joined else 1
        self.sent: Counter[str] = Counter()
        on_gpu = joined and dist.get_backend() == "nccl"
        self.device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else None

    def group_operator(self, sens: Tensor, population: Tensor, num_groups: int) -> GroupOperator:
        """Build the group operator of the nodes of all ranks."""
        population = population & (sens >= 0)
        counts = self.total(torch.bincount(sens[population], minlength=num_groups).double())
        if bool((counts == 0).any()):
            raise InputError(
                "sens",
                f"group {int((counts == 0).nonzero()[0])} has no node in the population",
                "choose a population that contains every group",
            )
        return ShardedGroupOperator(self, population, mean_rows(counts), sens.int())

    def total(self, part: Tensor) -> Tensor:
        """Sum a small tensor over all ranks, with gradients.

        Every rank has a gradient for what it uses of the sum, and these are summed in turn: a loss
        that counts once must be divided by the number of ranks.
        """
        return part if self.size == 1 else _Total.apply(part, self)

    def largest(self, part: Tensor) -> Tensor:
        """Return the element-wise maximum over all ranks, without gradients."""
        return part if self.size == 1 else torch.stack(self._all(part.detach(), "total")).amax(0)

    def add_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Sum the gradients over the ranks, in place, in one message."""
        if self.size == 1:
            return
        trained = [p for p in parameters if p.requires_grad]
        # A parameter that no node of this rank used has a gradient of 0, not none.
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in trained]
        flat = torch.cat([part.flatten() for part in parts])
        with self._communicating("the sum of gradients"):
            dist.all_reduce(flat)
        self.sent["gradient"] += 2 * (self.size - 1) * flat.nbytes // self.size
        for p, part in zip(trained, flat.split([p.numel() for p in trained]), strict=True):
            p.grad = part.view_as(p).clone()

    def gather(self, rows: Tensor) -> Tensor | None:
        """Bring the rows of all ranks to rank 0, in the order of ranks; ``None`` elsewhere."""
        if self.size == 1:
            return rows
        own = torch.tensor([rows.size(0)], device=rows.device)
        counts = [int(count) for count in self._all(own, "gather")]
        parts = [rows.new_empty(count, *rows.shape[1:]) for count in counts]
        with self._communicating("gathering rows"):
            if self.rank == 0:
                parts[0] = rows
                for source in range(1, self.size):
                    if counts[source]:
                        dist.recv(parts[source], source)
            elif counts[self.rank]:
                dist.send(rows.contiguous(), 0)
                self.sent["gather"] += rows.nbytes
        return torch.cat(parts) if self.rank == 0 else None

    def swap(
        self, out: Tensor, rows: Tensor, received: list[int], sent: list[int], kind: str
    ) -> Callable[[], None]:
        """Start to send each rank its rows; return a function that waits for those received."""
        with self._communicating("an exchange of rows"):
            work = dist.all_to_all_single(out, rows, received, sent, async_op=True)
        self.sent[kind] += rows.nbytes - sent[self.rank] * rows[:1].nbytes

        def wait() -> None:
            with self._communicating("an exchange of rows"):
                work.wait()

        return wait

    def objects(self, mine: Any) -> list[Any]:
        """Return the objects of all ranks, in their order."""
        if self.size == 1:
            return [mine]
        found: list[Any] = [None] * self.size
        with self._communicating("an exchange of objects"):
            dist.all_gather_object(found, mine)
        return found

    def on_first(self, work: Callable[[], Result]) -> Result:
        """Return what ``work`` returns on rank 0; if it fails there, it fails on all ranks."""
        found: list[Any] = [self.together(work if self.rank == 0 else lambda: None)]
        if self.size > 1:
            with self._communicating("a broadcast"):
                dist.broadcast_object_list(found, 0, device=self.device)
        return found[0]

    def together(self, work: Callable[[], Result]) -> Result:
        """Do work that may fail on some ranks; if so, raise a :class:`SharedError` on all."""
        result: Result | None = None
        error: InputError | None = None
        try:
            result = work()
        except InputError as failure:
            error = failure
        except OSError as failure:
            name = str(failure.filename or "a file")
            error = InputError(name, failure.strerror, "check its disk")
        for rank, found in enumerate(self.objects(error)):
            if found is not None:
                where = "" if self.size == 1 else f"rank {rank} of {self.size}: "
                raise SharedError(where + found.argument, found.value, found.hint)
        return result  # type: ignore[return-value]

    def agree(self, what: str, mine: Mapping[str, Any], hint: str) -> None:
        """Raise a :class:`SharedError` on every rank if some value is not the same on all."""
        texts = self.objects({k: json.dumps(v, sort_keys=True) for k, v in mine.items()})
        for rank, other in enumerate(texts):
            for key in sorted({*texts[0], *other}):
                one, two = (values.get(key, "nothing")[:60] for values in (texts[0], other))
                if one != two:
                    raise SharedError(
                        what,
                        f"the ranks disagree on {key}: rank 0 has {one}, rank {rank} has {two}",
                        hint,
                    )

    def _all(self, part: Tensor, kind: str) -> list[Tensor]:
        part = part.contiguous()
        parts = [torch.empty_like(part) for _ in range(self.size)]
        with self._communicating("a sum"):
            dist.all_gather(parts, part)
        self.sent[kind] += (self.size - 1) * part.nbytes
        return parts

    @contextmanager
    def _communicating(self, what: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise RankLostError(
                f"rank {self.rank} of {self.size} lost the others in {what} ({reason(error)}); "
                "if torchrun may restart, training resumes from the last checkpoint"
            ) from error


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        return torch.stack(ranks._all(part, "total")).sum(0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.ranks.total(grad), None


class ShardedGroupOperator(GroupOperator):
    """This rank's columns of Δ; sums over nodes are sums over the nodes of all ranks."""

    is_local = False

    def __init__(self, ranks: Ranks, population: Tensor, rows: Tensor, codes: Tensor) -> None:
        super().__init__(None, population, rows, codes=codes)
        self.ranks = ranks

    def total(self, part: Tensor) -> Tensor:
        """Sum over all ranks."""
        return self.ranks.total(part)

    def largest(self, part: Tensor) -> Tensor:
        """Take the maximum over all ranks."""
        return self.ranks.largest(part)


def reason(error: Exception) -> str:
    """Return the first sentence of an error of torch.distributed, without its source location."""
    first = (str(error).strip().splitlines() or ["no answer"])[0]
    return re.sub(r"^\[[^\]]*\] *", "", first).split(". ")[0].rstrip(".")[:160]

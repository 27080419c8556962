"""The processes that hold a graph together, and their collective operations."""

from __future__ import annotations

import json
import os
import re
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from fairmp.errors import InputError, check_number
from fairmp.groups import CentredMeans, GroupOperator, mean_rows
from fairmp.training.nodes import LocalReducer

Result = TypeVar("Result")
TIMEOUT_S = 600.0


class SharedError(InputError):
    """A wrong input that every rank knows of: one of them reports it, and all stop."""


class RankLostError(RuntimeError):
    """Another rank has died, or did not answer in time."""


class Ranks(LocalReducer):
    """All ranks of the default process group, or one rank alone if there is none.

    ``rank`` is the number of this rank, ``size`` that of all, and ``sent`` counts the bytes this
    rank has sent, by purpose. Sums are added in the order of ranks, so that every rank has the same
    bits.

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
        return ShardedGroupOperator(self, population, mean_rows(counts), sens.int())

    def total(self, part: Tensor) -> Tensor:
        """All-reduce (sum) of a small tensor, forward and backward."""
        return part if self.size == 1 else _Total.apply(part, self)

    def largest(self, part: Tensor) -> Tensor:
        """All-reduce (element-wise maximum) of a small tensor, without gradients."""
        if self.size == 1:
            return part
        return torch.stack(self._all_gather(part.detach(), "total")).amax(0)

    def add_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """All-reduce the gradients in place, in one message."""
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
        """Gather the rows of all ranks on rank 0, in the order of ranks; ``None`` elsewhere."""
        if self.size == 1:
            return rows
        count = torch.tensor([rows.size(0)], device=rows.device)
        counts = [int(n) if self.rank == 0 else 0 for n in self._all_gather(count, "gather")]
        result = rows.new_empty(sum(counts), *rows.shape[1:])
        sent = [rows.size(0), *[0] * (self.size - 1)]
        self.exchange(result, rows.contiguous(), counts, sent, "gather")()
        return result if self.rank == 0 else None

    def exchange(
        self, out: Tensor, rows: Tensor, received: list[int], sent: list[int], kind: str
    ) -> Callable[[], Tensor]:
        """Start an all-to-all of rows, and return a function that waits for it.

        Rows are in the order of ranks; ``received`` and ``sent`` are their numbers for each rank.
        """
        with self._communicating("an exchange of rows"):
            pending = dist.all_to_all_single(out, rows, received, sent, async_op=True)
        self.sent[kind] += rows.nbytes - sent[self.rank] * rows[:1].nbytes

        def wait() -> Tensor:
            with self._communicating("an exchange of rows"):
                pending.wait()
            return out

        return wait

    def objects(self, mine: Any) -> list[Any]:
        """Return the objects of all ranks, in their order."""
        if self.size == 1:
            return [mine]
        gathered: list[Any] = [None] * self.size
        with self._communicating("an exchange of objects"):
            dist.all_gather_object(gathered, mine)
        return gathered

    def on_rank_zero(self, function: Callable[..., Result], *rows: Tensor | None) -> Result:
        """Call a function on rank 0 with the rows of all ranks; all ranks return its result."""
        gathered = [None if part is None else self.gather(part) for part in rows]
        call = partial(function, *gathered) if self.rank == 0 else lambda: None
        result: list[Any] = [self.raise_on_all_ranks(call)]
        if self.size > 1:
            with self._communicating("a broadcast"):
                dist.broadcast_object_list(result, 0, device=self.device)
        return result[0]

    def raise_on_all_ranks(self, function: Callable[[], Result]) -> Result:
        """Call a function; if it fails on some ranks, raise a :class:`SharedError` on all."""
        error: InputError | None = None
        try:
            result = function()
        except InputError as failure:
            error = failure
        except OSError as failure:
            error = InputError(failure.filename or "a file", failure.strerror, "check its disk")
        for rank, other in enumerate(self.objects(error)):
            if other is not None:
                where = "" if self.size == 1 else f"on rank {rank} of {self.size}, "
                raise SharedError(other.argument, f"{where}{other.value}", other.hint)
        return result

    def check_equal(self, argument: str, values: Mapping[str, Any], hint: str) -> None:
        """Raise a :class:`SharedError` on every rank if some value is not the same on all."""
        texts = self.objects({k: json.dumps(v, sort_keys=True) for k, v in values.items()})
        for rank, other in enumerate(texts):
            for key in sorted({*texts[0], *other}):
                first, second = (values.get(key, "nothing")[:60] for values in (texts[0], other))
                if first != second:
                    value = f"ranks disagree on {key}: rank 0 has {first}, rank {rank} has {second}"
                    raise SharedError(argument, f"the {value}", hint)

    def _all_gather(self, part: Tensor, kind: str) -> list[Tensor]:
        part = part.contiguous()
        parts = [torch.empty_like(part) for _ in range(self.size)]
        with self._communicating("a sum"):
            dist.all_gather(parts, part)
        self.sent[kind] += (self.size - 1) * part.nbytes
        return parts

    @contextmanager
    def _communicating(self, operation: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            where = f"rank {self.rank} of {self.size}"
            raise RankLostError(
                f"{where} lost the others in {operation} ({_reason(error)}); "
                "if torchrun may restart, training resumes from the last checkpoint"
            ) from error


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        return torch.stack(ranks._all_gather(part, "total")).sum(0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.ranks.total(grad), None


class ShardedGroupOperator(GroupOperator):
    """This rank's columns of Δ; sums over nodes are sums over the nodes of all ranks."""

    is_local = False

    def __init__(
        self, ranks: Ranks, population: Tensor, rows: Tensor | CentredMeans, codes: Tensor
    ) -> None:
        super().__init__(None, population, rows, codes=codes)
        self.rank = ranks.rank
        self.total, self.largest = ranks.total, ranks.largest  # type: ignore[method-assign]


def _reason(error: Exception) -> str:
    """Return the first sentence of an error of torch.distributed, without its source location."""
    first = (str(error).strip().splitlines() or ["no answer"])[0]
    return re.sub(r"^\[[^\]]*\] *", "", first).split(". ")[0].rstrip(".")[:160]


@contextmanager
def joined(*, device: str = "cpu", timeout: float = TIMEOUT_S) -> Iterator[Ranks]:
    """Join the process group (gloo, or NCCL with one GPU per rank); without one, be alone."""
    check_number("timeout", timeout, "give the seconds to wait, above 0", low=0, above=True)
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        yield Ranks()
        return
    on_gpu = device.startswith("cuda")
    if on_gpu:
        local, gpus = int(os.environ.get("LOCAL_RANK", 0)), torch.cuda.device_count()
        if local >= gpus:
            hint = "start one rank per GPU (torchrun's --nproc-per-node), or set {device='cpu'}"
            raise InputError("device", f"{gpus} GPUs for {local + 1} ranks here", hint)
        torch.cuda.set_device(local)
    try:
        store, rank, size = next(rendezvous("env://", timeout=timedelta(seconds=timeout)))
        dist.init_process_group(
            "nccl" if on_gpu else "gloo",
            store=fresh_store(store, rank, size, timeout),
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=timeout),
        )
    except (RuntimeError, ValueError) as error:
        where = f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}"
        raise RankLostError(f"{where} could not join the others ({_reason(error)})") from error
    yield Ranks()
    # Not after an error: it would wait for ranks that may be gone.
    dist.destroy_process_group()


def fresh_store(store: Store, rank: int, size: int, timeout: float) -> Store:
    """Agree on a prefix of a store that no earlier start of these ranks has written to.

    torchrun keeps its store when it restarts ranks, with the addresses of those that died. So rank
    0 answers every process that asks with a new prefix; earlier requests do no harm.
    """
    mine = uuid.uuid4().hex
    if rank > 0:
        store.set(f"fairmp/hello/{rank}", mine)
        store.wait([f"fairmp/answer/{mine}"], timedelta(seconds=timeout))
        prefix = store.get(f"fairmp/answer/{mine}").decode()
        store.set(f"fairmp/{prefix}/here/{rank}", "")
        return PrefixStore(f"fairmp/{prefix}", store)
    deadline = time.monotonic() + timeout
    waiting, answered = set(range(1, size)), set()
    while waiting:
        for other in sorted(waiting):
            if store.check([f"fairmp/{mine}/here/{other}"]):
                waiting.discard(other)
            elif store.check([f"fairmp/hello/{other}"]):
                request = store.get(f"fairmp/hello/{other}").decode()
                if request not in answered:
                    store.set(f"fairmp/answer/{request}", mine)
                    answered.add(request)
        if waiting and time.monotonic() > deadline:
            raise RuntimeError(f"no word from rank {min(waiting)} in {timeout:g} s")
        time.sleep(0.01 if waiting else 0)
    return PrefixStore(f"fairmp/{mine}", store)

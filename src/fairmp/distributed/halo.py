"""The halo: rows on other ranks that a rank's edges need, planned once and fetched each step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fairmp.distributed.ranks import Ranks
from fairmp.graph import CSR, Adjacency
from fairmp.kernels import implementation


@dataclass(frozen=True)
class Halo:
    """The exchange plan."""

    ranks: Ranks
    send: Tensor  # rows of this rank that others need, those for rank 0 first
    sent: list[int]  # number of rows sent to each rank
    received: list[int]  # number of rows received from each
    needed: bool  # whether any rank needs a row of another

    @classmethod
    def plan(cls, ranks: Ranks, needed: Tensor, bounds: Tensor) -> Halo:
        """Request nodes by their increasing numbers; rank r holds ``bounds[r]`` and following."""
        if ranks.size == 1:
            return cls(ranks, needed[:0], [0], [0], False)
        received = torch.searchsorted(needed, bounds).diff()
        sent = torch.empty_like(received)
        one_each = [1] * ranks.size
        ranks.swap(sent, received, one_each, one_each, "plan")()
        requested = needed.new_empty(int(sent.sum()))
        ranks.swap(requested, needed, sent.tolist(), received.tolist(), "plan")()
        exchanged = int(ranks.total(sent.sum().view(1))) > 0
        send = requested - bounds[ranks.rank]
        return cls(ranks, send, sent.tolist(), received.tolist(), exchanged)

    @property
    def size(self) -> int:
        """Number of rows received."""
        return sum(self.received)

    def start(self, f: Tensor) -> Callable[[], Tensor]:
        """Send the rows others need; return a function that waits for those needed here."""
        rows = f.new_empty(self.size, f.size(1))
        if not self.needed:
            return lambda: rows
        wait = self.ranks.swap(rows, f.index_select(0, self.send), self.received, self.sent, "halo")

        def arrived() -> Tensor:
            wait()
            return rows

        return arrived


class Border(NamedTuple):
    """The part of Ã whose columns are on other ranks."""

    nodes: Tensor  # rows of this rank that have such columns
    rows: CSR  # these rows, over the columns of the halo
    scale: Tensor  # D̂^-½ of the nodes in the halo


@dataclass(frozen=True)
class ShardedAdjacency(Adjacency):
    """This rank's rows of Ã = D̂^-½(A+I)D̂^-½, for an undirected graph.

    ``forward`` has the columns of this rank, and ``border`` those of others, whose rows of F are
    received while the product with the former is computed. All ranks call it together.
    """

    border: Border
    halo: Halo

    is_local = False

    def __matmul__(self, x: Tensor) -> Tensor:
        return _Product.apply(x, self)

    def aggregate(
        self, f: Tensor, x: Tensor | None, gamma: float, *, transposed: bool = False
    ) -> Tensor:
        """γX + (1−γ)ÃF, this rank's rows; Ã is its own transpose."""
        arrived = self.halo.start(f)
        kernels = implementation(f)
        own, far = self.forward, self.border
        result: Tensor = kernels.aggregate(
            own.row, own.col, None, self.scale, self.scale, f, x, gamma
        )
        rows = arrived()
        if far.nodes.numel():
            left = self.scale.index_select(0, far.nodes)
            more = kernels.aggregate(
                far.rows.row, far.rows.col, None, left, far.scale, rows, None, 0.0
            )
            result.index_add_(0, far.nodes, more, alpha=1 - gamma)
        return result


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, graph: ShardedAdjacency) -> Tensor:
        ctx.graph = graph
        return graph.aggregate(x.contiguous(), None, 0.0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.graph.aggregate(grad.contiguous(), None, 0.0), None

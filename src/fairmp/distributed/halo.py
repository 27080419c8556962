"""The halo: rows of other ranks that a rank's edges point at, planned once, fetched each step."""

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
    """Who sends which rows to whom.

    Attributes:
        ranks: the ranks.
        send: the rows here that others need, those for rank 0 first.
        sent: how many go to each rank.
        received: how many come from each.
        anywhere: whether any rank needs any row of another.
    """

    ranks: Ranks
    send: Tensor
    sent: list[int]
    received: list[int]
    anywhere: bool

    @classmethod
    def plan(cls, ranks: Ranks, needed: Tensor, bounds: Tensor) -> Halo:
        """Ask the others for what is needed.

        Args:
            ranks: the ranks.
            needed: numbers of nodes on other ranks, rising.
            bounds: rank r has the numbers from ``bounds[r]`` to ``bounds[r + 1]``.
        """
        if ranks.size == 1:
            return cls(ranks, needed[:0], [0], [0], False)
        places = torch.searchsorted(needed, bounds.to(needed.device))
        received = places.diff()
        sent = torch.empty_like(received)
        each = [1] * ranks.size
        ranks.swap(sent, received, each, each, "plan")()
        asked = needed.new_empty(int(sent.sum()))
        ranks.swap(asked, needed, sent.tolist(), received.tolist(), "plan")()
        anywhere = int(ranks.total(torch.stack([sent.sum()]))[0]) > 0
        return cls(ranks, asked - bounds[ranks.rank], sent.tolist(), received.tolist(), anywhere)

    @property
    def size(self) -> int:
        """CSR that come from elsewhere."""
        return sum(self.received)

    def start(self, f: Tensor) -> Callable[[], Tensor]:
        """Send the rows others need, and return what waits for the rows needed here."""
        rows = f.new_empty(self.size, f.size(1))
        if not self.anywhere:
            return lambda: rows
        wait = self.ranks.swap(rows, f.index_select(0, self.send), self.received, self.sent, "halo")

        def arrived() -> Tensor:
            wait()
            return rows

        return arrived

    def fetch(self, f: Tensor) -> Tensor:
        """Fetch the rows needed here, and wait for them."""
        return self.start(f)()

    def to(self, device: torch.device | str) -> Halo:
        """Move to a device."""
        return Halo(self.ranks, self.send.to(device), self.sent, self.received, self.anywhere)


class Border(NamedTuple):
    """The part of Ã whose columns are on other ranks.

    Attributes:
        nodes: the rows here that have such columns.
        rows: these rows, over the halo's columns.
        scale: D̂^-½ of the halo's nodes.
    """

    nodes: Tensor
    rows: CSR
    scale: Tensor


@dataclass(frozen=True)
class ShardedAdjacency(Adjacency):
    """This rank's rows of Ã = D̂^-½(A+I)D̂^-½, for an undirected graph.

    ``forward`` has the columns of this rank and ``border`` those of others, whose rows of F are on
    their way while the product with the former is computed. It is called as an
    :class:`~fairmp.graph.Adjacency`, by all ranks at the same time.
    """

    border: Border
    halo: Halo

    is_local = False

    def __matmul__(self, x: Tensor) -> Tensor:
        return _Product.apply(x, self)

    def aggregate(
        self, f: Tensor, x: Tensor | None, gamma: float, *, transposed: bool = False
    ) -> Tensor:
        """γX + (1−γ)ÃF, this rank's rows of it; Ã is its own transpose."""
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

    def to(self, device: torch.device | str) -> ShardedAdjacency:
        """Move to a device."""
        own, far = self.forward.to(device), self.border
        border = Border(far.nodes.to(device), far.rows.to(device), far.scale.to(device))
        return ShardedAdjacency(
            self.num_nodes, self.scale.to(device), own, own, border, self.halo.to(device)
        )


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, graph: ShardedAdjacency) -> Tensor:
        ctx.graph = graph
        return graph.aggregate(x.contiguous(), None, 0.0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.graph.aggregate(grad.contiguous(), None, 0.0), None

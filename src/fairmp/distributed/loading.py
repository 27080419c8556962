"""One rank's part of a sharded graph: its rows, read from disk, and the halo.

The halo is the rows on other ranks that a rank's edges need, planned once and fetched each step.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from fairmp.datasets.splits import MASKS
from fairmp.distributed import partition
from fairmp.distributed.ranks import Ranks
from fairmp.distributed.shard_format import Manifest, mapped, read_rows, verify
from fairmp.errors import InputError
from fairmp.graph import INT32, Adjacency, Graph, aggregate
from fairmp.kernels import implementation
from fairmp.kernels.types import CSR, AggregateGradient, Matrix

COLUMNS_PER_READ = 1 << 20


class Halo(NamedTuple):
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
            return cls(ranks, needed[:0], [0], [0], needed=False)
        received = torch.searchsorted(needed, bounds).diff()
        sent = torch.empty_like(received)
        one_each = [1] * ranks.size
        ranks.exchange(sent, received, one_each, one_each, "plan")()
        # What this rank requests from others, they send; what others request, it sends.
        to_send, to_receive = sent.tolist(), received.tolist()
        requested = needed.new_empty(sum(to_send))
        ranks.exchange(requested, needed, to_send, to_receive, "plan")()
        is_needed = int(ranks.total(sent.sum().view(1))) > 0
        return cls(ranks, requested - bounds[ranks.rank], to_send, to_receive, is_needed)

    @property
    def size(self) -> int:
        """Number of rows received."""
        return sum(self.received)

    def start(self, f: Tensor) -> Callable[[], Tensor]:
        """Send the rows others need; return a function that waits for those needed here."""
        rows = f.new_empty(self.size, f.size(1))
        if not self.needed:
            return lambda: rows
        sent = f.index_select(0, self.send)
        return self.ranks.exchange(rows, sent, self.received, self.sent, "halo")


@dataclass(frozen=True)
class ShardedAdjacency(Adjacency):
    """This rank's rows of Ã = D̂^-½(A+I)D̂^-½ of an undirected graph; all ranks call it together."""

    # ``forward`` has the columns of this rank, the border those of others.
    border: CSR  # over the nodes of the halo
    border_nodes: Tensor  # the rows that are in it
    halo_scale: Tensor  # D̂^-½ of the nodes in the halo
    halo: Halo

    is_local = False

    def __matmul__(self, x: Tensor) -> Tensor:
        return aggregate(x, x, self, 0.0)

    def aggregate(self, f: Tensor, x: Tensor | None, gamma: float) -> Tensor:
        """γX + (1−γ)ÃF, this rank's rows; Ã is its own transpose."""
        arrived = self.halo.start(f)  # rows of F travel during the product with this rank's
        result = super().aggregate(f, x, gamma)
        return self._add_border(result, arrived(), gamma)

    def aggregate_vjp(
        self,
        grad: Tensor,
        gamma: float,
        x: Tensor | None = None,
        propagated: Tensor | None = None,
    ) -> AggregateGradient:
        """The gradients of :meth:`aggregate`, this rank's rows."""
        arrived = self.halo.start(grad)
        gradient = super().aggregate_vjp(grad, gamma, x, propagated)
        return gradient._replace(f=self._add_border(gradient.f, arrived(), gamma))

    @cached_property
    def border_matrix(self) -> Matrix:
        """Edges from the border to the halo, as the kernels take them."""
        left = self.scale.index_select(0, self.border_nodes)
        return Matrix(self.border, left, self.halo_scale)

    def _add_border(self, result: Tensor, rows: Tensor, gamma: float) -> Tensor:
        """Add (1−γ) times the product of the border with rows of the halo."""
        if self.border_nodes.numel():
            border = implementation(rows).aggregate(self.border_matrix, rows, None, 0.0)
            result.index_add_(0, self.border_nodes, border, alpha=1 - gamma)
        return result


class ShardedGraph(Graph):
    """This rank's rows of a graph, as networks read them."""

    def __init__(self, adjacency: ShardedAdjacency) -> None:
        super().__init__(torch.empty(2, 0, dtype=torch.int64), adjacency.num_nodes)
        self.exact = self._rounded = adjacency

    def adjacency(self, dtype: torch.dtype) -> Adjacency:
        """Return this rank's rows of Ã."""
        if self._rounded.scale.dtype != dtype:
            scales = {name: getattr(self.exact, name).to(dtype) for name in ("scale", "halo_scale")}
            self._rounded = replace(self.exact, **scales)
        return self._rounded

    def with_self_loops(self) -> Tensor:
        """Raise: edges to nodes of other ranks are not edges between nodes of this one."""
        value = "'gat' reads the features of neighbours, which other ranks hold"
        raise InputError("backbone", value, "choose 'mlp', 'gcn', 'sgc' or 'appnp' for shards")


@dataclass(frozen=True)
class Shard:
    """The nodes of a rank and their rows of the graph."""

    manifest: Manifest  # of the whole graph
    ranks: Ranks
    data: Data  # x, y, sens and the three masks of this rank's nodes; without edges
    graph: ShardedGraph  # this rank's rows of Ã
    number: Tensor  # the row of each node in the table it came from

    def with_split(self, folder: str | Path, split_seed: int | None) -> Shard:
        """Read the masks of another split."""
        data = copy.copy(self.data)
        parts = _parts_by_rank(self.manifest, self.ranks)[self.ranks.rank]
        _set_masks(data, Path(folder), parts, split_column(self.manifest, split_seed))
        return replace(self, data=data)


def load_shard(
    folder: str | Path,
    ranks: Ranks | None = None,
    *,
    split_seed: int | None = None,
    device: str | torch.device = "cpu",
    check: bool = True,
) -> Shard:
    """Read this rank's part of a graph, and nothing else; all ranks call it together.

    A folder of P parts serves up to P ranks: each has a run of parts. If a file of one of them is
    missing or damaged, or manifests differ, all raise a :class:`SharedError`.

    Args:
        folder: what :func:`~fairmp.distributed.shard` wrote, on this rank's disk; the manifest and
            this rank's own parts are enough.
        ranks: the ranks; by default those of the default process group.
        split_seed: which of the written splits; by default the first.
        device: where to load to.
        check: compare the files with their checksums first.
    """
    ranks = Ranks() if ranks is None else ranks
    folder = Path(folder)

    def read_manifest() -> tuple[Manifest, list[range], int]:
        manifest = Manifest.read(folder)
        parts_by_rank = _parts_by_rank(manifest, ranks)
        for index in parts_by_rank[ranks.rank] if check else ():
            verify(folder, index, manifest.parts[index])
        return manifest, parts_by_rank, split_column(manifest, split_seed)

    manifest, parts_by_rank, column = ranks.raise_on_all_ranks(read_manifest)
    fingerprint = {"the graph's fingerprint": manifest.fingerprint[:16]}
    ranks.check_equal("shards", fingerprint, "give all ranks the same shards")
    parts = parts_by_rank[ranks.rank]
    data = Data(_concatenate(folder, parts, "x"), torch.empty(2, 0, dtype=torch.int64))
    data.y = _concatenate(folder, parts, "y").long()
    data.sens = _concatenate(folder, parts, "sens").long()
    data.feature_names = list(manifest.feature_names)
    data.class_names = list(manifest.class_names)
    data.group_names = list(manifest.group_names)
    _set_masks(data, folder, parts, column)
    starts = [manifest.parts[run[0]].start for run in parts_by_rank]
    bounds = torch.tensor([*starts, manifest.nodes])
    device = ranks.device or torch.device(device)
    adjacency = _adjacency(folder, parts, bounds, ranks, device)
    number = _concatenate(folder, parts, "number")
    return Shard(manifest, ranks, data.to(device), ShardedGraph(adjacency), number)


def _parts_by_rank(manifest: Manifest, ranks: Ranks) -> list[range]:
    """Divide the parts among ranks: runs of about equal cost."""
    if ranks.size > len(manifest.parts):
        hint = f"shard into more parts ({{parts={ranks.size}}}), or start fewer ranks"
        raise InputError("shards", f"{len(manifest.parts)} parts for {ranks.size} ranks", hint)
    per_node = partition.cost(np.array(0), 0)
    weight = [part.entries + (part.stop - part.start) * per_node for part in manifest.parts]
    bounds = partition.ranges(np.array(weight), ranks.size).tolist()
    return [range(bounds[k], bounds[k + 1]) for k in range(ranks.size)]


def split_column(manifest: Manifest, split_seed: int | None) -> int:
    """Return the column of a split, by default of the first."""
    if split_seed is None:
        return 0
    if split_seed not in manifest.split_seeds:
        written = ", ".join("its own" if s is None else str(s) for s in manifest.split_seeds)
        value = f"no split with seed {split_seed} was written (there are: {written})"
        raise InputError("split_seed", value, "shard the graph again with more {split_seeds}")
    return manifest.split_seeds.index(split_seed)


def _concatenate(folder: Path, parts: range, name: str) -> Tensor:
    """Copy an array of several parts to memory, one part after the other."""
    arrays = [mapped(folder, index, name) for index in parts]
    stops = np.cumsum([*map(len, arrays)])
    result = np.empty((stops[-1], *arrays[0].shape[1:]), dtype=arrays[0].dtype)
    for index, rows in zip(parts, np.split(result, stops[:-1]), strict=True):
        read_rows(folder, index, name, rows)
    return torch.from_numpy(result)


def _set_masks(data: Data, folder: Path, parts: range, column: int) -> None:
    subset = np.concatenate([mapped(folder, index, "split")[:, column] for index in parts])
    for code, name in enumerate(MASKS):
        data[name] = torch.from_numpy(subset == code).to(data.x.device)


def _adjacency(
    folder: Path, parts: range, bounds: Tensor, ranks: Ranks, device: torch.device
) -> ShardedAdjacency:
    start, stop = bounds[ranks.rank : ranks.rank + 2].tolist()
    degree = np.concatenate([np.diff(mapped(folder, index, "row")) for index in parts])
    inside, needed = np.zeros_like(degree), np.zeros(0, dtype=np.int64)
    for block in _row_blocks(folder, parts):
        is_local = (block.col >= start) & (block.col < stop)
        needed = np.union1d(needed, block.col[~is_local])
        inside[block.rows] = np.add.reduceat(is_local, block.offsets, dtype=np.int64)
    outside = degree - inside
    near = np.empty(inside.sum(), dtype=np.int32 if stop - start <= INT32 else np.int64)
    far = np.empty(outside.sum(), dtype=np.int32 if len(needed) <= INT32 else np.int64)
    near_end = far_end = 0
    for block in _row_blocks(folder, parts):
        is_local = (block.col >= start) & (block.col < stop)
        local, remote = block.col[is_local], block.col[~is_local]
        near_end, far_end = near_end + len(local), far_end + len(remote)
        near[near_end - len(local) : near_end] = local - start
        far[far_end - len(remote) : far_end] = np.searchsorted(needed, remote)
    on_border = np.flatnonzero(outside)
    halo = Halo.plan(ranks, torch.from_numpy(needed).to(device), bounds.to(device))
    scale = torch.from_numpy(degree.astype(np.float64)).rsqrt().to(device)
    forward = _csr(inside, near).to(device)
    return ShardedAdjacency(
        num_nodes=stop - start,
        scale=scale,
        forward=forward,
        backward=forward,
        border=_csr(outside[on_border], far).to(device),
        border_nodes=torch.from_numpy(on_border).to(device),
        halo_scale=halo.start(scale.unsqueeze(1))().squeeze(1),
        halo=halo,
    )


class _RowBlock(NamedTuple):
    """Some rows of Â: which of this rank's rows, where each begins in ``col``, their columns."""

    rows: slice
    offsets: np.ndarray
    col: np.ndarray


def _row_blocks(folder: Path, parts: range) -> Iterator[_RowBlock]:
    """Read the rows of some parts in pieces."""
    first = 0
    for index in parts:
        row, at = mapped(folder, index, "row"), 0
        while at < len(row) - 1:
            end = int(np.searchsorted(row, row[at] + COLUMNS_PER_READ, side="right")) - 1
            end = max(at + 1, end)
            # A copy through a new map, so that pages of the file do not pile up in memory.
            col = np.array(mapped(folder, index, "col")[row[at] : row[end]], dtype=np.int64)
            yield _RowBlock(slice(first + at, first + end), row[at:end] - row[at], col)
            at = end
        first += len(row) - 1


def _csr(counts: np.ndarray, col: np.ndarray) -> CSR:
    row = np.concatenate([[0], np.cumsum(counts)])
    row = row.astype(np.int32) if len(col) <= INT32 else row
    return CSR(torch.from_numpy(row), torch.from_numpy(col))

"""One rank's part of a sharded graph, read from disk."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from fairmp.datasets.checks import MASKS
from fairmp.distributed import partition
from fairmp.distributed.halo import Border, Halo, ShardedAdjacency
from fairmp.distributed.ranks import Ranks
from fairmp.distributed.shard_format import Manifest, mapped, read_rows, verify
from fairmp.errors import InputError
from fairmp.graph import CSR, INT32, Adjacency
from fairmp.nn.models import Graph

COLUMNS_PER_READ = 1 << 20


class ShardedGraph(Graph):
    """This rank's rows of a graph, as networks read them."""

    def __init__(self, adjacency: ShardedAdjacency) -> None:
        super().__init__(torch.empty(2, 0, dtype=torch.int64), adjacency.num_nodes)
        self.exact = adjacency
        self._rounded = adjacency

    def adjacency(self, dtype: torch.dtype) -> Adjacency:
        """Return this rank's rows of Ã."""
        if self._rounded.scale.dtype != dtype:
            border = self.exact.border._replace(scale=self.exact.border.scale.to(dtype))
            self._rounded = replace(self.exact, scale=self.exact.scale.to(dtype), border=border)
        return self._rounded

    def looped(self) -> Tensor:
        """Raise: edges to nodes of other ranks are not edges between nodes of this one."""
        raise InputError(
            "backbone",
            "'gat' reads the features of neighbours, which other ranks hold",
            "choose 'mlp', 'gcn', 'sgc' or 'appnp' for shards",
        )


@dataclass(frozen=True)
class Shard:
    """The nodes of a rank and their rows of the graph.

    Attributes:
        manifest: the manifest of the whole graph.
        ranks: the ranks that hold it together.
        data: ``x``, ``y``, ``sens`` and the three masks of this rank's nodes; its ``edge_index`` is
            empty, edges are in ``graph``.
        graph: this rank's rows of Ã.
        number: the row of each node in the table it came from.
        start: the number of the first node in the order of the shards.
    """

    manifest: Manifest
    ranks: Ranks
    data: Data
    graph: ShardedGraph
    number: Tensor
    start: int

    @property
    def halo(self) -> Halo:
        """The exchange plan."""
        return self.graph.exact.halo

    def with_split(self, folder: str | Path, split_seed: int | None) -> Shard:
        """Read the masks of another split."""
        data = copy.copy(self.data)
        own = _parts_by_rank(self.manifest, self.ranks)[self.ranks.rank]
        _set_masks(data, Path(folder), own, _split_column(self.manifest, split_seed))
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

    A folder of P parts serves up to P ranks: each has a run of parts.

    Args:
        folder: what :func:`~fairmp.distributed.shard` wrote, on this rank's disk; the manifest and
            this rank's own parts are enough.
        ranks: the ranks; by default those of the default process group.
        split_seed: which of the written splits; by default the first.
        device: where to load to.
        check: compare the files with their checksums first.

    Raises:
        SharedError: On all ranks, if a file of one of them is missing or damaged, or if their
            manifests differ.
    """
    ranks = Ranks() if ranks is None else ranks
    folder = Path(folder)

    def read_manifest() -> tuple[Manifest, list[range], int]:
        manifest = Manifest.read(folder)
        parts = _parts_by_rank(manifest, ranks)
        for index in parts[ranks.rank] if check else ():
            verify(folder, index, manifest.parts[index])
        return manifest, parts, _split_column(manifest, split_seed)

    manifest, parts, column = ranks.together(read_manifest)
    fingerprint = {"the graph's fingerprint": manifest.fingerprint[:16]}
    ranks.agree("shards", fingerprint, "give all ranks the same shards")
    own = parts[ranks.rank]
    data = Data(
        x=_concatenate(folder, own, "x"),
        edge_index=torch.empty(2, 0, dtype=torch.int64),
        y=_concatenate(folder, own, "y").long(),
        sens=_concatenate(folder, own, "sens").long(),
        feature_names=list(manifest.feature_names),
        class_names=list(manifest.class_names),
        group_names=list(manifest.group_names),
    )
    _set_masks(data, folder, own, column)
    bounds = torch.tensor([*(manifest.parts[run[0]].start for run in parts), manifest.nodes])
    device = ranks.device or torch.device(device)
    adjacency = _adjacency(folder, own, bounds, ranks, device)
    number = _concatenate(folder, own, "number")
    start = int(bounds[ranks.rank])
    return Shard(manifest, ranks, data.to(device), ShardedGraph(adjacency), number, start)


def _parts_by_rank(manifest: Manifest, ranks: Ranks) -> list[range]:
    if ranks.size > len(manifest.parts):
        raise InputError(
            "shards",
            f"{len(manifest.parts)} parts for {ranks.size} ranks",
            f"shard into more parts (--parts {ranks.size}), or start fewer ranks",
        )
    per_node = partition.cost(np.array(0), 0)
    weight = [part.entries + (part.stop - part.start) * per_node for part in manifest.parts]
    bounds = partition.ranges(np.array(weight), ranks.size).tolist()
    return [range(bounds[k], bounds[k + 1]) for k in range(ranks.size)]


def _split_column(manifest: Manifest, split_seed: int | None) -> int:
    if split_seed is None:
        return 0
    if split_seed not in manifest.split_seeds:
        written = ", ".join("its own" if s is None else str(s) for s in manifest.split_seeds)
        raise InputError(
            "split_seed",
            f"no split with seed {split_seed} was written (there are: {written})",
            "shard the graph again with --splits and --seed",
        )
    return manifest.split_seeds.index(split_seed)


def _concatenate(folder: Path, own: range, name: str) -> Tensor:
    """Copy an array of several parts to memory, one part after the other."""
    parts = [mapped(folder, index, name) for index in own]
    result = np.empty((sum(map(len, parts)), *parts[0].shape[1:]), dtype=parts[0].dtype)
    start = 0
    for index, part in zip(own, parts, strict=True):
        read_rows(folder, index, name, result[start : start + len(part)])
        start += len(part)
    return torch.from_numpy(result)


def _set_masks(data: Data, folder: Path, own: range, column: int) -> None:
    part = np.concatenate([mapped(folder, index, "split")[:, column] for index in own])
    for code, name in enumerate(MASKS):
        data[name] = torch.from_numpy(part == code).to(data.x.device)


def _adjacency(
    folder: Path, own: range, bounds: Tensor, ranks: Ranks, device: torch.device
) -> ShardedAdjacency:
    start, stop = bounds[ranks.rank : ranks.rank + 2].tolist()
    degree = np.concatenate([np.diff(mapped(folder, index, "row")) for index in own])
    inside, needed = _count_inside(folder, own, start, stop, degree)
    outside = degree - inside
    near = np.empty(inside.sum(), dtype=np.int32 if stop - start <= INT32 else np.int64)
    far = np.empty(outside.sum(), dtype=np.int32 if len(needed) <= INT32 else np.int64)
    at_near = at_far = 0
    for _, col in _columns(folder, own):
        local = (col >= start) & (col < stop)
        mine, others = col[local], col[~local]
        near[at_near : at_near + len(mine)] = mine - start
        far[at_far : at_far + len(others)] = np.searchsorted(needed, others)
        at_near, at_far = at_near + len(mine), at_far + len(others)
    on_border = np.flatnonzero(outside)
    halo = Halo.plan(ranks, torch.from_numpy(needed).to(device), bounds.to(device))
    scale = torch.from_numpy(degree.astype(np.float64)).rsqrt().to(device)
    border = Border(
        torch.from_numpy(on_border).to(device),
        _csr(outside[on_border], far).to(device),
        halo.start(scale.unsqueeze(1))().squeeze(1),
    )
    forward = _csr(inside, near).to(device)
    return ShardedAdjacency(stop - start, scale, forward, forward, border, halo)


def _count_inside(
    folder: Path, own: range, start: int, stop: int, degree: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Count the columns of each row that are on this rank, and list those that are not."""
    ends = np.cumsum(degree)
    inside = np.zeros(len(degree), dtype=np.int64)
    needed = np.zeros(0, dtype=np.int64)
    for first, col in _columns(folder, own):
        local = (col >= start) & (col < stop)
        needed = np.union1d(needed, col[~local])
        low, high = np.searchsorted(ends, [first, first + len(col) - 1], side="right")
        cuts = np.clip(ends[low:high] - first, 0, len(col))
        cumulative = np.concatenate([[0], np.cumsum(local)])
        inside[low : high + 1] += np.diff(cumulative[np.concatenate([[0], cuts, [len(col)]])])
    return inside, needed


def _columns(folder: Path, own: range) -> Iterator[tuple[int, np.ndarray]]:
    """Read the columns in pieces, each with the number of its first entry."""
    first = 0
    for index in own:
        length = len(mapped(folder, index, "col"))
        for k in range(0, length, COLUMNS_PER_READ):
            # A copy through a new map, so that pages of the file do not pile up in memory.
            piece = mapped(folder, index, "col")[k : k + COLUMNS_PER_READ]
            yield first + k, np.array(piece, dtype=np.int64)
        first += length


def _csr(counts: np.ndarray, col: np.ndarray) -> CSR:
    row = np.concatenate([[0], np.cumsum(counts)])
    row = row.astype(np.int32) if len(col) <= INT32 else row
    return CSR(torch.from_numpy(row), torch.from_numpy(col))

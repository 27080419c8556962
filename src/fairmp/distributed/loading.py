"""One rank's share of a sharded graph, read from disk."""

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

_PIECE = 1 << 20


class ShardedGraph(Graph):
    """This rank's rows of a graph, as networks read them."""

    def __init__(self, adjacency: ShardedAdjacency) -> None:
        super().__init__(torch.empty(2, 0, dtype=torch.int64), adjacency.num_nodes)
        self.exact = adjacency
        self._rounded = adjacency

    def adjacency(self, dtype: torch.dtype) -> Adjacency:
        """Ã, this rank's rows."""
        if self._rounded.scale.dtype != dtype:
            border = self.exact.border._replace(scale=self.exact.border.scale.to(dtype))
            self._rounded = replace(self.exact, scale=self.exact.scale.to(dtype), border=border)
        return self._rounded

    def looped(self) -> Tensor:
        """Refuse: edges to other ranks' nodes are not edges of nodes that are here."""
        raise InputError(
            "backbone",
            "'gat' reads its neighbours' features, which other ranks hold",
            "choose 'mlp', 'gcn', 'sgc' or 'appnp' for shards",
        )


@dataclass(frozen=True)
class Shard:
    """A rank's nodes and their rows of the graph.

    Attributes:
        manifest: of the whole graph.
        ranks: the ranks that hold it together.
        data: ``x``, ``y``, ``sens`` and the three masks of this rank's nodes; its ``edge_index`` is
            empty, edges are in ``graph``.
        graph: this rank's rows of Ã.
        number: each node's row in the table it came from.
        start: the first node's number in the shards' order.
    """

    manifest: Manifest
    ranks: Ranks
    data: Data
    graph: ShardedGraph
    number: Tensor
    start: int

    @property
    def halo(self) -> Halo:
        """The plan of what is exchanged."""
        return self.graph.exact.halo

    def with_split(self, folder: str | Path, split_seed: int | None) -> Shard:
        """Read the masks of another split."""
        data = copy.copy(self.data)
        folder, own = Path(folder), _own_parts(self.manifest, self.ranks)
        _set_masks(data, folder, own, _split_column(self.manifest, split_seed))
        return replace(self, data=data)


def load_shard(
    folder: str | Path,
    ranks: Ranks | None = None,
    *,
    split_seed: int | None = None,
    device: str | torch.device = "cpu",
    check: bool = True,
) -> Shard:
    """Read this rank's share of a graph; no rank reads more. All ranks call it at the same time.

    A folder of P parts serves any number of ranks up to P: each has a run of parts.

    Args:
        folder: what :func:`~fairmp.distributed.shard` wrote, on this rank's disk; every rank may
            have a copy of the manifest and of its own parts alone.
        ranks: the ranks; by default those of the default process group.
        split_seed: which of the splits that were written; by default the first.
        device: where to.
        check: read the files from end to end first, and compare them with their sums.

    Raises:
        SharedError: On all ranks, where a file of one of them is missing or not as it was written,
            or their manifests differ.
    """
    ranks = Ranks() if ranks is None else ranks
    folder = Path(folder)

    def opened() -> Manifest:
        manifest = Manifest.read(folder)
        own = _own_parts(manifest, ranks)
        if check:
            for index in own:
                verify(folder, index, manifest.parts[index])
        return manifest

    manifest = ranks.together(opened)
    ranks.agree(
        "shards",
        {"the graph's fingerprint": manifest.fingerprint[:16]},
        "give all ranks the same shards",
    )
    column = ranks.together(lambda: _split_column(manifest, split_seed))
    own = _own_parts(manifest, ranks)
    start, stop = manifest.parts[own[0]].start, manifest.parts[own[-1]].stop
    data = Data(
        x=_joined(folder, own, "x"),
        edge_index=torch.empty(2, 0, dtype=torch.int64),
        y=_joined(folder, own, "y").long(),
        sens=_joined(folder, own, "sens").long(),
        feature_names=list(manifest.feature_names),
        class_names=list(manifest.class_names),
        group_names=list(manifest.group_names),
    )
    _set_masks(data, folder, own, column)
    number = _joined(folder, own, "number")
    firsts = [group[0] for group in _all_parts(manifest, ranks)]
    bounds = torch.tensor([*(manifest.parts[k].start for k in firsts), manifest.nodes])
    device = ranks.device or torch.device(device)
    adjacency = _adjacency(folder, manifest, own, start, stop, bounds, ranks, device)
    return Shard(manifest, ranks, data.to(device), ShardedGraph(adjacency), number, start)


def _all_parts(manifest: Manifest, ranks: Ranks) -> list[range]:
    if ranks.size > len(manifest.parts):
        raise InputError(
            "shards",
            f"{len(manifest.parts)} parts for {ranks.size} ranks",
            f"shard into more parts (--parts {ranks.size}), or start fewer ranks",
        )
    weight = np.array(
        [
            part.entries + (part.stop - part.start) * partition.cost(np.array(0), 0)
            for part in manifest.parts
        ]
    )
    bounds = partition.ranges(weight, ranks.size).tolist()
    return [range(bounds[k], bounds[k + 1]) for k in range(ranks.size)]


def _own_parts(manifest: Manifest, ranks: Ranks) -> range:
    return _all_parts(manifest, ranks)[ranks.rank]


def _split_column(manifest: Manifest, split_seed: int | None) -> int:
    if split_seed is None:
        return 0
    if split_seed not in manifest.split_seeds:
        there = ", ".join("its own" if s is None else str(s) for s in manifest.split_seeds)
        raise InputError(
            "split_seed",
            f"no split with seed {split_seed} was written (there are: {there})",
            "shard the graph again with --splits and --seed",
        )
    return manifest.split_seeds.index(split_seed)


def _joined(folder: Path, own: range, name: str) -> Tensor:
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
    folder: Path,
    manifest: Manifest,
    own: range,
    start: int,
    stop: int,
    bounds: Tensor,
    ranks: Ranks,
    device: torch.device,
) -> ShardedAdjacency:
    count = stop - start
    degree = np.concatenate([np.diff(mapped(folder, index, "row")) for index in own])
    inside, needed = _survey(folder, own, start, stop, degree)
    near = np.empty(int(inside.sum()), dtype=np.int32 if count <= INT32 else np.int64)
    far = np.empty(
        int(degree.sum()) - len(near), dtype=np.int32 if len(needed) <= INT32 else np.int64
    )
    at_near = at_far = 0
    for _, col in _columns(folder, own):
        here = (col >= start) & (col < stop)
        close, apart = col[here], col[~here]
        near[at_near : at_near + len(close)] = close - start
        far[at_far : at_far + len(apart)] = np.searchsorted(needed, apart)
        at_near, at_far = at_near + len(close), at_far + len(apart)
    outside = degree - inside
    edge = np.flatnonzero(outside)
    halo = Halo.plan(ranks, torch.from_numpy(needed).to(device), bounds.to(device))
    scale = torch.from_numpy(degree.astype(np.float64)).rsqrt().to(device)
    border = Border(
        torch.from_numpy(edge).to(device),
        _rows(outside[edge], far).to(device),
        halo.fetch(scale.unsqueeze(1)).squeeze(1),
    )
    forward = _rows(inside, near).to(device)
    return ShardedAdjacency(count, scale, forward, forward, border, halo)


def _survey(
    folder: Path, own: range, start: int, stop: int, degree: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Count each row's columns that are here, and list those that are elsewhere."""
    ends = np.cumsum(degree)
    inside = np.zeros(len(degree), dtype=np.int64)
    needed = np.zeros(0, dtype=np.int64)
    for first, col in _columns(folder, own):
        here = (col >= start) & (col < stop)
        needed = np.union1d(needed, col[~here])
        low, high = np.searchsorted(ends, [first, first + len(col) - 1], side="right")
        cuts = np.clip(ends[low:high] - first, 0, len(col))
        heaped = np.concatenate([[0], np.cumsum(here)])
        inside[low : high + 1] += np.diff(heaped[np.concatenate([[0], cuts, [len(col)]])])
    return inside, needed


def _columns(folder: Path, own: range) -> Iterator[tuple[int, np.ndarray]]:
    """Read the columns a piece at a time, each with the number of its first entry."""
    first = 0
    for index in own:
        col = mapped(folder, index, "col")
        for k in range(0, len(col), _PIECE):
            # A copy, so that pages of the file do not pile up in memory.
            piece = np.array(mapped(folder, index, "col")[k : k + _PIECE], dtype=np.int64)
            yield first + k, piece
        first += len(col)


def _rows(counts: np.ndarray, col: np.ndarray) -> CSR:
    row = np.concatenate([[0], np.cumsum(counts)])
    row = row.astype(np.int32) if len(col) <= INT32 else row
    return CSR(torch.from_numpy(row), torch.from_numpy(col))

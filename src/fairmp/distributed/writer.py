"""Write shards: of a graph in memory, or of tables larger than memory, read once."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np
import torch
from torch_geometric.data import Data
from torch_geometric.utils import coalesce

from fairmp import groups
from fairmp.datasets.checks import MASKS, check
from fairmp.datasets.columns import BinsGiven
from fairmp.datasets.edge_tables import EdgeTable
from fairmp.datasets.edges import LoadReport
from fairmp.datasets.encoding import Roles
from fairmp.datasets.readers import TableReadError
from fairmp.datasets.splits import split
from fairmp.distributed import partition
from fairmp.distributed.assembly import Progress, write_parts
from fairmp.distributed.external_sort import EdgeSet
from fairmp.distributed.nodes import read_nodes
from fairmp.distributed.partition import Order
from fairmp.distributed.shard_format import Manifest, staged
from fairmp.errors import InputError, check_choice
from fairmp.progress import bar


@dataclass(frozen=True)
class _NodesInMemory:
    """The nodes of a graph in memory."""

    x: np.ndarray
    y: np.ndarray
    sens: np.ndarray

    def features(self, rows: np.ndarray) -> np.ndarray:
        return self.x[rows]

    def set_degree(self, degree: np.ndarray) -> None:
        pass


def shard(
    data: Data,
    folder: str | Path,
    *,
    parts: int,
    order: Order = "locality",
    split_seeds: Sequence[int] | None = None,
    overwrite: bool = False,
    progress: bool | None = None,
) -> Manifest:
    """Write a graph in memory as shards.

    Args:
        data: Undirected graph without edge weights, as :mod:`fairmp.datasets` makes it.
        folder: Output folder.
        parts: Number of parts: the number of processes, or a multiple of it.
        order: ``"locality"`` (reverse Cuthill-McKee), ``"metis"`` or ``"given"``.
        split_seeds: Seeds of the splits to write; by default the masks of ``data``, or one split
            with seed 0.
        overwrite: Replace existing shards.
        progress: Show a progress bar; by default if standard error is a terminal.

    Example:
        >>> import tempfile
        >>> from fairmp.datasets import social_network
        >>> with tempfile.TemporaryDirectory() as place:
        ...     manifest = shard(social_network(200, average_degree=5), f"{place}/g", parts=2)
        >>> len(manifest.parts), manifest.nodes, manifest.edges
        (2, 200, 500)
    """
    folder = Path(folder)
    check(data)
    _check_undirected(data)
    if split_seeds is None and all(name in data for name in MASKS):
        check(data, masks=True)
        seeds: tuple[int | None, ...] = (None,)
        masks = [data[name].cpu().numpy() for name in MASKS]
        splits = np.select(masks, [0, 1, 2], -1).astype(np.int8)[:, None]
    else:
        seeds = tuple(split_seeds or (0,))
        splits = _splits(data.y.cpu().numpy(), data.sens.cpu().numpy(), seeds)
    _check_arguments(parts, data.x.size(0), order)
    report = getattr(data, "report", None)
    encoding = getattr(data, "encoding", None)

    def names(attribute: str, count: int) -> tuple[str, ...]:
        given = data.get(attribute)
        complete = given is not None and len(given) >= count
        return tuple(map(str, given if complete else range(count)))

    manifest = Manifest(
        str(getattr(data, "name", "graph")),
        order,
        names("feature_names", data.x.size(1)),
        names("class_names", int(data.y.max()) + 1),
        names("group_names", int(data.sens.max()) + 1),
        seeds,
        None if encoding is None else encoding.to_dict(),
        report=() if report is None else tuple(report.lines()),
    )
    x = data.x.detach().cpu()
    nodes = _NodesInMemory(
        (x if x.dtype == torch.float64 else x.float()).numpy(),
        data.y.cpu().numpy().astype(np.int32),
        data.sens.cpu().numpy().astype(np.int32),
    )
    with _writing(folder, overwrite, parts, progress) as (staging, advance):
        edges = EdgeSet(staging / "scratch", len(nodes.y), LoadReport(nodes=len(nodes.y)))
        source, target = data.edge_index.cpu().numpy()
        forward = source <= target
        edges.add(source[forward], target[forward])
        advance("edges")
        return write_parts(staging, manifest, edges, nodes, splits, parts, advance)


def shard_tables(
    nodes: str | Path,
    edges: str | Path,
    folder: str | Path,
    *,
    id: str | None,
    label: str,
    sensitive: str | Sequence[str],
    parts: int,
    order: Order = "locality",
    sensitive_bins: BinsGiven = None,
    drop: Sequence[str] = (),
    source: str | None = None,
    target: str | None = None,
    split_seeds: Sequence[int] = (0,),
    name: str | None = None,
    overwrite: bool = False,
    progress: bool | None = None,
) -> Manifest:
    """Write tables as shards, reading each of them once.

    The numbers are those of :func:`fairmp.datasets.from_tables` with the same arguments. Memory
    holds one column of the node table at a time, some twenty numbers per node, and blocks of
    edges; ``"locality"`` and ``"metis"`` also need each edge twice, in 4 bytes.

    Args:
        nodes: Node table, a file.
        edges: Edge table, a file.
        folder: Output folder.
        id: Id column; None takes row numbers.
        label: Column with the classes.
        sensitive: Column or columns with the groups.
        parts: Number of parts: the number of processes, or a multiple of it.
        order: ``"locality"`` (reverse Cuthill-McKee), ``"metis"`` or ``"given"``.
        sensitive_bins: How to cut a sensitive column of numbers.
        drop: Columns to leave out.
        source: Source column of ``edges``; by default the first.
        target: Target column of ``edges``; by default the second.
        split_seeds: Seeds of the splits to write.
        name: Name of the graph; by default that of the node file.
        overwrite: Replace existing shards.
        progress: Show a progress bar; by default if standard error is a terminal.
    """
    folder, nodes = Path(folder), Path(nodes)
    _check_arguments(parts, 1 << 62, order)
    roles = Roles(
        id,
        label,
        sensitive,
        drop=tuple(drop),
        source=source,
        target=target,
        sensitive_bins=sensitive_bins,
    )
    with _writing(folder, overwrite, parts, progress) as (staging, advance):
        scratch, report = staging / "scratch", LoadReport()
        encoded = read_nodes(nodes, roles, scratch, report)
        _check_arguments(parts, len(encoded.y), order)
        advance("nodes")
        table = EdgeTable(edges, encoded.ids, source, target, report)
        found = _read_edges(table, scratch, report)
        advance("edges")
        splits = _splits(encoded.y, encoded.sens, split_seeds)
        encoding = encoded.encoding
        manifest = Manifest(
            name or nodes.name.split(".")[0],
            order,
            tuple(encoding.feature_names),
            encoding.label.classes,
            encoding.groups,
            tuple(split_seeds),
            encoding.to_dict(),
        )
        return write_parts(staging, manifest, found, encoded, splits, parts, advance)


def _read_edges(table: EdgeTable, scratch: Path, report: LoadReport) -> EdgeSet:
    for integers in (True, False) if table.integer_ids() else (False,):
        edges = EdgeSet(scratch, len(table.ids), report)
        try:
            for source, target in table.batches(integers=integers):
                edges.add(source, target)
            break
        except TableReadError:
            if not integers:
                raise
            edges.discard()  # an endpoint is not an integer: read them as text
    return edges


def _splits(y: np.ndarray, sens: np.ndarray, seeds: Sequence[int | None]) -> np.ndarray:
    if not seeds:
        raise InputError("split_seeds", "none given", "give one or more, such as 0")
    columns = []
    for seed in seeds:
        masks = split((y, sens), seed=seed or 0)
        columns.append(np.select([mask.numpy() for mask in masks], [0, 1, 2], -1).astype(np.int8))
    return np.stack(columns, axis=1)


@contextmanager
def _writing(
    folder: Path, overwrite: bool, parts: int, progress: bool | None
) -> Iterator[tuple[Path, Progress]]:
    with ExitStack() as stack:
        staging = stack.enter_context(staged(folder, overwrite=overwrite))
        advance = stack.enter_context(bar(parts + 4, "sharding", show=progress))
        try:
            yield staging, advance
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise InputError(
                "--out",
                f"no space is left for {folder}",
                "shards and their scratch files need about 40 bytes per edge, and the features",
            ) from None


def _check_arguments(parts: int, nodes: int, order: str) -> None:
    check_choice("order", order, get_args(Order))
    partition.check_parts(parts, nodes)


def _check_undirected(data: Data) -> None:
    if data.get("edge_weight") is not None:
        raise InputError("data.edge_weight", "shards have no edge weights", "leave them out")
    if groups.soft(data.sens):
        raise InputError(
            "data.sens",
            "shards hold one group per node, not probabilities",
            "give codes, -1 where unknown",
        )
    there = coalesce(data.edge_index, num_nodes=data.x.size(0))
    back = coalesce(data.edge_index.flip(0), num_nodes=data.x.size(0))
    if there.shape != data.edge_index.shape or not torch.equal(there, back):
        raise InputError(
            "data.edge_index",
            "directed or with repeated edges, and shards are undirected",
            "use torch_geometric.utils.to_undirected",
        )

"""Write shards: from a graph in memory, or in one pass from tables larger than memory."""

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
from fairmp.datasets.edges import LoadReport
from fairmp.datasets.splits import split
from fairmp.distributed import partition
from fairmp.distributed.assembly import Names, Say, write_parts
from fairmp.distributed.edge_reader import EdgeTable
from fairmp.distributed.external_sort import Pairs
from fairmp.distributed.nodes import Columns, Unread, read_nodes
from fairmp.distributed.partition import Order
from fairmp.distributed.shard_format import Manifest, staged
from fairmp.errors import InputError
from fairmp.progress import bar


@dataclass(frozen=True)
class _Held:
    """Nodes that are in memory already."""

    x: np.ndarray
    y: np.ndarray
    sens: np.ndarray

    def features(self, numbers: np.ndarray) -> np.ndarray:
        return self.x[numbers]

    def know_degree(self, degree: np.ndarray) -> None:
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
        data: an undirected graph without edge weights, in the shape :mod:`fairmp.datasets` makes.
        folder: where to.
        parts: number of parts, as many as there will be processes or a multiple of it.
        order: ``"locality"`` (reverse Cuthill-McKee), ``"metis"`` or ``"given"``.
        split_seeds: seeds of the splits to write; by default the masks that ``data`` has, or a
            split with seed 0.
        overwrite: replace shards that are there.
        progress: show a bar; by default where standard error is a terminal.

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
        drawn = np.select(masks, [0, 1, 2], -1).astype(np.int8)[:, None]
    else:
        seeds = tuple(split_seeds or (0,))
        drawn = _splits(data.y.cpu().numpy(), data.sens.cpu().numpy(), seeds)
    _check_arguments(parts, data.x.size(0), order)
    report = getattr(data, "report", None)
    encoding = getattr(data, "encoding", None)
    names = Names(
        str(getattr(data, "name", "graph")),
        _named(data, "feature_names", data.x.size(1)),
        _named(data, "class_names", int(data.y.max()) + 1),
        _named(data, "group_names", int(data.sens.max()) + 1),
        None if encoding is None else encoding.to_dict(),
    )
    x = data.x.detach().cpu()
    nodes = _Held(
        (x if x.dtype == torch.float64 else x.float()).numpy(),
        data.y.cpu().numpy().astype(np.int32),
        data.sens.cpu().numpy().astype(np.int32),
    )
    with _writing(folder, overwrite, parts, progress) as (staging, say):
        found = LoadReport(nodes=len(nodes.y))
        pairs = Pairs(staging / "scratch", len(nodes.y), found)
        source, target = data.edge_index.cpu().numpy()
        forward = source <= target
        pairs.add(source[forward], target[forward])
        say("edges")
        lines = None if report is None else tuple(report.lines())
        return write_parts(staging, pairs, nodes, names, drawn, seeds, parts, order, lines, say)


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

    The numbers are those of :func:`fairmp.datasets.from_tables` with the same arguments. What
    memory holds at a time is one column of the node table, some twenty numbers a node, and blocks
    of edges; ``"locality"`` and ``"metis"`` also want each edge twice, in 4 bytes.

    Args:
        nodes: the node table, a file.
        edges: the edge table, a file.
        folder: where to.
        id: the column with the ids; ``None`` takes row numbers.
        label: the column with the classes.
        sensitive: the column or columns with the groups.
        parts: number of parts, as many as there will be processes or a multiple of it.
        order: ``"locality"`` (reverse Cuthill-McKee), ``"metis"`` or ``"given"``.
        sensitive_bins: how to cut a sensitive column of numbers.
        drop: columns to leave out.
        source: the column of ``edges`` with one end; by default the first.
        target: the column with the other end; by default the second.
        split_seeds: seeds of the splits to write.
        name: the graph's name; by default the node file's.
        overwrite: replace shards that are there.
        progress: show a bar; by default where standard error is a terminal.
    """
    folder, nodes = Path(folder), Path(nodes)
    _check_arguments(parts, 1 << 62, order)
    given = (sensitive,) if isinstance(sensitive, str) else tuple(sensitive)
    columns = Columns(id, label, given, sensitive_bins, tuple(drop), source, target)
    with _writing(folder, overwrite, parts, progress) as (staging, say):
        scratch, report = staging / "scratch", LoadReport()
        encoded = read_nodes(nodes, columns, scratch, report)
        _check_arguments(parts, len(encoded.y), order)
        say("nodes")
        table = EdgeTable(Path(edges), encoded.ids, len(encoded.y), source, target, report)
        pairs = _read_edges(table, scratch, report)
        say("edges")
        seeds = tuple(split_seeds)
        drawn = _splits(encoded.y, encoded.sens, seeds)
        encoding = encoded.encoding
        names = Names(
            name or nodes.name.split(".")[0],
            tuple(encoding.feature_names),
            encoding.label.classes,
            encoding.groups,
            encoding.to_dict(),
        )
        return write_parts(staging, pairs, encoded, names, drawn, seeds, parts, order, None, say)


def _read_edges(table: EdgeTable, scratch: Path, report: LoadReport) -> Pairs:
    ways = [True, False] if table.whole_numbers() else [False]
    for whole in ways:
        place = scratch / f"edges-{'whole' if whole else 'text'}"
        place.mkdir()
        pairs = Pairs(place, table.nodes, report)
        try:
            for source, target in table.blocks(whole=whole):
                pairs.add(source, target)
            return pairs
        except Unread:
            # Read as text, cells that are no whole number are ids like others.
            if not whole:
                raise
            pairs.forget()
    raise AssertionError


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
) -> Iterator[tuple[Path, Say]]:
    with ExitStack() as stack:
        staging = stack.enter_context(staged(folder, overwrite=overwrite))
        say = stack.enter_context(bar(parts + 4, "sharding", show=progress))
        try:
            yield staging, say
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise InputError(
                "--out",
                f"no space is left for {folder}",
                "shards and their scratch files need about 40 bytes an edge beside the features",
            ) from None


def _check_arguments(parts: int, nodes: int, order: str) -> None:
    if order not in get_args(Order):
        names = ", ".join(map(repr, get_args(Order)))
        raise InputError("order", f"{order!r} is unknown", f"choose one of {names}")
    partition.check_parts(parts, nodes)


def _check_undirected(data: Data) -> None:
    if data.get("edge_weight") is not None:
        raise InputError("data.edge_weight", "shards have no edge weights", "leave them out")
    if groups.soft(data.sens):
        raise InputError(
            "data.sens",
            "shards hold one group a node, not probabilities",
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


def _named(data: Data, attribute: str, count: int) -> tuple[str, ...]:
    names = data.get(attribute)
    if names is None or len(names) < count:
        return tuple(str(k) for k in range(count))
    return tuple(str(name) for name in names)

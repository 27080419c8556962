"""Write shards: of a graph in memory, or of tables larger than memory, read once."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import torch
from torch_geometric.data import Data
from torch_geometric.utils import coalesce

from fairmp import groups
from fairmp.datasets.dialects import TableReadError
from fairmp.datasets.edges import EdgeColumns, EdgeTable, comparable, proper_rows
from fairmp.datasets.encoding import Roles
from fairmp.datasets.load_report import LoadReport
from fairmp.datasets.splits import MASKS, check, split
from fairmp.datasets.statistics import EdgeHomophily, Statistics, sizes
from fairmp.datasets.tables import name_of
from fairmp.datasets.targets import BinsGiven
from fairmp.display import bar
from fairmp.distributed import partition
from fairmp.distributed.edge_store import EdgeStore
from fairmp.distributed.node_table import FEATURE_ROWS, read_nodes
from fairmp.distributed.partition import Order, Partition
from fairmp.distributed.shard_format import (
    SCRATCH,
    File,
    Manifest,
    Part,
    part_folder,
    staged,
    write_array,
)
from fairmp.errors import InputError, check_choice, check_integer
from fairmp.training.nodes import Names


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
    has_split = split_seeds is None and all(name in data for name in MASKS)
    check(data, masks=has_split)
    _check_undirected(data)
    if split_seeds is None and not has_split:
        split_seeds = (0,)
    nodes = _nodes_of(data, split_seeds)
    encoding, loaded = getattr(data, "encoding", None), getattr(data, "report", None)
    names = Names.of(data)
    manifest = Manifest(
        name=str(getattr(data, "name", "graph")),
        order=order,
        feature_names=tuple(names.features),
        class_names=tuple(names.classes),
        group_names=tuple(names.groups),
        split_seeds=(None,) if split_seeds is None else tuple(split_seeds),
        encoding=encoding and encoding.to_dict(),
        report=tuple(loaded.lines()) if loaded else (),
    )
    report = LoadReport(nodes=len(nodes.y))
    with _writing(Path(folder), overwrite, parts, order, progress) as job:
        partition.check_parts(parts, report.nodes)
        with EdgeStore(job.scratch, report.nodes) as edges:
            source, target = data.edge_index.cpu().numpy()
            once = source <= target
            edges.add(*proper_rows(source[once], target[once], report))
            job.advance("edges")
            return _write(job, manifest, edges, nodes, report)


def shard_tables(  # noqa: PLR0913
    nodes: str | Path,
    edges: str | Path | None,
    folder: str | Path,
    *,
    id: str | None,
    label: str,
    sensitive: str | Sequence[str],
    parts: int,
    order: Order = "locality",
    sensitive_bins: BinsGiven = None,
    drop: Sequence[str] = (),
    categorical: Sequence[str] = (),
    positive: Any = None,
    unknown: Sequence[Any] | None = None,
    min_group: int = 0,
    edge_source: str | None = None,
    edge_target: str | None = None,
    split_seeds: Sequence[int] = (0,),
    name: str | None = None,
    overwrite: bool = False,
    progress: bool | None = None,
) -> Manifest:
    """Write tables as shards, reading each of them once.

    ``nodes`` and ``edges`` are files, or folders or patterns of Parquet files. ``folder``,
    ``parts``, ``order``, ``split_seeds``, ``overwrite`` and ``progress`` are those of
    :func:`shard`, all other arguments those of :func:`fairmp.datasets.from_tables`, which makes the
    same numbers of them. Memory holds one column of the node table at a time, some twenty numbers
    per node, and a gigabyte of edges; ``"locality"`` and ``"metis"`` also need each edge twice, in
    4 bytes.
    """
    roles = Roles(
        id=id,
        label=label,
        sensitive=sensitive,
        drop=tuple(drop),
        categorical=tuple(categorical),
        edge_source=edge_source,
        edge_target=edge_target,
        sensitive_bins=sensitive_bins,
        positive=positive,
        unknown=unknown,
        min_group=min_group,
    )
    if edges is None:
        raise InputError("edges", "missing", "shards are of graphs: give a table of edges")
    report = LoadReport()
    with _writing(Path(folder), overwrite, parts, order, progress) as job:
        table = read_nodes(Path(nodes), roles, job.scratch, report)
        report.labelled_unknown_groups = int(((table.y >= 0) & (table.sens < 0)).sum())
        splits = _splits(table.y, table.sens, split_seeds)
        partition.check_parts(parts, report.nodes)
        job.advance("nodes")
        with EdgeStore(job.scratch, report.nodes) as store:
            _read_edges(
                EdgeTable(edges, table.ids, EdgeColumns(edge_source, edge_target), report),
                store,
                report,
            )
            job.advance("edges")
            manifest = Manifest(
                name=name or name_of(nodes),
                order=order,
                feature_names=tuple(table.encoding.feature_names),
                class_names=table.encoding.label.classes,
                group_names=table.encoding.groups,
                split_seeds=tuple(split_seeds),
                encoding=table.encoding.to_dict(),
            )
            features = table.features if table.feature_files else None
            encoded = Nodes(table.y, table.sens, splits, features)
            return _write(job, manifest, store, encoded, report)


@dataclass(frozen=True)
class Nodes:
    """Classes and groups (n, int32, −1 unknown), splits, and the features of any rows."""

    y: np.ndarray
    sens: np.ndarray
    splits: np.ndarray  # n×s, int8: 0 training, 1 validation, 2 test, −1 none
    features: Callable[[np.ndarray], np.ndarray] | None  # None: log(1 + degree)


@dataclass(frozen=True)
class _Job:
    """The folder that shards are written to, their number, and a function for progress."""

    staging: Path
    parts: int
    advance: Callable[[str], None]

    @property
    def scratch(self) -> Path:
        return self.staging / SCRATCH


@contextmanager
def _writing(
    folder: Path, overwrite: bool, parts: int, order: str, progress: bool | None
) -> Iterator[_Job]:
    check_choice("order", order, get_args(Order))
    check_integer("parts", parts, "give 1 to the number of nodes")
    steps = bar(parts + 4, "sharding", show=progress)
    with staged(folder, overwrite=overwrite) as staging, steps as advance:
        try:
            yield _Job(staging, parts, advance)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            hint = "shards and scratch files need about 40 bytes per edge, and the features"
            raise InputError("folder", f"no space is left for {folder}", hint) from None


def _check_undirected(data: Data) -> None:
    if data.get("edge_weight") is not None:
        raise InputError("data.edge_weight", "shards have no edge weights", "leave them out")
    if groups.is_soft(data.sens):
        value = "shards hold one group per node, not probabilities"
        raise InputError("data.sens", value, "give codes, -1 where unknown")
    forward = coalesce(data.edge_index, num_nodes=data.x.size(0))
    backward = coalesce(data.edge_index.flip(0), num_nodes=data.x.size(0))
    if forward.shape != data.edge_index.shape or not torch.equal(forward, backward):
        value = "directed or with repeated edges, and shards are undirected"
        raise InputError("data.edge_index", value, "use torch_geometric.utils.to_undirected")


def _nodes_of(data: Data, split_seeds: Sequence[int] | None) -> Nodes:
    """The nodes of a graph in memory; without seeds, the split is its own."""
    y, sens = data.y.cpu().numpy().astype(np.int32), data.sens.cpu().numpy().astype(np.int32)
    if split_seeds is None:
        splits = _subset(data[name] for name in MASKS)[:, None]
    else:
        splits = _splits(y, sens, split_seeds)
    x = data.x.detach().cpu().to_dense()
    x = (x if x.dtype == torch.float64 else x.float()).numpy()
    return Nodes(y, sens, splits, features=lambda rows: x[rows])


def _splits(y: np.ndarray, sens: np.ndarray, seeds: Sequence[int]) -> np.ndarray:
    if not seeds:
        raise InputError("split_seeds", "none given", "give one or more, such as 0")
    return np.stack([_subset(split((y, sens), seed=seed)) for seed in seeds], axis=1)


def _subset(masks: Iterable[torch.Tensor]) -> np.ndarray:
    """The mask each node is in: 0 training, 1 validation, 2 test, −1 none."""
    return np.select([mask.cpu().numpy() for mask in masks], [0, 1, 2], -1).astype(np.int8)


def _read_edges(table: EdgeTable, edges: EdgeStore, report: LoadReport) -> None:
    """Read an edge table; endpoints are text unless they and all node ids are integers."""
    if pa.types.is_integer(comparable(table.ids)[0].type):
        try:
            return _add_batches(table, edges, report, integers=True)
        except TableReadError:  # some endpoint is not an integer
            report.edge_rows = report.dangling = report.self_loops = 0
            edges.clear()
    return _add_batches(table, edges, report, integers=False)


def _add_batches(table: EdgeTable, edges: EdgeStore, report: LoadReport, *, integers: bool) -> None:
    for source, target in table.batches(integers=integers):
        edges.add(*proper_rows(source, target, report))


def _write(
    job: _Job, manifest: Manifest, edges: EdgeStore, nodes: Nodes, report: LoadReport
) -> Manifest:
    """Order the nodes, write the parts, and complete and write the manifest."""
    edges.find_edges(report)
    job.advance("edges sorted")
    manifest = replace(manifest, nodes=report.nodes, edges=report.edges)
    degree, statistics = _scan(edges, nodes, manifest)
    partitioned = _partition(job, edges, manifest.order, degree, statistics.features)
    job.advance("order")
    manifest = replace(
        manifest,
        statistics=asdict(statistics),
        report=manifest.report or tuple(report.lines()),
        parts=tuple(_write_parts(job, edges, nodes, degree, partitioned)),
    )
    manifest.write(job.staging)
    return manifest


def _scan(edges: EdgeStore, nodes: Nodes, manifest: Manifest) -> tuple[np.ndarray, Statistics]:
    """Degree of each node (n), and the statistics of the graph, from one pass over its edges."""
    degree = np.zeros(edges.num_nodes, dtype=np.int64)
    label, labelled = EdgeHomophily(nodes.y, known_only=False), EdgeHomophily(nodes.y)
    group = EdgeHomophily(nodes.sens)
    for low, high in edges.edges():
        np.add.at(degree, low, 1)
        np.add.at(degree, high, 1)
        for counted in (label, labelled, group):
            counted.add(low, high)
    statistics = Statistics(
        name=manifest.name,
        nodes=manifest.nodes,
        features=len(manifest.feature_names),
        edges=2 * manifest.edges,
        label_homophily=label.share,
        label_homophily_labelled=labelled.share,
        sens_homophily=group.share,
        labelled=int((nodes.y >= 0).sum()),
        classes=sizes(torch.from_numpy(nodes.y), manifest.class_names),
        groups=sizes(torch.from_numpy(nodes.sens), manifest.group_names),
    )
    return degree, statistics


def _partition(
    job: _Job, edges: EdgeStore, order: str, degree: np.ndarray, num_features: int
) -> Partition:
    """Assign nodes to parts, and renumber them in the order of the parts."""
    weight = partition.cost(degree, num_features)
    if order == "given":
        return partition.given(weight, job.parts)
    row, path = np.concatenate([[0], np.cumsum(degree)]), job.scratch / "neighbours.npy"
    write_array(path, edges.columns(loops=False), (int(row[-1]),), edges.dtype)
    find = partition.locality if order == "locality" else partition.metis
    partitioned = find(row, np.load(path, mmap_mode="c"), weight, job.parts)
    path.unlink()
    edges.renumber(partitioned.place)
    return partitioned


def _write_parts(
    job: _Job, edges: EdgeStore, nodes: Nodes, degree: np.ndarray, partitioned: Partition
) -> Iterator[Part]:
    number = partition.inverse(partitioned.place)  # row of each node in its table
    columns = _ArrayStream(edges.columns(loops=True))
    for index, (start, stop) in enumerate(pairwise(partitioned.bounds.tolist())):
        folder = part_folder(job.staging, index)
        folder.mkdir()
        rows = number[start:stop]
        pointers = np.concatenate([[0], np.cumsum(degree[rows] + 1)])
        entries = int(pointers[-1])
        files = {"x": _write_features(folder, nodes, degree, rows)}
        for name, array in (
            ("y", nodes.y[rows]),
            ("sens", nodes.sens[rows]),
            ("split", nodes.splits[rows]),
            ("number", rows),
            ("row", pointers),
        ):
            files[name] = write_array(folder / f"{name}.npy", [array], array.shape, array.dtype)
        is_neighbour = np.zeros(edges.num_nodes, dtype=bool)
        marked = _mark(columns.take(entries), is_neighbour)
        files["col"] = write_array(folder / "col.npy", marked, (entries,), edges.dtype)
        is_neighbour[start:stop] = False
        yield Part(start, stop, entries, int(np.count_nonzero(is_neighbour)), files)
        job.advance(f"part {index + 1}")


def _write_features(folder: Path, nodes: Nodes, degree: np.ndarray, rows: np.ndarray) -> File:
    def features(some: np.ndarray) -> np.ndarray:
        if nodes.features is not None:
            return nodes.features(some)
        return np.log1p(degree[some]).astype(np.float32)[:, None]

    first = features(rows[:1])
    blocks = (features(rows[k : k + FEATURE_ROWS]) for k in range(0, len(rows), FEATURE_ROWS))
    return write_array(folder / "x.npy", blocks, (len(rows), first.shape[1]), first.dtype)


def _mark(arrays: Iterable[np.ndarray], mask: np.ndarray) -> Iterator[np.ndarray]:
    """Yield arrays of indices, and set the mask where they point."""
    for indices in arrays:
        mask[indices] = True
        yield indices


class _ArrayStream:
    """Arrays one after another, taken in pieces of any length."""

    def __init__(self, arrays: Iterator[np.ndarray]) -> None:
        self._arrays, self._buffer = arrays, np.empty(0)

    def take(self, count: int) -> Iterator[np.ndarray]:
        """Yield the next ``count`` elements."""
        while count:
            if not len(self._buffer):
                self._buffer = next(self._arrays)
            piece, self._buffer = self._buffer[:count], self._buffer[count:]
            count -= len(piece)
            yield piece

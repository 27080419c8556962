"""Write shards: of a graph in memory, or of tables larger than memory, read once."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from torch_geometric.data import Data
from torch_geometric.utils import coalesce

from fairmp import groups
from fairmp.datasets.columns import BinsGiven, Column, LoadReport
from fairmp.datasets.edges import EdgeTable, comparable, node_ids
from fairmp.datasets.readers import TableReader, TableReadError
from fairmp.datasets.splits import MASKS, check, split
from fairmp.datasets.statistics import Statistics, sizes
from fairmp.datasets.tables import Encoding, Roles, fit_encoding
from fairmp.distributed import partition
from fairmp.distributed.external_sort import EdgeSet, csr_blocks
from fairmp.distributed.partition import Order, Partition
from fairmp.distributed.shard_format import Manifest, Part, part_folder, staged, write_array
from fairmp.errors import InputError, check_choice
from fairmp.outputs import bar

FEATURE_ROWS = 1 << 16  # rows of features computed or copied at a time
Progress = Callable[[str], None]


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
    check(data)
    _check_undirected(data)
    y, sens = data.y.cpu().numpy(), data.sens.cpu().numpy()
    seeds: tuple[int | None, ...] = tuple(split_seeds or (0,))
    if split_seeds is None and all(name in data for name in MASKS):
        check(data, masks=True)
        seeds, splits = (None,), _subset(data[name] for name in MASKS)[:, None]
    else:
        splits = _splits(y, sens, seeds)
    report, encoding = getattr(data, "report", None), getattr(data, "encoding", None)

    def names(attribute: str, count: int) -> tuple[str, ...]:
        given = data.get(attribute) or ()
        return tuple(map(str, given if len(given) >= count else range(count)))

    manifest = Manifest(
        str(getattr(data, "name", "graph")),
        order,
        names("feature_names", data.x.size(1)),
        names("class_names", int(data.y.max()) + 1),
        names("group_names", int(data.sens.max()) + 1),
        seeds,
        encoding and encoding.to_dict(),
        report=tuple(report.lines()) if report else (),
    )
    x = data.x.detach().cpu().to_dense()
    x = (x if x.dtype == torch.float64 else x.float()).numpy()
    nodes = Nodes(y.astype(np.int32), sens.astype(np.int32), splits, lambda rows: x[rows])
    with _writing(Path(folder), overwrite, parts, order, progress) as (staging, advance):
        partition.check_parts(parts, len(y))
        edges = EdgeSet(staging / "scratch", len(y), LoadReport(nodes=len(y)))
        source, target = data.edge_index.cpu().numpy()
        forward = source <= target
        edges.add(source[forward], target[forward])
        advance("edges")
        return _write(staging, manifest, edges, nodes, parts, advance)


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
    categorical: Sequence[str] = (),
    unknown: Sequence[Any] | None = None,
    source: str | None = None,
    target: str | None = None,
    split_seeds: Sequence[int] = (0,),
    name: str | None = None,
    overwrite: bool = False,
    progress: bool | None = None,
) -> Manifest:
    """Write tables as shards, reading each of them once.

    ``nodes`` and ``edges`` are files. ``folder``, ``parts``, ``order``, ``split_seeds``,
    ``overwrite`` and ``progress`` are those of :func:`shard`, all other arguments those of
    :func:`fairmp.datasets.from_tables`, which makes the same numbers of them. Memory holds one
    column of the node table at a time, some twenty numbers per node, and blocks of edges;
    ``"locality"`` and ``"metis"`` also need each edge twice, in 4 bytes.
    """
    nodes = Path(nodes)
    used_as = id, label, sensitive, None, tuple(drop), tuple(categorical), source, target
    roles = Roles(*used_as, sensitive_bins=sensitive_bins, unknown=unknown)
    with _writing(Path(folder), overwrite, parts, order, progress) as (staging, advance):
        scratch, report = staging / "scratch", LoadReport()
        encoded, ids, encoding = _read_nodes(nodes, roles, split_seeds, scratch, report)
        partition.check_parts(parts, len(ids))
        advance("nodes")
        table = EdgeTable(edges, ids, source, target, report)
        integers = pa.types.is_integer(comparable(ids)[0].type)
        found = _read_edges(table, scratch, report, integers)
        advance("edges")
        manifest = Manifest(
            name or nodes.name.split(".")[0],
            order,
            tuple(encoding.feature_names),
            encoding.label.classes,
            encoding.groups,
            tuple(split_seeds),
            encoding.to_dict(),
        )
        return _write(staging, manifest, found, encoded, parts, advance)


def _read_edges(table: EdgeTable, scratch: Path, report: LoadReport, integers: bool) -> EdgeSet:
    edges = EdgeSet(scratch, len(table.ids), report)
    try:
        for source, target in table.batches(integers=integers):
            edges.add(source, target)
    except TableReadError:
        if not integers:
            raise
        edges.discard()  # an endpoint is not an integer: read them as text
        return _read_edges(table, scratch, report, integers=False)
    return edges


def _splits(y: np.ndarray, sens: np.ndarray, seeds: Sequence[int | None]) -> np.ndarray:
    if not seeds:
        raise InputError("split_seeds", "none given", "give one or more, such as 0")
    return np.stack([_subset(split((y, sens), seed=seed or 0)) for seed in seeds], axis=1)


def _subset(masks: Iterable[torch.Tensor]) -> np.ndarray:
    """The mask each node is in: 0 training, 1 validation, 2 test, −1 none."""
    return np.select([mask.cpu().numpy() for mask in masks], [0, 1, 2], -1).astype(np.int8)


@contextmanager
def _writing(
    folder: Path, overwrite: bool, parts: int, order: str, progress: bool | None
) -> Iterator[tuple[Path, Progress]]:
    check_choice("order", order, get_args(Order))
    partition.check_parts(parts, 1 << 62)
    shown = bar(parts + 4, "sharding", show=progress)
    with staged(folder, overwrite=overwrite) as staging, shown as advance:
        try:
            yield staging, advance
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            hint = "shards and scratch files need about 40 bytes per edge, and the features"
            raise InputError("--out", f"no space is left for {folder}", hint) from None


def _check_undirected(data: Data) -> None:
    if data.get("edge_weight") is not None:
        raise InputError("data.edge_weight", "shards have no edge weights", "leave them out")
    if groups.is_soft(data.sens):
        value = "shards hold one group per node, not probabilities"
        raise InputError("data.sens", value, "give codes, -1 where unknown")
    there = coalesce(data.edge_index, num_nodes=data.x.size(0))
    back = coalesce(data.edge_index.flip(0), num_nodes=data.x.size(0))
    if there.shape != data.edge_index.shape or not torch.equal(there, back):
        value = "directed or with repeated edges, and shards are undirected"
        raise InputError("data.edge_index", value, "use torch_geometric.utils.to_undirected")


def _write(
    staging: Path, manifest: Manifest, edges: EdgeSet, nodes: Nodes, parts: int, advance: Progress
) -> Manifest:
    """Order the nodes, write the parts, and complete and write the manifest."""
    label, labelled, sens = edges.finish(nodes.y, nodes.sens)
    advance("edges sorted")
    count, features = edges.nodes, len(manifest.feature_names)
    ordered = _ordered(edges, manifest.order, parts, features, staging / "scratch")
    advance("order")
    classes = sizes(torch.from_numpy(nodes.y), manifest.class_names)
    members = sizes(torch.from_numpy(nodes.sens), manifest.group_names)
    known, entries = int((nodes.y >= 0).sum()), 2 * edges.report.edges
    statistics = Statistics(
        manifest.name, count, features, entries, label, labelled, sens, known, classes, members
    )
    manifest = replace(
        manifest,
        nodes=count,
        edges=edges.report.edges,
        statistics=statistics.as_dict(),
        report=manifest.report or tuple(edges.report.lines()),
        parts=tuple(_write_parts(staging, edges, nodes, ordered, advance)),
    )
    manifest.write(staging)
    return manifest


def _ordered(edges: EdgeSet, order: str, parts: int, features: int, scratch: Path) -> Partition:
    weight = partition.cost(edges.degree, features)
    if order == "given":
        return partition.given(weight, parts)
    row, path = np.concatenate([[0], np.cumsum(edges.degree)]), scratch / "neighbours.npy"
    blocks = csr_blocks(edges, None, [0, edges.nodes], scratch / "plain", loops=False)
    write_array(path, (col for _, col in blocks), (int(row[-1]),), edges.kind)
    find = partition.locality if order == "locality" else partition.metis
    ordered = find(row, np.load(path, mmap_mode="c"), weight, parts)
    path.unlink()
    return ordered


def _write_parts(
    staging: Path, edges: EdgeSet, nodes: Nodes, ordered: Partition, advance: Progress
) -> Iterator[Part]:
    def degree(rows: np.ndarray) -> np.ndarray:
        return np.log1p(edges.degree[rows]).astype(np.float32)[:, None]

    def columns(stop: int) -> Iterator[np.ndarray]:
        for end, col in blocks:
            neighbour[col] = True
            yield col
            if end == stop:
                return

    number, bounds = partition.inverse(ordered.place), ordered.bounds.tolist()
    features = nodes.features or degree
    first = features(number[:1])
    scratch = staging / "scratch" / "ordered"
    blocks = csr_blocks(edges, ordered.place, bounds, scratch, loops=True)
    neighbour = np.zeros(edges.nodes, dtype=bool)
    for index, (start, stop) in enumerate(pairwise(bounds)):
        count, own = stop - start, number[start:stop]
        row = np.concatenate([[0], np.cumsum(edges.degree[own] + 1)])
        entries = int(row[-1])
        x = (features(own[k : k + FEATURE_ROWS]) for k in range(0, count, FEATURE_ROWS))
        arrays: dict[str, tuple[Iterable[np.ndarray], tuple[int, ...], Any]] = {
            "x": (x, (count, first.shape[1]), first.dtype),
            "y": ([nodes.y[own]], (count,), np.int32),
            "sens": ([nodes.sens[own]], (count,), np.int32),
            "split": ([nodes.splits[own]], (count, nodes.splits.shape[1]), np.int8),
            "number": ([own], (count,), np.int64),
            "row": ([row], (count + 1,), np.int64),
            "col": (columns(stop), (entries,), edges.kind),
        }
        folder = part_folder(staging, index)
        folder.mkdir()
        files = {name: write_array(folder / f"{name}.npy", *arrays[name]) for name in arrays}
        neighbour[start:stop] = False
        yield Part(start, stop, entries, int(np.count_nonzero(neighbour)), files)
        neighbour[:] = False
        advance(f"part {index + 1}")


class Nodes(NamedTuple):
    """Classes and groups (n, int32, −1 unknown), splits, and the features of any rows."""

    y: np.ndarray
    sens: np.ndarray
    splits: np.ndarray  # n×s, int8: 0 training, 1 validation, 2 test, −1 none
    features: Callable[[np.ndarray], np.ndarray] | None  # none: log(1 + degree)


def _read_nodes(
    path: Path, roles: Roles, seeds: Sequence[int], folder: Path, report: LoadReport
) -> tuple[Nodes, Any, Encoding]:
    """Read a node table, one column in memory at a time: the nodes, their ids, the encoding."""
    table = _ColumnStore(path, roles, folder, report)
    files: list[Path] = []

    def save(column: Column, codes: np.ndarray) -> None:
        files.append(folder / f"features-{len(files)}.npy")
        shape = len(codes), len(column.feature_names)
        # In blocks of rows: twenty categories take twenty times the room of their column.
        starts = range(0, len(codes), FEATURE_ROWS)
        blocks = (column.expand(codes[start : start + FEATURE_ROWS]) for start in starts)
        write_array(files[-1], blocks, shape, np.float32)

    def features(rows: np.ndarray) -> np.ndarray:
        blocks = [np.take(np.load(file, mmap_mode="r"), rows, axis=0) for file in files]
        return np.concatenate(blocks, axis=1)

    encoding, y, sens = fit_encoding(table.names, table.load, roles, report, save)
    report.nodes = len(y)
    ids = node_ids(y if roles.id is None else {roles.id: table.load(roles.id)}, roles.id)
    codes, splits = (y.astype(np.int32), sens.astype(np.int32)), _splits(y, sens, seeds)
    return Nodes(*codes, splits, features if files else None), ids, encoding


class _ColumnStore:
    """The columns of a table file, loaded one at a time; text is copied to an Arrow file first."""

    def __init__(self, path: Path, roles: Roles, folder: Path, report: LoadReport) -> None:
        self.reader, self.copy = TableReader(path, "nodes", notes=report.notes), folder / "nodes"
        self.names = self.reader.find_header((roles.id, roles.label, *roles.groups))
        self.id = roles.id
        used = {roles.id, roles.label, *roles.groups, *roles.feature_columns(self.names)}
        wanted = [name for name in self.names if name in used]
        if self.reader.dialect is None:
            return
        schema = pa.schema([(name, pa.string()) for name in wanted])
        with pa.OSFile(str(self.copy), "wb") as file, pa.ipc.new_file(file, schema) as writer:
            for batch in self.reader.batches(wanted):
                writer.write(pa.record_batch(batch.columns, schema=schema))
        self.reader.settle_commas([name for name in wanted if name != self.id], self._cells)

    def _cells(self, name: str) -> Any:
        if self.reader.dialect is None:
            column = self.reader.table([name]).column(0)
        else:
            with pa.memory_map(str(self.copy)) as file:
                column = pa.ipc.open_file(file).read_all().column(name)
        return self.reader.strip(name, column, missing=name != self.id)

    def load(self, name: str) -> pd.Series:
        """Return a column, with the types that :meth:`TableReader.frame` gives it."""
        cells = self._cells(name)
        if not len(cells):
            raise InputError("nodes", "the table has a header and no rows", "give one row per node")
        cells = cells if name == self.id else self.reader.infer(name, cells)
        return pa.table({name: cells}).to_pandas(date_as_object=False)[name]

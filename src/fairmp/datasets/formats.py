"""Parse the raw files of a benchmark graph: node and edge tables, NumPy files, Matlab files."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fairmp.datasets.download import open_raw
from fairmp.datasets.edges import check_ids, positions, undirected
from fairmp.datasets.load_report import LoadReport
from fairmp.datasets.numerals import is_text
from fairmp.datasets.readers import TableReader
from fairmp.datasets.sources import Source
from fairmp.errors import InputError, plural

FACEBOOK_COLUMNS = ("status", "gender", "major", "minor", "dorm", "year", "high_school")
MIN_CATEGORY_COUNT = 10  # nodes a category needs to become a feature of Facebook100
MAX_GROUPS = 5  # most frequent values of a Facebook100 column that become classes or groups


@dataclass
class ParsedGraph:
    """A benchmark graph as arrays, and the names of its features, classes and groups."""

    x: np.ndarray
    edge_index: np.ndarray
    y: np.ndarray
    sens: np.ndarray
    feature_names: list[str]
    class_names: list[str]
    group_names: list[str]


class RawGraph(NamedTuple):
    """The raw files of a benchmark graph; ``partial`` drops broken rows instead of refusing."""

    source: Source
    paths: Mapping[str, Path]
    partial: bool
    report: LoadReport


def parse(raw: RawGraph) -> ParsedGraph:
    """Parse the raw files of a graph."""
    return {"tables": _tables, "numpy": _numpy, "matlab": _matlab}[raw.source.layout](raw)


def _tables(raw: RawGraph) -> ParsedGraph:
    source, title = raw.source, raw.source.title
    with ThreadPoolExecutor(1) as pool:
        if source.similarity is None:
            edges = pool.submit(read_raw, raw, "edges", ["source", "target"])
        table = read_raw(raw, "nodes")
    others = [source.label, source.sensitive, *source.drop]
    others += [source.id_column] if source.id_column else []
    for column in others:
        if column not in table.column_names:
            value = f"{raw.paths['nodes'].name} has no column {column!r}"
            raise InputError(title, value, "it is another file")
    features = table.drop_columns(others)
    x = _matrix(features, title)
    raw.report.nodes = len(x)
    if source.similarity is None:
        source_rows, target_rows = _edge_rows(raw, table, edges.result())
    else:
        groups = _matrix(table.select([source.sensitive]), title)
        columns = np.concatenate([x, groups], axis=1)
        source_rows, target_rows = similar_nodes(columns, source.similarity)
    return _named_by_code(
        source,
        x,
        undirected(source_rows, target_rows, len(x), raw.report),
        _codes(table[source.label], source.label_values, title),
        _codes(table[source.sensitive], source.group_values, title),
        features.column_names,
    )


def _edge_rows(raw: RawGraph, nodes: Any, edges: Any) -> list[np.ndarray]:
    """The rows of the node table that each edge joins."""
    source = raw.source
    ids = nodes[source.id_column] if source.id_column else pa.array(np.arange(nodes.num_rows))
    check_ids(ids, f"{source.title}: {raw.paths['nodes'].name}")
    try:
        return [positions(ids, column.cast(pa.int64())) for column in edges.columns[:2]]
    except pa.ArrowInvalid:
        value = f"{raw.paths['edges'].name} has node ids that are not integers"
        raise InputError(source.title, value) from None


def similar_nodes(x: np.ndarray, threshold: float) -> np.ndarray:
    """Connect each node to all that are nearly as similar to it as its nearest node.

    The similarity of two rows of ``x`` is 1/(1+d), d their Euclidean distance. A pair is connected
    if it is above ``threshold`` times the similarity of one of them and its nearest node.
    """
    from scipy.spatial import KDTree

    tree = KDTree(x.astype(np.float64))
    nearest = tree.query(tree.data, k=2)[0][:, 1]
    least = threshold * (1 / (1 + nearest))
    near = tree.query_ball_point(tree.data, 1 / least - 1 + 1e-6, workers=-1)
    source = np.repeat(np.arange(len(x)), [len(nodes) for nodes in near])
    target = np.concatenate([*near])
    distance = np.linalg.norm(tree.data[source] - tree.data[target], axis=1)
    similar = (1 / (1 + distance) > least[source]) & (source != target)
    return np.unique(np.sort(np.stack([source, target])[:, similar], axis=0), axis=1)


def _named_by_code(
    source: Source,
    x: np.ndarray,
    edge_index: np.ndarray,
    y: np.ndarray,
    sens: np.ndarray,
    feature_names: list[str],
) -> ParsedGraph:
    """A graph whose classes, and groups unless they have names, are named by their codes."""
    groups = [f"{source.sensitive} = {k}" for k in range(int(sens.max()) + 1)]
    classes = [str(k) for k in range(int(y.max()) + 1)]
    names = list(source.group_values) or groups
    return ParsedGraph(x, edge_index, y, sens, feature_names, classes, names)


def read_raw(raw: RawGraph, role: str, names: Sequence[str] = ()) -> Any:
    """Read a raw table; published files have no empty cell, so that one means a cut-off file."""
    path, title, notes = raw.paths[role], raw.source.title, raw.report.notes
    reader = TableReader(path, title, names=names, notes=notes)
    table = reader.table(partial=raw.partial)
    complete = np.ones(table.num_rows, dtype=bool)
    for column in table.columns:
        if column.null_count:
            complete &= pc.is_valid(column).to_numpy()
    if complete.all():
        return table
    if not raw.partial:
        value = f"{path.name} {reader.locate(int(np.argmin(complete)))} has an empty cell"
        hint = "the file is cut off or broken there ({partial=True} drops such lines)"
        raise InputError(title, value, hint)
    dropped = plural(int((~complete).sum()), "row")
    notes.append(f"{path.name}: {dropped} with an empty cell, dropped")
    return table.filter(complete)


def _matrix(table: Any, title: str) -> np.ndarray:
    x = np.empty((table.num_columns, table.num_rows), dtype=np.float32)
    for k, (name, column) in enumerate(zip(table.column_names, table.columns, strict=True)):
        if is_text(column.type) or pa.types.is_binary(column.type):
            raise InputError(title, f"column {name!r} has text where numbers are expected")
        x[k] = column.to_numpy()
    return np.ascontiguousarray(x.T)


def _codes(column: Any, code_of: Mapping[Any, int], title: str) -> np.ndarray:
    """Return a column as integers, mapped by ``code_of`` if not empty; negative ones are −1."""
    if not code_of:
        return np.maximum(column.to_numpy().astype(np.int64), -1)
    values = column.to_pylist()
    for value in set(values) - set(code_of):
        raise InputError(title, f"{value!r} is not one of {', '.join(map(str, code_of))}")
    return np.array([code_of[value] for value in values])


def _numpy(raw: RawGraph) -> ParsedGraph:
    title, paths = raw.source.title, raw.paths
    table, public = read_raw(raw, "attributes"), read_raw(raw, "public")
    try:
        with open_raw(paths["edges"]) as file, np.load(file, allow_pickle=False) as matrix:
            starts, columns = matrix["indptr"], matrix["indices"]
        with open_raw(paths["labels"]) as file:
            labels = np.load(file, allow_pickle=False)
        with open_raw(paths["sens"]) as file:
            sens = np.load(file, allow_pickle=False).reshape(-1).astype(np.int64)
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise InputError(title, f"cannot read the NumPy files ({error})") from None
    count = raw.report.nodes = len(starts) - 1
    sizes = (count, len(sens), table.num_rows, public.num_rows)
    if len(set(sizes)) > 1 or labels[:, 0].max(initial=0) >= count:
        listed = ", ".join(f"{size:,}" for size in sizes)
        raise InputError(title, f"the files have {listed} nodes", "they do not belong together")
    y = np.full(count, -1, dtype=np.int64)
    y[labels[:, 0]] = labels[:, 1]
    rows = np.repeat(np.arange(count), np.diff(starts))
    features = [_matrix(table.select(["gender", "AGE"]), title), _matrix(public, title)]
    return _named_by_code(
        raw.source,
        np.concatenate(features, axis=1),
        undirected(rows, columns, count, raw.report),
        y,
        sens,
        ["gender", "AGE", "public"],
    )


def _matlab(raw: RawGraph) -> ParsedGraph:
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    source, path, report = raw.source, raw.paths["graph"], raw.report
    try:
        with open_raw(path) as file:
            content = loadmat(file, variable_names=["A", "local_info"])
        adjacency, info = content["A"].tocoo(), content["local_info"].astype(np.int64)
    except (OSError, EOFError, ValueError, TypeError, KeyError, MatReadError) as error:
        value = f"cannot read {path.name} ({error})"
        raise InputError(source.title, value, "fetch it again") from None
    report.nodes = len(info)
    label = _select("label", source.label, info, report)
    sensitive = _select("sensitive", source.sensitive, info, report)
    if label.column == sensitive.column:
        value = f"{label.column!r} is the label too"
        raise InputError("sensitive", value, "choose another column")
    blocks, names = [], []
    for k, column in enumerate(FACEBOOK_COLUMNS):
        if column not in (label.column, sensitive.column):
            values, counts = np.unique(info[:, k], return_counts=True)
            values = values[(values != 0) & (counts >= MIN_CATEGORY_COUNT)]
            blocks.append(info[:, k, None] == values)
            names += [f"{column}={value}" for value in values]
    return ParsedGraph(
        x=np.concatenate(blocks, axis=1).astype(np.uint8),
        edge_index=undirected(adjacency.row, adjacency.col, len(info), report),
        y=label.codes,
        sens=sensitive.codes,
        feature_names=names,
        class_names=label.names,
        group_names=sensitive.names,
    )


class _Selection(NamedTuple):
    """A column as codes, −1 where unknown, and the names of the codes."""

    column: str
    codes: np.ndarray
    names: list[str]


def _select(argument: str, spec: str, info: np.ndarray, report: LoadReport) -> _Selection:
    """Read ``column`` or ``column>=value``."""
    match = re.fullmatch(r"\s*(\w+)\s*(?:>=\s*(\d+)\s*)?", spec)
    if not match or match[1] not in FACEBOOK_COLUMNS:
        hint = f"give one of {', '.join(FACEBOOK_COLUMNS)}, or a threshold such as 'year>=2007'"
        raise InputError(argument, f"{spec!r} is not a column", hint)
    column, values = match[1], info[:, FACEBOOK_COLUMNS.index(match[1])]  # 0 is unknown
    if match[2]:
        codes = np.where(values == 0, -1, values >= int(match[2]))
        names = [f"{column} < {match[2]}", f"{column} ≥ {match[2]}"]
    else:
        distinct, counts = np.unique(values[values != 0], return_counts=True)
        frequent = np.sort(distinct[np.argsort(-counts, kind="stable")[:MAX_GROUPS]])
        codes = np.where(np.isin(values, frequent), np.searchsorted(frequent, values), -1)
        names = [f"{column} = {value}" for value in frequent]
        if len(distinct) > len(frequent):
            used = f"the {len(frequent)} most frequent of {len(distinct)} values are used"
            report.notes.append(f"{column}: {used}; the others count as unknown")
    if len(np.unique(codes[codes >= 0])) < 2:
        raise InputError(argument, f"{spec!r} leaves fewer than two groups of nodes")
    return _Selection(column, codes, names)

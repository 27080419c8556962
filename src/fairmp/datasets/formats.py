"""Parse the raw files of a benchmark graph: node and edge tables, NumPy files, Matlab files."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow

from fairmp.datasets.cache import Arrays, narrow
from fairmp.datasets.columns import LoadReport, counted
from fairmp.datasets.edges import check_ids, positions, undirected
from fairmp.datasets.raw import open_raw
from fairmp.datasets.readers import TableReader
from fairmp.datasets.sources import Source
from fairmp.errors import InputError

Paths = Mapping[str, Path]
Names = dict[str, list[str]]

FACEBOOK_COLUMNS = ("status", "gender", "major", "minor", "dorm", "year", "high_school")
MIN_CATEGORY_COUNT = 10  # nodes a category needs to become a feature of Facebook100
MAX_GROUPS = 5  # most frequent values of a Facebook100 column that become classes or groups

_MIN_DIGIT_COLUMNS = 32
_COMMA, _NEWLINE, _RETURN, _ZERO = 44, 10, 13, 48
_BLOCK_ROWS = 2048


class Raw(NamedTuple):
    """The raw files of a benchmark graph; ``partial`` drops broken rows instead of refusing."""

    source: Source
    paths: Paths
    partial: bool
    report: LoadReport


def parse(source: Source, paths: Paths, partial: bool, report: LoadReport) -> tuple[Arrays, Names]:
    """Read ``x``, ``edge_index``, ``y`` and ``sens``, and feature, class and group names."""
    read = {"tables": _tables, "numpy": _numpy, "matlab": _matlab}[source.layout]
    arrays, names = read(Raw(source, paths, partial, report))
    return dict(zip(("x", "edge_index", "y", "sens"), arrays, strict=True)), names


def _tables(raw: Raw) -> tuple[list[np.ndarray], Names]:
    source, title = raw.source, raw.source.title
    with ThreadPoolExecutor(1) as pool:
        if "edges" in raw.paths:
            pending = pool.submit(read_raw, raw, "edges", ["source", "target"])
        table, x, features = _node_table(raw)
    count = raw.report.nodes = table.num_rows
    ids = table[source.id_column] if source.id_column else pa.array(np.arange(count))
    check_ids(ids, f"{title}: {raw.paths['nodes'].name}")
    if source.similarity:
        group = _matrix(table.select([source.sensitive]), title)
        ends = list(similar_nodes(np.concatenate([x, group], axis=1), source.similarity))
    else:
        try:
            columns = (column.cast(pa.int64()) for column in pending.result().columns[:2])
            ends = positions(ids, *columns)
        except pa.ArrowInvalid:
            value = f"{raw.paths['edges'].name} has node ids that are not integers"
            raise InputError(title, value) from None
    y = _codes(table[source.label], source.label_values, title)
    sens = _codes(table[source.sensitive], source.group_values, title)
    edge_index = undirected(ends[0], ends[1], count, raw.report)
    return [x, edge_index, y, sens], _names(source, features, y, sens)


def similar_nodes(x: np.ndarray, threshold: float) -> np.ndarray:
    """Pairs of nodes more similar than a share of what one of them and its nearest node are."""
    from scipy.spatial import KDTree

    tree = KDTree(x.astype(np.float64))
    nearest = tree.query(tree.data, k=2)[0][:, 1]
    least = threshold * (1 / (1 + nearest))
    found = tree.query_ball_point(tree.data, 1 / least - 1 + 1e-6, workers=-1)
    ends = np.repeat(np.arange(len(x)), [len(nodes) for nodes in found]), np.concatenate([*found])
    distance = np.linalg.norm(tree.data[ends[0]] - tree.data[ends[1]], axis=1)
    kept = (1 / (1 + distance) > least[ends[0]]) & (ends[0] != ends[1])
    return np.unique(np.sort(np.stack(ends)[:, kept], axis=0), axis=1)


def _names(source: Source, features: list[str], y: np.ndarray, sens: np.ndarray) -> Names:
    groups = [f"{source.sensitive} = {k}" for k in range(int(sens.max()) + 1)]
    return {
        "feature_names": features,
        "class_names": [str(k) for k in range(int(y.max()) + 1)],
        "group_names": list(source.group_values) or groups,
    }


def _node_table(raw: Raw) -> tuple[Any, np.ndarray, list[str]]:
    """Read the node table: a table with the other columns, the features, and their names."""
    source, title, path = raw.source, raw.source.title, raw.paths["nodes"]
    reader = TableReader(path, title)
    columns = reader.stored_names
    other = [source.label, source.sensitive, *source.drop]
    other += [source.id_column] if source.id_column else []
    for column in other:
        if column not in columns:
            raise InputError(title, f"{path.name} has no column {column!r}", "it is another file")
    last = max(columns.index(column) for column in other)
    commas = reader.dialect is not None and reader.dialect.separator == ","
    tail = digit_tail(path, len(columns) - 1 - last) if commas else None
    table = _parse_rows(tail[0], columns[: -tail[1].shape[1]]) if tail else None
    digits = [tail[1]] if tail and table else []
    table = table or read_raw(raw, "nodes")
    x = np.concatenate([narrow(_matrix(table.drop_columns(other), title)), *digits], axis=1)
    return table, x, [name for name in columns if name not in other]


def digit_tail(path: Path, limit: int) -> tuple[bytes, np.ndarray] | None:
    """Cut at most ``limit`` columns of one-digit cells off the ends of all rows.

    They lie at the same distance from the end of every line and are copied as one block, which
    reads Pokec-z in 0.55 s instead of 1.3 s. Returns the rest, as lines, and the digits (n×k).
    """
    raw = np.memmap(path, dtype=np.uint8, mode="r")
    ends = np.flatnonzero(raw == _NEWLINE)
    if len(ends) and ends[-1] != len(raw) - 1:
        ends = np.append(ends, len(raw))
    if len(ends) < 2:
        return None
    starts, ends = ends[:-1] + 1, ends[1:] - (raw[ends[1:] - 1] == _RETURN)
    first = raw[starts[0] : ends[0]].tobytes()
    count = min(limit, (len(first) - len(re.sub(rb"(,[0-9])+$", b"", first))) // 2)
    width = 2 * count
    if count < _MIN_DIGIT_COLUMNS or (ends - starts <= width).any():
        return None
    digits = np.empty((len(ends), count), dtype=np.uint8)
    windows = np.lib.stride_tricks.sliding_window_view(raw, width)
    for k in range(0, len(ends), _BLOCK_ROWS):
        # Two bytes per cell, a comma and a digit: XOR with ",0" leaves the digit alone.
        cells = windows[ends[k : k + _BLOCK_ROWS] - width].view("<u2") ^ (_COMMA | _ZERO << 8)
        if np.bitwise_or.reduce(cells, axis=None) & 0xFF or cells.max() > 9 << 8:
            return None
        digits[k : k + _BLOCK_ROWS] = cells >> 8
    # Each row from its start to its digits, where a comma becomes the newline.
    lengths = ends - width - starts + 1
    after = np.cumsum(lengths)
    text = raw[np.arange(after[-1]) + np.repeat(starts - (after - lengths), lengths)]
    text[after - 1] = _NEWLINE
    return text.tobytes(), digits


def _parse_rows(lines: bytes, names: list[str]) -> Any | None:
    """Parse what the digit reader leaves; None if it is odd, for the full parser to report."""
    try:
        table = arrow.read_csv(pa.BufferReader(lines), arrow.ReadOptions(column_names=names))
    except pa.ArrowInvalid:
        return None
    complete = lines.count(b"\n") == table.num_rows
    return table if complete and not any(c.null_count for c in table.columns) else None


def read_raw(raw: Raw, file: str, names: Sequence[str] = ()) -> Any:
    """Read a raw table; published files have no empty cell, so that one means a cut-off file."""
    path, title, notes = raw.paths[file], raw.source.title, raw.report.notes
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
        hint = "the file is cut off or broken there (partial=True drops such lines)"
        raise InputError(title, value, hint)
    dropped = counted(int((~complete).sum()), "row")
    notes.append(f"{path.name}: {dropped} with an empty cell, dropped")
    return table.filter(complete)


def _matrix(table: Any, title: str) -> np.ndarray:
    for field in table.schema:
        if str(field.type) in ("string", "binary"):
            raise InputError(title, f"column {field.name!r} has text where numbers are expected")
    x = np.empty((table.num_rows, table.num_columns), dtype=np.float32)
    for k, column in enumerate(table.columns):
        x[:, k] = column.to_numpy()
    return x


def _codes(column: Any, values: Mapping[Any, int], title: str) -> np.ndarray:
    """Return a column as integers, mapped through ``values`` if given; negative ones become −1."""
    if not values:
        return np.maximum(column.to_numpy().astype(np.int64), -1)
    found = column.to_pylist()
    for value in set(found) - set(values):
        raise InputError(title, f"{value!r} is not one of {', '.join(map(str, values))}")
    return np.array([values[value] for value in found])


def _numpy(raw: Raw) -> tuple[list[np.ndarray], Names]:
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
    x = [_matrix(table.select(["gender", "AGE"]), title), _matrix(public, title)]
    edge_index = undirected(rows, columns, count, raw.report)
    arrays = [np.concatenate(x, axis=1), edge_index, y, sens]
    return arrays, _names(raw.source, ["gender", "AGE", "public"], y, sens)


def _matlab(raw: Raw) -> tuple[list[np.ndarray], Names]:
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
    label, y, classes = _select("label", source.label, info, report)
    sensitive, sens, groups = _select("sensitive", source.sensitive, info, report)
    if label == sensitive:
        raise InputError("sensitive", f"{label!r} is the label too", "choose another column")
    blocks, features = [], []
    for k, column in enumerate(FACEBOOK_COLUMNS):
        if column not in (label, sensitive):
            values, counts = np.unique(info[:, k], return_counts=True)
            values = values[(values != 0) & (counts >= MIN_CATEGORY_COUNT)]
            blocks.append(info[:, k, None] == values)
            features += [f"{column}={value}" for value in values]
    x = np.concatenate(blocks, axis=1).astype(np.uint8)
    edge_index = undirected(adjacency.row, adjacency.col, len(info), report)
    names = {"feature_names": features, "class_names": classes, "group_names": groups}
    return [x, edge_index, y, sens], names


def _select(
    argument: str, spec: str, info: np.ndarray, report: LoadReport
) -> tuple[str, np.ndarray, list[str]]:
    """Read ``column`` or ``column>=value`` as codes (−1: unknown) and the names of the codes."""
    match = re.fullmatch(r"\s*(\w+)\s*(?:>=\s*(\d+)\s*)?", spec)
    if not match or match[1] not in FACEBOOK_COLUMNS:
        hint = f"give one of {', '.join(FACEBOOK_COLUMNS)}, or a threshold such as 'year>=2007'"
        raise InputError(argument, f"{spec!r} is not a column", hint)
    column, known = match[1], info[:, FACEBOOK_COLUMNS.index(match[1])]
    if match[2]:
        codes = np.where(known == 0, -1, known >= int(match[2]))
        names = [f"{column} < {match[2]}", f"{column} ≥ {match[2]}"]
    else:
        values, counts = np.unique(known[known != 0], return_counts=True)
        chosen = np.sort(values[np.argsort(-counts, kind="stable")[:MAX_GROUPS]])
        codes = np.where(np.isin(known, chosen), np.searchsorted(chosen, known), -1)
        names = [f"{column} = {value}" for value in chosen]
        if len(values) > len(chosen):
            used = f"the {len(chosen)} most frequent of {len(values)} values are used"
            report.notes.append(f"{column}: {used}; the others count as unknown")
    if len(np.unique(codes[codes >= 0])) < 2:
        raise InputError(argument, f"{spec!r} leaves fewer than two groups of nodes")
    return column, codes, names

"""Parse the raw files of a benchmark graph: node and edge tables, NumPy files, Matlab files."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from fairmp.datasets.cache import Arrays, narrow
from fairmp.datasets.digits import digit_tail
from fairmp.datasets.edges import LoadReport, check_ids, counted, positions, undirected
from fairmp.datasets.raw import open_raw
from fairmp.datasets.readers import layout_of, read_text
from fairmp.datasets.sources import Source
from fairmp.errors import InputError

Paths = Mapping[str, Path]
Names = dict[str, list[str]]

FACEBOOK_COLUMNS = ("status", "gender", "major", "minor", "dorm", "year", "high_school")
MIN_CATEGORY_COUNT = 10
"""Nodes a category needs to become a feature of Facebook100."""
MAX_GROUPS = 5
"""Most frequent values of a Facebook100 column that become classes or groups."""


def parse(source: Source, paths: Paths, partial: bool, report: LoadReport) -> tuple[Arrays, Names]:
    """Read ``x``, ``edge_index``, ``y`` and ``sens``, and feature, class and group names."""
    read = {"tables": _tables, "numpy": _numpy, "matlab": _matlab}[source.layout]
    return read(source, paths, partial, report)


def _tables(
    source: Source, paths: Paths, partial: bool, report: LoadReport
) -> tuple[Arrays, Names]:
    import pyarrow as pa

    title = source.title
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(
            read_raw, paths["edges"], title, partial, report, ["source", "target"]
        )
        table, x, features = _node_table(source, paths["nodes"], partial, report)
        edges = pending.result()
    report.nodes = table.num_rows
    ids = table[source.id_column] if source.id_column else pa.array(np.arange(table.num_rows))
    check_ids(ids, f"{title}: {paths['nodes'].name}")
    try:
        ends = [edges.column(k).cast(pa.int64()) for k in range(2)]
    except pa.ArrowInvalid:
        raise InputError(
            title, f"{paths['edges'].name} has node ids that are not integers"
        ) from None
    y = _codes(table[source.label], source.label_values, title)
    sens = _codes(table[source.sensitive], source.group_values, title)
    first, second = positions(ids, *ends)
    edge_index = undirected(first, second, table.num_rows, report)
    arrays = {"x": x, "edge_index": edge_index, "y": y, "sens": sens}
    return arrays, _names(source, features, y, sens)


def _names(source: Source, features: list[str], y: np.ndarray, sens: np.ndarray) -> Names:
    groups = [f"{source.sensitive} = {k}" for k in range(int(sens.max()) + 1)]
    return {
        "feature_names": features,
        "class_names": [str(k) for k in range(int(y.max()) + 1)],
        "group_names": list(source.group_values) or groups,
    }


def _node_table(
    source: Source, path: Path, partial: bool, report: LoadReport
) -> tuple[Any, np.ndarray, list[str]]:
    """Read the node table: a table with the other columns, the features, and their names."""
    title = source.title
    layout = layout_of(path, title)
    columns = list(layout.first)
    other = [source.label, source.sensitive, *source.drop]
    other += [source.id_column] if source.id_column else []
    for column in other:
        if column not in columns:
            raise InputError(title, f"{path.name} has no column {column!r}", "it is another file")
    last = max(columns.index(column) for column in other)
    tail = digit_tail(path, len(columns) - 1 - last) if layout.separator == "," else None
    table = _parse_rows(tail[0], columns[: -tail[1].shape[1]]) if tail else None
    digits = [tail[1]] if tail and table else []
    if table is None:
        table = read_raw(path, title, partial, report)
    x = np.concatenate([narrow(_matrix(table.drop_columns(other), title)), *digits], axis=1)
    return table, x, [name for name in columns if name not in other]


def _parse_rows(lines: bytes, names: list[str]) -> Any | None:
    """Parse what the digit reader leaves; None if it is odd, for the full parser to report."""
    import pyarrow as pa
    import pyarrow.csv as arrow

    try:
        table = arrow.read_csv(pa.BufferReader(lines), arrow.ReadOptions(column_names=names))
    except pa.ArrowInvalid:
        return None
    complete = lines.count(b"\n") == table.num_rows
    return table if complete and not any(c.null_count for c in table.columns) else None


def read_raw(
    path: Path, title: str, partial: bool, report: LoadReport, names: list[str] | None = None
) -> Any:
    """Read a raw table; published files have no empty cell, so that one means a cut-off file."""
    import pyarrow.compute as pc

    layout = layout_of(path, title)
    table = read_text(path, title, layout, names=names, partial=partial, notes=report.notes)
    complete = np.ones(table.num_rows, dtype=bool)
    for column in table.columns:
        if column.null_count:
            complete &= pc.is_valid(column).to_numpy()
    if complete.all():
        return table
    if not partial:
        line = int(np.argmin(complete)) + (2 if names is None else 1)
        raise InputError(
            title,
            f"{path.name} line {line:,} has an empty cell",
            "the file is cut off or broken there (partial=True drops such lines)",
        )
    dropped = counted(int((~complete).sum()), "row")
    report.notes.append(f"{path.name}: {dropped} with an empty cell, dropped")
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
    for value in found:
        if value not in values:
            raise InputError(title, f"{value!r} is not one of {', '.join(map(str, values))}")
    return np.array([values[value] for value in found])


def _numpy(source: Source, paths: Paths, partial: bool, report: LoadReport) -> tuple[Arrays, Names]:
    title = source.title
    table = read_raw(paths["attributes"], title, partial, report)
    public = read_raw(paths["public"], title, partial, report)
    try:
        with open_raw(paths["edges"]) as file, np.load(file, allow_pickle=False) as matrix:
            starts, columns = matrix["indptr"], matrix["indices"]
        with open_raw(paths["labels"]) as file:
            labels = np.load(file, allow_pickle=False)
        with open_raw(paths["sens"]) as file:
            sens = np.load(file, allow_pickle=False).reshape(-1).astype(np.int64)
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise InputError(title, f"cannot read the NumPy files ({error})") from None
    count = report.nodes = len(starts) - 1
    sizes = (count, len(sens), table.num_rows, public.num_rows)
    if len(set(sizes)) > 1 or labels[:, 0].max(initial=0) >= count:
        listed = ", ".join(f"{size:,}" for size in sizes)
        raise InputError(title, f"the files have {listed} nodes", "they do not belong together")
    y = np.full(count, -1, dtype=np.int64)
    y[labels[:, 0]] = labels[:, 1]
    rows = np.repeat(np.arange(count), np.diff(starts))
    x = [_matrix(table.select(["gender", "AGE"]), title), _matrix(public, title)]
    arrays = {
        "x": np.concatenate(x, axis=1),
        "edge_index": undirected(rows, columns, count, report),
        "y": y,
        "sens": sens,
    }
    return arrays, _names(source, ["gender", "AGE", "public"], y, sens)


def _matlab(
    source: Source, paths: Paths, partial: bool, report: LoadReport
) -> tuple[Arrays, Names]:
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        with open_raw(paths["graph"]) as file:
            content = loadmat(file, variable_names=["A", "local_info"])
        adjacency, info = content["A"].tocoo(), content["local_info"].astype(np.int64)
    except (OSError, EOFError, ValueError, TypeError, KeyError, MatReadError) as error:
        name = paths["graph"].name
        raise InputError(source.title, f"cannot read {name} ({error})", "fetch it again") from None
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
    arrays = {
        "x": np.concatenate(blocks, axis=1).astype(np.uint8),
        "edge_index": undirected(adjacency.row, adjacency.col, len(info), report),
        "y": y,
        "sens": sens,
    }
    return arrays, {"feature_names": features, "class_names": classes, "group_names": groups}


def _select(
    argument: str, spec: str, info: np.ndarray, report: LoadReport
) -> tuple[str, np.ndarray, list[str]]:
    """Read ``column`` or ``column>=value`` as codes (−1: unknown) and the names of the codes."""
    match = re.fullmatch(r"\s*(\w+)\s*(?:>=\s*(\d+)\s*)?", spec)
    if not match or match[1] not in FACEBOOK_COLUMNS:
        raise InputError(
            argument,
            f"{spec!r} is not a column",
            f"give one of {', '.join(FACEBOOK_COLUMNS)}, or a threshold such as 'year>=2007'",
        )
    column, known = match[1], info[:, FACEBOOK_COLUMNS.index(match[1])]
    if match[2]:
        codes = np.where(known == 0, -1, known >= int(match[2]))
        names = [f"{column} < {match[2]}", f"{column} ≥ {match[2]}"]
    else:
        values, counts = np.unique(known[known != 0], return_counts=True)
        chosen = np.sort(values[np.argsort(-counts, kind="stable")[:MAX_GROUPS]])
        codes = np.full(len(known), -1)
        for code, value in enumerate(chosen):
            codes[known == value] = code
        names = [f"{column} = {value}" for value in chosen]
        if len(values) > len(chosen):
            report.notes.append(
                f"{column}: the {len(chosen)} most frequent of {len(values)} values are used; "
                "the others count as unknown"
            )
    if len(np.unique(codes[codes >= 0])) < 2:
        raise InputError(argument, f"{spec!r} leaves fewer than two groups of nodes")
    return column, codes, names

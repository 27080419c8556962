"""Your own graph: a node table and an edge table, as files or DataFrames."""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
import torch
from torch_geometric.data import Data

from fairmp.datasets.columns import BinsGiven, Scale, check_scale, encode_features
from fairmp.datasets.edges import LoadReport, check_ids, comparable, positions, undirected
from fairmp.datasets.readers import (
    MISSING,
    kind_of,
    layout_of,
    read_parquet,
    read_text,
    separator_note,
)
from fairmp.datasets.splits import with_split
from fairmp.datasets.targets import encode_groups, encode_label
from fairmp.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    Table = str | os.PathLike[str] | pd.DataFrame


def from_tables(
    nodes: Table,
    edges: Table,
    *,
    id: str | None,
    label: str,
    sensitive: str | Sequence[str],
    features: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    categorical: Sequence[str] = (),
    source: str | None = None,
    target: str | None = None,
    sensitive_bins: BinsGiven = None,
    sens_in_features: bool = False,
    max_categories: int = 20,
    scale: Scale = "standard",
    positive: Any = None,
    unknown: Sequence[Any] | None = None,
    seed: int = 0,
    name: str | None = None,
) -> Data:
    """Build a graph from a table of nodes and a table of edges.

    Tables are pandas DataFrames or paths to CSV, TSV or other separated text in UTF-8 (gzipped or
    not; the separator is found out) or Parquet. What was dropped, filled and guessed is told by
    ``data.report``.

    Args:
        nodes: One row a node.
        edges: One row an edge, by node id. Direction is ignored; repeated rows, self-loops and
            rows with an id that ``nodes`` lacks are dropped and counted. Without a header line
            the first line is an edge too.
        id: The column of ``nodes`` with the ids; None takes the row number, from 0.
        label: The column with the classes, any number of them; missing is −1.
        sensitive: The column with the groups; several are crossed, ``"f × north"``; missing is −1.
        features: The columns to learn from; by default all others. See
            :func:`~fairmp.datasets.columns.encode_features` for how each becomes numbers.
        drop: Columns to leave out.
        categorical: Columns of numbers to treat as categories, such as postcodes.
        source: The column of ``edges`` with one end; by default the first.
        target: The column with the other end; by default the second.
        sensitive_bins: How to cut a sensitive column of numbers, such as age: a number of groups
            of about equal size, or the cut points, or ``{column: bins}``.
        sens_in_features: Whether the sensitive columns are features too.
        max_categories: The most columns one column of text becomes, beside "other" and "missing".
        scale: ``"standard"`` (the default: mean 0 and variance 1, so that columns in euros and in
            years weigh alike when they are averaged over neighbours), ``"minmax"`` or ``"none"``;
            columns of 0 and 1 are left alone.
        positive: The label value that counts as class 1, all others as 0.
        unknown: Values of label and sensitive columns that mean "not known"; by default −1 where
            at least two values from 0 up stand beside it.
        seed: The seed of the split into training, validation and test nodes.
        name: The graph's name; by default the node file's.

    Raises:
        InputError: With one line that says what is wrong and what to do.

    Example:
        >>> import pandas as pd
        >>> people = pd.DataFrame({
        ...     "who": list("abcdefghijkl"),
        ...     "hired": ["yes", "no"] * 6,
        ...     "sex": ["f", "f", "m"] * 4,
        ...     "age": range(20, 32),
        ... })
        >>> friends = pd.DataFrame({"from": list("abcda"), "to": list("bcdax")})
        >>> data = from_tables(people, friends, id="who", label="hired", sensitive="sex")
        >>> data.feature_names, data.class_names, data.group_names
        (['age'], ['no', 'yes'], ['f', 'm'])
        >>> print(data.report)
        12 nodes, 4 undirected edges from 5 edge rows
        1 dangling edge row dropped: an end is not in the node table
    """
    check_scale(scale)
    report = LoadReport()
    groups = [sensitive] if isinstance(sensitive, str) else list(sensitive)
    if not groups:
        raise InputError("sensitive: no column is named; give one or more")
    table = _node_table(nodes, id, report)
    columns = [str(column) for column in table.columns]
    used = [("label", label), *(("sensitive", group) for group in groups)]
    for argument, column in [*(() if id is None else [("id", id)]), *used]:
        _require(argument, column, columns, "the node table")
    for argument, several in (("drop", drop), ("features", features), ("categorical", categorical)):
        for column in several or ():
            _require(argument, column, columns, "the node table")

    ids = _ids(table, id)
    ends = _edge_ends(edges, ids, source, target, report)
    report.nodes = len(table)
    edge_index = undirected(*ends, len(table), report)

    y, class_names = encode_label(table[label], positive=positive, unknown=unknown, report=report)
    sens, group_names = encode_groups(
        table[groups], bins=sensitive_bins, unknown=unknown, report=report
    )
    own = {label, *(() if id is None else (id,)), *(() if sens_in_features else groups)}
    chosen = columns if features is None else list(features)
    chosen = [c for c in chosen if c not in own and c not in set(drop)]
    if sens_in_features and features is not None:
        chosen += [group for group in groups if group not in chosen]
    x, feature_names = encode_features(
        table[chosen],
        categorical=categorical,
        max_categories=max_categories,
        scale=scale,
        report=report,
    )
    if not feature_names:
        degree = np.bincount(edge_index[0], minlength=len(table))
        x, feature_names = np.log1p(degree).astype(np.float32)[:, None], ["log(1 + degree)"]
        report.notes.append("no feature column is left: the only feature is log(1 + degree)")
    data = assemble(x, edge_index, y, sens, report)
    data.feature_names, data.class_names, data.group_names = feature_names, class_names, group_names
    data.name = name or (Path(nodes).name.split(".")[0] if _is_path(nodes) else "table")
    return with_split(data, seed=seed)


def assemble(
    x: np.ndarray, edge_index: np.ndarray, y: np.ndarray, sens: np.ndarray, report: LoadReport
) -> Data:
    """Put arrays together as the one shape of graph, with its report."""
    data = Data(
        x=torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32)),
        edge_index=torch.from_numpy(np.ascontiguousarray(edge_index, dtype=np.int64)),
        y=torch.from_numpy(np.ascontiguousarray(y, dtype=np.int64)),
        sens=torch.from_numpy(np.ascontiguousarray(sens, dtype=np.int64)),
    )
    # Beside the graph's own store, so that a report is neither printed with the graph nor sent
    # to a device with it; copies of the graph keep it.
    data.__dict__["report"] = report
    return data


def _is_path(table: Any) -> TypeGuard[str | os.PathLike[str]]:
    return isinstance(table, str | os.PathLike)


def _node_table(nodes: Table, id: str | None, report: LoadReport) -> pd.DataFrame:
    if not _is_path(nodes):
        frame = _frame(nodes, "nodes")
        if id is not None and id not in frame.columns and id == frame.index.name:
            frame = frame.reset_index()
        frame = frame.rename(columns=str)
    else:
        path = Path(nodes)
        frame = _read(path, "nodes", report, text_columns=() if id is None else (id,))
    if not len(frame):
        raise InputError("nodes: the table has a header and no rows; give one row a node")
    twice = frame.columns[frame.columns.duplicated()]
    if len(twice):
        raise InputError(f"nodes: two columns are named {twice[0]!r}; rename one")
    return frame


def _frame(table: Any, argument: str) -> pd.DataFrame:
    import pandas as pd

    if not isinstance(table, pd.DataFrame):
        raise InputError(
            f"{argument}: a {type(table).__name__} is no table; give a path or a pandas DataFrame"
        )
    return table


def _read(
    path: Path, argument: str, report: LoadReport, text_columns: Sequence[str]
) -> pd.DataFrame:
    if kind_of(path, argument) == "parquet":
        table = read_parquet(path, argument)
    else:
        layout = layout_of(path, argument)
        note = separator_note(path, layout)
        if note:
            report.notes.append(note)
        known = [cell for cell in layout.first if cell.strip() in text_columns]
        table = read_text(path, argument, layout, text_columns=known, notes=report.notes)
        table = table.rename_columns([column.strip() for column in table.column_names])
    return _to_frame(table, path, argument, keep=text_columns)


def _to_frame(table: Any, path: Path, argument: str, keep: Sequence[str]) -> pd.DataFrame:
    """Make a DataFrame of a pyarrow table; blank and "NA" cells of text are missing values."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for k, column in enumerate(table.schema):
        if pa.types.is_binary(column.type):
            raise InputError(
                f"{argument}: column {column.name!r} of {path.name} is not UTF-8 text; save the"
                " file as UTF-8, or read it yourself and pass a DataFrame"
            )
        if not pa.types.is_string(column.type):
            continue
        cells = pc.utf8_trim_whitespace(table.column(k))
        if column.name not in keep:
            gone = pc.is_in(cells, value_set=pa.array(MISSING))
            cells = pc.if_else(gone, pa.scalar(None, pa.string()), cells)
        table = table.set_column(k, column.name, cells)
    frame: pd.DataFrame = table.to_pandas(date_as_object=False)
    return frame


def _require(argument: str, column: str, columns: Sequence[str], where: str) -> None:
    if column in columns:
        return
    close = difflib.get_close_matches(str(column), columns, n=1, cutoff=0.5)
    folded = [name for name in columns if name.casefold() == str(column).casefold()]
    best = (folded or close)[:1]
    hint = f", did you mean {best[0]!r}?" if best else ""
    shown = ", ".join(columns[:30]) + (
        f" and {len(columns) - 30} more" if len(columns) > 30 else ""
    )
    raise InputError(f"{argument}: {where} has no column {column!r}{hint}; there are {shown}")


def _ids(table: pd.DataFrame, id: str | None) -> Any:
    import pyarrow as pa

    if id is None:
        return pa.array(np.arange(len(table)))
    ids = _column(table[id])
    check_ids(ids, f"id: column {id!r}")
    return ids


def _column(series: pd.Series) -> Any:
    """Make a pyarrow array of a column, text where it mixes types; blank text is missing."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        array = pa.array(series, from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        array = pa.array(series.astype(str).where(series.notna(), None), from_pandas=True)
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
        array = pc.if_else(pc.equal(array, ""), pa.scalar(None, array.type), array)
    return array


def _edge_ends(
    edges: Table, ids: Any, source: str | None, target: str | None, report: LoadReport
) -> tuple[np.ndarray, np.ndarray]:
    frame = _edge_table(edges, ids, source, target, report)
    columns = [str(column) for column in frame.columns]
    if len(columns) < 2:
        raise InputError(
            f"edges: the table has one column, {columns[0]!r}; give two, the ends of each edge"
        )
    names = [source or columns[0], target or columns[1]]
    for argument, name in zip(("source", "target"), names, strict=True):
        _require(argument, name, columns, "the edge table")
    if names[0] == names[1]:
        raise InputError(f"source: {names[0]!r} is the target too; name two columns")
    if not len(frame):
        raise InputError("edges: the table has a header and no rows; give one row an edge")
    rest = [column for column in columns if column not in names]
    if rest:
        report.notes.append(f"edge columns not used: {', '.join(rest)}")
    ends = [_column(frame[name]) for name in names]
    known, one, other = comparable(ids, *ends)
    check_ids(known, "id")
    found = positions(known, one, other)
    if not ((found[0] >= 0) & (found[1] >= 0)).any():
        raise InputError(
            f"edges: none of the {len(frame):,} rows joins two ids of the node table; an edge has"
            f" {one[0].as_py()!r} and {other[0].as_py()!r}, a node has {known[0].as_py()!r}"
        )
    return found[0], found[1]


def _edge_table(
    edges: Table, ids: Any, source: str | None, target: str | None, report: LoadReport
) -> pd.DataFrame:
    if not _is_path(edges):
        return _frame(edges, "edges").rename(columns=str)
    path = Path(edges)
    if kind_of(path, "edges") == "parquet":
        return _to_frame(read_parquet(path, "edges"), path, "edges", keep=())
    layout = layout_of(path, "edges")
    note = separator_note(path, layout)
    if note:
        report.notes.append(note)
    names = list(layout.first)
    wanted = [name for name in names if name.strip() in (source, target)] or names[:2]
    headless = source is None and target is None and _is_edge(layout.first, layout.second, ids)
    if headless:
        names = [f"column {k + 1}" for k in range(len(names))]
        wanted = names[:2]
        report.notes.append(f"{path.name}: has no header line")
    table = read_text(
        path,
        "edges",
        layout,
        names=names if headless else None,
        text_columns=wanted,
        notes=report.notes,
    )
    names = [name.strip() for name in table.column_names]
    table = table.rename_columns(names)
    return _to_frame(table, path, "edges", keep=names)


def _is_edge(first: Sequence[str], second: Sequence[str], ids: Any) -> bool:
    """Whether the first line is an edge and not a header: it holds ids, or nothing but numbers."""
    import pyarrow as pa

    if len(first) < 2:
        return False
    line = [pa.array([cell.strip()]) for cell in first[:2]]
    known, *ends = comparable(ids, *line)
    if all((place >= 0).all() for place in positions(known, *ends)):
        return True
    return all(_is_number(cell) for cell in (*first, *second))


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True

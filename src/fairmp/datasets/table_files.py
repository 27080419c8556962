"""Read a table of nodes and a table of edges, from files or DataFrames."""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from fairmp.datasets.edges import LoadReport, check_ids, comparable, positions
from fairmp.datasets.readers import (
    MISSING,
    kind_of,
    layout_of,
    read_parquet,
    read_text,
    separator_note,
)
from fairmp.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    Table = str | os.PathLike[str] | pd.DataFrame


def is_path(table: Any) -> TypeGuard[str | os.PathLike[str]]:
    """Whether a table is a file's name."""
    return isinstance(table, str | os.PathLike)


def node_table(nodes: Table, id: str | None, report: LoadReport) -> pd.DataFrame:
    """Read the node table, with its ids as text where they come from a file."""
    if not is_path(nodes):
        frame = _frame(nodes, "nodes")
        if id is not None and id not in frame.columns and id == frame.index.name:
            frame = frame.reset_index()
        frame = frame.rename(columns=str)
    else:
        path = Path(nodes)
        frame = _read(path, "nodes", report, text_columns=() if id is None else (id,))
    if not len(frame):
        raise InputError("nodes", "the table has a header and no rows", "give one row a node")
    twice = frame.columns[frame.columns.duplicated()]
    if len(twice):
        raise InputError("nodes", f"two columns are named {twice[0]!r}", "rename one")
    return frame


def _frame(table: Any, argument: str) -> pd.DataFrame:
    import pandas as pd

    if not isinstance(table, pd.DataFrame):
        raise InputError(
            argument, f"a {type(table).__name__} is no table", "give a path or a pandas DataFrame"
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
                argument,
                f"column {column.name!r} of {path.name} is not UTF-8 text",
                "save the file as UTF-8, or read it yourself and pass a DataFrame",
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


def require(argument: str, column: str, columns: Sequence[str], where: str) -> None:
    """Refuse a column that is not there, naming what is."""
    if column in columns:
        return
    close = difflib.get_close_matches(str(column), columns, n=1, cutoff=0.5)
    folded = [name for name in columns if name.casefold() == str(column).casefold()]
    best = (folded or close)[:1]
    hint = f", did you mean {best[0]!r}?" if best else ""
    shown = ", ".join(columns[:30]) + (
        f" and {len(columns) - 30} more" if len(columns) > 30 else ""
    )
    raise InputError(argument, f"{where} has no column {column!r}{hint}", f"there are {shown}")


def ids_of(table: pd.DataFrame, id: str | None) -> Any:
    """The nodes' ids as a pyarrow array; row numbers without a column."""
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


def edge_ends(
    edges: Table,
    ids: Any,
    source: str | None,
    target: str | None,
    report: LoadReport,
    *,
    alone: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """The two ends of each edge row as places among the ids; −1 where there is no such id.

    A table that joins no two ids is refused, or noted where nodes may be ``alone``.
    """
    frame = _edge_table(edges, ids, source, target, report)
    columns = [str(column) for column in frame.columns]
    if len(columns) < 2:
        raise InputError(
            "edges", f"the table has one column, {columns[0]!r}", "give two, the ends of each edge"
        )
    names = [source or columns[0], target or columns[1]]
    for argument, name in zip(("source", "target"), names, strict=True):
        require(argument, name, columns, "the edge table")
    if names[0] == names[1]:
        raise InputError("source", f"{names[0]!r} is the target too", "name two columns")
    if not len(frame):
        if not alone:
            raise InputError("edges", "the table has a header and no rows", "give one row an edge")
        report.notes.append("the edge table has no rows: no node has a tie")
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    rest = [column for column in columns if column not in names]
    if rest:
        report.notes.append(f"edge columns not used: {', '.join(rest)}")
    ends = [_column(frame[name]) for name in names]
    known, one, other = comparable(ids, *ends)
    check_ids(known, "id")
    found = positions(known, one, other)
    if not ((found[0] >= 0) & (found[1] >= 0)).any():
        message = (
            f"none of the {len(frame):,} rows joins two ids of the node table; an edge has"
            f" {one[0].as_py()!r} and {other[0].as_py()!r}, a node has {known[0].as_py()!r}"
        )
        if not alone:
            raise InputError("edges", f"{message}")
        report.notes.append(f"no node has a tie: of the edge table {message}")
    return found[0], found[1]


def _edge_table(
    edges: Table, ids: Any, source: str | None, target: str | None, report: LoadReport
) -> pd.DataFrame:
    if not is_path(edges):
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

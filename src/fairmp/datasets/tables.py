"""Your own graph: a node table and an edge table, as files or DataFrames."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import EllipsisType
from typing import TYPE_CHECKING, Any, get_args, overload

import numpy as np
import torch
from torch_geometric.data import Data

from fairmp.datasets.columns import BinsGiven, Scale, check_scale
from fairmp.datasets.edges import LoadReport, undirected
from fairmp.datasets.encoding import (
    DEGREE,
    Encoding,
    UnknownGroups,
    learn_label,
    learn_sensitive,
)
from fairmp.datasets.features import learn_features
from fairmp.datasets.splits import with_split
from fairmp.datasets.table_files import edge_ends, ids_of, is_path, node_table, require
from fairmp.datasets.targets import encode_groups, encode_label
from fairmp.errors import InputError

if TYPE_CHECKING:
    from fairmp.datasets.table_files import Table


@overload
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
) -> Data: ...


@overload
def from_tables(
    nodes: Table,
    edges: Table | None = None,
    *,
    encoding: Encoding,
    unknown_groups: UnknownGroups = "refuse",
    id: str | None = None,
    source: str | None = None,
    target: str | None = None,
    name: str | None = None,
) -> Data: ...


def from_tables(
    nodes: Table,
    edges: Table | None = None,
    *,
    id: str | EllipsisType | None = ...,
    label: str | None = None,
    sensitive: str | Sequence[str] | None = None,
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
    encoding: Encoding | None = None,
    unknown_groups: UnknownGroups = "refuse",
) -> Data:
    """Build a graph from a table of nodes and a table of edges.

    Tables are pandas DataFrames or paths to CSV, TSV or other separated text in UTF-8 (gzipped or
    not; the separator is found out) or Parquet. What was dropped, filled and guessed is told by
    ``data.report``.

    Args:
        nodes: One row a node.
        edges: One row an edge, by node id. Direction is ignored; repeated rows, self-loops and
            rows with an id that ``nodes`` lacks are dropped and counted. Without a header line
            the first line is an edge too. With an ``encoding`` it may be left out, be empty or join
            none of the nodes: they have no ties then, and the report says so.
        id: The column of ``nodes`` with the ids; None takes the row number, from 0.
        label: The column with the classes, any number of them; missing is −1.
        sensitive: The column with the groups; several are crossed, ``"f × north"``; missing is −1.
        features: The columns to learn from; by default all others. See
            :func:`~fairmp.datasets.features.encode_features` for how each becomes numbers.
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
        unknown: Values of label and sensitive columns, cut or not, that mean "not known"; by
            default −1 where it is the only number below 0 and at least two from 0 up stand beside
            it.
        seed: The seed of the split into training, validation and test nodes.
        name: The graph's name; by default the node file's.
        encoding: How an earlier table became a graph (its ``data.encoding``, or a classifier's
            ``encoding_``). These tables are then read in the same way, their columns found by name:
            a feature column that is gone is refused, one that is new is named in the report and not
            used, a category that is new is none of the known ones, and a label column is not
            needed. Only ``id``, ``source``, ``target``, ``name`` and ``unknown_groups`` may go with
            it, and there is no split.
        unknown_groups: With an encoding, ``"refuse"`` a group that was not there in training and a
            table without the sensitive column, or ``"allow"`` them: such groups are unknown (−1).

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
    if encoding is not None:
        given: dict[str, object] = {"label": label, "sensitive": sensitive, "features": features}
        given |= {"drop": drop or None, "categorical": categorical or None, "positive": positive}
        given |= {"sensitive_bins": sensitive_bins, "unknown": unknown}
        given |= {"sens_in_features": sens_in_features or None, "seed": seed or None}
        given |= {"max_categories": None if max_categories == 20 else max_categories}
        given |= {"scale": None if scale == "standard" else scale}
        for argument, value in given.items():
            if value is not None:
                known = "makes no split" if argument == "seed" else "knows it already"
                raise InputError(argument, f"goes without encoding, which {known}")
        own = encoding.id if id is ... or id is None else id
        ends = source or encoding.source, target or encoding.target
        return _read_by(encoding, nodes, edges, own, ends, unknown_groups, name)
    if id is ... or label is None or sensitive is None:
        absent = "id" if id is ... else "label" if label is None else "sensitive"
        raise InputError(absent, "missing", "name a column of the node table")
    if edges is None:
        raise InputError("edges", "missing", "give a table with one row an edge, by node id")
    check_scale(scale)
    report = LoadReport()
    groups = [sensitive] if isinstance(sensitive, str) else list(sensitive)
    if not groups:
        raise InputError("sensitive", "no column is named", "give one or more")
    table = node_table(nodes, id, report)
    columns = [str(column) for column in table.columns]
    used = [("label", label), *(("sensitive", group) for group in groups)]
    used = used if id is None else [("id", id), *used]
    for argument, column in used:
        require(argument, column, columns, "the node table")
    _check_roles(used)
    for argument, several in (("drop", drop), ("features", features), ("categorical", categorical)):
        for column in several or ():
            require(argument, column, columns, "the node table")

    ids = ids_of(table, id)
    edge_index = _edges(edges, ids, source, target, report)
    y, class_names = encode_label(table[label], positive=positive, unknown=unknown, report=report)
    sens, group_names = encode_groups(
        table[groups], bins=sensitive_bins, unknown=unknown, report=report
    )
    not_features = {label, *(() if id is None else (id,)), *(() if sens_in_features else groups)}
    chosen = columns if features is None else list(features)
    chosen = [c for c in chosen if c not in not_features and c not in set(drop)]
    if sens_in_features and features is not None:
        chosen += [group for group in groups if group not in chosen]
    x, learned = learn_features(
        table[chosen],
        categorical=categorical,
        max_categories=max_categories,
        scale=scale,
        report=report,
    )
    if not learned:
        report.notes.append(f"no feature column is left: the only feature is {DEGREE}")
    read = {column.name for column in learned}
    encoding = Encoding(
        id,
        source,
        target,
        learn_label(table[label], class_names, positive, unknown),
        learn_sensitive(table[groups], sensitive_bins, unknown),
        tuple(group_names),
        tuple(learned),
        tuple(column for column in columns if column not in read),
        degree=not learned,
    )
    data = _graph(x, edge_index, y, sens, report, encoding, ids)
    data.name = name or _name(nodes)
    return with_split(data, seed=seed)


def _check_roles(used: Sequence[tuple[str, str]]) -> None:
    """Refuse a column that is two things at once."""
    roles: dict[str, str] = {}
    for argument, column in used:
        if column in roles:
            raise InputError(
                argument, f"column {column!r} is the {roles[column]} column already", "name another"
            )
        roles[column] = argument


def _read_by(
    encoding: Encoding,
    nodes: Table,
    edges: Table | None,
    id: str | None,
    ends: tuple[str | None, str | None],
    unknown_groups: UnknownGroups,
    name: str | None,
) -> Data:
    """Build a graph from new tables as an earlier one was built."""
    if unknown_groups not in get_args(UnknownGroups):
        raise InputError(
            "unknown_groups", f"{unknown_groups!r} is not there", "give 'refuse' or 'allow'"
        )
    report = LoadReport()
    table = node_table(nodes, id, report)
    if id is not None:
        require("id", id, [str(column) for column in table.columns], "the node table")
    x = encoding.features(table.drop(columns=id) if id != encoding.id else table, report)
    sens = encoding.codes(table, report, unknown_groups)
    y = encoding.labels(table, report)
    ids = ids_of(table, id)
    edge_index = _edges(edges, ids, *ends, report, alone=True)
    data = _graph(x, edge_index, y, sens, report, encoding, ids)
    data.name = name or _name(nodes)
    return data


def _edges(
    edges: Table | None,
    ids: Any,
    source: str | None,
    target: str | None,
    report: LoadReport,
    *,
    alone: bool = False,
) -> np.ndarray:
    report.nodes = len(ids)
    if edges is None:
        report.notes.append("no edge table: no node has a tie")
        return np.empty((2, 0), dtype=np.int64)
    ends = edge_ends(edges, ids, source, target, report, alone=alone)
    return undirected(*ends, len(ids), report)


def _graph(
    x: np.ndarray,
    edge_index: np.ndarray,
    y: np.ndarray,
    sens: np.ndarray,
    report: LoadReport,
    encoding: Encoding,
    ids: Any,
) -> Data:
    if encoding.degree:
        x = np.log1p(np.bincount(edge_index[0], minlength=len(y)))[:, None]
    data = assemble(x, edge_index, y, sens, report)
    data.feature_names = encoding.feature_names
    data.class_names = list(encoding.label.classes)
    data.group_names = list(encoding.groups)
    data.__dict__["encoding"] = encoding
    data.__dict__["ids"] = ids
    return data


def _name(nodes: Table) -> str:
    return Path(nodes).name.split(".")[0] if is_path(nodes) else "table"


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

"""Your own graph: a node table and an edge table, as files or DataFrames."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import EllipsisType
from typing import Any, NamedTuple, get_args

import numpy as np
import pandas as pd
import scipy.sparse as sp
import torch
from torch_geometric.data import Data

from fairmp.datasets.columns import Column, Scale
from fairmp.datasets.edges import EdgeColumns, Edges, Table, node_ids, read_edges
from fairmp.datasets.encoding import (
    EncodedNodes,
    Encoding,
    Features,
    Roles,
    compact,
    fit_encoding,
    stack,
)
from fairmp.datasets.load_report import LoadReport
from fairmp.datasets.parquet_folders import base_folder
from fairmp.datasets.readers import TableReader
from fairmp.datasets.splits import with_split
from fairmp.datasets.targets import BinsGiven, UnknownGroups
from fairmp.datasets.values import (
    MAX_CATEGORIES,
    check_unique,
    require_column,
    without_missing_text,
)
from fairmp.errors import InputError, check_choice
from fairmp.frames import read_frame
from fairmp.graph import from_scipy


def from_tables(  # noqa: PLR0913
    nodes: Table,
    edges: Table | None = None,
    *,
    id: str | EllipsisType | None = ...,
    label: str | None = None,
    sensitive: str | Sequence[str] | None = None,
    features: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    categorical: Sequence[str] = (),
    edge_source: str | None = None,
    edge_target: str | None = None,
    sensitive_bins: BinsGiven = None,
    sens_in_features: bool = False,
    max_categories: int = MAX_CATEGORIES,
    scale: Scale = "standard",
    positive: Any = None,
    unknown: Sequence[Any] | None = None,
    weight: str | None = None,
    edge_weight: str | None = None,
    seed: int = 0,
    name: str | None = None,
    min_group: int = 0,
    encoding: Encoding | None = None,
    unknown_groups: UnknownGroups = "refuse",
) -> Data:
    """Build a graph from a node table and an edge table.

    Tables are those of pandas, polars or Arrow, lists of dicts, or paths to CSV, TSV or other
    separated text in UTF-8, JSON Lines (both gzipped or not), Parquet, or Arrow and Feather files.
    ``data.report`` lists what was detected, dropped and filled. Cells with the text of
    :data:`~fairmp.datasets.values.MISSING`, such as ``NA``, are missing values. Separators and
    the meaning of commas inside numbers are decided by the whole file, and a file that can be read
    in two ways is refused. Columns of a file without a header line are ``column 1``, ``column 2``…
    A large table whose features are mostly 0, such as a bag of words, gives a sparse ``data.x``.

    Args:
        nodes: One row per node.
        edges: One row per edge, by node id; the header line may be absent. Direction is ignored;
            repeated rows, self-loops and rows with an unknown id are dropped and counted; more
            than half of the rows with an unknown id are an error. Without a table no node has
            an edge, and nothing is propagated; with an ``encoding`` it may also be empty or join
            none of the nodes.
        id: Id column of ``nodes``; None takes the row number, from 0.
        label: Column with the classes, any number of them; missing is −1.
        sensitive: Column with the groups; several are crossed, ``"f × north"``; missing is −1.
        features: Feature columns; by default all others. See
            :func:`~fairmp.datasets.columns.fit_column` for how each is encoded.
        drop: Columns to leave out.
        categorical: Columns of numbers to treat as categories, such as postcodes, or a label with
            more than 20 different numbers.
        edge_source: Source column of ``edges``; by default the one called source, src or from, or
            else the first (after row numbers, as pandas writes them).
        edge_target: Target column of ``edges``; by default the one called target, dst or to, or
            else the second.
        sensitive_bins: How to cut a sensitive column of numbers, such as age: the number of groups
            of about equal size, or the cut points, or ``{column: bins}``.
        sens_in_features: Whether the sensitive columns are features too.
        max_categories: Largest number of one-hot features per column, beside "other" and "missing".
        scale: ``"standard"`` (mean 0 and variance 1, so that columns in euros and in years weigh
            alike), ``"minmax"`` or ``"none"``; columns of 0 and 1 are left alone, and columns that
            are mostly 0 keep their zeros in ``"standard"``: they are divided, not shifted.
        positive: The label value that is class 1; all others are class 0.
        unknown: Values of label and sensitive columns that mean "unknown"; by default −1 if it is
            the only negative number and there are at least two others. Groups such as "none" and
            "Unknown" are refused until this says whether they are groups.
        weight: Column of sample weights (``data.sample_weight``), 0 or more, for training, metrics
            and gaps.
        edge_weight: Column of ``edges`` with weights above 0 (``data.edge_weight``). Those of
            repeated rows add up; an edge given in both directions has their mean.
        min_group: Groups with fewer labelled nodes than this become one, "other".
        seed: Seed of the split into training, validation and test nodes.
        name: Name of the graph; by default that of the node file.
        encoding: Encoding of an earlier table (its ``data.encoding``, or a classifier's
            ``encoding_``), applied to these without a split. Columns are found by name: an absent
            feature column is refused, a new one is not used, and the label column is optional.
            It can be combined with ``id``, the columns of edges, ``name`` and ``unknown_groups``
            only.
        unknown_groups: With an encoding, ``"refuse"`` groups not seen in training and a table
            without the sensitive column, or ``"allow"`` them: such groups are unknown (−1).
            ``"ignore"`` is for predictions that read no group.

    Example:
        >>> import pandas as pd
        >>> people = pd.DataFrame({"who": list("abcdefghijkl"), "hired": ["yes", "no"] * 6})
        >>> people = people.assign(sex=["f", "f", "m"] * 4, age=range(20, 32))
        >>> friends = pd.DataFrame({"from": list("abcda"), "to": list("bcdax")})
        >>> data = from_tables(people, friends, id="who", label="hired", sensitive="sex")
        >>> data.feature_names, data.class_names, data.group_names
        (['age'], ['no', 'yes'], ['f', 'm'])
        >>> print(data.report)
        the positive class is 'yes' (hired), guessed; name another with 'positive'
        12 nodes, 4 undirected edges from 5 edge rows
        1 dangling edge row dropped: an end is not in the node table
    """
    roles = Roles(
        id=None if id is ... else id,
        label=label,
        sensitive=sensitive,
        features=features,
        drop=tuple(drop),
        categorical=tuple(categorical),
        edge_source=edge_source,
        edge_target=edge_target,
        sensitive_bins=sensitive_bins,
        sens_in_features=sens_in_features,
        max_categories=max_categories,
        scale=scale,
        positive=positive,
        unknown=unknown,
        weight=weight,
        edge_weight=edge_weight,
        min_group=min_group,
    )
    report = LoadReport()
    if encoding is None:
        if id is ...:
            raise InputError("id", "missing", "name a column of the node table")
        table, used = _fit_nodes(nodes, roles, report)
    else:
        if seed:
            raise InputError("seed", "cannot be combined with encoding, which makes no split")
        roles.check_unset()
        table = encode_nodes(nodes, encoding, report, id=roles.id, unknown_groups=unknown_groups)
        used = encoding
    undirected_edges = Edges(np.empty((2, 0), dtype=np.int64))
    if edges is None:
        report.notes.append("no edge table: no node has an edge")
    else:
        columns = EdgeColumns(
            edge_source or used.edge_source,
            edge_target or used.edge_target,
            edge_weight or used.edge_weight,
        )
        undirected_edges = read_edges(
            edges, table.ids, columns, report, isolated=encoding is not None
        )
    data = build_graph(table, undirected_edges, used, report)
    data.name = name or name_of(nodes)
    return data if encoding is not None else with_split(data, seed=seed)


class NodeTable(NamedTuple):
    """An encoded node table, its ids as a pyarrow array, and its sample weights if it has any."""

    arrays: EncodedNodes
    ids: Any
    weights: torch.Tensor | None


def _fit_nodes(nodes: Table, roles: Roles, report: LoadReport) -> tuple[NodeTable, Encoding]:
    """Read a node table, and learn the encoding of its columns."""
    targets = [name for name in (roles.label, *roles.groups) if name is not None]
    frame = _read_nodes(nodes, roles.id, report, roles.drop, targets, exact=targets)
    blocks: list[Any] = []

    def save(column: Column, codes: np.ndarray) -> None:
        blocks.append(compact(column.expand(codes)))

    encoding, y, sens = fit_encoding(list(frame.columns), frame.__getitem__, roles, report, save)
    arrays = EncodedNodes(stack(blocks, len(frame)), y, sens)
    table = NodeTable(arrays, node_ids(frame, roles.id, report), _weights(frame, encoding))
    return table, encoding


def encode_nodes(
    nodes: Table,
    encoding: Encoding,
    report: LoadReport,
    *,
    id: str | None = None,
    unknown_groups: UnknownGroups = "refuse",
) -> NodeTable:
    """Read a node table, and encode its columns as those of an earlier one."""
    check_choice("unknown_groups", unknown_groups, get_args(UnknownGroups))
    id = id or encoding.id
    features = [column.name for column in encoding.columns]
    frame = _read_nodes(
        nodes, id, report, encoding.ignored, features, categories=encoding.text_columns
    )
    columns = frame if id == encoding.id else frame.drop(columns=id)
    arrays = encoding.transform(columns, report, unknown_groups)
    return NodeTable(arrays, node_ids(frame, id, report), _weights(frame, encoding))


def build_graph(table: NodeTable, edges: Edges, encoding: Encoding, report: LoadReport) -> Data:
    """Make the graph of an encoded node table and its edges."""
    x, y, sens = table.arrays
    edge_index = edges.edge_index
    report.nodes = len(y)
    if encoding.degree:
        x = np.log1p(np.bincount(edge_index[0], minlength=len(y)))[:, None]
    data = assemble(x, edge_index, y, sens, report)
    data.feature_names = encoding.feature_names
    data.class_names, data.group_names = list(encoding.label.classes), list(encoding.groups)
    if edges.weight is not None:
        data.edge_weight = torch.from_numpy(edges.weight.astype(np.float32))
    if table.weights is not None:
        data.sample_weight = table.weights
    data.__dict__ |= {"encoding": encoding, "ids": table.ids}
    return data


def name_of(nodes: Table) -> str:
    """Name a graph after the file or folder of its node table."""
    if not isinstance(nodes, str | os.PathLike):
        return "table"
    return base_folder(Path(nodes)).name.split(".")[0]


def _read_nodes(
    nodes: Table,
    id: str | None,
    report: LoadReport,
    unused: Sequence[str],
    wanted: Sequence[str | None],
    *,
    exact: Sequence[str] = (),
    categories: Sequence[str] = (),
) -> pd.DataFrame:
    """Read the node table, with its ids as text where they come from a file.

    ``exact`` and ``categories`` are those of :meth:`TableReader.frame`.
    """
    if isinstance(nodes, str | os.PathLike):
        reader = TableReader(Path(nodes), "nodes", notes=report.notes)
        reader.find_header((id, *wanted))
        frame = reader.frame(
            text=() if id is None else (id,),
            categories=[name for name in categories if name != id],
            exact=[name for name in exact if name != id],
            unused=unused,
        )
    else:
        frame = read_frame(nodes, "nodes")
        if id is not None and id not in frame.columns and id == frame.index.name:
            frame = frame.reset_index()
        check_unique(list(frame.columns), "nodes")
        others = [name for name in frame.columns if name != id]
        frame = frame.assign(**{name: without_missing_text(frame[name]) for name in others})
    if not len(frame):
        raise InputError("nodes", "the table has a header and no rows", "give one row per node")
    if id is not None:
        require_column("id", id, list(frame.columns), "the node table")
    return frame


def _weights(frame: pd.DataFrame, encoding: Encoding) -> torch.Tensor | None:
    """Read the column of weights: numbers of 0 or more, some above."""
    if encoding.weight not in frame.columns:
        return None
    series = frame[encoding.weight]
    numbers = pd.to_numeric(series, errors="coerce").to_numpy(np.float64)
    wrong = np.flatnonzero(~(np.isfinite(numbers) & (numbers >= 0)))
    if len(wrong) or not numbers.any():
        first = f"'{series.iloc[wrong[0]]}' in row {wrong[0] + 1}" if len(wrong) else "only zeros"
        value = f"column {series.name!r} has {first}"
        raise InputError("weight", value, "give numbers of 0 or more, some above 0")
    return torch.tensor(numbers)


def assemble(
    x: Features, edge_index: np.ndarray, y: np.ndarray, sens: np.ndarray, report: LoadReport
) -> Data:
    """Make a graph from arrays, with the report on how they were read."""
    report.labelled_unknown_groups = int(((y >= 0) & (sens < 0)).sum())
    arrays = {"edge_index": edge_index, "y": y, "sens": sens}
    codes = {name: np.ascontiguousarray(array, np.int64) for name, array in arrays.items()}
    features = (
        from_scipy(x) if sp.issparse(x) else torch.from_numpy(np.ascontiguousarray(x, np.float32))
    )
    data = Data(features, **{name: torch.from_numpy(array) for name, array in codes.items()})
    # Outside the graph's store, so that the report is neither printed with the graph nor moved to
    # a device; copies of the graph keep it.
    data.__dict__["report"] = report
    return data

"""Your own graph: a node table and an edge table, as files or DataFrames."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import EllipsisType
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import torch
from torch_geometric.data import Data

from fairmp.datasets.columns import MAX_CATEGORIES, LoadReport, require_column, without_missing_text
from fairmp.datasets.edges import check_frame, edge_positions, is_path, node_ids, undirected
from fairmp.datasets.encoding import Encoding, Roles, fit_encoding, stack
from fairmp.datasets.readers import TableReader
from fairmp.datasets.splits import with_split
from fairmp.datasets.targets import UnknownGroups
from fairmp.errors import InputError, check_choice

if TYPE_CHECKING:
    import pandas as pd

    from fairmp.datasets.columns import BinsGiven, Column, Scale
    from fairmp.datasets.edges import Table


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
    max_categories: int = MAX_CATEGORIES,
    scale: Scale = "standard",
    positive: Any = None,
    unknown: Sequence[Any] | None = None,
    seed: int = 0,
    name: str | None = None,
    encoding: Encoding | None = None,
    unknown_groups: UnknownGroups = "refuse",
) -> Data:
    """Build a graph from a node table and an edge table.

    Tables are pandas DataFrames or paths to CSV, TSV or other separated text in UTF-8, JSON Lines
    (both gzipped or not), Parquet, or Arrow and Feather files. ``data.report`` lists what was
    detected, dropped and filled. Cells with the text of
    :data:`~fairmp.datasets.columns.MISSING`, such as ``NA``, are missing values. Separators and
    the meaning of commas inside numbers are decided by the whole file, and a file that can be read
    in two ways is refused. Columns of a file without a header line are ``column 1``, ``column 2``…

    Args:
        nodes: One row per node.
        edges: One row per edge, by node id; the header line may be absent. Direction is ignored;
            repeated rows, self-loops and rows with an unknown id are dropped and counted. With an
            ``encoding`` the table may be left out, be empty or join none of the nodes.
        id: Id column of ``nodes``; None takes the row number, from 0.
        label: Column with the classes, any number of them; missing is −1.
        sensitive: Column with the groups; several are crossed, ``"f × north"``; missing is −1.
        features: Feature columns; by default all others. See
            :func:`~fairmp.datasets.columns.fit_column` for how each is encoded.
        drop: Columns to leave out.
        categorical: Columns of numbers to treat as categories, such as postcodes, or a label with
            more than 20 different numbers.
        source: Source column of ``edges``; by default the first.
        target: Target column of ``edges``; by default the second.
        sensitive_bins: How to cut a sensitive column of numbers, such as age: the number of groups
            of about equal size, or the cut points, or ``{column: bins}``.
        sens_in_features: Whether the sensitive columns are features too.
        max_categories: Largest number of one-hot features per column, beside "other" and "missing".
        scale: ``"standard"`` (mean 0 and variance 1, so that columns in euros and in years weigh
            alike), ``"minmax"`` or ``"none"``; columns of 0 and 1 are left alone.
        positive: The label value that is class 1; all others are class 0.
        unknown: Values of label and sensitive columns that mean "unknown"; by default −1 if it is
            the only negative number and there are at least two others.
        seed: Seed of the split into training, validation and test nodes.
        name: Name of the graph; by default that of the node file.
        encoding: Encoding of an earlier table (its ``data.encoding``, or a classifier's
            ``encoding_``), applied to these without a split. Columns are found by name: an absent
            feature column is refused, a new one is not used, and the label column is optional.
            Only ``id``, ``source``, ``target``, ``name`` and ``unknown_groups`` may go with it.
        unknown_groups: With an encoding, ``"refuse"`` groups not seen in training and a table
            without the sensitive column, or ``"allow"`` them: such groups are unknown (−1).

    Example:
        >>> import pandas as pd
        >>> people = pd.DataFrame({"who": list("abcdefghijkl"), "hired": ["yes", "no"] * 6})
        >>> people = people.assign(sex=["f", "f", "m"] * 4, age=range(20, 32))
        >>> friends = pd.DataFrame({"from": list("abcda"), "to": list("bcdax")})
        >>> data = from_tables(people, friends, id="who", label="hired", sensitive="sex")
        >>> data.feature_names, data.class_names, data.group_names
        (['age'], ['no', 'yes'], ['f', 'm'])
        >>> print(data.report)
        12 nodes, 4 undirected edges from 5 edge rows
        1 dangling edge row dropped: an end is not in the node table
    """
    report = LoadReport()
    own = None if id is ... else id
    used_as = own, label, sensitive, features, tuple(drop), tuple(categorical), source, target
    how = sensitive_bins, sens_in_features, max_categories, scale, positive, unknown
    roles = Roles(*used_as, *how)
    if encoding is not None:
        roles.check_unset()
        if seed:
            raise InputError("seed", "goes without encoding, which makes no split")
        check_choice("unknown_groups", unknown_groups, get_args(UnknownGroups))
        own = own or encoding.id
        source, target = source or encoding.source, target or encoding.target
        wanted = [column.name for column in encoding.columns]
        table = _node_table(nodes, own, report, encoding.ignored, wanted)
        known = table if own == encoding.id else table.drop(columns=own)
        x, y, sens = encoding.transform(known, report, unknown_groups)
        used = encoding
    else:
        if id is ...:
            raise InputError("id", "missing", "name a column of the node table")
        if edges is None:
            raise InputError("edges", "missing", "give a table with one row per edge, by node id")
        table = _node_table(nodes, own, report, drop, (label, *roles.groups))
        blocks: list[np.ndarray] = []

        def save(column: Column, codes: np.ndarray) -> None:
            blocks.append(column.expand(codes))

        used, y, sens = fit_encoding(list(table.columns), table.__getitem__, roles, report, save)
        x = stack(blocks, len(table))
    ids = node_ids(table, own)
    report.nodes = len(ids)
    edge_index = np.empty((2, 0), dtype=np.int64)
    if edges is None:
        report.notes.append("no edge table: no node has an edge")
    else:
        isolated = encoding is not None
        ends = edge_positions(edges, ids, source, target, report, isolated=isolated)
        edge_index = undirected(*ends, len(ids), report)
    if used.degree:
        x = np.log1p(np.bincount(edge_index[0], minlength=len(y)))[:, None]
    data = assemble(x, edge_index, y, sens, report)
    data.feature_names = used.feature_names
    data.class_names, data.group_names = list(used.label.classes), list(used.groups)
    data.__dict__["encoding"], data.__dict__["ids"] = used, ids
    data.name = name or (Path(nodes).name.split(".")[0] if is_path(nodes) else "table")
    return data if encoding is not None else with_split(data, seed=seed)


def _node_table(
    nodes: Table, id: str | None, report: LoadReport, unused: Sequence[str], wanted: Sequence[Any]
) -> pd.DataFrame:
    """Read the node table, with its ids as text where they come from a file."""
    if is_path(nodes):
        reader = TableReader(Path(nodes), "nodes", notes=report.notes)
        reader.find_header((id, *wanted))
        reader.unique_names()
        frame = reader.frame(text=() if id is None else (id,), unused=unused)
    else:
        frame = check_frame(nodes, "nodes")
        if id is not None and id not in frame.columns and id == frame.index.name:
            frame = frame.reset_index()
        twice = frame.columns[frame.columns.duplicated()]
        if len(twice):
            raise InputError("nodes", f"two columns are named {twice[0]!r}", "rename one")
        text = {name: without_missing_text(frame[name]) for name in frame.columns if name != id}
        frame = frame.assign(**text)
    if not len(frame):
        raise InputError("nodes", "the table has a header and no rows", "give one row per node")
    if id is not None:
        require_column("id", id, list(frame.columns), "the node table")
    return frame


def assemble(
    x: np.ndarray, edge_index: np.ndarray, y: np.ndarray, sens: np.ndarray, report: LoadReport
) -> Data:
    """Make the graph of some arrays, with its report."""
    arrays = {"edge_index": edge_index, "y": y, "sens": sens}
    codes = {name: np.ascontiguousarray(array, np.int64) for name, array in arrays.items()}
    arrays = {"x": np.ascontiguousarray(x, np.float32), **codes}
    data = Data(**{name: torch.from_numpy(array) for name, array in arrays.items()})
    # Outside the graph's store, so that the report is neither printed with the graph nor moved to
    # a device; copies of the graph keep it.
    data.__dict__["report"] = report
    return data

"""Your own graph: a node table and an edge table, as files or DataFrames."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import EllipsisType
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import scipy.sparse as sp
import torch
from torch_geometric.data import Data

from fairmp.datasets.columns import (
    MAX_CATEGORIES,
    MAX_DENSITY,
    Column,
    LoadReport,
    Number,
    Scale,
    closest,
    counted,
    fit_column,
    require_column,
    without_missing_text,
)
from fairmp.datasets.edges import check_frame, edge_positions, node_ids, undirected
from fairmp.datasets.parquet_folders import base_folder
from fairmp.datasets.readers import TableReader, check_unique
from fairmp.datasets.splits import with_split
from fairmp.datasets.targets import GroupEncoder, Label, Sensitive, UnknownGroups
from fairmp.errors import InputError, check_choice, check_integer, conform, shortlist
from fairmp.graph import from_scipy

if TYPE_CHECKING:
    import pandas as pd

    from fairmp.datasets.columns import BinsGiven
    from fairmp.datasets.edges import Table


DEGREE = "log(1 + degree)"
MIN_SPARSE_ENTRIES, MIN_SPARSE_COLUMNS = 1 << 22, 256  # of a feature matrix that may be sparse


@dataclass(frozen=True)
class Roles:
    """What each column of a node table is, and how it is encoded; see ``from_tables``."""

    id: str | None = None
    label: str | None = None
    sensitive: str | Sequence[str] | None = None
    features: Sequence[str] | None = None
    drop: Sequence[str] = ()
    categorical: Sequence[str] = ()
    source: str | None = None
    target: str | None = None
    sensitive_bins: BinsGiven = None
    sens_in_features: bool = False
    max_categories: int = MAX_CATEGORIES
    scale: Scale = "standard"
    positive: Any = None
    unknown: Sequence[Any] | None = None
    weight: str | None = None

    def check_unset(self) -> None:
        """Refuse roles beside an encoding, except the id and the endpoints of edges."""
        for field in fields(self):
            allowed = field.name in ("id", "source", "target")
            if not allowed and getattr(self, field.name) != field.default:
                raise InputError(field.name, "goes without encoding, which determines it")

    @property
    def groups(self) -> tuple[str, ...]:
        """The sensitive columns."""
        return (self.sensitive,) if isinstance(self.sensitive, str) else tuple(self.sensitive or ())

    def feature_columns(self, columns: Sequence[str]) -> list[str]:
        """Check the roles against the columns of a table, and return the feature columns."""
        check_choice("scale", self.scale, get_args(Scale))
        check_integer("max_categories", self.max_categories, "give 1 or more")
        for argument in ("label", "sensitive"):
            if not getattr(self, argument):
                raise InputError(argument, "missing", "name a column of the node table")
        roles: dict[str, str] = {}
        used = [("id", self.id), ("label", self.label), *(("sensitive", g) for g in self.groups)]
        used.append(("weight", self.weight))
        for argument, column in used:
            if column is None:
                continue
            require_column(argument, column, columns, "the node table")
            if column in roles:
                value = f"column {column!r} is the {roles[column]} column already"
                raise InputError(argument, value, "name another")
            roles[column] = argument
        for argument in ("drop", "features", "categorical"):
            for column in getattr(self, argument) or ():
                require_column(argument, column, columns, "the node table")
        groups = self.groups if self.sens_in_features else ()
        excluded = {*roles, *self.drop} - set(groups)
        chosen = columns if self.features is None else (*self.features, *groups)
        return list(dict.fromkeys(column for column in chosen if column not in excluded))


@dataclass(frozen=True)
class Encoding:
    """How the columns of a table became features, classes and groups; ``data.encoding``.

    :func:`~fairmp.datasets.from_tables` makes one, a classifier keeps and saves it, and
    ``from_tables(nodes, edges, encoding=…)`` encodes new tables with it: columns are found by
    name, in any order, and scaled, filled and one-hot encoded as those of the first table.

    Example:
        >>> import pandas as pd
        >>> from fairmp.datasets import from_tables
        >>> people = pd.DataFrame({"y": [0, 1] * 6, "s": list("aab") * 4, "age": range(12)})
        >>> edges = pd.DataFrame({"one": [0, 1], "other": [1, 2]})
        >>> encoding = from_tables(people, edges, id=None, label="y", sensitive="s").encoding
        >>> new = pd.DataFrame({"age": [5.5, 20], "s": ["b", "a"]})
        >>> data = from_tables(new, pd.DataFrame({"i": [0], "j": [1]}), encoding=encoding)
        >>> data.sens.tolist(), data.y.tolist(), round(float(data.x[0, 0]), 3)
        ([1, 0], [-1, -1], 0.0)
        >>> Encoding.from_dict(encoding.to_dict()) == encoding
        True
    """

    id: str | None  # None: row numbers are the ids
    source: str | None  # None: the first column of the edge table
    target: str | None  # None: the second
    label: Label
    sensitive: tuple[Sensitive, ...]
    groups: tuple[str, ...]  # their names
    columns: tuple[Column, ...]
    ignored: tuple[str, ...]  # columns of the training table that are not features
    degree: bool = False  # log(1 + degree) is the only feature, because no column is left
    weight: str | None = None  # column of sample weights

    @property
    def feature_names(self) -> list[str]:
        """Names of the features, in order."""
        if self.degree:
            return [DEGREE]
        return [name for column in self.columns for name in column.feature_names]

    def to_dict(self) -> dict[str, Any]:
        """Describe the encoding in values that JSON can hold."""
        columns = [{"kind": type(part).__name__.lower(), **asdict(part)} for part in self.columns]
        return {**asdict(self), "columns": columns}

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Encoding:
        """Make the encoding that :meth:`to_dict` described."""
        try:
            found: Encoding = conform(given, cls, "encoding")
            for column in found.columns:
                if isinstance(column, Number) and column.divisor <= 0:
                    raise ValueError(f"column {column.name!r} is divided by {column.divisor}")
            if not found.sensitive:
                raise ValueError("there is no sensitive column")
            return found
        except ValueError as error:
            value = f"it is damaged or of another version ({error})"
            raise InputError("encoding", value, "save the model again") from None

    def transform(
        self, table: pd.DataFrame, report: LoadReport, unknown_groups: UnknownGroups = "refuse"
    ) -> tuple[np.ndarray | sp.csr_array, np.ndarray, np.ndarray]:
        """Encode a table: features (n×d, float32), classes (n) and groups (n), −1 unknown."""
        names = [str(name) for name in table.columns]
        seen = {column.name for column in self.columns} | {self.id, self.label.column}
        seen |= {*self.ignored, *(part.column for part in self.sensitive)}
        new = [name for name in names if name not in seen]
        for column in self.columns:
            if column.name not in names:
                raise _absent(column.name, names, new, "the model learned from")
        if new:
            count = counted(len(new), "column")
            report.notes.append(f"{count} not used, new since training: {shortlist(new)}")
        blocks = [compact(one.expand(one.codes(table[one.name], report))) for one in self.columns]
        y = sens = np.full(len(table), -1, dtype=np.int64)
        absent = [part.column for part in self.sensitive if part.column not in names]
        if not absent:
            encoder = GroupEncoder(self.sensitive, self.groups)
            sens = encoder.transform(table, report, unknown_groups)
        elif unknown_groups == "refuse":
            raise _absent(absent[0], names, names, "holds the groups")
        else:
            report.notes.append(f"no column {absent[0]!r}: every node's group is unknown")
            report.unknown_groups = len(table)
        if self.label.column in names:
            y = self.label.transform(table[self.label.column], report)
        else:
            absence = f"no column {self.label.column!r}"
            report.notes.append(f"{absence}: there are no labels to compare with")
        if self.weight is not None and self.weight not in names:
            report.notes.append(f"no column {self.weight!r}: all nodes weigh the same")
        return stack(blocks, len(table)), y, sens


def fit_encoding(
    names: Sequence[str],
    load: Callable[[str], pd.Series],
    roles: Roles,
    report: LoadReport,
    save: Callable[[Column, np.ndarray], None],
) -> tuple[Encoding, np.ndarray, np.ndarray]:
    """Learn the encoding of a node table, its classes and groups, one column at a time.

    ``save`` takes the encoder of each feature column and the column's codes, for its ``expand``.
    """
    chosen = roles.feature_columns(names)
    assert roles.label is not None
    series = load(roles.label)
    positive, unknown, categories = roles.positive, roles.unknown, roles.categorical
    categorical = roles.label in categories
    label = Label.fit(series, report, positive=positive, unknown=unknown, categorical=categorical)
    y = label.transform(series, report)
    table = {name: load(name) for name in roles.groups}
    groups = GroupEncoder.fit(table, roles.sensitive_bins, unknown, report)
    sens = groups.transform(table, report)
    how: dict[str, Any] = {"max_categories": roles.max_categories, "scale": roles.scale}
    columns: list[Column] = []
    for name in chosen:
        series = load(name)
        column = fit_column(series, categorical=name in categories, report=report, **how)
        if column is not None:
            columns.append(column)
            save(column, column.codes(series, report))
    if not columns:
        report.notes.append(f"no feature column is left: the only feature is {DEGREE}")
    used = {column.name for column in columns}
    ignored = tuple(name for name in names if name not in used)
    ends, targets = (roles.id, roles.source, roles.target), (label, *groups)
    parts = *ends, *targets, tuple(columns), ignored
    return Encoding(*parts, degree=not columns, weight=roles.weight), y, sens


def compact(block: np.ndarray) -> np.ndarray | sp.csc_array:
    """Features as float32, sparse if few are not 0."""
    block = block.astype(np.float32)
    return sp.csc_array(block) if np.count_nonzero(block) < MAX_DENSITY * block.size else block


def stack(blocks: Sequence[Any], rows: int) -> np.ndarray | sp.csr_array:
    """Put blocks of features side by side, as float32; a large matrix of few numbers is sparse."""
    width = sum(block.shape[1] for block in blocks)
    large = width >= MIN_SPARSE_COLUMNS and rows * width >= MIN_SPARSE_ENTRIES
    stored = sum(block.nnz if sp.issparse(block) else block.size for block in blocks)
    if large and stored < MAX_DENSITY * rows * width:
        return sp.csr_array(sp.hstack(blocks, format="csc"))
    result, start = np.empty((rows, width), dtype=np.float32), 0
    for block in blocks:
        end = start + block.shape[1]
        result[:, start:end] = block.toarray() if sp.issparse(block) else block
        start = end
    return result


def sample_weights(series: pd.Series) -> torch.Tensor:
    """Read a column of weights: numbers of 0 or more, some above."""
    import pandas as pd

    numbers = pd.to_numeric(series, errors="coerce").to_numpy(np.float64)
    wrong = np.flatnonzero(~(np.isfinite(numbers) & (numbers >= 0)))
    if len(wrong) or not numbers.any():
        first = f"'{series.iloc[wrong[0]]}' in row {wrong[0] + 1}" if len(wrong) else "only zeros"
        value = f"column {series.name!r} has {first}"
        raise InputError("weight", value, "give numbers of 0 or more, some above 0")
    return torch.tensor(numbers)


def _absent(column: str, names: Sequence[str], new: Sequence[str], role: str) -> InputError:
    best = closest(column, new)
    guess = f" (is it {best!r} now?)" if best else ""
    value = f"there is no column {column!r}{guess}, which {role}"
    return InputError("nodes", value, f"there are {shortlist(names)}")


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
    weight: str | None = None,
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
    A large table whose features are mostly 0, such as a bag of words, gives a sparse ``data.x``.

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
            alike), ``"minmax"`` or ``"none"``; columns of 0 and 1 are left alone, and columns that
            are mostly 0 keep their zeros in ``"standard"``: they are divided, not shifted.
        positive: The label value that is class 1; all others are class 0.
        unknown: Values of label and sensitive columns that mean "unknown"; by default −1 if it is
            the only negative number and there are at least two others.
        weight: Column of sample weights (``data.sample_weight``), 0 or more, for training, metrics
            and gaps.
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
    how = sensitive_bins, sens_in_features, max_categories, scale, positive, unknown, weight
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
        blocks: list[Any] = []

        def save(column: Column, codes: np.ndarray) -> None:
            blocks.append(compact(column.expand(codes)))

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
    if used.weight in table.columns:
        data.sample_weight = sample_weights(table[used.weight])
    data.feature_names = used.feature_names
    data.class_names, data.group_names = list(used.label.classes), list(used.groups)
    data.__dict__["encoding"], data.__dict__["ids"] = used, ids
    if isinstance(nodes, str | os.PathLike):
        name = name or base_folder(Path(nodes)).name.split(".")[0]
    data.name = name or "table"
    return data if encoding is not None else with_split(data, seed=seed)


def _node_table(
    nodes: Table, id: str | None, report: LoadReport, unused: Sequence[str], wanted: Sequence[Any]
) -> pd.DataFrame:
    """Read the node table, with its ids as text where they come from a file."""
    if isinstance(nodes, str | os.PathLike):
        reader = TableReader(Path(nodes), "nodes", notes=report.notes)
        reader.find_header((id, *wanted))
        frame = reader.frame(text=() if id is None else (id,), unused=unused)
    else:
        frame = check_frame(nodes, "nodes")
        if id is not None and id not in frame.columns and id == frame.index.name:
            frame = frame.reset_index()
        check_unique(list(frame.columns), "nodes")
        text = {name: without_missing_text(frame[name]) for name in frame.columns if name != id}
        frame = frame.assign(**text)
    if not len(frame):
        raise InputError("nodes", "the table has a header and no rows", "give one row per node")
    if id is not None:
        require_column("id", id, list(frame.columns), "the node table")
    return frame


def assemble(
    x: np.ndarray | sp.csr_array,
    edge_index: np.ndarray,
    y: np.ndarray,
    sens: np.ndarray,
    report: LoadReport,
) -> Data:
    """Make the graph of some arrays, with its report."""
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

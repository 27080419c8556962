"""How the columns of a node table become features, classes and groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple, TypeAlias, get_args

import numpy as np
import pandas as pd
import scipy.sparse as sp

from fairmp.datasets.columns import MAX_DENSITY, Category, Column, Number, Scale, fit_column
from fairmp.datasets.load_report import MAX_SHOWN, LoadReport
from fairmp.datasets.targets import (
    OTHER,
    BinsGiven,
    GroupEncoder,
    Label,
    Sensitive,
    UnknownGroups,
)
from fairmp.datasets.values import MAX_CATEGORIES, closest, look_like_codes, require_column
from fairmp.errors import InputError, check_choice, check_integer, plural, shortlist
from fairmp.schema import conform

Features: TypeAlias = np.ndarray | sp.csr_array

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
    edge_source: str | None = None
    edge_target: str | None = None
    sensitive_bins: BinsGiven = None
    sens_in_features: bool = False
    max_categories: int = MAX_CATEGORIES
    scale: Scale = "standard"
    positive: Any = None
    unknown: Sequence[Any] | None = None
    weight: str | None = None
    edge_weight: str | None = None
    min_group: int = 0

    def check_unset(self) -> None:
        """Refuse roles beside an encoding, except the id and the columns of edges."""
        for field in fields(self):
            allowed = field.name in ("id", "edge_source", "edge_target", "edge_weight")
            if not allowed and getattr(self, field.name) != field.default:
                raise InputError(field.name, "cannot be combined with encoding")

    @property
    def groups(self) -> tuple[str, ...]:
        """The sensitive columns."""
        return (self.sensitive,) if isinstance(self.sensitive, str) else tuple(self.sensitive or ())

    def feature_columns(self, columns: Sequence[str]) -> list[str]:
        """Check the roles against the columns of a table, and return the feature columns."""
        check_choice("scale", self.scale, get_args(Scale))
        check_integer("max_categories", self.max_categories, "give 1 or more")
        check_integer("min_group", self.min_group, "give a number of nodes", low=0)
        for argument in ("label", "sensitive"):
            if not getattr(self, argument):
                raise InputError(argument, "missing", "name a column of the node table")
        role_of = self._role_of_columns(columns)
        for argument in ("drop", "features", "categorical"):
            for column in getattr(self, argument) or ():
                require_column(argument, column, columns, "the node table")
        groups = self.groups if self.sens_in_features else ()
        excluded = {*role_of, *self.drop} - set(groups)
        candidates = columns if self.features is None else (*self.features, *groups)
        return list(dict.fromkeys(column for column in candidates if column not in excluded))

    def _role_of_columns(self, columns: Sequence[str]) -> dict[str, str]:
        """The one role of each column that is not a feature."""
        roles = [("id", self.id), ("label", self.label), ("weight", self.weight)]
        roles[2:2] = [("sensitive", group) for group in self.groups]
        role_of: dict[str, str] = {}
        for argument, column in roles:
            if column is None:
                continue
            require_column(argument, column, columns, "the node table")
            if column in role_of:
                value = f"column {column!r} is the {role_of[column]} column already"
                raise InputError(argument, value, "name another")
            role_of[column] = argument
        return role_of


class EncodedNodes(NamedTuple):
    """A node table as arrays: features (n×d, float32), classes (n) and groups (n), −1 unknown."""

    x: Features
    y: np.ndarray
    sens: np.ndarray


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
        >>> Encoding.from_dict(encoding.to_dict()).feature_names
        ['age']
    """

    id: str | None  # None: row numbers are the ids
    edge_source: str | None  # None: the column of that name, or else the first
    edge_target: str | None  # None: the column of that name, or else the second
    label: Label
    sensitive: tuple[Sensitive, ...]
    groups: tuple[str, ...]  # their names
    columns: tuple[Column, ...]
    ignored: tuple[str, ...]  # columns of the training table that are not features
    degree: bool = False  # log(1 + degree) is the only feature, because no column is left
    weight: str | None = None  # column of sample weights
    edge_weight: str | None = None  # column of the edge table
    rare_groups: tuple[str, ...] = ()  # names of the groups that are "other"

    @property
    def feature_names(self) -> list[str]:
        """Names of the features, in order."""
        if self.degree:
            return [DEGREE]
        return [name for column in self.columns for name in column.feature_names]

    @property
    def column_names(self) -> list[str]:
        """Names of all columns of the training table."""
        roles = [self.id, self.weight, self.label.column, *(part.column for part in self.sensitive)]
        names = [*roles, *(column.name for column in self.columns), *self.ignored]
        return list(dict.fromkeys(name for name in names if name is not None))

    @property
    def text_columns(self) -> list[str]:
        """Columns that held text in training: their cells are text in any table."""
        targets = [self.label.column] if self.label.text else []
        targets += [part.column for part in self.sensitive if part.text]
        return targets + [c.name for c in self.columns if isinstance(c, Category) and c.is_text]

    def to_dict(self) -> dict[str, Any]:
        """Describe the encoding in values that JSON can hold."""
        columns = [{"kind": type(part).__name__.lower(), **asdict(part)} for part in self.columns]
        return {**asdict(self), "columns": columns}

    @classmethod
    def from_dict(cls, description: Mapping[str, Any]) -> Encoding:
        """Make the encoding that :meth:`to_dict` described."""
        try:
            encoding: Encoding = conform(description, cls, "encoding")
            for column in encoding.columns:
                if isinstance(column, Number) and column.divisor <= 0:
                    raise ValueError(f"column {column.name!r} is divided by {column.divisor}")
            if encoding.rare_groups and OTHER not in encoding.groups:
                raise ValueError(f"rare groups have no group {OTHER!r}")
            if not encoding.sensitive:
                raise ValueError("there is no sensitive column")
            return encoding
        except ValueError as error:
            value = f"it is damaged or of another version ({error})"
            raise InputError("encoding", value, "save the model again") from None

    def transform(
        self, table: pd.DataFrame, report: LoadReport, unknown_groups: UnknownGroups = "refuse"
    ) -> EncodedNodes:
        """Encode the rows of a table."""
        self._check_columns([str(name) for name in table.columns], report)
        blocks = [
            compact(column.expand(column.codes(table[column.name], report)))
            for column in self.columns
        ]
        sens = self._groups_of(table, report, unknown_groups)
        y = np.full(len(table), -1, dtype=np.int64)
        if self.label.column in table.columns:
            y = self.label.transform(table[self.label.column], report)
        else:
            absence = f"no column {self.label.column!r}"
            report.notes.append(f"{absence}: there are no labels to compare with")
        if self.weight is not None and self.weight not in table.columns:
            report.notes.append(f"no column {self.weight!r}: all nodes weigh the same")
        return EncodedNodes(stack(blocks, len(table)), y, sens)

    def _check_columns(self, names: Sequence[str], report: LoadReport) -> None:
        """Refuse a table without a feature column of training, and note new columns."""
        in_training = set(self.column_names)
        new = [name for name in names if name not in in_training]
        for column in self.columns:
            if column.name not in names:
                raise _absent(column.name, names, new, "the model learned from")
        if new:
            count = plural(len(new), "column")
            report.notes.append(f"{count} not used, new since training: {shortlist(new)}")

    def _groups_of(
        self, table: pd.DataFrame, report: LoadReport, unknown_groups: UnknownGroups
    ) -> np.ndarray:
        names = [str(name) for name in table.columns]
        absent = [part.column for part in self.sensitive if part.column not in names]
        if not absent:
            encoder = GroupEncoder(self.sensitive, self.groups, self.rare_groups)
            return encoder.transform(table, report, unknown_groups)
        if unknown_groups == "refuse":
            raise _absent(absent[0], names, names, "holds the groups")
        if unknown_groups == "ignore":
            report.notes.append(f"no column {absent[0]!r} (not needed)")
        else:
            report.notes.append(f"no column {absent[0]!r}: every node's group is unknown")
            report.unknown_groups = len(table)
        return np.full(len(table), -1, dtype=np.int64)


def _absent(column: str, names: Sequence[str], candidates: Sequence[str], role: str) -> InputError:
    renamed = closest(column, candidates)
    guess = f" (is it {renamed!r} now?)" if renamed else ""
    value = f"there is no column {column!r}{guess}, which {role}"
    return InputError("nodes", value, f"there are {shortlist(names)}")


class FittedEncoding(NamedTuple):
    """An encoding, and the classes and groups (n, −1 unknown) of the table it was learned from."""

    encoding: Encoding
    y: np.ndarray
    sens: np.ndarray


def fit_encoding(
    names: Sequence[str],
    load: Callable[[str], pd.Series],
    roles: Roles,
    report: LoadReport,
    save: Callable[[Column, np.ndarray], None],
) -> FittedEncoding:
    """Learn the encoding of a node table; ``load`` returns one of its columns.

    ``save`` takes the encoder of each feature column and the column's codes, for its ``expand``.
    """
    feature_columns = roles.feature_columns(names)
    assert roles.label is not None
    labels = load(roles.label)
    label = Label.fit(
        labels,
        report,
        positive=roles.positive,
        unknown=roles.unknown,
        categorical=roles.label in roles.categorical,
    )
    y = label.transform(labels, report)
    sensitive = {name: load(name) for name in roles.groups}
    groups = GroupEncoder.fit(
        sensitive,
        roles.sensitive_bins,
        roles.unknown,
        report,
        min_group=roles.min_group,
        labelled=y >= 0,
    )
    sens = groups.transform(sensitive, report)
    columns: list[Column] = []
    code_columns: list[str] = []
    for name in feature_columns:
        series = load(name)
        if name not in roles.categorical and look_like_codes(series):
            code_columns.append(name)
        column = fit_column(
            series,
            categorical=name in roles.categorical,
            max_categories=roles.max_categories,
            scale=roles.scale,
            report=report,
        )
        if column is not None:
            columns.append(column)
            save(column, column.codes(series, report))
    if code_columns:
        names_of_codes = shortlist(code_columns, MAX_SHOWN)
        hint = "if they are codes, name them in categorical"
        report.notes.append(f"few whole numbers, read as quantities: {names_of_codes}; {hint}")
    if not columns:
        report.notes.append(f"no feature column is left: the only feature is {DEGREE}")
    used = {column.name for column in columns}
    encoding = Encoding(
        id=roles.id,
        edge_source=roles.edge_source,
        edge_target=roles.edge_target,
        label=label,
        sensitive=groups.columns,
        groups=groups.groups,
        columns=tuple(columns),
        ignored=tuple(name for name in names if name not in used),
        degree=not columns,
        weight=roles.weight,
        edge_weight=roles.edge_weight,
        rare_groups=groups.rare,
    )
    return FittedEncoding(encoding, y, sens)


def compact(block: np.ndarray) -> np.ndarray | sp.csc_array:
    """Features as float32, sparse if few are not 0."""
    block = block.astype(np.float32)
    return sp.csc_array(block) if np.count_nonzero(block) < MAX_DENSITY * block.size else block


def stack(blocks: Sequence[Any], rows: int) -> Features:
    """Put blocks of features side by side, as float32; a large matrix of few numbers is sparse."""
    width = sum(block.shape[1] for block in blocks)
    is_large = width >= MIN_SPARSE_COLUMNS and rows * width >= MIN_SPARSE_ENTRIES
    stored = sum(block.nnz if sp.issparse(block) else block.size for block in blocks)
    if is_large and stored < MAX_DENSITY * rows * width:
        return sp.csr_array(sp.hstack(blocks, format="csc"))
    result, start = np.empty((rows, width), dtype=np.float32), 0
    for block in blocks:
        end = start + block.shape[1]
        result[:, start:end] = block.toarray() if sp.issparse(block) else block
        start = end
    return result

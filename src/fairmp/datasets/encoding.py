"""How a table becomes a graph: fitted on the training table, applied to new tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from fairmp.datasets.columns import (
    MAX_CATEGORIES,
    Column,
    LoadReport,
    Number,
    check_scale,
    closest,
    counted,
    fit_column,
    require_column,
)
from fairmp.datasets.targets import GroupEncoder, Label, Sensitive, UnknownGroups
from fairmp.errors import InputError, check_integer, conform, shortlist

if TYPE_CHECKING:
    import pandas as pd

    from fairmp.datasets.columns import BinsGiven, Scale

DEGREE = "log(1 + degree)"


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
        check_scale(self.scale)
        check_integer("max_categories", self.max_categories, "give 1 or more")
        for argument in ("label", "sensitive"):
            if not getattr(self, argument):
                raise InputError(argument, "missing", "name a column of the node table")
        roles: dict[str, str] = {}
        used = [("id", self.id), ("label", self.label), *(("sensitive", g) for g in self.groups)]
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
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
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
        blocks = [one.expand(one.codes(table[one.name], report)) for one in self.columns]
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
    return Encoding(*ends, *targets, tuple(columns), ignored, degree=not columns), y, sens


def stack(blocks: Sequence[np.ndarray], rows: int) -> np.ndarray:
    """Put blocks of features side by side, as float32."""
    return np.concatenate([np.empty((rows, 0)), *blocks], axis=1, dtype=np.float32)


def _absent(column: str, names: Sequence[str], new: Sequence[str], role: str) -> InputError:
    best = closest(column, new)
    guess = f" (is it {best!r} now?)" if best else ""
    value = f"there is no column {column!r}{guess}, which {role}"
    return InputError("nodes", value, f"there are {shortlist(names)}")

"""How a table became a graph, so that new tables become graphs in the same way."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

from fairmp.datasets.columns import Bins, BinsGiven, as_numbers, coded, shown
from fairmp.datasets.edges import LoadReport, counted
from fairmp.datasets.features import Category, Column, Number
from fairmp.datasets.targets import encode_groups, unknown_numbers, unknown_values, without
from fairmp.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

UnknownGroups = Literal["refuse", "allow"]
DEGREE = "log(1 + degree)"
Part = TypeVar("Part")

_TWINS = {"True": "1", "False": "0", "1": "True", "0": "False"}


@dataclass(frozen=True)
class Label:
    """How the label column became classes.

    Attributes:
        column: Its name.
        classes: The classes' names, which are the values as people write them.
        unknown: Values that mean "not known".
        positive: Whether one value was class 1 and all others class 0.
    """

    column: str
    classes: tuple[str, ...]
    unknown: tuple[str, ...]
    positive: bool

    def read(self, series: pd.Series) -> np.ndarray:
        """Encode the labels of another table; −1 where unknown."""
        codes, values = coded(series)
        classes = {name: k for k, name in enumerate(self.classes)}
        found = []
        for text in map(shown, values):
            text = _as_known(text, classes)
            if text not in classes and text not in self.unknown and not self.positive:
                raise InputError(
                    "label",
                    f"{text!r} in column {self.column!r} was no class in training (there were "
                    f"{_few(self.classes)})",
                    "empty the cell, or train again",
                )
            found.append(-1 if text in self.unknown else classes.get(text, 0))
        return np.array([*found, -1], dtype=np.int64)[codes]


@dataclass(frozen=True)
class Sensitive:
    """How one sensitive column became parts of groups' names.

    Attributes:
        column: Its name.
        named: Whether a group's name begins with the column's, as in "white = 1".
        cuts: Where a column of numbers was cut; None where it was not.
        bins: The names of what lies between the cuts.
        unknown: Values that mean "not known".
    """

    column: str
    named: bool
    cuts: tuple[float, ...] | None
    bins: tuple[str, ...]
    unknown: tuple[str, ...]

    def read(self, series: pd.Series, known: Collection[str] = ()) -> tuple[np.ndarray, list[str]]:
        """Code the column of another table: a number a node, −1 for unknown, and their names.

        Args:
            series: The column.
            known: Names that were there in training.
        """
        if self.cuts is None:
            codes, values = coded(series)
            stem = f"{self.column} = " if self.named else ""
            names = [stem + _as_known(shown(v), known, stem) for v in values]
            gone = np.array([*(shown(v) in self.unknown for v in values), True])
            return np.where(gone[codes], -1, codes), names
        numbers = as_numbers(without(series, self.unknown), 0)
        if numbers is None:
            raise InputError(
                "sensitive",
                f"column {self.column!r} held numbers in training and holds text now",
                "give numbers",
            )
        codes = np.searchsorted(np.array(self.cuts), numbers, side="right")
        return np.where(np.isnan(numbers), -1, codes), list(self.bins)


@dataclass(frozen=True)
class Encoding:
    """How the columns of a table became features, classes and groups; ``data.encoding``.

    :func:`~fairmp.datasets.from_tables` makes one, a classifier keeps and saves it, and
    ``from_tables(nodes, edges, encoding=…)`` reads new tables by it: columns are found by name, in
    any order, and scaled, filled and taken apart as those of the first table were.

    Attributes:
        id: The id column; None where row numbers were ids.
        source: The edge table's column with one end; None for the first.
        target: The column with the other end; None for the second.
        label: How the label became classes.
        sensitive: How each sensitive column became parts of groups.
        groups: The groups' names.
        columns: How each feature column became features.
        ignored: Columns that were there and are no features.
        degree: Whether log(1 + degree) was the only feature, for want of columns.

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

    id: str | None
    source: str | None
    target: str | None
    label: Label
    sensitive: tuple[Sensitive, ...]
    groups: tuple[str, ...]
    columns: tuple[Column, ...]
    ignored: tuple[str, ...]
    degree: bool = False

    @property
    def feature_names(self) -> list[str]:
        """The features' names, in order."""
        if self.degree:
            return [DEGREE]
        return [name for column in self.columns for name in column.feature_names]

    def to_dict(self) -> dict[str, Any]:
        """Everything as what JSON can say."""
        return {
            **asdict(self),
            "columns": [
                {"kind": type(column).__name__.lower(), **asdict(column)} for column in self.columns
            ],
        }

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Encoding:
        """Make the encoding that :meth:`to_dict` described.

        Raises:
            InputError: If it is no such description.
        """
        kinds: dict[str, type[Column]] = {"number": Number, "category": Category}
        try:
            parts = dict(given)
            parts["label"] = _made(Label, given["label"])
            parts["sensitive"] = tuple(_made(Sensitive, part) for part in given["sensitive"])
            parts["columns"] = tuple(_made(kinds[c["kind"]], c) for c in given["columns"])
            return _made(cls, parts)
        except (KeyError, TypeError) as error:
            raise InputError(
                "encoding", f"it is damaged or of another version ({error})", "save the model again"
            ) from None

    def features(self, table: pd.DataFrame, report: LoadReport) -> np.ndarray:
        """Read the features of another table, its columns found by name."""
        names = [str(name) for name in table.columns]
        known = {column.name for column in self.columns}
        own = {*known, *self.ignored, self.id, self.label.column}
        own |= {part.column for part in self.sensitive}
        extra = [name for name in names if name not in own]
        for column in self.columns:
            if column.name not in names:
                raise InputError.parse(_absent(column.name, names, extra))
        if extra:
            report.notes.append(
                f"{counted(len(extra), 'column')} not used, new since training: {_few(extra)}"
            )
        if not self.columns:
            return np.zeros((len(table), 0), dtype=np.float32)
        blocks = [column.read(table[column.name], report) for column in self.columns]
        return np.concatenate(blocks, axis=1, dtype=np.float32)

    def labels(self, table: pd.DataFrame, report: LoadReport) -> np.ndarray:
        """Read the labels of another table; all unknown where it has no such column."""
        if self.label.column in table.columns:
            y = self.label.read(table[self.label.column])
            report.unknown_labels = int((y < 0).sum())
            return y
        report.notes.append(f"no column {self.label.column!r}: there are no labels to compare with")
        return np.full(len(table), -1, dtype=np.int64)

    def codes(
        self, table: pd.DataFrame, report: LoadReport, unknown_groups: UnknownGroups
    ) -> np.ndarray:
        """Read the groups of another table; −1 where unknown.

        Args:
            table: The node table.
            report: Where notes go.
            unknown_groups: ``"refuse"`` a table without a sensitive column or with a group that was
                not there in training, or ``"allow"`` it: such groups are unknown.
        """
        names = [str(name) for name in table.columns]
        for part in self.sensitive:
            if part.column in names:
                continue
            if unknown_groups == "refuse":
                raise InputError.parse(_absent(part.column, names, names, "the groups are in"))
            report.notes.append(f"no column {part.column!r}: every node's group is unknown")
            report.unknown_groups = len(table)
            return np.full(len(table), -1, dtype=np.int64)
        labels = np.full(len(table), "", dtype=object)
        known = np.ones(len(table), dtype=bool)
        trained = {name for group in self.groups for name in (group, *group.split(" × "))}
        for k, part in enumerate(self.sensitive):
            codes, texts = part.read(table[part.column], trained)
            known &= codes >= 0
            written = np.array([*texts, ""], dtype=object)[codes]
            labels = written if k == 0 else labels + " × " + written
        places = {name: g for g, name in enumerate(self.groups)}
        groups = np.array([places.get(text, -1) for text in labels], dtype=np.int64)
        groups[~known] = -1
        strange = known & (groups < 0)
        if strange.any():
            text = str(labels[strange][0])
            if unknown_groups == "refuse":
                raise InputError(
                    "sensitive",
                    f"group {text!r} was not there in training (there were {_few(self.groups)})",
                    "empty the cell, let such groups be unknown (unknown_groups='allow'), or "
                    "train again",
                )
            report.notes.append(
                f"{counted(int(strange.sum()), 'node')} of a group that was not there in training,"
                f" {text!r} for one: unknown"
            )
        report.unknown_groups = int((groups < 0).sum())
        return groups


def learn_label(
    series: pd.Series, names: Sequence[str], positive: Any, unknown: Sequence[Any] | None
) -> Label:
    """Say how :func:`~fairmp.datasets.targets.encode_label` encoded a column."""
    _, values = coded(series)
    return Label(
        str(series.name), tuple(names), unknown_values(values, unknown), positive is not None
    )


def learn_sensitive(
    frame: pd.DataFrame, bins: BinsGiven, unknown: Sequence[Any] | None
) -> tuple[Sensitive, ...]:
    """Say how :func:`~fairmp.datasets.targets.encode_groups` encoded sensitive columns."""
    cut: Mapping[str, Bins] = bins if isinstance(bins, Mapping) else {}
    if bins is not None and not cut:
        # Bins without a name are for the one column of numbers; encode_groups made sure of one.
        cut = {str(c): bins for c in frame if as_numbers(frame[c]) is not None}  # type: ignore[misc]
    return tuple(_learn_one(frame[name], cut.get(str(name)), unknown) for name in frame)


def _learn_one(series: pd.Series, bins: Bins | None, unknown: Sequence[Any] | None) -> Sensitive:
    name = str(series.name)
    if bins is not None:
        gone = unknown_numbers(series, unknown)
        cuts = _cut_points(without(series, gone), bins)
        return Sensitive(name, False, tuple(cuts), tuple(_bin_names(name, cuts)), gone)
    _, values = coded(series)
    gone = unknown_values(values, unknown)
    numeric = all(isinstance(v, int | float) for v in values if shown(v) not in gone)
    return Sensitive(name, numeric, None, (), gone)


def _cut_points(series: pd.Series, bins: Bins) -> list[float]:
    """Where a column was cut; bins of about equal size begin at the least value in them."""
    if not isinstance(bins, int | np.integer):
        return [float(point) for point in bins]
    numbers = as_numbers(series)
    assert numbers is not None  # the column was cut already
    try:
        codes, names = encode_groups(series.to_frame(), bins={str(series.name): bins}, unknown=())
    except InputError:  # one bin alone, of a column that is crossed with others
        return []
    return [float(numbers[codes == k].min()) for k in range(1, len(names))]


def _bin_names(name: str, cuts: Sequence[float]) -> list[str]:
    """Ask for the names by a column with one value a bin."""
    import pandas as pd

    if not cuts:
        return [name]
    frame = pd.DataFrame({name: [np.nextafter(cuts[0], -np.inf), *cuts]})
    return encode_groups(frame, bins={name: list(cuts)}, unknown=())[1]


def _as_known(text: str, known: Collection[str], stem: str = "") -> str:
    """Write a truth value as training did: what is 0 and 1 in one table is a bool in another."""
    twin = _TWINS.get(text, text)
    return twin if stem + text not in known and stem + twin in known else text


def _made(kind: type[Part], given: Mapping[str, Any]) -> Part:
    """Make a dataclass of what JSON made of it, lists for tuples."""
    wanted = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    values = {name: given[name] for name in wanted}
    return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})


def _absent(
    column: str, names: Sequence[str], extra: Sequence[str], what: str = "the model learned from"
) -> str:
    folded = [name for name in extra if name.casefold().strip() == column.casefold().strip()]
    close = folded or difflib.get_close_matches(column, extra, n=1, cutoff=0.5)
    hint = f" (is it {close[0]!r} now?)" if close else ""
    return f"nodes: there is no column {column!r}{hint}, which {what}; there are {_few(names)}"


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")

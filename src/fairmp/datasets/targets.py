"""Encoders of the label and the sensitive columns: fitted on one table, applied to any table."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fairmp.datasets.columns import (
    MAX_CATEGORIES,
    Bins,
    BinsGiven,
    as_numbers,
    as_text,
    factorize,
    shortlist,
)
from fairmp.datasets.edges import LoadReport, counted
from fairmp.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    Table = Mapping[str, pd.Series] | pd.DataFrame

UnknownGroups = Literal["refuse", "allow"]

_BOOLEAN_TWINS = {"True": "1", "False": "0", "1": "True", "0": "False"}


@dataclass(frozen=True)
class Label:
    """Encoder of the label column.

    Attributes:
        column: Its name.
        classes: Names of the classes: the values as text.
        unknown: Values that mean "unknown".
        positive: Whether one value is class 1 and all others are class 0.
    """

    column: str
    classes: tuple[str, ...]
    unknown: tuple[str, ...]
    positive: bool

    @classmethod
    def fit(
        cls,
        series: pd.Series,
        *,
        positive: Any = None,
        unknown: Sequence[Any] | None = None,
        report: LoadReport | None = None,
    ) -> Label:
        """Learn the classes of a column; ``positive`` and ``unknown`` are those of from_tables."""
        codes, values, gone = _known_values(series, "label", unknown, report)
        if len(values) < 2:
            only = f"only the value {as_text(values[0])!r}" if values else "no value at all"
            hint = "a classifier needs two classes"
            raise InputError("label", f"column {series.name!r} has {only}", hint)
        fractional = any(isinstance(value, float) and not value.is_integer() for value in values)
        if len(values) > MAX_CATEGORIES and (fractional or len(values) > 0.9 * (codes >= 0).sum()):
            raise InputError(
                "label",
                f"column {series.name!r} has {len(values):,} different values",
                "it is a quantity or a name, not a class: give a column with classes",
            )
        names = list(dict.fromkeys(map(as_text, values)))
        if positive is not None:
            chosen = [as_text(value) for value in values if _same(value, positive)]
            if not chosen:
                hint = f"there are {shortlist(names)}"
                raise InputError("positive", f"{positive!r} is no value of {series.name!r}", hint)
            others = [name for name in names if name not in chosen]
            names = [others[0] if len(others) == 1 else f"not {chosen[0]}", chosen[0]]
        return cls(str(series.name), tuple(names), gone, positive is not None)

    def transform(self, series: pd.Series, report: LoadReport | None = None) -> np.ndarray:
        """Encode a column as classes (n, int64), −1 where unknown."""
        codes, values = factorize(series)
        classes = {name: k for k, name in enumerate(self.classes)}
        found = []
        for text in map(as_text, values):
            text = _as_fitted(text, classes)
            if text not in classes and text not in self.unknown and not self.positive:
                raise InputError(
                    "label",
                    f"{text!r} in column {self.column!r} is not a class seen in training "
                    f"({shortlist(self.classes)})",
                    "empty the cell, or train again",
                )
            found.append(-1 if text in self.unknown else classes.get(text, 0))
        y = np.array([*found, -1], dtype=np.int64)[codes]
        if report is not None:
            report.unknown_labels = int((y < 0).sum())
        return y


@dataclass(frozen=True)
class Sensitive:
    """Encoder of one sensitive column.

    Attributes:
        column: Its name.
        named: Whether a group's name begins with the column's, as in "white = 1".
        cuts: Cut points of a binned column of numbers; None if it is not binned.
        bins: Names of the bins.
        unknown: Values that mean "unknown".
    """

    column: str
    named: bool
    cuts: tuple[float, ...] | None
    bins: tuple[str, ...]
    unknown: tuple[str, ...]

    @classmethod
    def fit(
        cls,
        series: pd.Series,
        bins: Bins | None,
        unknown: Sequence[Any] | None,
        report: LoadReport,
    ) -> Sensitive:
        """Learn the values of a column, or where to cut a column of numbers."""
        name = str(series.name)
        if bins is not None:
            numbers = as_numbers(series)
            distinct = [] if numbers is None else np.unique(numbers[~np.isnan(numbers)]).tolist()
            gone = _unknown_values(distinct, unknown)
            known = _mask(series, gone)
            if unknown is None:
                count = int((series.notna() & known.isna()).sum())
                _note_unknown(name, "sensitive", count, report)
            cuts = _cut_points(known, bins, report)
            return cls(name, False, tuple(cuts), tuple(_bin_names(name, cuts)), gone)
        codes, values, gone = _known_values(series, "sensitive", unknown, report)
        numeric = all(isinstance(value, int | float) for value in values)
        if numeric and len(values) > MAX_CATEGORIES:
            raise InputError(
                "sensitive",
                f"column {name!r} has {len(values):,} different numbers",
                "cut it into groups with sensitive_bins, as in sensitive_bins=3 or "
                "sensitive_bins=[25, 40]",
            )
        if len(values) > MAX_CATEGORIES and len(values) > 0.9 * (codes >= 0).sum():
            raise InputError(
                "sensitive",
                f"column {name!r} has {len(values):,} different values, nearly one per row",
                "give a column with groups",
            )
        return cls(name, numeric, None, (), gone)

    def transform(
        self, series: pd.Series, known: Collection[str] = ()
    ) -> tuple[np.ndarray, list[str]]:
        """Encode a column as codes (n, −1 unknown), and name them as the ``known`` names do."""
        if self.cuts is None:
            codes, values = factorize(series)
            stem = f"{self.column} = " if self.named else ""
            names = [stem + _as_fitted(as_text(value), known, stem) for value in values]
            gone = np.array([*(as_text(value) in self.unknown for value in values), True])
            return np.where(gone[codes], -1, codes), names
        numbers = as_numbers(_mask(series, self.unknown), 0)
        if numbers is None:
            raise InputError(
                "sensitive",
                f"column {self.column!r} held numbers in training and holds text now",
                "give numbers",
            )
        codes = np.searchsorted(np.array(self.cuts), numbers, side="right")
        return np.where(np.isnan(numbers), -1, codes), list(self.bins)


@dataclass(frozen=True)
class GroupEncoder:
    """Encoder of the sensitive groups: of one column, or of several crossed.

    Attributes:
        columns: Encoders of the columns.
        groups: Names of the groups; combinations without a node are left out.
    """

    columns: tuple[Sensitive, ...]
    groups: tuple[str, ...]

    @classmethod
    def fit(
        cls,
        table: Table,
        *,
        bins: BinsGiven = None,
        unknown: Sequence[Any] | None = None,
        report: LoadReport | None = None,
    ) -> GroupEncoder:
        """Learn the groups of a table; ``bins`` and ``unknown`` are those of from_tables."""
        report = report or LoadReport()
        cuts = _bins_by_column(table, bins)
        names = [str(name) for name in table]
        columns = tuple(
            Sensitive.fit(table[name], cuts.get(name), unknown, report) for name in names
        )
        _, groups = _cross(columns, table)
        if len(groups) < 2:
            titles = ", ".join(map(repr, names))
            only = f"one group, {groups[0]!r}" if groups else "no known value"
            raise InputError("sensitive", f"{titles} gives {only}", "a gap needs two groups")
        return cls(columns, tuple(dict.fromkeys(groups)))

    def transform(
        self,
        table: Table,
        report: LoadReport | None = None,
        unknown_groups: UnknownGroups = "refuse",
    ) -> np.ndarray:
        """Encode the groups of a table (n, int64), −1 where unknown."""
        report = report or LoadReport()
        codes, names = _cross(self.columns, table, self.groups)
        index = {name: g for g, name in enumerate(self.groups)}
        new = np.array([*(name not in index for name in names), False])[codes]
        if new.any():
            example = names[int(codes[new][0])]
            if unknown_groups == "refuse":
                raise InputError(
                    "sensitive",
                    f"group {example!r} was not seen in training ({shortlist(self.groups)})",
                    "empty the cell, treat such groups as unknown (unknown_groups='allow'), or "
                    "train again",
                )
            report.notes.append(
                f"{counted(int(new.sum()), 'node')} of a group not seen in training (such as"
                f" {example!r}), treated as unknown"
            )
        sens = np.array([*(index.get(name, -1) for name in names), -1], dtype=np.int64)[codes]
        report.unknown_groups = int((sens < 0).sum())
        return sens


def _cross(
    columns: Sequence[Sensitive],
    table: Table,
    known: Collection[str] = (),
) -> tuple[np.ndarray, list[str]]:
    """Code the combinations of values that occur (n, −1 unknown), and name them."""
    parts = {name for group in known for name in (group, *group.split(" × "))}
    crossed, names = columns[0].transform(table[columns[0].column], parts)
    for column in columns[1:]:
        codes, more = column.transform(table[column.column], parts)
        crossed = np.where((crossed < 0) | (codes < 0), -1, crossed * len(more) + codes)
        names = [f"{one} × {other}" for one in names for other in more]
    present = np.unique(crossed[crossed >= 0])
    rank = np.full(len(names) + 1, -1, dtype=np.int64)
    rank[present] = np.arange(len(present))
    return rank[crossed], [names[k] for k in present]


def _bins_by_column(table: Table, bins: BinsGiven) -> Mapping[str, Bins]:
    names = [str(name) for name in table]
    if bins is None:
        return {}
    if isinstance(bins, Mapping):
        strangers = [name for name in bins if name not in names]
        if strangers:
            hint = f"there are {shortlist(names)}"
            raise InputError("sensitive_bins", f"{strangers[0]!r} is no sensitive column", hint)
        return bins
    numeric = [name for name in names if as_numbers(table[name]) is not None]
    if len(numeric) != 1:
        found = f"{shortlist(numeric)} all do" if numeric else "no sensitive column holds numbers"
        raise InputError(
            "sensitive_bins",
            f"{bins!r} cuts one column of numbers, but {found}",
            "name it, as in {'age': [25, 40]}",
        )
    return {numeric[0]: bins}


def _cut_points(series: pd.Series, bins: Bins, report: LoadReport) -> list[float]:
    values = as_numbers(series, report=report)
    if values is None:
        raise InputError(
            "sensitive_bins", f"column {series.name!r} does not hold numbers", "leave the bins out"
        )
    known = values[~np.isnan(values)]
    if not isinstance(bins, int | np.integer):
        cuts = np.asarray(list(bins), dtype=np.float64)
        if not len(cuts) or not np.isfinite(cuts).all() or (np.diff(cuts) <= 0).any():
            raise InputError(
                "sensitive_bins",
                f"{list(bins)!r} are not ascending cut points",
                "give some, as in [25, 40]",
            )
        return cuts.tolist()
    if bins < 2:
        raise InputError("sensitive_bins", f"{bins} makes one group at most", "give 2 or more")
    if not len(known):
        return []
    # Cuts are values that occur, so that no bin is empty; a cut at the smallest value would leave
    # nothing below it.
    cuts = np.quantile(known, np.arange(1, bins) / bins, method="higher")
    cuts = np.unique(cuts[cuts > known.min()])
    if len(cuts) + 1 < bins:
        report.notes.append(
            f"column {series.name!r}: many nodes share a value, so {len(cuts) + 1} groups were made"
            f" instead of {bins}"
        )
    return cuts.tolist()


def _bin_names(name: str, cuts: Sequence[float]) -> list[str]:
    texts = [f"{cut:.6g}" for cut in cuts]
    if not texts:
        return [name]
    middle = [f"{low} ≤ {name} < {high}" for low, high in pairwise(texts)]
    return [f"{name} < {texts[0]}", *middle, f"{name} ≥ {texts[-1]}"]


def _known_values(
    series: pd.Series, role: str, unknown: Sequence[Any] | None, report: LoadReport | None
) -> tuple[np.ndarray, list[Any], tuple[str, ...]]:
    """Code a column, and return its values that are known and those that mean "unknown"."""
    codes, values = factorize(series)
    gone = _unknown_values(values, unknown)
    dropped = np.array([*(as_text(value) in gone for value in values), True])
    if unknown is None:
        count = int((dropped[codes] & (codes >= 0)).sum())
        _note_unknown(str(series.name), role, count, report or LoadReport())
    known = [value for value in values if as_text(value) not in gone]
    return np.where(dropped[codes], -1, codes), known, gone


def _unknown_values(values: Sequence[Any], unknown: Sequence[Any] | None) -> tuple[str, ...]:
    """Which values mean "unknown", as text; by default −1 beside two other numbers from 0 up."""
    if unknown is not None:
        met = [as_text(value) for value in values if any(_same(value, one) for one in unknown)]
        return tuple(dict.fromkeys([*map(as_text, unknown), *met]))
    numbers = [value for value in values if isinstance(value, int | float)]
    plain = len(numbers) == len(values) and all(n >= 0 or n == -1 for n in numbers)
    return ("-1",) if plain and sum(n >= 0 for n in numbers) > 1 else ()


def _mask(series: pd.Series, unknown: Sequence[str]) -> pd.Series:
    """Empty the cells of a column of numbers that mean "unknown"."""
    import pandas as pd

    if not unknown:
        return series
    numbers = pd.to_numeric(pd.Series(list(unknown)), errors="coerce").dropna()
    gone = series.isin([*unknown, *numbers])
    return series.mask(gone) if gone.any() else series


def _note_unknown(column: str, role: str, count: int, report: LoadReport) -> None:
    if count:
        report.notes.append(
            f"{role} {column!r}: −1 counts as unknown ({counted(count, 'node')});"
            " unknown=() makes it a value"
        )


def _same(value: Any, given: Any) -> bool:
    """Whether a value is the one a person typed: 1, 1.0 and "1" are the same, True and "true"."""
    if value == given or as_text(value) == as_text(given):
        return True
    return isinstance(value, bool) and str(given).casefold() == str(value).casefold()


def _as_fitted(text: str, known: Collection[str], stem: str = "") -> str:
    """Write a boolean as training did: 0 and 1 in one table may be False and True in another."""
    twin = _BOOLEAN_TWINS.get(text, text)
    return twin if stem + text not in known and stem + twin in known else text

"""Encoders of the label and the sensitive columns: fitted on one table, applied to any table."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from fairmp.datasets.columns import (
    MAX_CATEGORIES,
    LoadReport,
    as_numbers,
    as_text,
    counted,
    factorize,
)
from fairmp.errors import InputError, shortlist

if TYPE_CHECKING:
    import pandas as pd

    from fairmp.datasets.columns import Bins, BinsGiven

    Table = Mapping[str, pd.Series] | pd.DataFrame

UnknownGroups = Literal["refuse", "allow"]

_BOOLEAN_TWINS = {"True": "1", "False": "0", "1": "True", "0": "False"}


@dataclass(frozen=True)
class Label:
    """Encoder of the label column."""

    column: str
    classes: tuple[str, ...]  # the values as text
    unknown: tuple[str, ...]  # values that mean "unknown"
    positive: bool  # one value is class 1 and all others are class 0

    @classmethod
    def fit(
        cls,
        series: pd.Series,
        report: LoadReport,
        *,
        positive: Any = None,
        unknown: Sequence[Any] | None = None,
        categorical: bool = False,
    ) -> Label:
        """Learn the classes of a column; a quantity is refused unless it is ``categorical``."""
        series, gone = _without_unknown(series, factorize(series)[1], "label", unknown, report)
        values = factorize(series)[1]
        title = f"column {series.name!r} has"
        if len(values) < 2:
            only = f"only the value {as_text(values[0])!r}" if values else "no value at all"
            raise InputError("label", f"{title} {only}", "a classifier needs two classes")
        many = len(values) > MAX_CATEGORIES and positive is None
        if many and not categorical and all(isinstance(value, int | float) for value in values):
            name = str(series.name)
            hint = f"cut it into classes, or if they are classes, add {{categorical=[{name!r}]}}"
            question = f"{title} {len(values):,} different numbers, is it a quantity?"
            raise InputError("label", question, hint)
        if many and len(values) > 0.9 * series.count():
            hint = "it is a name, not a class: give a column with classes"
            raise InputError("label", f"{title} {len(values):,} different values", hint)
        names = list(dict.fromkeys(map(as_text, values)))
        if positive is not None:
            chosen = [as_text(value) for value in values if _same(value, positive)]
            if not chosen:
                hint = f"there are {shortlist(names)}"
                raise InputError("positive", f"{positive!r} is no value of {series.name!r}", hint)
            others = [name for name in names if name not in chosen]
            names = [others[0] if len(others) == 1 else f"not {chosen[0]}", chosen[0]]
        return cls(str(series.name), tuple(names), gone, positive is not None)

    def transform(self, series: pd.Series, report: LoadReport) -> np.ndarray:
        """Encode a column as classes (n, int64), −1 where unknown."""
        codes, values = factorize(_mask(series, self.unknown))
        classes = {name: k for k, name in enumerate(self.classes)}
        texts = [_as_fitted(as_text(value), classes) for value in values]
        new = [text for text in texts if text not in classes]
        if new and not self.positive:
            known = shortlist(self.classes)
            value = f"{new[0]!r} in column {self.column!r} is not a class seen in training"
            raise InputError("label", f"{value} ({known})", "empty the cell, or train again")
        y = np.array([*(classes.get(text, 0) for text in texts), -1], dtype=np.int64)[codes]
        report.unknown_labels = int((y < 0).sum())
        return y


@dataclass(frozen=True)
class Sensitive:
    """Encoder of one sensitive column."""

    column: str
    named: bool  # a group's name begins with the column's, as in "white = 1"
    cuts: tuple[float, ...] | None  # cut points of a binned column of numbers
    bins: tuple[str, ...]  # names of the bins
    unknown: tuple[str, ...]  # values that mean "unknown"

    @classmethod
    def fit(
        cls, series: pd.Series, bins: Bins | None, unknown: Sequence[Any] | None, report: LoadReport
    ) -> Sensitive:
        """Learn the values of a column, or where to cut a column of numbers."""
        name = str(series.name)
        values = factorize(series)[1]
        if bins is not None:
            numbers = as_numbers(series)
            values = [] if numbers is None else np.unique(numbers[~np.isnan(numbers)]).tolist()
        series, gone = _without_unknown(series, values, "sensitive", unknown, report)
        if bins is not None:
            cuts = _cut_points(series, bins, report)
            return cls(name, False, tuple(cuts), tuple(_bin_names(name, cuts)), gone)
        values = factorize(series)[1]
        numeric = all(isinstance(value, int | float) for value in values)
        title = f"column {name!r} has {len(values):,} different"
        if len(values) > MAX_CATEGORIES and numeric:
            hint = "cut it into groups, as with {sensitive_bins=3} or {sensitive_bins=[25, 40]}"
            raise InputError("sensitive", f"{title} numbers", hint)
        if len(values) > MAX_CATEGORIES and len(values) > 0.9 * series.count():
            value = f"{title} values, nearly one per row"
            raise InputError("sensitive", value, "give a column with groups")
        return cls(name, numeric, None, (), gone)

    def transform(
        self, series: pd.Series, known: Collection[str] = ()
    ) -> tuple[np.ndarray, list[str]]:
        """Encode a column as codes (n, −1 unknown), and name them as the ``known`` names do."""
        series = _mask(series, self.unknown)
        if self.cuts is None:
            codes, values = factorize(series)
            stem = f"{self.column} = " if self.named else ""
            return codes, [stem + _as_fitted(as_text(value), known, stem) for value in values]
        numbers = as_numbers(series, 0)
        if numbers is None:
            value = f"column {self.column!r} held numbers in training and holds text now"
            raise InputError("sensitive", value, "give numbers")
        codes = np.searchsorted(np.array(self.cuts), numbers, side="right")
        return np.where(np.isnan(numbers), -1, codes), list(self.bins)


class GroupEncoder(NamedTuple):
    """Encoder of the sensitive groups: of one column, or of several crossed."""

    columns: tuple[Sensitive, ...]
    groups: tuple[str, ...]  # names; combinations without a node are left out

    @classmethod
    def fit(
        cls, table: Table, bins: BinsGiven, unknown: Sequence[Any] | None, report: LoadReport
    ) -> GroupEncoder:
        """Learn the groups of a table; ``bins`` and ``unknown`` are those of from_tables."""
        cuts = _bins_by_column(table, bins)
        names = [str(name) for name in table]
        columns = [Sensitive.fit(table[name], cuts.get(name), unknown, report) for name in names]
        _, groups = _cross(columns, table)
        if len(groups) < 2:
            titles = ", ".join(map(repr, names))
            only = f"one group, {groups[0]!r}" if groups else "no known value"
            raise InputError("sensitive", f"{titles} gives {only}", "a gap needs two groups")
        return cls(tuple(columns), tuple(dict.fromkeys(groups)))

    def transform(
        self, table: Table, report: LoadReport, unknown_groups: UnknownGroups = "refuse"
    ) -> np.ndarray:
        """Encode the groups of a table (n, int64), −1 where unknown."""
        codes, names = _cross(self.columns, table, self.groups)
        index = {name: g for g, name in enumerate(self.groups)}
        new = np.array([*(name not in index for name in names), False])[codes]
        if new.any():
            example = names[int(codes[new][0])]
            if unknown_groups == "refuse":
                value = f"group {example!r} was not seen in training ({shortlist(self.groups)})"
                hint = "empty the cell, treat such groups as unknown ({unknown_groups='allow'}), or"
                raise InputError("sensitive", value, f"{hint} train again")
            nodes = f"{counted(int(new.sum()), 'node')} of a group not seen in training"
            report.notes.append(f"{nodes} (such as {example!r}), treated as unknown")
        sens = np.array([*(index.get(name, -1) for name in names), -1], dtype=np.int64)[codes]
        report.unknown_groups = int((sens < 0).sum())
        return sens


def _cross(
    columns: Sequence[Sensitive], table: Table, known: Collection[str] = ()
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
        for name in bins:
            if name not in names:
                hint = f"there are {shortlist(names)}"
                raise InputError("sensitive_bins", f"{name!r} is no sensitive column", hint)
        return bins
    numeric = [name for name in names if as_numbers(table[name]) is not None]
    if len(numeric) != 1:
        found = f"{shortlist(numeric)} all do" if numeric else "no sensitive column holds numbers"
        value = f"{bins!r} cuts one column of numbers, but {found}"
        raise InputError("sensitive_bins", value, "name it, as in {'age': [25, 40]}")
    return {numeric[0]: bins}


def _cut_points(series: pd.Series, bins: Bins, report: LoadReport) -> list[float]:
    values, title = as_numbers(series, report=report), f"column {series.name!r}"
    if values is None:
        raise InputError("sensitive_bins", f"{title} does not hold numbers", "leave the bins out")
    known = values[~np.isnan(values)]
    if not isinstance(bins, int | np.integer):
        cuts = np.asarray(list(bins), dtype=np.float64)
        if not len(cuts) or not np.isfinite(cuts).all() or (np.diff(cuts) <= 0).any():
            value = f"{list(bins)!r} are not ascending cut points"
            raise InputError("sensitive_bins", value, "give some, as in [25, 40]")
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
        made = f"{len(cuts) + 1} groups were made instead of {bins}"
        report.notes.append(f"{title}: many nodes share a value, so {made}")
    return cuts.tolist()


def _bin_names(name: str, cuts: Sequence[float]) -> list[str]:
    texts = [f"{cut:.6g}" for cut in cuts]
    if not texts:
        return [name]
    middle = [f"{low} ≤ {name} < {high}" for low, high in pairwise(texts)]
    return [f"{name} < {texts[0]}", *middle, f"{name} ≥ {texts[-1]}"]


def _without_unknown(
    series: pd.Series,
    values: Sequence[Any],
    role: str,
    unknown: Sequence[Any] | None,
    report: LoadReport,
) -> tuple[pd.Series, tuple[str, ...]]:
    """Empty the cells of a column that mean "unknown", and return such values as text."""
    if unknown is not None:
        met = [as_text(value) for value in values if any(_same(value, one) for one in unknown)]
        gone = tuple(dict.fromkeys([*map(as_text, unknown), *met]))
    else:  # −1, beside two other numbers from 0 up
        plain = all(isinstance(v, int | float) and (v >= 0 or v == -1) for v in values)
        gone = ("-1",) if plain and sum(value >= 0 for value in values) > 1 else ()
    known = _mask(series, gone)
    count = int(series.count() - known.count())
    if unknown is None and count:
        note = f"−1 counts as unknown ({counted(count, 'node')}); unknown=() makes it a value"
        report.notes.append(f"{role} {series.name!r}: {note}")
    return known, gone


def _mask(series: pd.Series, unknown: Collection[str]) -> pd.Series:
    """Empty the cells of a column that mean "unknown"."""
    if not unknown:
        return series
    codes, values = factorize(series)
    gone = np.array([*(as_text(value) in unknown for value in values), False])[codes]
    return series.mask(gone) if gone.any() else series


def _same(value: Any, given: Any) -> bool:
    """Whether a value is the one a person typed: 1, 1.0 and "1" are the same, True and "true"."""
    if value == given or as_text(value) == as_text(given):
        return True
    return isinstance(value, bool) and str(given).casefold() == str(value).casefold()


def _as_fitted(text: str, known: Collection[str], stem: str = "") -> str:
    """Write a boolean as training did: 0 and 1 in one table may be False and True in another."""
    twin = _BOOLEAN_TWINS.get(text, text)
    return twin if stem + text not in known and stem + twin in known else text

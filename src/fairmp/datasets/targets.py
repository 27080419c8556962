"""Encoders of the label and the sensitive columns: fitted on one table, applied to any table."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from fairmp.datasets.load_report import LoadReport
from fairmp.datasets.values import (
    MAX_CATEGORIES,
    MAX_DISTINCT_SHARE,
    as_numbers,
    as_text,
    factorize,
)
from fairmp.errors import InputError, plural, shortlist

Table = Mapping[str, pd.Series] | pd.DataFrame

Bins = int | Sequence[float]
BinsGiven = Bins | Mapping[str, Bins] | None
UnknownGroups = Literal["refuse", "allow"]

CROSS = " × "  # between the names of crossed groups

_OTHER_BOOLEAN = {"True": "1", "False": "0", "1": "True", "0": "False"}


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
        unknown_texts = _unknown_values(factorize(series)[1], unknown)
        series = _without_unknown(series, unknown_texts, "label", report, detected=unknown is None)
        values = factorize(series)[1]
        if len(values) < 2:
            only = f"only the value {as_text(values[0])!r}" if values else "no value at all"
            value = f"column {series.name!r} has {only}"
            raise InputError("label", value, "a classifier needs two classes")
        if positive is None:
            _refuse_quantity(series, values, categorical=categorical)
        classes = list(dict.fromkeys(map(as_text, values)))
        if positive is not None:
            classes = _two_classes(series, values, classes, positive)
        return cls(str(series.name), tuple(classes), unknown_texts, positive is not None)

    def transform(self, series: pd.Series, report: LoadReport) -> np.ndarray:
        """Encode a column as classes (n, int64), −1 where unknown."""
        codes, values = factorize(_mask(series, self.unknown))
        classes = {name: k for k, name in enumerate(self.classes)}
        texts = [_as_in_training(as_text(value), classes) for value in values]
        new = [text for text in texts if text not in classes]
        if new and not self.positive:
            value = f"{new[0]!r} in column {self.column!r} is not a class seen in training"
            hint = "empty the cell, or train again"
            raise InputError("label", f"{value} ({shortlist(self.classes)})", hint)
        y = np.array([*(classes.get(text, 0) for text in texts), -1], dtype=np.int64)[codes]
        report.unknown_labels = int((y < 0).sum())
        return y


def _refuse_quantity(series: pd.Series, values: Sequence[Any], *, categorical: bool) -> None:
    """Refuse a label with so many values that it holds numbers to regress on, or names."""
    if len(values) <= MAX_CATEGORIES:
        return
    name = str(series.name)
    if not categorical and _all_numbers(values):
        value = f"column {name!r} has {len(values):,} different numbers, is it a quantity?"
        hint = f"cut it into classes, or if they are classes, add {{categorical=[{name!r}]}}"
        raise InputError("label", value, hint)
    if len(values) > MAX_DISTINCT_SHARE * series.count():
        value = f"column {name!r} has {len(values):,} different values"
        raise InputError("label", value, "it is a name, not a class: give a column with classes")


def _two_classes(
    series: pd.Series, values: Sequence[Any], classes: Sequence[str], positive: Any
) -> list[str]:
    chosen = [as_text(value) for value in values if _is_same(value, positive)]
    if not chosen:
        value = f"{positive!r} is not a value of {series.name!r}"
        raise InputError("positive", value, f"there are {shortlist(classes)}")
    others = [name for name in classes if name not in chosen]
    return [others[0] if len(others) == 1 else f"not {chosen[0]}", chosen[0]]


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
        unknown_texts = _unknown_values(values, unknown)
        detected = unknown is None
        series = _without_unknown(series, unknown_texts, "sensitive", report, detected=detected)
        if bins is not None:
            cuts = _cut_points(series, bins, report)
            return cls(name, False, tuple(cuts), tuple(_bin_names(name, cuts)), unknown_texts)
        values = factorize(series)[1]
        numeric = _all_numbers(values)
        title = f"column {name!r} has {len(values):,} different"
        if len(values) > MAX_CATEGORIES and numeric:
            hint = "cut it into groups, as with {sensitive_bins=3} or {sensitive_bins=[25, 40]}"
            raise InputError("sensitive", f"{title} numbers", hint)
        if len(values) > MAX_CATEGORIES and len(values) > MAX_DISTINCT_SHARE * series.count():
            value = f"{title} values, nearly one per row"
            raise InputError("sensitive", value, "give a column with groups")
        return cls(name, numeric, None, (), unknown_texts)

    def transform(self, series: pd.Series, groups: Collection[str] = ()) -> GroupCodes:
        """Encode a column; the names of its values are written as those of ``groups``."""
        series = _mask(series, self.unknown)
        if self.cuts is None:
            codes, values = factorize(series)
            stem = f"{self.column} = " if self.named else ""
            texts = [_as_in_training(as_text(value), groups, stem) for value in values]
            return GroupCodes(codes, [stem + text for text in texts])
        numbers = as_numbers(series, 0)
        if numbers is None:
            value = f"column {self.column!r} held numbers in training and holds text now"
            raise InputError("sensitive", value, "give numbers")
        codes = np.searchsorted(np.array(self.cuts), numbers, side="right")
        return GroupCodes(np.where(np.isnan(numbers), -1, codes), list(self.bins))


class GroupCodes(NamedTuple):
    """The group of each node as a code, −1 where unknown, and the names of the codes."""

    codes: np.ndarray
    names: list[str]


class GroupEncoder(NamedTuple):
    """Encoder of the sensitive groups: of one column, or of several crossed."""

    columns: tuple[Sensitive, ...]
    groups: tuple[str, ...]  # names; combinations without a node are left out

    @classmethod
    def fit(
        cls, table: Table, bins: BinsGiven, unknown: Sequence[Any] | None, report: LoadReport
    ) -> GroupEncoder:
        """Learn the groups of a table; ``bins`` and ``unknown`` are those of from_tables."""
        bins = _bins_by_column(table, bins)
        names = [str(name) for name in table]
        columns = [Sensitive.fit(table[name], bins.get(name), unknown, report) for name in names]
        groups = _cross(columns, table).names
        if len(groups) < 2:
            only = f"one group, {groups[0]!r}" if groups else "no known value"
            value = f"{', '.join(map(repr, names))} gives {only}"
            raise InputError("sensitive", value, "a gap needs two groups")
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
                allow = "treat such groups as unknown ({unknown_groups='allow'})"
                raise InputError("sensitive", value, f"empty the cell, {allow}, or train again")
            nodes = f"{plural(int(new.sum()), 'node')} of a group not seen in training"
            report.notes.append(f"{nodes} (such as {example!r}), treated as unknown")
        sens = np.array([*(index.get(name, -1) for name in names), -1], dtype=np.int64)[codes]
        report.unknown_groups = int((sens < 0).sum())
        return sens


def _cross(columns: Sequence[Sensitive], table: Table, groups: Collection[str] = ()) -> GroupCodes:
    """Code the combinations of values that occur, and name them."""
    known_names = {name for group in groups for name in (group, *group.split(CROSS))}
    first, *others = columns
    crossed, names = first.transform(table[first.column], known_names)
    for column in others:
        codes, values = column.transform(table[column.column], known_names)
        crossed = np.where((crossed < 0) | (codes < 0), -1, crossed * len(values) + codes)
        names = [f"{name}{CROSS}{value}" for name in names for value in values]
    present = np.unique(crossed[crossed >= 0])
    rank = np.full(len(names) + 1, -1, dtype=np.int64)
    rank[present] = np.arange(len(present))
    return GroupCodes(rank[crossed], [names[k] for k in present])


def _bins_by_column(table: Table, bins: BinsGiven) -> Mapping[str, Bins]:
    names = [str(name) for name in table]
    if bins is None:
        return {}
    if isinstance(bins, Mapping):
        for name in bins:
            if name not in names:
                value = f"{name!r} is not a sensitive column"
                raise InputError("sensitive_bins", value, f"there are {shortlist(names)}")
        return bins
    numeric = [name for name in names if as_numbers(table[name]) is not None]
    if len(numeric) != 1:
        problem = f"{shortlist(numeric)} all do" if numeric else "no sensitive column holds numbers"
        value = f"{bins!r} cuts one column of numbers, but {problem}"
        raise InputError("sensitive_bins", value, "name it, as in {'age': [25, 40]}")
    return {numeric[0]: bins}


def _cut_points(series: pd.Series, bins: Bins, report: LoadReport) -> list[float]:
    numbers, title = as_numbers(series, report=report), f"column {series.name!r}"
    if numbers is None:
        raise InputError("sensitive_bins", f"{title} does not hold numbers", "leave the bins out")
    if not isinstance(bins, int | np.integer):
        cuts = np.asarray(list(bins), dtype=np.float64)
        if not len(cuts) or not np.isfinite(cuts).all() or (np.diff(cuts) <= 0).any():
            value = f"{list(bins)!r} are not ascending cut points"
            raise InputError("sensitive_bins", value, "give some, as in [25, 40]")
        return cuts.tolist()
    if bins < 2:
        raise InputError("sensitive_bins", f"{bins} makes one group at most", "give 2 or more")
    present = numbers[~np.isnan(numbers)]
    if not len(present):
        return []
    # Cuts are values that occur, so that no bin is empty; a cut at the smallest value would leave
    # nothing below it.
    cuts = np.quantile(present, np.arange(1, bins) / bins, method="higher")
    cuts = np.unique(cuts[cuts > present.min()])
    if len(cuts) + 1 < bins:
        count = f"there are {plural(len(cuts) + 1, 'group')} instead of {bins}"
        report.notes.append(f"{title}: many nodes share a value, so {count}")
    return cuts.tolist()


def _bin_names(name: str, cuts: Sequence[float]) -> list[str]:
    texts = [f"{cut:.6g}" for cut in cuts]
    if not texts:
        return [name]
    middle = [f"{low} ≤ {name} < {high}" for low, high in pairwise(texts)]
    return [f"{name} < {texts[0]}", *middle, f"{name} ≥ {texts[-1]}"]


def _unknown_values(values: Iterable[Any], unknown: Sequence[Any] | None) -> tuple[str, ...]:
    """The values that mean "unknown", as text; by default −1 beside two other numbers from 0 up."""
    values = list(values)
    if unknown is None:
        usual = all(isinstance(v, int | float) and (v >= 0 or v == -1) for v in values)
        return ("-1",) if usual and sum(value >= 0 for value in values) > 1 else ()
    spellings = [as_text(v) for v in values if any(_is_same(v, other) for other in unknown)]
    return tuple(dict.fromkeys([*map(as_text, unknown), *spellings]))


def _without_unknown(
    series: pd.Series, unknown: Collection[str], role: str, report: LoadReport, *, detected: bool
) -> pd.Series:
    """Empty the cells of a column that mean "unknown", with a note if these were ``detected``."""
    masked = _mask(series, unknown)
    count = int(series.count() - masked.count())
    if detected and count:
        note = f"−1 counts as unknown ({plural(count, 'node')}); unknown=() makes it a value"
        report.notes.append(f"{role} {series.name!r}: {note}")
    return masked


def _mask(series: pd.Series, unknown: Collection[str]) -> pd.Series:
    """Empty the cells of a column whose text is ``unknown``."""
    if not unknown:
        return series
    codes, values = factorize(series)
    masked = np.array([*(as_text(value) in unknown for value in values), False])[codes]
    return series.mask(masked) if masked.any() else series


def _all_numbers(values: Iterable[Any]) -> bool:
    return all(isinstance(value, int | float) for value in values)


def _is_same(value: Any, typed: Any) -> bool:
    """Whether a value is the one a person typed: 1, 1.0 and "1" are the same, True and "true"."""
    if value == typed or as_text(value) == as_text(typed):
        return True
    return isinstance(value, bool) and str(typed).casefold() == str(value).casefold()


def _as_in_training(text: str, training_names: Collection[str], stem: str = "") -> str:
    """Write a boolean as training did: 0 and 1 in one table may be False and True in another."""
    other = _OTHER_BOOLEAN.get(text, text)
    return other if stem + text not in training_names and stem + other in training_names else text

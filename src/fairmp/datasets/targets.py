"""Encoders of the label and the sensitive columns: fitted on one table, applied to any table."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from fairmp.datasets.load_report import LoadReport
from fairmp.datasets.spellings import spelling_notes
from fairmp.datasets.values import (
    MAX_CATEGORIES,
    MAX_DISTINCT_SHARE,
    as_numbers,
    as_text,
    factorize,
    from_text,
    refuse_inexact,
)
from fairmp.errors import InputError, plural, shortlist
from fairmp.metrics.inputs import CROSS, ORDERED, guess_positive

Table = Mapping[str, pd.Series] | pd.DataFrame

Bins = int | Sequence[float]
BinsGiven = Bins | Mapping[str, Bins] | None
UnknownGroups = Literal["refuse", "allow", "ignore"]  # ignore: nothing reads the groups

OTHER = "other"  # name of the rare groups together
# fmt: off
UNKNOWN_WORDS = frozenset({  # a group of this name may stand for people whose group is not known
    "-", "--", ".", "declined", "missing", "n.a.", "na", "n/a", "nan", "no answer", "none",
    "not applicable", "not available", "not known", "not provided", "not reported",
    "not specified", "not stated", "null", "prefer not to answer", "prefer not to say", "refused",
    "undefined", "undisclosed", "unknown", "unspecified",
})
# fmt: on
_OTHER_BOOLEAN = {"True": "1", "False": "0", "1": "True", "0": "False"}


@dataclass(frozen=True)
class Label:
    """Encoder of the label column."""

    column: str
    classes: tuple[str, ...]  # the values as text
    unknown: tuple[str, ...]  # values that mean "unknown"
    positive: bool  # one value is class 1 and all others are class 0
    text: bool = False  # the classes are text, also those that look like numbers

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
        refuse_inexact(series, "label")
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
        elif (good := guess_positive(classes)) is not None:
            classes = [name for name in classes if name != good] + [good]
            report.guess = positive_note(good, str(series.name), "guessed")
        elif len(classes) == 2 and set(classes) not in ORDERED and not _all_numbers(values):
            reason = "only because it is the last in order"
            report.guess = positive_note(classes[1], str(series.name), reason)
        report.notes += spelling_notes(_counts(series), f"label {str(series.name)!r}")
        text = any(isinstance(value, str) for value in values)
        return cls(str(series.name), tuple(classes), unknown_texts, positive is not None, text)

    def transform(self, series: pd.Series, report: LoadReport) -> np.ndarray:
        """Encode a column as classes (n, int64), −1 where unknown."""
        codes, values = factorize(_mask(series, self.unknown))
        classes = {name: k for k, name in enumerate(self.classes)}
        values = values if self.text else [from_text(value) for value in values]
        texts = [as_in_training(as_text(value), classes) for value in values]
        new = [text for text in texts if text not in classes]
        if new and not self.positive:
            value = f"{new[0]!r} in column {self.column!r} is not a class seen in training"
            hint = "empty the cell, or train again"
            raise InputError("label", f"{value} ({shortlist(self.classes)})", hint)
        y = np.array([*(classes.get(text, 0) for text in texts), -1], dtype=np.int64)[codes]
        report.unknown_labels = int((y < 0).sum())
        return y


def positive_note(name: str, column: str, reason: str) -> str:
    """Say which decision is taken for the good one, and why."""
    return f"the positive class is {name!r} ({column}), {reason}; name another with 'positive'"


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
    text: bool = False  # the values are text, also those that look like numbers

    @classmethod
    def fit(
        cls, series: pd.Series, bins: Bins | None, unknown: Sequence[Any] | None, report: LoadReport
    ) -> Sensitive:
        """Learn the values of a column, or where to cut a column of numbers."""
        name = str(series.name)
        if bins is None:
            refuse_inexact(series, "sensitive")
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
        if unknown is None:
            _ask_about_unknown(series, values)
        numeric = _all_numbers(values)
        title = f"column {name!r} has {len(values):,} different"
        if len(values) > MAX_CATEGORIES and numeric:
            hint = "cut it into groups, as with {sensitive_bins=3} or {sensitive_bins=[25, 40]}"
            raise InputError("sensitive", f"{title} numbers", hint)
        if len(values) > MAX_CATEGORIES and len(values) > MAX_DISTINCT_SHARE * series.count():
            value = f"{title} values, nearly one per row"
            raise InputError("sensitive", value, "give a column with groups")
        report.notes += spelling_notes(_counts(series), f"sensitive {name!r}")
        text = any(isinstance(value, str) for value in values)
        return cls(name, numeric, None, (), unknown_texts, text)

    def transform(self, series: pd.Series, groups: Collection[str] = ()) -> GroupCodes:
        """Encode a column; the names of its values are written as those of ``groups``."""
        series = _mask(series, self.unknown)
        if self.cuts is None:
            codes, values = factorize(series)
            stem = f"{self.column} = " if self.named else ""
            values = values if self.text else [from_text(value) for value in values]
            texts = [as_in_training(as_text(value), groups, stem) for value in values]
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
    rare: tuple[str, ...] = ()  # names of the groups that are in OTHER

    @classmethod
    def fit(
        cls,
        table: Table,
        bins: BinsGiven,
        unknown: Sequence[Any] | None,
        report: LoadReport,
        *,
        min_group: int = 0,
        labelled: np.ndarray | None = None,
    ) -> GroupEncoder:
        """Learn the groups of a table; ``bins`` and ``unknown`` are those of from_tables.

        Groups with fewer than ``min_group`` nodes, of those that are ``labelled``, become one.
        """
        bins = _bins_by_column(table, bins)
        names = [str(name) for name in table]
        columns = [Sensitive.fit(table[name], bins.get(name), unknown, report) for name in names]
        crossed = _cross(columns, table)
        rare = _rare_groups(crossed, labelled, min_group, report)
        groups = [name for name in dict.fromkeys(crossed.names) if name not in rare]
        if rare:
            groups = [name for name in groups if name != OTHER] + [OTHER]
        if len(groups) < 2:
            only = f"one group, {groups[0]!r}" if groups else "no known value"
            value = f"{', '.join(map(repr, names))} gives {only}"
            raise InputError("sensitive", value, "a gap needs two groups")
        return cls(tuple(columns), tuple(groups), rare)

    def transform(
        self, table: Table, report: LoadReport, unknown_groups: UnknownGroups = "refuse"
    ) -> np.ndarray:
        """Encode the groups of a table (n, int64), −1 where unknown."""
        codes, names = _cross(self.columns, table, (*self.groups, *self.rare))
        index = {name: g for g, name in enumerate(self.groups)}
        index |= dict.fromkeys(self.rare, index.get(OTHER, -1))
        new = np.array([*(name not in index for name in names), False])[codes]
        if new.any() and unknown_groups != "ignore":
            example = names[int(codes[new][0])]
            if unknown_groups == "refuse":
                value = f"group {example!r} was not seen in training ({shortlist(self.groups)})"
                allow = "treat such groups as unknown ({unknown_groups='allow'})"
                raise InputError("sensitive", value, f"empty the cell, {allow}, or train again")
            nodes = f"{plural(int(new.sum()), 'node')} of a group not seen in training"
            report.notes.append(f"{nodes} (such as {example!r}), treated as unknown")
        sens = np.array([*(index.get(name, -1) for name in names), -1], dtype=np.int64)[codes]
        if unknown_groups != "ignore":
            report.unknown_groups = int((sens < 0).sum())
        return sens


def _ask_about_unknown(series: pd.Series, values: Sequence[Any]) -> None:
    """Refuse groups that may stand for people whose group is not known."""
    words = [value for value in values if str(value).strip().casefold() in UNKNOWN_WORDS]
    if words:
        nodes = plural(int(series.isin(words).sum()), "node")
        names = " and ".join(map(repr, words))
        value = f"column {series.name!r} has {names} ({nodes}): a group, or not known?"
        hint = f"say {{unknown={words!r}}} if not known, or {{unknown=['']}} if it is a group"
        raise InputError("sensitive", value, hint)


def _rare_groups(
    crossed: GroupCodes, labelled: np.ndarray | None, min_group: int, report: LoadReport
) -> tuple[str, ...]:
    """The groups with fewer nodes than ``min_group``, which must reach it together."""
    counted = crossed.codes >= 0
    if labelled is not None:
        counted &= labelled
    counts = dict.fromkeys(crossed.names, 0)
    for code, count in zip(*np.unique(crossed.codes[counted], return_counts=True), strict=True):
        counts[crossed.names[code]] += int(count)
    rare = [name for name, count in counts.items() if count < min_group]
    together = sum(counts[name] for name in {*rare, OTHER} if name in counts)
    listed = shortlist([f"{name} {counts[name]}" for name in rare], 8)
    if rare and together < min_group:
        value = f"{listed}: {plural(together, 'labelled node')} together, fewer than {min_group}"
        raise InputError("min_group", value, "give a smaller number, or empty these cells")
    if rare:
        report.notes.append(f"groups of fewer than {min_group} nodes are {OTHER!r}: {listed}")
    return tuple(rare)


def _cross(columns: Sequence[Sensitive], table: Table, groups: Collection[str] = ()) -> GroupCodes:
    """Code the combinations of values that occur, and name them."""
    known_names = {name for group in groups for name in (group, *group.split(CROSS))}
    parts = [column.transform(table[column.column], known_names) for column in columns]
    if len(columns) > 1:
        for column, part in zip(columns, parts, strict=True):
            _refuse_cross_sign(column, part.names)
    crossed, names = _present_codes(parts[0].codes, parts[0].names.__getitem__)
    for part in parts[1:]:
        before, count = names, len(part.names)
        unknown = (crossed < 0) | (part.codes < 0)
        crossed, names = _present_codes(
            np.where(unknown, -1, crossed * count + part.codes),
            lambda code: f"{before[code // count]}{CROSS}{part.names[code % count]}",  # noqa: B023
        )
    return GroupCodes(crossed, names)


def _present_codes(codes: np.ndarray, name: Callable[[int], str]) -> GroupCodes:
    """Number the codes that occur from 0, and name them; −1 stays."""
    present, rank = np.unique(codes, return_inverse=True)
    unknown = int((present < 0).sum())
    return GroupCodes(rank - unknown, [name(int(code)) for code in present[unknown:]])


def _refuse_cross_sign(column: Sensitive, names: Sequence[str]) -> None:
    """Refuse values that would make the name of a crossed group that of another."""
    stem = f"{column.column} = " if column.named else ""
    # A value that begins or ends with the sign would join it to that of the crossing.
    wrong = [name for name in names if CROSS in f" {name.removeprefix(stem)} "]
    if column.cuts is None and wrong:
        value = f"{wrong[0]!r} in column {column.column!r} has {CROSS!r}, which crossed groups have"
        raise InputError("sensitive", value, "write it differently")


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
    texts = [as_text(cut) for cut in cuts]
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


def _counts(series: pd.Series) -> dict[str, int]:
    """How often each text of a column occurs."""
    return {text: int(n) for text, n in series.value_counts().items() if isinstance(text, str)}


def _all_numbers(values: Iterable[Any]) -> bool:
    return all(isinstance(value, int | float) for value in values)


def _is_same(value: Any, typed: Any) -> bool:
    """Whether a value is the one a person typed: 1, 1.0 and "1" are the same, True and "true"."""
    if value == typed or as_text(value) == as_text(typed):
        return True
    return isinstance(value, bool) and str(typed).casefold() == str(value).casefold()


def as_in_training(text: str, training_names: Collection[str], stem: str = "") -> str:
    """Write a boolean as training did: 0 and 1 in one table may be False and True in another."""
    other = _OTHER_BOOLEAN.get(text, text)
    return other if stem + text not in training_names and stem + other in training_names else text

"""Columns of a table: what they hold, how they become features, and the report on what was loaded.

Unlike scikit-learn's scalers and encoders, those here fill missing values, cap the number of
categories, match values across types (the category ``1`` of one file is ``"1"`` in another) and
refuse a column that changed its kind.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fairmp.errors import InputError, shortlist

if TYPE_CHECKING:
    import pandas as pd

MISSING = ("", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "NaT", "null", "NULL", "None", "?")
"""Text that marks a missing value, in files, DataFrames and arguments alike."""

Scale = Literal["standard", "minmax", "none"]
Bins = int | Sequence[float]
BinsGiven = Bins | Mapping[str, Bins] | None

MAX_NUMBER = 1e30  # a larger number is an error: its square is beyond the range of float32
MAX_DEVIATIONS = 1e6  # scaled numbers of new tables are clipped there; those of training are below
MAX_DENSITY = 0.1  # share of numbers that are not 0, up to which features count as mostly 0
MAX_CATEGORIES = 20
"""Default number of categories with a feature each; more distinct numbers are a quantity."""


def counted(count: int, noun: str) -> str:
    """Write a count with its noun: "1 row", "1,200 rows"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


@dataclass
class LoadReport:
    """What a loader read, kept and dropped; ``data.report`` of every loaded graph.

    Example:
        >>> print(LoadReport(nodes=3, edge_rows=4, self_loops=1, edges=3, notes=["a note"]))
        3 nodes, 3 undirected edges from 4 edge rows
        1 self-loop dropped
        a note
    """

    nodes: int = 0
    edge_rows: int = 0  # rows of the edge table
    dangling: int = 0  # rows with an id that is not in the node table; dropped
    self_loops: int = 0  # rows that join a node to itself; dropped
    repeated: int = 0  # rows that repeat an earlier one, in the same direction; dropped
    reciprocal: int = 0  # edges given in both directions
    edges: int = 0  # undirected edges kept
    unknown_labels: int = 0  # nodes without a label (−1)
    unknown_groups: int = 0  # nodes without a sensitive group (−1)
    missing: dict[str, int] = field(default_factory=dict)  # missing values of feature columns
    notes: list[str] = field(default_factory=list)  # all else, one sentence each

    def lines(self) -> list[str]:
        """Return the report as lines, without the counts that are 0."""
        counts = [
            (self.dangling, "dangling edge row", " dropped: an end is not in the node table"),
            (self.self_loops, "self-loop", " dropped"),
            (self.repeated, "repeated edge row", " dropped"),
            (self.reciprocal, "edge", " given in both directions"),
            (self.unknown_labels, "node", " without a label"),
            (self.unknown_groups, "node", " without a sensitive group"),
        ]
        edges, rows = counted(self.edges, "undirected edge"), counted(self.edge_rows, "edge row")
        lines = [f"{counted(n, noun)}{rest}" for n, noun, rest in counts if n]
        if self.missing:
            most = sorted(self.missing.items(), key=lambda item: -item[1])
            shown = shortlist([f"{name} {count:,}" for name, count in most], 8)
            lines.append(f"missing values filled: {shown}{' columns' * (len(most) > 8)}")
        return [f"{counted(self.nodes, 'node')}, {edges} from {rows}", *lines, *self.notes]

    def __str__(self) -> str:
        return "\n".join(self.lines())


def rescale(x: np.ndarray, scale: Scale) -> np.ndarray:
    """Scale columns to float32; a constant one becomes 0."""
    result = x.astype(np.float32)
    if scale == "none" or not len(x):
        return result
    # Not those of 0 and 1: dividing a rare indicator by its deviation makes its few ones huge.
    for j in np.flatnonzero(((x != 0) & (x != 1)).any(axis=0)):
        values = x[:, j].astype(np.float64)
        shift, divisor = shift_and_divisor(values, scale)
        result[:, j] = (values - shift) / divisor
    return result


def shift_and_divisor(values: np.ndarray, scale: Scale) -> tuple[float, float]:
    """What a scale subtracts from known numbers, and what it divides the rest by."""
    if scale == "none":
        return 0.0, 1.0
    low, high = float(values.min()), float(values.max())
    shift, divisor = low, high - low
    if scale == "standard" and low < high:
        shift, divisor = float(values.mean()), float(values.std())
        if divisor == 0:  # the differences are too small to be squared
            divisor = float(((values - low) / (high - low)).std()) * (high - low)
    return (shift, divisor) if divisor > 0 else (shift, 1.0)


def as_numbers(
    series: pd.Series, max_categories: int = MAX_CATEGORIES, report: LoadReport | None = None
) -> np.ndarray | None:
    """Return a column as float64, dates as days, with NaN for missing; None if not numeric.

    Text that is no number is missing, with a note, where it is at most 10 % of a column with more
    distinct values than ``max_categories``. So are infinite and absurdly large numbers.
    """
    import pandas as pd

    notes = [] if report is None else report.notes
    if isinstance(series.dtype, pd.CategoricalDtype):
        return None
    if series.dtype.kind == "M":
        seconds = series.to_numpy(dtype="datetime64[s]").astype(np.float64)
        return np.where(series.isna(), np.nan, seconds / 86_400)
    numbers = pd.to_numeric(series, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    given = series.notna().to_numpy()
    other = given & np.isnan(numbers)
    beyond = np.abs(numbers) > MAX_NUMBER  # False for NaN
    if beyond.any():
        infinite = bool(np.isinf(numbers[beyond]).all())
        count = counted(int(beyond.sum()), "infinite value" if infinite else "value")
        size = "" if infinite else f" beyond ±{MAX_NUMBER:g}"
        notes.append(f"column {series.name!r}: {count}{size} ({_rows(beyond)}) taken as missing")
        numbers = np.where(beyond, np.nan, numbers)
    if other.any():
        if other.sum() > 0.1 * given.sum() or series.nunique() <= max_categories:
            return None
        count, example = counted(int(other.sum()), "non-numeric value"), series[other].iloc[0]
        notes.append(f"column {series.name!r}: {count} (such as {example!r}) taken as missing")
    return numbers


def _rows(chosen: np.ndarray) -> str:
    """Name some rows (a mask) by their numbers, from 1."""
    numbers = [f"{k + 1:,}" for k in np.flatnonzero(chosen)]
    return f"{'row' if len(numbers) == 1 else 'rows'} {shortlist(numbers, 5)}"


def without_missing_text(series: pd.Series) -> pd.Series:
    """Return a column whose text cells in :data:`MISSING` are missing values."""
    if series.dtype.kind not in "OU":
        return series
    missing = series.isin(MISSING)
    return series.mask(missing) if missing.any() else series


def factorize(series: pd.Series) -> tuple[np.ndarray, list[Any]]:
    """Code the values of a column, numbers by size, then others as text; missing ones are −1."""
    import pandas as pd

    def key(k: int) -> tuple[int, float, str]:
        value = values[k]
        return (0, float(value), "") if isinstance(value, int | float) else (1, 0.0, str(value))

    codes, uniques = pd.factorize(series, use_na_sentinel=True)
    values = [value.item() if isinstance(value, np.generic) else value for value in uniques]
    order = sorted(range(len(values)), key=key)
    rank = np.empty(len(values) + 1, dtype=np.int64)
    rank[order] = np.arange(len(values))
    rank[-1] = -1
    return rank[codes], [values[k] for k in order]


def as_text(value: Any) -> str:
    """Write a value as people do: ``1.0`` is "1"."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def closest(name: str, names: Sequence[str]) -> str | None:
    """The name most similar to a misspelled one, if any is."""
    folded = [other for other in names if other.casefold().strip() == name.casefold().strip()]
    return next(iter(folded or difflib.get_close_matches(name, names, n=1, cutoff=0.5)), None)


SEPARATORS = "is it separated by commas, semicolons, tabs, '|' or spaces?"


def require_column(argument: str, column: str, columns: Sequence[str], table: str) -> None:
    """Refuse the name of a column that a table lacks."""
    if column in columns:
        return
    best = closest(str(column), columns)
    value = f"{table} has no column {column!r}" + (f", did you mean {best!r}?" if best else "")
    hint = f"there are {shortlist(columns, 30)}"
    if len(columns) == 1:
        hint = f"there is only {columns[0]}; {SEPARATORS}"
    raise InputError(argument, value, hint)


@dataclass(frozen=True)
class Number:
    """Encoder of a column of numbers or dates."""

    name: str
    dates: bool  # dates count as days
    shift: float
    divisor: float
    fill: float  # scaled value of a missing number: the mean
    varied: bool  # the numbers are a feature, since they are not constant
    missing: bool  # there is a feature "name missing"

    @classmethod
    def fit(
        cls, series: pd.Series, values: np.ndarray, scale: Scale, report: LoadReport
    ) -> Number | None:
        """Learn the scale of a column's numbers (NaN: missing); None if they carry nothing."""
        missing = np.isnan(values)
        known = values[~missing]
        varied = len(known) > 0 and bool((known != known[0]).any())
        if not len(known) or not (varied or missing.any()):
            return None
        indicator = ((known == 0) | (known == 1)).all()
        shift, divisor = (0.0, 1.0) if indicator else shift_and_divisor(known, scale)
        if scale == "standard" and varied and (known != 0).mean() < MAX_DENSITY:
            shift = 0.0  # zeros stay zeros
        fill = float(((known - shift) / divisor).mean())
        dates, name = series.dtype.kind == "M", str(series.name)
        low, high = np.quantile(known, [0.05, 0.95])
        if scale != "none" and 0 < high - low < divisor / 1e4:
            far = ~missing & (np.abs(values - low) > 1e3 * (high - low))
            most = f"the other numbers hardly differ beside {_rows(far)}, which may be errors"
            report.notes.append(f"column {name!r}: {most}")
        return cls(name, dates, shift, divisor, fill, varied, bool(missing.any()))

    @property
    def feature_names(self) -> list[str]:
        """Names of the features."""
        return [self.name] * self.varied + [f"{self.name} missing"] * self.missing

    def codes(self, series: pd.Series, report: LoadReport) -> np.ndarray:
        """Return the numbers of a column, NaN for missing; a column of another kind is refused."""
        import pandas as pd

        if isinstance(series.dtype, pd.CategoricalDtype):
            series = series.astype(object)
        given = series.dropna()
        if len(given) and (series.dtype.kind == "M") != self.dates:
            was, now = ("dates", "no dates") if self.dates else ("numbers", "dates")
            raise _changed(self.name, f"held {was} in training and holds {now} now")
        numbers = as_numbers(series, 0, report)
        if numbers is None:
            text = given[pd.to_numeric(given, errors="coerce").isna()].iloc[0]
            raise _changed(self.name, f"held numbers in training and now holds {as_text(text)!r}")
        if missing := int(np.isnan(numbers).sum()):
            report.missing[self.name] = missing
        return numbers

    def expand(self, codes: np.ndarray) -> np.ndarray:
        """Turn numbers (n, NaN missing) into features (n×d)."""
        missing = np.isnan(codes)
        scaled = np.where(missing, self.fill, (codes - self.shift) / self.divisor)
        if self.divisor != 1:
            scaled = np.clip(scaled, -MAX_DEVIATIONS, MAX_DEVIATIONS)
        parts = [scaled] * self.varied + [missing.astype(np.float64)] * self.missing
        return np.stack(parts, axis=1)


@dataclass(frozen=True)
class Category:
    """One-hot encoder of a column of text or categories."""

    name: str
    values: tuple[str | float | bool, ...]  # values with a feature each
    labels: tuple[str, ...]  # names of these features
    other: bool  # there is a feature "name=other" for all other values
    missing: bool  # there is a feature "name=missing"

    @classmethod
    def fit(cls, series: pd.Series, max_categories: int, report: LoadReport) -> Category | None:
        """Learn the most frequent values of a column; None if it carries nothing."""
        name = str(series.name)
        codes, values = factorize(series)
        counts = np.bincount(codes[codes >= 0], minlength=len(values))
        missing, many = bool((codes < 0).any()), len(values) > max_categories
        if (many and len(values) > 0.9 * counts.sum()) or (len(values) == 1 and not missing):
            return None
        if many:
            report.notes.append(
                f"column {name!r} has {len(values):,} categories: the {max_categories} most"
                " frequent have a feature each, the others share one"
            )
            frequent = np.argsort(-counts, kind="stable")[:max_categories]
            values = [values[int(k)] for k in np.sort(frequent)]
        kept = tuple(v if isinstance(v, str | int | float) else str(v) for v in values)
        return cls(name, kept, tuple(f"{name}={value}" for value in values), many, missing)

    @property
    def feature_names(self) -> list[str]:
        """Names of the features."""
        rest = [f"{self.name}=other"] * self.other + [f"{self.name}=missing"] * self.missing
        return [*self.labels, *rest]

    def codes(self, series: pd.Series, report: LoadReport) -> np.ndarray:
        """Return the index of each cell's value, ``len(values)`` if unknown, −1 if missing."""
        codes, values = factorize(series)
        known = len(self.values)
        exact = {value: k for k, value in enumerate(self.values)}
        # A code may be read as a number in one table and as text in another.
        written = {as_text(value): k for k, value in reversed(list(enumerate(self.values)))}
        index = np.array([exact.get(v, written.get(as_text(v), known)) for v in values], dtype=int)
        same_kind = {type(v) is str for v in values} & {type(v) is str for v in self.values}
        if len(values) and (index == known).all() and not same_kind:
            was, now = as_text(self.values[0]), as_text(values[0])
            how = f"had values such as {was!r} in training and now holds {now!r}"
            raise _changed(self.name, how)
        index = np.append(index, -1)[codes]
        unseen = index == known
        if unseen.any() and not self.other:
            example = values[int(codes[unseen][0])]
            report.notes.append(
                f"column {self.name!r}: {counted(int(unseen.sum()), 'node')} with a category not"
                f" seen in training (such as {as_text(example)!r}), encoded as none of the known"
            )
        if missing := int((index < 0).sum()):
            report.missing[self.name] = missing
        return index

    def expand(self, codes: np.ndarray) -> np.ndarray:
        """Turn codes (n) into one-hot features (n×d)."""
        parts = [codes == k for k in range(len(self.values) + self.other)]
        return np.stack(parts + [codes < 0] * self.missing, axis=1).astype(np.float64)


Column = Number | Category


def _changed(name: str, how: str) -> InputError:
    hint = "give the same kind of values, or empty cells"
    return InputError("nodes", f"column {name!r} {how}", hint)


def fit_column(
    series: pd.Series,
    *,
    categorical: bool = False,
    max_categories: int = MAX_CATEGORIES,
    scale: Scale = "standard",
    report: LoadReport | None = None,
) -> Column | None:
    """Learn how a column becomes features; None, with a note, if it carries no information.

    - Numbers and dates (as days) are scaled; where some are missing, their mean takes their place
      and a feature ``name missing`` marks them. Infinite numbers, and those beyond ±1e30,
      count as missing, with a note.
    - Booleans are 0 and 1.
    - Text and categories are one-hot, ``name=value``: the ``max_categories`` most frequent have a
      feature each, the rest share ``name=other``, and ``name=missing`` marks missing values.
    - Text with a different value in nearly every row (a name, an e-mail address) and columns that
      are constant or empty are left out.
    """
    report = report or LoadReport()
    if series.isna().all():
        report.notes.append(f"column {series.name!r} is empty and left out")
        return None
    column: Column | None
    numbers = None if categorical else as_numbers(series, max_categories)
    if numbers is None:
        column = Category.fit(series, max_categories, report)
        constant = series.nunique() < 2
        why = "has one value" if constant else "has a different value in nearly every row"
    else:
        column = Number.fit(series, numbers, scale, report)
        none = f"has no number within ±{MAX_NUMBER:g}"
        why = none if np.isnan(numbers).all() else "has one value"
    if column is None:
        report.notes.append(f"column {series.name!r} {why} and is left out")
    return column

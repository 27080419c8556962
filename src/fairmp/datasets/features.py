"""Feature encoders: fitted on the column of one table, applied to the same column of any table.

Unlike scikit-learn's scalers and encoders these fill missing values, cap the number of categories,
match values across types (the category ``1`` of one file is ``"1"`` in another) and refuse a column
that changed its kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fairmp.datasets import columns
from fairmp.datasets.columns import MAX_CATEGORIES, Scale, as_numbers, as_text, factorize
from fairmp.datasets.edges import LoadReport, counted
from fairmp.errors import InputError

if TYPE_CHECKING:
    import pandas as pd


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
    def fit(cls, series: pd.Series, values: np.ndarray, scale: Scale) -> Number | None:
        """Learn the scale of a column's numbers (NaN: missing); None if they carry nothing."""
        missing = np.isnan(values)
        known = values[~missing]
        varied = len(known) > 0 and bool((known != known[0]).any())
        if not len(known) or not (varied or missing.any()):
            return None
        indicator = ((known == 0) | (known == 1)).all()
        shift, divisor = (0.0, 1.0) if indicator else columns.shift_and_divisor(known, scale)
        fill = float(((known - shift) / divisor).mean())
        dates = columns.holds_dates(series)
        return cls(str(series.name), dates, shift, divisor, fill, varied, bool(missing.any()))

    @property
    def feature_names(self) -> list[str]:
        """Names of the features."""
        return [self.name] * self.varied + [f"{self.name} missing"] * self.missing

    def transform(self, series: pd.Series, report: LoadReport | None = None) -> np.ndarray:
        """Encode a column as features (n×d)."""
        return self.expand(self.codes(series, report or LoadReport()))

    def codes(self, series: pd.Series, report: LoadReport) -> np.ndarray:
        """Return the numbers of a column, NaN for missing; a column of another kind is refused."""
        import pandas as pd

        if isinstance(series.dtype, pd.CategoricalDtype):
            series = series.astype(object)
        given = series.dropna()
        if len(given) and columns.holds_dates(series) != self.dates:
            was, now = ("dates", "no dates") if self.dates else ("numbers", "dates")
            raise _changed(self.name, f"held {was} in training and holds {now} now")
        numbers = as_numbers(series, 0, report)
        if numbers is None:
            text = given[pd.to_numeric(given, errors="coerce").isna()].iloc[0]
            raise _changed(self.name, f"held numbers in training and now holds {as_text(text)!r}")
        missing = int(np.isnan(numbers).sum())
        if missing:
            report.missing[self.name] = missing
        return numbers

    def expand(self, codes: np.ndarray) -> np.ndarray:
        """Turn numbers (n, NaN missing) into features (n×d)."""
        missing = np.isnan(codes)
        scaled = np.where(missing, self.fill, (codes - self.shift) / self.divisor)
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

    def transform(self, series: pd.Series, report: LoadReport | None = None) -> np.ndarray:
        """Encode a column as features (n×d)."""
        return self.expand(self.codes(series, report or LoadReport()))

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
        if (index < 0).any():
            report.missing[self.name] = int((index < 0).sum())
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
      and a feature ``name missing`` marks them. Infinite numbers count as missing, with a note.
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
    numbers = None if categorical else as_numbers(series, max_categories)
    column: Column | None
    if numbers is None:
        column = Category.fit(series, max_categories, report)
    else:
        column = Number.fit(series, numbers, scale)
    if column is None:
        constant = series.nunique() < 2 or numbers is not None
        why = "has one value" if constant else "has a different value in nearly every row"
        report.notes.append(f"column {series.name!r} {why} and is left out")
    return column

"""Encoders of feature columns, fitted on one table and applied to any table.

Unlike scikit-learn's scalers and encoders, those here fill missing values, cap the number of
categories, match values across types (the category ``1`` of one file is ``"1"`` in another) and
refuse a column that changed its kind.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from fairmp.datasets.load_report import LoadReport
from fairmp.datasets.values import (
    MAX_CATEGORIES,
    MAX_DISTINCT_SHARE,
    MAX_NUMBER,
    as_numbers,
    as_text,
    factorize,
    from_text,
    name_rows,
)
from fairmp.errors import InputError, plural

Scale = Literal["standard", "minmax", "none"]

MAX_DEVIATIONS = 1e6  # scaled numbers of new tables are clipped there; those of training are below
MAX_UNSEEN_SHARE = 0.1  # of new cells, beyond which there is a warning
MAX_DENSITY = 0.1  # share of numbers that are not 0, up to which features count as mostly 0


class Scaling(NamedTuple):
    """Scaled numbers are ``(numbers - shift) / divisor``."""

    shift: float
    divisor: float


def fit_scaling(numbers: np.ndarray, scale: Scale) -> Scaling:
    """Learn the scaling of numbers that are all known; constant ones become 0."""
    if scale == "none":
        return Scaling(0.0, 1.0)
    low, high = float(numbers.min()), float(numbers.max())
    if low == high:
        return Scaling(low, 1.0)
    if scale == "minmax":
        return Scaling(low, high - low)
    deviation = float(numbers.std())
    if deviation == 0:  # the differences are too small to be squared
        deviation = float(((numbers - low) / (high - low)).std()) * (high - low)
    return Scaling(float(numbers.mean()), deviation if deviation > 0 else 1.0)


def rescale(x: np.ndarray, scale: Scale) -> np.ndarray:
    """Scale the columns of a matrix to float32."""
    result = x.astype(np.float32)
    if scale == "none" or not len(x):
        return result
    # Not those of 0 and 1: dividing a rare indicator by its deviation makes its few ones huge.
    for column in np.flatnonzero(((x != 0) & (x != 1)).any(axis=0)):
        numbers = x[:, column].astype(np.float64)
        scaling = fit_scaling(numbers, scale)
        result[:, column] = (numbers - scaling.shift) / scaling.divisor
    return result


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
        cls, series: pd.Series, numbers: np.ndarray, scale: Scale, report: LoadReport
    ) -> Number | None:
        """Learn the scale of a column's numbers (NaN: missing); None if they carry nothing."""
        missing = np.isnan(numbers)
        present = numbers[~missing]
        varied = len(present) > 0 and bool((present != present[0]).any())
        if not len(present) or not (varied or missing.any()):
            return None
        is_indicator = bool(((present == 0) | (present == 1)).all())
        shift, divisor = fit_scaling(present, "none" if is_indicator else scale)
        if scale == "standard" and varied and (present != 0).mean() < MAX_DENSITY:
            shift = 0.0  # zeros stay zeros
        low, high = np.quantile(present, [0.05, 0.95])
        if scale != "none" and 0 < high - low < divisor / 1e4:
            far = name_rows(~missing & (np.abs(numbers - low) > 1e3 * (high - low)))
            note = f"the other numbers hardly differ beside {far}, which may be errors"
            report.notes.append(f"column {series.name!r}: {note}")
        return cls(
            name=str(series.name),
            dates=series.dtype.kind == "M",
            shift=shift,
            divisor=divisor,
            fill=float(((present - shift) / divisor).mean()),
            varied=varied,
            missing=bool(missing.any()),
        )

    @property
    def feature_names(self) -> list[str]:
        """Names of the features."""
        return [self.name] * self.varied + [f"{self.name} missing"] * self.missing

    def codes(self, series: pd.Series, report: LoadReport) -> np.ndarray:
        """Return the numbers of a column, NaN for missing; a column of another kind is refused."""
        if isinstance(series.dtype, pd.CategoricalDtype):
            series = series.astype(object)
        present = series.dropna()
        if len(present) and (series.dtype.kind == "M") != self.dates:
            before, now = ("dates", "no dates") if self.dates else ("numbers", "dates")
            raise _kind_changed(self.name, f"held {before} in training and holds {now} now")
        numbers = as_numbers(series, 0, report)
        if numbers is None:
            text = as_text(present[pd.to_numeric(present, errors="coerce").isna()].iloc[0])
            raise _kind_changed(self.name, f"held numbers in training and now holds {text!r}")
        if missing := int(np.isnan(numbers).sum()):
            report.missing[self.name] = missing
        return numbers

    def expand(self, codes: np.ndarray) -> np.ndarray:
        """Turn numbers (n, NaN missing) into features (n×d)."""
        missing = np.isnan(codes)
        scaled = np.where(missing, self.fill, (codes - self.shift) / self.divisor)
        if self.divisor != 1:
            scaled = np.clip(scaled, -MAX_DEVIATIONS, MAX_DEVIATIONS)
        features = [scaled] * self.varied + [missing.astype(np.float64)] * self.missing
        return np.stack(features, axis=1)


@dataclass(frozen=True)
class Category:
    """One-hot encoder of a column of text or categories."""

    name: str
    values: tuple[str | float | bool, ...]  # values with a feature each
    labels: tuple[str, ...]  # names of these features
    other: bool  # there is a feature "name=other" for all other values
    missing: bool  # there is a feature "name=missing"
    other_share: float = 0.0  # of the cells in training that had another value

    @property
    def is_text(self) -> bool:
        """Whether the column held text in training, so that ``06`` is not the number 6."""
        return any(isinstance(v, str) and v not in ("inf", "-inf") for v in self.values)

    @classmethod
    def fit(cls, series: pd.Series, max_categories: int, report: LoadReport) -> Category | None:
        """Learn the most frequent values of a column; None if it carries nothing."""
        name = str(series.name)
        codes, values = factorize(series)
        counts = np.bincount(codes[codes >= 0], minlength=len(values))
        missing, too_many = bool((codes < 0).any()), len(values) > max_categories
        other_share = 0.0
        if too_many and len(values) > MAX_DISTINCT_SHARE * counts.sum():
            return None
        if len(values) == 1 and not missing:
            return None
        if too_many:
            report.notes.append(
                f"column {name!r} has {len(values):,} categories: the {max_categories} most"
                " frequent have a feature each, the others share one"
            )
            frequent = np.argsort(-counts, kind="stable")[:max_categories]
            values = [values[int(k)] for k in np.sort(frequent)]
            other_share = 1 - float(counts[frequent].sum() / counts.sum())
        return cls(
            name=name,
            values=tuple(_storable(value) for value in values),
            labels=tuple(f"{name}={value}" for value in values),
            other=too_many,
            missing=missing,
            other_share=other_share,
        )

    @property
    def feature_names(self) -> list[str]:
        """Names of the features."""
        extra = [f"{self.name}=other"] * self.other + [f"{self.name}=missing"] * self.missing
        return [*self.labels, *extra]

    @cached_property
    def places(self) -> dict[str | float | bool, int]:
        """The index of each value that has a feature."""
        return {value: k for k, value in enumerate(self.values)}

    def codes(self, series: pd.Series, report: LoadReport) -> np.ndarray:
        """Return the index of each cell's value, ``len(values)`` if unknown, −1 if missing."""
        codes, values = factorize(series)
        index = self._find(values)
        code = np.append(index, -1)[codes]
        unseen = code == len(self.values)
        share = float(unseen.mean()) if len(unseen) else 0.0
        if unseen.any() and (not self.other or share > self.other_share):
            self._note_unseen(unseen, values[int(codes[unseen][0])], report)
        if missing := int((code < 0).sum()):
            report.missing[self.name] = missing
        return code

    def _note_unseen(self, unseen: np.ndarray, example: Any, report: LoadReport) -> None:
        share = float(unseen.mean())
        if self.other:
            compared = f"of no frequent category, {self.other_share:.1%} in training"
        else:
            compared = "with a category not seen in training, encoded as none of the known"
        nodes = f"{plural(int(unseen.sum()), 'node')} ({share:.1%})"
        note = f"column {self.name!r}: {nodes} {compared} (such as {as_text(example)!r})"
        report.notes.append(note)
        if share - self.other_share > MAX_UNSEEN_SHARE:
            warnings.warn(note, stacklevel=2)

    def _find(self, values: list[Any]) -> np.ndarray:
        """Find each value among those of training; refuse values of which none can be found."""
        unseen = len(self.values)
        exact = self.places
        # A code may be read as a number in one table and as text in another.
        by_text = {as_text(value): k for k, value in reversed(list(enumerate(self.values)))}
        index = [exact.get(value, by_text.get(as_text(value), unseen)) for value in values]
        if not self.is_text:  # one cell of text makes text of all numbers of a table
            index = [
                exact.get(from_text(value), unseen) if k == unseen else k
                for k, value in zip(index, values, strict=True)
            ]
        kinds = {isinstance(value, str) for value in values}
        kinds_in_training = {isinstance(value, str) for value in self.values}
        if values and min(index) == unseen and not kinds & kinds_in_training:
            before, now = as_text(self.values[0]), as_text(values[0])
            change = f"had values such as {before!r} in training and now holds {now!r}"
            raise _kind_changed(self.name, change)
        return np.array(index, dtype=int)

    def expand(self, codes: np.ndarray) -> np.ndarray:
        """Turn codes (n) into one-hot features (n×d)."""
        features = [codes == k for k in range(len(self.values) + self.other)]
        features += [codes < 0] * self.missing
        return np.stack(features, axis=1).astype(np.float64)


def _storable(value: Any) -> str | float | bool:
    """A value that JSON can hold: dates and infinities as text."""
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    return value if isinstance(value, str | int | float) else str(value)


Column = Number | Category


def _kind_changed(name: str, change: str) -> InputError:
    hint = "give the same kind of values, or empty cells"
    return InputError("nodes", f"column {name!r} {change}", hint)


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
    reason = "has one value"
    numbers = None if categorical else as_numbers(series, max_categories)
    if numbers is None:
        column = Category.fit(series, max_categories, report)
        if series.nunique() > 1:
            reason = "has a different value in nearly every row"
    else:
        column = Number.fit(series, numbers, scale, report)
        if np.isnan(numbers).all():
            reason = f"has no number within ±{MAX_NUMBER:g}"
    if column is None:
        report.notes.append(f"column {series.name!r} {reason} and is left out")
    return column

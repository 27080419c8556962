"""How the columns of a node table become features, learned on one table and kept for others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fairmp.datasets.columns import (
    Scale,
    as_numbers,
    check_scale,
    coded,
    holds_dates,
    is_indicator,
    location,
    shown,
)
from fairmp.datasets.edges import LoadReport, counted
from fairmp.errors import InputError

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Number:
    """How a column of numbers or dates became features.

    Attributes:
        name: The column.
        dates: Whether it held dates, which count as days.
        shift: What is taken off,
        divisor: and what the rest is divided by.
        fill: What stands for a missing value, after that.
        varied: Whether the numbers are a feature; not so where only which are missing tells.
        missing: Whether there is a feature ``name missing``.
    """

    name: str
    dates: bool
    shift: float
    divisor: float
    fill: float
    varied: bool
    missing: bool

    @classmethod
    def learn(cls, name: str, values: np.ndarray, scale: Scale, *, dates: bool) -> Number | None:
        """Look at the numbers (NaN: missing); None where they carry nothing."""
        gone = np.isnan(values)
        known = values[~gone]
        varied = bool((known != known[0]).any())
        if not varied and not gone.any():
            return None
        shift, divisor = (0.0, 1.0) if is_indicator(known) else location(known, scale)
        fill = float(((known - shift) / divisor).mean())
        return cls(name, dates, shift, divisor, fill, varied, bool(gone.any()))

    @property
    def feature_names(self) -> list[str]:
        """The features' names."""
        return [self.name] * self.varied + [f"{self.name} missing"] * self.missing

    def encode(self, values: np.ndarray) -> np.ndarray:
        """Turn numbers (NaN: missing) into features."""
        gone = np.isnan(values)
        parts = []
        if self.varied:
            parts.append(np.where(gone, self.fill, (values - self.shift) / self.divisor))
        if self.missing:
            parts.append(gone.astype(np.float64))
        return np.stack(parts, axis=1)

    def read(self, series: pd.Series, report: LoadReport | None = None) -> np.ndarray:
        """Encode the column of another table; one that holds something else is refused."""
        import pandas as pd

        report = LoadReport() if report is None else report
        if isinstance(series.dtype, pd.CategoricalDtype):
            series = series.astype(object)
        given = series.dropna()
        if len(given) and holds_dates(series) != self.dates:
            was, now = ("dates", "none") if self.dates else ("numbers", "dates")
            raise InputError(
                "nodes",
                f"column {self.name!r} held {was} in training and holds {now} now",
                "give it as it was",
            )
        numbers = as_numbers(series, 0, report)
        if numbers is None:
            unread = given[pd.to_numeric(given, errors="coerce").isna()]
            raise InputError(
                "nodes",
                f"column {self.name!r} held numbers in training and now holds "
                f"{shown(unread.iloc[0])!r}",
                "give numbers, or leave the cell empty",
            )
        gone = int(np.isnan(numbers).sum())
        if gone:
            report.missing[self.name] = gone
        return self.encode(numbers)


@dataclass(frozen=True)
class Category:
    """How a column of text or categories became features, one a value.

    Attributes:
        name: The column.
        values: The values with a feature each,
        labels: and the features' names.
        other: Whether there is a feature ``name=other`` for all other values.
        missing: Whether there is a feature ``name=missing``.
    """

    name: str
    values: tuple[str | float | bool, ...]
    labels: tuple[str, ...]
    other: bool
    missing: bool

    @classmethod
    def learn(
        cls,
        name: str,
        codes: np.ndarray,
        values: Sequence[Any],
        max_categories: int,
        report: LoadReport,
    ) -> Category | None:
        """Look at a coded column (see :func:`coded`); None where it carries nothing."""
        counts = np.bincount(codes[codes >= 0], minlength=len(values))
        gone = bool((codes < 0).any())
        if len(values) > max_categories and len(values) > 0.9 * counts.sum():
            return None
        if len(values) == 1 and not gone:
            return None
        kept = np.arange(len(values))
        if len(values) > max_categories:
            kept = np.sort(np.argsort(-counts, kind="stable")[:max_categories])
            report.notes.append(
                f"column {name!r} has {len(values):,} categories: the {max_categories} most"
                " frequent are kept, the others share one"
            )
        chosen = [values[int(k)] for k in kept]
        return cls(
            name,
            tuple(
                value if isinstance(value, str | int | float) else str(value) for value in chosen
            ),
            tuple(f"{name}={value}" for value in chosen),
            len(kept) < len(values),
            gone,
        )

    @property
    def feature_names(self) -> list[str]:
        """The features' names."""
        rest = [f"{self.name}=other"] * self.other + [f"{self.name}=missing"] * self.missing
        return [*self.labels, *rest]

    def places(self, values: Sequence[Any]) -> np.ndarray:
        """Which of the features' values each of some values is; as many as there are: none."""
        exact = {value: k for k, value in enumerate(self.values)}
        # A code may be read as a number in one table and as text in another.
        written = {shown(value): k for k, value in reversed(list(enumerate(self.values)))}
        none = len(self.values)
        return np.array(
            [exact.get(value, written.get(shown(value), none)) for value in values], dtype=np.int64
        )

    def encode(self, codes: np.ndarray, values: Sequence[Any]) -> np.ndarray:
        """Turn a coded column into features; a value that is none of them has zeros, or other."""
        place = np.append(self.places(values), -1)[codes]
        columns = [place == k for k in range(len(self.values) + self.other)]
        if self.missing:
            columns.append(place < 0)
        return np.stack(columns, axis=1).astype(np.float64)

    def read(self, series: pd.Series, report: LoadReport | None = None) -> np.ndarray:
        """Encode the column of another table; values new to it are counted."""
        report = LoadReport() if report is None else report
        codes, values = coded(series)
        strangers = self.places(values) == len(self.values)
        kinds = {isinstance(value, str) for value in values}
        if (
            len(values)
            and strangers.all()
            and not kinds & {isinstance(v, str) for v in self.values}
        ):
            raise InputError(
                "nodes",
                f"column {self.name!r} had values such as {shown(self.values[0])!r} in training "
                f"and now holds {shown(values[0])!r}",
                "give it as it was",
            )
        unseen = np.append(strangers, False)[codes]
        if unseen.any() and not self.other:
            example = values[int(codes[unseen][0])]
            report.notes.append(
                f"column {self.name!r}: {counted(int(unseen.sum()), 'node')} with a value that was"
                f" not there in training, {shown(example)!r} for one; they count as none of the"
                " known ones"
            )
        if (codes < 0).any():
            report.missing[self.name] = int((codes < 0).sum())
        return self.encode(codes, values)


Column = Number | Category


def _storable(value: Any) -> str | float | bool:
    """A value as JSON has it; what JSON has not, as text."""
    plain = isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))
    return value if plain else str(value)


def encode_features(
    frame: pd.DataFrame,
    *,
    categorical: Sequence[str] = (),
    max_categories: int = 20,
    scale: Scale = "standard",
    report: LoadReport | None = None,
) -> tuple[np.ndarray, list[str]]:
    """Turn every column into one or several columns of float32.

    - Numbers and dates (as days) are scaled; where some are missing the mean of the others takes
      their place and a column ``name missing`` says where. Infinite ones count as missing, with a
      note.
    - Booleans are 0 and 1.
    - Text and categories are one-hot, ``name=value``; the ``max_categories`` most frequent have
      a column each and the rest share ``name=other``; missing values have one of their own.
    - Text with a different value in nearly every row (a name, an e-mail address), columns with one
      value and empty columns are left out, with a note.

    Returns:
        The matrix (n×d) and the names of its columns.

    Example:
        >>> import pandas as pd
        >>> x, names = encode_features(
        ...     pd.DataFrame({"age": [20, None, 40], "town": ["a", "b", "a"]}), scale="none"
        ... )
        >>> names
        ['age', 'age missing', 'town=a', 'town=b']
        >>> x.tolist()
        [[20.0, 0.0, 1.0, 0.0], [30.0, 1.0, 0.0, 1.0], [40.0, 0.0, 1.0, 0.0]]
    """
    x, columns = learn_features(
        frame, categorical=categorical, max_categories=max_categories, scale=scale, report=report
    )
    return x, [name for column in columns for name in column.feature_names]


def learn_features(
    frame: pd.DataFrame,
    *,
    categorical: Sequence[str] = (),
    max_categories: int = 20,
    scale: Scale = "standard",
    report: LoadReport | None = None,
) -> tuple[np.ndarray, list[Column]]:
    """Encode features as :func:`encode_features` does, and return how, for tables to come.

    Example:
        >>> import pandas as pd
        >>> _, (age,) = learn_features(pd.DataFrame({"age": [20, 30, 40]}), scale="minmax")
        >>> age.read(pd.Series([35, None], name="age")).tolist()
        [[0.75], [0.5]]
    """
    check_scale(scale)
    if max_categories < 1:
        raise InputError("max_categories", f"{max_categories} is too few", "give 1 or more")
    report = LoadReport() if report is None else report
    blocks: list[np.ndarray] = []
    columns: list[Column] = []
    for name in frame.columns:
        series = frame[name]
        gone = int(series.isna().sum())
        if gone == len(series):
            report.notes.append(f"column {name!r} is empty and left out")
            continue
        numbers = None if name in categorical else as_numbers(series, max_categories, report)
        column: Column | None
        if numbers is not None:
            gone = int(np.isnan(numbers).sum())
            column = Number.learn(str(name), numbers, scale, dates=holds_dates(series))
            block = column.encode(numbers) if column else None
        else:
            codes, values = coded(series)
            column = Category.learn(str(name), codes, values, max_categories, report)
            block = column.encode(codes, values) if column else None
        if column is None or block is None:
            report.notes.append(f"column {name!r} {_why_nothing(series)} and is left out")
            continue
        blocks.append(block)
        columns.append(column)
        if gone:
            report.missing[str(name)] = gone
    if not blocks:
        return np.zeros((len(frame), 0), dtype=np.float32), []
    return np.concatenate(blocks, axis=1, dtype=np.float32), columns


def _why_nothing(series: pd.Series) -> str:
    return "has one value" if series.nunique() < 2 else "has a different value in nearly every row"

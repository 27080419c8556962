"""What a table column holds: numbers, dates, categories, missing values; and how numbers scale."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from fairmp.datasets.edges import LoadReport, counted
from fairmp.errors import InputError, check_choice

if TYPE_CHECKING:
    import pandas as pd

MISSING = (
    *("", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "NaT"),
    *("null", "NULL", "None", "?"),
)
"""Text that marks a missing value, in files, DataFrames and arguments alike."""

Scale = Literal["standard", "minmax", "none"]
Bins = int | Sequence[float]
BinsGiven = Bins | Mapping[str, Bins] | None

MAX_CATEGORIES = 20
"""Default number of categories with a feature each; more distinct numbers are a quantity."""


def check_scale(scale: str) -> None:
    """Refuse an unknown scale."""
    check_choice("scale", scale, get_args(Scale))


def rescale(x: np.ndarray, scale: Scale) -> np.ndarray:
    """Scale the columns of ``x`` that hold anything but 0 and 1, to float32.

    ``"standard"`` subtracts the mean and divides by the standard deviation, ``"minmax"`` maps the
    range to [0, 1], ``"none"`` does nothing. A constant column becomes 0. Columns of 0 and 1 are
    left as they are, since dividing a rare indicator by its deviation makes its few ones huge.
    """
    check_scale(scale)
    result = x.astype(np.float32)
    if scale == "none" or not len(x):
        return result
    other = np.zeros(x.shape[1], dtype=bool)
    for k in range(0, len(x), 4096):
        block = x[k : k + 4096]
        other |= ((block != 0) & (block != 1)).any(axis=0)
    for j in np.flatnonzero(other):
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
    # The deviation underflows to 0 where the differences are too small to be squared.
    return (shift, divisor) if divisor > 0 else (shift, 1.0)


def as_numbers(
    series: pd.Series, max_categories: int = MAX_CATEGORIES, report: LoadReport | None = None
) -> np.ndarray | None:
    """Return a column as float64 with NaN for missing, or None if it is not numeric.

    Dates count as days. Text counts as numbers if all of it can be read as such, or 90 % of it
    where there are more distinct values than ``max_categories``; the rest is then missing, with a
    note, and so are infinite numbers.
    """
    import pandas as pd
    from pandas.api import types

    notes = [] if report is None else report.notes
    if isinstance(series.dtype, pd.CategoricalDtype):
        return None
    if holds_dates(series):
        seconds = series.to_numpy(dtype="datetime64[s]").astype(np.float64)
        return np.where(series.isna(), np.nan, seconds / 86_400)
    if types.is_bool_dtype(series.dtype) or types.is_numeric_dtype(series.dtype):
        values = series.to_numpy(dtype=np.float64, na_value=np.nan)
        infinite = int(np.isinf(values).sum())
        if infinite:
            count = counted(infinite, "infinite value")
            notes.append(f"column {series.name!r}: {count} taken as missing")
        return np.where(np.isfinite(values), values, np.nan)
    numbers = pd.to_numeric(series, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    numbers = np.where(np.isfinite(numbers), numbers, np.nan)
    given = series.notna().to_numpy()
    other = given & np.isnan(numbers)
    if not other.any():
        return numbers
    if other.sum() > 0.1 * given.sum() or series.nunique() <= max_categories:
        return None
    count, example = counted(int(other.sum()), "non-numeric value"), series[other].iloc[0]
    notes.append(f"column {series.name!r}: {count} (such as {example!r}) taken as missing")
    return numbers


def holds_dates(series: pd.Series) -> bool:
    """Whether a column holds dates."""
    from pandas.api.types import is_datetime64_any_dtype

    return bool(is_datetime64_any_dtype(series.dtype))


def without_missing_text(series: pd.Series) -> pd.Series:
    """Return a column whose text cells in :data:`MISSING` are missing values."""
    import pandas as pd
    from pandas.api.types import is_object_dtype, is_string_dtype

    text = is_object_dtype(series.dtype) or is_string_dtype(series.dtype)
    if not text and not isinstance(series.dtype, pd.CategoricalDtype):
        return series
    missing = series.isin(MISSING)
    return series.mask(missing) if missing.any() else series


def factorize(series: pd.Series) -> tuple[np.ndarray, list[Any]]:
    """Code the distinct values of a column from 0 in sorted order; missing values are −1.

    Unlike :func:`pandas.factorize` with ``sort``, this sorts columns of mixed types: numbers by
    value, then everything else as text.
    """
    import pandas as pd

    def key(value: Any) -> tuple[int, float, str]:
        return (0, float(value), "") if isinstance(value, int | float) else (1, 0.0, str(value))

    codes, uniques = pd.factorize(series, use_na_sentinel=True)
    values = [value.item() if isinstance(value, np.generic) else value for value in uniques]
    order = sorted(range(len(values)), key=lambda k: key(values[k]))
    rank = np.empty(len(values) + 1, dtype=np.int64)
    rank[order] = np.arange(len(values))
    rank[-1] = -1
    return rank[codes], [values[k] for k in order]


def as_text(value: Any) -> str:
    """Write a value as people do: ``1.0`` is "1"."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def shortlist(names: Sequence[Any], limit: int = 12) -> str:
    """Join names with commas; those beyond the limit are counted."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(map(str, names[:limit])) + more


def closest(name: str, names: Sequence[str]) -> str | None:
    """The name most similar to a misspelled one, if any is."""
    folded = [other for other in names if other.casefold().strip() == name.casefold().strip()]
    return next(iter(folded or difflib.get_close_matches(name, names, n=1, cutoff=0.5)), None)


def require_column(argument: str, column: str, columns: Sequence[str], table: str) -> None:
    """Refuse the name of a column that a table lacks."""
    if column in columns:
        return
    best = closest(str(column), columns)
    value = f"{table} has no column {column!r}" + (f", did you mean {best!r}?" if best else "")
    raise InputError(argument, value, f"there are {shortlist(columns, 30)}")

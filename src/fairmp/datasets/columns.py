"""What a column of a table holds: numbers, dates, categories; and how numbers are scaled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from fairmp.datasets.edges import LoadReport, counted
from fairmp.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

Scale = Literal["standard", "minmax", "none"]
Bins = int | Sequence[float]
BinsGiven = Bins | Mapping[str, Bins] | None

MANY = 20
"""More different numbers than this are a quantity, not a set of classes or groups."""


def check_scale(scale: str) -> None:
    """Refuse a scale that is not there.

    Example:
        >>> check_scale("standard")
    """
    if scale not in get_args(Scale):
        raise InputError(
            "scale", f"{scale!r} is not there", f"give one of {', '.join(get_args(Scale))}"
        )


def rescale(x: np.ndarray, scale: Scale) -> np.ndarray:
    """Scale the columns of ``x`` that hold anything but 0 and 1, to float32.

    ``"standard"`` subtracts the mean and divides by the standard deviation, ``"minmax"`` maps the
    range to [0, 1], ``"none"`` does nothing. A column with one value becomes 0. Columns of 0 and 1
    are left as they are, since dividing a rare one by its deviation makes its few ones huge.

    Example:
        >>> rescale(np.array([[1.0, 0.0], [3.0, 1.0]], dtype=np.float32), "standard").tolist()
        [[-1.0, 0.0], [1.0, 1.0]]
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
        shift, divisor = location(values, scale)
        result[:, j] = (values - shift) / divisor
    return result


def is_indicator(values: np.ndarray) -> bool:
    """Whether there is nothing but 0 and 1."""
    return bool(((values == 0) | (values == 1)).all())


def location(values: np.ndarray, scale: Scale) -> tuple[float, float]:
    """What a scale takes off known numbers, and what it divides the rest by.

    Example:
        >>> location(np.array([1.0, 5.0]), "minmax")
        (1.0, 4.0)
    """
    if scale == "none":
        return 0.0, 1.0
    low, high = float(values.min()), float(values.max())
    shift, divisor = low, high - low
    if scale == "standard" and low < high:
        shift, divisor = float(values.mean()), float(values.std())
    # Numbers that differ by less than can be squared.
    return (shift, divisor) if divisor > 0 else (shift, 1.0)


def as_numbers(
    series: pd.Series, max_categories: int = 20, report: LoadReport | None = None
) -> np.ndarray | None:
    """Return a column as float64 with NaN for missing, or None where it is no quantity.

    Text counts as numbers if all of it can be read so, or nearly all where there are more
    different values than ``max_categories``; what cannot be read is then missing, with a note, and
    so are infinite numbers.
    """
    import pandas as pd
    from pandas.api import types

    dtype = series.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        return None
    if types.is_datetime64_any_dtype(dtype):
        seconds = series.to_numpy(dtype="datetime64[s]").astype(np.float64)
        return np.where(series.isna(), np.nan, seconds / 86_400)
    if types.is_bool_dtype(dtype) or types.is_numeric_dtype(dtype):
        values = series.to_numpy(dtype=np.float64, na_value=np.nan)
        endless = int(np.isinf(values).sum())
        if endless and report is not None:
            report.notes.append(
                f"column {series.name!r}: {counted(endless, 'value')} infinite, taken as missing"
            )
        return np.where(np.isfinite(values), values, np.nan)
    numbers = pd.to_numeric(series, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    numbers = np.where(np.isfinite(numbers), numbers, np.nan)
    given = series.notna().to_numpy()
    unread = given & np.isnan(numbers)
    if not unread.any():
        return numbers
    if unread.sum() <= 0.1 * given.sum() and series.nunique() > max_categories:
        if report is not None:
            example = series[unread].iloc[0]
            report.notes.append(
                f"column {series.name!r}: {counted(int(unread.sum()), 'value')} no number,"
                f" {example!r} for one, taken as missing"
            )
        return numbers
    return None


def holds_dates(series: pd.Series) -> bool:
    """Whether a column holds dates."""
    from pandas.api.types import is_datetime64_any_dtype

    return bool(is_datetime64_any_dtype(series.dtype))


def coded(series: pd.Series) -> tuple[np.ndarray, list[Any]]:
    """Encode the different values of a column from 0 in sorted order; missing values are −1.

    Numbers sort as numbers, everything else as text.

    Example:
        >>> import pandas as pd
        >>> codes, values = coded(pd.Series(["b", None, "a", "b"]))
        >>> codes.tolist(), values
        ([1, -1, 0, 1], ['a', 'b'])
    """
    import pandas as pd

    codes, uniques = pd.factorize(series, use_na_sentinel=True)
    # 1, 1.0 and True are one value to Python, and so are they here.
    values = [_native(value) for value in uniques]
    order = sorted(range(len(values)), key=lambda k: _sort_key(values[k]))
    rank = np.empty(len(values) + 1, dtype=np.int64)
    rank[order] = np.arange(len(values))
    rank[-1] = -1
    return rank[codes], [values[k] for k in order]


def _native(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _sort_key(value: Any) -> tuple[int, float, str]:
    if isinstance(value, int | float):
        return (0, float(value), "")
    return (1, 0.0, str(value))


def shown(value: Any) -> str:
    """Write a value as people do.

    Example:
        >>> shown(1.0), shown(True), shown("f")
        ('1', 'True', 'f')
    """
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return f"{value:g}" if isinstance(value, float) else str(value)

"""Cells of a column: missing values, numbers and text; and columns by name."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from fairmp.errors import InputError, plural, shortlist
from fairmp.frames import MAX_EXACT, MISSING

if TYPE_CHECKING:
    import pandas as pd

    from fairmp.datasets.load_report import LoadReport

MAX_CATEGORIES = 20
"""Default number of categories with a feature each; more distinct numbers are a quantity."""

MAX_DISTINCT_SHARE = 0.9  # a column with more distinct values per row holds names
MAX_NUMBER = 1e30  # a larger number is an error: its square is beyond the range of float32
MAX_TEXT_SHARE = 0.1  # share of a column of numbers that may be text
SECONDS_PER_DAY = 86_400


def as_numbers(
    series: pd.Series, max_categories: int = MAX_CATEGORIES, report: LoadReport | None = None
) -> np.ndarray | None:
    """Return a column as float64, dates as days, with NaN for missing; None if not numeric.

    Text that is not a number is missing, with a note, where it is at most 10 % of a column with
    more distinct values than ``max_categories``. So are infinite and absurdly large numbers.
    """
    import pandas as pd

    notes = [] if report is None else report.notes
    if isinstance(series.dtype, pd.CategoricalDtype):
        return None
    if series.dtype.kind == "M":
        seconds = series.to_numpy(dtype="datetime64[s]").astype(np.float64)
        return np.where(series.isna(), np.nan, seconds / SECONDS_PER_DAY)
    numbers = pd.to_numeric(series, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    text = series.notna().to_numpy() & np.isnan(numbers)
    too_large = np.abs(numbers) > MAX_NUMBER  # False for NaN
    if too_large.any():
        notes.append(_note_too_large(str(series.name), numbers, too_large))
        numbers = np.where(too_large, np.nan, numbers)
    if text.any():
        if text.sum() > MAX_TEXT_SHARE * series.count() or series.nunique() <= max_categories:
            return None
        count, example = plural(int(text.sum()), "non-numeric value"), series[text].iloc[0]
        notes.append(f"column {series.name!r}: {count} (such as {example!r}) taken as missing")
    return numbers


def _note_too_large(name: str, numbers: np.ndarray, too_large: np.ndarray) -> str:
    infinite = bool(np.isinf(numbers[too_large]).all())
    count = plural(int(too_large.sum()), "infinite value" if infinite else "value")
    size = "" if infinite else f" beyond ±{MAX_NUMBER:g}"
    return f"column {name!r}: {count}{size} ({name_rows(too_large)}) taken as missing"


def name_rows(mask: np.ndarray) -> str:
    """Name the rows of a mask by their numbers, from 1."""
    numbers = [f"{row + 1:,}" for row in np.flatnonzero(mask)]
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

    def order(value: Any) -> tuple[int, float, str]:
        return (0, float(value), "") if isinstance(value, int | float) else (1, 0.0, str(value))

    codes, uniques = pd.factorize(series, use_na_sentinel=True)
    values = [_as_python(value) for value in uniques]
    ascending = sorted(range(len(values)), key=lambda k: order(values[k]))
    rank = np.empty(len(values) + 1, dtype=np.int64)
    rank[ascending] = np.arange(len(values))
    rank[-1] = -1
    return rank[codes], [values[k] for k in ascending]


def look_like_codes(series: pd.Series) -> bool:
    """Whether a column of whole numbers has few values, mostly above 0: codes, or a small count."""
    if series.dtype.kind not in "iu":
        return False
    values = series.nunique()
    is_few = 2 < values <= min(MAX_CATEGORIES, len(series) // 2)
    return is_few and bool((series > 0).mean() > 0.5)


def from_text(value: Any) -> Any:
    """The number or boolean that text stands for; other values as they are."""
    if not isinstance(value, str):
        return value
    with suppress(ValueError):
        return int(value)
    with suppress(ValueError):
        return float(value)
    return {"true": True, "false": False}.get(value.casefold(), value)


def _as_python(value: Any) -> Any:
    if isinstance(value, np.floating) and value.dtype.itemsize < 8:
        return float(str(value))  # 0.1, not 0.10000000149011612
    return value.item() if isinstance(value, np.generic) else value


def refuse_inexact(series: pd.Series, argument: str) -> None:
    """Refuse groups, classes or ids that are floats too large to tell integers apart."""
    if series.dtype.kind != "f":
        return
    large = (series.abs() >= MAX_EXACT) & np.isfinite(series)
    if large.any():
        value = f"column {series.name!r} has {float(series[large].iloc[0])!r}, which is not exact"
        raise InputError(argument, value, "give integers or text: 'Int64' has room for empty cells")


def as_text(value: Any) -> str:
    """Write a value as people do: ``1.0`` is "1"."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def free_names(names: Sequence[str], taken: Collection[str]) -> list[str]:
    """Names of new columns, with a number behind all of them if one is taken."""
    number, free = 1, list(names)
    while not set(free).isdisjoint(taken):
        number += 1
        free = [f"{name}_{number}" for name in names]
    return free


LISTS = ("sensitive", "drop", "features", "categorical")  # arguments that take several columns
CHECK_SEPARATOR = "is it separated by commas, semicolons, tabs, '|' or spaces?"


def closest(name: str, names: Sequence[str]) -> str | None:
    """Return the name most similar to a misspelled one; None if none is similar."""
    folded = [other for other in names if other.casefold().strip() == name.casefold().strip()]
    return next(iter(folded or difflib.get_close_matches(name, names, n=1, cutoff=0.5)), None)


def require_column(argument: str, column: str, columns: Sequence[str], table: str) -> None:
    """Refuse the name of a column that a table does not have."""
    if column in columns:
        return
    suggestion = closest(str(column), columns)
    value = f"{table} has no column {column!r}"
    parts = [part.strip() for part in str(column).split(",")]
    if argument in LISTS and len(parts) > 1 and set(parts) <= set(columns):
        raise InputError(argument, value, f"give several as {{{argument}={parts!r}}}")
    if suggestion is not None:
        value += f", did you mean {suggestion!r}?"
    if len(columns) == 1:
        raise InputError(argument, value, f"there is only {columns[0]}; {CHECK_SEPARATOR}")
    raise InputError(argument, value, f"there are {shortlist(columns, 30)}")


def check_unique(names: Sequence[str], argument: str) -> None:
    """Refuse two columns of the same name."""
    if repeated := [name for name, count in Counter(names).items() if count > 1]:
        raise InputError(argument, f"two columns are named {repeated[0]!r}", "rename one")

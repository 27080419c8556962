"""Turn the columns of a node table into numbers: features, classes and groups."""

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
        raise InputError(f"scale: {scale!r} is not there; give one of {', '.join(get_args(Scale))}")


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
        result[:, j] = _scaled(x[:, j].astype(np.float64), scale)
    return result


def _indicator(values: np.ndarray) -> bool:
    return bool(((values == 0) | (values == 1)).all())


def _scaled(values: np.ndarray, scale: Scale) -> np.ndarray:
    if scale == "none":
        return values
    low, high = float(values.min()), float(values.max())
    if low == high:
        return np.zeros_like(values)
    if scale == "minmax":
        return (values - low) / (high - low)
    return (values - values.mean()) / values.std()


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
      their place and a column ``name missing`` says where.
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
    check_scale(scale)
    if max_categories < 1:
        raise InputError(f"max_categories: {max_categories} is too few; give 1 or more")
    report = LoadReport() if report is None else report
    blocks: list[np.ndarray] = []
    names: list[str] = []
    for name in frame.columns:
        series = frame[name]
        gone = int(series.isna().sum())
        if gone == len(series):
            report.notes.append(f"column {name!r} is empty and left out")
            continue
        numbers = None if name in categorical else as_numbers(series, max_categories, report)
        if numbers is not None:
            block, labels = _numeric(str(name), numbers, scale)
            gone = int(np.isnan(numbers).sum())
        else:
            block, labels = _one_hot(str(name), series, max_categories, report)
        if labels:
            blocks.append(block)
            names += labels
            if gone:
                report.missing[str(name)] = gone
        else:
            report.notes.append(f"column {name!r} {_why_nothing(series)} and is left out")
    if not blocks:
        return np.zeros((len(frame), 0), dtype=np.float32), []
    return np.concatenate(blocks, axis=1, dtype=np.float32), names


def _why_nothing(series: pd.Series) -> str:
    return "has one value" if series.nunique() < 2 else "has a different value in nearly every row"


def as_numbers(
    series: pd.Series, max_categories: int = 20, report: LoadReport | None = None
) -> np.ndarray | None:
    """Return a column as float64 with NaN for missing, or None where it is no quantity.

    Text counts as numbers if all of it can be read so, or nearly all where there are more
    different values than ``max_categories``; what cannot be read is then missing, with a note.
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


def _numeric(name: str, values: np.ndarray, scale: Scale) -> tuple[np.ndarray, list[str]]:
    gone = np.isnan(values)
    known = values[~gone]
    if (known == known[0]).all() and not gone.any():
        return np.empty((len(values), 0)), []
    filled = np.empty_like(values)
    filled[~gone] = known if _indicator(known) else _scaled(known, scale)
    filled[gone] = filled[~gone].mean()
    if not gone.any():
        return filled[:, None], [name]
    if (known == known[0]).all():
        return gone[:, None].astype(np.float64), [f"{name} missing"]
    return np.stack([filled, gone], axis=1), [name, f"{name} missing"]


def _one_hot(
    name: str, series: pd.Series, max_categories: int, report: LoadReport
) -> tuple[np.ndarray, list[str]]:
    codes, values = coded(series)
    counts = np.bincount(codes[codes >= 0], minlength=len(values))
    gone = codes < 0
    if len(values) > max_categories and len(values) > 0.9 * counts.sum():
        return np.empty((len(codes), 0)), []
    if len(values) == 1 and not gone.any():
        return np.empty((len(codes), 0)), []
    kept = np.arange(len(values))
    if len(values) > max_categories:
        kept = np.sort(np.argsort(-counts, kind="stable")[:max_categories])
        report.notes.append(
            f"column {name!r} has {len(values):,} categories: the {max_categories} most frequent"
            " are kept, the others share one"
        )
    columns = [codes == k for k in kept]
    names = [f"{name}={values[k]}" for k in kept]
    if len(kept) < len(values):
        columns.append(~np.isin(codes, kept) & ~gone)
        names.append(f"{name}=other")
    if gone.any():
        columns.append(gone)
        names.append(f"{name}=missing")
    return np.stack(columns, axis=1).astype(np.float64), names


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

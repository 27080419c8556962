"""Turn the label and the sensitive columns of a node table into classes and groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from fairmp.datasets.columns import MANY, Bins, BinsGiven, as_numbers, coded, shown
from fairmp.datasets.edges import LoadReport, counted
from fairmp.errors import InputError

if TYPE_CHECKING:
    import pandas as pd


def encode_label(
    series: pd.Series,
    *,
    positive: Any = None,
    unknown: Sequence[Any] | None = None,
    report: LoadReport | None = None,
) -> tuple[np.ndarray, list[str]]:
    """Encode the classes of a label column; −1 where it is unknown.

    Args:
        series: The column. Numbers keep their order, text is sorted.
        positive: The value that becomes class 1; all others become class 0.
        unknown: Values that mean "not known", beside missing ones. By default −1 does where it is
            the only number below 0 and at least two from 0 up stand beside it.
        report: Where notes go.

    Returns:
        The classes (n, int64) and their names.

    Example:
        >>> import pandas as pd
        >>> y, names = encode_label(pd.Series(["no", "yes", None, "no"]))
        >>> y.tolist(), names
        ([0, 1, -1, 0], ['no', 'yes'])
    """
    report = LoadReport() if report is None else report
    codes, values = _known(series, "label", unknown, report)
    if len(values) < 2:
        only = f"only the value {shown(values[0])!r}" if values else "no value at all"
        raise InputError(
            "label", f"column {series.name!r} has {only}", "a classifier needs two classes"
        )
    fractional = any(isinstance(value, float) and not value.is_integer() for value in values)
    if len(values) > MANY and (fractional or len(values) > 0.9 * (codes >= 0).sum()):
        raise InputError(
            "label",
            f"column {series.name!r} has {len(values):,} different values",
            "it is a quantity or a name, not a class: give a column with classes",
        )
    names = [shown(value) for value in values]
    if positive is not None:
        chosen = [k for k, value in enumerate(values) if _same(value, positive)]
        if not chosen:
            raise InputError(
                "positive",
                f"{positive!r} is no value of {series.name!r}",
                f"there are {_few(names)}",
            )
        others = [name for k, name in enumerate(names) if k not in chosen]
        codes = np.where(codes < 0, -1, np.isin(codes, chosen)).astype(np.int64)
        names = [others[0] if len(others) == 1 else f"not {names[chosen[0]]}", names[chosen[0]]]
    report.unknown_labels = int((codes < 0).sum())
    return codes, names


def encode_groups(
    frame: pd.DataFrame,
    *,
    bins: BinsGiven = None,
    unknown: Sequence[Any] | None = None,
    report: LoadReport | None = None,
) -> tuple[np.ndarray, list[str]]:
    """Encode the sensitive groups of one column, or of several crossed; −1 where unknown.

    Args:
        frame: The sensitive columns.
        bins: How to cut a column of numbers: a number of groups of about equal size, or the cut
            points (``[25, 40]`` makes three groups); for several columns ``{column: bins}``.
        unknown: As in :func:`encode_label`.
        report: Where notes go.

    Returns:
        The groups (n, int64) and their names; groups without a node are left out.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"sex": ["f", "m", "f"], "age": [20, 30, 50]})
        >>> s, names = encode_groups(frame, bins={"age": [40]})
        >>> s.tolist(), names
        ([0, 2, 1], ['f × age < 40', 'f × age ≥ 40', 'm × age < 40'])
    """
    report = LoadReport() if report is None else report
    cuts = _bins_by_column(frame, bins)
    parts = [_one_column(frame[name], cuts.get(str(name)), unknown, report) for name in frame]
    groups, names = parts[0]
    for codes, more in parts[1:]:
        unclear = (groups < 0) | (codes < 0)
        groups = np.where(unclear, -1, groups * len(more) + codes)
        names = [f"{one} × {other}" for one in names for other in more]
    present = np.unique(groups[groups >= 0])
    if len(present) < 2:
        columns = ", ".join(repr(str(name)) for name in frame)
        only = f"one group, {names[present[0]]!r}" if len(present) else "no known value"
        raise InputError(
            "sensitive", f"{columns} gives {only}", "a gap needs two groups to lie between"
        )
    rank = np.full(len(names) + 1, -1, dtype=np.int64)
    rank[present] = np.arange(len(present))
    report.unknown_groups = int((groups < 0).sum())
    return rank[groups], [names[k] for k in present]


def _bins_by_column(frame: pd.DataFrame, bins: BinsGiven) -> dict[str, Bins]:
    if bins is None:
        return {}
    if isinstance(bins, Mapping):
        strangers = [name for name in bins if name not in frame]
        if strangers:
            raise InputError(
                "sensitive_bins",
                f"{strangers[0]!r} is no sensitive column",
                f"there are {_few([str(name) for name in frame])}",
            )
        return dict(bins)
    numeric = [str(name) for name in frame if as_numbers(frame[name]) is not None]
    if len(numeric) != 1:
        found = "no sensitive column holds numbers" if not numeric else f"{_few(numeric)} all do"
        raise InputError(
            "sensitive_bins",
            f"{bins!r} cuts one column of numbers, but {found}",
            "name it, as in {'age': [25, 40]}",
        )
    return {numeric[0]: bins}


def _one_column(
    series: pd.Series, bins: Bins | None, unknown: Sequence[Any] | None, report: LoadReport
) -> tuple[np.ndarray, list[str]]:
    name = str(series.name)
    if bins is not None:
        gone = unknown_numbers(series, unknown)
        known = without(series, gone)
        if unknown is None:
            _note_unknown(series, "sensitive", int((series.notna() & known.isna()).sum()), report)
        return _cut(known, bins, report)
    codes, values = _known(series, "sensitive", unknown, report)
    numeric = all(isinstance(value, int | float) for value in values)
    if numeric and len(values) > MANY:
        raise InputError(
            "sensitive",
            f"column {name!r} has {len(values):,} different numbers",
            "cut it into groups with sensitive_bins, as in sensitive_bins=3 or "
            "sensitive_bins=[25, 40]",
        )
    if len(values) > MANY and len(values) > 0.9 * (codes >= 0).sum():
        raise InputError(
            "sensitive",
            f"column {name!r} has {len(values):,} different values, nearly one a row",
            "give a column with groups",
        )
    # "1" says little in a table of groups; "white = 1" does.
    return codes, [f"{name} = {shown(value)}" if numeric else shown(value) for value in values]


def _cut(series: pd.Series, bins: Bins, report: LoadReport) -> tuple[np.ndarray, list[str]]:
    name = str(series.name)
    values = as_numbers(series, report=report)
    if values is None:
        raise InputError(
            "sensitive_bins", f"column {name!r} does not hold numbers", "leave the bins out"
        )
    known = values[~np.isnan(values)]
    if isinstance(bins, int | np.integer):
        if bins < 2:
            raise InputError("sensitive_bins", f"{bins} makes one group at most", "give 2 or more")
        # Cuts are values that occur, so that no group between two of them is empty; one at the
        # smallest value would leave nothing below it.
        shares = np.arange(1, bins) / bins
        cuts = np.quantile(known, shares, method="higher") if len(known) else known
        edges = np.unique(cuts[cuts > known.min()]) if len(known) else cuts
        if len(edges) + 1 < bins:
            report.notes.append(
                f"column {name!r}: many nodes share a value, so {len(edges) + 1} groups were made"
                f" instead of {bins}"
            )
    else:
        edges = np.asarray(list(bins), dtype=np.float64)
        if not len(edges) or not np.isfinite(edges).all() or (np.diff(edges) <= 0).any():
            raise InputError(
                "sensitive_bins",
                f"{list(bins)!r} are no ascending cut points",
                "give some, as in [25, 40]",
            )
    codes = np.where(np.isnan(values), -1, np.searchsorted(edges, values, side="right"))
    return codes.astype(np.int64), _bin_names(name, edges)


def _bin_names(name: str, edges: np.ndarray) -> list[str]:
    cuts = [f"{edge:.6g}" for edge in edges]
    if not cuts:
        return [name]
    middle = [f"{low} ≤ {name} < {high}" for low, high in pairwise(cuts)]
    return [f"{name} < {cuts[0]}", *middle, f"{name} ≥ {cuts[-1]}"]


def _known(
    series: pd.Series, role: str, unknown: Sequence[Any] | None, report: LoadReport
) -> tuple[np.ndarray, list[Any]]:
    """Encode the values of a column, leaving out those that mean "not known"."""
    codes, values = coded(series)
    gone = unknown_values(values, unknown)
    dropped = [k for k, value in enumerate(values) if shown(value) in gone]
    if not dropped:
        return codes, values
    if unknown is None:
        _note_unknown(series, role, int(np.isin(codes, dropped).sum()), report)
    kept = [k for k in range(len(values)) if k not in dropped]
    rank = np.full(len(values) + 1, -1, dtype=np.int64)
    rank[kept] = np.arange(len(kept))
    return rank[codes], [values[k] for k in kept]


def unknown_values(values: Sequence[Any], unknown: Sequence[Any] | None) -> tuple[str, ...]:
    """Which values of a column mean "not known", as people write them.

    Args:
        values: The column's different values.
        unknown: Those that were given; by default −1, where it is the only number below 0 and at
            least two from 0 up stand beside it.

    Example:
        >>> unknown_values([-1, 0, 1], None), unknown_values([-2, -1, 0, 1], None)
        (('-1',), ())
        >>> unknown_values([True, False], ["false"])
        ('false', 'False')
    """
    if unknown is not None:
        met = [shown(value) for value in values if any(_same(value, one) for one in unknown)]
        return tuple(dict.fromkeys([*map(shown, unknown), *met]))
    numbers = [value for value in values if isinstance(value, int | float)]
    plain = len(numbers) == len(values) and all(n >= 0 or n == -1 for n in numbers)
    return ("-1",) if plain and sum(n >= 0 for n in numbers) > 1 else ()


def unknown_numbers(series: pd.Series, unknown: Sequence[Any] | None) -> tuple[str, ...]:
    """The :func:`unknown_values` of a column of numbers, however many."""
    numbers = as_numbers(series)
    values = [] if numbers is None else np.unique(numbers[~np.isnan(numbers)]).tolist()
    return unknown_values(values, unknown)


def without(series: pd.Series, unknown: Sequence[str]) -> pd.Series:
    """Empty the cells of a column of numbers that mean "not known".

    Example:
        >>> import pandas as pd
        >>> without(pd.Series([20, -1, 50]), ["-1"]).tolist()
        [20.0, nan, 50.0]
    """
    import pandas as pd

    if not unknown:
        return series
    numbers = pd.to_numeric(pd.Series(list(unknown)), errors="coerce").dropna()
    gone = series.isin([*unknown, *numbers])
    return series.mask(gone) if gone.any() else series


def _note_unknown(series: pd.Series, role: str, count: int, report: LoadReport) -> None:
    if count:
        report.notes.append(
            f"{role} {series.name!r}: −1 counts as unknown ({counted(count, 'node')});"
            " unknown=() makes it a value"
        )


def _same(value: Any, given: Any) -> bool:
    """Whether a value is the one a person typed: 1, 1.0 and "1" are the same, True and "true"."""
    if value == given or shown(value) == shown(given):
        return True
    return isinstance(value, bool) and str(given).casefold() == str(value).casefold()


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")

"""Columns by name: the closest one to a misspelled name, and errors for those that are absent."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Sequence

from fairmp.errors import InputError, shortlist

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
    if suggestion is not None:
        value += f", did you mean {suggestion!r}?"
    if len(columns) == 1:
        raise InputError(argument, value, f"there is only {columns[0]}; {CHECK_SEPARATOR}")
    raise InputError(argument, value, f"there are {shortlist(columns, 30)}")


def check_unique(names: Sequence[str], argument: str) -> None:
    """Refuse two columns of the same name."""
    if repeated := [name for name, count in Counter(names).items() if count > 1]:
        raise InputError(argument, f"two columns are named {repeated[0]!r}", "rename one")

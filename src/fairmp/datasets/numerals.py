"""Numbers, booleans and dates in columns of text: what commas mean, and the type of a column.

Columns are pyarrow arrays of stripped text, with nulls for missing values.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from fairmp.errors import InputError

CommaMeaning = Literal["decimal", "thousands"]
COMMA_TITLES: dict[CommaMeaning, str] = {
    "decimal": "decimal commas",
    "thousands": "thousands separators",
}
SAMPLE_ROWS = 100  # tried first: a cast of a whole column that fails is slow

_POINT = r"\."
_DIGITS = r"([0-9]+|[1-9][0-9]{0,2}(%s[0-9]{3})+)"
_EXPONENT = r"([eE][+-]?[0-9]+)?$"
# Numbers in which a comma can only be the one or the other; 2,101 is among both.
_PATTERNS: dict[CommaMeaning, str] = {
    "decimal": rf"^[+-]?({_DIGITS % _POINT}(,[0-9]*)?|,[0-9]+){_EXPONENT}",
    "thousands": rf"^[+-]?({_DIGITS % ','}(\.[0-9]*)?|\.[0-9]+){_EXPONENT}",
}
_EITHER = rf"^[+-]?[0-9]*[.,]?[0-9]+{_EXPONENT}"
_GROUPED_BY_POINTS = r"^[+-]?[1-9][0-9]{0,2}(\.[0-9]{3})+$"


def is_text(type: Any) -> bool:
    """Whether a pyarrow type is text."""
    checks = pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view
    return any(check(type) for check in checks)


def comma_meanings(cells: Any) -> list[CommaMeaning] | None:
    """What commas in a column can mean; nothing if its numbers contradict each other.

    None if the column has no commas, or holds other text than numbers.
    """
    if not is_text(cells.type) or not pc.any(pc.match_substring(cells, ",")).as_py():
        return None
    possible = [meaning for meaning, pattern in _PATTERNS.items() if _all_match(cells, pattern)]
    return possible if possible or _all_match(cells, _EITHER) else None


def without_commas(cells: Any, meaning: CommaMeaning) -> Any:
    """Write the numbers of a column without thousands separators and with a decimal point."""
    if meaning == "thousands":
        return pc.replace_substring(cells, ",", "")
    return pc.replace_substring(pc.replace_substring(cells, ".", ""), ",", ".")


def has_points_for_thousands(cells: Any) -> bool:
    """Whether every point of a column is in a number such as 1.234, where it may group digits."""
    points = pc.match_substring(cells, ".")
    grouped = pc.or_(pc.match_substring_regex(cells, _GROUPED_BY_POINTS), pc.invert(points))
    return bool(pc.any(points).as_py() and pc.all(grouped).as_py())


def infer_type(cells: Any, *, exact: bool = False) -> Any:
    """Convert a column of text to numbers, booleans or dates if all of it is.

    With ``exact`` only if distinct numbers stay distinct.
    """
    if cells.null_count == len(cells):
        return pa.nulls(len(cells))
    unsigned = pc.replace_substring_regex(cells, r"^\+([0-9.])", r"\1")
    # The order in which pyarrow's CSV reader tries types.
    times = [pa.timestamp(unit, zone) for zone in (None, "UTC") for unit in ("s", "ns")]
    for type in (pa.int64(), pa.bool_(), pa.date32(), *times, pa.float64()):
        with suppress(pa.ArrowInvalid):
            pc.cast(unsigned.slice(0, SAMPLE_ROWS), type)
            typed = pc.cast(unsigned, type)
            return cells if exact and _merge(unsigned, typed) else typed
    return cells


def _merge(cells: Any, typed: Any) -> bool:
    """Whether different values of a column of text became equal numbers or booleans.

    ``1`` and ``1.0`` are one value; ``01``, ``1E0`` and ``true`` are others.
    """
    kinds = pa.types.is_floating, pa.types.is_integer, pa.types.is_boolean
    if not any(is_kind(typed.type) for is_kind in kinds):
        return False
    distinct = pc.count_distinct(typed).as_py()
    if distinct == pc.count_distinct(cells).as_py():
        return False
    written = [text.as_py() for text in pc.unique(cells.drop_null())]
    return len(set(map(_plain, written))) > distinct


def _plain(text: str) -> str:
    """A number without zeros at its end, or another text in lower case."""
    whole, point, fraction = text.lower().removeprefix("+").partition(".")
    if not point or not fraction.isdecimal():
        return "0" if whole == "-0" else whole + point + fraction
    fraction = fraction.rstrip("0")
    number = f"{whole or '0'}.{fraction}" if fraction else whole
    return "0" if number == "-0" else number


def from_decimals(cells: Any) -> Any:
    """A column of decimals as integers if all of it is, as floats otherwise."""
    with suppress(pa.ArrowInvalid):
        return cells.cast(pa.int64())
    return cells.cast(pa.float64())


def refuse_inexact(cells: Any, argument: str) -> None:
    """Refuse ids that are floats too large to be exact."""
    if not pa.types.is_floating(cells.type):
        return
    largest = 2 ** {16: 11, 32: 24}.get(cells.type.bit_width, 53)
    cells = pc.cast(cells, pa.float64())
    row = pc.index(pc.greater_equal(pc.abs(cells), largest), True).as_py()
    if row >= 0:
        value = f"{cells[row].as_py()!r} is a float, and ids of that size are not exact as floats"
        raise InputError(argument, value, "give ids as integers or text, without empty cells")


def whole_floats(cells: Any, argument: str) -> Any:
    """Ids that are floats as integers, as text if some are not whole; NaN is missing.

    Floats too large to be exact are refused.
    """
    refuse_inexact(cells, argument)
    cells = pc.cast(cells, pa.float64())
    cells = pc.if_else(pc.is_nan(cells), pa.scalar(None, cells.type), cells)
    is_whole = pc.and_(pc.is_finite(cells), pc.equal(pc.floor(cells), cells))
    whole = pc.cast(pc.if_else(is_whole, cells, pa.scalar(None, cells.type)), pa.int64())
    if whole.null_count == cells.null_count:
        return whole
    return pc.coalesce(pc.cast(whole, pa.large_string()), pc.cast(cells, pa.large_string()))


def _all_match(cells: Any, pattern: str) -> bool:
    return bool(pc.all(pc.match_substring_regex(cells, pattern)).as_py())

"""Node ids as pyarrow arrays: read, checked, and matched across types."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from fairmp.datasets.numerals import is_text
from fairmp.errors import InputError, plural

MAX_IDS_PER_NODE = 64  # range of integer ids, per node, up to which rows are looked up in an array
_INTEGER = r"^(0|-?[1-9][0-9]*)$"
_DECIMAL = r"^(0|-?[1-9][0-9]*)(\.[0-9]+(e[+-]?[0-9]+)?)?$"


def id_array(series: Any) -> Any:
    """A column of ids as a pyarrow array, text if it mixes types; blank text is missing."""
    try:
        array = pa.array(series, from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        array = pa.array(series.astype(str).where(series.notna(), None), from_pandas=True)
    return blank_to_null(array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array)


def node_ids(table: Any, id: str | None) -> Any:
    """The ids of a node table as a pyarrow array; row numbers without a column."""
    if id is None:
        return pa.array(np.arange(len(table)))
    ids = id_array(table[id])
    check_ids(ids, "id")
    return ids


def blank_to_null(ids: Any) -> Any:
    """Strip ids that are text, and treat blank ones as missing."""
    if not is_text(ids.type):
        return ids
    ids = pc.utf8_trim_whitespace(ids)
    return pc.if_else(pc.equal(ids, ""), pa.scalar(None, ids.type), ids)


def check_ids(ids: Any, argument: str) -> None:
    """Refuse node ids that are missing or repeated."""
    if ids.null_count:
        rows = plural(ids.null_count, "row")
        raise InputError(argument, f"{rows} without an id", "give every node one, or drop them")
    counts = pc.value_counts(ids)
    repeated = counts.filter(pc.greater(counts.field("counts"), 1))
    if len(repeated):
        value = f"{plural(len(repeated), 'id')} given more than once"
        example = repeated[0]["values"].as_py()
        raise InputError(argument, f"{value} (such as {example!r})", "give every node one row")


def positions(ids: Any, column: Any) -> np.ndarray:
    """Find each value of a column among the ids: its row, or −1 if it is absent."""
    ids = ids.combine_chunks() if isinstance(ids, pa.ChunkedArray) else ids
    rows = pc.index_in(pc.cast(column, ids.type), value_set=ids)
    return pc.fill_null(rows, -1).to_numpy()


def position_finder(ids: Any) -> Callable[[Any], np.ndarray]:
    """Return :func:`positions` for many columns of the ids' type.

    Integers are found in an index that is built once: an array, where they are close together.
    """
    if not pa.types.is_integer(ids.type):
        return partial(positions, ids)
    numbers = ids.to_numpy()
    low, high = int(numbers.min()), int(numbers.max())
    if high - low < MAX_IDS_PER_NODE * len(numbers):
        rows = np.full(high - low + 1, -1, dtype=np.int32 if len(numbers) < 2**31 else np.int64)
        rows[numbers - low] = np.arange(len(numbers), dtype=rows.dtype)
    else:
        index = pd.Index(numbers)
        rows = None

    def find(column: Any) -> np.ndarray:
        if column.null_count:
            known = column.is_valid().to_numpy(zero_copy_only=False)
            return np.where(known, find(pc.fill_null(column, low)), -1)
        values = column.to_numpy()
        if rows is None:
            return index.get_indexer(values)
        inside = (values >= low) & (values <= high)
        if inside.all():
            return rows[values - low]
        return np.where(inside, rows[np.where(inside, values - low, 0)], -1)

    return find


def comparable(*columns: Any) -> list[Any]:
    """Bring columns of ids of any type to one: integers if all of them are, otherwise text."""
    plain = [
        pc.cast(column, column.type.value_type) if pa.types.is_dictionary(column.type) else column
        for column in columns
    ]
    integers = [_as_integers(column) for column in plain]
    if all(column is not None for column in integers):
        return integers
    return [
        pc.cast(column if number is None or is_text(column.type) else number, pa.large_string())
        for column, number in zip(plain, integers, strict=True)
    ]


def _as_integers(column: Any) -> Any | None:
    """Text counts as integers only in canonical form, so that ``007`` matches only ``007``."""
    try:
        # A safe cast: it fails on 1.5, infinities and floats too large to be exact.
        if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
            return pc.cast(column, pa.int64())
        if not is_text(column.type):
            return None
        if pc.all(pc.match_substring_regex(column, _INTEGER)).as_py() is not False:
            return pc.cast(column, pa.int64())
        if pc.all(pc.match_substring_regex(column, _DECIMAL)).as_py():
            return pc.cast(pc.cast(column, pa.float64()), pa.int64())
    except pa.ArrowInvalid:
        pass
    return None

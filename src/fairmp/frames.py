"""Tables and columns of pandas, polars and Arrow: read as pandas, returned as what was given.

Functions compute on pandas inside, convert with :func:`as_pandas` or :func:`read_frame` where a
table enters, and with :func:`like` where a result leaves. Nothing is imported before a table is
read, and neither polars nor pandas for arrays and tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fairmp.errors import InputError

if TYPE_CHECKING:
    import narwhals as nw
    import pandas as pd

MISSING = ("", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "NaT", "null", "NULL", "None", "?")
"""Text that marks a missing value, in files, DataFrames and arguments alike."""

MAX_EXACT = 2**53  # integers from there on are not exact as floats
NO_TABLES = ("builtins", "numpy", "torch")  # whose values need no conversion


def as_pandas(values: Any) -> Any:
    """A table or column of polars, Arrow or another library as pandas; anything else unchanged.

    Tables that are lazy, such as polars' ``LazyFrame`` and DuckDB's relations, are computed.

    Example:
        >>> import pyarrow as pa
        >>> as_pandas(pa.table({"sex": ["f", "m"], "age": [34, 51]}))
          sex  age
        0   f   34
        1   m   51
    """
    table = _wrapped(values)
    if table is None:
        return values
    import narwhals as nw

    if isinstance(table, nw.DataFrame):
        return arrow_to_pandas(table.to_arrow())
    name = table.name or None
    return arrow_to_pandas(table.alias("values").to_frame().to_arrow())["values"].rename(name)


def read_frame(table: Any, argument: str) -> pd.DataFrame:
    """A table as a pandas DataFrame with text as column names; refuse anything else.

    Takes what :func:`as_pandas` does, and a list of dicts with a row each.

    Example:
        >>> read_frame([{"sex": "f", "age": 34}, {"sex": "m"}], "people")
          sex   age
        0   f  34.0
        1   m   NaN
    """
    import pandas as pd

    if _is_rows(table):
        return pd.DataFrame(table).rename(columns=str)
    frame = as_pandas(table)
    if not isinstance(frame, pd.DataFrame):
        value = f"expected a table, got {type(table).__name__}"
        hint = "give a path, or a table of pandas, polars or Arrow, or a list of dicts"
        raise InputError(argument, value, hint)
    return frame.rename(columns=str)


def like(result: pd.DataFrame | pd.Series, original: Any) -> Any:
    """A pandas result in the library of ``original``; a list of dicts if it was one.

    Lazy tables get a table that is computed, Arrow's arrays one that is chunked. Only pandas has an
    index, which others lose.

    Example:
        >>> import pandas as pd
        >>> import pyarrow as pa
        >>> like(pd.DataFrame({"p": [0.2, 0.7]}), pa.table({"sex": ["f", "m"]})).to_pydict()
        {'p': [0.2, 0.7]}
    """
    import pandas as pd

    if _is_rows(original) and isinstance(result, pd.DataFrame):
        return result.to_dict("records")
    table = _wrapped(original)
    if table is None:
        return result
    import narwhals as nw
    import pyarrow as pa

    frame = result.to_frame("values") if isinstance(result, pd.Series) else result
    arrow = pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(None)
    converted = nw.from_arrow(arrow, backend=table.implementation)
    if isinstance(result, pd.DataFrame):
        return converted.to_native()
    return converted.get_column("values").alias(str(result.name or "")).to_native()


def is_pandas(values: Any) -> bool:
    """Whether values are a DataFrame or Series of pandas, without importing it."""
    return hasattr(values, "iloc")


def arrow_to_pandas(table: Any, *, self_destruct: bool = False) -> pd.DataFrame:
    """Convert a pyarrow table column by column; integers stay exact beside missing values.

    With ``self_destruct`` each column of the table is freed once it is converted.
    """
    import pandas as pd
    import pyarrow as pa

    # pandas has floats where integers have empty cells; large ones are not exact then.
    large = {
        name: cells.to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)
        for name, cells in zip(table.column_names, table.columns, strict=True)
        if _has_large_integers(cells)
    }
    frame = table.to_pandas(date_as_object=False, split_blocks=True, self_destruct=self_destruct)
    return frame.assign(**large) if large else frame


def _has_large_integers(cells: Any) -> bool:
    """Whether a pyarrow column has integers that are not exact as floats, and missing values."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if cells.type != pa.int64() or not cells.null_count:
        return False
    extremes = pc.min_max(cells).as_py()
    return max(abs(extremes["min"] or 0), abs(extremes["max"] or 0)) > MAX_EXACT


def _is_rows(table: Any) -> bool:
    """Whether a table is a list of dicts, one row each."""
    return (
        isinstance(table, list) and bool(table) and all(isinstance(row, Mapping) for row in table)
    )


def _wrapped(values: Any) -> nw.DataFrame[Any] | nw.Series[Any] | None:
    """A table or column of a library other than pandas that narwhals knows; lazy ones computed."""
    if is_pandas(values) or type(values).__module__.split(".")[0] in NO_TABLES:
        return None
    import narwhals as nw

    if type(values).__module__ == "pyarrow.lib":
        values = _as_chunked(values)
    table = nw.from_native(values, pass_through=True, allow_series=True)
    if isinstance(table, nw.LazyFrame):
        return table.collect()
    return table if isinstance(table, nw.DataFrame | nw.Series) else None


def _as_chunked(values: Any) -> Any:
    """Arrow's arrays and record batches in the types that narwhals knows."""
    import pyarrow as pa

    if isinstance(values, pa.Array):
        return pa.chunked_array([values])
    return pa.Table.from_batches([values]) if isinstance(values, pa.RecordBatch) else values

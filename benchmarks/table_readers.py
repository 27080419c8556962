"""What DuckDB's CSV reader makes of the fuzzer's tables, beside our reader.

    python -m benchmarks.table_readers [--seeds 41 42 43] [--tables 1000]

A table counts as read if its cells and numbers are those that pandas reads once it is told the
dialect.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd

from fairmp import InputError
from fairmp.datasets.readers import TableReader
from fairmp.datasets.values import MISSING
from tests.fuzz.harness import generator
from tests.fuzz.tables import Written, check_numbers, stated, write


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[41, 42, 43])
    parser.add_argument("--tables", type=int, default=1000, help="number of tables per seed")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    outcomes: dict[str, Counter[str]] = {"ours": Counter(), "duckdb": Counter()}
    for seed in options.seeds:
        for number in range(options.tables):
            with tempfile.TemporaryDirectory() as folder:
                written = write(generator("tables", seed, number), Path(folder))
                expected = stated(written).map(str.strip)
                outcomes["ours"][judge(read_ours, written, expected)] += 1
                outcomes["duckdb"][judge(read_duckdb, written, expected)] += 1
    for reader, counts in outcomes.items():
        print(reader, dict(counts.most_common()))


def judge(
    read: Callable[[Written], tuple[pd.DataFrame, pd.DataFrame]],
    written: Written,
    expected: pd.DataFrame,
) -> str:
    """Say how a reader does: ``read`` returns all cells as text, and the columns with types."""
    try:
        cells, typed = read(written)
    except (InputError, duckdb.Error):
        return "refused"
    if cells.shape[1] != expected.shape[1]:
        return "wrong columns"
    if cells.shape != expected.shape or typed.shape != expected.shape:
        return "wrong rows or header"
    if not np.array_equal(cells.map(str.strip), expected):
        return "wrong cells"
    typed.columns = expected.columns
    try:
        for name in expected:
            check_numbers(typed[name], expected[name], written)
    except AssertionError:
        return "wrong numbers"
    numeric = [name for name in expected if name != "id" and is_number(expected[name], written)]
    as_text = [name for name in numeric if not pd.api.types.is_numeric_dtype(typed[name])]
    return "numbers as text" if any(typed[name].notna().any() for name in as_text) else "read"


def read_ours(written: Written) -> tuple[pd.DataFrame, pd.DataFrame]:
    reader = TableReader(written.path, "nodes")
    reader.find_header(["id", "y", "s"])
    cells = reader.table(text=reader.names).to_pandas()
    return cells, reader.frame(text=["id"])


def read_duckdb(written: Written) -> tuple[pd.DataFrame, pd.DataFrame]:
    gzipped = written.path.read_bytes().startswith(b"\x1f\x8b")
    place = str(written.path), "gzip" if gzipped else "none"
    with duckdb.connect() as connection:
        text = "select * from read_csv(?, compression=?, all_varchar=true)"
        cells = connection.execute(text, place).df().map(lambda cell: "" if cell != cell else cell)
        typed = "select * from read_csv(?, compression=?, nullstr=?)"
        return cells.fillna(""), connection.execute(typed, (*place, list(MISSING))).df()


def is_number(cells: pd.Series, written: Written) -> bool:
    grouped = str(cells.name).startswith("grouped")
    mark = ("", ",") if grouped else (".", written.decimal)
    present = [cell.replace(mark[1], mark[0]) for cell in cells if cell not in MISSING]
    return bool(pd.to_numeric(pd.Series(present, dtype=object), errors="coerce").notna().all())


if __name__ == "__main__":
    main()

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fairmp.datasets.parquet_folders import table_files
from fairmp.datasets.readers import TableReader
from fairmp.errors import InputError

TABLE = pd.DataFrame(
    {"who": range(7), "sex": list("fmfmfmf"), "income": [0.5 * k for k in range(7)]}
)


def read(path: Path) -> pd.DataFrame:
    return TableReader(path, "nodes").frame()


def as_spark_writes(table: pd.DataFrame, folder: Path) -> None:
    """Two parts, with the files that Spark and Hadoop put beside them."""
    folder.mkdir()
    for number, rows in enumerate((table[:4], table[4:])):
        file = folder / f"part-{number:05d}-7c1b-c000.snappy.parquet"
        arrow = pa.Table.from_pandas(rows, preserve_index=False)
        pq.write_table(arrow, file, use_deprecated_int96_timestamps=True)
        (folder / f".{file.name}.crc").write_bytes(b"crc")
    pq.write_metadata(arrow.schema, folder / "_metadata")
    pq.write_metadata(arrow.schema, folder / "_common_metadata")
    (folder / "_SUCCESS").touch()
    (folder / "_temporary").mkdir()
    (folder / "_temporary" / "attempt.parquet").write_bytes(b"unfinished")


def as_polars_writes(table: pd.DataFrame, folder: Path) -> None:
    """One folder per value of a partition column."""
    for name, rows in table.groupby("sex"):
        part = folder / f"sex={name}"
        part.mkdir(parents=True)
        schema = pa.schema([("who", pa.int64()), ("income", pa.float64())])
        arrow = pa.Table.from_pandas(rows[["who", "income"]], schema, preserve_index=False)
        pq.write_table(arrow, part / "00000000.parquet", compression="zstd")


def as_duckdb_writes(table: pd.DataFrame, folder: Path) -> None:
    with duckdb.connect() as connection:
        connection.register("rows", table)
        connection.execute(
            f"COPY rows TO '{folder}' (FORMAT parquet, PARTITION_BY (sex), WRITE_PARTITION_COLUMNS)"
        ).complete()


@pytest.mark.parametrize("write", [as_spark_writes, as_polars_writes, as_duckdb_writes])
def test_folders_of_other_programs_are_one_table(tmp_path: Path, write: Any) -> None:
    write(TABLE, tmp_path / "people")
    table = read(tmp_path / "people").sort_values("who")[list(TABLE.columns)]
    pd.testing.assert_frame_equal(table.reset_index(drop=True), TABLE, check_dtype=False)


def test_pattern_matches_files_in_order(tmp_path: Path) -> None:
    as_spark_writes(TABLE, tmp_path / "people")
    table = read(tmp_path / "people" / "part-*.parquet")
    pd.testing.assert_frame_equal(table, TABLE)
    assert len(read(tmp_path / "*" / "part-00001-*")) == 3


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["2019", "2020"], "int64"),
        (["0.5", "1e3"], "double"),
        (["2019-01-31", "2020-02-01"], "date32[day]"),
        (["true", "false"], "bool"),
        (["north", "a%20b"], "string"),
        (["__HIVE_DEFAULT_PARTITION__", "7"], "int64"),
        (["__HIVE_DEFAULT_PARTITION__"], "string"),
    ],
)
def test_partition_columns_have_the_type_of_their_text(
    tmp_path: Path, values: list[str], kind: str
) -> None:
    for value in values:
        (tmp_path / "t" / f"key={value}").mkdir(parents=True)
        pq.write_table(pa.table({"a": [1]}), tmp_path / "t" / f"key={value}" / "0.parquet")
    table = TableReader(tmp_path / "t", "nodes").table()
    assert str(table.schema.field("key").type) == kind
    assert table["key"].null_count == values.count("__HIVE_DEFAULT_PARTITION__")
    assert "a%20b" not in table["key"].to_pylist()


def test_folders_above_the_table_are_no_columns(tmp_path: Path) -> None:
    folder = tmp_path / "year=2020" / "people"
    folder.parent.mkdir()
    as_spark_writes(TABLE, folder)
    assert TableReader(folder, "nodes").names == list(TABLE.columns)


def test_types_of_parts_are_unified(tmp_path: Path) -> None:
    for number, kind in enumerate((pa.int32(), pa.int64())):
        pq.write_table(pa.table({"a": pa.array([2**40 * number], kind)}), tmp_path / f"{number}")
    assert TableReader(tmp_path, "nodes").table()["a"].to_pylist() == [0, 2**40]


def test_wrong_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "_SUCCESS").touch()
    (tmp_path / "mixed").mkdir()
    pq.write_table(pa.table({"a": [1]}), tmp_path / "mixed" / "a.parquet")
    (tmp_path / "mixed" / "notes.txt").write_text("hello")
    for path, name in (
        (tmp_path / "empty", "empty"),
        (tmp_path / "none*", "none"),
        (tmp_path / "mixed", "notes"),
    ):
        with pytest.raises(InputError, match=name) as error:
            TableReader(path, "edges")
        assert error.value.argument == "edges"


def test_file_with_a_star_in_its_name_is_one_file(tmp_path: Path) -> None:
    path = tmp_path / "a*.parquet"
    pq.write_table(pa.table({"a": [1]}), path)
    pq.write_table(pa.table({"a": [2]}), tmp_path / "ab.parquet")
    assert table_files(path, "nodes") == [path]

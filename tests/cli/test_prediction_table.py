"""Tables of predictions are read once and written again with more columns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fairmp.cli import prediction_table
from fairmp.datasets.values import MISSING
from fairmp.postprocessing.predictions import attributes

FRAME = pd.DataFrame(
    {
        "person": ["007", "8", "9"],
        "p": [0.25, 0.5, 0.1234567890123],
        "income": [1.5, None, 3.0],
        "age": pd.array([30, None, 50], dtype="Int64"),
        "note": ["a;b", None, "c"],
        "member": [True, False, True],
    }
)


@pytest.mark.parametrize("name", ["out.csv", "out.csv.gz", "out.parquet"])
def test_parquet_with_missing_values_is_written_in_any_format(tmp_path: Path, name: str) -> None:
    FRAME.to_parquet(tmp_path / "in.parquet")
    table = prediction_table.read(tmp_path / "in.parquet", "person")
    prediction_table.write(table, {"q": np.array([0.1, 0.2, 1 / 3])}, tmp_path / name)
    if name.endswith("parquet"):
        found = pd.read_parquet(tmp_path / name)
    else:
        found = pd.read_csv(tmp_path / name, dtype={"person": str, "age": "Int64"})
    assert found["person"].tolist() == FRAME["person"].tolist()
    assert found["p"].tolist() == FRAME["p"].tolist()
    assert found["q"].tolist() == pytest.approx([0.1, 0.2, 1 / 3])
    for column in ("income", "age", "note"):
        assert found[column].isna().tolist() == [False, True, False]
    assert found["age"].dropna().tolist() == [30, 50]


def test_text_keeps_its_dialect(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text('id;p;income\n007;0,25;"1.234,5"\n8;0,5;NA\n')
    table = prediction_table.read(path, "id")
    assert table.numbers("--probabilities", "p").tolist() == [0.25, 0.5]
    assert table.reader.locate(0) == "line 2"
    prediction_table.write(table, {"q": np.array([0.125, 0.75])}, tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text() == (
        "id;p;income;q\n007;0,25;1.234,5;0,125\n8;0,5;NA;0,75\n"
    )


@pytest.mark.parametrize("marker", MISSING)
def test_missing_values_are_the_same_in_python_and_in_files(tmp_path: Path, marker: str) -> None:
    sex = ["f", "m", marker, "f", "m"]
    (one,) = attributes(sex, 5)
    assert one.groups == ("f", "m")
    assert one.sens.tolist() == [0, 1, -1, 0, 1]
    pd.DataFrame({"sex": sex, "p": 0.5}).to_csv(tmp_path / "in.csv", index=False)
    table = prediction_table.read(tmp_path / "in.csv", None)
    groups = prediction_table.groups(table, ["sex"], None, False)
    assert groups is not None
    assert groups[0].groups == one.groups
    assert groups[0].sens.tolist() == one.sens.tolist()


@pytest.mark.parametrize("safe", [True, False])
def test_text_that_a_spreadsheet_would_run_is_quoted(tmp_path: Path, safe: bool) -> None:
    path = tmp_path / "in.csv"
    cells = ["=1+1", "+cmd", "-x", "@sum", "-1.5", "-", "plain", ""]
    frame = pd.DataFrame({"=who": cells, "p": [0.5, -1.5] * 4})
    frame.to_csv(path, index=False)
    table = prediction_table.read(path, "=who")
    prediction_table.write(table, {"d": ["=no"] * 8}, tmp_path / "out.csv", safe=safe)
    found = pd.read_csv(tmp_path / "out.csv", keep_default_na=False)
    mark = "'" if safe else ""
    assert list(found) == [f"{mark}=who", "p", "d"]
    expected = [f"{mark}{cell}" for cell in cells[:4]] + cells[4:]
    assert found[f"{mark}=who"].tolist() == expected
    assert found["p"].tolist() == frame["p"].tolist()
    assert set(found["d"]) == {f"{mark}=no"}
    again = prediction_table.read(tmp_path / "out.csv", "=who")  # as it was, marked or not
    assert again.columns == ["=who", "p", "d"]
    assert again.raw["=who"].to_pylist() == cells

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fairmp.datasets.encoding import Roles
from fairmp.datasets.load_report import LoadReport
from fairmp.datasets.tables import from_tables
from fairmp.distributed.node_table import NodeTable, read_nodes
from fairmp.errors import InputError

COLUMNS: dict[str, Any] = {"id": "who", "label": "hired", "sensitive": "sex", "drop": ("note",)}
EDGES = pd.DataFrame({"from": [10], "to": [11]})


def people(n: int = 30) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "who": np.arange(n) + 10,
            "hired": rng.choice(["yes", "no"], n),
            "sex": rng.choice(["f", "m", None], n),
            "age": np.where(rng.random(n) < 0.2, np.nan, rng.integers(18, 80, n)),
            "town": rng.choice(["x", "y", "z"], n),
            "since": rng.choice(["2020-01-01", "2021-02-03"], n),
            "note": "-",
        }
    )


def read(table: pd.DataFrame, folder: Path, name: str = "n.csv", **roles: Any) -> NodeTable:
    path = folder / name
    if path.suffix == ".parquet":
        table.to_parquet(path)
    else:
        table.to_csv(path, index=False, sep="\t" if path.suffix == ".tsv" else ",")
    return read_nodes(path, Roles(**(COLUMNS | roles)), folder, LoadReport())


@pytest.mark.parametrize("name", ["n.csv", "n.tsv", "n.parquet"])
def test_columns_are_encoded_as_by_from_tables(tmp_path: Path, name: str) -> None:
    nodes = read(people(), tmp_path, name)
    data = from_tables(tmp_path / name, EDGES, **COLUMNS)
    assert nodes.encoding == data.encoding
    assert np.array_equal(nodes.y, data.y)
    assert np.array_equal(nodes.sens, data.sens)
    some = np.array([3, 0, 29])
    assert np.array_equal(nodes.features(some), data.x[some])
    assert len(nodes.feature_files) == 3


@pytest.mark.parametrize(("cells", "value"), [("{},5", 1.5), ("{},101,000", 1_101_000.0)])
def test_commas_in_numbers(tmp_path: Path, cells: str, value: float) -> None:
    table = people()
    table["income"] = [cells.format(k + 1) for k in range(len(table))]
    nodes = read(table[["who", "hired", "sex", "income"]], tmp_path, "n.tsv", drop=())
    (column,) = nodes.encoding.columns
    lowest = float(nodes.features(np.array([0]))[0, 0]) * column.divisor + column.shift  # type: ignore[union-attr]
    assert lowest == pytest.approx(value)


def test_ambiguous_commas_are_refused(tmp_path: Path) -> None:
    table = people()
    table["income"] = [f"{k + 1},101" for k in range(len(table))]
    with pytest.raises(InputError, match="income"):
        read(table, tmp_path, "n.tsv")


def test_table_without_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no rows"):
        read(people()[:0], tmp_path)


def test_rows_are_the_ids_without_a_column_of_ids(tmp_path: Path) -> None:
    nodes = read(people().drop(columns="who"), tmp_path, id=None)
    assert nodes.ids.to_pylist() == list(range(30))

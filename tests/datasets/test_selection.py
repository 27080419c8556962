from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from fairmp.datasets import from_tables
from fairmp.datasets.selection import nodes_listed, rows_where
from fairmp.errors import InputError


@pytest.fixture
def nodes(tmp_path: Path) -> Path:
    people = pd.DataFrame({"who": list("abcdefgh"), "y": [0, 1] * 4, "s": list("uvvu") * 2})
    people.assign(year=[2023, 2024] * 4).to_csv(tmp_path / "people.csv", index=False)
    return tmp_path / "people.csv"


def test_rows_where_compares_cells_as_written(nodes: Path) -> None:
    assert rows_where(nodes, "year", "2024").tolist() == [False, True] * 4
    assert rows_where(nodes, "year", "2024.0").sum() == 0
    with pytest.raises(InputError) as error:
        rows_where(nodes, "yaer", "2024")
    assert error.value.argument == "where"


@pytest.mark.parametrize("header", ["who", "name"])
def test_nodes_listed_finds_ids_of_a_table(nodes: Path, tmp_path: Path, header: str) -> None:
    edges = pd.DataFrame({"from": ["a"], "to": ["b"]})
    data = from_tables(nodes, edges, id="who", label="y", sensitive="s")
    listed = tmp_path / "only.csv"
    listed.write_text(f"{header}\n b\nh\n")
    assert nodes_listed(data, listed, "who").nonzero()[:, 0].tolist() == [1, 7]
    listed.write_text(f"{header}\nb\nnobody\n")
    with pytest.raises(InputError, match="nobody") as error:
        nodes_listed(data, listed, "who")
    assert error.value.argument == "only"

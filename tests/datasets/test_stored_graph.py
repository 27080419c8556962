from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from fairmp.datasets import from_tables
from fairmp.datasets.stored_graph import FILE, StoredGraph, count_stored, save_graph
from fairmp.errors import InputError


@pytest.fixture
def data():
    people = pd.DataFrame({"who": list("abcdefgh"), "y": [0, 1] * 4, "s": list("uvvu") * 2})
    people["age"] = range(8)
    edges = pd.DataFrame({"from": list("aabc"), "to": list("bcda")})
    return from_tables(people, edges, id="who", label="y", sensitive="s")


def test_load_returns_what_was_saved(data, tmp_path: Path) -> None:
    path = save_graph(data, tmp_path)
    assert path == tmp_path / FILE
    stored = StoredGraph.load(path, data.encoding)
    np.testing.assert_array_equal(stored.x, data.x)
    np.testing.assert_array_equal(stored.sens, data.sens)
    assert stored.ids.tolist() == list("abcdefgh")
    assert stored.edges.T.tolist() == [[0, 1], [0, 2], [1, 3]]


def test_file_has_no_labels(data, tmp_path: Path) -> None:
    with np.load(save_graph(data, tmp_path)) as file:
        assert set(file.files) == {"words", "x", "sens", "ids", "edges"}


def test_load_refuses_a_damaged_file(data, tmp_path: Path) -> None:
    path = save_graph(data, tmp_path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(InputError) as error:
        StoredGraph.load(path, data.encoding)
    assert error.value.argument == "graph"


def test_count_stored_counts_ids_of_the_graph(data, tmp_path: Path) -> None:
    assert count_stored(save_graph(data, tmp_path), pa.array(["a", "x", "h"])) == 2

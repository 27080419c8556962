from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.utils import coalesce, remove_self_loops, to_undirected

from fairmp.datasets.columns import LoadReport
from fairmp.datasets.edges import check_ids, comparable, positions, undirected
from fairmp.errors import InputError

ROWS = st.lists(st.tuples(st.integers(-1, 6), st.integers(-1, 6)), max_size=40)


@settings(deadline=None)
@given(ROWS)
def test_undirected_agrees_with_pyg_and_with_counting(rows):
    report = LoadReport()
    source, target = np.array(rows, dtype=np.int64).reshape(-1, 2).T
    ours = undirected(source, target, 7, report)

    known = [(a, b) for a, b in rows if a >= 0 and b >= 0]
    proper = [(a, b) for a, b in known if a != b]
    edge_index = torch.tensor(known, dtype=torch.long).reshape(-1, 2).T
    edge_index = to_undirected(remove_self_loops(edge_index)[0], num_nodes=7)
    theirs = coalesce(edge_index, num_nodes=7)
    assert ours.tolist() == theirs.tolist()
    assert ours.dtype == np.int64

    directed = set(proper)
    pairs = {tuple(sorted(edge)) for edge in proper}
    assert report.edge_rows == len(rows)
    assert report.dangling == len(rows) - len(known)
    assert report.self_loops == len(known) - len(proper)
    assert report.repeated == len(proper) - len(directed)
    assert report.reciprocal == sum((b, a) in directed for a, b in directed) // 2
    assert report.edges == len(pairs)


IDS = st.lists(st.integers(-(2**62), 2**62) | st.integers(0, 50), unique=True, min_size=1)


@settings(deadline=None)
@given(IDS, st.data())
def test_positions_agree_with_a_dict(ids, data):
    wanted = data.draw(st.lists(st.sampled_from(ids) | st.integers(-60, 60) | st.none()))
    rows = {value: row for row, value in enumerate(ids)}
    expected = [rows.get(value, -1) for value in wanted]
    column = pa.array(wanted, pa.int64())
    assert positions(pa.array(ids, pa.int64()), column)[0].tolist() == expected
    chunked = pa.chunked_array([column[:2], column[2:]])
    assert positions(pa.chunked_array([pa.array(ids, pa.int64())]), chunked)[0].tolist() == expected
    as_text = [None if value is None else str(value) for value in wanted]
    text_ids = pa.array([str(value) for value in ids])
    assert positions(text_ids, pa.array(as_text, pa.string()))[0].tolist() == expected


@pytest.mark.parametrize(
    ("nodes", "edges", "matches"),
    [
        (["007", "7"], ["7", "007"], [1, 0]),
        (["007", "8"], [7, 8], [-1, 1]),
        ([7, 8], ["8.0", "7"], [1, 0]),
        ([7, 8], ["8.000e+00", "9"], [1, -1]),
        ([7.0, 8.0], ["8", "7"], [1, 0]),
        (["a", "1e5"], ["1e5", "100000"], [1, -1]),
        (["a", "b"], ["A", "b"], [-1, 1]),
        ([1.5, 2.0], ["1.5", "2"], [0, 1]),
        ([2**60, 2**60 + 1], [str(2**60 + 1), str(2**60)], [1, 0]),
        ([str(10**30), "1"], ["1", str(10**30)], [1, 0]),
    ],
)
def test_ids_of_different_types_meet_exactly(nodes, edges, matches):
    ids, one, _ = comparable(pa.array(nodes), pa.array(edges), pa.array(edges))
    assert positions(ids, one)[0].tolist() == matches


def test_categories_are_read_through():
    column = pa.array(["b", "a"]).dictionary_encode()
    ids, one, _ = comparable(pa.array(["a", "b"]), column, column)
    assert positions(ids, one)[0].tolist() == [1, 0]


def test_ids_that_are_missing_or_appear_twice():
    with pytest.raises(InputError, match=r"id: 1 id given more than once.*'a'"):
        check_ids(pa.array(["a", "b", "a"]), "id")
    with pytest.raises(InputError, match="id: 2 rows without an id"):
        check_ids(pa.array([None, "b", None]), "id")


def test_a_report_reads_well():
    report = LoadReport(
        nodes=1200,
        edge_rows=9,
        dangling=2,
        edges=4,
        unknown_labels=1,
        missing={f"c{k}": k for k in range(1, 11)},
    )
    text = str(report)
    assert text.splitlines()[0] == "1,200 nodes, 4 undirected edges from 9 edge rows"
    assert "2 dangling edge rows dropped" in text
    assert "1 node without a label" in text
    assert "c10 10, c9 9" in text
    assert "and 2 more columns" in text
    assert "self-loop" not in text

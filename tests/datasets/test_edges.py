from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.utils import coalesce, remove_self_loops, to_undirected

from fairmp.datasets import from_tables
from fairmp.datasets.edges import (
    EdgeColumns,
    Edges,
    check_ids,
    comparable,
    id_array,
    node_ids,
    position_finder,
    positions,
    read_edges,
    undirected,
)
from fairmp.datasets.load_report import LoadReport
from fairmp.distributed import shard_tables
from fairmp.errors import InputError

IDS = st.lists(st.integers(-(2**62), 2**62) | st.integers(0, 50), unique=True, min_size=1)


@settings(deadline=None)
@given(IDS, st.data())
def test_positions_agree_with_a_dict(ids, data):
    wanted = data.draw(st.lists(st.sampled_from(ids) | st.integers(-60, 60) | st.none()))
    rows = {value: row for row, value in enumerate(ids)}
    expected = [rows.get(value, -1) for value in wanted]
    column = pa.array(wanted, pa.int64())
    assert positions(pa.array(ids, pa.int64()), column).tolist() == expected
    chunked = pa.chunked_array([column[:2], column[2:]])
    assert positions(pa.chunked_array([pa.array(ids, pa.int64())]), chunked).tolist() == expected
    as_text = [None if value is None else str(value) for value in wanted]
    text_ids = pa.array([str(value) for value in ids])
    assert positions(text_ids, pa.array(as_text, pa.string())).tolist() == expected


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
def test_comparable_matches_ids_of_different_types(nodes, edges, matches):
    ids, one, _ = comparable(pa.array(nodes), pa.array(edges), pa.array(edges))
    assert positions(ids, one).tolist() == matches


def test_comparable_takes_categories():
    column = pa.array(["b", "a"]).dictionary_encode()
    ids, one, _ = comparable(pa.array(["a", "b"]), column, column)
    assert positions(ids, one).tolist() == [1, 0]


def test_check_ids_refuses_missing_and_repeated_ids():
    with pytest.raises(InputError, match="'a'"):
        check_ids(pa.array(["a", "b", "a"]), "id")
    with pytest.raises(InputError, match="2 rows"):
        check_ids(pa.array([None, "b", None]), "id")


def test_id_array_takes_mixed_types_and_blank_text():
    assert id_array(pd.Series(["a", 1, None])).to_pylist() == ["a", "1", None]
    assert id_array(pd.Series([" a ", " "])).to_pylist() == ["a", None]


def test_node_ids_without_a_column_are_row_numbers():
    frame = pd.DataFrame({"who": ["b", "a"]})
    assert node_ids(frame, None).to_pylist() == [0, 1]
    assert node_ids(frame, "who").to_pylist() == ["b", "a"]


@pytest.mark.parametrize("ids", [[5, 3, 9], [10**15, -7, 0], [-(2**63), 2**63 - 1]])
def test_position_finder_agrees_with_positions(ids: list[int]) -> None:
    node_ids = pa.array(ids, pa.int64())
    find = position_finder(node_ids)
    for column in ([*ids, None, 4, -8], [*ids[::-1]], []):
        values = pa.array(column, pa.int64())
        assert find(values).tolist() == positions(node_ids, values).tolist()


ROWS = st.lists(st.tuples(st.integers(-1, 6), st.integers(-1, 6)), max_size=40)


@settings(deadline=None)
@given(ROWS)
def test_undirected_agrees_with_pyg(rows):
    report = LoadReport()
    source, target = np.array(rows, dtype=np.int64).reshape(-1, 2).T
    ours = undirected(source, target, 7, report)

    known_rows = [(a, b) for a, b in rows if a >= 0 and b >= 0]
    proper = [(a, b) for a, b in known_rows if a != b]
    edge_index = torch.tensor(known_rows, dtype=torch.long).reshape(-1, 2).T
    edge_index = to_undirected(remove_self_loops(edge_index)[0], num_nodes=7)
    theirs = coalesce(edge_index, num_nodes=7)
    assert ours.tolist() == theirs.tolist()
    assert ours.dtype == np.int64

    directed = set(proper)
    pairs = {tuple(sorted(edge)) for edge in proper}
    assert report.edge_rows == len(rows)
    assert report.dangling == len(rows) - len(known_rows)
    assert report.self_loops == len(known_rows) - len(proper)
    assert report.repeated == len(proper) - len(directed)
    assert report.reciprocal == sum((b, a) in directed for a, b in directed) // 2
    assert report.edges == len(pairs)


LETTERS = pa.array(["a", "b", "c", "d"])


def _read(
    table: Any, columns: EdgeColumns | None = None, ids: Any = LETTERS
) -> tuple[Edges, list[str]]:
    report = LoadReport()
    return read_edges(table, ids, columns or EdgeColumns(), report), report.notes


@pytest.mark.parametrize("names", [("source", "target"), ("Src", "Dst"), ("from", "to")])
def test_read_edges_finds_endpoints_by_name(names):
    table = pd.DataFrame({"kind": ["x", "y"], names[1]: ["b", "c"], names[0]: ["a", "b"]})
    assert _read(table)[0].edge_index.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]


@pytest.mark.parametrize("names", [("source", "target"), ("one", "other")])
@pytest.mark.parametrize("ids", [["a", "b", "c", "d"], [0, 1, 2, 3]])
def test_read_edges_skips_row_numbers_in_front(tmp_path, names, ids):
    table = pd.DataFrame({names[0]: [ids[0], ids[3]], names[1]: [ids[2], ids[1]]})
    without, written = tmp_path / "without.csv", tmp_path / "with.csv"
    table.to_csv(without, index=False)
    table.to_csv(written)
    expected, _ = _read(without, ids=pa.array(ids))
    for source in (written, pd.read_csv(written), table.reset_index()):
        edges, notes = _read(source, ids=pa.array(ids))
        assert edges.edge_index.tolist() == expected.edge_index.tolist()
        assert any("row numbers" in note for note in notes)


def test_read_edges_refuses_mostly_dangling_rows():
    table = pd.DataFrame({"one": ["a", "x", "y", "z", "w"], "other": ["b", "a", "b", "c", "d"]})
    with pytest.raises(InputError, match="4 of 5 rows") as caught:
        _read(table)
    assert "x – a, y – b, z – c" in str(caught.value)
    half = pd.DataFrame({"one": ["a", "x"], "other": ["b", "a"]})
    assert _read(half)[0].edge_index.tolist() == [[0, 1], [1, 0]]


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 3), st.sampled_from([0.5, 1.0, 3.0])),
        min_size=1,
    )
)
def test_read_edges_weights_agree_with_brute_force(rows):
    total: dict[tuple[int, int], float] = {}
    for source, target, weight in rows:
        if source != target:
            total[source, target] = total.get((source, target), 0) + weight
    expected = {}
    for source, target in total:
        given_directions = [
            total[pair] for pair in ((source, target), (target, source)) if pair in total
        ]
        expected[source, target] = expected[target, source] = np.mean(given_directions)
    table = pd.DataFrame(rows, columns=["one", "other", "strength"])
    columns = EdgeColumns(weight="strength")
    if not expected:
        return  # nothing but self-loops
    edges, _ = _read(table, columns, ids=pa.array([0, 1, 2, 3]))
    found = dict(zip(map(tuple, edges.edge_index.T.tolist()), edges.weight.tolist(), strict=True))
    assert found == expected


@pytest.mark.parametrize("suffix", ["", ".csv", ".parquet"])
def test_spaces_around_ids_are_noted(suffix: str, tmp_path: Path) -> None:
    names = ["Ann", "Bob ", "Cid", "12"]
    others = [f"someone {k}" for k in range(36)]
    people = pd.DataFrame({"who": names + others, "y": [0, 1] * 20, "s": ["a", "a", "b", "b"] * 10})
    ties = pd.DataFrame({"from": ["Ann ", "Ann", " Ann"], "to": ["Bob", " Cid", " 12"]})
    tables = [people, ties]
    if suffix:
        tables = [tmp_path / f"nodes{suffix}", tmp_path / f"edges{suffix}"]
        for frame, path in zip((people, ties), tables, strict=True):
            write = frame.to_csv if suffix == ".csv" else frame.to_parquet
            write(path, index=False)
    columns = {"id": "who", "label": "y", "sensitive": "s"}
    report = from_tables(*tables, **columns).report
    assert report.edges == 3
    notes = [
        "id 'who': 1 cell with spaces around, 'Bob ' is read as 'Bob'",
        "edges: 3 cells with spaces around, 'Ann ' is read as 'Ann'",
    ]
    assert [note for note in report.notes if "spaces" in note] == notes
    if suffix:
        manifest = shard_tables(*tables, tmp_path / "shards", **columns, parts=1)
        assert [line for line in manifest.report if "spaces around" in line] == notes


@pytest.mark.parametrize("weight", [0, -1, float("nan"), "much"])
def test_read_edges_refuses_wrong_weights(weight):
    table = pd.DataFrame({"one": ["a"], "other": ["b"], "strength": [weight]})
    with pytest.raises(InputError, match="edge_weight: column 'strength'"):
        _read(table, EdgeColumns(weight="strength"))


@pytest.mark.parametrize(
    ("ids", "written"),
    [
        (range(2049, 2069), lambda ids: np.array(ids, np.float16)),  # 2049 is 2048 there
        (range(10**30, 10**30 + 20), lambda ids: [str(k) for k in ids]),
        (range(20), lambda ids: [str(UUID(int=k)) for k in ids]),
        (range(123_456_700, 123_456_800, 5), lambda ids: [f"{k:.6e}" for k in ids]),  # digits lost
        (range(20), lambda ids: [f"{k:.18e}" for k in ids]),
    ],
    ids=["float16", "beyond 64 bits", "uuid", "lost digits", "savetxt"],
)
def test_ids_join_their_own_node_or_none(ids, written) -> None:
    n = len(ids)
    nodes = pd.DataFrame({"id": list(ids), "y": [0, 1] * (n // 2), "s": list("uvvu") * (n // 4)})
    ends = written(list(ids))
    if isinstance(ends[0], str) and "-" in ends[0][1:-4]:
        nodes["id"] = [UUID(int=k) for k in ids]
    edges = pd.DataFrame({"a": ends[:-1], "b": ends[1:]})
    try:
        data = from_tables(nodes, edges, id="id", label="y", sensitive="s")
    except InputError:
        return
    assert data.edge_index.size(1) == 2 * (n - 1)
    assert ((data.edge_index[0] - data.edge_index[1]).abs() == 1).all()

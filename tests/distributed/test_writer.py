from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.data import Data

from fairmp.datasets import from_tables, social_network
from fairmp.datasets.edges import undirected
from fairmp.datasets.encoding import Encoding
from fairmp.datasets.load_report import LoadReport
from fairmp.datasets.statistics import statistics
from fairmp.distributed import Manifest, external_sort, shard, shard_tables
from fairmp.distributed.external_sort import EdgeSet, csr_blocks
from fairmp.distributed.shard_format import mapped
from fairmp.errors import InputError


def whole(folder: Path) -> tuple[Manifest, dict[str, np.ndarray]]:
    """All parts put together again, in the order of the table."""
    manifest = Manifest.read(folder)
    parts = range(len(manifest.parts))
    found = {
        name: np.concatenate([mapped(folder, k, name) for k in parts])
        for name in ("x", "y", "sens", "split", "number", "col")
    }
    counts = np.concatenate([np.diff(mapped(folder, k, "row")) for k in parts])
    number = found.pop("number")
    row = np.repeat(np.arange(manifest.nodes), counts)
    edges = number[np.stack([row, found.pop("col")])]
    loops = edges[0] == edges[1]
    assert sorted(edges[0][loops].tolist()) == list(range(manifest.nodes))
    edges = edges[:, ~loops]
    found = {name: values[np.argsort(number)] for name, values in found.items()}
    return manifest, {**found, "edge_index": edges[:, np.lexsort((edges[1], edges[0]))]}


def check_equal(folder: Path, data: Data) -> None:
    manifest, found = whole(folder)
    for name in ("x", "y", "sens", "edge_index"):
        assert np.array_equal(found[name], data[name].numpy()), name
    split = np.select([data.train_mask, data.val_mask, data.test_mask], [0, 1, 2], -1)
    assert np.array_equal(found["split"][:, 0], split)
    assert manifest.statistics == statistics(data).as_dict()
    assert manifest.feature_names == tuple(data.feature_names)
    assert manifest.group_names == tuple(data.group_names)
    assert manifest.class_names == tuple(data.class_names)
    for k, part in enumerate(manifest.parts):
        col = np.unique(mapped(folder, k, "col"))
        assert part.halo == ((col < part.start) | (col >= part.stop)).sum()


@pytest.mark.parametrize("order", ["given", "locality", "metis"])
def test_a_graph_comes_back(tmp_path: Path, order: Any) -> None:
    data = social_network(300, average_degree=6)
    shard(data, tmp_path / "s", parts=4, order=order)
    check_equal(tmp_path / "s", data)


def people(n: int = 80) -> tuple[pd.DataFrame, pd.DataFrame]:
    rng = np.random.default_rng(0)
    ids = rng.choice(10_000, n, replace=False)
    nodes = pd.DataFrame(
        {
            "who": ids,
            "hired": rng.choice(["yes", "no", None], n, p=[0.5, 0.4, 0.1]),
            "sex": rng.choice(["f", "m"], n),
            "age": np.where(rng.random(n) < 0.1, np.nan, rng.integers(18, 80, n)),
            "town": rng.choice(["x", "y", "z"], n),
            "words": rng.choice(['say "hi"', "a,b", "two\nlines", " space ", "NA"], n),
            "member": rng.choice([True, False], n),
            "since": rng.choice(["2020-01-01", "2021-02-03"], n),
            "constant": 1,
            "nothing": None,
        }
    )
    edges = pd.DataFrame(
        {
            "from": rng.choice([*ids, 99_999], 400),
            "to": rng.choice(ids, 400),
            "weight": 1.0,
        }
    )
    return nodes, edges


def save(table: pd.DataFrame, path: Path) -> Path:
    if path.suffix == ".parquet":
        table.to_parquet(path)
    else:
        table.to_csv(path, index=False, sep="\t" if ".tsv" in path.suffixes else ",")
    return path


COLUMNS: dict[str, Any] = {
    "id": "who",
    "label": "hired",
    "sensitive": ["sex", "age"],
    "sensitive_bins": {"age": [40]},
}


@pytest.mark.parametrize("kind", [".csv", ".tsv", ".csv.gz", ".parquet"])
def test_tables_become_what_from_tables_makes_of_them(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(external_sort, "BUCKET_ENTRIES", 40)  # several blocks per part
    monkeypatch.setattr(external_sort, "EDGES_PER_PIECE", 7)
    nodes, edges = people()
    tables = save(nodes, tmp_path / f"n{kind}"), save(edges, tmp_path / f"e{kind}")
    data = from_tables(*tables, **COLUMNS, drop=("member",))
    shard_tables(*tables, tmp_path / "s", **COLUMNS, drop=("member",), parts=3)
    check_equal(tmp_path / "s", data)
    manifest = Manifest.read(tmp_path / "s")
    assert manifest.encoding is not None
    assert Encoding.from_dict(manifest.encoding) == data.encoding
    assert sorted(manifest.report) == sorted(data.report.lines())
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([*(t.name for t in tables), "s"])


@pytest.mark.parametrize("cells", ["{},5", "{},101", "{},101,000"])
def test_commas_in_numbers_mean_what_they_mean_in_memory(tmp_path: Path, cells: str) -> None:
    nodes, edges = people()
    nodes["income"] = [cells.format(k + 1) for k in range(len(nodes))]
    tables = save(nodes, tmp_path / "n.tsv"), save(edges, tmp_path / "e.csv")
    if cells == "{},101":
        for write in (from_tables, lambda *a, **k: shard_tables(*a, tmp_path / "s", parts=2, **k)):
            with pytest.raises(InputError, match=r"'income' of n\.tsv, line 2 has '1,101'"):
                write(*tables, **COLUMNS)
        tables[0].write_text(tables[0].read_text().replace("\t7,101", "\t7,1"))
    shard_tables(*tables, tmp_path / "s", **COLUMNS, parts=2)
    data = from_tables(*tables, **COLUMNS)
    assert "income" in data.feature_names
    check_equal(tmp_path / "s", data)


def test_ids_of_any_kind(tmp_path: Path) -> None:
    nodes, edges = people()
    far = {0: "a1", 1: 10**15 + 1}
    for change in far.values():
        other = nodes.copy()
        other["who"] = other["who"].astype(object)
        first = nodes["who"][0]
        other.loc[0, "who"] = change
        ends = edges[["from", "to"]].astype(object).replace(first, change)
        folder = tmp_path / str(change)
        folder.mkdir()
        tables = save(other, folder / "n.csv"), save(ends, folder / "e.csv")
        shard_tables(*tables, folder / "s", **COLUMNS, parts=2)
        check_equal(folder / "s", from_tables(*tables, **COLUMNS))


def test_row_numbers_no_header_no_features_and_text_among_numbers(tmp_path: Path) -> None:
    nodes, _ = people()
    path = save(nodes[["hired", "sex"]], tmp_path / "n.csv")
    rows = np.random.default_rng(1).integers(0, 80, (300, 2))
    edges = tmp_path / "e.csv"
    for last in ("", "5,sevenfold\n"):
        edges.write_text("".join(f"{a},{b}\n" for a, b in rows) + last)
        column: dict[str, Any] = {"id": None, "label": "hired", "sensitive": "sex"}
        shard_tables(path, edges, tmp_path / f"s{len(last)}", **column, parts=2)
        data = from_tables(path, edges, **column)
        check_equal(tmp_path / f"s{len(last)}", data)
        report = Manifest.read(tmp_path / f"s{len(last)}").report
        assert sorted(report) == sorted(data.report.lines())


def test_spaces_between_cells(tmp_path: Path) -> None:
    nodes, edges = people()
    path = save(nodes[["who", "hired", "sex", "town"]], tmp_path / "n.csv")
    lines = [f"{a:<9} {b}\n" for a, b in zip(edges["from"], edges["to"], strict=True)]
    (tmp_path / "e.txt").write_text("from      to\n" + "".join(lines))
    column: dict[str, Any] = {"id": "who", "label": "hired", "sensitive": "sex"}
    shard_tables(path, tmp_path / "e.txt", tmp_path / "s", **column, parts=2)
    check_equal(tmp_path / "s", from_tables(path, tmp_path / "e.txt", **column))


@given(
    st.integers(2, 20).flatmap(
        lambda n: st.tuples(
            st.just(n),
            st.lists(st.tuples(st.integers(-1, n - 1), st.integers(-1, n - 1)), max_size=80),
        )
    ),
    st.integers(1, 6),
    st.data(),
)
def test_distinct_edges_are_those_of_one_sort(
    graph: tuple[int, list[tuple[int, int]]], room: int, data: st.DataObject
) -> None:
    import tempfile

    n, rows = graph
    source, target = np.array(rows, dtype=np.int64).reshape(-1, 2).T
    expected = LoadReport()
    index = undirected(source, target, n, expected)
    place = np.array(data.draw(st.permutations(range(n))))
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(external_sort, "BUCKET_ENTRIES", room)
        patch.setattr(external_sort, "BUCKETS", 4)
        folder, report = Path(name), LoadReport()
        found = EdgeSet(folder, n, report)
        for k in range(0, len(rows), 9):
            found.add(source[k : k + 9], target[k : k + 9])
        found.finish(np.zeros(n, dtype=np.int32), np.zeros(n, dtype=np.int32))
        assert report == expected
        assert np.array_equal(found.degree, np.bincount(index[0], minlength=n))
        blocks = list(csr_blocks(found, place, [0, n // 2, n], folder / "b", loops=False))
        assert n // 2 in {0, *(stop for stop, _ in blocks)}
        rows = np.repeat(np.arange(n), found.degree[np.argsort(place)])
        got = np.stack([rows, np.concatenate([col for _, col in blocks])])
        wanted = place[index]
        assert np.array_equal(got, wanted[:, np.lexsort((wanted[1], wanted[0]))])


def test_several_splits_are_those_of_their_seeds(tmp_path: Path) -> None:
    from fairmp.datasets import split

    data = social_network(200, average_degree=4)
    shard(data, tmp_path / "s", parts=2, split_seeds=(3, 4))
    manifest, found = whole(tmp_path / "s")
    assert manifest.split_seeds == (3, 4)
    for k, seed in enumerate((3, 4)):
        assert np.array_equal(found["split"][:, k] == 0, split(data, seed=seed).train.numpy())


def test_graphs_that_shards_cannot_hold_are_refused(tmp_path: Path) -> None:
    data = social_network(100, average_degree=4)
    weighted = data.clone()
    weighted.edge_weight = torch.ones(data.edge_index.size(1))
    directed = data.clone()
    directed.edge_index = data.edge_index[:, data.edge_index[0] < data.edge_index[1]]
    soft = data.clone()
    soft.sens = torch.nn.functional.one_hot(data.sens, 2).float()
    for wrong, says in ((weighted, "edge_weight"), (directed, "undirected"), (soft, "one group")):
        with pytest.raises(InputError, match=says):
            shard(wrong, tmp_path / "s", parts=2)
    with pytest.raises(InputError, match="order: 'best'"):
        shard(data, tmp_path / "s", parts=2, order="best")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="parts: 101"):
        shard(data, tmp_path / "s", parts=101)
    assert not list(tmp_path.iterdir())


def test_wrong_tables_are_refused_and_leave_nothing(tmp_path: Path) -> None:
    nodes, edges = people()
    good = save(nodes, tmp_path / "n.csv"), save(edges, tmp_path / "e.csv")
    short = tmp_path / "short.csv"
    short.write_text("from,to\n1,2\n3\n")
    none = tmp_path / "none.csv"
    none.write_text("from,to\n")
    strangers = tmp_path / "strangers.csv"
    strangers.write_text("from,to\n-5,-6\n")
    packed = tmp_path / "cut.csv.gz"
    packed.write_bytes(gzip.compress(good[1].read_bytes())[:-20])
    before = sorted(path.name for path in tmp_path.iterdir())
    for tables, change, says in (
        (good, {"label": "hiredd"}, "did you mean 'hired'"),
        (good, {"id": "nobody"}, "no column 'nobody'"),
        ((good[0], short), {}, "short.csv"),
        ((good[0], none), {}, "no rows"),
        ((good[0], strangers), {}, "joins two ids"),
        ((good[0], packed), {}, "cut.csv.gz"),
        ((good[0], tmp_path / "absent.csv"), {}, "no file"),
        (good, {"parts": 81}, "parts: 81 for 80 nodes"),
    ):
        arguments = {**COLUMNS, "parts": 2, **change}
        with pytest.raises(InputError, match=says) as error:
            shard_tables(*tables, tmp_path / "s", **arguments)
        assert "\n" not in str(error.value)
        assert sorted(path.name for path in tmp_path.iterdir()) == before

from __future__ import annotations

import errno
import gzip
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch_geometric.data import Data

from fairmp.datasets import from_tables, social_network
from fairmp.datasets.encoding import Encoding
from fairmp.datasets.statistics import statistics
from fairmp.distributed import Manifest, edge_store, shard, shard_tables
from fairmp.distributed.shard_format import mapped
from fairmp.errors import InputError


def whole(folder: Path) -> tuple[Manifest, dict[str, np.ndarray]]:
    """All parts put together again, in the order of the table."""
    manifest = Manifest.read(folder)
    parts = range(len(manifest.parts))
    arrays = {
        name: np.concatenate([mapped(folder, k, name) for k in parts])
        for name in ("x", "y", "sens", "split", "number", "col")
    }
    counts = np.concatenate([np.diff(mapped(folder, k, "row")) for k in parts])
    number = arrays.pop("number")
    row = np.repeat(np.arange(manifest.nodes), counts)
    edges = number[np.stack([row, arrays.pop("col")])]
    loops = edges[0] == edges[1]
    assert sorted(edges[0][loops].tolist()) == list(range(manifest.nodes))
    edges = edges[:, ~loops]
    arrays = {name: values[np.argsort(number)] for name, values in arrays.items()}
    return manifest, {**arrays, "edge_index": edges[:, np.lexsort((edges[1], edges[0]))]}


def check_equal(folder: Path, data: Data) -> None:
    manifest, arrays = whole(folder)
    for name in ("x", "y", "sens", "edge_index"):
        assert np.array_equal(arrays[name], data[name].numpy()), name
    split = np.select([data.train_mask, data.val_mask, data.test_mask], [0, 1, 2], -1)
    assert np.array_equal(arrays["split"][:, 0], split)
    assert manifest.statistics == asdict(statistics(data))
    assert manifest.feature_names == tuple(data.feature_names)
    assert manifest.group_names == tuple(data.group_names)
    assert manifest.class_names == tuple(data.class_names)
    for k, part in enumerate(manifest.parts):
        col = np.unique(mapped(folder, k, "col"))
        assert part.halo == ((col < part.start) | (col >= part.stop)).sum()


@pytest.mark.parametrize("order", ["given", "locality", "metis"])
def test_shards_hold_the_graph(tmp_path: Path, order: Any) -> None:
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
        table.to_parquet(path, index=False)
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
def test_tables_are_encoded_as_by_from_tables(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge_store, "BATCH_ROWS", 40)  # several batches per part
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


def test_text_and_large_ids(tmp_path: Path) -> None:
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


def test_row_numbers_as_ids_without_header_or_features(tmp_path: Path) -> None:
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


def test_edges_in_aligned_text(tmp_path: Path) -> None:
    nodes, edges = people()
    path = save(nodes[["who", "hired", "sex", "town"]], tmp_path / "n.csv")
    lines = [f"{a:<9} {b}\n" for a, b in zip(edges["from"], edges["to"], strict=True)]
    (tmp_path / "e.txt").write_text("from      to\n" + "".join(lines))
    column: dict[str, Any] = {"id": "who", "label": "hired", "sensitive": "sex"}
    shard_tables(path, tmp_path / "e.txt", tmp_path / "s", **column, parts=2)
    check_equal(tmp_path / "s", from_tables(path, tmp_path / "e.txt", **column))


def test_splits_follow_their_seeds(tmp_path: Path) -> None:
    from fairmp.datasets import split

    data = social_network(200, average_degree=4)
    shard(data, tmp_path / "s", parts=2, split_seeds=(3, 4))
    manifest, arrays = whole(tmp_path / "s")
    assert manifest.split_seeds == (3, 4)
    with pytest.raises(InputError, match="split_seeds"):
        shard(data, tmp_path / "none", parts=2, split_seeds=())
    for k, seed in enumerate((3, 4)):
        assert np.array_equal(arrays["split"][:, k] == 0, split(data, seed=seed).train.numpy())


def test_unsupported_graphs_are_refused(tmp_path: Path) -> None:
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


def test_wrong_tables_leave_nothing_behind(tmp_path: Path) -> None:
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


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_folders_of_parquet_make_the_shards_of_one_csv(tmp_path: Path) -> None:
    nodes, edges = people()
    nodes = nodes[["who", "hired", "age", "town", "member", "sex"]].sort_values(
        "sex", kind="stable"
    )
    edges["year"] = np.arange(len(edges)) % 3 + 2020
    for number, rows in enumerate(np.array_split(np.arange(len(edges)), 3)):
        folder = tmp_path / "edges" / f"batch={number}"
        folder.mkdir(parents=True)
        save(edges.iloc[rows], folder / "part-00000-c000.snappy.parquet")
        (folder / ".part-00000-c000.snappy.parquet.crc").write_bytes(b"crc")
    edges["batch"] = np.arange(len(edges)) * 3 // len(edges)
    for sex in ("f", "m"):
        folder = tmp_path / "nodes" / f"sex={sex}"
        folder.mkdir(parents=True)
        rows = nodes[nodes["sex"] == sex].drop(columns="sex")
        save(rows[:9], folder / "data_0.parquet")
        save(rows[9:], folder / "data_1.parquet")
    for name in ("nodes", "edges"):
        (tmp_path / name / "_SUCCESS").touch()
        (tmp_path / name / "_metadata").write_bytes(b"statistics of the parts")
    sources = {
        "csv": (save(nodes, tmp_path / "nodes.csv"), save(edges, tmp_path / "edges.csv")),
        "folders": (tmp_path / "nodes", tmp_path / "edges"),
        "patterns": (tmp_path / "nodes" / "*" / "*.parquet", tmp_path / "edges" / "**" / "part-*"),
    }
    by_kind = {}
    for kind, tables in sources.items():
        shard_tables(*tables, tmp_path / kind, **COLUMNS, parts=3, name="people")
        by_kind[kind] = contents(tmp_path / kind)
    assert by_kind["folders"] == by_kind["csv"]
    assert by_kind["patterns"] == by_kind["csv"]


def test_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    data = social_network(100, average_degree=4)
    for place in ("add", "find_edges", "renumber"):
        with monkeypatch.context() as patch:
            patch.setattr(edge_store.EdgeStore, place, full)
            with pytest.raises(InputError, match="no space") as error:
                shard(data, tmp_path / "s", parts=2, order="locality")
        assert error.value.argument == "folder"
        assert not list(tmp_path.iterdir())

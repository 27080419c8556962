from __future__ import annotations

import json
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from fairmp import FMP, FairClassifier
from fairmp.datasets import cache, from_tables, stored_graph
from fairmp.datasets.stored_graph import (
    FILE,
    JoinedGraph,
    StoredGraph,
    count_stored,
    join_nodes,
    save_graph,
)
from fairmp.errors import InputError
from fairmp.training.graph_features import Neighbourhoods
from fairmp.training.nodes import graph_of


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


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("edges", lambda a: a.astype(np.int64) - 1),  # a negative index wraps to another node
        ("edges", lambda a: a + 100),
        ("edges", lambda a: a.astype(float)),
        ("edges", lambda a: a[0]),
        ("sens", lambda a: a.astype(np.int64) - 2),
        ("sens", lambda a: a + 7),
        ("sens", lambda a: a[:-1]),
        ("x", lambda a: a * np.nan),
        ("x", lambda a: a[:, :0]),
        ("x", lambda a: np.zeros((10**4, 10**4), np.float32)),  # few bytes that expand to 400 MB
        ("ids", lambda a: a.reshape(2, 4)),
        ("ids", lambda a: np.zeros(8, "U1000000")),
        ("ids", lambda a: np.full(8, "p1")),  # edges would join another person
        ("ids", lambda a: np.where(np.arange(8) == 3, " ", a)),
        ("ids", lambda _: np.arange(8) + 0.5),
        ("edges", lambda a: a[::-1]),
        ("edge_weight", lambda a: -a),
        ("edge_weight", lambda a: 0 * a),
        ("ids", None),
    ],
)
def test_load_checks_each_array(data, tmp_path: Path, name: str, change) -> None:
    path = save_graph(data, tmp_path)
    with np.load(path) as file:
        arrays = dict(file)
    if change is None:
        del arrays[name]
    else:
        arrays[name] = change(arrays.get(name, np.ones(arrays["edges"].shape[1], np.float32)))
    arrays["words"] = signed(arrays)  # with a checksum that matches
    np.savez_compressed(path, **arrays)
    with pytest.raises(InputError) as error:
        StoredGraph.load(path, data.encoding)
    assert error.value.argument == "graph"


def signed(arrays: dict[str, np.ndarray]) -> np.ndarray:
    """The metadata of a file with these arrays."""
    content = {name: array for name, array in arrays.items() if name != "words"}
    metadata = {"nodes": len(content.get("ids", ())), "sha256": cache.checksum(content)}
    return np.frombuffer(json.dumps(metadata).encode(), np.uint8)


@pytest.mark.parametrize("read", ["load", "count"])
def test_load_compares_the_checksum(data, tmp_path: Path, read: str) -> None:
    path = save_graph(data, tmp_path)
    with np.load(path) as file:
        arrays = dict(file)
    arrays["sens"] = 1 - arrays["sens"]  # valid groups, but those of others
    np.savez_compressed(path, **arrays)
    with pytest.raises(InputError, match="checksum"):
        StoredGraph.load(path, data.encoding) if read == "load" else count_stored(
            path, pa.array([])
        )


@pytest.mark.parametrize("name", ["other", "words"])
def test_load_expands_no_bomb(data, tmp_path: Path, name: str, monkeypatch) -> None:
    path = save_graph(data, tmp_path)
    with np.load(path) as file:
        arrays = dict(file)
    arrays[name] = np.zeros(2_000_000, np.uint8)
    np.savez_compressed(path, **arrays)
    monkeypatch.setattr(stored_graph, "MAX_EXPANDED_BYTES", 1_000_000)
    monkeypatch.setattr(stored_graph, "read_npz", lambda path: pytest.fail("it was expanded"))
    for read in (lambda: StoredGraph.load(path, data.encoding), lambda: count_stored(path, None)):
        with pytest.raises(InputError, match="would become"):
            read()


def test_load_refuses_an_array_given_twice(data, tmp_path: Path) -> None:
    path = save_graph(data, tmp_path)
    with zipfile.ZipFile(path) as archive:
        content = archive.read("edges.npy")
    with warnings.catch_warnings(), zipfile.ZipFile(path, "a") as archive:
        warnings.simplefilter("ignore")
        archive.writestr("edges.npy", content)
    with pytest.raises(InputError, match="twice"):
        StoredGraph.load(path, data.encoding)


def test_count_stored_counts_ids_of_the_graph(data, tmp_path: Path) -> None:
    assert count_stored(save_graph(data, tmp_path), pa.array(["a", "x", "h"])) == 2


def people(n: int, start: int, rng: np.random.Generator) -> pd.DataFrame:
    frame = pd.DataFrame({"who": [f"p{k:04}" for k in range(start, start + n)]})
    frame["sex"], frame["town"] = rng.choice(["f", "m"], n), rng.choice(["A", "B", "C"], n)
    frame["age"] = rng.normal(40, 9, n)
    frame["hired"] = np.where(frame["age"] + 5 * (frame["sex"] == "m") > 42, "yes", "no")
    return frame


@pytest.fixture
def tables() -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """People, those who joined later, and the edges among all of them."""
    rng = np.random.default_rng(0)
    old, new = people(200, 0, rng), people(40, 200, rng)
    everyone = pd.concat([old, new])["who"].to_numpy()
    edges = pd.DataFrame(rng.choice(everyone, (900, 2)), columns=["a", "b"])
    return old, new, edges


@pytest.fixture
def model(tables, tmp_path: Path) -> FairClassifier:
    old, _, edges = tables
    inside = edges[edges["a"].isin(old["who"]) & edges["b"].isin(old["who"])]
    data = from_tables(old, inside, id="who", label="hired", sensitive="sex")
    model = FairClassifier(FMP(K=3), epochs=5, hidden=8, backbone="mlp")
    model.fit(data)
    save_graph(data, tmp_path)
    return model


def joined(model: FairClassifier, nodes, edges, tmp_path: Path) -> JoinedGraph:
    return join_nodes(tmp_path / FILE, nodes, edges, encoding=model.encoding_)


def test_joined_graph_equals_that_of_whole_tables(
    model: FairClassifier, tables, tmp_path: Path
) -> None:
    old, new, edges = tables
    graph, fresh = joined(model, new, edges, tmp_path)
    whole = from_tables(pd.concat([new, old]), edges, encoding=model.encoding_)
    assert torch.equal(graph.edge_index, whole.edge_index)
    assert torch.equal(graph.x, whole.x)
    assert torch.equal(graph.sens, whole.sens)
    assert fresh.nonzero()[:, 0].tolist() == list(range(len(new)))
    # Labels of the training graph are not kept.
    assert graph.y[~fresh].unique().tolist() == [-1]
    for mode in ("batch", "per-node"):
        proba = model.predict_proba(graph, nodes=fresh, mode=mode)
        expected = model.predict_proba(whole, nodes=fresh, mode=mode)
        assert torch.allclose(proba, expected, atol=1e-6)
    decided = model.predict_proba(graph, nodes=fresh).argmax(1).numpy()
    rates = [float((decided[new["sex"].to_numpy() == g] == 1).mean()) for g in "fm"]
    assert abs(rates[0] - rates[1]) <= 1 / (new["sex"] == "f").sum() + 1e-6


def test_edges_to_the_training_graph_change_predictions(
    model: FairClassifier, tables, tmp_path: Path
) -> None:
    _, new, edges = tables
    graph, fresh = joined(model, new, edges, tmp_path)
    among = edges[edges["a"].isin(new["who"]) & edges["b"].isin(new["who"])]
    alone, same = joined(model, new, among, tmp_path)
    one, other = (model.predict_proba(g, nodes=fresh, mode="per-node") for g in (graph, alone))
    assert torch.equal(fresh, same)
    assert float((one - other).abs().max()) > 1e-3


def test_nodes_of_the_training_graph_keep_their_predictions(
    model: FairClassifier, tables, tmp_path: Path
) -> None:
    old, _, edges = tables
    inside = edges[edges["a"].isin(old["who"]) & edges["b"].isin(old["who"])]
    whole = from_tables(old, inside, encoding=model.encoding_)
    # The edges may be given again or not; some nodes or all.
    for some in (old, old.iloc[50:90]):
        for table in (inside, None):
            graph, fresh = joined(model, some, table, tmp_path)
            assert graph.num_nodes == len(old)
            proba = model.predict_proba(graph, nodes=fresh, mode="per-node")
            expected = model.predict_proba(whole, mode="per-node")[some.index.tolist()]
            assert torch.allclose(proba, expected, atol=1e-6)


def test_new_row_replaces_that_of_the_training_graph(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    frame = people(60, 0, rng).assign(who=range(100, 160))
    edges = pd.DataFrame(rng.integers(100, 160, (150, 2)), columns=["a", "b"])
    data = from_tables(frame, edges, id="who", label="hired", sensitive="sex")
    save_graph(data, tmp_path)
    moved = frame.iloc[[3]].assign(age=99.0)
    graph, fresh = join_nodes(tmp_path / FILE, moved, None, encoding=data.encoding)
    assert graph.num_nodes == 60
    assert int(fresh.sum()) == 1
    assert float(graph.x[0, graph.feature_names.index("age")]) > float(data.x.max())
    assert graph.edge_index.size(1) == data.edge_index.size(1)


def test_damaged_or_foreign_file_is_refused(model, tables, tmp_path: Path) -> None:
    path = tmp_path / FILE
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError) as error:
        joined(model, tables[1], tables[2], tmp_path)
    assert error.value.argument == "graph"
    other = from_tables(
        tables[0].drop(columns="age"), tables[2], id="who", label="hired", sensitive="sex"
    )
    save_graph(other, tmp_path)
    with pytest.raises(InputError, match="another model"):
        joined(model, tables[1], tables[2], tmp_path)


@pytest.mark.parametrize("backbone", ["auto", "trees"])
def test_graph_features_use_labels_of_the_training_graph(
    tables, tmp_path: Path, backbone: str
) -> None:
    old, new, edges = tables
    inside = edges[edges["a"].isin(old["who"]) & edges["b"].isin(old["who"])]
    data = from_tables(old, inside, id="who", label="hired", sensitive="sex")
    model = FairClassifier(FMP(K=3), epochs=5, hidden=8, backbone=backbone, graph_features=True)
    model.fit(data, bootstrap=0)
    save_graph(data, tmp_path)
    # New nodes without edges change nothing for the others. A warning would be an error.
    graph, fresh = joined(model, new, None, tmp_path)
    stored_nodes = model.predict_proba(graph, mode="per-node")[~fresh]
    assert torch.allclose(stored_nodes, model.predict_proba(data, mode="per-node"), atol=1e-6)
    # The shares of classes around a new node count the labels of the training graph.
    graph, fresh = joined(model, new, edges, tmp_path)
    inputs = model.network_.transform.inputs
    rows = inputs("neighbourhood", graph.x, graph_of(graph))
    labels = torch.full((len(graph.y),), -1)
    # Those of the other folds, where candidates are cross-fitted.
    seen = data.train_mask
    if backbone == "auto":
        seen = (data.train_mask | data.val_mask) & (inputs.folds != 0)
    labels[graph.origin] = torch.where(seen, data.y, -1)
    expected = Neighbourhoods(graph.x, graph_of(graph)).rows(labels, 2)
    assert torch.equal(rows, expected)
    source, target = graph.edge_index
    node = int(fresh.nonzero()[0])
    around = labels[source[target == node]]
    assert (around >= 0).any()  # so that something is counted
    other = labels.clone()
    other[source[target == node]] = -1
    changed = Neighbourhoods(graph.x, graph_of(graph)).rows(other, 2)
    assert not torch.equal(changed[node], rows[node])


def test_join_nodes_keeps_edge_weights(tmp_path):
    people = pd.DataFrame({"who": list("abcdefgh"), "y": [0, 1] * 4, "s": list("ffmm") * 2})
    people["age"] = range(8)
    friends = pd.DataFrame({"from": list("abcdefg"), "to": list("bcdefgh"), "hours": range(1, 8)})
    roles = {"id": "who", "label": "y", "sensitive": "s", "edge_weight": "hours"}
    data = from_tables(people, friends, **roles)
    save_graph(data, tmp_path)
    added = pd.DataFrame({"hours": [5.0, 2.5], "to": ["a", "h"], "from": ["z", "z"]})
    new = pd.DataFrame({"who": ["z"], "age": [3], "s": ["f"]})
    joined = join_nodes(tmp_path / FILE, new, added, encoding=data.encoding).data
    weights = dict(
        zip(map(tuple, joined.edge_index.T.tolist()), joined.edge_weight.tolist(), strict=True)
    )
    assert weights[0, 1] == weights[1, 0] == 5  # new nodes come first
    assert weights[0, 8] == 2.5
    assert [weights[k, k + 1] for k in range(1, 8)] == list(range(1, 8))

"""Predictions for tables of nodes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from fairmp import FMP, FairClassifier, InputError
from fairmp.datasets import from_tables, social_network
from fairmp.datasets.stored_graph import save_graph
from fairmp.training.tables import NodesToPredict, predict_table, read_nodes, select_nodes

NAMES = {"id": "who", "label": "hired", "sensitive": "sex"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two tables, and a model that was trained on them with its graph stored beside it."""
    folder = tmp_path_factory.mktemp("tables")
    rng = np.random.default_rng(0)
    n = 80
    people = pd.DataFrame(
        {
            "who": [f"p{k}" for k in range(n)],
            "hired": rng.choice(["no", "yes"], n),
            "sex": rng.choice(["f", "m"], n),
            "year": rng.choice(["2023", "2024"], n),
        }
    )
    people.to_csv(folder / "people.csv", index=False)
    ends = rng.integers(n, size=(3 * n, 2))
    pd.DataFrame({"a": people.who[ends[:, 0]].values, "b": people.who[ends[:, 1]].values}).to_csv(
        folder / "ties.csv", index=False
    )
    data = from_tables(folder / "people.csv", folder / "ties.csv", **NAMES)
    model = FairClassifier(FMP(2, 1.0), backbone="mlp", epochs=3).fit(data, bootstrap=0)
    model.save(folder / "model")
    save_graph(data, folder / "model")
    return folder


@pytest.fixture
def model(folder: Path) -> FairClassifier:
    return FairClassifier.load(folder / "model")


def read(model: FairClassifier, place: Path, **options: object) -> NodesToPredict:
    return read_nodes(model, place / "people.csv", place / "ties.csv", **options)


def test_table_has_ids_groups_labels_probabilities_and_decisions(
    model: FairClassifier, folder: Path
) -> None:
    nodes = read(model, folder)
    assert nodes.mask is None
    prediction = predict_table(model, nodes, "batch")
    table = prediction.table
    assert list(table) == ["who", "sex", "hired", "p(no)", "p(yes)", "decision"]
    people = pd.read_csv(folder / "people.csv", dtype=str)
    for column in ("who", "sex", "hired"):
        assert table[column].tolist() == people[column].tolist()
    expected = model.predict_proba(nodes.graph)[:, 1].numpy()
    np.testing.assert_array_equal(table["p(yes)"].to_numpy(), expected)
    assert prediction.evaluation is not None
    assert prediction.evaluation.n == 80
    assert "any the model was trained on" in prediction.measured_on


def test_stored_graph_is_joined_and_its_nodes_are_counted(
    model: FairClassifier, folder: Path
) -> None:
    nodes = read(model, folder, folder=folder / "model")
    assert nodes.mask is not None
    assert bool(nodes.mask.all())
    prediction = predict_table(model, nodes, "batch", folder=folder / "model")
    assert prediction.measured_on == "all these nodes, including 80 of the training graph"


def test_no_evaluation_with_one_group(model: FairClassifier, folder: Path) -> None:
    nodes = read(model, folder)
    one_group = NodesToPredict(nodes.graph, nodes.graph.sens == 0)
    prediction = predict_table(model, one_group, "per-node")
    assert prediction.evaluation is None
    assert len(prediction.table) == int((nodes.graph.sens == 0).sum())


def test_select_nodes_by_value_and_by_id(model: FairClassifier, folder: Path) -> None:
    graph, people = read(model, folder).graph, folder / "people.csv"
    years = torch.tensor((pd.read_csv(people, dtype=str).year == "2024").tolist())
    assert torch.equal(select_nodes(graph, people, where="year=2024"), years)
    for header in ("who", "name"):
        (folder / "some.csv").write_text(f"{header}\n p3\np5\n")
        chosen = select_nodes(graph, people, only=folder / "some.csv")
        assert chosen.nonzero().flatten().tolist() == [3, 5]
    (folder / "some.csv").write_text("who\np3\nnobody\n")
    with pytest.raises(InputError, match="nobody") as error:
        select_nodes(graph, people, only=folder / "some.csv")
    assert error.value.argument == "only"


@pytest.mark.parametrize("where", ["year", "year=1999", "year=2024.0", "yeer=2024"])
def test_select_nodes_names_the_wrong_argument(
    model: FairClassifier, folder: Path, where: str
) -> None:
    with pytest.raises(InputError) as caught:
        select_nodes(read(model, folder).graph, folder / "people.csv", where=where)
    assert caught.value.argument == "where"


def test_read_nodes_needs_a_table_and_a_model_of_tables(
    model: FairClassifier, folder: Path
) -> None:
    with pytest.raises(InputError, match="nodes: missing"):
        read_nodes(model, None, None)
    data = social_network(n=100, average_degree=4)
    other = FairClassifier(None, backbone="mlp", epochs=1).fit(data, bootstrap=0)
    with pytest.raises(InputError, match="not trained on tables"):
        read(other, folder)


@pytest.mark.parametrize(
    ("role", "name"),
    [
        ("id", "decision"),
        ("label", "decision"),
        ("sensitive", "p(yes)"),
        ("weight", "decision"),
        ("feature", "p(yes)"),
    ],
)
def test_predictions_never_take_the_name_of_an_input_column(
    folder: Path, role: str, name: str
) -> None:
    people = pd.read_csv(folder / "people.csv", dtype=str).assign(w=1.0)
    columns = {"id": "who", "label": "hired", "sensitive": "sex", "weight": "w", "feature": "year"}
    people = people.rename(columns={columns[role]: name}).assign(decision_3="0")
    columns[role] = name
    ties = pd.read_csv(folder / "ties.csv", dtype=str)
    del columns["feature"]
    data = from_tables(people, ties, **columns)
    model = FairClassifier(FMP(2, 1.0), backbone="mlp", epochs=1).fit(data, bootstrap=0)
    prediction = predict_table(model, NodesToPredict(data), "batch")
    table, added = prediction.table, prediction.columns
    assert set(people).isdisjoint([*added.probabilities, added.decision])
    assert list(added.renamed) == [usual for usual in ("p(no)", "p(yes)") if name == "p(yes)"] + [
        "decision" for _ in range(name == "decision")
    ]
    for given in ("id", "label", "sensitive"):
        assert table[columns[given]].tolist() == people[columns[given]].tolist()
    proba = model.predict_proba(data).numpy()
    np.testing.assert_array_equal(table[list(added.probabilities)].to_numpy(), proba)
    decided = np.array(model.classes_)[proba.argmax(1)]
    assert table[added.decision].tolist() == decided.tolist()


def test_row_numbers_never_take_the_name_of_a_group(folder: Path) -> None:
    people = pd.read_csv(folder / "people.csv", dtype=str).rename(columns={"sex": "node"})
    ends = pd.DataFrame({"a": range(79), "b": range(1, 80)})
    data = from_tables(people, ends, id=None, label="hired", sensitive="node")
    model = FairClassifier(FMP(2, 1.0), backbone="mlp", epochs=1).fit(data, bootstrap=0)
    table = predict_table(model, NodesToPredict(data), "batch").table
    assert table["node"].tolist() == people["node"].tolist()
    assert table["node_2"].tolist() == list(range(80))


def test_predictions_never_take_the_name_of_another_id_column(folder: Path) -> None:
    people = pd.read_csv(folder / "people.csv", dtype=str)
    ties = pd.read_csv(folder / "ties.csv", dtype=str)
    data = from_tables(people, ties, id="who", label="hired", sensitive="sex")
    model = FairClassifier(FMP(2, 1.0), backbone="mlp", epochs=1).fit(data, bootstrap=0)
    for name in ("decision", "p(yes)"):
        new = people.rename(columns={"who": name})
        graph = from_tables(new, ties, encoding=data.encoding, id=name)
        prediction = predict_table(model, NodesToPredict(graph), "batch", id=name)
        table, added = prediction.table, prediction.columns
        assert table[name].tolist() == new[name].tolist()
        assert name not in {*added.probabilities, added.decision}
        assert set(table[added.decision]) <= set(model.classes_)

"""People who join a graph later: predicted as in the graph whose known nodes receive nothing."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from scipy.special import expit
from sklearn.naive_bayes import GaussianNB
from torch_geometric.data import Data

from fairmp import FMP, PPR, FairClassifier, InputError
from fairmp.datasets import from_tables
from fairmp.postprocessing.corrections import Thresholds
from fairmp.training import auto, classifier
from fairmp.training.auto import SelectionSettings
from fairmp.training.nodes import TrainingNodes

N, NEW = 160, 12
MEMBERS = (
    ("logistic", "features"),
    ("logistic", "neighbourhood"),
    ("logistic", "edges"),
    ("trees", "neighbourhood"),
    ("mlp", "neighbourhood"),
)


def tables(seed: int = 0, *, classes: int = 2) -> tuple[pd.DataFrame, pd.DataFrame]:
    rng = np.random.default_rng(seed)
    n = N + NEW
    sex = rng.choice(["f", "m"], n)
    skill = rng.normal(size=n) + 0.8 * (sex == "m")
    people = pd.DataFrame({"who": [f"p{k}" for k in range(n)], "sex": sex})
    people["age"] = rng.integers(18, 70, n)
    people["skill"] = np.where(rng.random(n) < 0.1, np.nan, skill.round(2))
    people["town"] = rng.choice(["Oslo", "Rome", "Bonn"], n)
    names = np.array(["no", "maybe", "yes"] if classes == 3 else ["no", "yes"])
    cuts = [0.0, 0.8] if classes == 3 else [0.4]
    people["hired"] = names[np.digitize(skill + 0.5 * rng.normal(size=n), cuts)]
    # Few edges between the two parts, so that the training table knows most of its ends.
    old = rng.integers(N, size=(4 * N, 2))
    new = np.column_stack([rng.integers(N, n, 5 * NEW), rng.integers(n, size=5 * NEW)])
    ends = people["who"].to_numpy()[np.concatenate([old, new])]
    edges = pd.DataFrame(ends, columns=["source", "target"])
    return people, edges


class Case:
    """A model of the first people, and the tables of those who joined."""

    def __init__(self, model: FairClassifier, *, classes: int = 2, weighted: bool = False) -> None:
        people, edges = tables(classes=classes)
        if weighted:
            edges["w"] = np.random.default_rng(1).uniform(0.2, 3, len(edges)).round(2)
        known = set(people["who"][:N])
        inside = edges["source"].isin(known) & edges["target"].isin(known)
        self.data = from_tables(
            people[:N],
            edges[inside],
            id="who",
            label="hired",
            sensitive="sex",
            edge_weight="w" if weighted else None,
        )
        self.model = model.fit(self.data, bootstrap=0, progress=False)
        self.people = people[N:].drop(columns="hired").reset_index(drop=True)
        self.edges = edges[~inside].reset_index(drop=True)
        self.weighted = weighted

    def joined(self) -> tuple[Data, torch.Tensor]:
        """The graph with the new people, in which known ones receive nothing."""
        encoding = self.model.encoding_
        new = from_tables(self.people, encoding=encoding)
        number = {id: k for k, id in enumerate(self.data.__dict__["ids"].to_pylist())}
        number |= {id: N + k for k, id in enumerate(self.people["who"])}
        weights: dict[tuple[int, int], list[float]] = {}
        directed: dict[tuple[int, int], float] = {}
        for row in self.edges.to_dict("records"):
            pair = number[row["source"]], number[row["target"]]
            if pair[0] != pair[1]:
                directed[pair] = directed.get(pair, 0.0) + row.get("w", 1.0)
        for pair, weight in directed.items():
            weights.setdefault((min(pair), max(pair)), []).append(weight)
        ends, values = [], []
        for (low, high), given in weights.items():
            for source, target in ((low, high), (high, low)):
                if target >= N:
                    ends.append((source, target))
                    values.append(np.mean(given))
        graph = copy.copy(self.data)
        graph.x = torch.cat([self.data.x, new.x])
        graph.sens = torch.cat([self.data.sens, new.sens])
        graph.y = torch.cat([self.data.y, new.y])
        for name in ("train_mask", "val_mask", "test_mask"):
            del graph[name]
        graph.edge_index = torch.cat([self.data.edge_index, torch.tensor(ends).T], 1)
        if self.weighted:
            graph.edge_weight = torch.cat([self.data.edge_weight, torch.tensor(values).float()])
        graph.origin = torch.arange(N)
        return graph, torch.arange(N + NEW) >= N


MODELS: dict[str, Any] = {
    "mlp": lambda: FairClassifier(FMP(3, 1.0), backbone="mlp", epochs=5),
    "trees": lambda: FairClassifier(FMP(2, 1.0), backbone="trees"),
    "forest": lambda: FairClassifier(FMP(2, 1.0), backbone="forest", graph_features=True),
    "logistic": lambda: FairClassifier(PPR(2, 2.0), backbone="logistic", graph_features=True),
    "gcn": lambda: FairClassifier(FMP(2, 1.0), backbone="gcn", epochs=5),
    "gat on columns": lambda: FairClassifier(None, backbone="gat", graph_features=True, epochs=5),
    "sgc": lambda: FairClassifier(None, backbone="sgc", epochs=5),
    "appnp": lambda: FairClassifier(None, backbone="appnp", epochs=5),
    "scikit-learn": lambda: FairClassifier(FMP(2, 1.0), backbone=GaussianNB()),
    "papc": lambda: FairClassifier(FMP(3, 1.0, 5.0, "papc"), backbone="mlp", epochs=5),
    "group-free": lambda: FairClassifier(
        FMP(2, 1.0, target=0.1), backbone="logistic", group_free=True, folds=2
    ),
    "equal opportunity": lambda: FairClassifier(
        FMP(2, 1.0, target=0.05), backbone="mlp", criterion="equal_opportunity", epochs=5
    ),
}


@pytest.fixture(scope="module")
def blend() -> Case:
    """A cross-fitted blend of candidates of every kind, none of which is left out."""

    def select_members(settings: SelectionSettings, nodes: TrainingNodes, **options: Any) -> Any:
        settings = replace(settings, candidates=MEMBERS, min_members=len(MEMBERS))
        return auto.select(settings, nodes, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(classifier, "select", select_members)
        return Case(FairClassifier(FMP(3), folds=2, epochs=5))


def proba(table: pd.DataFrame) -> np.ndarray:
    return table[[name for name in table if name.startswith("p(")]].to_numpy()


def check_against_joined_graph(case: Case) -> None:
    graph, is_new = case.joined()
    expected = case.model.predict_proba(graph, nodes=is_new, mode="per-node").numpy()
    predicted = case.model.predict_new(case.people, case.edges)
    assert list(predicted["who"]) == list(case.people["who"])
    np.testing.assert_allclose(proba(predicted), expected, atol=2e-6)
    decided = np.array(case.model.classes_)[expected.argmax(1)]
    assert list(predicted["decision"]) == list(decided)


def check_explanations(case: Case) -> None:
    """The parts add up to the logit; own data know no edges; neighbours are not corrected."""
    model, edges = case.model, case.edges
    alone = copy.copy(model)
    alone.adopt(replace(model.fitted_, group_duals=None, debiaser=None, group_network=None))
    alone._graph, alone._transform_logits = model._graph, model._transform_logits
    for who in case.people["who"][:3]:
        person = case.people[case.people["who"] == who]
        others = set(case.people["who"]) - {who}
        own = edges[(edges == who).any(axis=1) & ~edges.isin(others).any(axis=1)]
        explained = model.explain(person, own)
        predicted = model.predict_new(person, own)
        assert explained.decisions[2] == predicted["decision"].item()
        for decision, logit, table in (
            (explained.decisions[2], explained.logit, predicted),
            (
                explained.decisions[1],
                explained.own + explained.neighbours,
                alone.predict_new(person, own, unknown_groups="allow"),
            ),
            (explained.decisions[0], explained.own, alone.predict_new(person)),
        ):
            p = float(table[f"p({explained.class_name})"].item())
            assert expit(logit) == pytest.approx(p, abs=1e-6)
            assert decision == table["decision"].item()
            # Where the probability has the digits for it.
            if 1e-3 < p < 1 - 1e-3:
                assert logit == pytest.approx(np.log(p / (1 - p)), abs=1e-6)


def test_blend_predicts_as_in_the_joined_graph(blend: Case) -> None:
    network = blend.model.network_.transform
    assert set(zip(network.names, network.views, strict=True)) == set(MEMBERS)
    assert len(network.members) == 2 * len(MEMBERS)
    check_against_joined_graph(blend)
    check_explanations(blend)


@pytest.mark.filterwarnings("ignore:.*equal_opportunity")
@pytest.mark.parametrize("name", MODELS)
def test_backbones_predict_and_explain_as_in_the_joined_graph(name: str) -> None:
    case = Case(MODELS[name]())
    check_against_joined_graph(case)
    check_explanations(case)


def test_edge_weights_and_three_classes() -> None:
    model = FairClassifier(FMP(2, 1.0), backbone="logistic", graph_features=True)
    check_against_joined_graph(Case(model, classes=3, weighted=True))


def test_prediction_depends_neither_on_order_nor_on_others(blend: Case) -> None:
    model, people, edges = blend.model, blend.people, blend.edges
    whole = model.predict_new(people, edges).set_index("who")
    order = np.random.default_rng(0).permutation(NEW)
    again = model.predict_new(people.iloc[order], edges.iloc[::-1]).set_index("who")
    np.testing.assert_allclose(proba(again.loc[whole.index]), proba(whole), atol=1e-6)
    new = set(people["who"])
    met = edges[edges["source"].isin(new) & edges["target"].isin(new)]
    alone = next(who for who in people["who"] if who not in {*met["source"], *met["target"]})
    own = edges[(edges["source"] == alone) | (edges["target"] == alone)]
    single = model.predict_new(people[people["who"] == alone], own)
    np.testing.assert_allclose(proba(single), proba(whole.loc[[alone]]), atol=1e-6)


def test_people_given_together_see_each_other(blend: Case) -> None:
    pair = blend.people[:2]
    ends = [{"source": pair["who"][0], "target": pair["who"][1]}]
    apart = blend.model.predict_new(pair)
    together = blend.model.predict_new(pair, ends)
    assert np.abs(proba(apart) - proba(together)).max() > 1e-4


@pytest.mark.parametrize("kind", ["pandas", "polars", "arrow", "dicts"])
@pytest.mark.parametrize("count", [1, NEW])
def test_result_is_of_the_kind_that_was_given(blend: Case, kind: str, count: int) -> None:
    convert = {
        "pandas": lambda frame: frame,
        "polars": pl.from_pandas,
        "arrow": lambda frame: pa.Table.from_pandas(frame, preserve_index=False),
        "dicts": lambda frame: frame.to_dict("records"),
    }[kind]
    people = blend.people[:count]
    given = set(people["who"]) | {f"p{k}" for k in range(N)}
    edges = blend.edges[blend.edges["source"].isin(given) & blend.edges["target"].isin(given)]
    expected = blend.model.predict_new(people, edges)
    people, edges = convert(people), convert(edges)
    predicted = blend.model.predict_new(people, edges)
    assert type(predicted) is type(people)
    if kind == "dicts":
        predicted = pd.DataFrame(predicted)
    elif kind != "pandas":
        predicted = pl.DataFrame(predicted).to_pandas()
    pd.testing.assert_frame_equal(predicted, expected, check_dtype=False, atol=1e-6)


@pytest.mark.parametrize("count", [1, NEW, 80])
def test_plain_rows_are_read_as_tables_are(
    blend: Case, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fairmp.datasets import plain_rows

    people = pd.concat([blend.people] * 7, ignore_index=True)[:count]
    people["who"] = [f"n{k}" for k in range(count)]
    rng = np.random.default_rng(count)
    ends = rng.choice([*people["who"], *(f"p{k}" for k in range(N))], (6 * count, 2))
    edges = pd.DataFrame(ends, columns=["source", "target"])
    read = blend.model.new_people().read
    fast = read(people, edges)
    monkeypatch.setattr(plain_rows, "MAX_PEOPLE", 0)
    slow = read(people, edges)
    np.testing.assert_array_equal(fast.x, slow.x)
    np.testing.assert_array_equal(fast.table.arrays.sens, slow.table.arrays.sens)
    assert fast.table.ids.to_pylist() == slow.table.ids.to_pylist()

    def received(nodes: Any) -> np.ndarray:
        weights = np.zeros((count, N + count))
        weights[:, nodes.edges.known] = nodes.edges.from_known
        weights[:, N:] = nodes.edges.among
        return weights

    np.testing.assert_array_equal(received(fast), received(slow))


def test_missing_cells_are_filled_as_in_tables(blend: Case) -> None:
    row = {"who": "x", "sex": None, "age": None, "skill": None, "town": None}
    frame = pd.DataFrame([{**row, "who": "y"}, {**row, "sex": "f", "age": 3}])
    frame["skill"] = np.nan
    given = blend.model.predict_new([row])
    assert proba(pd.DataFrame(given)) == pytest.approx(proba(blend.model.predict_new(frame))[:1])


BAD: dict[str, tuple[Any, Any, list[str]]] = {
    "no column": ({"age": ...}, None, ["there is no column 'age'", "the model learned from"]),
    "no group": ({"sex": ...}, None, ["no column 'sex', which holds the groups"]),
    "new group": ({"sex": "x"}, None, ["group 'x' was not seen in training"]),
    "no id": ({"who": ...}, None, ["no column 'who'"]),
    "empty id": ({"who": None}, None, ["1 row without an id"]),
    "text": ({"age": "old"}, None, ["column 'age' held numbers in training and now holds 'old'"]),
    "nested": ({"age": [1]}, None, ["'age'"]),
    "known": ({"who": "p3"}, None, ["'p3' is in the training graph already"]),
    "stranger": ({}, [("x", "q7")], ["'q7' in row 1 is neither known nor among these people"]),
    "no end": ({}, [("x", None)], ["row 1 has no id at one end"]),
    "one column": ({}, [{"source": "x"}], ["the table has one column"]),
    "not a table": ({}, 7, ["edges: expected a table, got int"]),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line(blend: Case, name: str) -> None:
    changes, ends, words = BAD[name]
    row = {"who": "x", "sex": "f", "age": 30, "skill": 0.5, "town": "Rome"} | changes
    row = {key: value for key, value in row.items() if value is not ...}
    edges = ends
    if isinstance(ends, list) and isinstance(ends[0], tuple):
        edges = [dict(zip(("source", "target"), pair, strict=True)) for pair in ends]
    with pytest.raises(InputError) as caught:
        blend.model.predict_new([row], edges)
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_repeated_ids_and_empty_tables_are_refused(blend: Case) -> None:
    row = {"who": "x", "sex": "f", "age": 30, "skill": 0.5, "town": "Rome"}
    for people, words in (([row, row], "given more than once"), ([], "expected a table")):
        with pytest.raises(InputError, match=words):
            blend.model.predict_new(people)
    with pytest.raises(InputError, match="people: expected a table, got dict"):
        blend.model.predict_new(row)


def test_saved_model_predicts_the_same_with_its_graph(tmp_path: Path) -> None:
    case = Case(FairClassifier(FMP(2, 1.0), backbone="logistic", graph_features=True))
    expected = case.model.predict_new(case.people, case.edges)
    case.model.save(tmp_path / "graph", graph=True)
    again = FairClassifier.load(tmp_path / "graph").predict_new(case.people, case.edges)
    pd.testing.assert_frame_equal(again, expected, atol=1e-6)
    case.model.save(tmp_path / "bare")
    bare = FairClassifier.load(tmp_path / "bare")
    with pytest.raises(InputError, match="saved without its graph"):
        bare.predict_new(case.people, case.edges)
    alone = case.model.predict_new(case.people)
    pd.testing.assert_frame_equal(bare.predict_new(case.people), alone, atol=1e-6)


def test_copies_predict_the_same(blend: Case) -> None:
    expected = blend.model.predict_new(blend.people, blend.edges)
    for again in (copy.deepcopy(blend.model), pickle.loads(pickle.dumps(blend.model))):
        pd.testing.assert_frame_equal(again.predict_new(blend.people, blend.edges), expected)


def test_row_numbers_continue_those_of_training() -> None:
    people, edges = tables()
    ends = edges.apply(lambda column: column.str[1:].astype(int))
    known = ends[(ends < N).all(axis=1)]
    data = from_tables(
        people[:N].drop(columns="who"), known, id=None, label="hired", sensitive="sex"
    )
    model = FairClassifier(FMP(2, 1.0), backbone="logistic").fit(data, bootstrap=0)
    predicted = model.predict_new(people[N:].drop(columns=["who", "hired"]), ends)
    assert predicted["node"].tolist() == list(range(N, N + NEW))


def test_model_of_another_graph_cannot_read_tables() -> None:
    from fairmp.datasets import social_network

    model = FairClassifier(None, backbone="logistic").fit(social_network(n=200), bootstrap=0)
    with pytest.raises(InputError, match="was not trained on tables"):
        model.predict_new([{"a": 1}])


def test_nodes_of_the_graph_have_the_own_logits_of_new_people(blend: Case) -> None:
    """A known person's own data say what a new person's with the same data would."""
    model = blend.model
    stages = model.stages(model._graph.test_mask, model.test_logits_)
    people = tables()[0][:N].drop(columns="hired")
    people = people[model._graph.test_mask.numpy()]
    new = model.new_people()
    alone = new.stages(new.read(people.assign(who="n" + people["who"]), None)).own
    torch.testing.assert_close(stages.own, alone, atol=1e-5, rtol=0)
    assert stages.neighbours.shape == stages.corrected.shape == alone.shape


def test_three_classes_explain_the_class_that_is_decided() -> None:
    case = Case(FairClassifier(FMP(2, 1.0), backbone="logistic"), classes=3)
    person = case.people[:1]
    explained = case.model.explain(person)
    assert explained.class_name == explained.decisions[2]
    p = case.model.predict_new(person)[f"p({explained.class_name})"].item()
    assert explained.logit == pytest.approx(np.log(p / (1 - p)), abs=1e-6)
    assert explained.neighbours == pytest.approx(0, abs=1e-9)
    with pytest.raises(InputError, match="person: 3 rows; give one"):
        case.model.explain(case.people[:3])


def test_ties_are_decided_alone() -> None:
    """Copies of a person at a threshold get one decision, however many are given together."""
    case = Case(
        FairClassifier(FMP(2, 1.0, target=0.05), backbone="logistic", criterion="equal_opportunity")
    )
    debiaser = case.model.debiaser_
    person = case.people.iloc[0].to_dict()
    debiaser.correction_ = Thresholds(np.zeros(2), np.zeros(2))
    group = case.model.groups_.index(person["sex"])
    logit = case.model.new_people().stages(case.model.new_people().read([person], None)).neighbours
    margin = float(logit.double()[0, 1] - logit.double()[0, 0])
    thresholds = np.zeros(2)
    thresholds[group] = margin
    debiaser.correction_ = Thresholds(thresholds, np.array([0.5, 0.5]))
    copies = [{**person, "who": f"copy {k}"} for k in range(9)]
    single = case.model.predict_new(copies[:1])[0]["decision"]
    together = case.model.predict_new(copies)
    assert {row["decision"] for row in together} == {single}

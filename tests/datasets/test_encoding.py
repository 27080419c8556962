from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder, StandardScaler

from fairmp.datasets import from_tables
from fairmp.datasets.columns import fit_column
from fairmp.datasets.encoding import Encoding, Roles
from fairmp.datasets.load_report import LoadReport
from fairmp.errors import InputError

PEOPLE = pd.DataFrame(
    {
        "who": [f"P{k}" for k in range(24)],
        "hired": ["yes", "no", "no", None] * 6,
        "group": ["a", "b", "c", "a", "b", "c"] * 4,
        "age": [20.0, 31, 44, np.nan, 52, 23, 27, 61, 35, 40, 29, 33] * 2,
        "vip": [True, False, False] * 8,
        "town": ["Köln", "Rome", "Oslo", None] * 6,
        "since": pd.date_range("2020-01-01", periods=24),
        "planet": ["earth"] * 24,
    }
)
FRIENDS = pd.DataFrame(
    {"from": [f"P{k}" for k in range(23)], "to": [f"P{k}" for k in range(1, 24)]}
)
NAMES = {"id": "who", "label": "hired", "sensitive": "group"}


@pytest.fixture(scope="module")
def encoding() -> Encoding:
    return from_tables(PEOPLE, FRIENDS, **NAMES).encoding


def read(frame: pd.DataFrame, encoding: Encoding, **options):
    return from_tables(frame, FRIENDS, encoding=encoding, **options)


def test_same_table_same_graph(encoding):
    first, again = from_tables(PEOPLE, FRIENDS, **NAMES), read(PEOPLE, encoding)
    for key in ("x", "edge_index", "y", "sens"):
        assert torch.equal(first[key], again[key])
    assert again.feature_names == first.feature_names == encoding.feature_names
    assert again.class_names == ["no", "yes"]
    assert again.group_names == ["a", "b", "c"]
    assert again.ids.to_pylist() == list(PEOPLE["who"])
    assert "train_mask" not in again


def test_encoding_round_trips_through_json(encoding):
    text = json.dumps(encoding.to_dict(), allow_nan=False)
    assert Encoding.from_dict(json.loads(text)) == encoding


@pytest.mark.parametrize("change", [{"label": None}, {"columns": [{"kind": "magic"}]}])
def test_from_dict_refuses_a_damaged_description(encoding, change):
    with pytest.raises(InputError, match="encoding: it is damaged"):
        Encoding.from_dict(encoding.to_dict() | change)
    broken = encoding.to_dict()
    del broken["groups"]
    with pytest.raises(InputError, match="groups"):
        Encoding.from_dict(broken)


def encode(column, series, report=None):
    return column.expand(column.codes(series, report or LoadReport()))


@settings(max_examples=40)
@given(
    st.lists(st.floats(-1e4, 1e4, width=32), min_size=3, max_size=20),
    st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=20),
    st.sampled_from(["standard", "minmax"]),
)
def test_new_numbers_are_scaled_as_by_sklearn(old, new, scale):
    assume(np.std(old) >= 1e-2 and not set(old) <= {0, 1})
    theirs = (StandardScaler if scale == "standard" else MinMaxScaler)()
    theirs.fit(np.array(old)[:, None])
    column = fit_column(pd.Series(old, name="c"), scale=scale)
    expected = theirs.transform(np.array(new)[:, None])
    scaled = encode(column, pd.Series(new, name="c"))
    np.testing.assert_allclose(scaled, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.filterwarnings("ignore:column")
@settings(max_examples=40)
@given(
    st.lists(st.sampled_from("abcde"), min_size=2, max_size=40).filter(lambda v: len(set(v)) > 1),
    st.lists(st.sampled_from("abcdefg"), min_size=1, max_size=20),
)
def test_new_categories_are_encoded_as_by_sklearn(old, new):
    theirs = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    theirs.fit(np.array(old, dtype=object)[:, None])
    report = LoadReport()
    column = fit_column(pd.Series(old, name="c"))
    mine = encode(column, pd.Series(new, name="c"), report)
    np.testing.assert_array_equal(mine, theirs.transform(np.array(new, dtype=object)[:, None]))
    unseen = sum(value not in old for value in new)
    assert bool(unseen) == any("not seen in training" in note for note in report.notes)
    if unseen:
        assert f"{unseen} node" in report.notes[0]


@pytest.mark.filterwarnings("ignore:column")
def test_rare_and_new_categories_share_a_feature():
    series = pd.Series(list("aaabbbcd") * 3, name="c")
    column = fit_column(series, max_categories=2)
    assert column.feature_names == ["c=a", "c=b", "c=other"]
    assert encode(column, series)[7].tolist() == [0, 0, 1]
    assert encode(column, pd.Series(["zebra"], name="c")).tolist() == [[0, 0, 1]]


def test_columns_are_found_by_name_in_any_order(encoding):
    data = read(PEOPLE[PEOPLE.columns[::-1]].assign(shoe_size=43), encoding)
    assert torch.equal(data.x, read(PEOPLE, encoding).x)
    assert "1 column not used, new since training: shoe_size" in data.report.notes
    assert not any("planet" in note for note in data.report.notes)


def test_new_nodes_without_labels(encoding):
    new = PEOPLE.drop(columns=["hired", "planet"]).head(5)
    data = read(new, encoding)
    assert data.y.tolist() == [-1] * 5
    assert "no column 'hired': there are no labels to compare with" in data.report.notes
    assert torch.equal(data.x, read(PEOPLE, encoding).x[:5])


def test_missing_numbers_take_the_training_mean(encoding):
    new = PEOPLE.assign(age=np.nan, vip=None)
    data = read(new, encoding)
    names = data.feature_names
    assert data.x[:, names.index("age")].abs().max() < 1e-6
    assert data.x[:, names.index("age missing")].tolist() == [1] * 24
    assert data.x[:, names.index("vip")].tolist() == pytest.approx([1 / 3] * 24)
    assert data.report.missing["vip"] == 24


def test_codes_as_numbers_and_as_text():
    frame = PEOPLE.assign(code=[1, 2, 3] * 8, group=[0, 1] * 12)
    first = from_tables(frame, FRIENDS, **NAMES, categorical=["code"])
    text = frame.assign(code=frame["code"].astype(str), group=frame["group"].astype(float))
    assert torch.equal(read(text, first.encoding).x, first.x)
    assert torch.equal(read(text, first.encoding).sens, first.sens)
    assert first.group_names == ["group = 0", "group = 1"]


def test_minus_one_stays_unknown():
    frame = PEOPLE.assign(hired=[0, 1, -1] * 8, group=[0, 1, 1, -1] * 6)
    first = from_tables(frame, FRIENDS, **NAMES)
    again = read(frame, first.encoding)
    assert torch.equal(again.y, first.y)
    assert torch.equal(again.sens, first.sens)
    few = read(frame.assign(hired=-1), first.encoding)
    assert few.y.tolist() == [-1] * 24


def test_positive_class_against_the_rest():
    frame = PEOPLE.assign(hired=["yes", "no", "later"] * 8)
    first = from_tables(frame, FRIENDS, **NAMES, positive="yes")
    again = read(frame.assign(hired=["yes", "never", None] * 8), first.encoding)
    assert again.y.tolist() == [1, 0, -1] * 8
    assert again.class_names == ["not yes", "yes"]


@pytest.mark.parametrize("bins", [3, [30, 40], {"age": 2}])
def test_bins_are_those_of_training(bins):
    options = {"id": "who", "label": "hired", "sensitive": ["vip", "age"], "sensitive_bins": bins}
    if not isinstance(bins, dict):
        options["sensitive"] = "age"
    first = from_tables(PEOPLE, FRIENDS, **options)
    assert torch.equal(read(PEOPLE, first.encoding).sens, first.sens)
    # Other ages fall where the first table's cuts put them, not into new bins of equal size.
    old = read(PEOPLE.assign(age=1000.0, vip=True), first.encoding)
    last = max(k for k, name in enumerate(first.group_names) if "≥" in name and "False" not in name)
    assert old.sens.tolist() == [last] * 24


@pytest.mark.parametrize("unknown", [[-1], None])
def test_unknown_ages_stay_unknown(unknown):
    frame = PEOPLE.assign(age=PEOPLE["age"].fillna(-1).astype(int))
    options = {**NAMES, "sensitive": "age", "sensitive_bins": 2, "unknown": unknown}
    first = from_tables(frame, FRIENDS, **options)
    assert (first.sens < 0).tolist() == (frame["age"] == -1).tolist()
    assert first.report.unknown_groups == 2
    for table in (frame, frame.astype({"age": float}), frame.astype({"age": str})):
        assert torch.equal(read(table, first.encoding).sens, first.sens)
    again = Encoding.from_dict(json.loads(json.dumps(first.encoding.to_dict())))
    assert read(frame.assign(age=-1), again).sens.tolist() == [-1] * 24


@pytest.mark.parametrize("sensitive", ["flag", ["flag", "vip"]])
def test_booleans_as_numbers_and_as_text(sensitive):
    numbers = PEOPLE.assign(hired=[1, 0] * 12, flag=[0, 1, 1] * 8)
    bools = numbers.astype({"hired": bool, "flag": bool})
    text = bools.astype({"hired": str, "flag": str})
    for old in (numbers, bools):
        first = from_tables(old, FRIENDS, **{**NAMES, "sensitive": sensitive})
        for new in (numbers, bools, text):
            assert torch.equal(read(new, first.encoding).sens, first.sens)
            assert torch.equal(read(new, first.encoding).y, first.y)
        with pytest.raises(InputError, match="was not seen in training"):
            read(numbers.assign(flag=2), first.encoding)
    trained = from_tables(numbers, FRIENDS, **NAMES, positive=1)
    assert torch.equal(read(bools, trained.encoding).y, trained.y)


@pytest.mark.parametrize(
    ("edges", "note"),
    [
        (None, "no edge table: no node has an edge"),
        (FRIENDS.head(0), "no node has an edge: the table has a header and no rows"),
        (
            FRIENDS.assign(to="Q1"),
            "no node has an edge: none of the 23 rows joins two ids of the node"
            " table; an edge has 'P0' and 'Q1', a node has 'P3'",
        ),
    ],
)
def test_new_nodes_without_edges(encoding, edges, note):
    graph = from_tables(PEOPLE.iloc[3:4], edges, encoding=encoding)
    assert graph.edge_index.shape == (2, 0)
    assert graph.edge_index.dtype == torch.int64
    assert torch.equal(graph.x, read(PEOPLE, encoding).x[3:4])
    assert graph.report.notes == [note]
    first = from_tables(PEOPLE[["who", "hired", "group"]], FRIENDS, **NAMES)
    alone = from_tables(PEOPLE.iloc[3:4], edges, encoding=first.encoding)
    assert alone.x.tolist() == [[0.0]]


def test_groups_not_seen_in_training(encoding):
    moon = PEOPLE.assign(group=["a", "b", "c", "moon"] * 6)
    with pytest.raises(InputError, match=r"group 'moon' was not seen in training \(a, b"):
        read(moon, encoding)
    data = read(moon, encoding, unknown_groups="allow")
    assert data.sens.tolist() == [0, 1, 2, -1] * 6
    assert "6 nodes of a group not seen in training (such as 'moon')" in str(data.report)
    bare = PEOPLE.drop(columns="group")
    with pytest.raises(InputError, match="no column 'group', which holds the groups"):
        read(bare, encoding)
    assert read(bare, encoding, unknown_groups="allow").sens.tolist() == [-1] * 24


def test_degree_as_the_only_feature():
    first = from_tables(PEOPLE[["who", "hired", "group"]], FRIENDS, **NAMES)
    again = read(PEOPLE[["who", "group"]], first.encoding)
    assert torch.equal(first.x, again.x)
    assert again.feature_names == ["log(1 + degree)"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.rename(columns={"age": "Age"}), "no column 'age' (is it 'Age' now?), which"),
        (lambda f: f.drop(columns="age"), "no column 'age', which the model learned from; there"),
        (lambda f: f.rename(columns={"town": "towns"}), "no column 'town' (is it 'towns' now?)"),
        (lambda f: f.assign(age="old"), "'age' held numbers in training and now holds 'old'"),
        (lambda f: f.assign(age=f["since"]), "'age' held numbers in training and holds dates now"),
        (lambda f: f.assign(since=1.0), "'since' held dates in training and holds no dates now"),
        (lambda f: f.assign(town=1), "'town' had values such as 'Köln' in training and now holds"),
        (
            lambda f: f.assign(hired="maybe"),
            "'maybe' in column 'hired' is not a class seen in training",
        ),
        (lambda f: f.rename(columns={"who": "id"}), "id: the node table has no column 'who'"),
        (lambda f: f.head(0), "the table has a header and no rows"),
    ],
)
def test_transform_refuses_other_tables(encoding, change, message):
    with pytest.raises(InputError) as caught:
        read(change(PEOPLE), encoding)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_encoding_refuses_other_arguments(encoding):
    with pytest.raises(InputError, match="encoding"):
        read(PEOPLE, encoding, label="hired")
    for argument, value in {"scale": "minmax", "max_categories": 3, "seed": 1}.items():
        with pytest.raises(InputError, match=f"^{argument}: .*encoding"):
            read(PEOPLE, encoding, **{argument: value})
    with pytest.raises(InputError, match="unknown_groups: 'perhaps'"):
        read(PEOPLE, encoding, unknown_groups="perhaps")
    with pytest.raises(InputError, match="id: missing"):
        from_tables(PEOPLE, FRIENDS)
    with pytest.raises(InputError, match="sensitive: missing"):
        from_tables(PEOPLE, FRIENDS, id="who", label="hired")
    other = read(PEOPLE.rename(columns={"who": "name"}), encoding, id="name")
    assert other.num_edges == 46


def test_roles_refuse_wrong_options():
    for argument, value in {"scale": "log", "max_categories": 0}.items():
        roles = Roles(None, "y", ("s",), **{argument: value})
        with pytest.raises(InputError) as caught:
            roles.feature_columns(["y", "s"])
        assert caught.value.argument == argument

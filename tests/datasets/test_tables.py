from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from fairmp.datasets import from_tables
from fairmp.datasets.encoding import Encoding
from fairmp.errors import InputError

PEOPLE = pd.DataFrame(
    {
        "who": ["007", "7", "x9", "y", "z1", "b", "c", "d", "e", "f", "g", "h"],
        "hired": ["yes", "no", "yes", None, "no", "yes", "no", "yes", "no", "yes", "no", "yes"],
        "group": ["a", "b", "c", "a", "b", "c", "a", "b", "c", "a", None, "c"],
        "age": [20.0, 31, 44, np.nan, 52, 23, 27, 61, 35, 40, 29, 33],
        "vip": [True, False] * 6,
        "town": ["Köln", "Rome", "Oslo", None] * 3,
    }
)
FRIENDS = pd.DataFrame(
    {
        "from": ["007", "7", "x9", "y", "y", "007", "b", "nobody", "c", "007"],
        "to": ["7", "007", "y", "x9", "y", "7", "c", "b", "d", "e"],
        "since": range(10),
    }
)
EDGES = {("007", "7"), ("x9", "y"), ("b", "c"), ("c", "d"), ("007", "e")}
NAMES = {"id": "who", "label": "hired", "sensitive": "group"}


def edges_of(data) -> set[tuple[str, str]]:
    who = PEOPLE["who"]
    return {tuple(sorted((who[a], who[b]))) for a, b in data.edge_index.T.tolist()}


def check(data) -> None:
    assert edges_of(data) == {tuple(sorted(edge)) for edge in EDGES}
    assert data.num_edges == 10
    assert data.is_undirected()
    assert data.is_coalesced()
    assert data.y.tolist() == [1, 0, 1, -1, 0, 1, 0, 1, 0, 1, 0, 1]
    assert data.sens.tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 2, 0, -1, 2]
    assert data.class_names == ["no", "yes"]
    assert data.group_names == ["a", "b", "c"]
    assert data.feature_names == [
        *("age", "age missing", "vip"),
        *("town=Köln", "town=Oslo", "town=Rome", "town=missing"),
    ]
    assert data.x.shape == (12, 7)
    assert data.x[:, 2].tolist() == [1, 0] * 6
    report = data.report
    assert (report.edge_rows, report.dangling, report.self_loops) == (10, 1, 1)
    assert (report.repeated, report.reciprocal, report.edges) == (1, 2, 5)
    assert report.missing == {"age": 1, "town": 3}
    assert (report.unknown_labels, report.unknown_groups) == (1, 1)
    used = data.train_mask | data.val_mask | data.test_mask
    assert used.tolist() == (data.y >= 0).tolist()
    assert not bool(((data.val_mask | data.test_mask) & (data.sens < 0)).any())
    assert report.labelled_unknown_groups == int(((data.y >= 0) & (data.sens < 0)).sum())


def test_from_tables_of_data_frames():
    before = PEOPLE.copy(), FRIENDS.copy()
    check(from_tables(PEOPLE, FRIENDS, **NAMES))
    pd.testing.assert_frame_equal(PEOPLE, before[0])
    pd.testing.assert_frame_equal(FRIENDS, before[1])
    check(from_tables(PEOPLE.set_index("who"), FRIENDS, **NAMES))
    check(from_tables(PEOPLE.astype({"town": "category"}), FRIENDS.astype("category"), **NAMES))


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("ending", ["csv", "tsv", "txt", "csv.gz"])
def test_from_tables_of_any_separator(tmp_path, separator, ending):
    nodes, edges = tmp_path / f"people.{ending}", tmp_path / f"friends.{ending}"
    PEOPLE.to_csv(nodes, index=False, sep=separator)
    FRIENDS.to_csv(edges, index=False, sep=separator)
    data = from_tables(nodes, str(edges), **NAMES)
    check(data)
    assert data.name == "people"
    promised = {"csv": ",", "tsv": "\t", "csv.gz": ","}.get(ending)
    assert ("separated by" in str(data.report)) == (promised != separator)


def test_from_tables_of_parquet(tmp_path):
    PEOPLE.to_parquet(tmp_path / "people.parquet")
    FRIENDS.to_parquet(tmp_path / "friends.pq")
    check(from_tables(tmp_path / "people.parquet", tmp_path / "friends.pq", **NAMES))


def test_from_tables_of_gzip_with_a_byte_order_mark(tmp_path):
    text = PEOPLE.to_csv(index=False).encode("utf-8-sig")
    (tmp_path / "people.csv").write_bytes(gzip.compress(text))
    FRIENDS.to_csv(tmp_path / "friends.csv", index=False, encoding="utf-8-sig")
    check(from_tables(tmp_path / "people.csv", tmp_path / "friends.csv", **NAMES))


def test_from_tables_with_windows_lines_and_quotes(tmp_path):
    text = PEOPLE.to_csv(index=False).replace(",", ", ").replace("Rome", '"Rome"')
    (tmp_path / "people.csv").write_bytes(text.replace("\n", "\r\n").encode())
    FRIENDS.to_csv(tmp_path / "friends.csv", index=False, quoting=1)
    data = from_tables(tmp_path / "people.csv", tmp_path / "friends.csv", **NAMES)
    assert edges_of(data) == {tuple(sorted(edge)) for edge in EDGES}
    assert data.class_names == ["no", "yes"]


def test_edges_without_a_header(tmp_path):
    rows = "".join(f"{a} {b}\n" for a, b in EDGES)
    (tmp_path / "e.txt").write_text(f"# a comment\n# another\n{rows}")
    data = from_tables(PEOPLE, tmp_path / "e.txt", **NAMES)
    assert edges_of(data) == {tuple(sorted(edge)) for edge in EDGES}
    assert "e.txt: has no header line" in data.report.notes


@pytest.mark.parametrize("first", ["0.0", "", "?"])
def test_nodes_without_a_header(tmp_path, first):
    rows = [f"{k},{k % 2},{'ab'[k % 3 > 0]},{k / 2 if k else first}\n" for k in range(12)]
    (tmp_path / "n.csv").write_text("".join(rows))
    edges = pd.DataFrame({"a": [0, 1], "b": [1, 11]})
    names = {"id": "column 1", "label": "column 2", "sensitive": "column 3"}
    data = from_tables(tmp_path / "n.csv", edges, **names)
    assert (data.num_nodes, data.feature_names[0]) == (12, "column 4")
    assert "n.csv: has no header line" in data.report.notes
    new = from_tables(tmp_path / "n.csv", edges, encoding=data.encoding)
    assert new.y.equal(data.y)
    assert new.x.equal(data.x)


def test_edges_in_aligned_columns(tmp_path):
    (tmp_path / "e.txt").write_text("  from    to\n   007     7\n    x9     y\n")
    data = from_tables(PEOPLE, tmp_path / "e.txt", **NAMES)
    assert edges_of(data) == {("007", "7"), ("x9", "y")}


def test_decimal_commas(tmp_path):
    (tmp_path / "n.csv").write_text(
        "id;y;s;euro\n" + "".join(f"{k};{k % 2};{'ab'[k % 3 > 0]};{k},5\n" for k in range(12))
    )
    edges = pd.DataFrame({"a": range(11), "b": range(1, 12)})
    data = from_tables(tmp_path / "n.csv", edges, id="id", label="y", sensitive="s", scale="none")
    assert data.x[:, 0].tolist() == [k + 0.5 for k in range(12)]
    assert "n.csv: read as separated by semicolons" in data.report.notes
    assert "n.csv: decimal commas in column euro" in data.report.notes


@pytest.mark.parametrize("kind", ["frame", "csv", "parquet"])
def test_missing_text_in_files_and_frames(tmp_path, kind):
    people = PEOPLE.assign(hired=PEOPLE["hired"].fillna("NA"), town=PEOPLE["town"].fillna("?"))
    people = people.assign(group=people["group"].fillna("n/a"))
    nodes = people if kind == "frame" else tmp_path / f"n.{kind}"
    if kind != "frame":
        getattr(people, f"to_{kind}")(nodes, index=False)
    check(from_tables(nodes, FRIENDS, **NAMES))


def test_thousands_and_decimal_commas(tmp_path):
    rows = [f"{k}\t{k % 2}\t{'ab'[k % 3 > 0]}\t{1 + k},{100 + k}\t{k}" for k in range(12)]
    path = tmp_path / "n.tsv"
    path.write_text("\n".join(["id\ty\ts\tincome\tage", *rows]))
    edges = pd.DataFrame({"a": range(11), "b": range(1, 12)})
    columns = {"id": "id", "label": "y", "sensitive": "s", "scale": "none"}
    with pytest.raises(InputError, match=r"'income' of n\.tsv, line 2 has '1,100'") as caught:
        from_tables(path, edges, **columns)
    assert caught.value.argument == "nodes"
    assert from_tables(path, edges, **columns, drop=["income"]).feature_names == ["age"]
    path.write_text(path.read_text().replace("12,111", "1,012,111"))
    data = from_tables(path, edges, **columns)
    assert data.x[:, 0].tolist() == [*(1000 * (1 + k) + 100 + k for k in range(11)), 1012111]
    assert "n.tsv: thousands separators in column income" in data.report.notes


def test_row_numbers_as_ids_and_chosen_columns():
    edges = pd.DataFrame({"weight": [1.0, 2.0], "v": [0, 1], "w": ["1.0", "2"]})
    data = from_tables(
        PEOPLE,
        edges,
        id=None,
        label="hired",
        sensitive="group",
        edge_source="v",
        edge_target="w",
        features=["age", "vip"],
        drop=["vip"],
    )
    assert data.edge_index.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
    assert data.feature_names == ["age", "age missing"]
    assert "edge columns not used: weight" in data.report.notes


def test_sens_in_features():
    data = from_tables(PEOPLE, FRIENDS, **NAMES, sens_in_features=True)
    assert [name for name in data.feature_names if name.startswith("group=")] == [
        *("group=a", "group=b", "group=c", "group=missing")
    ]
    data = from_tables(PEOPLE, FRIENDS, **NAMES, sens_in_features=True, features=["vip"])
    assert data.feature_names[:2] == ["vip", "group=a"]
    assert "who" not in " ".join(data.feature_names)


def test_several_sensitive_columns_and_bins():
    data = from_tables(
        PEOPLE,
        FRIENDS,
        id="who",
        label="hired",
        sensitive=["vip", "age"],
        sensitive_bins={"age": [35]},
    )
    assert data.group_names[0] == "vip = False × age < 35"
    assert len(data.group_names) == 4
    assert int(data.sens[3]) == -1


def test_no_features_gives_the_degree():
    data = from_tables(PEOPLE[["who", "hired", "group"]], FRIENDS, **NAMES)
    degree = torch.bincount(data.edge_index[0], minlength=12)
    torch.testing.assert_close(data.x[:, 0], torch.log1p(degree.float()))
    assert "no feature column is left" in str(data.report)


def test_report_survives_copies():
    data = from_tables(PEOPLE, FRIENDS, **NAMES)
    assert data.clone().report.edges == data.to("cpu").report.edges == 5
    assert "report" not in repr(data)
    assert "report" not in data.to_dict()


def test_seed_changes_the_split_only():
    one, same, other = (from_tables(PEOPLE, FRIENDS, **NAMES, seed=s) for s in (0, 0, 1))
    assert torch.equal(one.train_mask, same.train_mask)
    assert not torch.equal(one.train_mask, other.train_mask)
    assert torch.equal(one.x, other.x)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"label": "hird"},
            "label: the node table has no column 'hird', did you mean 'hired'? There are who,"
            " hired, group, age, vip, town",
        ),
        ({"id": "Who"}, "id: the node table has no column 'Who', did you mean 'who'?"),
        ({"sensitive": ["group", "sex"]}, "sensitive: the node table has no column 'sex'"),
        ({"sensitive": []}, "sensitive: missing"),
        ({"sensitive": "hired"}, "sensitive: column 'hired' is the label column already; name an"),
        ({"sensitive": ["vip", "hired"]}, "sensitive: column 'hired' is the label column already"),
        ({"sensitive": ["vip", "vip"]}, "sensitive: column 'vip' is the sensitive column already"),
        ({"sensitive": "who"}, "sensitive: column 'who' is the id column already"),
        ({"label": "who"}, "label: column 'who' is the id column already; name another"),
        ({"drop": ["towm"]}, "drop: the node table has no column 'towm', did you mean 'town'?"),
        ({"features": ["height"]}, "features: the node table has no column 'height'"),
        (
            {"edge_source": "a"},
            "edge_source: the edge table has no column 'a'; there are from, to, since",
        ),
        ({"edge_target": "from"}, "edge_source: 'from' is the target too; name two columns"),
        ({"sensitive": "age", "sensitive_bins": [99]}, "gives one group"),
        ({"scale": "big"}, "scale: 'big' is unknown"),
        (
            {"positive": "perhaps"},
            "positive: 'perhaps' is not a value of 'hired'",
        ),
    ],
)
def test_from_tables_refuses_wrong_names(change, message):
    with pytest.raises(InputError) as caught:
        from_tables(PEOPLE, FRIENDS, **{**NAMES, **change})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "people.csv is empty; give a table"),
        (b"\n \n", "people.csv is empty"),
        (b"who,hired,group\n", "the table has a header and no rows"),
        (b"who,hired\0\1\2\3", "people.csv is a binary file"),
        ("who,hired\na,ü\n".encode("latin-1"), "people.csv is not UTF-8 text (byte 12)"),
        (b"PK\x03\x04rest", "is a zip archive or an Excel sheet"),
        (b"PAR1rest", "cannot read people.csv"),
        (b"\x1f\x8bno gzip at all", "people.csv is a broken gzip file"),
        (b"who,hired,group\na,1,x\nb,2\n", "has 2 cells where 3 were expected"),
        (b"who,hired,group\na,1,x\nb,2,y,z\n", "has 4 cells where 3"),
        (b"who,hired,hired\na,1,x\n", "two columns are named 'hired'"),
        (b"who,hired,group\na,1,x\na,2,y\n", "1 id given more than once (such as 'a')"),
        (b"who,hired,group\na,1,x\n,2,y\n", "1 row without an id"),
        (b"who hired group\na", "no column 'who'; there is only who hired group"),
    ],
)
def test_from_tables_refuses_broken_node_files(tmp_path, content, message):
    path = write(tmp_path / "people.csv", content)
    with pytest.raises(InputError) as caught:
        from_tables(path, FRIENDS, **NAMES)
    assert message in str(caught.value)
    assert str(tmp_path) not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "edges: friends.csv is empty"),
        (b"from,to\n", "edges: the table has a header and no rows"),
        (b"from\n007\n7\n", "edges: the table has one column, 'from'; give"),
        (
            b"from,to\nq,r\ns,t\n",
            "none of the 2 rows joins two ids of the node table; an edge has 'q' and 'r', a"
            " node has '007'",
        ),
        (b"from,to\n7,007\nx9\n", "has 1 cell where 2 were expected"),
        (b"\0\0\0", "edges: friends.csv is a binary file"),
    ],
)
def test_from_tables_refuses_broken_edge_files(tmp_path, content, message):
    path = write(tmp_path / "friends.csv", content)
    with pytest.raises(InputError) as caught:
        from_tables(PEOPLE, path, **NAMES)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_from_tables_refuses_missing_files(tmp_path):
    with pytest.raises(InputError, match=r"nodes: there is no file '.*gone\.csv'; check the path"):
        from_tables(tmp_path / "gone.csv", FRIENDS, **NAMES)
    with pytest.raises(InputError, match=r"edges: there is no file '.*gone\.csv'"):
        from_tables(PEOPLE, tmp_path / "gone.csv", **NAMES)
    with pytest.raises(InputError, match="nodes: there are no files"):
        from_tables(tmp_path, FRIENDS, **NAMES)
    with pytest.raises(InputError, match=r"nodes: .* list"):
        from_tables([1, 2], FRIENDS, **NAMES)


def test_late_text_that_is_not_utf8(tmp_path):
    rows = "".join(f"p{k},{k % 2},{'ab'[k % 3 > 0]},{k % 5}\n" for k in range(20_000))
    content = f"who,hired,group,note\n{rows}".encode() + b"last,1,b,\xfc\n"
    with pytest.raises(InputError, match=r"'note' of people\.csv is not UTF-8 text"):
        from_tables(write(tmp_path / "people.csv", content), FRIENDS, **NAMES)


@pytest.mark.parametrize(
    "text", ['id  y s\n1  "a\rb" x\n2  b y\n', f'id y  s\n1 "{"a" * 200_000}"  x\n2 b  y\n']
)
def test_aligned_columns_with_unreadable_quotes(text, tmp_path):
    (tmp_path / "nodes.txt").write_text(text, newline="")
    (tmp_path / "edges.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match=r"nodes\.txt") as error:
        from_tables(
            tmp_path / "nodes.txt", tmp_path / "edges.csv", id="id", label="y", sensitive="s"
        )
    assert error.value.argument == "nodes"


def test_quoted_cells_with_separators_and_line_ends(tmp_path):
    frame = PEOPLE.assign(town=["a,b", 'say "hi"', "two\nlines"] * 4)
    frame.to_csv(tmp_path / "people.csv", index=False)
    data = from_tables(tmp_path / "people.csv", FRIENDS, **NAMES)
    assert {"town=a,b", 'town=say "hi"', "town=two\nlines"} < set(data.feature_names)


def test_real_nba_files_as_tables(real_data):
    from fairmp.datasets import NBA

    table = from_tables(
        real_data / "nba" / "nba.csv",
        real_data / "nba" / "nba_relationship.txt",
        id="user_id",
        label="SALARY",
        sensitive="country",
    )
    graph = NBA(real_data)[0]
    assert torch.equal(table.edge_index, graph.edge_index)
    assert torch.equal(table.y, graph.y)
    assert torch.equal(table.sens, graph.sens)
    assert table.class_names == graph.class_names
    columns = [graph.feature_names.index(name) for name in table.feature_names]
    torch.testing.assert_close(table.x, graph.x[:, columns], atol=1e-5, rtol=1e-5)


def test_tables_without_edges_give_a_graph_without_edges():
    data = from_tables(PEOPLE, **NAMES)
    assert data.edge_index.shape == (2, 0)
    assert "no edge table: no node has an edge" in data.report.notes
    with_edges = from_tables(PEOPLE, FRIENDS, **NAMES)
    for name in ("x", "y", "sens", "train_mask"):
        torch.testing.assert_close(data[name], with_edges[name])


def test_rare_groups_are_encoded_as_in_training():
    data = from_tables(PEOPLE, FRIENDS, **NAMES, min_group=4)
    assert data.group_names == ["c", "other"]
    encoding = Encoding.from_dict(data.encoding.to_dict())
    assert from_tables(PEOPLE, encoding=encoding).sens.tolist() == data.sens.tolist()
    with pytest.raises(InputError, match="min_group: cannot be combined with encoding"):
        from_tables(PEOPLE, encoding=encoding, min_group=4)


def test_codes_of_few_whole_numbers_are_pointed_out():
    people = PEOPLE.assign(region=[1, 2, 3] * 4, children=[0, 0, 0, 1, 2, 0] * 2, flag=[0, 1] * 6)
    notes = " ".join(from_tables(people, FRIENDS, **NAMES).report.notes)
    assert "few whole numbers, read as quantities: region;" in notes
    notes = from_tables(people, FRIENDS, **NAMES, categorical=["region"]).report.notes
    assert not any("whole numbers" in note for note in notes)


def test_several_columns_in_one_text_say_how_several_are_given():
    with pytest.raises(InputError, match=r"give several as sensitive=\['group', 'town'\]"):
        from_tables(PEOPLE, FRIENDS, id="who", label="hired", sensitive="group,town")

from __future__ import annotations

import pandas as pd
import pyarrow as pa
import pytest

from fairmp.datasets.dialects import TableReadError
from fairmp.datasets.readers import TableReader
from fairmp.errors import InputError
from fairmp.frames import MISSING


def test_partial_drops_rows_that_are_cut_short(tmp_path):
    path, notes = tmp_path / "a.csv", []
    path.write_text("a,b\n1,2\n3")
    table = TableReader(path, "nodes", notes=notes).table(partial=True)
    assert table.to_pydict() == {"a": [1], "b": [2]}
    assert notes == ["a.csv: 1 row cut short, dropped"]
    path.write_text("a,b\n1,2\n3,4,5\n")
    with pytest.raises(InputError, match="has 3 cells where 2 were expected"):
        TableReader(path, "nodes").table(partial=True)


@pytest.mark.parametrize("kind", [".csv", ".txt", ".parquet"])
def test_batches_have_the_type_asked_for(tmp_path, kind):
    path = tmp_path / f"a{kind}"
    frame = pd.DataFrame({"a": ["1", "2"], "b": ["3", "x"]})
    if kind == ".parquet":
        frame.to_parquet(path)
    else:
        path.write_text(
            frame.to_csv(index=False, sep=",") if kind == ".csv" else " a   b\n 1   3\n 2   x\n"
        )
    reader = TableReader(path, "edges")
    (batch,) = reader.batches(["a"], pa.int64())
    assert batch.to_pydict() == {"a": [1, 2]}
    with pytest.raises(TableReadError, match=rf"cannot read a\{kind}"):
        list(reader.batches(["b"], pa.int64()))


@pytest.mark.parametrize("comments", [0, 2])
def test_wrong_row_is_named_by_its_line(tmp_path, comments):
    path = tmp_path / "a.csv"
    path.write_text("# a\n" * comments + 'a,b\n"two\nlines",2\n' + "1,2\n" * 5 + "1,2,3\n1,2\n")
    with pytest.raises(InputError, match=f"line {9 + comments} "):
        TableReader(path, "nodes").table()


def test_table_infers_types_from_the_whole_file(tmp_path):
    path = tmp_path / "a.csv"
    rows = "".join(f"{k},{k}\n" for k in range(900_000))
    path.write_text(f"a,b\n{rows}0.5,x\n")
    assert path.stat().st_size > 1 << 23
    table = TableReader(path, "nodes").table()
    assert [str(field.type) for field in table.schema] == ["double", "string"]
    assert table["a"][-1].as_py() == 0.5


CELLS = {
    "integer": ["7", "-3", "NA"],
    "float": ["1.5", "1e3", ""],
    "boolean": ["true", "False", "?"],
    "date": ["2020-01-02", "2021-12-31", "null"],
    "time": ["2020-01-02 10:00:00", "2021-12-31 23:59:59", ""],
    "zone": ["2020-01-02T10:00:00Z", "2021-12-31T23:59:59Z", ""],
    "text": ["a", "b", "N/A"],
    "code": ["007", "x", "8"],
    "empty": ["", "NA", ""],
}


@pytest.mark.parametrize("name", CELLS)
def test_frame_of_text_has_the_types_of_a_direct_read(tmp_path, name):
    path = tmp_path / "a.csv"
    pd.DataFrame({"k": [1, 2, 3], name: CELLS[name]}).to_csv(path, index=False)
    reader = TableReader(path, "nodes")
    direct = reader.frame()
    later = reader.frame(reader.table(text=reader.names))
    pd.testing.assert_series_equal(direct[name], later[name])
    assert direct[name].isna().tolist() == [cell in MISSING for cell in CELLS[name]]


@pytest.mark.parametrize("separator", ["\t", ";", "|"])
@pytest.mark.parametrize(
    ("cells", "expected", "note"),
    [
        (["0,5", "1,234", "7"], [0.5, 1.234, 7], "decimal commas"),
        (["1234,567", "2,101", "NA"], [1234.567, 2.101, None], "decimal commas"),
        (["1,234,567", "2,101", "7"], [1234567, 2101, 7], "thousands separators"),
        (["1,234.5", "2,101", "0.5"], [1234.5, 2101, 0.5], "thousands separators"),
        (["-2,5", "1e3", "3"], [-2.5, 1000, 3], "decimal commas"),
    ],
)
def test_frame_settles_commas_by_column(tmp_path, separator, cells, expected, note):
    path = tmp_path / "a.txt"
    path.write_text("id" + separator + "income\n" + "".join(f"k{separator}{c}\n" for c in cells))
    notes = []
    frame = TableReader(path, "nodes", notes=notes).frame()
    assert frame["income"].astype(object).where(frame["income"].notna(), None).tolist() == expected
    assert notes[-1] == f"a.txt: {note} in column income"


def test_frame_refuses_ambiguous_commas(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("id\tincome\tage\n1\t950\t20\n2\t2,101\t30\n")
    with pytest.raises(
        InputError, match=r"column 'income' of a\.tsv, line 3 has '2,101'"
    ) as caught:
        TableReader(path, "nodes").frame()
    assert caught.value.argument == "nodes"
    # A column that is not used, or stays text, may hold them; its values are not changed.
    assert TableReader(path, "nodes").frame(unused=["income"])["income"].tolist() == [
        "950",
        "2,101",
    ]
    assert TableReader(path, "nodes").frame(text=["income"])["income"].tolist() == ["950", "2,101"]


@pytest.mark.parametrize(("other", "expected"), [("0,25", 2.101), ("1,234,567", 2101)])
def test_frame_settles_commas_by_other_columns(tmp_path, other, expected):
    path = tmp_path / "a.tsv"
    path.write_text(f"income\tother\n2,101\t{other}\n950\t7\n")
    assert TableReader(path, "nodes").frame()["income"].tolist() == [expected, 950]
    path.write_text("income\tone\ttwo\n2,101\t0,25\t1,234,567\n")
    with pytest.raises(InputError, match="'income'"):
        TableReader(path, "nodes").frame()


def test_frame_leaves_commas_in_text(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("place\tage\n12,345\t5\nby the sea, east\t7\n")
    assert TableReader(path, "nodes").frame()["place"].tolist() == ["12,345", "by the sea, east"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('income,age\n"2,101.5",20\n"950",30\n', [2101.5, 950]),
        ('income,age\n"2101,5",20\n"950",30\n', [2101.5, 950]),
        ("income;age\n2.101,5;20\n950;30\n", [2101.5, 950]),
        ("income;age\n2.101;20\n0,5;30\n", [2101, 0.5]),
        ('income,age\n"2,101",20\n"950",30\n', None),
        ("income;age\n1.5;20\n0,5;30\n", None),
        ("age;income\n0,5;2.101\n1,5;950\n", None),
    ],
)
def test_frame_with_commas_and_points(tmp_path, text, expected):
    path = tmp_path / "a.csv"
    path.write_text(text)
    if expected is None:
        with pytest.raises(InputError, match="income"):
            TableReader(path, "nodes").frame()
    else:
        assert TableReader(path, "nodes").frame()["income"].tolist() == expected


@pytest.mark.parametrize(
    ("text", "wanted", "header"),
    [
        ("7,1,f\n8,0,m\n", ["id"], False),
        ("7,1,f\n8,,m\n", [], True),  # no column is asked for
        ("a,1,f\nb,0,m\n", ["label"], False),
        ("id,1,f\n8,0,m\n", ["x"], True),
        ("id,label\n8,0\n", ["x"], True),
        ("2019,2020\n8,0\n", ["2019"], True),
        ("a,b\nc,d\n", ["x"], True),
    ],
)
def test_find_header_of_numbers_above_numbers(tmp_path, text, wanted, header):
    path = tmp_path / "a.csv"
    path.write_text(text)
    reader = TableReader(path, "nodes")
    reader.find_header(wanted)
    assert reader.header is header
    assert len(reader.frame()) == text.count("\n") - header


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "feather", "arrow", "parquet"])
def test_frame_of_columnar_files(tmp_path, kind):
    path = tmp_path / f"a.{kind}"
    frame = pd.DataFrame({"id": ["a", "b"], "x": [1.5, None], "n": [1, 2], "t": ["u", "NA"]})
    if "jsonl" in kind:
        frame.to_json(path, orient="records", lines=True)
    elif kind == "arrow":
        table = pa.Table.from_pandas(frame)
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table)
    else:
        frame.to_feather(path) if kind == "feather" else frame.to_parquet(path)
    reader = TableReader(path, "nodes")
    pd.testing.assert_frame_equal(reader.frame(), frame.assign(t=["u", None]), check_dtype=False)
    rows = [row for batch in reader.batches(["n", "id"]) for row in batch.to_pylist()]
    assert rows == [{"n": 1, "id": "a"}, {"n": 2, "id": "b"}]
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError, match="a\\."):
        TableReader(path, "nodes").frame()


@pytest.mark.parametrize("old", [b"Rome", b"town"])
@pytest.mark.parametrize("kind", ["parquet", "feather"])
def test_frame_refuses_columnar_text_that_is_not_utf8(tmp_path, kind, old):
    path, frame = tmp_path / f"a.{kind}", pd.DataFrame({"id": [1, 2], "town": ["Oslo", "Rome"]})
    if kind == "parquet":
        frame.to_parquet(path, compression="none")
    else:
        frame.to_feather(path, compression="uncompressed")
    path.write_bytes(path.read_bytes().replace(old, old[:2] + b"\xff\xfe"))
    with pytest.raises(InputError, match="a\\."):
        TableReader(path, "nodes").frame()


@pytest.mark.parametrize("value", [[1, 2], {"a": 1}, b"\xff"])
def test_frame_refuses_nested_cells(tmp_path, value):
    pd.DataFrame({"id": [1, 2], "x": [value, value]}).to_parquet(tmp_path / "a.parquet")
    with pytest.raises(InputError, match="'x'"):
        TableReader(tmp_path / "a.parquet", "nodes").frame()

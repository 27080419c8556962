from __future__ import annotations

import csv

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairmp.datasets.columns import MISSING
from fairmp.datasets.readers import TableReader, TableReadError, sniff
from fairmp.errors import InputError

WORDS = st.text("abc ,;|\t'", min_size=1, max_size=6)


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from([",", ";", "\t", "|"]),
    st.integers(2, 5).flatmap(
        lambda width: st.lists(st.lists(WORDS, min_size=width, max_size=width), min_size=1)
    ),
)
def test_the_separator_is_detected_despite_quotes(tmp_path_factory, separator, rows):
    path = tmp_path_factory.mktemp("dialect") / "a.csv"
    header = [f"column{k}" for k in range(len(rows[0]))]
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter=separator).writerows([header, *rows])
    reader = TableReader(path, "nodes")
    assert reader.dialect.separator == separator
    assert reader.names == header
    assert [list(row.values()) for row in reader.table(text=header).to_pylist()] == rows
    batches = [row for batch in reader.batches() for row in batch.to_pylist()]
    assert [list(row.values()) for row in batches] == rows


def test_sentences_are_not_columns_of_words(tmp_path):
    (tmp_path / "a.csv").write_text("note\nthis is one\nand this\n")
    assert sniff(tmp_path / "a.csv", "nodes").first == ("note",)


def test_types_are_inferred_from_the_whole_file(tmp_path):
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
def test_text_read_first_and_converted_later_has_the_same_types(tmp_path, name):
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
def test_a_column_shows_what_its_commas_mean(tmp_path, separator, cells, expected, note):
    path = tmp_path / "a.txt"
    path.write_text("id" + separator + "income\n" + "".join(f"k{separator}{c}\n" for c in cells))
    notes = []
    frame = TableReader(path, "nodes", notes=notes).frame()
    assert frame["income"].astype(object).where(frame["income"].notna(), None).tolist() == expected
    assert notes == [f"a.txt: {note} in column income"]


def test_numbers_that_can_be_read_in_two_ways_are_refused(tmp_path):
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
def test_other_columns_settle_what_commas_mean(tmp_path, other, expected):
    path = tmp_path / "a.tsv"
    path.write_text(f"income\tother\n2,101\t{other}\n950\t7\n")
    assert TableReader(path, "nodes").frame()["income"].tolist() == [expected, 950]
    path.write_text("income\tone\ttwo\n2,101\t0,25\t1,234,567\n")
    with pytest.raises(InputError, match="'income'"):
        TableReader(path, "nodes").frame()


def test_commas_in_words_and_in_comma_separated_files_are_left_alone(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("place\tmixed\n12,345\t0,5\nby the sea, east\t1.5\n")
    frame = TableReader(path, "nodes").frame()
    assert frame["place"].tolist() == ["12,345", "by the sea, east"]
    assert frame["mixed"].tolist() == ["0,5", "1.5"]
    path.write_text('income,age\n"2,101",20\n"950",30\n')
    assert TableReader(path, "nodes").frame()["income"].tolist() == ["2,101", "950"]


def test_partial_drops_rows_that_are_cut_short_and_no_others(tmp_path):
    path, notes = tmp_path / "a.csv", []
    path.write_text("a,b\n1,2\n3")
    table = TableReader(path, "nodes", notes=notes).table(partial=True)
    assert table.to_pydict() == {"a": [1], "b": [2]}
    assert notes == ["a.csv: 1 row cut short, dropped"]
    path.write_text("a,b\n1,2\n3,4,5\n")
    with pytest.raises(InputError, match="line 3 has 3 cells where 2 were expected"):
        TableReader(path, "nodes").table(partial=True)


@pytest.mark.parametrize("kind", [".csv", ".txt", ".parquet"])
def test_batches_are_of_the_type_asked_for(tmp_path, kind):
    import pyarrow as pa

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

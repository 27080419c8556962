from __future__ import annotations

import csv

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairmp.datasets.readers import layout_of, read_text
from fairmp.errors import InputError

WORDS = st.text("abc ,;|\t'", min_size=1, max_size=6)


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from([",", ";", "\t", "|"]),
    st.integers(2, 5).flatmap(
        lambda width: st.lists(st.lists(WORDS, min_size=width, max_size=width), min_size=1)
    ),
)
def test_the_separator_is_found_whatever_is_quoted(tmp_path_factory, separator, rows):
    path = tmp_path_factory.mktemp("layout") / "a.csv"
    header = [f"column{k}" for k in range(len(rows[0]))]
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter=separator).writerows([header, *rows])
    layout = layout_of(path, "nodes")
    assert layout.separator == separator
    assert layout.first == tuple(header)
    table = read_text(path, "nodes", layout, text_columns=header)
    assert [list(row.values()) for row in table.to_pylist()] == rows


def test_sentences_are_not_columns_of_words(tmp_path):
    (tmp_path / "a.csv").write_text("note\nthis is one\nand this\n")
    layout = layout_of(tmp_path / "a.csv", "nodes")
    assert layout.first == ("note",)


def test_types_are_agreed_on_over_the_whole_file(tmp_path):
    path = tmp_path / "a.csv"
    rows = "".join(f"{k},{k}\n" for k in range(900_000))
    path.write_text(f"a,b\n{rows}0.5,x\n")
    assert path.stat().st_size > 1 << 23
    table = read_text(path, "nodes", layout_of(path, "nodes"))
    assert [str(field.type) for field in table.schema] == ["double", "string"]
    assert table["a"][-1].as_py() == 0.5


def test_partial_drops_what_is_cut_short_and_nothing_else(tmp_path):
    path, notes = tmp_path / "a.csv", []
    path.write_text("a,b\n1,2\n3")
    table = read_text(path, "nodes", layout_of(path, "nodes"), partial=True, notes=notes)
    assert table.to_pydict() == {"a": [1], "b": [2]}
    assert notes == ["a.csv: 1 row cut short, dropped"]
    path.write_text("a,b\n1,2\n3,4,5\n")
    with pytest.raises(InputError, match="line 3 has 3 cells where 2 were expected"):
        read_text(path, "nodes", layout_of(path, "nodes"), partial=True, notes=notes)

from __future__ import annotations

import csv
import gzip
import itertools
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairmp.datasets import from_tables
from fairmp.datasets.dialects import is_numeric, open_table
from fairmp.datasets.readers import TableReader
from fairmp.errors import InputError

WORDS = st.text("abc ,;|\t'", min_size=1, max_size=6)


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from([",", ";", "\t", "|"]),
    st.integers(2, 5).flatmap(
        lambda width: st.lists(st.lists(WORDS, min_size=width, max_size=width), min_size=1)
    ),
)
def test_sniff_detects_the_separator_despite_quotes(tmp_path_factory, separator, rows):
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


def test_sniff_does_not_split_sentences(tmp_path):
    (tmp_path / "a.csv").write_text("note\nthis is one\nand this\n")
    assert TableReader(tmp_path / "a.csv", "nodes").dialect.sample[0] == ("note",)


SPACES = {
    "an empty cell": ("a b c\n1  3\n4 5 6\n", [[1, None, 3], [4, 5, 6]]),
    "an empty cell at the end": ("a b c\n1 2 \n4 5 6\n", [[1, 2, None], [4, 5, 6]]),
    "an empty cell at the start": ("a b c\n 2 3\n4 5 6\n", [[None, 2, 3], [4, 5, 6]]),
    "aligned": ("a   b  c\n1   2  3\n44  5  6\n", [[1, 2, 3], [44, 5, 6]]),
    "aligned to the right": ("  a b c\n  1 2 3\n 44 5 6\n", [[1, 2, 3], [44, 5, 6]]),
    "spaces at the end": ("a b c\n1 2 3 \n44 5 6 \n", [[1, 2, 3], [44, 5, 6]]),
    "quotes": ('a b c\n1 "x  y" 3\n4  6\n', [[1, "x  y", 3], [4, None, 6]]),
    "aligned with quotes": ('a  b  c\n1  "x  y" 3\n4  "" 6\n', [[1, "x  y", 3], [4, None, 6]]),
    "aligned with quotes and commas": (
        'a  b     c\n1  "x y" 3\n4  "y x" 6\n7  x,y   9\n',
        [[1, "x y", 3], [4, "y x", 6], [7, "x,y", 9]],
    ),
    "aligned with an empty cell": ("a   b  c\n1      3\n44  5  6\n", None),
    "both": ("a b c\n1  3\n4  5 6\n", None),
}


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("zipped", [False, True])
def test_sniff_single_spaces_or_runs(tmp_path, name, zipped):
    text, expected = SPACES[name]
    path = tmp_path / "a.txt"
    path.write_bytes(gzip.compress(text.encode()) if zipped else text.encode())
    if expected is None:
        with pytest.raises(InputError, match=r"line 2|line 3"):
            TableReader(path, "nodes")
        return
    frame = TableReader(path, "nodes").frame()
    assert frame.astype(object).where(frame.notna(), None).values.tolist() == expected


def test_sniff_reads_the_whole_file_for_spaces(tmp_path):
    path = tmp_path / "a.txt"
    rows = "".join(f"{k} {k} {k}\n" for k in range(100_000))
    path.write_text(f"a b c\n{rows}1  3\n")
    assert TableReader(path, "nodes").frame().iloc[-1].isna().tolist() == [False, True, False]
    path.write_text(f"a b c\n{rows}1  2 3\n")
    assert TableReader(path, "nodes").frame().iloc[-1].tolist() == [1, 2, 3]
    path.write_text(f"a b c\n1  3\n{rows}1  2 3\n")
    with pytest.raises(InputError, match="line 100,003"):
        TableReader(path, "nodes")


def test_sniff_refuses_semicolons_or_commas(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("1;2;0,5\n3;4;1,5\n")
    assert TableReader(path, "edges").dialect.separator == ";"
    path.write_text("a,b;c,d\nx,y;z,w\n")
    with pytest.raises(InputError, match="semicolons or by commas"):
        TableReader(path, "edges")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"a,b\n1,2\n", "text"),
        (b'\xef\xbb\xbf {"a": 1}\n', "json"),
        (b"PAR1....", "parquet"),
        (b"ARROW1..", "ipc"),
        (b"\xff\xff\xff\xff....", "stream"),
    ],
)
def test_open_table_tells_the_format_by_content(tmp_path, content, expected):
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    assert open_table(path, "nodes").format == expected
    path.write_bytes(gzip.compress(content))
    assert open_table(path, "nodes").gzipped


@pytest.mark.parametrize("content", [b"PK\x03\x04", b"a\0b", b"\x1f\x8bnot gzip"])
def test_open_table_refuses_what_is_no_table(tmp_path, content):
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"a\.csv"):
        open_table(path, "nodes")


@pytest.mark.parametrize(
    ("cells", "expected"),
    [(["1", "NA", "-2.5e3"], True), (["1", "x"], False), (["NA", ""], False), (["1,5"], True)],
)
def test_is_numeric(cells, expected):
    assert is_numeric(cells) is expected


@pytest.mark.parametrize("zipped", [False, True])
def test_is_utf8(tmp_path, zipped):
    path = tmp_path / "a"
    for content, expected in ((b"a\xc3\xa9\n", True), (b"a\n" * 9000 + b"\xe9\n", False)):
        path.write_bytes(gzip.compress(content) if zipped else content)
        assert open_table(path, "nodes").is_utf8() is expected


@pytest.mark.parametrize("mark", ["#", "%"])
@pytest.mark.parametrize("separator", [",", "\t", ";", " "])
def test_rows_whose_ids_look_like_comments_are_kept(
    tmp_path: Path, mark: str, separator: str
) -> None:
    n = 12
    ids = [f"{mark}{k}" for k in range(n // 2)] + [f"z{k}" for k in range(n // 2)]
    rows = [separator.join(pair) for pair in itertools.pairwise(ids)]
    people = pd.DataFrame({"id": ids, "y": [0, 1] * 6, "s": ["a", "a", "b"] * 4})
    for top in (
        [],
        [f"{mark} made on Monday"],
        [f"{mark} one{separator}other"],
        ["one" + separator + "other"],
    ):
        (tmp_path / "edges.txt").write_text("\n".join([*top, *rows]) + "\n")
        data = from_tables(people, tmp_path / "edges.txt", id="id", label="y", sensitive="s")
        assert data.report.edges == n - 1


def test_all_rows_may_look_like_comments(tmp_path: Path) -> None:
    ids = [f"#{k}" for k in range(12)]
    people = pd.DataFrame({"id": ids, "y": [0, 1] * 6, "s": ["a", "a", "b"] * 4})
    rows = [f"{one},{other}" for one, other in itertools.pairwise(ids)]
    (tmp_path / "edges.csv").write_text("\n".join(rows) + "\n")
    data = from_tables(people, tmp_path / "edges.csv", id="id", label="y", sensitive="s")
    assert data.report.edges == 11


@pytest.mark.parametrize("start", ["", "\ufeff"])
@pytest.mark.parametrize(("line", "separator"), [("sep=;", ";"), ("SEP=,", ","), ('"sep=|"', "|")])
def test_line_of_excel_names_the_separator(
    tmp_path: Path, start: str, line: str, separator: str
) -> None:
    rows = [["id", "y", "s"], *([str(k), str(k % 2), "aab"[k % 3]] for k in range(12))]
    text = "\n".join([start + line, *map(separator.join, rows)])
    (tmp_path / "people.csv").write_text(text + "\n", encoding="utf8")
    ends = pd.DataFrame({"a": range(11), "b": range(1, 12)})
    data = from_tables(tmp_path / "people.csv", ends, id="id", label="y", sensitive="s")
    assert (data.report.nodes, data.report.edges) == (12, 11)

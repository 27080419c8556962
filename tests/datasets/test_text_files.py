from __future__ import annotations

import pandas as pd
import pyarrow as pa
import pytest

from fairmp.datasets.dialects import TableReadError
from fairmp.datasets.readers import TableReader
from fairmp.errors import InputError


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

"""Tables of pandas, polars and Arrow: the same numbers, and what went in comes out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch

from fairmp import Debiaser, debias, evaluate
from fairmp.datasets import from_tables
from fairmp.errors import InputError
from fairmp.frames import as_pandas, like, read_frame

FRAME = pd.DataFrame(
    {
        "who": [2**60 + k for k in range(60)],
        "hired": ["yes", "no", "no"] * 20,
        "sex": ["f", "m", None, "m"] * 15,
        "age": np.arange(60) * 0.5,
        "postcode": pd.array([1, None, 3] * 20, dtype="Int64"),
        "since": pd.date_range("2020-01-01", periods=60),
    }
)
EDGES = pd.DataFrame({"from": FRAME.who.iloc[:-1].to_numpy(), "to": FRAME.who.iloc[1:].to_numpy()})

LIBRARIES: dict[str, Callable[[pd.DataFrame], Any]] = {
    "polars": pl.from_pandas,
    "polars lazy": lambda frame: pl.from_pandas(frame).lazy(),
    "arrow": lambda frame: pa.Table.from_pandas(frame, preserve_index=False),
    "dicts": lambda frame: frame.astype(object).where(frame.notna(), None).to_dict("records"),
}
EAGER = {"polars": pl.DataFrame, "arrow": pa.Table, "dicts": list}


@pytest.mark.parametrize("library", LIBRARIES)
def test_graph_is_the_same_from_tables_of_every_library(library: str) -> None:
    convert = LIBRARIES[library]
    roles = {"id": "who", "label": "hired", "sensitive": "sex", "positive": "yes"}
    expected = from_tables(FRAME, EDGES, **roles)
    data = from_tables(convert(FRAME), convert(EDGES), **roles)
    assert data.feature_names == expected.feature_names
    for name in ("x", "y", "sens", "edge_index"):
        torch.testing.assert_close(data[name], expected[name], rtol=0, atol=0)
    assert data.ids.to_pylist() == expected.ids.to_pylist()


@pytest.mark.parametrize("library", EAGER)
def test_result_comes_out_as_what_went_in(library: str) -> None:
    result = pd.DataFrame({"id": [2**60, 2**60 + 1], "p": [0.25, 0.5], "decision": ["no", "yes"]})
    given = LIBRARIES[library](FRAME)
    returned = like(result, given)
    assert isinstance(returned, EAGER[library])
    pd.testing.assert_frame_equal(read_frame(returned, "table"), result)


def test_columns_keep_their_library_and_name() -> None:
    column = pl.Series("score", [0.1, None, 0.3])
    assert as_pandas(column).tolist() == pytest.approx([0.1, np.nan, 0.3], nan_ok=True)
    assert as_pandas(column).name == "score"
    returned = like(pd.Series([0.5, 0.6, 0.7], name="score"), column)
    assert isinstance(returned, pl.Series)
    assert (returned.name, returned.to_list()) == ("score", [0.5, 0.6, 0.7])
    assert isinstance(like(pd.Series([0.5]), pa.chunked_array([[1.0]])), pa.ChunkedArray)


def test_pandas_keeps_its_index() -> None:
    result = pd.DataFrame({"p": [0.2, 0.8]}, index=["a", "b"])
    assert like(result, FRAME) is result
    assert as_pandas(result) is result


def test_large_integers_beside_missing_values_are_exact() -> None:
    frame = as_pandas(pl.DataFrame({"id": [2**60 + 1, None]}))
    assert frame["id"].iloc[0] == 2**60 + 1


@pytest.mark.parametrize("library", ["polars", "arrow"])
def test_corrections_are_the_same_and_come_out_as_what_went_in(library: str) -> None:
    convert, generator = LIBRARIES[library], np.random.default_rng(0)
    p = generator.random(400)
    frame = pd.DataFrame({"no": 1 - p, "yes": p})
    people = pd.DataFrame({"sex": ["f", "m", None, "m"] * 100, "age": generator.random(400)})
    people["hired"] = np.where(generator.random(400) < p, "yes", "no")
    people.loc[::7, "hired"] = None
    table = convert(people)
    columns = {name: table[name] for name in people}
    corrector = Debiaser("equal_opportunity", 0.05, calibrate=False)
    expected = corrector.fit(frame, people.hired, sensitive_features=people.sex).transform(
        frame, sensitive_features=people.sex
    )
    corrector.fit(convert(frame), columns["hired"], sensitive_features=columns["sex"])
    corrected = corrector.transform(convert(frame), sensitive_features=columns["sex"])
    assert corrector.classes_ == ("no", "yes")
    assert isinstance(corrected, EAGER[library])
    pd.testing.assert_frame_equal(as_pandas(corrected), expected)
    column = debias(convert(frame)["yes"], convert(people[["sex"]]), y=columns["hired"])
    assert type(column) is type(columns["age"])
    expected_column = debias(frame["yes"], people[["sex"]], y=people["hired"])
    np.testing.assert_array_equal(np.asarray(column), expected_column)
    blind = Debiaser(group_free=True, target=0.1)
    features = convert(people[["age"]])
    blind.fit(convert(frame), sensitive_features=columns["sex"], features=features)
    assert isinstance(blind.transform(convert(frame), features=features), EAGER[library])


@pytest.mark.parametrize("library", ["polars", "arrow"])
def test_figures_are_the_same(library: str) -> None:
    generator = np.random.default_rng(1)
    frame = pd.DataFrame({"hired": ["yes", "no", None, "no"] * 50, "p": generator.random(200)})
    groups = pd.DataFrame({"sex": ["f", "m", None, "m", "f"] * 40, "old": [0, 1] * 100})
    expected = evaluate(frame.hired, frame.p, sensitive_features=groups, bootstrap=0)
    table, columns = LIBRARIES[library](frame), LIBRARIES[library](groups)
    measured = evaluate(table["hired"], table["p"], sensitive_features=columns, bootstrap=0)
    assert measured.to_dict() == expected.to_dict()
    assert {group.name for group in measured.groups} == {"f × 0", "f × 1", "m × 0", "m × 1"}


@pytest.mark.parametrize("values", [np.arange(3), torch.arange(3), [1, 2], {"a": [1]}, None])
def test_what_is_no_table_is_unchanged_and_refused_as_a_table(values: Any) -> None:
    assert as_pandas(values) is values
    with pytest.raises(InputError, match="people: expected a table"):
        read_frame(values, "people")

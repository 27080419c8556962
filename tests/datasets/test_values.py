from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairmp.datasets.values import (
    MISSING,
    as_numbers,
    as_text,
    check_unique,
    closest,
    factorize,
    require_column,
    without_missing_text,
)
from fairmp.errors import InputError


@given(st.lists(st.integers(-5, 5) | st.text("ab", max_size=2) | st.none(), max_size=20))
@settings(deadline=None)
def test_factorize_sorts_numbers_before_text(values):
    codes, uniques = factorize(pd.Series(values, dtype=object))
    assert [None if code < 0 else uniques[code] for code in codes] == values
    numbers = [value for value in uniques if isinstance(value, int)]
    texts = [value for value in uniques if isinstance(value, str)]
    assert uniques == sorted(numbers) + sorted(texts)


def test_as_numbers_of_text():
    assert as_numbers(pd.Series(["a", "b"])) is None
    assert as_numbers(pd.Series(["1", "2"])).tolist() == [1, 2]


def test_as_numbers_of_dates_are_days():
    days = as_numbers(pd.Series(["1970-01-02T00", None, "1970-01-03T12"], dtype="datetime64[ns]"))
    np.testing.assert_array_equal(days, [1, np.nan, 2.5])


def test_without_missing_text_empties_marks():
    cells = without_missing_text(pd.Series([*MISSING, "a"], dtype=object))
    assert cells.dropna().tolist() == ["a"]
    numbers = pd.Series([1, 2])
    assert without_missing_text(numbers) is numbers


@pytest.mark.parametrize(
    ("value", "text"), [(1.0, "1"), (0.5, "0.5"), (True, "True"), ("1.0", "1.0"), (7, "7")]
)
def test_as_text(value, text):
    assert as_text(value) == text


@pytest.mark.parametrize(
    ("name", "expected"), [("AGE ", "age"), ("incme", "income"), ("zzz", None)]
)
def test_closest(name, expected):
    assert closest(name, ["age", "income"]) == expected


def test_require_column_names_the_closest():
    require_column("label", "age", ["age", "income"], "the table")
    with pytest.raises(InputError, match="'age'") as error:
        require_column("label", "aeg", ["age", "income"], "the table")
    assert error.value.argument == "label"
    assert "age, income" in error.value.hint
    assert "separated" not in error.value.hint


def test_require_column_of_one_column_asks_for_the_separator():
    with pytest.raises(InputError) as error:
        require_column("label", "age", ["age:income"], "the table")
    assert "separated" in error.value.hint


def test_check_unique():
    check_unique(["a", "b"], "nodes")
    with pytest.raises(InputError, match="'a'"):
        check_unique(["a", "b", "a"], "nodes")

from __future__ import annotations

import pytest

from fairmp.datasets.column_names import check_unique, closest, require_column
from fairmp.errors import InputError


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

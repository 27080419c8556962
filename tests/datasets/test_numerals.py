from __future__ import annotations

import pyarrow as pa
import pytest

from fairmp.datasets.numerals import (
    comma_meanings,
    has_points_for_thousands,
    infer_type,
    is_text,
    without_commas,
)


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["0,5", "7"], ["decimal"]),
        (["1,234,567", "7"], ["thousands"]),
        (["2,101", None], ["decimal", "thousands"]),
        (["0,5", "1.5"], []),
        (["1.5", "7"], None),
        (["by the sea, east", "7"], None),
    ],
)
def test_comma_meanings(cells, expected):
    assert comma_meanings(pa.array(cells)) == expected


@pytest.mark.parametrize(
    ("meaning", "cells", "expected"),
    [
        ("decimal", ["1.234,5", None], ["1234.5", None]),
        ("thousands", ["1,234.5", "7"], ["1234.5", "7"]),
    ],
)
def test_without_commas(meaning, cells, expected):
    assert without_commas(pa.array(cells), meaning).to_pylist() == expected


@pytest.mark.parametrize(
    ("cells", "expected"), [(["1.234", "950"], True), (["1.5", "1.234"], False), (["950"], False)]
)
def test_has_points_for_thousands(cells, expected):
    assert has_points_for_thousands(pa.array(cells)) is expected


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["1", "+2", None], pa.int64()),
        (["1.5", "1e3"], pa.float64()),
        (["true", "False"], pa.bool_()),
        (["2020-01-02"], pa.date32()),
        (["2020-01-02 10:00:00"], pa.timestamp("s")),
        (["a", "1"], pa.string()),
    ],
)
def test_infer_type(cells, expected):
    assert infer_type(pa.array(cells)).type == expected


def test_infer_type_of_missing_cells():
    assert infer_type(pa.array([None, None], pa.string())).type == pa.null()


def test_is_text():
    assert is_text(pa.large_string())
    assert not is_text(pa.binary())

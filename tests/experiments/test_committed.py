from __future__ import annotations

import math

from experiments.committed import cell, exists, points, read, runs
from fairmp.metrics import Interval


def test_runs_without_a_file_are_none() -> None:
    assert runs("no-such-experiment") == ()
    assert runs("table")
    assert all("failed" not in record for record in runs("table"))


def test_records_are_read_by_name() -> None:
    assert exists("scale")
    assert not exists("no-such-benchmark")
    assert read("scale")["degree"] == 20


def test_cell_has_a_second_digit_where_it_is_small() -> None:
    assert cell(Interval(0.801, 0.79, 0.812, 10)) == "80.1 ± 1.1"
    assert cell(Interval(0.0123, 0.01, 0.0146, 10)) == "1.23 ± 0.23"
    assert cell(Interval(0.5, 0.4, 0.7, 3)) == "50.0 [40.0, 70.0]"
    assert cell(Interval(0.5, math.nan, math.nan, 1)) == "50.0"
    assert points(0.5, 0.012) == "50.0 ± 1.2"
    assert points(0.05, 0.012) == "5.00 ± 1.20"

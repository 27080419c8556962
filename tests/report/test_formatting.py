from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from fairmp.report.formats import (
    change_text,
    interval_text,
    is_known,
    join_names,
    per_hundred,
    points,
    wilson_interval,
    with_interval,
)


@given(st.integers(1, 3000), st.floats(0, 1))
def test_the_interval_is_scipys(n: int, share: float) -> None:
    count = round(share * n)
    theirs = binomtest(count, n).proportion_ci(0.95, method="wilson")
    assert wilson_interval(count, n) == pytest.approx((theirs.low, theirs.high), abs=1e-7)


def test_nobody_has_no_interval() -> None:
    assert all(math.isnan(end) for end in wilson_interval(0, 0))


def test_numbers_as_text() -> None:
    assert per_hundred(0.005) == "fewer than 1"
    assert per_hundred(0.996) == "100"
    assert per_hundred(None) == "n/a"
    assert interval_text((math.nan, 0.1)) == ""
    assert with_interval(None, None) == "n/a"
    assert change_text(None, 0.1) == "n/a"
    assert change_text(0.1, 0.3) == "20.0 points more"
    assert not is_known(math.nan)
    assert join_names(["a"]) == "a"
    assert join_names([]) == ""
    assert join_names(["a", "b", "c"]) == "a, b and c"
    assert join_names(list("abcd"), most=2) == "a, b and 2 more"
    assert (points(0.1234), points(-0.0004), points(None)) == ("12.3", "0.0", "n/a")


def test_brackets_are_text_on_the_terminal() -> None:
    from rich.console import Console

    from fairmp.report.formats import Table, rich_table

    console = Console(width=80)
    with console.capture() as shown:
        console.print(rich_table(Table("mean [smallest, largest]", ["name", "[b]"], [["a", "1"]])))
    assert "mean [smallest, largest]" in " ".join(shown.get().split())
    assert "[b]" in shown.get()

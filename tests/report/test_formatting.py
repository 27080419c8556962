from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from fairmp.report.formatting import known, listed, moved, of_100, span, wilson, with_span


@given(st.integers(1, 3000), st.floats(0, 1), st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_the_interval_is_scipys(n: int, share: float, confidence: float) -> None:
    count = round(share * n)
    theirs = binomtest(count, n).proportion_ci(confidence, method="wilson")
    assert wilson(count, n, confidence) == pytest.approx((theirs.low, theirs.high), abs=1e-9)


def test_nobody_has_no_interval() -> None:
    assert all(math.isnan(end) for end in wilson(0, 0))


def test_words() -> None:
    assert of_100(0.005) == "fewer than 1"
    assert of_100(0.996) == "100"
    assert of_100(None) == "n/a"
    assert span((math.nan, 0.1)) == ""
    assert with_span(None, None) == "n/a"
    assert moved(None, 0.1) == "n/a"
    assert moved(0.1, 0.3) == "20.0 points more"
    assert not known(math.nan)
    assert listed(["a"]) == "a"
    assert listed([]) == ""

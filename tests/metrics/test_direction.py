"""Direction of gaps."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairmp.metrics import evaluate
from fairmp.metrics.counts import GroupRates
from fairmp.metrics.direction import NamedRates, changed_sides


def _evaluation(decisions, y, sens, **names):
    scores = np.eye(1 + max(max(decisions), max(y)))[np.array(decisions)]
    return evaluate(y, scores, sensitive_features=sens, bootstrap=0, **names)


def _two_groups(first, second, kind="true_positive"):
    """Rates of two groups and two classes, the same for every kind unless it is named."""
    values = np.array([[1 - first, first], [1 - second, second]])
    level = np.full((2, 2), 0.5)
    rates = {name: values if name == kind else level for name in GroupRates._fields}
    return NamedRates(GroupRates(**rates), ["0", "1"], ["no", "yes"])


def test_lead_names_groups_and_decision():
    evaluation = _evaluation(
        [1, 1, 0, 1, 0, 0],
        [1, 1, 1, 1, 1, 0],
        [0, 0, 0, 1, 1, 1],
        group_names=["f", "m"],
        class_names=["rejected", "approved"],
    )
    lead = evaluation.lead("dp")
    assert (lead.ahead, lead.behind, lead.class_name) == ("f", "m", "approved")
    assert lead.gap == pytest.approx(evaluation.dp)


def test_equal_groups_have_no_lead():
    assert _evaluation([1, 0, 1, 0], [1, 0, 1, 0], [0, 0, 1, 1]).lead("dp") is None


def test_reversed_disadvantage_changes_sides():
    before, after = _two_groups(0.69, 0.84), _two_groups(0.82, 0.72)
    assert changed_sides("eo", before, after)
    assert (before.lead("eo").ahead, after.lead("eo").ahead) == ("1", "0")


@pytest.mark.parametrize("after", [(0.72, 0.82), (0.751, 0.75), (0.75, 0.75)])
def test_smaller_gap_of_same_side_or_near_zero_keeps_sides(after):
    assert not changed_sides("eo", _two_groups(0.69, 0.84), _two_groups(*after))


@pytest.mark.parametrize("kind", ["true_positive", "false_positive"])
def test_equalized_odds_has_direction_of_the_larger_gap(kind):
    lead = _two_groups(0.2, 0.9, kind).lead("odds")
    assert (lead.kind, lead.ahead) == (kind, "1")


@given(st.integers(0, 2**32 - 1), st.integers(2, 5), st.integers(2, 4))
def test_gap_of_lead_equals_the_metric(seed, groups, classes):
    rng = np.random.default_rng(seed)
    n = 60
    scores = rng.normal(size=(n, classes))
    y, sens = rng.integers(0, classes, n), np.arange(n) % groups
    evaluation = evaluate(y, scores, sensitive_features=sens, bootstrap=0)
    for key in ("dp", "eo", "odds"):
        lead = evaluation.lead(key)
        assert (0.0 if lead is None else lead.gap) == pytest.approx(getattr(evaluation, key))


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_sides_change_only_once(a, b, c, d):
    first, second = _two_groups(a, b), _two_groups(c, d)
    expected = ((a < b and c > d) or (a > b and c < d)) and abs(c - d) > 0.02
    if abs(abs(c - d) - 0.02) > 1e-9:
        assert changed_sides("eo", first, second) == expected

"""A result holds numbers: JSON, and the gap to expect."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fairmp import InputError, debias, evaluate
from fairmp.metrics.evaluation import CRITERIA

RNG = np.random.default_rng(1)
SENS = RNG.integers(0, 2, 600)
P = 1 / (1 + np.exp(-RNG.normal(size=600) - SENS))
Y = (RNG.random(600) < P).astype(int)


def test_to_dict_is_plain_json_without_predictions() -> None:
    result = debias(P, SENS, target=0.02, y=Y, full_output=True)
    record = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert "predictions" not in record
    assert record["on"] == "decisions"
    assert record["criteria"][0]["target"] == 0.02
    assert record["others"][0]["target"] is None  # nan


def test_expected_gap_falls_with_the_size_of_a_batch() -> None:
    result = debias(P, SENS, y=Y, full_output=True)
    for criterion in CRITERIA:
        small, large = (result.expected_gap(m, criterion) for m in (100, 10_000))
        assert small.mean > large.mean
        assert small.high > small.mean
    again = result.expected_gap(100, seed=0)
    assert again == result.expected_gap(100, seed=0) != result.expected_gap(100, seed=1)


def test_expected_gap_needs_a_measured_criterion() -> None:
    result = debias(P, SENS, full_output=True)
    with pytest.raises(InputError, match="criterion"):
        result.expected_gap(100, "equal_opportunity")
    with pytest.raises(InputError, match="m: 0"):
        result.expected_gap(0)


@pytest.mark.parametrize("classes", [2, 4])
def test_further_metrics_equal_those_of_evaluate(classes: int) -> None:
    rng = np.random.default_rng(2)
    sens, y = rng.integers(0, 3, 500), rng.integers(0, classes, 500)
    scores = rng.normal(size=(500, classes)) + np.eye(classes)[y]
    scores[:, -1] += sens
    result = debias(scores, sens, y=y, kind="logits", full_output=True)
    further = {metric.key: metric for metric in result.further_metrics()}
    before, after = (
        evaluate(y, values, sensitive_features=sens, bootstrap=1)
        for values in (scores, result.predictions)
    )
    assert list(further) == ["impact_ratio", "ppv"]
    for key, metric in further.items():
        assert metric.before == pytest.approx(getattr(before, key))
        assert metric.after == pytest.approx(getattr(after, key))
        assert metric.before != metric.after
    assert further["impact_ratio"].interval == pytest.approx(after.intervals["impact_ratio"])
    assert result.impact_ratio().estimate == further["impact_ratio"].after


def test_impact_ratio_needs_no_labels() -> None:
    result = debias(P, SENS, full_output=True)
    assert [metric.key for metric in result.further_metrics()] == ["impact_ratio"]


def test_payers_are_counted_by_group_and_label() -> None:
    result = debias(P, SENS, y=Y, full_output=True)
    was, now = P > 0.5, np.asarray(result.predictions) > 0.5
    lost, gained = was & ~now, ~was & now
    for g, change in enumerate(result.groups):
        inside = g == SENS
        expected = (lost, lost & (Y == 1), gained, gained & (Y == 0))
        assert change.paid == tuple(int((inside & kind).sum()) for kind in expected)
    assert sum(change.changed for change in result.groups) > 0

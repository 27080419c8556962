"""A result holds numbers: JSON, and the gap to expect."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fairmp import InputError, debias
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

"""Corrections that apply to any row, and their JSON."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.special import softmax

from fairmp.postprocessing import corrections
from fairmp.postprocessing.corrections import (
    Affine,
    Correction,
    GroupShift,
    Thresholds,
    Transitions,
)

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(6, 2))
MEMBERSHIP = np.array([[1.0, 0], [0, 1], [0, 0], [0.3, 0.7], [1, 0], [0, 1]])
ALL: list[Correction] = [
    GroupShift(RNG.normal(size=(2, 2))),
    Thresholds(np.array([0.3, -0.2]), np.array([0.5, 0.0])),
    Affine(RNG.normal(size=(2, 2, 2)), np.array([0.1, 0.2]), np.array(0.5)),
    Transitions(RNG.dirichlet(np.ones(2), (2, 2)), np.array(1.0)),
]


@pytest.mark.parametrize("correction", ALL, ids=lambda one: one.kind)
def test_apply_is_by_row_and_keeps_unknown_groups(correction: Correction) -> None:
    whole = correction.apply(LOGITS, MEMBERSHIP).logits
    np.testing.assert_array_equal(whole[2], LOGITS[2])
    assert (whole[[0, 1, 3]] != LOGITS[[0, 1, 3]]).any(1).all()
    for row in range(len(LOGITS)):
        alone = correction.apply(LOGITS[row : row + 1], MEMBERSHIP[row : row + 1]).logits
        np.testing.assert_allclose(alone[0], whole[row])


@pytest.mark.parametrize("correction", ALL, ids=lambda one: one.kind)
def test_from_dict_rebuilds_a_correction(correction: Correction) -> None:
    record = json.loads(json.dumps(corrections.to_dict(correction)))
    again = corrections.from_dict(record, groups=2, classes=2)
    assert type(again) is type(correction)
    np.testing.assert_array_equal(
        again.apply(LOGITS, MEMBERSHIP).logits, correction.apply(LOGITS, MEMBERSHIP).logits
    )
    with pytest.raises(ValueError, match="finite numbers"):
        corrections.from_dict(record, groups=3, classes=2)


def test_no_parameters_are_no_correction() -> None:
    zero = Affine(np.zeros((2, 2, 2)), np.zeros(2), np.array(0.7))
    identity = Transitions(np.tile(np.eye(2), (2, 1, 1)), np.array(1.0))
    for correction in (zero, identity):
        logits = correction.apply(LOGITS, MEMBERSHIP).logits
        np.testing.assert_allclose(softmax(logits, axis=1), softmax(LOGITS, axis=1))


def test_transitions_mix_the_predicted_classes() -> None:
    swap = Transitions(np.tile(np.eye(2)[::-1], (2, 1, 1)), np.array(1.0))
    p, q = softmax(LOGITS, axis=1), softmax(swap.apply(LOGITS, MEMBERSHIP).logits, axis=1)
    known = MEMBERSHIP.sum(1) > 0
    np.testing.assert_allclose(q[known], p[known, ::-1])


@pytest.mark.parametrize(
    "change",
    [{"type": "magic"}, {"weights": None}, {"slopes": [1, "x"]}, {"temperature": 0.0}],
)
def test_from_dict_refuses_wrong_values(change: dict[str, object]) -> None:
    with pytest.raises((ValueError, TypeError)):
        corrections.from_dict(corrections.to_dict(ALL[2]) | change, groups=2, classes=2)

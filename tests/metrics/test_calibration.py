"""Reliability curves and temperature scaling against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.calibration import calibration_curve
from sklearn.linear_model import LogisticRegression

from fairmp.errors import InputError
from fairmp.metrics import reliability_curve
from fairmp.metrics.calibration import calibrate, label_probabilities


@pytest.mark.parametrize("bins", [1, 7, 10])
def test_reliability_curve_agrees_with_sklearn(bins: int) -> None:
    rng = np.random.default_rng(0)
    prob = np.r_[np.round(rng.random(500), 1), 0.0, 1.0]
    y, sens = rng.integers(-1, 2, 502), rng.integers(-1, 3, 502)
    both = torch.from_numpy(np.stack([1 - prob, prob], 1))
    curves = reliability_curve(both, y, sens, bins, group_names=["a", "b", "c"])
    assert [curve.group for curve in curves] == ["a", "b", "c"]
    for g, curve in enumerate(curves):
        labelled = (sens == g) & (y >= 0)
        observed, predicted = calibration_curve(y[labelled], prob[labelled], n_bins=bins)
        np.testing.assert_allclose(curve.observed, observed)
        np.testing.assert_allclose(curve.predicted, predicted)
        assert sum(curve.counts) == labelled.sum()
        assert all(np.less_equal(curve.low, observed) & np.less_equal(observed, curve.high))


def test_error_is_the_mean_distance_from_calibration() -> None:
    rng = np.random.default_rng(0)
    prob, sens = rng.random(20_000), rng.integers(0, 2, 20_000)
    y = (rng.random(20_000) < np.where(sens == 1, prob, prob**2)).astype(int)
    wrong, right = reliability_curve(prob, y, sens)
    assert right.error < 0.02
    assert wrong.error == pytest.approx(1 / 6, abs=0.02)  # the mean of p − p²


@pytest.mark.parametrize(
    ("prob", "bins"),
    [([0.5, 1.2], 10), ([0.5, np.nan], 10), ([0.5], 10), ([0.5, 0.5], 0)],
)
def test_reliability_curve_refuses_wrong_input(prob: list[float], bins: int) -> None:
    with pytest.raises(InputError):
        reliability_curve(prob, [0, 1], [0, 1], bins)


def test_calibrate_agrees_with_logistic_regression() -> None:
    rng = np.random.default_rng(0)
    odds = 3 * rng.normal(size=4000)
    y = (rng.random(4000) < 1 / (1 + np.exp(-odds / 2 - 0.7))).astype(int)
    temperature, bias = calibrate(np.stack([np.zeros(4000), odds], 1), y)
    model = LogisticRegression(C=np.inf).fit(odds[:, None], y)
    assert 1 / temperature == pytest.approx(model.coef_[0, 0], abs=0.01)
    assert bias[1] - bias[0] == pytest.approx(model.intercept_[0], abs=0.01)


def test_label_probabilities_are_calibrated_in_each_group() -> None:
    rng = np.random.default_rng(0)
    sens, p = rng.integers(0, 2, 20_000), rng.random(20_000)
    y = (rng.random(20_000) < np.where(sens == 1, p, p**2)).astype(int)
    rough = p.round(1)  # some are 0 and 1
    logits = np.log(np.maximum(np.stack([1 - rough, rough], 1), np.finfo(float).tiny))
    hidden = np.where(rng.random(20_000) < 0.5, y, -1)
    proba = label_probabilities(logits, hidden, sens)
    for g in (0, 1):
        assert proba[sens == g, 1].mean() == pytest.approx(y[sens == g].mean(), abs=0.02)
    assert all(curve.error < 0.05 for curve in reliability_curve(proba, y, sens))

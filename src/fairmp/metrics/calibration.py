"""Calibration of probabilities: reliability curves by group, and temperature scaling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from fairmp.errors import InputError, check_integer
from fairmp.metrics.counts import Array, as_array, integers, wilson

MIN_CALIBRATION_NODES = 100  # labelled nodes of a group that is calibrated separately
MIN_CLASS_NODES = 10  # and of each class among them
MAX_LOGIT_RANGE = 30.0  # a smaller probability was rounded to 0
PRIOR_OBSERVATIONS = 1.0  # weight of the prior temperature 1 and bias 0, for few labels


@dataclass(frozen=True)
class ReliabilityCurve:
    """Predicted and observed frequency of a class in one group, by bin of probability.

    Example:
        >>> prob, y = [0.1, 0.2, 0.3, 0.8, 0.9], [0, 0, 1, 1, 1]
        >>> [curve] = reliability_curve(prob, y, [0, 0, 0, 0, 0], bins=2)
        >>> for predicted, observed in zip(curve.predicted, curve.observed):
        ...     print(f"predicted {predicted:.2f}, observed {observed:.2f}")
        predicted 0.20, observed 0.33
        predicted 0.85, observed 1.00
        >>> round(curve.error, 3)
        0.14
    """

    group: str
    predicted: tuple[float, ...]  # mean probability in each bin that has nodes
    observed: tuple[float, ...]  # share of the class among these nodes
    low: tuple[float, ...]  # 95 % interval of the share
    high: tuple[float, ...]
    counts: tuple[int, ...]  # labelled nodes in each bin

    @property
    def error(self) -> float:
        """Expected calibration error: the mean of ``|predicted − observed|`` over the nodes."""
        distance = np.abs(np.subtract(self.predicted, self.observed))
        return float(np.average(distance, weights=self.counts))


def reliability_curve(
    prob: Array,
    y: Array,
    sens: Array,
    bins: int = 10,
    *,
    positive: int = 1,
    group_names: Sequence[str] | None = None,
) -> list[ReliabilityCurve]:
    """Compare predicted probabilities with observed frequencies, in each group.

    Nodes without a label or group are left out, and so are groups without labelled nodes.

    Args:
        prob: n probabilities of the class, or n×C probabilities of all classes.
        y: labels, −1 for unknown.
        sens: groups, −1 for unknown.
        bins: number of bins of equal width.
        positive: the class.
        group_names: names of the groups.

    Example:
        >>> curve, = reliability_curve([0.1, 0.2, 0.8, 0.9], [0, 1, 1, 1], [0, 0, 0, 0], bins=2)
        >>> curve.observed, curve.counts
        ((0.5, 1.0), (2, 2))
    """
    check_integer("bins", bins, "give a number of bins")
    values = as_array(prob, "prob").astype(float)
    if values.ndim == 2 and 0 <= positive < values.shape[1]:
        values = values[:, positive]
    label = integers(y, "y", len(values))
    group = integers(sens, "sens", len(values))
    if values.ndim != 1 or not ((values >= 0) & (values <= 1)).all():
        raise InputError("prob", "not one probability per node", "give numbers in [0, 1]")
    curves = []
    for g in np.unique(group[(group >= 0) & (label >= 0)]).tolist():
        labelled = (group == g) & (label >= 0)
        name = str(g) if group_names is None else str(group_names[g])
        curves.append(_curve(name, values[labelled], label[labelled] == positive, bins))
    return curves


def calibration_error(
    prob: np.ndarray, is_class: np.ndarray, weight: np.ndarray, bins: int = 10
) -> float:
    """Expected calibration error: mean distance of probability and frequency over equal bins."""
    if not weight.sum():
        return math.nan
    place = np.searchsorted(np.linspace(0, 1, bins + 1)[1:-1], prob)
    excess = np.bincount(place, weight * (prob - is_class), bins)
    return float(np.abs(excess).sum() / weight.sum())


def _curve(group: str, prob: np.ndarray, is_class: np.ndarray, bins: int) -> ReliabilityCurve:
    place = np.searchsorted(np.linspace(0, 1, bins + 1)[1:-1], prob)
    counts = np.bincount(place, minlength=bins)
    filled = counts > 0
    counts = counts[filled]
    predicted = np.bincount(place, prob, bins)[filled] / counts
    observed = np.bincount(place, is_class.astype(float), bins)[filled] / counts
    low, high = wilson(observed, counts)
    return ReliabilityCurve(
        group=group,
        predicted=tuple(predicted.tolist()),
        observed=tuple(observed.tolist()),
        low=tuple(low.tolist()),
        high=tuple(high.tolist()),
        counts=tuple(counts.tolist()),
    )


class Calibration(NamedTuple):
    """Temperature and bias per class of calibrated logits; see :func:`calibrate`."""

    temperature: float
    bias: np.ndarray


def calibrate(
    logits: np.ndarray,
    y: np.ndarray,
    *,
    reach: np.ndarray | float = 1.0,
    bias_only: bool = False,
) -> Calibration:
    r"""Temperature τ and bias b per class that make :math:`\mathrm{softmax}(Z/τ + b)` calibrated.

    Maximum likelihood, a convex problem in 1/τ and b; τ stays 1 with ``bias_only``. ``reach`` (n×1)
    is what a bias of 1 adds to each row, 1 by default.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> margin = 2 * rng.normal(size=20_000)
        >>> y = (rng.random(20_000) < 1 / (1 + np.exp(-margin))).astype(int)
        >>> overconfident = np.stack([0 * margin, 3 * margin], axis=1)
        >>> print(f"{calibrate(overconfident, y).temperature:.1f}")
        3.0
    """
    n, classes = logits.shape
    z = logits - logits.mean(1, keepdims=True)
    scale = max(float(np.sqrt((z**2).mean())), 1e-12)
    z = z / scale
    one_hot = np.eye(classes)[y]
    start = np.append(scale, np.zeros(classes))
    unit = np.append(scale, np.ones(classes))

    def loss(theta: np.ndarray) -> tuple[float, np.ndarray]:
        scores = theta[0] * z + reach * theta[1:]
        logs = log_softmax(scores, axis=1)
        error = np.exp(logs) - one_hot
        prior = (theta - start) / unit
        value = -np.einsum("ij,ij->", one_hot, logs)
        value += PRIOR_OBSERVATIONS / 2 * float(prior @ prior)
        slope = np.append((error * z).sum(), (error * reach).sum(0))
        return float(value) / n, (slope + PRIOR_OBSERVATIONS * prior / unit) / n

    least, most = (scale, scale) if bias_only else (1e-3 * scale, None)
    bounds = [(least, most), *[(None, None)] * classes]
    solution = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds).x
    bias = solution[1:] - solution[1:].mean()
    return Calibration(float(scale / solution[0]), bias)


def label_probabilities(
    logits: np.ndarray, y: np.ndarray, group: np.ndarray | None = None
) -> np.ndarray:
    """Calibrated probabilities of labels (−1 unknown); a bias per group if labels suffice.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> margin = 2 * rng.normal(size=20_000)
        >>> y = (rng.random(20_000) < 1 / (1 + np.exp(-margin))).astype(int)
        >>> logits = np.stack([0 * margin, 3 * margin], axis=1)
        >>> for p in (softmax(logits, axis=1), label_probabilities(logits, y)):
        ...     print(f"calibration error {calibration_error(p[:, 1], y, np.ones(len(y))):.2f}")
        calibration error 0.13
        calibration error 0.00
    """
    known_label = y >= 0
    # A probability that was rounded to 0 counts as half of the smallest other one.
    z = logits - logits.max(1, keepdims=True)
    z = np.maximum(z, z[z > -MAX_LOGIT_RANGE].min() - np.log(2))
    temperature, bias = calibrate(z[known_label], y[known_label])
    z = z / temperature + bias
    for g in [] if group is None else np.unique(group[group >= 0]):
        labelled = known_label & (group == g)
        by_class = np.bincount(y[labelled], minlength=z.shape[1])
        if labelled.sum() >= MIN_CALIBRATION_NODES and by_class.min() >= MIN_CLASS_NODES:
            z[group == g] += calibrate(z[labelled], y[labelled], bias_only=True).bias
    return np.asarray(softmax(z, axis=1))

"""Calibration of predicted probabilities on labelled nodes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
PRIOR_OBSERVATIONS = 1.0  # weight of the prior temperature 1 and bias 0, for few labels


@dataclass(frozen=True)
class Calibration:
    r"""Temperature and bias per class: :math:`\mathrm{softmax}(Z/τ + b)`.

    Attributes:
        temperature: τ; above 1 for overconfident predictions.
        bias: b (C), sums to 0.
    """

    temperature: float
    bias: Array

    def __call__(self, logits: Array) -> Array:
        """Calibrated logits (n×C)."""
        return logits / self.temperature + self.bias


def calibrate(logits: Array, labels: NDArray[np.int64], *, bias_only: bool = False) -> Calibration:
    """Fit a temperature and a bias per class by maximum likelihood, a convex problem in 1/τ and b.

    Args:
        logits: n×C.
        labels: true classes (n); unlabelled nodes must be left out.
        bias_only: keep the temperature at 1.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> z = rng.normal(size=(4000, 2))
        >>> y = (rng.random(4000) < 1 / (1 + np.exp(z[:, 0] - z[:, 1]))).astype(int)
        >>> fit = calibrate(3 * z, y)  # logits three times too large
        >>> abs(fit.temperature - 3) < 0.4, bool(abs(fit.bias).max() < 0.1)
        (True, True)
    """
    from scipy.optimize import minimize
    from scipy.special import log_softmax, softmax

    n, classes = logits.shape
    z = logits - logits.mean(1, keepdims=True)
    scale = max(float(np.sqrt((z**2).mean())), 1e-12)
    z = z / scale
    one = np.eye(classes)[labels]

    start = np.append(scale, np.zeros(classes))
    unit = np.append(scale, np.ones(classes))

    def loss(theta: Array) -> tuple[float, Array]:
        scores = theta[0] * z + theta[1:]
        error = softmax(scores, axis=1) - one
        prior = (theta - start) / unit
        value = -(one * log_softmax(scores, axis=1)).sum()
        value += PRIOR_OBSERVATIONS / 2 * float(prior @ prior)
        slope = np.append((error * z).sum(), error.sum(0))
        return float(value) / n, (slope + PRIOR_OBSERVATIONS * prior / unit) / n

    least, most = (scale, scale) if bias_only else (1e-3 * scale, None)
    bounds = [(least, most), *[(None, None)] * classes]
    found = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds)
    bias = found.x[1:] - found.x[1:].mean()
    return Calibration(float(scale / found.x[0]), bias)

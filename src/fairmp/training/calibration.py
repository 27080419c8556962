r"""Calibration: one temperature and a bias per class, fitted on validation labels.

The correction moves to the *closest* fair predictions, which means something only if the
predictions are probabilities. The logits X of the transform become :math:`aX + 1b^\top`, and since
plain propagation is linear, what is propagated becomes :math:`aZ + c b^\top` with Z and c the
propagated X and 1. Fitting a and b to labels is a multinomial logistic regression.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from fairmp.graph import Adjacency
from fairmp.nn.fmp import PPR

SLOPES = (0.01, 100.0)  # of the logits, so that separable labels have a solution
PRIOR = 1.0  # inverse variance of slope and biases around 1 and 0; a class may have no label


def plainly_propagated(
    logits: Tensor, propagation: nn.Module | None, adjacency: Adjacency
) -> tuple[Tensor, Tensor]:
    """Propagate logits and a column of ones without a correction."""
    rows = torch.cat([logits, torch.ones_like(logits[:, :1])], 1)
    if isinstance(propagation, PPR):
        rows = PPR.forward(propagation, rows, adjacency)
    return rows[:, :-1], rows[:, -1:]


def fit_calibration(z: Tensor, c: Tensor, y: Tensor, *, prior: float = PRIOR) -> Tensor:
    r"""Return slope and biases (1+C) that minimise the cross-entropy of :math:`az_i + c_i b`.

    Args:
        z: logits (m×C).
        c: what a bias of 1 adds to each of them (m×1).
        y: classes (m).
        prior: weight of :math:`½(a-1)^2 + ½\|b\|^2` against the sum of the cross-entropies.

    Example:
        >>> z = torch.tensor([[0.0, 4.0]] * 4)
        >>> fit_calibration(z, torch.ones(4, 1), torch.tensor([0, 1, 1, 1]), prior=1e-6).shape
        torch.Size([3])
    """
    from scipy.optimize import minimize
    from scipy.special import log_softmax

    logits, ones, labels = (part.double().cpu().numpy() for part in (z, c, y))
    truth = np.eye(logits.shape[1])[labels.astype(int)]
    start = np.concatenate([[1.0], np.zeros(logits.shape[1])])

    def loss(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        log_p = log_softmax(parameters[0] * logits + ones * parameters[1:], axis=1)
        error, off = np.exp(log_p) - truth, parameters - start
        gradient = np.concatenate([[(error * logits).sum()], (error * ones).sum(0)])
        value = -(truth * log_p).sum() + prior / 2 * off @ off
        return float(value), gradient + prior * off

    bounds = [SLOPES] + [(None, None)] * logits.shape[1]
    found = minimize(loss, start, jac=True, bounds=bounds, method="L-BFGS-B", tol=1e-12)
    return torch.from_numpy(found.x).to(z)

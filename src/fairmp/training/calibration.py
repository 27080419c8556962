r"""Calibration: one temperature and a bias per class, fitted on validation labels.

The correction moves to the *closest* fair predictions, which means something only if the
predictions are probabilities. The logits X of the transform become :math:`aX + 1b^\top`, and since
plain propagation is linear, what is propagated becomes :math:`aZ + c b^\top` with Z and c the
propagated X and 1. Fitting a and b to labels is a multinomial logistic regression.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fairmp.graph import Adjacency
from fairmp.metrics.calibration import calibrate
from fairmp.nn.fmp import PPR


def plainly_propagated(
    logits: Tensor, propagation: nn.Module | None, adjacency: Adjacency
) -> tuple[Tensor, Tensor]:
    """Propagate logits and a column of ones without a correction."""
    rows = torch.cat([logits, torch.ones_like(logits[:, :1])], 1)
    if isinstance(propagation, PPR):
        rows = PPR.forward(propagation, rows, adjacency)
    return rows[:, :-1], rows[:, -1:]


def fit_calibration(z: Tensor, c: Tensor, y: Tensor) -> Tensor:
    """Return slope a and biases b (1+C) that calibrate :math:`az_i + c_i b` (m×C)."""
    logits, reach = (part.double().cpu().numpy() for part in (z, c))
    temperature, bias = calibrate(logits, y.cpu().numpy(), reach=reach)
    return torch.cat([torch.tensor([1 / temperature]), torch.from_numpy(bias)]).to(z)

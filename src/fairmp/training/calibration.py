r"""Calibration after training: one temperature and a bias per class.

A correction moves to the *closest* fair predictions, which means something only if the predictions
are probabilities. The logits X of the transform become :math:`aX + 1b^\top`, and since plain
propagation is linear, what is propagated becomes :math:`aZ + c b^\top` with Z and c the propagated
X and 1. Fitting a and b to labels is a multinomial logistic regression.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fairmp.graph import Adjacency
from fairmp.metrics.calibration import calibrate
from fairmp.nn.fmp import PPR
from fairmp.nn.models import Network
from fairmp.training.nodes import TrainingNodes


@dataclass(frozen=True)
class PlainPropagation:
    """Logits, and a column of ones, propagated without a correction."""

    logits: Tensor  # n×C
    ones: Tensor  # n×1

    def rows(self, nodes: Tensor) -> PlainPropagation:
        """The rows of some nodes."""
        return PlainPropagation(self.logits[nodes], self.ones[nodes])

    def calibrated(self, calibration: Tensor) -> Tensor:
        """What calibrated logits would become, for a slope and biases (1+C)."""
        return calibration[0] * self.logits + self.ones * calibration[1:]


@dataclass(frozen=True)
class HeldOut:
    """Labelled nodes, and the uncorrected predictions of models not fitted on them.

    These are the validation nodes or, out of fold, all labelled nodes outside the test set.
    """

    nodes: Tensor  # a mask (n)
    plain: PlainPropagation  # one row per node in the mask
    cross_fitted: bool = False

    def calibrated(self, calibration: Tensor | None) -> Tensor:
        """The logits, calibrated if there is a calibration."""
        return self.plain.logits if calibration is None else self.plain.calibrated(calibration)


def propagate_uncorrected(
    logits: Tensor, propagation: nn.Module | None, adjacency: Adjacency
) -> PlainPropagation:
    """Propagate logits and a column of ones without a correction."""
    columns = torch.cat([logits, torch.ones_like(logits[:, :1])], 1)
    if isinstance(propagation, PPR):
        columns = PPR.forward(propagation, columns, adjacency)
    return PlainPropagation(columns[:, :-1], columns[:, -1:])


def fit_calibration(plain: PlainPropagation, y: Tensor) -> Tensor:
    """Return slope a and biases b (1+C) that calibrate :math:`az_i + c_i b` (m×C)."""
    logits, ones = (part.double().cpu().numpy() for part in (plain.logits, plain.ones))
    temperature, bias = calibrate(logits, y.cpu().numpy(), reach=ones)
    return torch.cat([torch.tensor([1 / temperature]), torch.from_numpy(bias)]).to(plain.logits)


def validation_nodes(network: Network, nodes: TrainingNodes, logits: Tensor) -> HeldOut:
    """Predictions for the validation nodes, by a network fitted on the training nodes."""
    plain = propagate_uncorrected(logits, network.propagation, nodes.graph.adjacency(logits.dtype))
    return HeldOut(nodes.data.val_mask, plain.rows(nodes.data.val_mask))


def calibrate_network(network: Network, nodes: TrainingNodes, held_out: HeldOut) -> None:
    """Calibrate a network on the labels of held-out nodes."""

    def fit(logits: Tensor, ones: Tensor, y: Tensor) -> Tensor:
        return fit_calibration(PlainPropagation(logits, ones), y)

    plain, y = held_out.plain, nodes.data.y[held_out.nodes]
    calibration = nodes.reducer.on_rank_zero(fit, plain.logits, plain.ones, y)
    network.calibration = calibration.to(plain.logits)

"""The theory's prediction of one averaging step, from a graph's own moments."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from fairmp.analysis.audits.result import Forecast
from fairmp.analysis.theory import bias_enhancement, predicted_change
from fairmp.analysis.theory.measurement import (
    Features,
    Halves,
    block_counts,
    graph_parameters,
    held_out_scores,
    measured_moments,
)
from fairmp.errors import InputError


def forecast(x: Features, edge_index: Tensor, folds: Sequence[Halves]) -> Forecast:
    """Predict one step of averaging from held-out scores that separate the groups.

    Averaging is linear, so it acts on the scores as it acts on the features.
    """
    groups = folds[0].group
    if int(groups.max()) < 1 or not x.shape[1]:
        return Forecast(None, None, missing="too few nodes or varying features for a prediction")
    graph = Data(edge_index=edge_index, sens=torch.from_numpy(groups))
    try:
        by_half = [
            _forecast(graph, torch.from_numpy(half.scores), torch.from_numpy(half.group))
            for fold in folds
            for half in held_out_scores(x, fold, with_first=True)
        ]
    except InputError as error:
        return Forecast(None, None, missing=f"no prediction: {error}")
    names = ("before", "after", "m", "printed", "corrected")
    means = {name: _mean([getattr(half, name) for half in by_half]) for name in names}
    return Forecast(**means, missing=by_half[0].missing if means["corrected"] is None else "")


def _forecast(graph: Data, scores: Tensor, groups: Tensor) -> Forecast:
    """Prediction from the scores of one half of the nodes."""
    # The ridge only matters for constant scores.
    moments = measured_moments(scores, groups, ridge=1e-9)
    means, covariances = moments.means, moments.covariances
    change = predicted_change(*block_counts(graph), means=means, covariances=covariances)
    before, after = change.before.parity, change.after.parity
    if len(means) > 2:
        return Forecast(before, after, missing="the condition is stated for two groups")
    delta, covariance = means[1] - means[0], np.tensordot(moments.shares, covariances, 1)
    m = delta @ np.linalg.solve(covariance, delta)
    try:
        n, rho, eps, c = graph_parameters(graph)
        condition = partial(bias_enhancement, n, rho, eps, c, means=means, covariance=covariance)
        printed, corrected = condition(form="printed"), condition(form="corrected")
    except InputError:
        reason = "the graph is too dense or the groups too similar for the condition"
        return Forecast(before, after, m, missing=reason)
    return Forecast(before, after, m, printed, corrected)


def _mean(values: Sequence[float | None]) -> float | None:
    measured = [value for value in values if value is not None]
    return float(np.mean(measured)) if measured else None

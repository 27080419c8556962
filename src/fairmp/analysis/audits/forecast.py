"""What the theory says one step of averaging does to such groups on such a graph."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch_geometric.data import Data

from fairmp.analysis.audits.steps import Deals, scores
from fairmp.analysis.theory import (
    bias_enhancement,
    block_counts,
    graph_parameters,
    group_moments,
    predicted_block_change,
)
from fairmp.errors import InputError


@dataclass(frozen=True)
class Forecast:
    """Predicted from group sizes, edge probabilities and the features' moments alone.

    Attributes:
        before: share told apart by the features as they are, taking them for normal.
        after: the same after one step of averaging (row normalisation).
        m: δᵀΣ⁻¹δ, the squared distance of the groups' means relative to the spread; two groups.
        printed: Theorem 2's condition as printed; above 1 it says that bias is added. Two groups.
        corrected: the same, corrected for the randomness of the neighbours' groups.
        missing: why something is None, in a sentence; empty where nothing is.
    """

    before: float | None
    after: float | None
    m: float | None = None
    printed: float | None = None
    corrected: float | None = None
    missing: str = ""


def forecast(x: np.ndarray, data: Data, deals: Deals) -> Forecast:
    """Predict one step of averaging.

    Features are brought to the directions in which the groups differ, learned on one half of the
    nodes and read on the other, for every deal into halves; the results are averaged.

    Example:
        >>> from fairmp.analysis.audits.steps import halves
        >>> from fairmp.analysis.theory.block_model import block_graph
        >>> data = block_graph(2000, 0.01, 0.9, 0.5, seed=0)
        >>> found = forecast(data.x.numpy(), data, [halves(data.sens, 0)])
        >>> found.after > found.before, found.corrected > 1, abs(found.m - 2) < 0.3
        (True, True, True)
    """
    groups = deals[0][0]
    if int(groups.max()) < 1 or not x.shape[1]:
        return Forecast(None, None, missing="too few nodes or features that vary to predict from")
    graph = Data(edge_index=data.edge_index, sens=torch.from_numpy(groups))
    try:
        blocks = block_counts(graph)
        rows = []
        for large, half in deals:
            for part in scores(x, large, half):
                rows.append(_one(part.values, part.groups, graph, blocks))
    except InputError as error:
        return Forecast(None, None, missing=f"no prediction: {error}")
    before, after, m = (float(v) for v in np.mean([row[:3] for row in rows], axis=0))
    if len(blocks[0]) > 2:
        return Forecast(before, after, missing="its condition is stated for two groups")
    conditions = [row[3] for row in rows if row[3]]
    if not conditions:
        reason = "the graph is too dense or the groups too alike for its condition"
        return Forecast(before, after, m, missing=reason)
    printed, corrected = (float(v) for v in np.mean(conditions, axis=0))
    return Forecast(before, after, m, printed, corrected)


def _one(
    values: np.ndarray, groups: np.ndarray, graph: Data, blocks: tuple[np.ndarray, np.ndarray]
) -> tuple[float, float, float, tuple[float, float] | None]:
    # A ridge that only matters where a score has no spread at all.
    moments, weights = group_moments(
        torch.from_numpy(values).double(), torch.from_numpy(groups), ridge=1e-9
    )
    change = predicted_block_change(*blocks, means=moments.means, covariances=moments.covariances)
    before, after = float(change.before.parity), float(change.after.parity)
    if len(weights) > 2:
        return before, after, 0.0, None
    covariance = np.tensordot(weights, moments.covariances, 1)
    delta = moments.means[1] - moments.means[0]
    m = float(delta @ np.linalg.solve(covariance, delta))
    try:
        place = graph_parameters(graph)
        printed, corrected = (
            float(bias_enhancement(*place, form=form, means=moments.means, covariance=covariance))
            for form in ("printed", "corrected")
        )
    except InputError:
        return before, after, m, None
    return before, after, m, (printed, corrected)

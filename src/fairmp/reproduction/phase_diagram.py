"""Where real graphs lie on the phase diagram, and whether theory says what averaging does there."""

from __future__ import annotations

from dataclasses import dataclass

from torch_geometric.data import Data

from fairmp.analysis.theory.measurement import (
    block_counts,
    graph_parameters,
    group_moments,
    measured_change,
)
from fairmp.analysis.theory.prediction import predicted_block_change


@dataclass(frozen=True)
class Place:
    """A real graph in the (n, ρ, ε, c) model, and one step of averaging on it.

    ``parity`` and ``information`` are changes (after − before), of the graph's own features with
    every column standardised; ``predicted`` ones take the features for normal and the graph for a
    block model, with the graph's own moments and edge probabilities.
    """

    name: str
    n: int
    average_degree: float
    eps: float
    c: float
    balanced_eps: float
    parity_measured: float
    parity_predicted: float
    information_measured: float
    information_predicted: float


def place(data: Data, *, ridge: float = 1e-2) -> Place:
    """Place a graph of two groups, by its nodes of known group.

    Args:
        data: a graph with ``x``, ``edge_index`` and ``sens``.
        ridge: see ``group_moments``; real columns are often constant in a group.

    Example:
        >>> from fairmp.analysis.theory.block_model import block_graph
        >>> spot = place(block_graph(2000, 0.01, 0.9, 0.5, seed=0))
        >>> spot.name, spot.parity_measured > 0, spot.parity_predicted > 0
        ('block model', True, True)
    """
    deviation = data.x.std(0)
    varied = deviation > 0
    x = (data.x[:, varied] - data.x[:, varied].mean(0)) / deviation[varied]
    graph = Data(x=x, edge_index=data.edge_index, sens=data.sens)
    parameters = graph_parameters(graph)
    moments, _ = group_moments(x, data.sens, ridge=ridge)
    measured = measured_change(graph, ridge=ridge)
    predicted = predicted_block_change(
        *block_counts(graph), means=moments.means, covariances=moments.covariances
    )
    return Place(
        str(data.name),
        parameters.n,
        parameters.average_degree,
        parameters.eps,
        parameters.c,
        parameters.balanced_eps,
        float(measured.parity),
        float(predicted.parity),
        float(measured.information),
        float(predicted.information),
    )

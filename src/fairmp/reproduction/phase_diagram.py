"""Places of real graphs on the phase diagram, and what theory predicts for them."""

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
    """Parameters of a real graph in the (n, ρ, ε, c) model, and the effect of one step on it.

    ``parity`` and ``information`` are changes (after − before) for the graph's own features,
    standardised. Predictions assume normal features and a block model with the graph's own moments
    and edge probabilities.
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
    """Place a graph of two groups on the phase diagram, by its nodes of known group.

    ``ridge`` is added to the covariances: real columns are often constant within a group.

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

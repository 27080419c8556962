"""Theory of topology bias: bounds, conditions, predictions, measurements, denoising.

The statements and their derivations are in ``docs/theory.md``.
"""

from fairmp.analysis.theory.bounds import (
    Estimate,
    gaussian_kl,
    mutual_information,
    mutual_information_bound,
)
from fairmp.analysis.theory.conditions import (
    ConnectionProbabilities,
    Neighbourhood,
    bias_enhancement,
    blocks,
    connection_probabilities,
    neighbourhood,
)
from fairmp.analysis.theory.denoising import (
    Objective,
    attention_objective,
    fair_objective,
    fairness_coupling,
    ppnp_objective,
    ppnp_solution,
    smoothness,
)
from fairmp.analysis.theory.measurement import (
    GraphParameters,
    aggregate,
    block_counts,
    graph_parameters,
    group_moments,
    measured_bias,
    measured_change,
)
from fairmp.analysis.theory.moments import Moments, predicted_moments
from fairmp.analysis.theory.prediction import (
    Bias,
    Change,
    bias_of,
    predicted_block_change,
    predicted_change,
)

__all__ = [
    "Bias",
    "Change",
    "ConnectionProbabilities",
    "Estimate",
    "GraphParameters",
    "Moments",
    "Neighbourhood",
    "Objective",
    "aggregate",
    "attention_objective",
    "bias_enhancement",
    "bias_of",
    "block_counts",
    "blocks",
    "connection_probabilities",
    "fair_objective",
    "fairness_coupling",
    "gaussian_kl",
    "graph_parameters",
    "group_moments",
    "measured_bias",
    "measured_change",
    "mutual_information",
    "mutual_information_bound",
    "neighbourhood",
    "ppnp_objective",
    "ppnp_solution",
    "predicted_block_change",
    "predicted_change",
    "predicted_moments",
    "smoothness",
]

"""Theory of topology bias: bounds, conditions, predictions, measurements.

The statements and their derivations are in ``docs/theory.md``.
"""

from fairmp.analysis.theory.bounds import Estimate as Estimate
from fairmp.analysis.theory.bounds import Moments as Moments
from fairmp.analysis.theory.bounds import gaussian_kl as gaussian_kl
from fairmp.analysis.theory.bounds import mutual_information as mutual_information
from fairmp.analysis.theory.bounds import mutual_information_bound as mutual_information_bound
from fairmp.analysis.theory.conditions import ConnectionProbabilities as ConnectionProbabilities
from fairmp.analysis.theory.conditions import Neighbourhood as Neighbourhood
from fairmp.analysis.theory.conditions import bias_enhancement as bias_enhancement
from fairmp.analysis.theory.conditions import blocks as blocks
from fairmp.analysis.theory.conditions import connection_probabilities as connection_probabilities
from fairmp.analysis.theory.conditions import neighbourhood as neighbourhood
from fairmp.analysis.theory.measurement import GraphParameters as GraphParameters
from fairmp.analysis.theory.measurement import aggregate as aggregate
from fairmp.analysis.theory.measurement import block_counts as block_counts
from fairmp.analysis.theory.measurement import graph_parameters as graph_parameters
from fairmp.analysis.theory.measurement import group_moments as group_moments
from fairmp.analysis.theory.measurement import measured_bias as measured_bias
from fairmp.analysis.theory.measurement import measured_change as measured_change
from fairmp.analysis.theory.prediction import Bias as Bias
from fairmp.analysis.theory.prediction import Change as Change
from fairmp.analysis.theory.prediction import bias_of as bias_of
from fairmp.analysis.theory.prediction import predicted_block_change as predicted_block_change
from fairmp.analysis.theory.prediction import predicted_change as predicted_change
from fairmp.analysis.theory.prediction import predicted_moments as predicted_moments

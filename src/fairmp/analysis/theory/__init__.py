"""Theory of topology bias: bounds, conditions, predictions.

The statements and their derivations are in ``docs/theory.md``.
"""

from fairmp.analysis.theory.bounds import GroupMoments as GroupMoments
from fairmp.analysis.theory.bounds import MonteCarloEstimate as MonteCarloEstimate
from fairmp.analysis.theory.bounds import gaussian_kl as gaussian_kl
from fairmp.analysis.theory.bounds import group_moments as group_moments
from fairmp.analysis.theory.bounds import mutual_information as mutual_information
from fairmp.analysis.theory.bounds import mutual_information_bound as mutual_information_bound
from fairmp.analysis.theory.conditions import Blocks as Blocks
from fairmp.analysis.theory.conditions import bias_enhancement as bias_enhancement
from fairmp.analysis.theory.conditions import blocks as blocks
from fairmp.analysis.theory.conditions import connection_probabilities as connection_probabilities
from fairmp.analysis.theory.prediction import Bias as Bias
from fairmp.analysis.theory.prediction import BiasChange as BiasChange
from fairmp.analysis.theory.prediction import bias_of as bias_of
from fairmp.analysis.theory.prediction import predicted_change as predicted_change
from fairmp.analysis.theory.prediction import predicted_moments as predicted_moments

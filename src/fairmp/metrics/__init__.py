"""Accuracy and fairness metrics, with bootstrap intervals."""

from fairmp.metrics.calibration import ReliabilityCurve as ReliabilityCurve
from fairmp.metrics.calibration import reliability_curve as reliability_curve
from fairmp.metrics.clusters import graph_clusters as graph_clusters
from fairmp.metrics.counts import Array as Array
from fairmp.metrics.counts import Interval as Interval
from fairmp.metrics.counts import mean_interval as mean_interval
from fairmp.metrics.direction import Lead as Lead
from fairmp.metrics.evaluation import METRICS as METRICS
from fairmp.metrics.evaluation import Evaluation as Evaluation
from fairmp.metrics.evaluation import GroupRow as GroupRow
from fairmp.metrics.evaluation import evaluate as evaluate
from fairmp.metrics.functions import accuracy as accuracy
from fairmp.metrics.functions import demographic_parity as demographic_parity
from fairmp.metrics.functions import equal_opportunity as equal_opportunity
from fairmp.metrics.functions import equalized_odds as equalized_odds
from fairmp.metrics.functions import false_positive_rate_parity as false_positive_rate_parity
from fairmp.metrics.functions import impact_ratio as impact_ratio
from fairmp.metrics.functions import predictive_parity as predictive_parity

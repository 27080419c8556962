"""Accuracy and fairness metrics, with bootstrap intervals."""

from fairmp.metrics.calibration import ReliabilityCurve, reliability_curve
from fairmp.metrics.evaluation import (
    METRICS,
    Evaluation,
    GroupRow,
    Interval,
    accuracy,
    demographic_parity,
    equal_opportunity,
    equalized_odds,
    evaluate,
    mean_interval,
)
from fairmp.metrics.kinds import Array

__all__ = [
    "METRICS",
    "Array",
    "Evaluation",
    "GroupRow",
    "Interval",
    "ReliabilityCurve",
    "accuracy",
    "demographic_parity",
    "equal_opportunity",
    "equalized_odds",
    "evaluate",
    "mean_interval",
    "reliability_curve",
]

"""Audit of a graph: the effect of its topology on its groups, before anything is trained."""

from fairmp.analysis.audits.measure import audit
from fairmp.analysis.audits.result import Audit, FeatureBias, Forecast, Group, Homophily, Leak

__all__ = ["Audit", "FeatureBias", "Forecast", "Group", "Homophily", "Leak", "audit"]

"""What a graph's topology does to its groups.

The package is called ``audits`` so that ``fairmp.audit`` can be the function: importing a module
sets an attribute of its name on the package above it, and would put itself in the function's place.
"""

from fairmp.analysis.audits.counts import Group
from fairmp.analysis.audits.findings import Audit, audit
from fairmp.analysis.audits.forecast import Forecast
from fairmp.analysis.audits.steps import Reading

__all__ = ["Audit", "Forecast", "Group", "Reading", "audit"]

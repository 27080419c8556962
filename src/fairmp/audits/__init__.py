"""What a graph's topology does to its groups.

The package is called ``audits`` so that ``fairmp.audit`` can be the function: importing a module
sets an attribute of its name on the package above it, and would put itself in the function's place.
"""

from fairmp.audits.counts import Group
from fairmp.audits.findings import Audit, audit
from fairmp.audits.forecast import Forecast
from fairmp.audits.steps import Reading

__all__ = ["Audit", "Forecast", "Group", "Reading", "audit"]

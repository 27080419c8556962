"""Fair predictions on graphs: measure topology bias, and propagate without it.

Names are loaded when they are first used, so that ``import fairmp`` and ``fairmp --help`` do not
wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fairmp._version import __version__

if TYPE_CHECKING:
    from fairmp.audits import Audit, audit
    from fairmp.errors import InputError
    from fairmp.estimator import FairClassifier, Run
    from fairmp.mending.mended import Mended
    from fairmp.posthoc import debias, mend
    from fairmp.propagation import FMP, PPR

__all__ = [
    "FMP",
    "PPR",
    "Audit",
    "FairClassifier",
    "InputError",
    "Mended",
    "Run",
    "__version__",
    "audit",
    "debias",
    "mend",
]

_HOME = {
    "Audit": "fairmp.audits",
    "FMP": "fairmp.propagation",
    "PPR": "fairmp.propagation",
    "FairClassifier": "fairmp.estimator",
    "InputError": "fairmp.errors",
    "Mended": "fairmp.mending.mended",
    "Run": "fairmp.estimator",
    "debias": "fairmp.posthoc",
    "mend": "fairmp.posthoc",
    "audit": "fairmp.audits",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'fairmp' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)

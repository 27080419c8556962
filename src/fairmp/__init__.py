"""Fair predictions on graphs: measure topology bias, and propagate without it.

Names are loaded when they are first used, so that ``import fairmp`` and ``fairmp --help`` do not
wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fairmp._version import __version__

if TYPE_CHECKING:
    from fairmp.analysis.audits import Audit, audit
    from fairmp.errors import InputError
    from fairmp.nn.fmp import FMP, PPR
    from fairmp.postprocessing.api import debias, mend
    from fairmp.postprocessing.result import DebiasResult
    from fairmp.training.classifier import FairClassifier, Run

__all__ = [
    "FMP",
    "PPR",
    "Audit",
    "DebiasResult",
    "FairClassifier",
    "InputError",
    "Run",
    "__version__",
    "audit",
    "debias",
    "mend",
]

_HOME = {
    "Audit": "fairmp.analysis.audits",
    "FMP": "fairmp.nn.fmp",
    "PPR": "fairmp.nn.fmp",
    "FairClassifier": "fairmp.training.classifier",
    "InputError": "fairmp.errors",
    "DebiasResult": "fairmp.postprocessing.result",
    "Run": "fairmp.training.classifier",
    "debias": "fairmp.postprocessing.api",
    "mend": "fairmp.postprocessing.api",
    "audit": "fairmp.analysis.audits",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'fairmp' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)

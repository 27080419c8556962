"""Fair predictions on graphs: measure topology bias, and propagate without it.

Names are imported on first use, so that ``import fairmp`` and ``fairmp --help`` do not wait for
torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fairmp._version import __version__

if TYPE_CHECKING:
    from fairmp.analysis.audits import Audit, audit
    from fairmp.errors import InputError
    from fairmp.metrics import Evaluation, evaluate
    from fairmp.nn.fmp import FMP, PPR
    from fairmp.postprocessing.debiaser import Debiaser
    from fairmp.postprocessing.result import DebiasResult
    from fairmp.postprocessing.solver import debias
    from fairmp.training.classifier import FairClassifier, Run

__all__ = ["FMP", "PPR", "Audit", "DebiasResult", "Debiaser", "Evaluation", "FairClassifier"]
__all__ += ["InputError", "Run", "__version__", "audit", "debias", "evaluate"]

_HOME = {
    **dict.fromkeys(("Audit", "audit"), "fairmp.analysis.audits"),
    **dict.fromkeys(("FMP", "PPR"), "fairmp.nn.fmp"),
    **dict.fromkeys(("Evaluation", "evaluate"), "fairmp.metrics"),
    **dict.fromkeys(("FairClassifier", "Run"), "fairmp.training.classifier"),
    "Debiaser": "fairmp.postprocessing.debiaser",
    "DebiasResult": "fairmp.postprocessing.result",
    "InputError": "fairmp.errors",
    "debias": "fairmp.postprocessing.solver",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'fairmp' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)

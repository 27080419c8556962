r"""Why a person is decided as they are: log-odds, stage by stage.

The prediction of a node has three stages: its own data, without edges; its neighbours, through the
columns of the neighbourhood and the propagation; and the correction between groups. With the logit
:math:`\ell = \log(p / (1-p))` of a class after each stage,

.. math::
    \ell = \ell_{own} + (\ell_{neighbours} - \ell_{own}) + (\ell - \ell_{neighbours}) ,

so the three parts add up to the logit that decides, for every model.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from fairmp.display import Displayed
from fairmp.graph import Graph
from fairmp.nn.models import Network

MAX_LOGIT = 700.0  # of probabilities that are 0 or 1


@dataclass(frozen=True)
class Stages:
    """Logits of some nodes at each stage of their prediction (m×C)."""

    own: Tensor  # of their own data, without edges
    neighbours: Tensor  # with their edges
    corrected: Tensor


@dataclass(frozen=True)
class Explanation(Displayed, renderer="fairmp.report.explanations"):
    """The logit of a class in three parts, and the decision after each stage.

    Attributes:
        class_name: of two classes the second; of more the one that is decided.
        own: logit of the person's own data.
        neighbours: what the neighbours changed.
        correction: what the correction changed.
        decisions: by their own data, with their neighbours, and corrected.

    Example:
        >>> print(Explanation("hired", 0.9, -1.2, 0.5, ("hired", "not hired", "hired")))
        logit of 'hired', stage by stage
                         change  logit  probability   decision
        own data                 +0.90       71.1 %      hired
        with neighbours   −1.20  −0.30       42.6 %  not hired
        corrected         +0.50  +0.20       55.0 %      hired
    """

    class_name: str
    own: float
    neighbours: float
    correction: float
    decisions: tuple[str, str, str]

    @property
    def logit(self) -> float:
        """The logit of the class, and the sum of the parts."""
        return self.own + self.neighbours + self.correction

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {**asdict(self), "decisions": list(self.decisions), "logit": self.logit}


def explanations(stages: Stages, classes: Sequence[str]) -> list[Explanation]:
    """Explain the prediction of each node."""
    logits = [stages.own, stages.neighbours, stages.corrected]
    decisions = torch.stack([part.argmax(1) for part in logits], 1)
    shown = torch.ones_like(decisions[:, 0]) if len(classes) == 2 else decisions[:, -1]
    odds = torch.stack([log_odds(part, shown) for part in logits], 1)
    changes = odds.diff(dim=1)
    rows = zip(
        shown.tolist(), odds[:, 0].tolist(), changes.tolist(), decisions.tolist(), strict=True
    )
    return [
        Explanation(
            class_name=classes[code],
            own=own,
            neighbours=neighbours,
            correction=correction,
            decisions=(classes[first], classes[second], classes[last]),
        )
        for code, own, (neighbours, correction), (first, second, last) in rows
    ]


@torch.no_grad()
def own_logits(network: Network, x: Tensor, nodes: Tensor) -> Tensor:
    """Logits of some nodes (a mask), had they no edges: propagation leaves them as they are."""
    rows = x.index_select(0, nodes.nonzero()[:, 0])
    alone = Graph(torch.empty(2, 0, dtype=torch.long, device=x.device), len(rows))
    with warnings.catch_warnings():
        # That nothing is known of their neighbours, who are left out on purpose.
        warnings.simplefilter("ignore", UserWarning)
        return network.logits(rows, alone)


def log_odds(logits: Tensor, classes: Tensor) -> Tensor:
    """The logit of one class per row (m)."""
    logits = logits.double()
    chosen = torch.nn.functional.one_hot(classes, logits.size(1)).bool()
    others = logits.masked_fill(chosen, -torch.inf)
    return (logits[chosen] - others.logsumexp(1)).clamp(-MAX_LOGIT, MAX_LOGIT)

r"""What is found on validation labels after training: a calibration, and corrections on labels.

**Calibration**: one temperature and a bias per class. The correction moves to the *closest* fair
predictions, which means something only if the predictions are probabilities. The logits X of the
transform become :math:`aX + 1b^\top`, and since plain propagation is linear, what is propagated
becomes :math:`aZ + c b^\top` with Z and c the propagated X and 1. Fitting a and b to labels is a
multinomial logistic regression.

**Criteria on labels** are corrected after plain propagation, by a shift per group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from fairmp import groups
from fairmp.graph import Adjacency
from fairmp.metrics.calibration import calibrate
from fairmp.nn.fmp import PPR, Temperature
from fairmp.postprocessing.attributes import Attribute

if TYPE_CHECKING:
    from fairmp.postprocessing.debiaser import Debiaser

SOFT_TEMPERATURE = 0.1  # for decisions where groups are probabilities and have no thresholds
PARITY = "demographic_parity"  # the criterion that is held inside the propagation


def plainly_propagated(
    logits: Tensor, propagation: nn.Module | None, adjacency: Adjacency
) -> tuple[Tensor, Tensor]:
    """Propagate logits and a column of ones without a correction."""
    rows = torch.cat([logits, torch.ones_like(logits[:, :1])], 1)
    if isinstance(propagation, PPR):
        rows = PPR.forward(propagation, rows, adjacency)
    return rows[:, :-1], rows[:, -1:]


def fit_calibration(z: Tensor, c: Tensor, y: Tensor) -> Tensor:
    """Return slope a and biases b (1+C) that calibrate :math:`az_i + c_i b` (m×C)."""
    logits, reach = (part.double().cpu().numpy() for part in (z, c))
    temperature, bias = calibrate(logits, y.cpu().numpy(), reach=reach)
    return torch.cat([torch.tensor([1 / temperature]), torch.from_numpy(bias)]).to(z)


def fit_debiaser(
    logits: Tensor,
    sens: Tensor,
    y: Tensor,
    *,
    criterion: str,
    target: float,
    temperature: Temperature,
    group_names: Sequence[str],
    class_names: Sequence[str],
) -> Debiaser:
    """Find the shift of each group that holds a criterion on labelled nodes."""
    from fairmp.postprocessing.debiaser import Debiaser

    of_decisions = temperature == "decisions"
    correction = Debiaser(
        criterion,
        target,
        kind="logits",
        decisions=of_decisions and not groups.soft(sens),
        temperature=SOFT_TEMPERATURE if of_decisions else float(temperature),
        class_names=class_names,
    )
    attribute = _attribute(sens.cpu(), group_names)
    return correction.fit(logits.cpu(), y.cpu(), sensitive_features=attribute)


def debiased(debiaser: Debiaser, logits: Tensor, sens: Tensor, names: Sequence[str]) -> Tensor:
    """Apply the correction to each node of known group."""
    attribute = _attribute(sens.cpu(), names)
    fair: Tensor = debiaser.transform(logits.cpu(), sensitive_features=attribute)
    return fair.to(logits)


def _attribute(sens: Tensor, names: Sequence[str]) -> list[Attribute]:
    return [Attribute("group", tuple(names), sens)]

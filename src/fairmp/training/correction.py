"""Correction of criteria on labels, after plain propagation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fairmp import groups
from fairmp.nn.fmp import Temperature
from fairmp.postprocessing.attributes import Attribute

if TYPE_CHECKING:
    from fairmp.postprocessing.debiaser import Debiaser

SOFT_TEMPERATURE = 0.1  # for decisions where groups are probabilities and have no thresholds
PARITY = "demographic_parity"  # the criterion that is held inside the propagation


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
    certain = torch.zeros(len(sens), dtype=torch.bool)
    return [Attribute("group", tuple(names), sens, certain)]

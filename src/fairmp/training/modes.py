"""Whether nodes are predicted as a batch or one by one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast, get_args

import torch
from torch import Tensor

from fairmp import groups
from fairmp.errors import check_choice, plural
from fairmp.training.fitted import Mode

if TYPE_CHECKING:
    from fairmp.training.classifier import FairClassifier
    from fairmp.training.tables import NodesToPredict

ONE_POINT = 0.01


@dataclass(frozen=True)
class ModeChoice:
    """How nodes are predicted, and what to say about it."""

    mode: Mode
    note: str = ""  # why it was chosen
    warning: str = ""  # why it was a bad choice


def choose_mode(model: FairClassifier, nodes: NodesToPredict, asked: str) -> ModeChoice:
    """Choose the mode of a prediction: ``asked``, or with ``"auto"`` by the size of the groups.

    Closing the gap of a few people overturns near-certain decisions. So where one person of the
    smallest group is more than a point of the gap, and more than the target, each is corrected
    alone.
    """
    check_choice("mode", asked, ("auto", *get_args(Mode)))
    if model.debiaser_ is not None:
        return ModeChoice("per-node")
    sens = model.fitted_.align(nodes.graph, nodes.mask)[0].get("sens")
    mode = cast(Mode, "batch" if asked == "auto" else asked)
    if model.group_duals_ is None or not isinstance(sens, Tensor) or asked == "per-node":
        return ModeChoice(mode)
    smallest = _smallest_group(sens, nodes.mask, len(model.groups_))
    if smallest * max(ONE_POINT, model.gap_target or 0.0) >= 1:
        return ModeChoice(mode)
    reason = f"The smallest group has {plural(int(smallest), 'node')} here"
    if smallest >= 1:
        reason += f", so one decision is {100 / smallest:.1f} points of the gap"
    if asked == "batch":
        return ModeChoice(mode, warning=f"{reason}: near-certain decisions may be overturned")
    if not bool(model.group_duals_.any()):
        note = "each node was predicted alone (per node), without a correction: on held-out nodes"
        return ModeChoice("per-node", f"{reason}: {note} it was not needed or did not help.")
    return ModeChoice("per-node", f"{reason}: each node was corrected alone (per node).")


def _smallest_group(sens: Tensor, mask: Tensor | None, count: int) -> float:
    """Number of nodes of the smallest group among those that are predicted."""
    chosen = sens if mask is None else sens[mask.to(sens.device)]
    if groups.is_soft(chosen):
        return float(chosen.sum(0).min())
    return float(torch.bincount(chosen[chosen >= 0], minlength=count).min())

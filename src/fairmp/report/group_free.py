"""What a group-free model tells about groups, and what its estimates of them rest on."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from fairmp import groups
from fairmp.metrics.leakage import group_leakage
from fairmp.report.content import Section
from fairmp.report.formats import points

if TYPE_CHECKING:
    from torch import Tensor
    from torch_geometric.data import Data

    from fairmp.training.classifier import FairClassifier

MAX_COLUMNS = 8  # shown, of those that estimates rest on


def group_free_sections(model: FairClassifier, data: Data, test: Tensor) -> list[Section]:
    """Return the sections of a report that are about estimated groups; ``test`` is a mask."""
    return [_told(model, data, test), _basis(model, data, test)]


def _told(model: FairClassifier, data: Data, test: Tensor) -> Section:
    """Compare how well the group can be guessed, from the model and from its uncorrected scores."""
    sens = groups.certain_group(data.sens)[test].cpu().numpy()
    compared = {"uncorrected": model.uncorrected().cpu()[test], "this model": model.test_logits_}
    rows = []
    for name, logits in compared.items():
        told = group_leakage(logits.cpu().numpy(), sens, len(model.groups_))
        auc = "" if math.isnan(told.auc) else points(told.auc)
        rows.append([name, points(told.balanced_accuracy), auc])
    text = (
        "Nobody's group is needed to serve this model, and no estimate of one is written to its "
        "predictions. These figures say how well the group could be guessed from what it predicts: "
        f"guessing at random has {points(1 / len(model.groups_))} % balanced accuracy, and an AUC "
        "of 50."
    )
    header = ["predictions", "balanced accuracy from decisions, %", "AUC from scores"]
    title = "What the predictions tell about the group"
    return Section(title, [text], header=header, rows=rows)


def _basis(model: FairClassifier, data: Data, test: Tensor) -> Section:
    """Return the table of what the estimates of the groups rest on."""
    from fairmp.training.group_free import group_reliance

    reliance = group_reliance(model.fitted_, data, test)
    shown = [*reliance.parts, *reliance.columns[:MAX_COLUMNS]]
    rows = [[each.columns, points(each.auc), points(reliance.auc - each.auc)] for each in shown]
    stored = (
        "The model stores the known groups of the training nodes, since estimates for their "
        "neighbours read them."
        if model.neighbour_groups
        else "Neighbours' groups are not read, and none is stored."
    )
    text = (
        f"The group is estimated with an AUC of {points(reliance.auc)} on test nodes, before "
        "propagation. Each row shuffles columns between nodes: what makes the estimates worse is "
        f"what they rest on. {stored}"
    )
    title = "What the estimates of the group rest on"
    return Section(title, [text], header=["shuffled", "AUC", "lost"], rows=rows, appendix=True)

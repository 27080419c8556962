r"""Estimates of the groups, for predictions that read nobody's group.

The group of a node is estimated as its label is: candidates are cross-fitted, blended, propagated
and calibrated (:mod:`fairmp.training.auto`) on a copy of the nodes whose label is the group,

.. math::
    a_g = P(s = g \mid x, \text{neighbours, their known groups}).

All nodes of known group outside the test set are fitted on, labelled or not. The columns of the
neighbours' groups leave out the node's own (:mod:`fairmp.training.graph_features`), and its fold's
model was fitted without it: so a node's own group does not enter its estimate, which then means the
same as for a node of unknown group.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from fairmp import groups
from fairmp.errors import InputError, plural
from fairmp.nn.models import Network
from fairmp.training.auto import SelectionSettings, drawn_nodes, select
from fairmp.training.blend import Blend
from fairmp.training.calibration import calibrate_network
from fairmp.training.fitted import FittedModel
from fairmp.training.graph_features import FeatureView, column_names
from fairmp.training.nodes import Names, TrainingNodes, graph_of
from fairmp.training.run import Trial

MAX_SHUFFLED = 1000  # nodes on which it is measured what estimates rest on
MAX_COLUMNS = 20  # of which each is shuffled alone
MIN_NODES = 5  # of each group, to estimate it
MAX_FITTED = 20_000  # nodes that one model is fitted on
MAX_TREE_COLUMNS = 64  # that boosted trees read
CANDIDATES: tuple[tuple[str, FeatureView], ...] = (  # few: a prediction passes through all
    ("logistic", "features"),
    ("logistic", "neighbourhood"),
    ("trees", "neighbourhood"),
)
WITHOUT_GRAPH: tuple[tuple[str, FeatureView], ...] = (
    ("logistic", "features"),
    ("trees", "features"),
)


@dataclass(frozen=True)
class GroupEstimate:
    """A network whose classes are the groups, and what it says about the nodes it was fitted on."""

    network: Network  # propagates and calibrates
    logits: Tensor  # of all nodes, out of fold where the group was fitted on (n×G)
    blind: Tensor  # nodes whose own group did not enter their logits (a mask)
    trials: tuple[Trial, ...]


def estimate_groups(
    nodes: TrainingNodes,
    settings: SelectionSettings,
    *,
    neighbour_groups: bool = True,
    seed: int = 0,
    progress: bool | None = None,
) -> GroupEstimate:
    """Fit a network that estimates groups.

    Args:
        nodes: whose groups may be unknown (−1); those of test nodes are not read.
        settings: of the model of the labels; the candidates are few, and cross-fitted.
        neighbour_groups: read the known groups of neighbours. Without them the neighbours' features
            are left.
        seed: of folds and candidates.
        progress: show a bar; by default if standard error is a terminal.
    """
    group_nodes = _with_groups_as_labels(nodes)
    chosen = replace(
        settings,
        backbone="auto",
        calibrate=True,
        folds=max(settings.folds, 2),
        candidates=WITHOUT_GRAPH if settings.graph_features is False else CANDIDATES,
        min_members=1,
        neighbour_labels=neighbour_groups,
        max_columns=MAX_TREE_COLUMNS,
        max_fitted=MAX_FITTED,
        training=replace(settings.training, strategy=None),
    )
    selection = select(chosen, group_nodes, seed=seed, progress=progress)
    network, held_out, logits = selection.network, selection.held_out, selection.logits
    assert held_out is not None
    assert logits is not None
    with torch.no_grad():
        calibrate_network(network, group_nodes, held_out)
        propagated = network.propagate(network.calibrated(logits), nodes.graph, None).clone()
        propagated[held_out.nodes] = held_out.calibrated(network.calibration)
    blind = held_out.nodes | ~group_nodes.data.train_mask
    return GroupEstimate(network, propagated, blind, selection.trials)


def _with_groups_as_labels(nodes: TrainingNodes) -> TrainingNodes:
    """The nodes with their groups as labels, which are known outside the test set."""
    data, group_names = copy.copy(nodes.data), nodes.names.groups
    data.sens = data.y = sens = groups.certain_group(nodes.data.sens)
    data.train_mask = (sens >= 0) & ~nodes.data.test_mask
    data.val_mask = torch.zeros_like(data.train_mask)
    counts = torch.bincount(sens[data.train_mask], minlength=len(group_names)).tolist()
    if min(counts) < MIN_NODES:
        value = f"{plural(min(counts), 'node')} of group {group_names[counts.index(min(counts))]!r}"
        hint = f"give at least {MIN_NODES} outside the test set, to estimate groups"
        raise InputError("data.sens", value, hint)
    _check_not_in_features(data.x, sens, nodes.names)
    names = Names(nodes.names.features, group_names, group_names)
    return replace(nodes, data=data, names=names)


def _check_not_in_features(x: Tensor, sens: Tensor, names: Names) -> None:
    """Raise if a feature is the group itself: one value in each group, and not the same."""
    if x.is_sparse:
        return
    low, high = [], []
    for group in range(len(names.groups)):
        rows = x[sens == group]
        low.append(rows.amin(0))
        high.append(rows.amax(0))
    is_constant = (torch.stack(low) == torch.stack(high)).all(0)
    differs = torch.stack(low).amax(0) > torch.stack(low).amin(0)
    if bool((is_constant & differs).any()):
        column = names.features[int((is_constant & differs).nonzero()[0])]
        value = f"the feature {column!r} is the group, which no prediction may read"
        raise InputError("data.x", value, "leave the column out, or {group_free}")


@dataclass(frozen=True)
class Reliance:
    """How much worse groups are estimated when columns are shuffled between nodes."""

    columns: str
    auc: float  # of the estimates with these columns shuffled


@dataclass(frozen=True)
class GroupReliance:
    """What the estimates of the groups rest on."""

    auc: float  # of the estimates; mean over the groups, each against the others
    parts: tuple[Reliance, ...]  # of a node's own features, its neighbours, and their groups
    columns: tuple[Reliance, ...]  # single ones, those that matter most first


def group_reliance(
    fitted: FittedModel, data: Data, nodes: Tensor, *, seed: int = 0
) -> GroupReliance:
    """Measure by permutation what the estimates of a group-free model rest on.

    The models of the first fold estimate up to 1,000 of the nodes (a mask; those of known group),
    before propagation. Single columns are tried if they are among the 20 that go with the estimates
    most.
    """
    assert fitted.group_network is not None
    blend, names = fitted.group_network.transform, fitted.names
    assert isinstance(blend, Blend)
    data, nodes = fitted.align(data, nodes)
    sens = groups.certain_group(data.sens)
    numbers = drawn_nodes(nodes & (sens >= 0), MAX_SHUFFLED, seed).nonzero()[:, 0]
    view = blend.inputs("neighbourhood", data.x, graph_of(data))
    assert isinstance(view, Tensor)
    rows, width = view.index_select(0, numbers).to_dense(), data.x.size(1)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    estimates = _Estimates(blend, rows, width, sens[numbers].cpu().numpy(), order)
    titles = column_names(names.features, names.groups, kind="group")
    first_group = len(titles) - 2 * len(names.groups) - 1
    parts = {
        "the node's own features": range(width),
        "its neighbours' features and number": range(width, first_group),
        "its neighbours' known groups": range(first_group, len(titles)),
    }
    strength = _correlations(rows, estimates.logits(rows))
    likely = strength.argsort(descending=True)[:MAX_COLUMNS].tolist()
    single = [Reliance(titles[k], estimates.shuffled_auc([k])) for k in likely]
    blocks = [Reliance(name, estimates.shuffled_auc(block)) for name, block in parts.items()]
    return GroupReliance(
        estimates.auc(rows), tuple(blocks), tuple(sorted(single, key=lambda r: r.auc))
    )


@dataclass(frozen=True)
class _Estimates:
    """Estimates of some nodes' groups by the models of the first fold."""

    blend: Blend
    rows: Tensor  # the columns of the neighbourhood (m×…)
    width: int  # number of features, which come first
    truth: np.ndarray  # groups (m)
    order: Tensor  # in which columns are shuffled (m)

    def logits(self, rows: Tensor) -> Tensor:
        """Logits of the groups, before propagation (m×G)."""
        blend, total = self.blend, torch.zeros(())
        members = zip(blend.members, blend.views, blend.folds, blend.weights, strict=True)
        for model, view, fold, weight in members:
            if fold == 0:
                read = rows if view == "neighbourhood" else rows[:, : self.width]
                total = total + weight * model(read)
        return total

    def auc(self, rows: Tensor) -> float:
        """Mean over the groups, each against the others."""
        from sklearn.metrics import roc_auc_score

        estimated = self.logits(rows).log_softmax(1).numpy()
        members = [self.truth == g for g in range(estimated.shape[1])]
        scores = [
            roc_auc_score(is_member, estimated[:, g])
            for g, is_member in enumerate(members)
            if is_member.any() and not is_member.all()
        ]
        return float(np.mean(scores))

    def shuffled_auc(self, columns: Sequence[int]) -> float:
        """The AUC with some columns shuffled between the nodes."""
        changed = self.rows.clone()
        changed[:, list(columns)] = self.rows[self.order][:, list(columns)]
        return self.auc(changed)


def _correlations(rows: Tensor, logits: Tensor) -> Tensor:
    """The largest correlation of each column with the logit of a group; 0 for constant ones."""
    x, z = (part.double() - part.double().mean(0) for part in (rows, logits.detach()))
    scale = x.norm(dim=0)[:, None] * z.norm(dim=0)[None]
    return torch.nan_to_num((x.T @ z).abs() / scale).amax(1)

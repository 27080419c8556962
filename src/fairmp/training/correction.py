"""Corrections of a trained network between groups, and what prediction keeps of them.

Demographic parity is held inside the propagation, for the nodes being predicted or, per node, with
the duals of nodes that were not trained on. Criteria on labels, promises and blind rules are
corrections after plain propagation, found on held-out nodes (``Debiaser``). A blind rule reads the
logits of the groups, which a second network estimates, in place of the group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from fairmp import groups
from fairmp.datasets.splits import MASKS
from fairmp.metrics import demographic_parity
from fairmp.nn.decisions import On
from fairmp.nn.fmp import FMP
from fairmp.nn.solvers import Solution
from fairmp.postprocessing.predictions import Attribute
from fairmp.training.calibration import propagate_uncorrected
from fairmp.training.nodes import Names, Predicted, TrainingNodes

if TYPE_CHECKING:
    from fairmp.postprocessing.debiaser import Debiaser

PARITY = "demographic_parity"  # the criterion that is held inside the propagation
# How it is judged whether a correction helps:
MIN_GROUP = 4  # nodes of a group, so that both halves have some
MAX_JUDGED = 20_000  # from there on a correction is as good as exact
REPEATS = 3


@dataclass(frozen=True)
class Correction:
    """Logits of the fitted graph, and what per-node prediction stores."""

    uncorrected: Tensor  # all nodes; before the propagation, if that corrects
    parts: dict[str, Predicted]  # corrected, by the name of a mask; held-out nodes for validation
    group_duals: Tensor | None = None
    debiaser: Debiaser | None = None


def hold_parity(
    layer: FMP, nodes: TrainingNodes, logits: Tensor, on: On, out_of_fold: Predicted | None = None
) -> Correction:
    """Propagate fairly for each part of the split, and find the duals of per-node prediction.

    Propagated logits that are out of fold stand for the validation nodes. They also decide per-node
    prediction, which then propagates plainly and shifts the groups after the last step; not at all
    where a shift does not make held-out nodes fairer.
    """
    data, adjacency = nodes.data, nodes.graph.adjacency(logits.dtype)
    decisions = layer.closes_decisions(on)
    parts: dict[str, Predicted] = {}
    duals: Tensor | None = None
    for mask in MASKS:
        if mask == "val_mask" and out_of_fold is not None:
            population = out_of_fold.nodes
            rows = correct_rows(layer, nodes, out_of_fold.logits, data.sens[population], on).f
        else:
            population = data[mask]
            operator = nodes.group_operator(mask)
            solution = layer.solve(logits, adjacency, operator, decisions=decisions)
            rows = solution.f[population]
            duals = solution.group_duals if mask == "val_mask" else duals
        fair = close_weighted_gap(rows.to(data.x.dtype), data, population, layer, on)
        parts[mask] = Predicted(data, population, fair)
    # Parity needs no labels: unlabelled nodes make the served correction more precise.
    unlabelled = groups.known_mask(data.sens) & ~(data.train_mask | data.val_mask | data.test_mask)
    if out_of_fold is not None:
        duals = _duals_out_of_fold(layer, nodes, logits, out_of_fold, unlabelled, on)
    elif nodes.reducer.total(unlabelled.sum().double().view(1)) > 0:
        held_nodes = unlabelled | (data.val_mask & groups.known_mask(data.sens))
        operator = nodes.group_operator_of(held_nodes)
        duals = layer.solve(logits, adjacency, operator, decisions=decisions).group_duals
    served = None if callable(layer.solver) else duals  # which a user's solver gives no meaning
    return Correction(logits, parts, group_duals=served)


def _duals_out_of_fold(
    layer: FMP,
    nodes: TrainingNodes,
    logits: Tensor,
    out_of_fold: Predicted,
    unlabelled: Tensor,
    on: On,
) -> Tensor:
    """Duals of the last step, found on propagated logits; 0 in the steps before."""

    def find(rows: Tensor, sens: Tensor) -> Tensor:
        return correct_rows(layer, nodes, rows, sens, on).group_duals

    sens = nodes.data.sens
    held, held_sens = out_of_fold.logits, sens[out_of_fold.nodes]
    adjacency = nodes.graph.adjacency(logits.dtype)
    plain = propagate_uncorrected(logits, layer, adjacency).logits[unlabelled]
    last = find(torch.cat([held, plain]), torch.cat([held_sens, sens[unlabelled]]))
    if not correction_helps(held, held_sens, lambda rows, sens: find(rows, sens)[-1]):
        last = torch.zeros_like(last)
    return torch.cat([last.new_zeros(layer.K - 1, *last.shape[1:]), last])


def correct_rows(layer: FMP, nodes: TrainingNodes, rows: Tensor, sens: Tensor, on: On) -> Solution:
    """Correct propagated logits (m×C) as the last step of a fair propagation does."""
    step = FMP(1, 0.0, solver=layer.solver, target=layer.target, temperature=layer.temperature)
    known_mask, num_groups = groups.known_mask(sens), len(nodes.names.groups)
    operator = nodes.reducer.group_operator(sens, known_mask, num_groups)
    no_edges = torch.empty(2, 0, dtype=torch.long, device=rows.device)
    return step.solve(rows, no_edges, operator, decisions=layer.closes_decisions(on))


def hold_criterion(
    debiaser: Debiaser | None,
    nodes: TrainingNodes,
    propagated: Tensor,
    out_of_fold: Predicted | None = None,
    group_logits: Tensor | None = None,
) -> Correction:
    """Correct propagated logits after plain propagation, if there is a correction.

    Those that are out of fold stand for the validation nodes. ``group_logits`` (n×G) are read in
    place of the groups.
    """
    data = nodes.data
    parts = {mask: Predicted(data, data[mask], propagated[data[mask]]) for mask in MASKS}
    if out_of_fold is not None:
        parts["val_mask"] = out_of_fold
    if debiaser is not None:
        for mask, part in parts.items():
            estimated = None if group_logits is None else group_logits[part.nodes]
            fair = debiased(debiaser, part.logits, data.sens[part.nodes], nodes.names, estimated)
            parts[mask] = replace(part, logits=fair)
    return Correction(propagated, parts, debiaser=debiaser)


def debiased(
    debiaser: Debiaser,
    logits: Tensor,
    sens: Tensor | None,
    names: Names,
    group_logits: Tensor | None = None,
) -> Tensor:
    """Correct propagated logits node by node; logits of the groups (m×G) are read for groups."""
    fair: Tensor
    if group_logits is not None:
        features = blind_features(logits, group_logits, str(debiaser.criterion))
        fair = debiaser.transform(logits.cpu(), features=features)
    else:
        assert sens is not None
        attributes = group_attributes(sens, names.groups)
        fair = debiaser.transform(logits.cpu(), sensitive_features=attributes)
    return fair.to(logits)


def blind_features(logits: Tensor, group_logits: Tensor, criterion: str) -> Tensor:
    """What a blind correction reads of a node, besides its logits.

    The logits of the groups and, for criteria on labels, those of the classes: the group given the
    label depends on both.
    """
    parts = [group_logits] if criterion == PARITY else [group_logits, logits]
    centred = [part.double() - part.double().mean(1, keepdim=True) for part in parts]
    return torch.cat(centred, 1).cpu()


def fit_debiaser(
    debiaser: Debiaser,
    nodes: TrainingNodes,
    held_out: Predicted,
    group_logits: Tensor | None = None,
) -> Debiaser:
    """Find the correction of propagated logits on held-out nodes.

    ``group_logits``, one row per held-out node, are for a correction that reads no group.
    """
    data, names = nodes.data, nodes.names

    def fit(
        logits: Tensor,
        sens: Tensor,
        y: Tensor,
        weight: Tensor | None,
        group_logits: Tensor | None,
    ) -> Debiaser:
        features = None
        if group_logits is not None:
            features = blind_features(logits, group_logits, str(debiaser.criterion))
            sens = groups.certain_group(sens)
        return debiaser.fit(
            logits.cpu(),
            y.cpu(),
            sensitive_features=group_attributes(sens, names.groups),
            sample_weight=None if weight is None else weight.cpu(),
            features=features,
        )

    mask, weight = held_out.nodes, nodes.sample_weight
    return nodes.reducer.on_rank_zero(
        fit,
        held_out.logits,
        data.sens[mask],
        data.y[mask],
        None if weight is None else weight[mask],
        group_logits,
    )


def close_weighted_gap(logits: Tensor, data: Data, mask: Tensor, layer: FMP, on: On) -> Tensor:
    """Close the gap that sample weights measure among some nodes, if there are weights."""
    if "sample_weight" not in data:
        return logits
    from fairmp.postprocessing.solver import debias

    fair: Tensor = debias(
        logits.cpu(),
        data.sens[mask].cpu(),
        kind="logits",
        target=layer.target,
        on=on,
        temperature=1.0 if on == "decisions" else layer.temperature,
        sample_weight=data.sample_weight[mask].cpu(),
    )
    return fair.to(logits)


def group_attributes(sens: Tensor, names: Sequence[str]) -> list[Attribute]:
    """Groups as a Debiaser takes them."""
    return [Attribute("group", tuple(names), sens.cpu())]


def correction_helps(
    logits: Tensor, sens: Tensor, find_shift: Callable[[Tensor, Tensor], Tensor], *, seed: int = 0
) -> bool:
    """Whether a shift found on one half of some nodes makes the other half fairer.

    The gap of decisions that the shift leaves on the other half is compared with the gap there
    without one, on average over both halves of three random cuts. With few nodes per group the
    shift is mostly noise, and can leave a larger gap than none.

    Args:
        logits: uncorrected, of nodes that did not train the model (m×C).
        sens: their groups (m), −1 unknown.
        find_shift: from logits and groups to what is subtracted from those of each group (G×C).
        seed: of the halves.
    """
    if groups.is_soft(sens):
        return True
    has_group = sens >= 0
    logits, sens = logits[has_group], sens[has_group]
    sizes = torch.bincount(sens)
    if len(sens) > MAX_JUDGED or int(sizes.min()) < MIN_GROUP:
        return True
    rng = np.random.default_rng(seed)
    with_shift, without = [], []
    for _ in range(REPEATS):
        is_first = torch.from_numpy(_first_half(sens.cpu().numpy(), rng)).to(sens.device)
        for fitted, judged in ((is_first, ~is_first), (~is_first, is_first)):
            shift = find_shift(logits[fitted], sens[fitted])
            corrected = logits[judged] - shift[sens[judged]]
            with_shift.append(demographic_parity(corrected.argmax(1), sens[judged]))
            without.append(demographic_parity(logits[judged].argmax(1), sens[judged]))
    return float(np.mean(with_shift)) < float(np.mean(without))


def _first_half(sens: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A random half of each group."""
    order = np.lexsort((rng.random(len(sens)), sens))
    is_first = np.zeros(len(sens), dtype=bool)
    is_first[order[::2]] = True
    return is_first

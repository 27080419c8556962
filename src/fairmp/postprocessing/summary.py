"""Measure corrected predictions: criteria, groups, and estimates for unlabelled nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from math import nan
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairmp.metrics import counts
from fairmp.metrics.calibration import label_probabilities
from fairmp.metrics.counts import gap_interval, weighted_rates
from fairmp.postprocessing import criteria
from fairmp.postprocessing.criteria import Criterion, Measure, Solution
from fairmp.postprocessing.predictions import Attribute
from fairmp.postprocessing.result import (
    CriterionResult,
    DebiasResult,
    GroupChange,
    GroupUncertainty,
    UnlabelledEstimate,
)

CERTAIN = 1e-9  # distance from 1 of probabilities that stand for decisions
AGREEMENT = 0.01  # slack when an estimate is compared with what the labels say


def summarise(solution: Solution) -> DebiasResult:
    """Measure the effect of a correction."""
    given, inside, labels = solution.given, solution.population, solution.labels
    values = given.corrected(solution.logits)
    after = values if given.probabilities else values.softmax(1)
    proba = [given.proba.double(), after.double()]
    chosen = [p.argmax(1) for p in proba]
    changed = chosen[0] != chosen[1]
    labelled = inside & (labels >= 0)
    rows = solution.weight * labelled / solution.weight[labelled].sum()
    accuracy = [float((choice == labels).double() @ rows) for choice in chosen]
    log_ratio = proba[1].clamp_min(1e-300).log() - proba[0].clamp_min(1e-300).log()
    one = torch.eye(len(solution.classes), dtype=torch.float64, device=inside.device)
    decided = [one[choice] for choice in chosen]
    # Gaps are measured before and after, of probabilities and of decisions.
    versions = [
        *((z.double() / solution.temperature).softmax(1) for z in (given.logits, solution.logits)),
        *decided,
    ]
    notes = solution.warnings + solution.missed
    if solution.rule is None and float((proba[0].amax(1) > 1 - CERTAIN).double().mean()) > 0.5:
        draw = "draw decisions from the corrected probabilities"
        text = f"most predictions are 0 or 1 and can only be equalised by chance: {draw}"
        notes = (*notes, text)
    requested = {measure.criterion for measure in solution.measures}
    rest = [Criterion(name, nan) for name in criteria.NAMES if name not in requested]
    others, _ = criteria.measures(rest, solution, strict=False)
    return DebiasResult(
        predictions=given.like(values),
        classes=solution.classes,
        nodes=int(inside.sum()),
        changed=int((changed & inside).sum()),
        changed_outside=int((changed & ~inside).sum()),
        divergence=max(float((proba[1] * log_ratio).sum(1)[inside].mean()), 0.0),
        labelled=int(labelled.sum()),
        accuracy_before=accuracy[0],
        accuracy_after=accuracy[1],
        criteria=_criteria(solution, solution.measures, versions, estimates=True),
        groups=_group_changes(solution, [*decided, *proba], chosen),
        others=_criteria(solution, others, versions, estimates=False),
        group_uncertainty=_uncertainty(solution.attributes, inside),
        warnings=notes,
        drawn=solution.drawn,
    )


def _criteria(
    solution: Solution, found: Sequence[Measure], versions: Sequence[Tensor], *, estimates: bool
) -> tuple[CriterionResult, ...]:
    """Measure each criterion and attribute."""
    before, after, *decided = versions
    results = []
    for (name, attribute), parts in groupby(found, lambda m: (m.criterion, m.attribute)):
        own = list(parts)
        where = "the nodes the matrix weighs" if own[0].own else "the population"
        rest: dict[str, Any] = {}
        if own[0].label is not None:
            where = "labelled nodes of the population"
            rest["interval"] = _interval(own, after)
            rest["unlabelled"] = _unlabelled(solution, own, before, after) if estimates else None
        if not own[0].own:
            rest["interval_before"], rest["decisions_interval"] = (
                _interval(own, p) for p in decided
            )
        nodes = torch.stack([(measure.delta.matrix != 0).any(0) for measure in own]).any(0)
        gaps = [_largest(own, p) for p in versions]
        row = (name, attribute, own[0].target, *gaps, where, int(nodes.sum()))
        results.append(CriterionResult(*row, **rest))
    return tuple(results)


def _group_changes(
    solution: Solution, versions: Sequence[Tensor], chosen: Sequence[Tensor]
) -> tuple[GroupChange, ...]:
    """Decisions and rates of each group, and of the nodes of unknown group if there are any."""
    inside, classes = solution.population, len(solution.classes)
    rows = []
    for attribute in solution.attributes:
        names = [*attribute.groups, "unknown"]
        codes = torch.where(attribute.known, attribute.hard, len(attribute.groups))
        weights = torch.cat([attribute.membership, ~attribute.known.unsqueeze(1)], 1)
        weights = weights * (inside * solution.weight).unsqueeze(1)
        total = weights.sum(0).unsqueeze(1)
        means = [torch.where(total > 0, weights.T @ p / total, nan).tolist() for p in versions]
        parts = (solution.weight, codes, solution.labels, *chosen)
        weight, group, label, before, after = (part[inside].cpu().numpy() for part in parts)
        shape = (label, group, classes, len(names))
        changed = np.bincount(group[before != after], minlength=len(names)).tolist()
        nodes = np.bincount(group, minlength=len(names)).tolist()
        by_kind = {}
        if (label >= 0).any():
            by_kind["labelled"] = counts.count(before, *shape)[:, :-1].sum(2)
            for when, decided in (("before", before), ("after", after)):
                table = counts.count(decided, *shape, weight)
                _, by_kind[f"tpr_{when}"], by_kind[f"fpr_{when}"] = counts.group_rates(table)
        for g, name in enumerate(names):
            if not nodes[g] and not float(total[g]):
                continue
            shares = [tuple(mean[g]) for mean in means]
            rates: Any = {kind: tuple(values[g].tolist()) for kind, values in by_kind.items()}
            rows.append(GroupChange(attribute.name, name, nodes[g], changed[g], *shares, **rates))
    return tuple(rows)


def _uncertainty(
    attributes: Sequence[Attribute], population: Tensor
) -> tuple[GroupUncertainty, ...]:
    """How much of each attribute is estimated or unknown, where any is."""
    found = []
    for attribute in attributes:
        inside = attribute.estimated & population
        left_out = int((population & ~attribute.known).sum())
        if not left_out and not bool(inside.any()):
            continue
        weights = attribute.membership * population.unsqueeze(1)
        part, total = weights[inside].sum(0), weights.sum(0)
        share = float(part.sum() / total.sum().clamp_min(1e-300))
        shares = (part / total.clamp_min(1e-300)).tolist()
        by_group = dict(zip(attribute.groups, shares, strict=True))
        quality = (attribute.accuracy, attribute.baseline)
        row = (attribute.name, int(inside.sum()), share, by_group, left_out, *quality)
        found.append(GroupUncertainty(*row))
    return tuple(found)


def _largest(own: Sequence[Measure], p: Tensor) -> float:
    return max((measure.gap(p) for measure in own), default=nan)


def _interval(own: Sequence[Measure], p: Tensor) -> tuple[float, float]:
    """95 % interval of the largest gap over the measurements of a criterion."""
    found = []
    for measure in own:
        nodes = (measure.delta.matrix != 0).any(0)
        # The two classes of two mirror each other.
        columns = [1] if p.size(1) == 2 and len(measure.classes) == 2 else list(measure.classes)
        weights = measure.delta.membership[nodes].double().cpu().numpy()
        found.append(weighted_rates(weights, p[nodes][:, columns].double().cpu().numpy()))
    rates, sizes = (np.concatenate(part, 1) for part in zip(*found, strict=True))
    return gap_interval(rates, sizes)


def _unlabelled(
    solution: Solution, own: Sequence[Measure], before: Tensor, after: Tensor
) -> UnlabelledEstimate:
    """Estimate a criterion on unlabelled nodes, with calibrated probabilities for the labels."""
    attribute = next(one for one in solution.attributes if one.name == own[0].attribute)
    known, labelled = solution.population & attribute.known, solution.labels >= 0
    codes = torch.where(known, solution.labels, -1).cpu().numpy()
    z = solution.given.logits.double()
    expected = torch.from_numpy(
        label_probabilities(z.cpu().numpy(), codes, attribute.hard.cpu().numpy())
    ).to(z.device)

    def measures_on(nodes: Tensor) -> list[Measure]:
        """The same measurements on other nodes, with probabilities for labels."""
        found = []
        for measure in own:
            weights = attribute.membership * (expected[:, measure.label] * solution.weight)[:, None]
            if int((weights[nodes].sum(0) > 0).sum()) >= 2:
                found.append(replace(measure, delta=criteria.compare_groups(weights, nodes)))
        return found

    there, check = measures_on(known & ~labelled), measures_on(known & labelled)
    nodes = int((known & ~labelled).sum())
    on_labelled = (_largest(check, before), _largest(check, after))
    reliable = all(
        low - AGREEMENT <= gap <= high + AGREEMENT
        for gap, p in zip(on_labelled, (before, after), strict=True)
        for low, high in [_interval(own, p)]
    )
    if not there or not reliable:
        return UnlabelledEstimate(nodes, nan, nan, None, on_labelled, reliable)
    gaps = (_largest(there, before), _largest(there, after))
    return UnlabelledEstimate(nodes, *gaps, _interval(there, after), on_labelled)

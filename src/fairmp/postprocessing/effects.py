"""The effect of a correction: gaps, rates and accuracy before and after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import nan
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairmp.groups import GroupOperator
from fairmp.metrics import counts
from fairmp.metrics.calibration import label_probabilities
from fairmp.metrics.counts import weighted_rates
from fairmp.metrics.intervals import gap_interval
from fairmp.nn.decisions import On
from fairmp.postprocessing.corrections import CorrectedLogits, Membership, Thresholds
from fairmp.postprocessing.criteria import (
    NAMES,
    Criterion,
    Measure,
    Problem,
    compare_groups,
    measures_of,
)
from fairmp.postprocessing.predictions import Attribute, one_hot
from fairmp.postprocessing.result import (
    CriterionResult,
    DebiasResult,
    GroupChange,
    GroupUncertainty,
    UnlabelledEstimate,
)

AGREEMENT = 0.01  # slack when an estimate is compared with what the labels say
CERTAIN = 1e-9  # distance from 1 of probabilities that stand for decisions
BY_CHANCE = (
    "most predictions are 0 or 1 and can only be equalised by chance: draw decisions from the "
    "corrected probabilities"
)


@dataclass(frozen=True)
class Version:
    """Predictions before or after the correction."""

    proba: Tensor  # probabilities, as returned (n×C)
    compared: Tensor  # probabilities at the temperature (n×C)
    classes: Tensor  # the decisions (n)
    decided: Tensor  # the same, one-hot (n×C)

    @classmethod
    def of(cls, proba: Tensor, logits: Tensor, temperature: float) -> Version:
        """Probabilities with their decisions."""
        classes = proba.argmax(1)
        decided = torch.nn.functional.one_hot(classes, proba.size(1)).double()
        compared = (logits.double() / temperature).softmax(1)
        return cls(proba.double(), compared, classes, decided)


def summarise(
    problem: Problem, solution: CorrectedLogits, *, on: On, temperature: float
) -> DebiasResult:
    """Measure the effect of a correction."""
    scores, inside, y = problem.scores, problem.population, problem.y
    values = scores.corrected(solution.logits)
    proba = values if scores.are_probabilities else values.softmax(1)
    before = Version.of(scores.proba, scores.logits, temperature)
    after = Version.of(proba, solution.logits, temperature)
    changed = before.classes != after.classes
    labelled = inside & (y >= 0)
    rows = problem.weight * labelled / problem.weight[labelled].sum()
    log_ratio = after.proba.clamp_min(1e-300).log() - before.proba.clamp_min(1e-300).log()
    notes = solution.notes + solution.missed
    certain = float((before.proba.amax(1) > 1 - CERTAIN).double().mean())
    if certain > 0.5 and not solution.drawn and not isinstance(solution.correction, Thresholds):
        notes = (*notes, BY_CHANCE)
    requested = {measure.criterion for measure in solution.measures}
    others = [Criterion(name, nan) for name in NAMES if name not in requested]
    measured_too, _ = measures_of(others, problem, required=False)
    return DebiasResult(
        predictions=scores.like_original(values),
        on=on,
        classes=problem.classes,
        nodes=int(inside.sum()),
        changed=int((changed & inside).sum()),
        changed_outside=int((changed & ~inside).sum()),
        divergence=max(float((after.proba * log_ratio).sum(1)[inside].mean()), 0.0),
        labelled=int(labelled.sum()),
        accuracy_before=float((before.classes == y).double() @ rows),
        accuracy_after=float((after.classes == y).double() @ rows),
        criteria=tuple(
            replace(result, unlabelled=_unlabelled(problem, measures, before, after))
            for measures, result in _measured(solution.measures, before, after)
        ),
        groups=_group_changes(problem, before, after),
        others=tuple(result for _, result in _measured(measured_too, before, after)),
        group_uncertainty=_uncertainty(problem.attributes, inside),
        warnings=notes,
        drawn=solution.drawn,
    )


def _measured(
    measures: Sequence[Measure], before: Version, after: Version
) -> list[tuple[list[Measure], CriterionResult]]:
    """The gaps of each criterion and attribute, of probabilities and of decisions."""
    results = []
    for (name, attribute), group in groupby(measures, lambda m: (m.criterion, m.attribute)):
        parts = list(group)
        by_label = parts[0].labels is not None
        result = CriterionResult(
            criterion=name,
            attribute=attribute,
            target=parts[0].target,
            before=_largest_gap(parts, before.compared),
            after=_largest_gap(parts, after.compared),
            decisions_before=_largest_gap(parts, before.decided),
            decisions_after=_largest_gap(parts, after.decided),
            where="labelled nodes of the population" if by_label else "the population",
            nodes=int(torch.stack([measure.nodes for measure in parts]).any(0).sum()),
            interval=_interval(parts, after.compared) if by_label else None,
            decisions_interval=_interval(parts, after.decided),
            interval_before=_interval(parts, before.decided),
        )
        results.append((parts, result))
    return results


def _largest_gap(measures: Sequence[Measure], p: Tensor) -> float:
    return max((measure.gap(p) for measure in measures), default=nan)


def _interval(measures: Sequence[Measure], p: Tensor) -> tuple[float, float]:
    """95 % interval of the largest gap over the measurements of a criterion."""
    rates, sizes = [], []
    for measure in measures:
        nodes = measure.nodes
        # The two classes of two mirror each other.
        columns = [1] if p.size(1) == 2 and len(measure.classes) == 2 else list(measure.classes)
        weights = _membership(measure.delta, nodes)
        rate, size = weighted_rates(weights, p[nodes][:, columns].double().cpu().numpy())
        rates.append(rate)
        sizes.append(size)
    return gap_interval(np.concatenate(rates, 1), np.concatenate(sizes, 1))


def _membership(delta: GroupOperator, nodes: Tensor) -> Membership:
    """The weights of some nodes in the means of groups."""
    if delta.codes is None:
        return delta.membership[nodes].double().cpu().numpy()
    weight = None if delta.weight is None else delta.weight[nodes]
    return one_hot(delta.codes[nodes], delta.num_groups, weight)


def _unlabelled(
    problem: Problem, measures: Sequence[Measure], before: Version, after: Version
) -> UnlabelledEstimate | None:
    """Estimate a criterion on unlabelled nodes, with calibrated probabilities for the labels."""
    attribute = next(
        candidate for candidate in problem.attributes if candidate.name == measures[0].attribute
    )
    known_mask, labelled = problem.population & attribute.known, problem.y >= 0
    nodes = int((known_mask & ~labelled).sum())
    if measures[0].labels is None or not nodes:
        return None
    z, y = problem.scores.logits.double(), torch.where(known_mask, problem.y, -1)
    group = attribute.hard
    expected = torch.from_numpy(
        label_probabilities(z.cpu().numpy(), y.cpu().numpy(), group.cpu().numpy())
    ).to(z.device)

    def expected_measures(nodes: Tensor) -> list[Measure]:
        """The same measurements on other nodes, with probabilities for labels."""
        parts = []
        for measure in measures:
            weight = expected[:, list(measure.labels or ())].sum(1) * problem.weight
            if int((attribute.totals(weight * nodes) > 0).sum()) >= 2:
                parts.append(replace(measure, delta=compare_groups(attribute, weight, nodes)))
        return parts

    check = expected_measures(known_mask & labelled)
    on_labelled = (_largest_gap(check, before.compared), _largest_gap(check, after.compared))
    reliable = all(
        low - AGREEMENT <= gap <= high + AGREEMENT
        for gap, version in zip(on_labelled, (before, after), strict=True)
        for low, high in [_interval(measures, version.compared)]
    )
    others = expected_measures(known_mask & ~labelled)
    if not others or not reliable:
        return UnlabelledEstimate(nodes, nan, nan, None, on_labelled, reliable)
    gap_before, gap_after = (_largest_gap(others, version.compared) for version in (before, after))
    interval = _interval(others, after.compared)
    return UnlabelledEstimate(nodes, gap_before, gap_after, interval, on_labelled)


def _group_changes(problem: Problem, before: Version, after: Version) -> tuple[GroupChange, ...]:
    """Decisions and rates of each group, and of the nodes of unknown group if there are any."""
    inside = problem.population
    rows = []
    for attribute in problem.attributes:
        names = [*attribute.groups, "unknown"]
        codes = torch.where(attribute.known, attribute.hard, len(attribute.groups))
        weight = (inside * problem.weight).unsqueeze(1)
        total = _sums(attribute, weight)
        decided_before, decided_after, mean_before, mean_after = (
            torch.where(total > 0, _sums(attribute, weight * p) / total, nan).tolist()
            for p in (before.decided, after.decided, before.proba, after.proba)
        )
        group = codes[inside].cpu().numpy()
        moved = (before.classes != after.classes)[inside].cpu().numpy()
        nodes = np.bincount(group, minlength=len(names)).tolist()
        changed = np.bincount(group[moved], minlength=len(names)).tolist()
        rates = _rates_by_label(problem, group, len(names), before, after)
        for g, name in enumerate(names):
            if not nodes[g] and not float(total[g]):
                continue
            by_label: dict[str, Any] = {
                field: tuple(values[g].tolist()) for field, values in rates.items()
            }
            change = GroupChange(
                attribute=attribute.name,
                group=name,
                nodes=nodes[g],
                changed=changed[g],
                decided_before=tuple(decided_before[g]),
                decided_after=tuple(decided_after[g]),
                mean_before=tuple(mean_before[g]),
                mean_after=tuple(mean_after[g]),
                known=g < len(attribute.groups),
                **by_label,
            )
            rows.append(change)
    return tuple(rows)


def _sums(attribute: Attribute, values: Tensor) -> Tensor:
    """Sums of rows (n×C) by group, and last of the nodes of unknown group (G+1×C)."""
    unknown = values[~attribute.known].sum(0, keepdim=True)
    return torch.cat([attribute.sums(values), unknown])


def _rates_by_label(
    problem: Problem, group: np.ndarray, groups: int, before: Version, after: Version
) -> dict[str, np.ndarray]:
    """Rates by group and class that need labels, and who pays; empty without labels."""
    inside, classes = problem.population, len(problem.classes)
    y = problem.y[inside].cpu().numpy()
    if not (y >= 0).any():
        return {}
    weight = problem.weight[inside].cpu().numpy()
    old, new = (version.classes[inside].cpu().numpy() for version in (before, after))
    table_before = counts.count(old, y, group, classes, groups, weight)
    table_after = counts.count(new, y, group, classes, groups, weight)
    _, tpr_before, fpr_before = counts.group_rates(table_before)
    _, tpr_after, fpr_after = counts.group_rates(table_after)
    return {
        "labelled": counts.count(old, y, group, classes, groups)[:, :-1].sum(2),
        "tpr_before": tpr_before,
        "tpr_after": tpr_after,
        "fpr_before": fpr_before,
        "fpr_after": fpr_after,
        "ppv_before": counts.precisions(table_before),
        "ppv_after": counts.precisions(table_after),
        **_payers(old, new, y, group, groups, binary=classes == 2),
    }


def _payers(
    old: np.ndarray, new: np.ndarray, y: np.ndarray, group: np.ndarray, groups: int, *, binary: bool
) -> dict[str, np.ndarray]:
    """Labelled people by group who pay for changed decisions, or gain by them."""
    if binary:
        lost, gained = (old > new) & (y >= 0), (old < new) & (y >= 0)
        name, kinds = "paid", [lost, lost & (y == 1), gained, gained & (y == 0)]
    else:
        name, kinds = "turned", [(old == y) & (new != y), (old != y) & (new == y)]
    return {name: np.stack([np.bincount(group[kind], minlength=groups) for kind in kinds], 1)}


def _uncertainty(
    attributes: Sequence[Attribute], population: Tensor
) -> tuple[GroupUncertainty, ...]:
    """How much of each attribute is estimated or unknown, where any is."""
    rows = []
    for attribute in attributes:
        estimated = attribute.estimated & population
        left_out = int((population & ~attribute.known).sum())
        if not left_out and not bool(estimated.any()):
            continue
        part = attribute.totals(estimated.double())
        total = attribute.totals(population.double())
        shares = (part / total.clamp_min(1e-300)).tolist()
        row = GroupUncertainty(
            attribute=attribute.name,
            nodes=int(estimated.sum()),
            share=float(part.sum() / total.sum().clamp_min(1e-300)),
            by_group=dict(zip(attribute.groups, shares, strict=True)),
            left_out=left_out,
            accuracy=attribute.accuracy,
            baseline=attribute.baseline,
        )
        rows.append(row)
    return tuple(rows)

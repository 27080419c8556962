"""Measure corrected predictions: criteria, groups, and estimates for unlabelled nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import nan

import numpy as np
import torch
from torch import Tensor

from fairmp.errors import InputError
from fairmp.groups import GroupOperator
from fairmp.metrics.counts import ratio
from fairmp.metrics.intervals import gap_interval, weighted_rates
from fairmp.postprocessing.attributes import Attribute
from fairmp.postprocessing.calibration import calibrate
from fairmp.postprocessing.criteria import NAMES, Criterion, Measure, between, measures
from fairmp.postprocessing.result import (
    CriterionResult,
    DebiasResult,
    GroupChange,
    GroupUncertainty,
    UnlabelledEstimate,
)
from fairmp.postprocessing.solver import Solution

MIN_CALIBRATION_NODES = 100  # labelled nodes of a group that is calibrated separately
MIN_CLASS_NODES = 10  # and of each class among them
AGREEMENT = 0.01  # slack when an estimate is compared with what the labels say


def summarise(solution: Solution) -> DebiasResult:
    """Measure the effect of a correction."""
    given, inside, labels = solution.given, solution.population, solution.labels
    values = given.corrected(solution.logits)
    after = values if given.probabilities else values.softmax(1)
    proba = [given.proba.double(), after.double()]
    chosen = [p.argmax(1) for p in proba]
    one = torch.eye(len(solution.classes), dtype=torch.float64, device=inside.device)
    decided = [one[choice] for choice in chosen]
    scaled = [
        (logits.double() / solution.temperature).softmax(1)
        for logits in (given.logits, solution.logits)
    ]
    changed = chosen[0] != chosen[1]
    labelled = torch.zeros_like(inside) if labels is None else inside & (labels >= 0)
    accuracy = [nan, nan]
    if labels is not None and bool(labelled.any()):
        accuracy = [float((one == labels)[labelled].double().mean()) for one in chosen]
    log_ratio = proba[1].clamp_min(1e-300).log() - proba[0].clamp_min(1e-300).log()
    pairs = list(zip(scaled, decided, strict=True))
    requested = [
        _criterion(solution, own, pairs, estimates=True) for own in _grouped(solution.measures)
    ]
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
        criteria=tuple(requested),
        groups=_group_changes(solution, list(zip(proba, decided, strict=True))),
        others=_others(solution, pairs),
        group_uncertainty=_uncertainty(solution.attributes, inside),
        warnings=solution.warnings,
        drawn=solution.drawn,
    )


def _grouped(found: Sequence[Measure]) -> list[list[Measure]]:
    """Measurements by criterion and attribute."""
    parts: dict[tuple[str, str], list[Measure]] = {}
    for measure in found:
        parts.setdefault((measure.criterion, measure.attribute), []).append(measure)
    return list(parts.values())


def _others(
    solution: Solution, pairs: Sequence[tuple[Tensor, Tensor]]
) -> tuple[CriterionResult, ...]:
    """The criteria that were not requested, where they can be measured."""
    names = {criterion.name for criterion in solution.criteria}
    found = []
    for name in NAMES:
        if name in names or (name != "demographic_parity" and solution.labels is None):
            continue
        for attribute in solution.attributes:
            try:
                own, _ = measures(
                    [Criterion(name, nan)], [attribute], solution.population, solution.labels,
                    len(solution.classes),
                )  # fmt: skip
            except InputError:  # no class is labelled in two groups
                continue
            found.append(_criterion(solution, own, pairs, estimates=False))
    return tuple(found)


def _criterion(
    solution: Solution,
    own: Sequence[Measure],
    pairs: Sequence[tuple[Tensor, Tensor]],
    *,
    estimates: bool,
) -> CriterionResult:
    """Measure one criterion on probabilities and decisions, before and after."""
    first = own[0]
    (before, decided_before), (after, decided_after) = pairs
    where, interval, unlabelled = "the population", None, None
    if first.own:
        where = "the nodes the matrix weighs"
    elif first.label is not None:
        where = "labelled nodes of the population"
        interval = _interval(own, after)
        if estimates:
            unlabelled = _unlabelled(solution, own, before, after)
    nodes = torch.stack([(measure.delta.matrix != 0).any(0) for measure in own]).any(0)
    return CriterionResult(
        first.criterion,
        first.attribute,
        first.target,
        before=_largest(own, before),
        after=_largest(own, after),
        decisions_before=_largest(own, decided_before),
        decisions_after=_largest(own, decided_after),
        where=where,
        nodes=int(nodes.sum()),
        interval=interval,
        unlabelled=unlabelled,
    )


def _group_changes(
    solution: Solution, pairs: Sequence[tuple[Tensor, Tensor]]
) -> tuple[GroupChange, ...]:
    """Decisions and rates of each group before and after."""
    (before, decided_before), (after, decided_after) = pairs
    changed = (decided_before != decided_after).any(1)
    rows = []
    for attribute in solution.attributes:
        codes = attribute.hard
        for g, group in enumerate([*attribute.groups, "unknown"]):
            unknown = g == len(attribute.groups)
            inside = solution.population & (codes == (-1 if unknown else g))
            if unknown and not bool(inside.any()):
                continue
            weight = inside.double()
            if not unknown:
                weight = attribute.membership[:, g] * solution.population
            means = [
                tuple(((weight @ p) / weight.sum().clamp_min(1e-300)).tolist())
                for p in (decided_before, decided_after, before, after)
            ]
            change = GroupChange(
                attribute.name, group, int(inside.sum()), int(changed[inside].sum()), *means
            )
            if solution.labels is not None:
                y = solution.labels[inside]
                rates = [_label_rates(y, d[inside]) for d in (decided_before, decided_after)]
                change = replace(
                    change,
                    labelled=tuple(int((y == c).sum()) for c in range(len(solution.classes))),
                    tpr_before=rates[0][0],
                    fpr_before=rates[0][1],
                    tpr_after=rates[1][0],
                    fpr_after=rates[1][1],
                )
            rows.append(change)
    return tuple(rows)


def _label_rates(labels: Tensor, decided: Tensor) -> list[tuple[float, ...]]:
    """True and false positive rates of each class."""
    y, d = labels.cpu().numpy(), decided.cpu().numpy()
    one = np.eye(d.shape[1] + 1)[y][:, :-1]
    rest = (y >= 0)[:, None] - one
    return [tuple(ratio((part * d).sum(0), part.sum(0)).tolist()) for part in (one, rest)]


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
        shares = (part / total.clamp_min(1e-300)).tolist()
        estimate = attribute.estimate
        found.append(
            GroupUncertainty(
                attribute.name,
                int(inside.sum()),
                float(part.sum() / total.sum().clamp_min(1e-300)),
                dict(zip(attribute.groups, shares, strict=True)),
                left_out,
                *(() if estimate is None else (estimate.accuracy, estimate.baseline)),
            )
        )
    return tuple(found)


def _largest(own: Sequence[Measure], p: Tensor) -> float:
    return max(measure.gap(p) for measure in own)


def _interval(own: Sequence[Measure], p: Tensor) -> tuple[float, float]:
    """95 % interval of the largest gap over the measurements of a criterion."""
    rates, sizes = [], []
    for measure in own:
        nodes = (measure.delta.matrix != 0).any(0)
        # The two classes of two mirror each other.
        columns = [1] if p.size(1) == 2 and len(measure.classes) == 2 else list(measure.classes)
        found = weighted_rates(
            measure.delta.membership[nodes].double().cpu().numpy(),
            p[nodes][:, columns].double().cpu().numpy(),
        )
        rates.append(found[0])
        sizes.append(found[1])
    return gap_interval(np.concatenate(rates, 1), np.concatenate(sizes, 1))


def _unlabelled(
    solution: Solution, own: Sequence[Measure], before: Tensor, after: Tensor
) -> UnlabelledEstimate:
    """Estimate a criterion on unlabelled nodes, with calibrated probabilities for the labels."""
    assert solution.labels is not None
    attribute = next(one for one in solution.attributes if one.name == own[0].attribute)
    known = solution.population & attribute.known
    labels = solution.labels
    expected = _calibrated(solution, attribute, known & (labels >= 0))
    elsewhere = _expected_measures(own, attribute, known & (labels < 0), expected)
    here = _expected_measures(own, attribute, known & (labels >= 0), expected)
    nodes = int((known & (labels < 0)).sum())
    check = (_largest(here, before), _largest(here, after)) if here else (nan, nan)
    reliable = all(
        low - AGREEMENT <= gap <= high + AGREEMENT
        for gap, (low, high) in zip(
            check, (_interval(own, before), _interval(own, after)), strict=True
        )
    )
    if not elsewhere or not reliable:
        return UnlabelledEstimate(nodes, nan, nan, None, check, reliable)
    return UnlabelledEstimate(
        nodes,
        _largest(elsewhere, before),
        _largest(elsewhere, after),
        _interval(elsewhere, after),
        check,
    )


def _calibrated(solution: Solution, attribute: Attribute, labelled: Tensor) -> Tensor:
    """Probabilities of the labels: one temperature, and biases by group where labels suffice."""
    assert solution.labels is not None
    z = solution.given.logits.double().cpu().numpy()
    y, use = solution.labels.cpu().numpy(), labelled.cpu().numpy()
    codes = attribute.hard.cpu().numpy()
    result = calibrate(z[use], y[use])(z)
    for g in range(len(attribute.groups)):
        own = use & (codes == g)
        counts = np.bincount(y[own], minlength=z.shape[1])
        if own.sum() >= MIN_CALIBRATION_NODES and counts.min() >= MIN_CLASS_NODES:
            bias = calibrate(result[own], y[own], bias_only=True)
            result[codes == g] = bias(result[codes == g])
    return torch.from_numpy(result).softmax(1).to(solution.given.logits.device)


def _expected_measures(
    own: Sequence[Measure], attribute: Attribute, nodes: Tensor, expected: Tensor
) -> list[Measure]:
    """The same measurements on other nodes, with probabilities for labels."""
    found = []
    for measure in own:
        assert measure.label is not None
        weights = attribute.membership * expected[:, [measure.label]]
        counts = weights[nodes].sum(0)
        if int((counts > 0).sum()) < 2:
            continue
        delta = GroupOperator(weights, nodes, between(counts))
        found.append(replace(measure, delta=delta))
    return found

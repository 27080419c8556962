"""Take stock of mended predictions: criteria, groups, estimates and their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import nan

import numpy as np
import torch
from torch import Tensor

from fairmp.errors import InputError
from fairmp.groups import GroupOperator
from fairmp.postprocessing.attributes import Attribute
from fairmp.postprocessing.criteria import Criterion, Measure, between
from fairmp.postprocessing.result import (
    CriterionResult,
    DebiasResult,
    GroupChange,
    GroupUncertainty,
    Predicted,
)
from fairmp.postprocessing.solver import Solved

_CHUNK = 4_000_000


def account(
    solved: Solved, class_names: Sequence[str] | None, *, bootstrap: int, seed: int
) -> DebiasResult:
    """Tell what mending did.

    Args:
        solved: mended predictions, and what was asked of them.
        class_names: names for the tables.
        bootstrap: resamples for intervals; 0 for none.
        seed: of the resamples.
    """
    given, inside, labels = solved.given, solved.population, solved.labels
    values = given.mended(solved.logits)
    titles = tuple(map(str, class_names or range(values.size(1))))
    if len(titles) != values.size(1):
        raise InputError("class_names", f"{len(titles)} names for {values.size(1)} classes")
    mended = values if given.probabilities else values.softmax(1)
    proba = [given.proba.double(), mended.double()]
    chosen = [p.argmax(1) for p in proba]
    one = torch.eye(len(titles), dtype=torch.float64, device=inside.device)
    decided = [one[choice] for choice in chosen]
    sharp = [
        (logits.double() / solved.temperature).softmax(1)
        for logits in (given.logits, solved.logits)
    ]
    changed = chosen[0] != chosen[1]
    labelled = torch.zeros_like(inside) if labels is None else inside & (labels >= 0)
    right = [
        nan if labels is None else float((choice == labels)[labelled].double().mean())
        for choice in chosen
    ]
    ratio = proba[1].clamp_min(1e-300).log() - proba[0].clamp_min(1e-300).log()
    return DebiasResult(
        predictions=given.like(values),
        classes=titles,
        nodes=int(inside.sum()),
        changed=int((changed & inside).sum()),
        changed_elsewhere=int((changed & ~inside).sum()),
        divergence=max(float((proba[1] * ratio).sum(1)[inside].mean()), 0.0),
        labelled=int(labelled.sum()),
        accuracy_before=right[0],
        accuracy_after=right[1],
        criteria=criteria_held(
            solved.criteria,
            solved.measures,
            solved.attributes,
            inside,
            labels,
            (sharp[0], decided[0]),
            (sharp[1], decided[1]),
            proba[0],
            bootstrap=bootstrap,
            seed=seed,
        ),
        groups=group_changes(
            solved.attributes, inside, (proba[0], decided[0]), (proba[1], decided[1])
        ),
        resting=rests(solved.attributes, inside),
        warnings=solved.warnings,
    )


def criteria_held(
    criteria: Sequence[Criterion],
    measures: Sequence[Measure],
    attributes: Sequence[Attribute],
    population: Tensor,
    labels: Tensor | None,
    before: tuple[Tensor, Tensor],
    after: tuple[Tensor, Tensor],
    standing_in: Tensor,
    *,
    bootstrap: int,
    seed: int,
) -> tuple[CriterionResult, ...]:
    """Measure every criterion before and after, attribute by attribute.

    Args:
        criteria: what was asked for.
        measures: the criteria as measurements.
        attributes: the sensitive attributes.
        population: the nodes (n, bool).
        labels: true classes (n, −1 unknown).
        before: probabilities and decisions (one-hot) as given (n×C each).
        after: the same, mended.
        standing_in: what stands for the labels of unlabelled nodes (n×C).
        bootstrap: resamples for intervals; 0 for none.
        seed: of the resamples.
    """
    named = {attribute.name: attribute for attribute in attributes}
    asked = {criterion.name: criterion for criterion in criteria}
    held = []
    for name, attribute in dict.fromkeys((m.criterion, m.attribute) for m in measures):
        own = [m for m in measures if (m.criterion, m.attribute) == (name, attribute)]
        interval, predicted, where = None, None, "the population"
        if asked[name].matrix is not None:
            where = "the nodes the matrix weighs"
        elif asked[name].on_labels:
            assert labels is not None
            where = "labelled nodes of the population"
            interval = _interval(own, after[0], bootstrap, seed)
            predicted = _predicted(
                own, named[attribute], population, labels, before[0], after[0], standing_in,
                bootstrap=bootstrap, seed=seed,
            )  # fmt: skip
        held.append(
            CriterionResult(
                name,
                attribute,
                asked[name].target,
                before=_largest(own, before[0]),
                after=_largest(own, after[0]),
                decisions_before=_largest(own, before[1]),
                decisions_after=_largest(own, after[1]),
                where=where,
                nodes=int(_union(own).sum()),
                interval=interval,
                predicted=predicted,
            )
        )
    return tuple(held)


def group_changes(
    attributes: Sequence[Attribute],
    population: Tensor,
    before: tuple[Tensor, Tensor],
    after: tuple[Tensor, Tensor],
) -> tuple[GroupChange, ...]:
    """Tell of each group what was decided before and after, and how many decisions changed."""
    changed = (before[1] != after[1]).any(1)
    rows = []
    for attribute in attributes:
        codes = attribute.hard
        for g, group in enumerate([*attribute.groups, "unknown"]):
            unknown = g == len(attribute.groups)
            inside = population & (codes == (-1 if unknown else g))
            if unknown and not bool(inside.any()):
                continue
            weight = inside.double() if unknown else attribute.membership[:, g] * population
            rates = [
                tuple(((weight @ p) / weight.sum().clamp_min(1e-300)).tolist())
                for p in (before[1], after[1], before[0], after[0])
            ]
            rows.append(
                GroupChange(
                    attribute.name, group, int(inside.sum()), int(changed[inside].sum()), *rates
                )
            )
    return tuple(rows)


def rests(attributes: Sequence[Attribute], population: Tensor) -> tuple[GroupUncertainty, ...]:
    """Tell how much of each attribute's groups is probable instead of known, where any is."""
    found = []
    for attribute in attributes:
        inside = attribute.estimated & population
        left_out = int((population & ~attribute.known).sum())
        if not left_out and not bool(inside.any()):
            continue
        weights = attribute.membership * population.unsqueeze(1)
        probable = weights[inside].sum(0)
        total = weights.sum(0)
        shares = (probable / total.clamp_min(1e-300)).tolist()
        estimate = attribute.estimate
        found.append(
            GroupUncertainty(
                attribute.name,
                int(inside.sum()),
                float(probable.sum() / total.sum().clamp_min(1e-300)),
                dict(zip(attribute.groups, shares, strict=True)),
                left_out,
                *(() if estimate is None else (estimate.accuracy, estimate.baseline)),
            )
        )
    return tuple(found)


def _largest(measures: Sequence[Measure], p: Tensor) -> float:
    return max(measure.gap(p) for measure in measures)


def _union(measures: Sequence[Measure]) -> Tensor:
    inside = torch.stack([_measured(measure.delta) for measure in measures])
    return inside.any(0)


def _measured(delta: GroupOperator) -> Tensor:
    if delta.population_codes is not None:
        return delta.population_codes >= 0
    return (delta.population_membership != 0).any(1)


def _predicted(
    measures: Sequence[Measure],
    attribute: Attribute,
    population: Tensor,
    labels: Tensor,
    before: Tensor,
    after: Tensor,
    standing_in: Tensor,
    *,
    bootstrap: int,
    seed: int,
) -> Predicted:
    known = population & attribute.known
    elsewhere = _soft(measures, attribute, known & (labels < 0), standing_in)
    here = _soft(measures, attribute, known & (labels >= 0), standing_in)
    return Predicted(
        int((known & (labels < 0)).sum()),
        _largest(elsewhere, before) if elsewhere else nan,
        _largest(elsewhere, after) if elsewhere else nan,
        _interval(elsewhere, after, bootstrap, seed) if elsewhere else None,
        _largest(here, after) if here else nan,
    )


def _soft(
    measures: Sequence[Measure], attribute: Attribute, nodes: Tensor, standing_in: Tensor
) -> list[Measure]:
    """The same measurements on other nodes, with probabilities for labels."""
    found = []
    for measure in measures:
        assert measure.label is not None
        weights = attribute.membership * standing_in[:, [measure.label]]
        counts = weights[nodes].sum(0)
        if int((counts > 0).sum()) < 2:
            continue
        delta = GroupOperator(weights, nodes, between(counts))
        found.append(replace(measure, delta=delta))
    return found


def _interval(
    measures: Sequence[Measure], p: Tensor, resamples: int, seed: int
) -> tuple[float, float] | None:
    """Percentiles of the largest gap when nodes are drawn again (each a Poisson number of times).

    A largest gap is never negative, so on few nodes it is biased upwards, and its interval too.
    """
    if not resamples:
        return None
    nodes = _union(measures)
    blocks, shapes = [], []
    for measure in measures:
        weights = measure.delta.population_membership[nodes].double()
        chosen = p[nodes][:, list(measure.classes)].double()
        blocks += [weights, (weights.unsqueeze(2) * chosen.unsqueeze(1)).flatten(1)]
        shapes.append((weights.size(1), chosen.size(1)))
    table = torch.cat(blocks, 1).cpu().numpy()
    rng = np.random.default_rng(seed)
    step = max(1, _CHUNK // max(len(table), 1))
    sums = np.concatenate(
        [
            rng.poisson(1.0, (min(step, resamples - k), len(table))) @ table
            for k in range(0, resamples, step)
        ]
    )
    gaps, at = [], 0
    for groups, classes in shapes:
        counts = sums[:, at : at + groups, None]
        at += groups
        parts = sums[:, at : at + groups * classes].reshape(-1, groups, classes)
        at += groups * classes
        gaps.append(_gaps(counts, parts))
    low, high = np.quantile(np.max(gaps, axis=0), [0.025, 0.975])
    return float(low), float(high)


def _gaps(counts: np.ndarray, parts: np.ndarray) -> np.ndarray:
    """The largest gap of each resample, as the incidence's rows would have it."""
    there = counts > 0
    rates = np.divide(parts, counts, out=np.zeros_like(parts), where=there)
    total = counts.sum(1, keepdims=True)
    whole = np.divide(
        parts.sum(1, keepdims=True), total, out=np.zeros_like(parts[:, :1]), where=total > 0
    )
    apart = np.where(there, np.abs(rates - whole), 0.0).max((1, 2))
    high = np.where(there, rates, -np.inf).max(1)
    low = np.where(there, rates, np.inf).min(1)
    few = there.sum((1, 2))
    return np.where(few == 2, (high - low).max(1), np.where(few < 2, 0.0, apart))

"""Live panel of a report: what each target and criterion would do, computed with ``debias``."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from threadpoolctl import threadpool_limits

from fairmp.errors import InputError
from fairmp.metrics.calibration import reliability_curve
from fairmp.metrics.evaluation import CRITERIA, TITLES, json_safe
from fairmp.report.content import (
    Document,
    PanelCriterion,
    PanelFigures,
    PanelRecord,
    Point,
    Reliability,
)
from fairmp.report.formats import per_hundred, points

if TYPE_CHECKING:
    from torch import Tensor

    from fairmp.postprocessing.result import DebiasResult, GroupChange
    from fairmp.training.classifier import FairClassifier

QUESTIONS = {
    "demographic_parity": "equal rates of decisions (parity)",
    "equal_opportunity": "equal rates at equal labels (equal opportunity)",
    "equalized_odds": "equal error rates (equalized odds)",
}
# Targets of each criterion: so many nodes × targets, for a few seconds, and none for more nodes.
WORK = {"dp": 1_000_000, "eo": 200_000, "odds": 80_000}
MAX_NODES = {"dp": 4_000_000, "eo": 1_000_000, "odds": 100_000}
MIN_STEPS, MAX_STEPS = 5, {"dp": 40, "eo": 40, "odds": 16}
MAX_GROUPS, MAX_CLASSES = 12, 8
MIN_GAP = 0.005  # a smaller gap has no trade-off to show


@dataclass(frozen=True)
class _Corrections:
    """Results of one criterion for a range of targets."""

    before: DebiasResult  # target 1: nothing is corrected
    steps: list[PanelFigures]


def live_parts(
    model: FairClassifier, logits: Tensor, y: Tensor, sens: Tensor, *, command: str = ""
) -> Document:
    """Panel, curve and reliability of a classifier's uncorrected logits for some nodes.

    ``command`` is that of :func:`panel`.
    """
    record = panel(
        logits,
        sens,
        y,
        criterion=model.criterion,
        target=model.gap_target or 0.0,
        command=command,
        group_names=model.groups_,
        class_names=model.classes_,
        kind="logits",
    )
    return {
        "panel": record,
        "curve": _parity_curve(record),
        "reliability": reliability(logits, sens, y, group_names=model.groups_, kind="logits"),
    }


def _parity_curve(record: PanelRecord | None) -> list[Point]:
    """Accuracy at each ΔDP of a panel, from the fairest; empty if there is no gap to close."""
    if record is None or not record["before"]["dp"] > MIN_GAP:
        return []
    steps = [record["before"]]
    for criterion in record["criteria"]:
        if criterion["gap"] == "dp":
            steps += criterion["steps"]
    pairs = {(step["dp"], step["accuracy"]) for step in steps if step["accuracy"] is not None}
    return [{"gap": dp, "accuracy": accuracy} for dp, accuracy in sorted(pairs)]


def panel(
    scores: Any,
    sens: Any,
    y: Any = None,
    *,
    criterion: str = "demographic_parity",
    target: float = 0.0,
    command: str = "",
    group_names: Sequence[str] | None = None,
    **options: Any,
) -> PanelRecord | None:
    """Aggregates of :func:`fairmp.debias` for targets from 0 to the uncorrected gap.

    Contains rates and counts per group, never rows. Criteria that need labels are left out without
    them, and so are criteria that hold already; None if nothing is left.

    Args:
        scores: as for ``debias``, like ``sens`` and ``y``.
        sens: groups.
        y: labels.
        criterion: the criterion that is shown first.
        target: the target that is shown first.
        command: command that makes the chosen correction, with ``{criterion}`` and ``{target}`` in
            place of the values.
        group_names: names by code, if ``sens`` has codes.
        options: further arguments of ``debias``.
    """
    from fairmp.postprocessing.solver import debias

    correct = partial(debias, scores, sens, y=y, full_output=True, **options)
    record: PanelRecord = {}
    criteria: list[PanelCriterion] = []
    # Waking more threads costs more than they save in passes this short.
    with threadpool_limits(limits=1):
        for name, gap in CRITERIA.items():
            if y is None and gap != "dp":
                continue
            goal = target if name == criterion else 0.0
            corrections = _corrections(partial(correct, criterion=name), gap, goal)
            if corrections is None:
                continue
            if not record:
                record = _heading(corrections.before, group_names)
            if len(corrections.steps) > 1:
                if name == criterion:
                    record["start"] = len(criteria)
                criteria.append(_criterion(name, corrections, goal, command))
    if not criteria:
        return None
    record["criteria"] = criteria
    return cast(PanelRecord, json_safe(record))


def _criterion(name: str, corrections: _Corrections, goal: float, command: str) -> PanelCriterion:
    steps = corrections.steps
    command = command.replace("{criterion}", name.replace("_", "-"))
    return {
        "name": name,
        "title": QUESTIONS[name],
        "gap": CRITERIA[name],
        "command": command,
        "start": min(sum(step["target"] < goal for step in steps), len(steps) - 1),
        "steps": steps,
    }


def _corrections(
    correct: Callable[..., DebiasResult], gap: str, goal: float
) -> _Corrections | None:
    """Correct decisions to several targets; None if it is impossible."""
    # A criterion needs a class that is labelled in two groups. A gap that is left over is shown
    # rather than warned of.
    with suppress(InputError), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        before = correct(target=1.0)
        steps = [_step(correct(target=target), target) for target in _targets(before, gap, goal)]
        return _Corrections(before, steps)
    return None


def _targets(before: DebiasResult, gap: str, goal: float) -> list[float]:
    """Targets from 0 to the uncorrected gap; none if there is no gap, or too much to compute."""
    largest, n = before.criteria[0].decisions_before, before.nodes
    if not largest > 0 or n > MAX_NODES[gap]:
        return []
    count = min(max(WORK[gap] // n, MIN_STEPS), MAX_STEPS[gap])
    rounded = (math.ceil(1e4 * largest * k / count - 1e-9) / 1e4 for k in range(count + 1))
    return sorted({*rounded, goal if goal < largest else 0.0})


def reliability(
    scores: Any,
    sens: Any,
    y: Any,
    *,
    group_names: Sequence[str] | None = None,
    kind: str = "auto",
) -> list[Reliability]:
    """Reliability curves by group of the first attribute; with several classes of the likeliest."""
    from fairmp.postprocessing.predictions import attributes, read_scores

    proba = read_scores(scores, kind).proba
    if y is None:
        return []
    if proba.size(1) > 2:
        top, label = proba.max(1), np.asarray(y)
        proba, y = top.values, np.where(label < 0, -1, label == top.indices.numpy())
    first = attributes(sens, len(proba))[0]
    names = first.groups if group_names is None else group_names
    curves = reliability_curve(proba.double().clamp(0, 1), y, first.hard, group_names=names)
    return [cast(Reliability, {**vars(curve), "error": curve.error}) for curve in curves]


def _heading(result: DebiasResult, names: Sequence[str] | None) -> PanelRecord:
    """What does not change with the target."""
    groups = _groups(result)
    return {
        "classes": list(result.classes[_shown_classes(result)]),
        "groups": [g.group if names is None else names[int(g.group)] for g in groups],
        "nodes": [g.nodes for g in groups],
        "total": result.nodes,
        "before": _figures(result, "before"),
    }


def _step(result: DebiasResult, target: float) -> PanelFigures:
    changed = [g.changed for g in _groups(result)]
    return {
        "target": target,
        **_figures(result, "after"),
        "changed": changed,
        "total": result.changed,
    }


def _figures(result: DebiasResult, when: str) -> PanelFigures:
    """Accuracy, the largest gap of each criterion over the attributes, and rates by group."""
    gaps: dict[str, float] = {}
    for criterion in (*result.criteria, *result.others):
        if key := CRITERIA.get(criterion.criterion):
            gaps[key] = max(gaps.get(key, 0.0), getattr(criterion, f"decisions_{when}"))
    figures: dict[str, Any] = {"accuracy": getattr(result, f"accuracy_{when}"), **gaps}
    figures = {key: round(float(value), 5) for key, value in figures.items()}
    figures["rates"] = [
        [round(float(rate), 5) for rate in getattr(g, f"decided_{when}")[_shown_classes(result)]]
        for g in _groups(result)
    ]
    return cast(PanelFigures, figures)


def _shown_classes(result: DebiasResult) -> slice:
    return slice(1, 2) if len(result.classes) == 2 else slice(0, MAX_CLASSES)


def _groups(result: DebiasResult) -> list[GroupChange]:
    return [g for g in result.groups if g.known and g.nodes][:MAX_GROUPS]


def table(record: PanelRecord, noun: str) -> tuple[list[str], list[list[str]]]:
    """Header and rows that say the same as the panel."""
    before = record["before"]
    keys = [key for key in ("accuracy", *CRITERIA.values()) if before.get(key) is not None]
    titles = ["accuracy %" if key == "accuracy" else TITLES[key] for key in keys]
    rates = [f"{group}: {name} %" for group in record["groups"] for name in record["classes"]]
    header = ["criterion", "target", *titles, f"changed of 100 {noun}", *rates]
    rows = []
    for criterion in record["criteria"]:
        for step in criterion["steps"]:
            row = [criterion["name"].replace("_", " "), f"{100 * step['target']:.2f}"]
            row += [points(cast(float | None, step.get(key))) for key in keys]
            row.append(per_hundred(step["total"] / record["total"]))
            rows.append(row + [points(rate) for group in step["rates"] for rate in group])
    return header, rows

"""Live panel of a report: what each target and criterion would do, computed with ``debias``."""

from __future__ import annotations

import warnings
from bisect import bisect_left
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
from fairmp.report.formats import EVEN, per_hundred, points

if TYPE_CHECKING:
    from torch import Tensor

    from fairmp.postprocessing.result import DebiasResult, GroupChange
    from fairmp.training.classifier import FairClassifier

QUESTIONS = {
    "demographic_parity": "equal rates of decisions (parity)",
    "equal_opportunity": "equal rates at equal labels (equal opportunity)",
    "false_positive_rate_parity": "equal rates of false positives",
    "equalized_odds": "equal error rates (equalized odds)",
}
# Criteria with slow corrections are left out for many nodes: a page takes a few seconds.
MAX_NODES = {"dp": 4_000_000, "eo": 1_000_000, "fpr": 1_000_000, "odds": 100_000}
TARGETS = (0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0)
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

    ``command`` is that of :func:`panel`. A group-free model has no panel, since every position of
    its slider would use groups.
    """
    curves = reliability(logits, sens, y, group_names=model.groups_, kind="logits")
    if model.group_free:
        return {"reliability": curves}
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
        "reliability": curves,
    }


def show_own_figures(document: Document, criterion: str) -> None:
    """Let the panel show the document's figures before the correction and at the model's target.

    The other positions are post-processed; the model may correct in other ways, and its own figures
    are those of the headline and the cards.
    """
    record = document.get("panel")
    if not record:
        return
    record["before"] |= _own_figures(document, record, "before")
    for shown in record["criteria"]:
        if shown["name"] == criterion:
            start = shown["start"]
            after = _own_figures(document, record, "after")
            shown["steps"][start] = {**shown["steps"][start], **after}


def _own_figures(document: Document, record: PanelRecord, when: str) -> PanelFigures:
    """Metrics, rates and changes of a document, for the groups of a panel."""
    figures: dict[str, Any] = {
        metric["key"]: round(float(value), 5)
        for metric in document["metrics"]
        if (value := cast(float | None, metric.get(when))) is not None
    }
    groups = {group["name"]: group for group in document["groups"]}
    shown = slice(1, 2) if len(document["classes"]) == 2 else slice(0, MAX_CLASSES)
    if set(record["groups"]) <= groups.keys():
        members = [groups[name] for name in record["groups"]]
        rates = [cast(list[float], member[when])[shown] for member in members]  # type: ignore[literal-required]
        figures["rates"] = [[round(float(rate), 5) for rate in row] for row in rates]
        changes = [member.get("changed") for member in members]
        if when == "after" and None not in changes:
            figures["changed"] = changes
            figures["total"] = sum(group.get("changed") or 0 for group in groups.values())
    return cast(PanelFigures, figures)


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

    Example:
        >>> rng = np.random.default_rng(0)
        >>> sens = rng.integers(0, 2, 1000)
        >>> scores = 1 / (1 + np.exp(-rng.normal(size=1000) - sens))
        >>> record = panel(scores, sens, target=0.02)
        >>> header, rows = criteria_table(record, "people")
        >>> for row in [header, *rows]:
        ...     print(" | ".join(row))
        choice | ΔDP, points | people changed
        no correction | 40.2 | 0
        demographic parity, target 2 | 1.9 | 189
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
    """Round targets from 0 to the uncorrected gap; none if there is no gap, or too many nodes."""
    largest, n = before.criteria[0].decisions_before, before.nodes
    if not largest > 0 or n > MAX_NODES[gap]:
        return []
    # Up to the first that leaves everything as it is.
    last = bisect_left(TARGETS, largest)
    return sorted({*TARGETS[: last + 1], *([goal] if goal < largest else [])})


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


def criteria_table(record: PanelRecord, noun: str) -> tuple[list[str], list[list[str]]]:
    """What no correction and each criterion would do at the target that is shown first."""
    keys = _gap_keys(record)
    titles = ["accuracy %" if key == "accuracy" else f"{TITLES[key]}, points" for key in keys]
    choices: list[tuple[str, PanelFigures]] = [("no correction", record["before"])]
    choices += [(_name(criterion), _start(criterion)) for criterion in record["criteria"]]
    rows = []
    for name, figures in choices:
        target = f", target {100 * figures['target']:g}" if "target" in figures else ""
        row = [name + target, *(points(cast(float | None, figures.get(key))) for key in keys)]
        rows.append([*row, f"{figures.get('total', 0):,}"])
    return ["choice", *titles, f"{noun} changed"], rows


def most_accurate(record: PanelRecord) -> str | None:
    """The most accurate of the criteria whose own gap becomes smaller; None if accuracy is unknown.

    A choice that leaves its own gap as it is corrects nothing.
    """
    accuracies = {
        _name(criterion): accuracy
        for criterion in record["criteria"]
        if (accuracy := _start(criterion).get("accuracy")) is not None
        and _own_gap(criterion, _start(criterion)) < _own_gap(criterion, record["before"]) - EVEN
    }
    if not accuracies:
        return None
    best = max(accuracies, key=lambda name: accuracies[name])
    return f"{best}, {points(accuracies[best])} %"


def unreached(record: PanelRecord) -> list[str]:
    """Name the criteria whose gap stays above the target that is shown first."""
    sentences = []
    for criterion in record["criteria"]:
        target = _start(criterion)["target"]
        smallest = min(_own_gap(criterion, step) for step in criterion["steps"])
        if _own_gap(criterion, _start(criterion)) > target + EVEN:
            name = _name(criterion)
            sentences.append(
                f"{name[0].upper()}{name[1:]} does not reach its target of {100 * target:g}: "
                f"{points(smallest)} is the smallest gap found."
            )
    return sentences


def _name(criterion: PanelCriterion) -> str:
    return criterion["name"].replace("_", " ")


def _start(criterion: PanelCriterion) -> PanelFigures:
    """The step that is shown first."""
    return criterion["steps"][criterion["start"]]


def _own_gap(criterion: PanelCriterion, figures: PanelFigures) -> float:
    """The gap that a criterion is about."""
    return cast(float, figures[criterion["gap"]])  # type: ignore[literal-required]


def _gap_keys(record: PanelRecord) -> list[str]:
    return [k for k in ("accuracy", *CRITERIA.values()) if record["before"].get(k) is not None]


def table(record: PanelRecord, noun: str) -> tuple[list[str], list[list[str]]]:
    """Header and rows that say the same as the panel."""
    keys = _gap_keys(record)
    titles = ["accuracy %" if key == "accuracy" else TITLES[key] for key in keys]
    rates = [f"{group}: {name} %" for group in record["groups"] for name in record["classes"]]
    header = ["criterion", "target", *titles, f"changed of 100 {noun}", *rates]
    rows = []
    for criterion in record["criteria"]:
        for step in criterion["steps"]:
            row = [_name(criterion), f"{100 * step['target']:.2f}"]
            row += [points(cast(float | None, step.get(key))) for key in keys]
            row.append(per_hundred(step["total"] / record["total"]))
            rows.append(row + [points(rate) for group in step["rates"] for rate in group])
    return header, rows

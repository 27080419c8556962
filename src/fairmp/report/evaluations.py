"""An :class:`~fairmp.metrics.Evaluation` as text, notebook HTML, plot and report, in points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import numpy as np

from fairmp.errors import plural, plural_of
from fairmp.metrics.direction import RATES_OF_GAP
from fairmp.metrics.evaluation import CRITERIA, METRICS, TITLES, Evaluation, json_safe
from fairmp.metrics.intervals import sampling_floor
from fairmp.report.content import Document, Ends, GroupSummary, Metric, Point
from fairmp.report.figures import plot_rates
from fairmp.report.formats import GAP_NOTE, aligned, constant_decision_notes, points, ratio, to_html

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LED = {*RATES_OF_GAP, "ppv", "accuracy_gap"}  # gaps between groups, one of them ahead
LABELS = {
    "accuracy": "accuracy",
    "dp": "gap between groups (ΔDP)",
    "eo": "gap at equal labels (ΔEO)",
    "fpr": "gap in false positives (ΔFPR)",
    "odds": "gap in errors (Δodds)",
    "ppv": "gap in precision (ΔPPV)",
    "accuracy_gap": "gap in accuracy",
    "calibration_error": "largest calibration error of a group",
    "impact_ratio": "impact ratio",
}
UNITS = {"accuracy": "%", "impact_ratio": "ratio"}  # points elsewhere


def text(evaluation: Evaluation, noun: str = "node") -> str:
    """The figures with their intervals, a row per group, and the notes.

    ``noun`` is what a row is called, "person" in the program.
    """
    lines = [_title(evaluation, noun)]
    figures = _figures(evaluation)
    width = max(len(name) for name, _, _ in figures) + 1
    lines += [f"{name:<{width}}{value:>6}{interval}" for name, value, interval in figures]
    lines += aligned(_groups(evaluation, noun))
    return "\n".join([*lines, *(f"note: {note}" for note in evaluation.notes)])


def html(evaluation: Evaluation) -> str:
    """The same as two tables."""
    interval = f"{100 * evaluation.confidence:g} % interval"
    figures = [["", "points", interval], *_figures(evaluation)]
    return to_html(_title(evaluation), [figures, _groups(evaluation)], evaluation.notes)


def plot(evaluation: Evaluation, ax: Axes | None = None) -> Axes:
    """Draw each group's rate of decisions for the last class."""
    names = [group.name for group in evaluation.groups]
    sizes = [group.count for group in evaluation.groups]
    rates = {"after": [group.rates[-1] for group in evaluation.groups]}
    return plot_rates(names, sizes, rates, f"decided {evaluation.class_names[-1]}, %", ax)


def _title(evaluation: Evaluation, noun: str = "node") -> str:
    mode = f", mode {evaluation.mode}" if evaluation.mode else ""
    return f"{plural(evaluation.n, noun)}{mode}"


def _figures(evaluation: Evaluation) -> list[list[str]]:
    rows = []
    for key in METRICS:
        if math.isnan(getattr(evaluation, key)) and not _has_labels(evaluation):
            continue
        low, high = evaluation.intervals.get(key, (math.nan, math.nan))
        show = ratio if key == "impact_ratio" else points
        interval = "" if math.isnan(low) else f"  [{show(low)}, {show(high)}]"
        lead = evaluation.lead(key) if key in LED else None
        if lead is not None:
            interval += f"  {lead.ahead} ahead of {lead.behind}"
        rows.append([TITLES[key], show(getattr(evaluation, key)), interval])
    return rows


def _has_labels(evaluation: Evaluation) -> bool:
    return any(group.labelled for group in evaluation.groups)


def _groups(evaluation: Evaluation, noun: str = "node") -> list[list[str]]:
    """Header and rows of the table of groups; without labels only of what is known."""
    binary = len(evaluation.class_names) == 2
    titles = [f"P({name})" for name in evaluation.class_names]
    if binary:
        titles = [f"P({positive_name(evaluation.class_names)})"]
    if not _has_labels(evaluation):
        rows = [["group", plural_of(noun), *titles]]
        for group in evaluation.groups:
            decided = [group.positive_rate] if binary else group.rates
            rows.append([group.name, str(group.count), *map(points, decided)])
        return rows
    titles += ["TPR", "FPR", "PPV"] if binary else []
    rows = [["group", plural_of(noun), "labelled", "accuracy", *titles, "calibration error"]]
    for group in evaluation.groups:
        rates = (group.positive_rate, group.tpr, group.fpr, group.ppv) if binary else group.rates
        shares = map(points, (group.accuracy, *rates, group.calibration_error))
        rows.append([group.name, str(group.count), str(group.labelled), *shares])
    return rows


def positive_name(class_names: Sequence[str]) -> str:
    """The positive one of two classes: its name, or ``ŷ=1`` for numbers."""
    return f"ŷ={class_names[1]}" if class_names[1].isdigit() else class_names[1]


def cautions(evaluation: Evaluation) -> list[str]:
    """Notes on how to read an evaluation's figures."""
    notes = _constant_decisions(evaluation)
    if any(_interval(evaluation, key) for key in CRITERIA.values()):
        notes.append(GAP_NOTE)
    return notes


def _constant_decisions(evaluation: Evaluation) -> list[str]:
    rates = [group.rates for group in evaluation.groups if group.count]
    all_known = not _unknown_groups(evaluation)
    return constant_decision_notes(evaluation.class_names, rates, all_known=all_known)


def _unknown_groups(evaluation: Evaluation) -> int:
    """Number of nodes that belong to no known group."""
    return evaluation.n - sum(group.count for group in evaluation.groups)


def from_evaluations(
    after: Evaluation,
    before: Evaluation | None = None,
    target: float | None = None,
    criterion: str = "demographic_parity",
) -> Document:
    """Classes, groups and metrics of a report.

    Args:
        after: evaluation of the model.
        before: evaluation without its correction.
        target: the largest gap that was requested.
        criterion: what it is a gap of.

    Example:
        >>> from fairmp import evaluate
        >>> hired, sex = ["yes", "no", "yes", "yes"] * 10, ["f", "f", "m", "m"] * 10
        >>> document = from_evaluations(evaluate(hired, hired, sensitive_features=sex, bootstrap=0))
        >>> {group["name"]: group["after"] for group in document["groups"]}
        {'f': [0.5, 0.5], 'm': [0.0, 1.0]}
        >>> for metric in document["metrics"][:3]:
        ...     print(f"{metric['name']} {100 * metric['after']:.0f}: {metric['meaning']}")
        accuracy 100: share of correct decisions.
        ΔDP 50: largest difference between the groups' rates of the decision 'yes'.
        ΔEO 0: largest difference between the groups' rates of the decision 'yes' among those with
        the label 'yes'.
    """
    rates_before: dict[str, list[float | None]] = {}
    if before is not None:
        rates_before = {group.name: list(group.rates) for group in before.groups}
    groups: list[GroupSummary] = [
        {
            "name": group.name,
            "nodes": group.count,
            "labelled": group.labelled,
            "after": list(group.rates),
            "before": rates_before.get(group.name),
            "accuracy": group.accuracy,
            "ppv": None if len(group.ppvs) != 2 else group.ppvs[1],
            **_error_rates(group.name, after, before),
        }
        for group in after.groups
        if group.count
    ]
    metrics: list[Metric] = [
        {
            "key": key,
            "name": TITLES[key],
            "label": LABELS[key],
            "meaning": meaning,
            "unit": UNITS.get(key, "points"),
            "after": getattr(after, key),
            "after_interval": _interval(after, key),
            "before": None if before is None else getattr(before, key),
            "before_interval": None if before is None else _interval(before, key),
            "target": target if key == CRITERIA[criterion] else None,
        }
        for key, meaning in meanings(after.class_names).items()
        if not math.isnan(getattr(after, key))
    ]
    document: Document = {
        "classes": list(after.class_names),
        "groups": groups,
        "metrics": metrics,
        "target": target if criterion == "demographic_parity" else None,
        "notes": [*after.notes, *_constant_decisions(after)],
        "unknown_groups": _unknown_groups(after),
    }
    return cast(Document, json_safe(document))


def _error_rates(name: str, after: Evaluation, before: Evaluation | None) -> GroupSummary:
    """True- and false-positive rates of a group before and after, by class."""
    by_time = {"after": after, **({} if before is None else {"before": before})}
    groups = {
        when: next((group for group in evaluation.groups if group.name == name), None)
        for when, evaluation in by_time.items()
    }
    return {
        "tpr": {when: list(group.tprs) for when, group in groups.items() if group is not None},
        "fpr": {when: list(group.fprs) for when, group in groups.items() if group is not None},
    }


def meanings(classes: Sequence[str]) -> dict[str, str]:
    """What each metric measures."""
    decision, label, other = "a decision", "that label", "another label"
    if len(classes) == 2:
        decision, label = f"the decision {classes[1]!r}", f"the label {classes[1]!r}"
        other = f"the label {classes[0]!r}"
    gap = f"largest difference between the groups' rates of {decision}"
    return {
        "accuracy": "share of correct decisions.",
        "dp": f"{gap}.",
        "eo": f"{gap} among those with {label}.",
        "fpr": f"{gap} among those with {other}.",
        "odds": "the larger of ΔEO and ΔFPR.",
        "ppv": f"largest difference between the groups' shares of {label} among those with "
        f"{decision} (predictive parity).",
        "accuracy_gap": "largest difference between the groups' accuracies.",
        "calibration_error": "average distance of predicted probability and frequency, in the "
        "group where it is largest.",
        "impact_ratio": f"smallest over largest rate of {decision} (the four-fifths rule asks "
        "whether it is below 0.8).",
    }


def _interval(evaluation: Evaluation, key: str) -> Ends:
    low, high = evaluation.intervals.get(key, (math.nan, math.nan))
    return None if math.isnan(low) else [low, high]


def add_decisions(
    document: Document,
    group_names: Sequence[str],
    sens: np.ndarray,
    y: np.ndarray,
    after: np.ndarray,
    before: np.ndarray | None = None,
) -> None:
    """Add true positives and changed decisions to a document's groups, from codes, in place."""
    for group in document["groups"]:
        inside = sens == list(group_names).index(group["name"])
        if len(document["classes"]) == 2:
            positive = inside & (y == 1)
            group["positives"] = int(positive.sum())
            group["true_positives"] = int((after[positive] == 1).sum())
        if before is not None:
            pairs = np.stack([before, after])[:, inside & (before != after)]
            kinds, counts = np.unique(pairs, axis=1, return_counts=True)
            group["moves"] = np.vstack([kinds, counts]).T.tolist()
            group["changed"] = pairs.shape[1]
            if len(document["classes"]) > 2:
                labelled = inside & (y >= 0)
                group["turned"] = [
                    int((labelled & (before == y) & (after != y)).sum()),
                    int((labelled & (before != y) & (after == y)).sum()),
                ]
            else:
                lost = inside & (before == 1) & (after == 0) & (y >= 0)
                gained = inside & (before == 0) & (after == 1) & (y >= 0)
                group["paid"] = [
                    int(lost.sum()),
                    int(y[lost].sum()),
                    int(gained.sum()),
                    int((y[gained] == 0).sum()),
                ]


def point(name: str, kind: str, evaluation: Evaluation, key: str = "dp") -> Point:
    """A point of the trade-off from an evaluation."""
    return {
        "name": name,
        "kind": kind,
        "accuracy": evaluation.accuracy,
        "gap": getattr(evaluation, key),
        "accuracy_interval": _interval(evaluation, "accuracy"),
        "gap_interval": _interval(evaluation, key),
    }


def floor(evaluation: Evaluation) -> float:
    """The ΔDP that sampling alone leaves on the evaluated nodes, for the most variable class."""
    groups = [group for group in evaluation.groups if group.count]
    counts = [group.count for group in groups]
    shares = np.average([group.rates for group in groups], axis=0, weights=counts)
    return max(sampling_floor(counts, float(share)) for share in shares)


def per_node_warning(before: Evaluation, per_node: Evaluation) -> str:
    """Warn where correcting people one by one made test people less fair; empty if it did not.

    A difference that sampling alone would make is not called worse.
    """
    if per_node.dp <= before.dp + floor(per_node):
        return ""
    return (
        "where people are corrected one by one, ΔDP on the test people is "
        f"{points(per_node.dp)} points, worse than without a correction ({points(before.dp)})."
    )

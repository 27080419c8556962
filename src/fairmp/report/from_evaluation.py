"""Parts of a report from evaluations, and from decisions before and after a correction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fairmp.report.formatting import GAP_NOTE, constant_decision_notes
from fairmp.report.sections import Document, Ends, GroupSummary, Metric, Point


def cautions(evaluation: Mapping[str, Any]) -> list[str]:
    """Notes on how to read an evaluation's figures."""
    known = any(None not in (_interval(evaluation, key) or [None]) for key in ("dp", "eo", "odds"))
    return [*_constant(evaluation), *[GAP_NOTE] * known]


def _constant(evaluation: Mapping[str, Any]) -> list[str]:
    rates = [row["rates"] for row in evaluation["groups"] if row["count"]]
    return constant_decision_notes(evaluation["class_names"], rates)


def from_evaluations(
    after: Mapping[str, Any], before: Mapping[str, Any] | None = None, target: float | None = None
) -> Document:
    """Classes, groups and metrics of evaluations (:meth:`fairmp.metrics.Evaluation.to_dict`).

    Args:
        after: evaluation of the model.
        before: evaluation without its correction.
        target: the largest ΔDP that was requested.
    """
    rates_before = {g["name"]: list(g["rates"]) for g in (before or {}).get("groups", [])}
    groups: list[GroupSummary] = [
        {
            "name": group["name"],
            "nodes": group["count"],
            "labelled": group["labelled"],
            "after": list(group["rates"]),
            "before": rates_before.get(group["name"]),
            "accuracy": group["accuracy"],
        }
        for group in after["groups"]
        if group["count"]
    ]
    classes = list(after["class_names"])
    metrics: list[Metric] = [
        {
            "name": name,
            "label": label,
            "meaning": meaning,
            "unit": "%" if key == "accuracy" else "points",
            "after": after[key],
            "after_interval": _interval(after, key),
            "before": (before or {}).get(key),
            "before_interval": _interval(before or {}, key),
            "target": target if key == "dp" else None,
        }
        for key, name, label, meaning in _metrics(classes)
        if after[key] is not None
    ]
    notes = [*after.get("notes", []), *_constant(after)]
    document: Document = {"classes": classes, "groups": groups, "metrics": metrics}
    return {**document, "target": target, "notes": notes}


def _metrics(classes: Sequence[str]) -> list[tuple[str, str, str, str]]:
    """Key, name, label and meaning of each metric."""
    decision, label, other = "a decision", "that label", "another label"
    if len(classes) == 2:
        decision, label = f"the decision {classes[1]!r}", f"the label {classes[1]!r}"
        other = f"the label {classes[0]!r}"
    gap = f"largest difference between the groups' rates of {decision}"
    odds = f"the larger of ΔEO and the gap among those with {other}."
    return [
        ("accuracy", "accuracy", "accuracy", "share of correct decisions."),
        ("dp", "ΔDP", "gap between groups (ΔDP)", f"{gap}."),
        ("eo", "ΔEO", "gap at equal labels (ΔEO)", f"{gap} among those with {label}."),
        ("odds", "Δodds", "gap in errors (Δodds)", odds),
    ]


def _interval(evaluation: Mapping[str, Any], key: str) -> Ends:
    ends = evaluation.get("intervals", {}).get(key)
    return None if ends is None else list(ends)


def add_decisions(
    document: Document,
    group_names: Sequence[str],
    sens: np.ndarray,
    y: np.ndarray,
    after: np.ndarray,
    before: np.ndarray | None = None,
) -> None:
    """Add true positives and changed decisions to a document's groups, in place.

    ``group_names`` are by code; ``sens`` and ``y`` have −1 where unknown; ``after`` and ``before``
    are the predicted classes with and without the correction.
    """
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


def point(name: str, kind: str, evaluation: Mapping[str, Any], key: str = "dp") -> Point:
    """A point of the trade-off from an evaluation."""
    return {
        "name": name,
        "kind": kind,
        "accuracy": evaluation["accuracy"],
        "gap": evaluation[key],
        "accuracy_interval": _interval(evaluation, "accuracy"),
        "gap_interval": _interval(evaluation, key),
    }

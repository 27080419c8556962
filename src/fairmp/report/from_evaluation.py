"""Parts of a story made from evaluations, and from decisions before and after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fairmp.report.document import Criterion, GroupPart, Point, Story
from fairmp.report.formatting import LARGEST, one_decision


def cautions(evaluation: Mapping[str, Any]) -> list[str]:
    """What a reader of an evaluation's figures should know beside them.

    Example:
        >>> groups = [{"count": 9, "rates": [0.5, 0.5]}]
        >>> found = {"class_names": "ab", "groups": groups, "intervals": {"dp": [0.1, 0.2]}}
        >>> cautions(found) == [LARGEST]
        True
    """
    ends = [_interval(evaluation, key) for key in ("dp", "eo", "odds")]
    known = any(interval is not None and None not in interval for interval in ends)
    return [*_alike(evaluation), *[LARGEST] * known]


def _alike(evaluation: Mapping[str, Any]) -> list[str]:
    rates = [row["rates"] for row in evaluation["groups"] if row["count"]]
    return one_decision(evaluation["class_names"], rates)


def from_evaluations(
    after: Mapping[str, Any],
    before: Mapping[str, Any] | None = None,
    target: float | None = None,
    *,
    within: float | None = None,
) -> Story:
    """Classes, groups and criteria of evaluations, as :meth:`fairmp.metrics.Evaluation.to_dict`.

    Args:
        after: what the model does.
        before: what it would do without its correction.
        target: the largest ΔDP that was asked for.
        within: the target of a fair propagation, in its stead. For two groups it bounds ΔDP; for
            more it bounds how far each is from the whole, so that ΔDP may be twice as large.

    Example:
        >>> from fairmp.metrics import evaluate
        >>> scores = np.array([[0.2, 0.8], [0.9, 0.1], [0.3, 0.7], [0.6, 0.4]])
        >>> found = evaluate(scores, [1, 0, 1, 1], [0, 0, 1, 1], bootstrap=0)
        >>> story = from_evaluations(found.to_dict())
        >>> [criterion["name"] for criterion in story["criteria"]]
        ['accuracy', 'ΔDP', 'ΔEO']
        >>> story["groups"][1]["after"]
        [0.5, 0.5]
    """
    several = len(after["groups"]) > 2
    if within is not None:
        target = min(1.0, 2 * within) if several else within
    earlier = {} if before is None else {row["name"]: row for row in before["groups"]}
    groups: list[GroupPart] = []
    for row in after["groups"]:
        if not row["count"]:
            continue
        then = earlier.get(row["name"])
        groups.append(
            {
                "name": row["name"],
                "nodes": row["count"],
                "labelled": row["labelled"],
                "after": list(row["rates"]),
                "before": None if then is None else list(then["rates"]),
                "accuracy": row["accuracy"],
            }
        )
    classes = list(after["class_names"])
    criteria: list[Criterion] = []
    for key, name, label, meaning in _criteria(classes):
        if after[key] is None:
            continue
        criteria.append(
            {
                "name": name,
                "label": label,
                "meaning": meaning,
                "unit": "%" if key == "accuracy" else "points",
                "after": after[key],
                "after_interval": _interval(after, key),
                "before": None if before is None else before[key],
                "before_interval": None if before is None else _interval(before, key),
                "target": target if key == "dp" else None,
                "within": within if key == "dp" and several else None,
            }
        )
    return {
        "classes": classes,
        "groups": groups,
        "criteria": criteria,
        "target": target,
        "notes": [*after.get("notes", []), *_alike(after)],
    }


def _criteria(classes: Sequence[str]) -> list[tuple[str, str, str, str]]:
    """Key, name, what it is for a glance, and what it means."""
    decided, truly = "decided for a class", "truly of a class"
    rest = "the larger of that and the same difference among those who are not."
    if len(classes) == 2:
        decided, truly = f"decided {classes[1]!r}", f"whose true label is {classes[1]!r}"
        rest = "the larger of that and the same difference among all others."
    return [
        ("accuracy", "accuracy", "right decisions (accuracy)", "how many of 100 are right."),
        (
            "dp",
            "ΔDP",
            "gap between groups (ΔDP)",
            f"how far apart the groups are in the share {decided}.",
        ),
        (
            "eo",
            "ΔEO",
            "gap among the truly positive (ΔEO)"
            if len(classes) == 2
            else "gap among the truly so (ΔEO)",
            f"how far apart they are in the share {decided} among those {truly}.",
        ),
        ("odds", "Δodds", "gap in errors (Δodds)", rest),
    ]


def _interval(evaluation: Mapping[str, Any], key: str) -> list[float | None] | None:
    ends = evaluation.get("intervals", {}).get(key)
    return None if ends is None else list(ends)


def add_decisions(
    story: Story,
    group_names: Sequence[str],
    sens: np.ndarray,
    y: np.ndarray,
    after: np.ndarray,
    before: np.ndarray | None = None,
) -> None:
    """Add to a story's groups who was found, and whose decision changed.

    Args:
        story: with ``groups``; it is changed.
        group_names: the groups' names, by code.
        sens: group of each node, −1 unknown.
        y: true class, −1 unknown.
        after: decided class.
        before: the same without the correction.
    """
    named = {name: code for code, name in enumerate(group_names)}
    two = len(story["classes"]) == 2
    for group in story["groups"]:
        inside = sens == named[group["name"]]
        if two:
            positive = inside & (y == 1)
            group["positives"] = int(positive.sum())
            group["found"] = int((after[positive] == 1).sum())
        if before is None:
            continue
        pairs, counts = np.unique(
            np.stack([before[inside], after[inside]]), axis=1, return_counts=True
        )
        group["moves"] = [
            [int(a), int(b), int(count)]
            for a, b, count in zip(*pairs, counts, strict=True)
            if a != b
        ]
        group["changed"] = sum(move[2] for move in group["moves"])


def point(name: str, kind: str, evaluation: Mapping[str, Any], key: str = "dp") -> Point:
    """A point of the trade-off from an evaluation.

    Example:
        >>> point("mine", "chosen", {"accuracy": 0.8, "dp": 0.01})["gap"]
        0.01
    """
    return {
        "name": name,
        "kind": kind,
        "accuracy": evaluation["accuracy"],
        "gap": evaluation[key],
        "accuracy_interval": _interval(evaluation, "accuracy"),
        "gap_interval": _interval(evaluation, key),
    }

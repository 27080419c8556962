"""Live panel of a report: what each target and criterion would do, computed with ``debias``."""

from __future__ import annotations

import math
import shlex
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from fairmp.errors import InputError
from fairmp.metrics.calibration import reliability_curve
from fairmp.metrics.evaluation import CRITERIA, TITLES, canonical, json_safe
from fairmp.report.formats import per_hundred, points

QUESTIONS = {
    "demographic_parity": "equal rates of decisions (parity)",
    "equal_opportunity": "equal rates at equal labels (equal opportunity)",
    "equalized_odds": "equal error rates (equalized odds)",
}
SOFT = 0.1  # temperature where the gap of decisions itself cannot be closed
# Targets of each criterion: so many nodes × targets, for a few seconds, and none for more nodes.
WORK = {"dp": 1_000_000, "eo": 200_000, "odds": 80_000}
MAX_NODES = {"dp": 4_000_000, "eo": 1_000_000, "odds": 100_000}
MIN_STEPS, MAX_STEPS = 5, {"dp": 40, "eo": 40, "odds": 16}
MAX_GROUPS, MAX_CLASSES = 12, 8
REPLACED = (  # options that the chosen point takes the place of
    *("--criterion", "--target", "--matrix", "--temperature", "--solver", "--lambda-f"),
    *("--out", "--save"),
)


@threadpool_limits.wrap(limits=1)  # waking others costs more than passes this short save
def panel(
    predictions: Any,
    sens: Any,
    labels: Any = None,
    *,
    group_names: Sequence[str] | None = None,
    command: str = "",
    **options: Any,
) -> dict[str, Any] | None:
    """Aggregates of :func:`fairmp.debias` for targets from 0 to the uncorrected gap.

    Contains rates and counts per group, never rows. Criteria that need labels are left out without
    them, and so are criteria that hold already; None if nothing is left.

    Args:
        predictions: as for ``debias``, like ``sens`` and ``labels``.
        sens: groups.
        labels: true classes.
        group_names: names by code, if ``sens`` has codes.
        command: command line that the chosen target and criterion are added to.
        options: further arguments of ``debias``.
    """
    from fairmp.postprocessing.solver import debias

    found: dict[str, Any] = {}
    own, goal = _requested(command)
    for name, gap_key in CRITERIA.items():
        if labels is None and gap_key != "dp":
            continue
        fixed = {**options, "labels": labels, "criterion": name, "full_output": True}
        steps = []
        for temperature in ("decisions", SOFT):
            fixed["temperature"] = temperature
            # A gap that is left over is shown rather than warned of. No class labelled in two
            # groups is an error, and decisions of some criteria are.
            with suppress(InputError), warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                start = debias(predictions, sens, target=1.0, **fixed)
                found |= _heading(start, group_names) if not found else {}
                steps = [
                    _step(debias(predictions, sens, target=target, **fixed), target)
                    for target in _targets(start, gap_key, goal if name == own else 0.0)
                ]
                break
        if len(steps) > 1:
            line = _command(command, name, fixed["temperature"])
            criterion = {"name": name, "title": QUESTIONS[name], "gap": gap_key, "command": line}
            if name == own:  # where the page starts
                found["start"] = len(found.get("criteria", []))
                criterion["start"] = min(sum(s["target"] < goal for s in steps), len(steps) - 1)
            found.setdefault("criteria", []).append({**criterion, "steps": steps})
    return json_safe(found) if found.get("criteria") else None


def _targets(result: Any, key: str, goal: float) -> list[float]:
    """Targets from 0 to the uncorrected gap; none if there is no gap, or too much to compute."""
    gap, n = result.criteria[0].decisions_before, result.nodes
    if not gap > 0 or n > MAX_NODES[key]:
        return []
    count = min(max(WORK[key] // n, MIN_STEPS), MAX_STEPS[key])
    rounded = (math.ceil(1e4 * gap * k / count - 1e-9) / 1e4 for k in range(count + 1))
    return sorted({*rounded, goal if goal < gap else 0.0})


def reliability(
    predictions: Any,
    sens: Any,
    labels: Any,
    *,
    group_names: Sequence[str] | None = None,
    kind: str = "auto",
) -> list[dict[str, Any]]:
    """Reliability curves by group of the first attribute; with several classes of the likeliest."""
    from fairmp.postprocessing.predictions import attributes, read

    proba = read(predictions, kind).proba
    if labels is None:
        return []
    if proba.size(1) > 2:
        top, y = proba.max(1), np.asarray(labels)
        proba, labels = top.values, np.where(y < 0, -1, y == top.indices.numpy())
    first = attributes(sens, len(proba))[0]
    names = first.groups if group_names is None else group_names
    curves = reliability_curve(proba.double().clamp(0, 1), labels, first.hard, group_names=names)
    return [{**vars(curve), "error": curve.error} for curve in curves]


def _heading(result: Any, names: Sequence[str] | None) -> dict[str, Any]:
    """What does not change with the target."""
    groups = _groups(result)
    return {
        "classes": list(result.classes[_shown(result)]),
        "groups": [g.group if names is None else names[int(g.group)] for g in groups],
        "nodes": [g.nodes for g in groups],
        "total": result.nodes,
        "before": _figures(result, "before"),
    }


def _step(result: Any, target: float) -> dict[str, Any]:
    changed = [g.changed for g in _groups(result)]
    figures = {"target": target, **_figures(result, "after")}
    return {**figures, "changed": changed, "total": result.changed}


def _figures(result: Any, when: str) -> dict[str, Any]:
    """Accuracy, the largest gap of each criterion over the attributes, and rates by group."""
    gaps: dict[str, float] = {}
    for one in (*result.criteria, *result.others):
        if key := CRITERIA.get(one.criterion):
            gaps[key] = max(gaps.get(key, 0.0), getattr(one, f"decisions_{when}"))
    rates = [getattr(g, f"decided_{when}")[_shown(result)] for g in _groups(result)]
    figures = {"accuracy": getattr(result, f"accuracy_{when}"), **gaps}
    rounded = {key: round(float(value), 5) for key, value in figures.items()}
    return {**rounded, "rates": [[round(float(rate), 5) for rate in own] for own in rates]}


def _shown(result: Any) -> slice:
    return slice(1, 2) if len(result.classes) == 2 else slice(0, MAX_CLASSES)


def _groups(result: Any) -> list[Any]:
    return [g for g in result.groups if g.group != "unknown" and g.nodes][:MAX_GROUPS]


def _requested(command: str) -> tuple[str, float]:
    """The criterion and target of a command line, the first where there are several."""
    words = shlex.split(command.replace("=", " "))
    given = dict(reversed(list(pairwise([*words, ""]))))
    return canonical(given.get("--criterion", "dp")), float(given.get("--target", 0.0))


def _command(command: str, criterion: str, temperature: Any) -> str:
    """The command line with another criterion and output; TARGET stands for the target."""
    given = [word for word in shlex.split(command) if word != "--overwrite"]
    words = [
        word
        for before, word in zip(["", *given], given, strict=False)
        if before not in REPLACED and word.partition("=")[0] not in REPLACED
    ]
    if not words:
        return ""
    words += ["--criterion", criterion.replace("_", "-"), "--target", "TARGET"]
    if "debias" in words[:2]:
        words += ["--temperature", str(temperature)]
    return shlex.join(words)


def table(found: Mapping[str, Any], noun: str) -> tuple[list[str], list[list[str]]]:
    """Header and rows that say the same as the panel."""
    keys = [key for key in CRITERIA.values() if key in found["before"]]
    labelled = found["before"]["accuracy"] is not None
    header = ["criterion", "target", *["accuracy %"] * labelled, *(TITLES[key] for key in keys)]
    header += [f"changed of 100 {noun}"]
    header += [f"{g}: {c} %" for g in found["groups"] for c in found["classes"]]
    rows = []
    for criterion in found["criteria"]:
        for step in criterion["steps"]:
            figures = ([step["accuracy"]] if labelled else []) + [step.get(key) for key in keys]
            row = [criterion["name"].replace("_", " "), f"{100 * step['target']:.2f}"]
            row += [*map(points, figures), per_hundred(step["total"] / found["total"])]
            rows.append(row + [points(rate) for own in step["rates"] for rate in own])
    return header, rows

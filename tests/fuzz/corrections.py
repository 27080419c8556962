"""``Debiaser`` against ``debias`` on the same rows: whoever misses a target says so."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np

from fairmp import Debiaser, InputError, debias
from fairmp.metrics.evaluation import CRITERIA
from tests.fuzz.harness import CaseFailed

TOLERANCE = 2e-4  # of a gap of probabilities


def gap(
    values: np.ndarray, group: np.ndarray, y: np.ndarray, weight: np.ndarray, criterion: str
) -> tuple[float, float]:
    """The largest gap of a criterion, in numpy, and what one row can change of it."""
    classes = values.shape[1]
    every = range(classes)
    one_sided = [1] if classes == 2 else every
    compared = {
        "demographic_parity": [(y == y, every)],
        "equal_opportunity": [(y == c, [c]) for c in one_sided],
        "false_positive_rate_parity": [(y != c, [c]) for c in one_sided],
        "equalized_odds": [(y == c, every) for c in every],
    }
    worst, one_row = 0.0, 0.0
    for labelled, columns in compared[criterion]:
        rows = (group >= 0) & (weight > 0) & labelled
        parts = [rows & (group == g) for g in np.unique(group[rows])]
        if len(parts) < 2:
            continue
        rates = np.array([np.average(values[part], axis=0, weights=weight[part]) for part in parts])
        worst = max(worst, float(np.ptp(rates[:, columns], axis=0).max()))
        one_row = max(one_row, *(weight[part].max() / weight[part].sum() for part in parts))
    return worst, 2 * one_row


def debiaser_case(rng: np.random.Generator, _: Path) -> str:
    """A random table; the fitted correction meets its target on it, or warns."""
    groups, classes = int(rng.integers(2, 7)), int(rng.integers(2, 5))
    many = rng.random() < 0.1
    if many:
        groups, classes = int(rng.integers(10, 60)), 2
    n = int(rng.integers(20 * groups, 20 * groups + 300))
    group = rng.integers(-1, groups, n)
    group[: 2 * groups] = np.arange(2 * groups) % groups
    logits = rng.normal(size=(n, classes)) * float(rng.choice([0.3, 1, 5, 50]))
    logits += rng.normal(size=(groups + 1, classes))[group]
    y = np.array([rng.choice(classes, p=p) for p in softmax(logits)])
    if rng.random() < 0.2:
        logits[rng.integers(n), rng.integers(classes)] = float(rng.choice([1e4, 1e7, 1e12]))
    if rng.random() < 0.2:
        logits = logits.astype(np.float32)
    weight = rng.choice([0.5, 1.0, 3.0], n) if rng.random() < 0.3 else None
    criterion = "demographic_parity" if many else str(rng.choice(list(CRITERIA)))
    on = str(rng.choice(["decisions", "probabilities"]))
    temperature = float(rng.choice([1.0, 0.3, 0.1])) if on == "probabilities" else 1.0
    target = float(rng.choice([0.0, 0.02, 0.2]))
    goal = {"criterion": criterion, "target": target, "on": on, "temperature": temperature}
    first = int(rng.choice([0, 2**53 + 1]))  # ids of groups, also beyond what floats hold
    names = np.array([str(first + code) if code >= 0 else "" for code in group])
    given = np.ones(n) if weight is None else weight

    def measured(scores: np.ndarray) -> tuple[float, float]:
        scores = np.asarray(scores, dtype=np.float64)
        values = softmax(scores / temperature)
        if on == "decisions":
            values = np.eye(classes)[scores.argmax(1)]
        return gap(values, group, y, given, criterion)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        debiaser = Debiaser(**goal, kind="logits", calibrate=False)
        debiaser.fit(logits, y, sensitive_features=names, sample_weight=weight)
    told = bool(caught)
    corrected = debiaser.transform(logits, sensitive_features=names)
    fitted, one_row = measured(corrected)
    try:
        stored = Debiaser.from_dict(json.loads(json.dumps(debiaser.to_dict())))
    except InputError as error:
        raise CaseFailed("what was saved cannot be loaded", str(error)) from None
    assert np.array_equal(stored.transform(logits, sensitive_features=names), corrected)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batch = debias(logits, group, y=y, sample_weight=weight, kind="logits", **goal)
    slack = TOLERANCE if on == "probabilities" else one_row + 1e-9
    if fitted > target + slack and not told:
        details = f"{goal}: gap {fitted:.4f}, debias {measured(batch)[0]:.4f}, {groups} groups"
        raise CaseFailed("a missed target without a warning", details)
    return "missed, warned" if fitted > target + slack else "met"


def softmax(logits: np.ndarray) -> np.ndarray:
    z = logits.astype(np.float64)
    p = np.exp(z - z.max(1, keepdims=True))
    return np.asarray(p / p.sum(1, keepdims=True))

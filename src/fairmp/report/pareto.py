"""Pareto front of accuracy and ΔDP, and its hypervolume."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from fairmp.errors import InputError
from fairmp.metrics import Interval, mean_interval

Point: TypeAlias = tuple[float, float]
"""Accuracy (more is better) and ΔDP (less is better), as fractions."""


def front(points: Iterable[Point]) -> list[Point]:
    """Pareto-optimal points, from the fairest to the most accurate.

    Duplicates are kept once; points with a ``nan`` are dropped.

    Example:
        >>> front([(0.8, 0.1), (0.7, 0.05), (0.75, 0.2), (0.7, 0.06)])
        [(0.7, 0.05), (0.8, 0.1)]
    """
    known = {point for point in points if not any(map(math.isnan, point))}
    kept: list[Point] = []
    for accuracy, dp in sorted(known, key=lambda point: (point[1], -point[0])):
        if not kept or accuracy > kept[-1][0]:
            kept.append((accuracy, dp))
    return kept


def hypervolume(points: Iterable[Point], reference: Point = (0.0, 1.0)) -> float:
    r"""Area dominated by points, as a share of the largest possible area.

    .. math::
        \frac{\left|\bigcup_i [a_0, a_i] × [d_i, d_0]\right|}{(1 - a_0)\, d_0}

    with the reference :math:`(a_0, d_0)`. In a comparison :math:`a_0` is the share of the test
    nodes' largest class, the accuracy of a constant prediction without a gap, and :math:`d_0 = 1`
    is the largest possible gap. 1 is a perfect classifier without a gap; at 0 no point is better
    than the reference in both.

    Args:
        points: accuracy and ΔDP of a method at its strengths.
        reference: :math:`(a_0, d_0)`.

    Example:
        >>> round(hypervolume([(0.8, 0.1), (0.7, 0.05)], reference=(0.6, 1.0)), 4)
        0.4625
    """
    floor, ceiling = reference
    if not (0 <= floor < 1 and 0 < ceiling <= 1):
        raise InputError(
            "reference",
            f"{reference} is not an accuracy in [0, 1) and a gap in (0, 1]",
            "give (0.0, 1.0)",
        )
    area, below = 0.0, floor
    for accuracy, dp in front(points):
        if accuracy > below and dp < ceiling:
            area += (accuracy - below) * (ceiling - dp)
            below = accuracy
    return area / ((1 - floor) * ceiling)


def over_splits(records: Sequence[Mapping[str, Any]]) -> Interval:
    """Hypervolume of a family of methods on one data set, with a 95 % jackknife interval.

    Points are means over splits, one per strength: maxima over single splits would be biased.
    """
    splits = sorted({record["split"] for record in records})
    n, overall = len(splits), _of(records)
    if n < 2:
        return Interval(overall, math.nan, math.nan, n)
    without = [_of([record for record in records if record["split"] != out]) for out in splits]
    spread = mean_interval([n * overall - (n - 1) * value for value in without])
    half = (spread.high - spread.low) / 2
    return Interval(overall, overall - half, overall + half, n)


def _of(records: Sequence[Mapping[str, Any]]) -> float:
    strengths: dict[Any, list[Mapping[str, Any]]] = {}
    for record in records:
        strengths.setdefault(record["strength"], []).append(record["run"]["test"])
    points = [
        (_mean([test["accuracy"] for test in tests]), _mean([test["dp"] for test in tests]))
        for tests in strengths.values()
    ]
    floor = _mean([record["majority"] for record in records])
    return hypervolume(points, (floor, 1.0)) if points and floor < 1 else math.nan


def _mean(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else math.nan

"""The Pareto front of accuracy and gap, and the area it dominates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from fairmp.errors import InputError
from fairmp.metrics.counts import MIN_SPLITS, Interval, mean_interval

Point: TypeAlias = tuple[float, float]
"""Accuracy (more is better) and ΔDP (less is better), as fractions."""


def front(points: Iterable[Point]) -> list[Point]:
    """Pareto-optimal points, from the fairest to the most accurate; ``nan`` is dropped.

    Example:
        >>> front([(0.80, 0.10), (0.79, 0.02), (0.75, 0.05)])
        [(0.79, 0.02), (0.8, 0.1)]
    """
    defined = {point for point in points if not any(map(math.isnan, point))}
    optimal: list[Point] = []
    for accuracy, dp in sorted(defined, key=lambda point: (point[1], -point[0])):
        if not optimal or accuracy > optimal[-1][0]:
            optimal.append((accuracy, dp))
    return optimal


def hypervolume(points: Iterable[Point], reference: Point = (0.0, 1.0)) -> float:
    r"""Area dominated by points, as a share of the largest possible area.

    .. math::
        \frac{\left|\bigcup_i [a_0, a_i] × [d_i, d_0]\right|}{(1 - a_0)\, d_0}

    In a comparison the reference :math:`(a_0, d_0)` is the accuracy of a constant prediction and 1.

    Example:
        >>> round(hypervolume([(0.80, 0.10), (0.79, 0.02)], reference=(0.6, 1.0)), 3)
        0.488
    """
    floor, ceiling = reference
    if not (0 <= floor < 1 and 0 < ceiling <= 1):
        problem = f"{reference} is not an accuracy in [0, 1) and a gap in (0, 1]"
        raise InputError("reference", problem, "give (0.0, 1.0)")
    area, below = 0.0, floor
    for accuracy, dp in front(points):
        if accuracy > below and dp < ceiling:
            area += (accuracy - below) * (ceiling - dp)
            below = accuracy
    return area / ((1 - floor) * ceiling)


def hypervolume_over_splits(records: Sequence[Mapping[str, Any]]) -> Interval:
    """Hypervolume of a family of methods on one data set, with a 95 % jackknife interval.

    Points are means over splits, one per strength: maxima over single splits would be biased.

    Example:
        >>> test = {"accuracy": 0.80, "dp": 0.10, "majority": 0.60}
        >>> fairer = {"accuracy": 0.79, "dp": 0.02, "majority": 0.60}
        >>> records = [{"split": 0, "strength": 0.0, "run": {"test": test}}]
        >>> records += [{"split": 0, "strength": 1.0, "run": {"test": fairer}}]
        >>> round(hypervolume_over_splits(records).mean, 3)
        0.488
    """
    splits = sorted({record["split"] for record in records})
    n, overall = len(splits), _hypervolume_of_means(records)
    if n < MIN_SPLITS:
        return Interval(overall, math.nan, math.nan, n)
    left_out = [
        _hypervolume_of_means([record for record in records if record["split"] != split])
        for split in splits
    ]
    pseudo_values = mean_interval([n * overall - (n - 1) * value for value in left_out])
    half = (pseudo_values.high - pseudo_values.low) / 2
    return Interval(overall, overall - half, overall + half, n)


def _hypervolume_of_means(records: Sequence[Mapping[str, Any]]) -> float:
    import pandas as pd

    rows = [{**record, **record["run"]["test"]} for record in records]
    frame = pd.DataFrame(rows, columns=["strength", "accuracy", "dp", "majority"], dtype=float)
    means = frame.groupby("strength", dropna=False)[["accuracy", "dp"]].mean()
    floor = float(frame["majority"].mean())
    points = list(means.itertuples(index=False, name=None))
    return hypervolume(points, (floor, 1.0)) if points and floor < 1 else math.nan

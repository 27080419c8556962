"""Hypervolume of accuracy and ΔDP."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fairmp.errors import InputError
from fairmp.metrics import Interval, mean_interval
from fairmp.report.figures import Point, front
from fairmp.report.formats import MIN_SPLITS


def hypervolume(points: Iterable[Point], reference: Point = (0.0, 1.0)) -> float:
    r"""Area dominated by points, as a share of the largest possible area.

    .. math::
        \frac{\left|\bigcup_i [a_0, a_i] × [d_i, d_0]\right|}{(1 - a_0)\, d_0}

    In a comparison the reference :math:`(a_0, d_0)` is the accuracy of a constant prediction and 1.
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


def over_splits(records: Sequence[Mapping[str, Any]]) -> Interval:
    """Hypervolume of a family of methods on one data set, with a 95 % jackknife interval.

    Points are means over splits, one per strength: maxima over single splits would be biased.
    """
    splits = sorted({record["split"] for record in records})
    n, overall = len(splits), _of_means(records)
    if n < MIN_SPLITS:
        return Interval(overall, math.nan, math.nan, n)
    without = [_of_means([r for r in records if r["split"] != out]) for out in splits]
    spread = mean_interval([n * overall - (n - 1) * value for value in without])
    half = (spread.high - spread.low) / 2
    return Interval(overall, overall - half, overall + half, n)


def _of_means(records: Sequence[Mapping[str, Any]]) -> float:
    import pandas as pd

    rows = [{**record, **record["run"]["test"]} for record in records]
    frame = pd.DataFrame(rows, columns=["strength", "accuracy", "dp", "majority"], dtype=float)
    means = frame.groupby("strength", dropna=False)[["accuracy", "dp"]].mean()
    floor = float(frame["majority"].mean())
    points = list(means.itertuples(index=False, name=None))
    return hypervolume(points, (floor, 1.0)) if points and floor < 1 else math.nan

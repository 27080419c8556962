"""Numbers as text: points, intervals, "43 of 100"."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeGuard

from fairmp.metrics.counts import wilson

GAP_NOTE = (
    "Gaps are biased upward in small samples: a small gap whose interval excludes 0 is not "
    "evidence of one."
)


def wilson_interval(count: float, n: float) -> tuple[float, float]:
    """95 % Wilson interval of a share, also for counts that are not integers."""
    if n <= 0:
        return math.nan, math.nan
    low, high = wilson(count / n, n)
    return max(0.0, float(low)), min(1.0, float(high))


def is_known(value: float | None) -> TypeGuard[float]:
    """Whether a value is neither None nor nan."""
    return value is not None and not math.isnan(value)


def points(share: float | None) -> str:
    """A share in points (hundredths): 0.1234 is "12.3"; "n/a" if unknown."""
    # Adding 0.0 turns a rounded −0.0 into 0.0.
    return f"{round(100 * share, 1) + 0.0:.1f}" if is_known(share) else "n/a"


def interval_text(ends: Sequence[float | None] | None) -> str:
    """An interval in points, such as "10.0 to 25.0"; empty if unknown."""
    return " to ".join(map(points, ends)) if ends is not None and all(map(is_known, ends)) else ""


def with_interval(share: float | None, ends: Sequence[float | None] | None) -> str:
    """A share in points with its interval, such as "12.0 (10.0 to 15.0)"."""
    interval = interval_text(ends)
    return points(share) + (f" ({interval})" if interval else "")


def per_hundred(share: float | None) -> str:
    """A share as a whole number out of a hundred: 0.426 is "43", 0.004 "fewer than 1"."""
    if not is_known(share):
        return "n/a"
    count = round(100 * share)
    return "fewer than 1" if count == 0 and share > 0 else str(count)


def join_names(names: Sequence[str], most: int = 8) -> str:
    """An enumeration: "a, b and c", or "a, b and 10 more"."""
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most} more"
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def shorten(name: str) -> str:
    """A name, truncated for a chart."""
    return name if len(name) <= 24 else f"{name[:23]}…"


def change_text(before: float | None, after: float | None) -> str:
    """A change in points, such as "24.0 points less"."""
    if not is_known(before) or not is_known(after):
        return "n/a"
    change = after - before
    if abs(change) < 0.0005:
        return "the same"
    return f"{points(abs(change))} points {'more' if change > 0 else 'less'}"


def constant_decision_notes(
    classes: Sequence[str], rates: Sequence[Sequence[float | None]]
) -> list[str]:
    """A warning if everyone gets the same decision; ``rates`` has one row per group."""
    return [
        f"Everyone gets the decision {name!r}: the gap of 0 is trivial."
        for c, name in enumerate(classes)
        if rates and all(row[c] == 1 for row in rates)
    ]

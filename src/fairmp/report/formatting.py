"""Figures as people say them: of 100 people, from … to …, points."""

from __future__ import annotations

import math
from collections.abc import Sequence

Ends = tuple[float, float]

LARGEST = (
    "A gap is a largest difference: on few nodes it comes out too large, its interval even more, "
    "so a small gap that excludes 0 is no proof of one."
)
"""How to read a gap's interval, which may leave out the gap itself."""


def wilson(count: float, n: float, confidence: float = 0.95) -> Ends:
    r"""The interval of a share of ``count`` in ``n``, after Wilson.

    .. math::
        \frac{p + z^2/2n \pm z\sqrt{p(1-p)/n + z^2/4n^2}}{1 + z^2/n}

    It stays inside [0, 1] and is honest for few nodes and for shares near 0 and 1.

    Example:
        >>> low, high = wilson(8, 10)
        >>> round(low, 3), round(high, 3)
        (0.49, 0.943)
    """
    from statistics import NormalDist

    if n <= 0:
        return math.nan, math.nan
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share = count / n
    middle = share + z * z / (2 * n)
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    whole = 1 + z * z / n
    return max(0.0, (middle - half) / whole), min(1.0, (middle + half) / whole)


def known(value: float | None) -> bool:
    """Whether there is a number.

    Example:
        >>> known(0.0), known(None), known(float("nan"))
        (True, False, False)
    """
    return value is not None and not math.isnan(value)


def points(share: float | None, digits: int = 1) -> str:
    """A share in points (hundredths).

    Example:
        >>> points(0.1234), points(None), points(-0.0004)
        ('12.3', 'n/a', '0.0')
    """
    if share is None or math.isnan(share):
        return "n/a"
    return f"{round(100 * share, digits) + 0.0:.{digits}f}"


def span(ends: Sequence[float | None] | None, digits: int = 1) -> str:
    """An interval in points; empty where there is none.

    Example:
        >>> span((0.1, 0.25)), span((None, None))
        ('10.0 to 25.0', '')
    """
    if ends is None or not all(known(end) for end in ends):
        return ""
    low, high = ends
    return f"{points(low, digits)} to {points(high, digits)}"


def with_span(share: float | None, ends: Sequence[float | None] | None, digits: int = 1) -> str:
    """A share in points with its interval.

    Example:
        >>> with_span(0.12, (0.1, 0.15))
        '12.0 (10.0 to 15.0)'
    """
    interval = span(ends, digits)
    return points(share, digits) + (f" ({interval})" if interval else "")


def of_100(share: float | None) -> str:
    """A share as so many of a hundred, in whole ones.

    Example:
        >>> of_100(0.426), of_100(0.004), of_100(0.0)
        ('43', 'fewer than 1', '0')
    """
    if share is None or math.isnan(share):
        return "n/a"
    count = round(100 * share)
    return "fewer than 1" if count == 0 and share > 0 else str(count)


def listed(names: Sequence[str], most: int = 8) -> str:
    """Names in a row, the last two joined by "and".

    Example:
        >>> listed(["a", "b", "c"]), listed([str(k) for k in range(12)], most=2)
        ('a, b and c', '0, 1 and 10 more')
    """
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most} more"
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def moved(before: float | None, after: float | None, unit: str = "points") -> str:
    """How a figure moved, in words.

    Example:
        >>> moved(0.25, 0.01), moved(0.8, 0.8004)
        ('24.0 points less', 'the same')
    """
    if before is None or after is None or math.isnan(before + after):
        return "n/a"
    change = after - before
    if abs(change) < 0.0005:
        return "the same"
    return f"{points(abs(change))} {unit} {'more' if change > 0 else 'less'}"


def asked(within: float) -> str:
    """What was asked for where there are more than two groups, and what follows for ΔDP.

    Example:
        >>> asked(0.1)
        'Asked for was each group within 10.0 points of the whole: two are then at most 20.0 apart.'
    """
    return (
        f"Asked for was each group within {points(within)} points of the whole: two are then at "
        f"most {points(min(1.0, 2 * within))} apart."
    )


def one_decision(classes: Sequence[str], rates: Sequence[Sequence[float | None]]) -> list[str]:
    """Say so where everyone gets the same decision, which has no gap and is no success.

    Args:
        classes: the classes' names.
        rates: the share decided for each class, a row a group.

    Example:
        >>> one_decision(["no", "yes"], [[1.0, 0.0], [1.0, 0.0]])
        ["Everyone is decided 'no': a gap of 0 is no success, as nobody is told apart."]
        >>> one_decision(["no", "yes"], [[1.0, 0.0], [0.9, 0.1]])
        []
    """
    return [
        f"Everyone is decided {name!r}: a gap of 0 is no success, as nobody is told apart."
        for c, name in enumerate(classes)
        if rates and all(row[c] == 1 for row in rates)
    ]

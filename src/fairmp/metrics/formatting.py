"""Fractions, tables and records as text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any


def points(fraction: float, digits: int = 1) -> str:
    """A fraction in points (hundredths), a dash for nan."""
    return "–" if math.isnan(fraction) else f"{100 * fraction:.{digits}f}"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table: the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *rest in rows:
        others = (text.rjust(width) for text, width in zip(rest, widths[1:], strict=True))
        lines.append("  ".join([first.ljust(widths[0]), *others]))
    return lines


def json_safe(value: Any) -> Any:
    """Plain JSON values, with ``None`` for nan."""
    if isinstance(value, dict):
        return {key: json_safe(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_safe(item) for item in value]
    return None if isinstance(value, float) and math.isnan(value) else value

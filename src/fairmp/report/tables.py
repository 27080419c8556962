"""Results of methods: one row per method, means over splits with intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fairmp.metrics import Interval, mean_interval

COLUMNS = {"accuracy": "accuracy %", "dp": "ΔDP", "eo": "ΔEO", "auc": "AUC", "seconds": "s"}
METRICS = ("accuracy", "dp", "eo", "auc")


@dataclass(frozen=True)
class Line:
    """Results of a method on the test nodes, as fractions.

    Attributes:
        name: name of the method.
        figures: interval of the mean over splits, for accuracy, dp, eo and auc.
        seconds: mean training time.
        splits: number of splits.
    """

    name: str
    figures: Mapping[str, Interval]
    seconds: float
    splits: int

    def cell(self, key: str) -> str:
        """A metric in points, with the half-width of its interval."""
        return cell_text(self.figures[key])


def cell_text(value: Interval | float | str) -> str:
    """A cell of a table: an interval in points ("80.0 ± 1.2"), a number, or a text."""
    if not isinstance(value, Interval):
        return f"{value:.1f}" if isinstance(value, float) else str(value)
    if math.isnan(value.mean):
        return "n/a"
    half = 50 * (value.high - value.low)
    return f"{100 * value.mean:.1f}" + ("" if math.isnan(half) else f" ± {half:.1f}")


def summarise(records: Iterable[Mapping[str, Any]]) -> list[Line]:
    """Average records (``name`` and a run's ``to_dict()``) by name, in order of appearance.

    Example:
        >>> run = {"test": {"accuracy": 0.8, "dp": 0.1, "eo": None, "auc": 0.9}, "seconds": 1.0}
        >>> [line] = summarise([{"name": "MLP", "run": run}])
        >>> line.cell("accuracy"), line.cell("eo")
        ('80.0', 'n/a')
    """
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        groups.setdefault(record["name"], []).append(record["run"])
    lines = []
    for name, runs in groups.items():
        values = {key: [run["test"][key] for run in runs] for key in METRICS}
        figures = {
            key: mean_interval([math.nan if value is None else value for value in column])
            for key, column in values.items()
        }
        lines.append(
            Line(name, figures, sum(run["seconds"] for run in runs) / len(runs), len(runs))
        )
    return lines


def over(splits: int) -> str:
    """Description of a table's figures, for its title."""
    return "one split" if splits == 1 else f"mean ± half of a 95 % interval over {splits} splits"


def cells(line: Line) -> list[str]:
    """Cells of a row, in the order of :data:`COLUMNS`."""
    return [*map(line.cell, METRICS), cell_text(line.seconds)]

"""Results of methods: one row per method, means over splits with intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fairmp.metrics import Interval, mean_interval

if TYPE_CHECKING:
    import pandas as pd

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
        return interval_cell(self.figures[key])


def interval_cell(interval: Interval) -> str:
    """An interval in points: "80.0 ± 1.2"."""
    if math.isnan(interval.mean):
        return "n/a"
    text = f"{100 * interval.mean:.1f}"
    if math.isnan(interval.low):
        return text
    return f"{text} ± {50 * (interval.high - interval.low):.1f}"


def summarise(records: Iterable[Mapping[str, Any]]) -> list[Line]:
    """Average records (``name`` and a run's ``to_dict()``) by name, in order of appearance.

    Example:
        >>> run = {"test": {"accuracy": 0.8, "dp": 0.1, "eo": None, "auc": 0.9}, "seconds": 1.0}
        >>> [line] = summarise([{"name": "MLP", "run": run}])
        >>> line.cell("accuracy"), line.cell("eo")
        ('80.0', 'n/a')
    """
    runs: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        runs.setdefault(record["name"], []).append(record["run"])
    lines = []
    for name, group in runs.items():
        tests = [run["test"] for run in group]
        figures = {
            key: mean_interval([math.nan if test[key] is None else test[key] for test in tests])
            for key in METRICS
        }
        seconds = sum(run["seconds"] for run in group) / len(group)
        lines.append(Line(name, figures, seconds, len(group)))
    return lines


def results(tables: Mapping[str, Sequence[Line]]) -> pd.DataFrame:
    """One row per data set and method: ``splits``, each metric with its interval, ``seconds``.

    Example:
        >>> results({}).columns[:4].tolist()
        ['data', 'method', 'splits', 'accuracy']
    """
    import pandas as pd

    ends = [key + end for key in METRICS for end in ("", "_low", "_high")]
    rows = [
        [data, line.name, line.splits]
        + [value for key in METRICS for value in line.figures[key][:3]]
        + [line.seconds]
        for data, lines in tables.items()
        for line in lines
    ]
    return pd.DataFrame(rows, columns=["data", "method", "splits", *ends, "seconds"])


def over(splits: int) -> str:
    """Description of a table's figures, for its title."""
    return "one split" if splits == 1 else f"mean ± half of a 95 % interval over {splits} splits"


def cells(line: Line) -> list[str]:
    """Cells of a row, in the order of :data:`COLUMNS`."""
    return [line.cell(key) for key in METRICS] + [f"{line.seconds:.1f}"]

"""One line a method: means over splits, with intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fairmp.metrics import Interval, mean_interval

COLUMNS = {"accuracy": "accuracy %", "dp": "ΔDP", "eo": "ΔEO", "auc": "AUC", "seconds": "s"}
HEADERS = ("accuracy", "dp", "eo", "auc")


@dataclass(frozen=True)
class Line:
    """A method's figures on the test nodes, over splits, as fractions.

    Attributes:
        name: the method.
        figures: an interval of the mean for accuracy, dp, eo and auc.
        seconds: mean training time.
        splits: how many splits were trained.
    """

    name: str
    figures: Mapping[str, Interval]
    seconds: float
    splits: int

    def cell(self, key: str) -> str:
        """One figure in points, with the half-width of its interval."""
        interval = self.figures[key]
        if math.isnan(interval.mean):
            return "n/a"
        text = f"{100 * interval.mean:.1f}"
        if math.isnan(interval.low):
            return text
        return f"{text} ± {50 * (interval.high - interval.low):.1f}"


def summarise(records: Iterable[Mapping[str, Any]]) -> list[Line]:
    """Turn records (``name`` and a run's ``to_dict()``) into lines, in order of first appearance.

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
        figures = {
            key: mean_interval(
                [math.nan if run["test"][key] is None else run["test"][key] for run in group]
            )
            for key in HEADERS
        }
        seconds = sum(run["seconds"] for run in group) / len(group)
        lines.append(Line(name, figures, seconds, len(group)))
    return lines


def over(splits: int) -> str:
    """What the figures of a table are, for its title.

    Example:
        >>> over(3), over(1)
        ('mean ± half of a 95 % interval over 3 splits', 'one split')
    """
    return "one split" if splits == 1 else f"mean ± half of a 95 % interval over {splits} splits"


def cells(line: Line) -> list[str]:
    """A line's cells, in the order of :data:`COLUMNS`."""
    return [line.cell(key) for key in HEADERS] + [f"{line.seconds:.1f}"]


def to_rich(lines: Sequence[Line], title: str = "") -> Any:
    """Make a table for the terminal."""
    from rich import box
    from rich.table import Table

    table = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("method", no_wrap=True)
    # AUC is in the other tables; here a row must fit 80 columns.
    shown = [key for key in COLUMNS if key != "auc"]
    for key in shown:
        table.add_column(COLUMNS[key], justify="right", no_wrap=True)
    for line in lines:
        row = dict(zip(COLUMNS, cells(line), strict=True))
        table.add_row(line.name, *(row[key] for key in shown))
    return table


def to_markdown(lines: Sequence[Line]) -> str:
    """Make a Markdown table."""
    rows = [["method", *COLUMNS.values()], ["---", *["---:"] * len(COLUMNS)]]
    rows += [[line.name, *cells(line)] for line in lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"

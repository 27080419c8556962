"""An :class:`~fairmp.metrics.Evaluation` as text, notebook HTML and plot, in points."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from fairmp.metrics.evaluation import METRICS, TITLES, Evaluation
from fairmp.report.figures import plot_rates
from fairmp.report.formats import aligned, points, to_html

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def text(evaluation: Evaluation) -> str:
    """The figures with their intervals, a row per group, and the notes."""
    lines = [_title(evaluation)]
    lines += [f"{name:<9}{value:>6}{interval}" for name, value, interval in _figures(evaluation)]
    lines += aligned(_groups(evaluation))
    return "\n".join([*lines, *(f"note: {note}" for note in evaluation.notes)])


def html(evaluation: Evaluation) -> str:
    """The same as two tables."""
    figures = [["", "points", "95 % interval"], *_figures(evaluation)]
    return to_html(_title(evaluation), [figures, _groups(evaluation)], evaluation.notes)


def plot(evaluation: Evaluation, ax: Axes | None = None) -> Axes:
    """Draw each group's rate of decisions for the last class."""
    names = [group.name for group in evaluation.groups]
    sizes = [group.count for group in evaluation.groups]
    rates = {"after": [group.rates[-1] for group in evaluation.groups]}
    return plot_rates(names, sizes, rates, f"decided {evaluation.class_names[-1]}, %", ax)


def _title(evaluation: Evaluation) -> str:
    mode = f", mode {evaluation.mode}" if evaluation.mode else ""
    return f"{evaluation.n} nodes{mode}"


def _figures(evaluation: Evaluation) -> list[list[str]]:
    rows = []
    for key in METRICS:
        low, high = evaluation.intervals.get(key, (math.nan, math.nan))
        interval = "" if math.isnan(low) else f"  [{points(low)}, {points(high)}]"
        rows.append([TITLES[key], points(getattr(evaluation, key)), interval])
    return rows


def _groups(evaluation: Evaluation) -> list[list[str]]:
    """Header and rows of the table of groups."""
    binary = len(evaluation.class_names) == 2
    titles = [f"P({name})" for name in evaluation.class_names]
    if binary:
        titles = ["P(ŷ=1)", "TPR", "FPR"]
    rows = [["group", "nodes", "labelled", "accuracy", *titles]]
    for group in evaluation.groups:
        rates = (group.positive_rate, group.tpr, group.fpr) if binary else group.rates
        shares = map(points, (group.accuracy, *rates))
        rows.append([group.name, str(group.count), str(group.labelled), *shares])
    return rows

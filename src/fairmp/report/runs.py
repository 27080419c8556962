"""The test nodes of a :class:`~fairmp.training.trainer.Run` as text, notebook HTML and plot."""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING

from fairmp.metrics import Evaluation, Interval
from fairmp.metrics.direction import RATES_OF_GAP
from fairmp.metrics.evaluation import CRITERIA, TITLES
from fairmp.report import evaluations
from fairmp.report.corrections import direction
from fairmp.report.figures import figure, plot_rates, plot_shares
from fairmp.report.formats import points

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from fairmp.training.run import Run

FIGURES = ("accuracy", *CRITERIA.values())  # that are compared before and after
WIDTH = 9.0  # inches of the two panels


def text(run: Run) -> str:
    """The evaluation of the test nodes, the epoch that was kept, and what the correction did."""
    notes = "".join(f"\n{note}" for note in _notes(run))
    return f"{_title(run)}: {evaluations.text(run.test)}{notes}"


def html(run: Run) -> str:
    """The same as tables."""
    notes = "".join(f"<p>{escape(note)}</p>" for note in _notes(run))
    return f"<p>{_title(run)}</p>{evaluations.html(run.test)}{notes}"


def plot(run: Run, ax: Axes | None = None) -> Axes:
    """Draw the test nodes' gaps and their decisions by group, before and after the correction.

    Return the axes of the decisions, which are all that is drawn on given axes.
    """
    if ax is not None:
        return _plot_decisions(run, ax)
    groups = len(run.test.groups)
    height = 1.3 + 0.45 * max(groups, len(CRITERIA))
    fig, (gaps, decisions) = figure(WIDTH, height, ncols=2, interactive=True)
    for axes in (gaps, decisions):
        axes.grid(False, axis="y")
    _plot_gaps(run, gaps)
    _plot_decisions(run, decisions)
    accuracy = " → ".join(f"{points(part.accuracy)} %" for part in _moments(run).values())
    fig.suptitle(f"{run.test.n:,} test nodes, accuracy {accuracy}", fontsize=11)
    if run.uncorrected is not None:
        handles = decisions.get_legend_handles_labels()
        fig.legend(*handles, loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return decisions


def _moments(run: Run) -> dict[str, Evaluation]:
    """The test nodes before the correction, if there is one, and after."""
    before = {} if run.uncorrected is None else {"before": run.uncorrected}
    return {**before, "after": run.test}


def _plot_gaps(run: Run, ax: Axes) -> None:
    """Draw the gap of each criterion that is defined."""
    keys = [key for key in CRITERIA.values() if not math.isnan(getattr(run.test, key))]
    gaps = {
        when: [_gap(evaluation, key) for key in keys] for when, evaluation in _moments(run).items()
    }
    plot_shares([TITLES[key] for key in keys], gaps, "gap between the groups, points", ax)
    ax.margins(x=0.15)  # room for the numbers


def _gap(evaluation: Evaluation, key: str) -> Interval:
    low, high = evaluation.intervals.get(key, (math.nan, math.nan))
    return Interval(getattr(evaluation, key), low, high, evaluation.n)


def _plot_decisions(run: Run, ax: Axes) -> Axes:
    """Draw each group's rate of decisions for the last class."""
    groups = run.test.groups
    rates = {
        when: [group.rates[-1] for group in evaluation.groups]
        for when, evaluation in _moments(run).items()
    }
    label = f"decided {run.test.class_names[-1]}, %"
    return plot_rates([g.name for g in groups], [g.count for g in groups], rates, label, ax)


def _title(run: Run) -> str:
    return f"Test nodes, epoch {run.history.best.epoch}"


def _notes(run: Run) -> list[str]:
    """The effect of the correction, and the promise."""
    notes = [] if run.uncorrected is None else _changes(run.uncorrected, run.test)
    return [*notes, *([str(run.promise)] if run.promise else [])]


def _changes(before: Evaluation, after: Evaluation) -> list[str]:
    """Figures before and after, and the criteria in which another group is ahead now."""
    pairs = (
        f"{TITLES[key]} {points(getattr(before, key))} → {points(getattr(after, key))}"
        for key in FIGURES
    )
    notes = [f"correction: {', '.join(pairs)}"]
    for key in RATES_OF_GAP:
        if after.changed_sides(key, before):
            sides = [direction(evaluation.lead(key)) for evaluation in (before, after)]
            notes.append(f"REVERSED: {TITLES[key]}, {sides[0]} before, {sides[1]} after")
    return notes

"""The drift of new predictions since training, as text, notebook HTML, plot, record and report."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairmp.metrics.drift import Drift, Figure
from fairmp.metrics.evaluation import TITLES, Evaluation, json_safe
from fairmp.outputs import write_json
from fairmp.report import document, evaluations
from fairmp.report.content import Section
from fairmp.report.figures import AFTER, CHOSEN, NARROW, figure
from fairmp.report.formats import aligned, points, to_html

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RECORD = "monitor.json"
UNCHANGED = "Nothing changed by more than sampling error."
INTERVALS = "An interval is for one figure alone; the verdict accounts for looking at all of them."
CAPTION = (
    "Training: the saved model's test nodes. Changed: the difference exceeds sampling error at a "
    f"level of 5 % for all figures together. {INTERVALS}"
)
HEADER = ["in points", "training", "now", "difference", "95 % interval", "verdict"]


def text(drift: Drift) -> str:
    """One line per figure, and the verdict."""
    return "\n".join([*aligned([HEADER, *rows(drift)]), verdict(drift), *_interval_notes(drift)])


def html(drift: Drift) -> str:
    """The same as a table."""
    return to_html(verdict(drift), [[HEADER, *rows(drift)]], _interval_notes(drift))


def _interval_notes(drift: Drift) -> list[str]:
    """Why an interval may exclude 0 although the figure has not changed."""
    excludes_zero = (
        change.low > 0 or change.high < 0 for change in drift.figures if not change.changed
    )
    return [INTERVALS] if any(excludes_zero) else []


def plot(drift: Drift, ax: Axes | None = None) -> Axes:
    """Draw the difference of each figure with its interval; return the axes."""
    axes: Axes = (
        figure(NARROW, 0.9 + 0.3 * len(drift.figures), interactive=True)[1] if ax is None else ax
    )
    for place, change in enumerate(drift.figures):
        colour = CHOSEN if change.changed else AFTER
        axes.plot([100 * change.low, 100 * change.high], [place, place], color=colour)
        axes.plot([100 * (change.after - change.before)], [place], "o", color=colour)
    axes.axvline(0, color="#555555", linewidth=0.8)
    names = [figure_name(change.figure) for change in drift.figures]
    axes.set_yticks(range(len(names)), names)
    axes.yaxis.set_inverted(True)
    axes.set_xlabel("difference, points")
    return axes


def verdict(drift: Drift) -> str:
    """What has changed, in a sentence.

    Example:
        >>> from fairmp import evaluate
        >>> from fairmp.metrics.drift import compare
        >>> sex, labels = ["f", "m"] * 100, [0, 1, 1, 0] * 50
        >>> before = evaluate(labels, labels, sensitive_features=sex, bootstrap=0)
        >>> after = evaluate(labels, [0, 1, 0, 0] * 50, sensitive_features=sex, bootstrap=0)
        >>> verdict(compare(before, before))
        'Nothing changed by more than sampling error.'
        >>> verdict(compare(before, after))
        'Changed by more than sampling error: rate of 1 in f, scores of f.'
    """
    names = [figure_name(change.figure) for change in drift.figures if change.changed]
    names += [f"scores of {change.group}" for change in drift.scores if change.changed]
    return f"Changed by more than sampling error: {', '.join(names)}." if names else UNCHANGED


def figure_name(figure: Figure) -> str:
    """A figure as text: "share of f", "rate of yes in f", "ΔDP"."""
    if figure.kind == "share":
        return f"share of {figure.group}"
    if figure.kind == "rate":
        return f"rate of {figure.class_name} in {figure.group}"
    return TITLES[figure.kind]


def rows(drift: Drift) -> list[list[str]]:
    """One row per figure, and one per group for its scores."""
    table = []
    for change in drift.figures:
        difference = f"{100 * (change.after - change.before):+.1f}"
        interval = f"{100 * change.low:+.1f} to {100 * change.high:+.1f}"
        numbers = [points(change.before), points(change.after), difference, interval]
        table.append([figure_name(change.figure), *numbers, _mark(change.changed)])
    for score in drift.scores:
        index, p_value = f"stability index {score.psi:.3f}", f"p = {score.p_value:.2g}"
        table.append([f"scores of {score.group}", "", "", index, p_value, _mark(score.changed)])
    return table


def _mark(changed: bool) -> str:
    return "changed" if changed else "–"


def record(drift: Drift, before: Evaluation, after: Evaluation) -> dict[str, Any]:
    """The comparison of two evaluations as plain JSON values."""
    figures = []
    for change in drift.figures:
        figure = change.figure._asdict()
        figures.append({"name": figure_name(change.figure), **asdict(change), "figure": figure})
    return {
        "verdict": verdict(drift),
        "changed": drift.changed,
        "figures": json_safe(figures),
        "scores": json_safe([asdict(score) for score in drift.scores]),
        "training": before.to_dict(),
        "now": after.to_dict(),
        "notes": list(after.notes),
    }


def write(
    drift: Drift,
    before: Evaluation,
    after: Evaluation,
    folder: Path,
    *,
    title: str,
    command: str,
) -> dict[str, Any]:
    """Write monitor.json, report.json and report.html; return the record."""
    comparison = record(drift, before, after)
    write_json(folder / RECORD, comparison)
    page = evaluations.from_evaluations(after)
    page |= {
        "title": title,
        "describes_model": False,
        "summary": comparison["verdict"],
        "notes": comparison["notes"],
        "command": command,
        "lines": Section("Then and now", header=HEADER, rows=rows(drift), caption=CAPTION),
    }
    document.write(page, folder)
    return comparison

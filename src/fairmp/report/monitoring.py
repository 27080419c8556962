"""The drift of new predictions since training, as text, record and report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fairmp.metrics.drift import Drift, Figure
from fairmp.metrics.evaluation import TITLES, json_safe
from fairmp.outputs import write_json
from fairmp.report import document
from fairmp.report.content import Document
from fairmp.report.formats import points

RECORD = "monitor.json"
UNCHANGED = "Nothing changed by more than sampling error."
CAPTION = (
    "Training: the saved model's test nodes. Changed: the difference exceeds sampling error at a "
    "level of 5 % for all figures together."
)
HEADER = ["in points", "training", "now", "difference", "95 % interval", "verdict"]


def verdict(drift: Drift) -> str:
    """What has changed, in a sentence."""
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


def record(
    drift: Drift, before: Mapping[str, Any], after: Mapping[str, Any], notes: Sequence[str]
) -> dict[str, Any]:
    """The comparison of two evaluations (``to_dict``) as plain JSON values."""
    figures = []
    for change in drift.figures:
        figure = change.figure._asdict()
        figures.append({"name": figure_name(change.figure), **asdict(change), "figure": figure})
    return {
        "verdict": verdict(drift),
        "changed": drift.changed,
        "figures": json_safe(figures),
        "scores": json_safe([asdict(score) for score in drift.scores]),
        "training": before,
        "now": after,
        "notes": list(notes),
    }


def write(
    record: Mapping[str, Any], drift: Drift, folder: Path, *, title: str, command: str
) -> None:
    """Write monitor.json, report.json and report.html."""
    write_json(folder / RECORD, record)
    page: Document = document.from_evaluations(record["now"])
    page |= {
        "title": title,
        "describes_model": False,
        "summary": record["verdict"],
        "notes": record["notes"],
        "command": command,
        "lines": {
            "title": "Then and now",
            "header": HEADER,
            "rows": rows(drift),
            "caption": CAPTION,
        },
    }
    document.write(page, folder)

"""A report as plain data, and its HTML page. Commands fill in what they know."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypedDict, cast

from fairmp.errors import InputError
from fairmp.report.formatting import (
    constant_decision_notes,
    interval_text,
    is_known,
    per_hundred,
    points,
)
from fairmp.report.page import Card, page
from fairmp.report.sections import changed, sections

DOCUMENT, PAGE = "report.json", "report.html"
MAX_BYTES = 5_000_000
"""Largest page; the picture of the graph is omitted beyond it."""


class GroupSummary(TypedDict, total=False):
    """Decisions for one group; shares by class."""

    name: str
    nodes: int
    labelled: int
    before: list[float | None] | None
    after: list[float | None]
    changed: int | None  # decisions
    moves: list[list[Any]]  # [class before, class after, nodes] of the changed decisions
    accuracy: float | None
    positives: int  # nodes whose label is the second of two classes
    true_positives: int  # those of them with that decision


class Metric(TypedDict, total=False):
    """A metric before and after, as fractions, with intervals where known."""

    name: str
    label: str  # of its card
    meaning: str
    unit: str  # "%" or "points"
    target: float | None
    within: float | None  # largest distance from the overall rate, if the target follows from it
    before: float | None
    after: float | None
    before_interval: list[float | None] | None
    after_interval: list[float | None] | None


class Point(TypedDict, total=False):
    """A point of the trade-off; ``kind`` is "before", "chosen" or "other"."""

    name: str
    kind: str
    accuracy: float
    gap: float
    accuracy_interval: list[float | None] | None
    gap_interval: list[float | None] | None


class Document(TypedDict, total=False):
    """Content of a report; every part but the title is optional."""

    title: str
    summary: str  # the main result; by default derived from the metrics
    noun: str  # what the nodes are, in the plural; "people" by default
    graph: dict[str, Any]  # an audit's record (fairmp.Audit.to_dict)
    picture: str  # name of an SVG file of the graph, in the report's directory
    classes: list[str]
    groups: list[GroupSummary]
    changed: list[int]  # changed decisions, and all, if not the sums over groups
    measured: str  # description of the evaluated nodes
    correction: str  # the difference between before and after
    metrics: list[Metric]
    curve: list[Point]  # the trade-off, from the fairest point on
    curve_note: str
    points: list[Point]  # other points of the trade-off
    gap: str  # name of the gap; "ΔDP" by default
    target: float | None  # the largest gap that was requested
    lines: dict[str, Any]  # table of runs: header, rows, title, caption
    extra: list[dict[str, Any]]  # further sections (fairmp.report.Section.to_dict)
    notes: list[str]  # remarks on the figures
    assumptions: list[str]
    read: list[str]  # messages of the loader
    command: str  # that reproduces the result
    setting: dict[str, Any]  # the full configuration
    versions: dict[str, str]


def write(document: Document, folder: Path) -> None:
    """Write report.json and report.html."""
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, indent=1)
    (folder / DOCUMENT).write_text(text + "\n", encoding="utf-8")
    (folder / PAGE).write_text(html(document, folder), encoding="utf-8")


def read(folder: Path) -> Document:
    """Read a report.json."""
    path = folder / DOCUMENT
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(str(path), f"cannot be read ({error})", "run the command again") from None
    if not isinstance(document, dict) or not isinstance(document.get("title"), str):
        raise InputError(str(path), "is not a report", "run the command again")
    return cast(Document, document)


def html(document: Document, folder: Path | None = None) -> str:
    """Render a report; its picture is read from the folder.

    Example:
        >>> document: Document = {"title": "A <graph>", "assumptions": ["Groups are known."]}
        >>> "A &lt;graph&gt;" in html(document)
        True
    """
    header = document["title"], summary(document)
    text = page(*header, sections(document, folder), cards(document))
    if len(text.encode()) <= MAX_BYTES:
        return text
    return page(*header, sections(document, None), cards(document))


def summary(document: Document) -> str:
    """The main result in a sentence or two."""
    if "summary" in document:
        return document["summary"]
    found = {metric["name"]: metric for metric in document.get("metrics", [])}
    gap, noun, classes = found.get("ΔDP"), document.get("noun", "people"), document.get("classes")
    if gap is None or not is_known(gap.get("after")):
        return _summary_of_targets(document, noun)
    kind = (
        "positive decisions differ by" if len(classes or []) == 2 else "decisions differ by up to"
    )
    text = f"Between the groups, {kind} {points(gap['after'])} per 100 {noun}"
    if is_known(gap.get("before")):
        text += f"; without the correction by {points(gap['before'])}"
    accuracy = found.get("accuracy", {})
    if is_known(accuracy.get("after")):
        text += f". Accuracy is {points(accuracy['after'])} %"
        if is_known(accuracy.get("before")):
            text += f", without the correction {points(accuracy['before'])} %"
    rates = [group["after"] for group in document.get("groups", []) if group["nodes"]]
    return " ".join([f"{text}.", *constant_decision_notes(classes or [], rates)])


def _summary_of_targets(document: Document, noun: str) -> str:
    """Targets and costs, for gaps other than ΔDP."""
    parts = [
        f"{metric['name']}: the gap fell from {points(metric['before'])} to "
        f"{points(metric['after'])} points"
        if (metric["before"] or 0.0) > (metric["after"] or 0.0)
        else f"{metric['name']}: the gap is {points(metric['after'])} points"
        for metric in document.get("metrics", [])
        if all(is_known(metric.get(key)) for key in ("target", "before", "after"))  # type: ignore[arg-type]
    ]
    count, total = changed(document)
    if parts and count is not None and total:
        parts.append(f"the decision changed for {per_hundred(count / total)} of 100 {noun}")
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}." if text else ""


def cards(document: Document) -> list[Card]:
    """Key figures: the first metrics, and the share of changed decisions."""
    found = []
    for metric in document.get("metrics", [])[:3]:
        after, before = metric.get("after"), metric.get("before")
        if not is_known(after):
            continue
        notes = [f"{points(before)} before"] if is_known(before) else []
        interval = interval_text(metric.get("after_interval"))
        notes += [f"95 % interval {interval}"] if interval else []
        value = f"{points(after)} {metric.get('unit', 'points')}"
        found.append(Card(metric.get("label", metric["name"]), value, "; ".join(notes)))
    count, total = changed(document)
    if count is not None and total:
        found.append(Card("decisions changed", f"{per_hundred(count / total)} of 100"))
    return found


Story = Document

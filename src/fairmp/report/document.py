"""A report's JSON file and HTML page, its summary and key figures, and those of evaluations."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from fairmp._version import __version__
from fairmp.errors import InputError
from fairmp.metrics.evaluation import TITLES
from fairmp.outputs import write_json
from fairmp.report.content import (
    Card,
    Document,
    Ends,
    GroupSummary,
    Metric,
    PanelRecord,
    Point,
    Section,
)
from fairmp.report.figures import to_svg
from fairmp.report.formats import (
    GAP_NOTE,
    constant_decision_notes,
    interval_text,
    is_known,
    per_hundred,
    points,
    wilson_interval,
)
from fairmp.report.panel import panel, reliability
from fairmp.report.sections import changed, flags, metrics_by_key, sections

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

    from fairmp.training.classifier import FairClassifier

DOCUMENT, PAGE = "report.json", "report.html"
LABELS = {
    "accuracy": "accuracy",
    "dp": "gap between groups (ΔDP)",
    "eo": "gap at equal labels (ΔEO)",
    "odds": "gap in errors (Δodds)",
}
MIN_GAP = 0.005  # a smaller gap has no trade-off to show
MAX_BYTES = 5_000_000
"""Largest page; the picture of the graph is omitted beyond it."""


def write(document: Document, folder: Path, picture: Figure | None = None) -> None:
    """Write report.json and report.html, and topology.svg if there is a picture of the graph."""
    if picture is not None:
        from fairmp.report.topology import take_caption

        document["picture"], document["picture_note"] = "topology.svg", take_caption(picture)
        (folder / "topology.svg").write_text(to_svg(picture), encoding="utf-8")
    write_json(folder / DOCUMENT, document)
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
    """Render a report; its picture is read from the folder."""
    head = Section(document["title"], flags=flags(document), cards=cards(document))
    for pictures in (folder, None):
        text = page(document["title"], summary(document), sections(document, pictures), head)
        if len(text.encode()) <= MAX_BYTES:
            break
    return text


def summary(document: Document) -> str:
    """The main result in a sentence or two."""
    if "summary" in document:
        return document["summary"]
    metrics = metrics_by_key(document)
    noun, classes = document.get("noun", "people"), document.get("classes", [])
    gap, accuracy = metrics.get("dp", {}), metrics.get("accuracy", {})
    targeted = [m.get("key") for m in document.get("metrics", []) if is_known(m.get("target"))]
    if not is_known(gap.get("after")) or set(targeted) - {"dp"}:
        return _summary_of_targets(document, noun)
    kind = "positive decisions differ by" if len(classes) == 2 else "decisions differ by up to"
    text = f"Between the groups, {kind} {points(gap['after'])} per 100 {noun}"
    if is_known(gap.get("before")):
        text += f"; without the correction by {points(gap['before'])}"
    if is_known(accuracy.get("after")):
        text += f". Accuracy is {points(accuracy['after'])} %"
        if is_known(accuracy.get("before")):
            text += f", without the correction {points(accuracy['before'])} %"
    rates = [group["after"] for group in document.get("groups", []) if group["nodes"]]
    return " ".join([f"{text}.", *constant_decision_notes(classes, rates)])


def _summary_of_targets(document: Document, noun: str) -> str:
    """Targets and costs, for gaps other than ΔDP."""
    clauses = []
    for metric in document.get("metrics", []):
        before, after = metric.get("before"), metric.get("after")
        if is_known(metric.get("target")) and is_known(before) and is_known(after):
            verb = f"fell from {points(before)} to" if before > after else "is"
            clauses.append(f"{metric['name']}: the gap {verb} {points(after)} points")
    count, total = changed(document)
    if clauses and count is not None and total:
        clauses.append(f"the decision changed for {per_hundred(count / total)} of 100 {noun}")
    text = "; ".join(clauses)
    return f"{text[0].upper()}{text[1:]}." if text else ""


def cards(document: Document) -> list[Card]:
    """Key figures: the first metrics, and the share of changed decisions."""
    figures = []
    for metric in document.get("metrics", [])[:3]:
        if not is_known(metric.get("after")):
            continue
        before = metric.get("before")
        notes = [f"{points(before)} before"] if is_known(before) else []
        if interval := interval_text(metric.get("after_interval")):
            notes.append(f"95 % interval {interval}")
        value = f"{points(metric['after'])} {metric.get('unit', 'points')}"
        figures.append(Card(metric.get("label", metric["name"]), value, "; ".join(notes)))
    count, total = changed(document)
    if count is not None and total:
        low, high = map(per_hundred, wilson_interval(count, total))
        note = f"{count:,} of {total:,}; 95 % interval {low} to {high}"
        figures.append(Card("decisions changed", f"{per_hundred(count / total)} of 100", note))
    return figures


def page(title: str, summary: str, sections: Sequence[Section], head: Section | None = None) -> str:
    """Render a page with a summary and key figures at the top; all but figures is escaped.

    Args:
        title: of the page.
        summary: the main result.
        sections: of the page; a navigation is added where there are more than three.
        head: flags and cards below the summary.

    Example:
        >>> "&lt;b&gt;" in page("<b>", "", [])
        True
    """
    from jinja2 import Environment, PackageLoader

    loader = PackageLoader("fairmp", "report")
    environment = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    anchored = list(zip(_anchors(sections), sections, strict=True))
    # A page of several reports lists these; their sections would repeat.
    chapters = any(section.chapter for section in sections)
    return environment.get_template("page.html.jinja").render(
        title=title,
        summary=summary,
        head=head or Section(title),
        sections=anchored,
        contents=[(anchor, s.title) for anchor, s in anchored if s.chapter or not chapters],
        live=any(section.panel for section in sections),
        version=__version__,
    )


def _anchors(sections: Sequence[Section]) -> list[str]:
    """A unique id for each section, from its title."""
    anchors: list[str] = []
    for section in sections:
        stem = re.sub(r"[^a-z0-9]+", "-", section.title.lower()).strip("-") or "section"
        names = [stem, *(f"{stem}-{count}" for count in range(2, 2 + len(sections)))]
        anchors.append(next(name for name in names if name not in anchors))
    return anchors


def cautions(evaluation: Mapping[str, Any]) -> list[str]:
    """Notes on how to read an evaluation's figures."""
    notes = _constant_decisions(evaluation)
    if any(None not in (_interval(evaluation, key) or [None]) for key in ("dp", "eo", "odds")):
        notes.append(GAP_NOTE)
    return notes


def _constant_decisions(evaluation: Mapping[str, Any]) -> list[str]:
    rates = [row["rates"] for row in evaluation["groups"] if row["count"]]
    return constant_decision_notes(evaluation["class_names"], rates)


def from_evaluations(
    after: Mapping[str, Any], before: Mapping[str, Any] | None = None, target: float | None = None
) -> Document:
    """Classes, groups and metrics of evaluations (:meth:`fairmp.metrics.Evaluation.to_dict`).

    Args:
        after: evaluation of the model.
        before: evaluation without its correction.
        target: the largest ΔDP that was requested.
    """
    rates_before = {g["name"]: list(g["rates"]) for g in (before or {}).get("groups", [])}
    groups: list[GroupSummary] = [
        {
            "name": group["name"],
            "nodes": group["count"],
            "labelled": group["labelled"],
            "after": list(group["rates"]),
            "before": rates_before.get(group["name"]),
            "accuracy": group["accuracy"],
        }
        for group in after["groups"]
        if group["count"]
    ]
    classes = list(after["class_names"])
    metrics: list[Metric] = [
        {
            "key": key,
            "name": TITLES[key],
            "label": LABELS[key],
            "meaning": meaning,
            "unit": "%" if key == "accuracy" else "points",
            "after": after[key],
            "after_interval": _interval(after, key),
            "before": (before or {}).get(key),
            "before_interval": _interval(before or {}, key),
            "target": target if key == "dp" else None,
        }
        for key, meaning in _meanings(classes).items()
        if after[key] is not None
    ]
    notes = [*after.get("notes", []), *_constant_decisions(after)]
    document: Document = {"classes": classes, "groups": groups, "metrics": metrics}
    return {**document, "target": target, "notes": notes}


def _meanings(classes: Sequence[str]) -> dict[str, str]:
    """What each metric measures."""
    decision, label, other = "a decision", "that label", "another label"
    if len(classes) == 2:
        decision, label = f"the decision {classes[1]!r}", f"the label {classes[1]!r}"
        other = f"the label {classes[0]!r}"
    gap = f"largest difference between the groups' rates of {decision}"
    return {
        "accuracy": "share of correct decisions.",
        "dp": f"{gap}.",
        "eo": f"{gap} among those with {label}.",
        "odds": f"the larger of ΔEO and the gap among those with {other}.",
    }


def _interval(evaluation: Mapping[str, Any], key: str) -> Ends:
    ends = evaluation.get("intervals", {}).get(key)
    return None if ends is None else list(ends)


def add_decisions(
    document: Document,
    group_names: Sequence[str],
    sens: np.ndarray,
    y: np.ndarray,
    after: np.ndarray,
    before: np.ndarray | None = None,
) -> None:
    """Add true positives and changed decisions to a document's groups, from codes, in place."""
    for group in document["groups"]:
        inside = sens == list(group_names).index(group["name"])
        if len(document["classes"]) == 2:
            positive = inside & (y == 1)
            group["positives"] = int(positive.sum())
            group["true_positives"] = int((after[positive] == 1).sum())
        if before is not None:
            pairs = np.stack([before, after])[:, inside & (before != after)]
            kinds, counts = np.unique(pairs, axis=1, return_counts=True)
            group["moves"] = np.vstack([kinds, counts]).T.tolist()
            group["changed"] = pairs.shape[1]


def point(name: str, kind: str, evaluation: Mapping[str, Any], key: str = "dp") -> Point:
    """A point of the trade-off from an evaluation."""
    return {
        "name": name,
        "kind": kind,
        "accuracy": evaluation["accuracy"],
        "gap": evaluation[key],
        "accuracy_interval": _interval(evaluation, "accuracy"),
        "gap_interval": _interval(evaluation, key),
    }


def live_parts(
    model: FairClassifier, logits: Tensor, y: Tensor, sens: Tensor, *, command: str = ""
) -> Document:
    """Panel, curve and reliability of a classifier's uncorrected logits for some nodes.

    ``command`` is that of :func:`fairmp.report.panel.panel`.
    """
    strategy_target = None if model.strategy is None else model.strategy.gap_target
    layer_target = getattr(model.propagation, "target", 0.0)
    record = panel(
        logits,
        sens,
        y,
        criterion=model.criterion,
        target=layer_target if strategy_target is None else strategy_target,
        command=command,
        group_names=model.groups_,
        class_names=model.classes_,
        kind="logits",
    )
    return {
        "panel": record,
        "curve": _parity_curve(record),
        "reliability": reliability(logits, sens, y, group_names=model.groups_, kind="logits"),
    }


def _parity_curve(record: PanelRecord | None) -> list[Point]:
    """Accuracy at each ΔDP of a panel, from the fairest; empty if there is no gap to close."""
    if record is None or not record["before"]["dp"] > MIN_GAP:
        return []
    steps = [record["before"]]
    for criterion in record["criteria"]:
        if criterion["gap"] == "dp":
            steps += criterion["steps"]
    pairs = {(step["dp"], step["accuracy"]) for step in steps if step["accuracy"] is not None}
    return [{"gap": dp, "accuracy": accuracy} for dp, accuracy in sorted(pairs)]

"""A report's JSON file and HTML page, its summary and key figures."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from fairmp._version import __version__
from fairmp.errors import InputError
from fairmp.outputs import write_json
from fairmp.report import story
from fairmp.report.content import Card, Document, GroupSummary, Metric, Section
from fairmp.report.figures import to_svg
from fairmp.report.formats import (
    constant_decision_notes,
    interval_text,
    is_known,
    per_hundred,
    points,
    ratio,
    wilson_interval,
)
from fairmp.report.sections import changed, flags, metrics_by_key, page_sections

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DOCUMENT, PAGE = "report.json", "report.html"
MAX_BYTES = 5_000_000
"""Largest page; the picture of the graph is omitted beyond it."""


def write(document: Document, folder: Path, picture: Figure | None = None) -> None:
    """Write report.json and report.html, and topology.svg if there is a picture of the graph.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as place:
        ...     write({"title": "Hiring", "assumptions": ["The labels are correct."]}, Path(place))
        ...     print(*sorted(path.name for path in Path(place).iterdir()))
        ...     print(read(Path(place))["title"])
        report.html report.json
        Hiring
    """
    if picture is not None:
        from fairmp.report.topology import take_caption

        document["picture"], document["picture_note"] = "topology.svg", take_caption(picture)
        (folder / "topology.svg").write_text(to_svg(picture), encoding="utf-8")
    document.setdefault("date", date.today().isoformat())
    record = dict(document)
    if "lines" in document:
        record["lines"] = _section_record(document["lines"])
    if "extra" in document:
        record["extra"] = [_section_record(section) for section in document["extra"]]
    write_json(folder / DOCUMENT, record)
    (folder / PAGE).write_text(html(document, folder), encoding="utf-8")


def read(folder: Path) -> Document:
    """Read a report.json."""
    path = folder / DOCUMENT
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        value = f"{path} cannot be read ({error})"
        raise InputError("results", value, "run its command again") from None
    if not isinstance(document, dict) or not isinstance(document.get("title"), str):
        raise InputError("results", f"{path} is not a report", "run its command again")
    if "lines" in document:
        document["lines"] = _section(document["lines"])
    if "extra" in document:
        document["extra"] = [_section(record) for record in document["extra"]]
    return cast(Document, document)


def _section_record(section: Section) -> dict[str, Any]:
    return {key: value for key, value in asdict(section).items() if value}


def _section(record: Mapping[str, Any]) -> Section:
    names = [field.name for field in fields(Section)]
    return Section(**{name: record[name] for name in names if name in record})


def html(document: Document, folder: Path | None = None) -> str:
    """Render a report; its picture is read from the folder."""
    head = Section(
        document["title"],
        flags=flags(document),
        cards=cards(document),
        bullets=story.checks(document),
    )
    for pictures in (folder, None):
        sections = page_sections(document, pictures)
        text = page(
            document["title"], summary(document), sections, head, date=document.get("date", "")
        )
        if len(text.encode()) <= MAX_BYTES:
            break
    return text


def summary(document: Document) -> str:
    """The main result in a sentence or two."""
    if "summary" in document:
        return document["summary"]
    metrics = metrics_by_key(document)
    targeted = {m.get("key") for m in document.get("metrics", []) if is_known(m.get("target"))}
    key = "eo" if targeted == {"eo"} else "dp"
    gap, accuracy = metrics.get(key, {}), metrics.get("accuracy", {})
    if not is_known(gap.get("after")) or targeted - {key}:
        return _summary_of_targets(document)
    sentences = [_decision_rates(document, gap)]
    if is_known(accuracy.get("after")):
        before = accuracy.get("before")
        earlier = f", before the correction {points(before)} %" if is_known(before) else ""
        sentences.append(f"Accuracy is {points(accuracy['after'])} %{earlier}.")
    return " ".join([*sentences, *_constant_decisions(document)])


def _constant_decisions(document: Document) -> list[str]:
    groups = [group for group in document.get("groups", []) if group["nodes"]]
    rates = [group["after"] for group in groups if group.get("known", True)]
    all_known = len(rates) == len(groups) and not document.get("unknown_groups")
    return constant_decision_notes(document.get("classes", []), rates, all_known=all_known)


def _decision_rates(document: Document, gap: Metric) -> str:
    """How often each of two groups gets the positive decision, or how far more groups differ.

    For ΔEO, among the people with that label.
    """
    classes = document.get("classes", [])
    groups = [group for group in document.get("groups", []) if group.get("known", True)]
    among_label = gap.get("key") == "eo"
    now, before = (_positive_rates(groups, when, among_label) for when in ("after", "before"))
    if len(classes) != 2 or len(groups) != 2 or now is None:
        where = " for people of the same label" if among_label else ""
        earlier_gap = gap.get("before")
        earlier = f", before the correction by {points(earlier_gap)}"
        return (
            f"Between the groups, decisions{where} differ by up to {points(gap['after'])} points"
            f"{earlier if is_known(earlier_gap) else ''}."
        )
    first, second = (repr(group["name"]) for group in groups)
    text = f"{first} gets {classes[1]!r} {now[0]} times in 100, {second} {now[1]} times."
    if now[0] == now[1]:
        text = f"Both groups now get {classes[1]!r} {now[0]} times in 100."
    if among_label:
        text = f"Of those labelled {classes[1]!r}: {text[0].lower()}{text[1:]}"
    if before is not None:
        text += f" Before the correction it was {' and '.join(before)}."
    return text


def _positive_rates(
    groups: Sequence[GroupSummary], when: str, among_label: bool
) -> list[str] | None:
    """Rates of the positive decision by group, in 100; None if one is not known."""
    if among_label:
        rates = [group.get("tpr", {}).get(when) for group in groups]
    else:
        rates = [group["after"] if when == "after" else group.get("before") for group in groups]
    positive = [row[1] if row else None for row in rates]
    if not all(is_known(rate) for rate in positive):
        return None
    return [per_hundred(rate) for rate in positive]


def _summary_of_targets(document: Document) -> str:
    """Targets and costs, for gaps other than ΔDP."""
    noun, clauses = document.get("noun", "people"), []
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
        before, unit = metric.get("before"), metric.get("unit", "points")
        show = ratio if unit == "ratio" else points
        start = f"{show(before)} → " if is_known(before) else ""
        notes = []
        if found := story.direction(document, metric.get("key", "")):
            notes.append(str(found))
        if interval := interval_text(metric.get("after_interval"), show):
            notes.append(f"95 % interval {interval}")
        value = f"{start}{show(metric['after'])}" + ("" if unit == "ratio" else f" {unit}")
        figures.append(_card(document, metric.get("label", metric["name"]), value, notes))
    count, total = changed(document)
    if count is not None and total:
        low, high = map(per_hundred, wilson_interval(count, total))
        notes = [f"{count:,} of {total:,}", f"95 % interval {low} to {high}"]
        value = f"{per_hundred(count / total)} of 100"
        figures.append(_card(document, "decisions changed", value, notes))
    return [*figures, *_payers_card(document)]


def _card(document: Document, label: str, value: str, notes: Sequence[str]) -> Card:
    """A card that says which splits its figures are of."""
    sample = document.get("sample")
    return Card(label, value, "; ".join([*notes, *([sample] if sample else [])]))


def _payers_card(document: Document) -> list[Card]:
    paid, classes = story.payers(document), document.get("classes", [])
    if turned := story.turned(document):
        value = f"{turned.wrong_now:,} now wrong, {turned.right_now:,} now right"
        notes = ["decisions that agreed with the label before, or that agree only now"]
        return [_card(document, "who pays", value, notes)]
    if paid is None or len(classes) != 2:
        return []
    notes = [
        f"{paid.lost_with_label:,} of those who lost {classes[1]!r} are labelled so",
        f"{paid.gained_without_label:,} of those who gained it are not",
    ]
    return [_card(document, "who pays", f"{paid.lost:,} lost, {paid.gained:,} gained", notes)]


def story_lines(document: Document) -> list[str]:
    """The headline, the cards, the warnings and the checks as lines of text.

    Example:
        >>> from fairmp import evaluate
        >>> from fairmp.report.evaluations import from_evaluations
        >>> hired = ["yes", "no", "no", "no", "yes", "yes", "yes", "no"] * 25
        >>> sex = ["f", "f", "f", "f", "m", "m", "m", "m"] * 25
        >>> corrected = ["no", "yes", "no", "yes", "yes", "no", "yes", "no"] * 25
        >>> before = evaluate(hired, hired, sensitive_features=sex, bootstrap=0)
        >>> after = evaluate(hired, corrected, sensitive_features=sex, bootstrap=0)
        >>> lines = story_lines(from_evaluations(after, before, target=0.02))
        >>> for line in lines[2:5]:
        ...     print(line)
        gap between groups (ΔDP): 50.0 → 0.0 points (before: m ahead by 50.0; now: nobody ahead)
        gap at equal labels (ΔEO): 0.0 → 66.7 points (before: nobody ahead; now: m ahead by 66.7)
        Warning: the correction made a gap worse. The gap at equal labels (ΔEO) grew from 0.0 to
        66.7 points.
    """
    figures = [
        f"{card.label}: {card.value}{f' ({card.note})' if card.note else ''}"
        for card in cards(document)
    ]
    warnings = [f"Warning: {flag}" for flag in flags(document)]
    advice = [f"Check: {line}" for line in story.checks(document)]
    return [summary(document), *figures, *warnings, *advice]


def page(
    title: str,
    summary: str,
    sections: Sequence[Section],
    head: Section | None = None,
    *,
    date: str = "",
) -> str:
    """Render a page with a summary and key figures at the top; all but figures is escaped.

    Args:
        title: of the page.
        summary: the main result.
        sections: of the page; a navigation is added where there are more than three.
        head: flags, cards and checks around the summary.
        date: when it was made.

    Example:
        >>> text = page("Hired & why", "Equal rates.", [Section("Groups", ["Two of them."])])
        >>> text[text.index("<h1") : text.index("</h1>")]
        '<h1>Hired &amp; why'
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
        date=date,
    )


def _anchors(sections: Sequence[Section]) -> list[str]:
    """A unique id for each section, from its title."""
    anchors: list[str] = []
    for section in sections:
        stem = re.sub(r"[^a-z0-9]+", "-", section.title.lower()).strip("-") or "section"
        names = [stem, *(f"{stem}-{count}" for count in range(2, 2 + len(sections)))]
        anchors.append(next(name for name in names if name not in anchors))
    return anchors

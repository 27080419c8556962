"""The report a manager can read, made of plain data: what a command knows, it fills in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypedDict, cast

from fairmp.errors import InputError
from fairmp.report.formatting import known, of_100, one_decision, points, span
from fairmp.report.page import Card, page
from fairmp.report.sections import changed, sections

STORY, REPORT = "story.json", "report.html"
LIMIT = 5_000_000
"""A page is no larger than this, in bytes; pictures are left out first."""


class GroupPart(TypedDict, total=False):
    """One group: how many nodes, and the share decided for each class, before and after.

    ``moves`` has [class before, class after, nodes] of the decisions that changed; ``positives``
    and ``found`` count the nodes whose true class is the last of two, and those decided so.
    """

    name: str
    nodes: int
    labelled: int
    before: list[float | None] | None
    after: list[float | None]
    changed: int | None
    moves: list[list[Any]]
    accuracy: float | None
    positives: int
    found: int
    found_before: int


class Criterion(TypedDict, total=False):
    """One figure before and after, as fractions, with intervals where there are any.

    ``label`` is its name for a glance, ``meaning`` a sentence, ``unit`` "%" or "points";
    ``within`` is how far from the whole each group was asked to be, where ``target`` follows from
    that.
    """

    name: str
    label: str
    meaning: str
    unit: str
    target: float | None
    within: float | None
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


class Story(TypedDict, total=False):
    """What a report tells; every part may be absent.

    Attributes:
        title: of the page.
        summary: the most important of it; made up from the figures where it is absent.
        noun: what the nodes are, in the plural; "people" by default.
        graph: an audit's record (:meth:`fairmp.analysis.audits.Audit.to_dict`).
        picture: the name of an SVG file beside the story that shows the graph.
        classes: the classes' names.
        groups: the groups on the nodes measured.
        changed: decisions that changed, and of how many, where that is not the groups' sum.
        measured: which nodes these are, in words.
        correction: what lies between before and after, in words.
        criteria: accuracy and gaps before and after.
        curve: the trade-off's curve, from the fairest on.
        curve_note: what the curve is.
        points: single points beside it.
        gap: what the gap is called; "ΔDP" by default.
        target: the largest gap that was asked for.
        lines: a table of several runs: ``header`` and ``rows``, and a ``caption``.
        extra: further sections (:class:`fairmp.report.Section` as a dict).
        notes: what a reader should know about the figures.
        assumptions: what the conclusions rest on.
        read: what the loader read, a line each.
        command: how to run it again.
        setting: the configuration, in full.
        versions: of what computed it.
    """

    title: str
    summary: str
    noun: str
    graph: dict[str, Any]
    picture: str
    classes: list[str]
    groups: list[GroupPart]
    changed: list[int]
    measured: str
    correction: str
    criteria: list[Criterion]
    curve: list[Point]
    curve_note: str
    points: list[Point]
    gap: str
    target: float | None
    lines: dict[str, Any]
    extra: list[dict[str, Any]]
    notes: list[str]
    assumptions: list[str]
    read: list[str]
    command: str
    setting: dict[str, Any]
    versions: dict[str, str]


def write(story: Story, folder: Path) -> None:
    """Write story.json and report.html beside each other."""
    text = json.dumps(story, ensure_ascii=False, allow_nan=False, indent=1)
    (folder / STORY).write_text(text + "\n", encoding="utf-8")
    (folder / REPORT).write_text(html(story, folder), encoding="utf-8")


def read(folder: Path) -> Story:
    """Read a story written earlier."""
    try:
        story = json.loads((folder / STORY).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            str(folder / STORY), f"it can not be read ({error})", "run the command again"
        ) from None
    if not isinstance(story, dict) or not isinstance(story.get("title"), str):
        raise InputError(str(folder / STORY), "it is no story", "run the command again")
    return cast(Story, story)


def html(story: Story, folder: Path | None = None) -> str:
    """Make the page of a story; its picture is looked for in the folder.

    Example:
        >>> story: Story = {"title": "A <graph>", "assumptions": ["Groups are known."]}
        >>> "A &lt;graph&gt;" in html(story)
        True
    """
    text = page(story["title"], summary(story), sections(story, folder), cards(story))
    if len(text.encode()) <= LIMIT:
        return text
    return page(story["title"], summary(story), sections(story, None), cards(story))


def summary(story: Story) -> str:
    """The most important of a story in a sentence or two."""
    if "summary" in story:
        return story["summary"]
    gap, noun = _criterion(story, "dp"), story.get("noun", "people")
    if gap is None or not known(gap.get("after")):
        return _moved(story, noun)
    after = gap["after"]
    text = (
        f"Between the groups, positive decisions differ by {points(after)} of 100 {noun}"
        if len(story.get("classes", [])) == 2
        else f"Between the groups, decisions differ by up to {points(after)} of 100 {noun}"
    )
    if known(gap.get("before")):
        text += f"; without the correction it would be {points(gap['before'])}"
    accuracy = _criterion(story, "accuracy")
    if accuracy is not None and known(accuracy.get("after")):
        text += f". {points(accuracy['after'])} of 100 decisions are right"
        if known(accuracy.get("before")):
            text += f", {points(accuracy['before'])} without it"
    rates = [group["after"] for group in story.get("groups", []) if group["nodes"]]
    return " ".join([f"{text}.", *one_decision(story.get("classes", []), rates)])


def _moved(story: Story, noun: str) -> str:
    """What was asked for and what it took, where the gap is another than ΔDP."""
    told = [
        f"{c['name']}: the gap went from {points(c['before'])} to {points(c['after'])} points"
        for c in story.get("criteria", [])
        if known(c.get("target")) and known(c.get("before")) and known(c.get("after"))
    ]
    count, total = changed(story)
    if told and count is not None and total:
        told.append(f"the decision changed for {of_100(count / total)} of 100 {noun}")
    text = "; ".join(told)
    return f"{text[0].upper()}{text[1:]}." if text else ""


def cards(story: Story) -> list[Card]:
    """The figures worth a glance."""
    found = []
    for criterion in story.get("criteria", [])[:3]:
        after, before = criterion.get("after"), criterion.get("before")
        if not known(after):
            continue
        unit = criterion.get("unit", "points")
        value = f"{points(after)} %" if unit == "%" else f"{points(after)} points"
        notes = [f"{points(before)} before"] if known(before) else []
        interval = span(criterion.get("after_interval"))
        notes += [f"95 % interval {interval}"] if interval else []
        found.append(Card(criterion.get("label", criterion["name"]), value, "; ".join(notes)))
    count, total = changed(story)
    if count is not None and total:
        found.append(Card("decisions changed", f"{of_100(count / total)} of 100"))
    return found


def _criterion(story: Story, key: str) -> Criterion | None:
    titles = {"dp": "ΔDP", "accuracy": "accuracy"}
    return next(
        (c for c in story.get("criteria", []) if titles[key].lower() in c["name"].lower()), None
    )

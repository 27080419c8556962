"""The chapters of a report, each made from its part of a story and left out where there is none."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from fairmp.errors import InputError
from fairmp.report import charts
from fairmp.report.figures import to_svg
from fairmp.report.formatting import (
    LARGEST,
    asked,
    known,
    listed,
    moved,
    of_100,
    points,
    span,
    wilson,
    with_span,
)
from fairmp.report.page import Section

if TYPE_CHECKING:
    from fairmp.report.document import Criterion, GroupPart, Story


def sections(story: Story, folder: Path | None = None) -> list[Section]:
    """The parts of a story's page, those it has something for, always in the same order."""
    parts = [
        *_graph(story, folder),
        *_groups(story),
        *_before_after(story),
        *_changed(story),
        *_tradeoff(story),
        *_lines(story),
        *(section_of(part) for part in story.get("extra", [])),
        *_assumptions(story),
        *_rerun(story),
    ]
    if not parts:
        raise InputError(story["title"], "the story has nothing to tell", "run the command again")
    return parts


def section_of(part: Mapping[str, Any]) -> Section:
    """Make a section of its dict."""
    names = {field.name for field in fields(Section)}
    return Section(**{key: value for key, value in part.items() if key in names})


def part_of(section: Section) -> dict[str, Any]:
    """Make a dict of a section, for :class:`Story`'s ``extra``."""
    return {key: value for key, value in asdict(section).items() if value}


def _graph(story: Story, folder: Path | None) -> list[Section]:
    graph = story.get("graph")
    if not graph:
        return []
    picture = story.get("picture")
    svg = ""
    if picture and folder is not None and (folder / picture).is_file():
        svg = (folder / picture).read_text(encoding="utf-8")
    noun = story.get("noun", "people")
    tie = graph["homophily"]["raw"]
    facts = (
        f"{graph['nodes']:,} {noun} with {graph['edges']:,} ties between them, "
        f"{graph['average_degree']:.1f} each on average."
    )
    if known(tie):
        facts += (
            f" Of 100 ties {of_100(tie)} join two of the same group; if groups did not matter it "
            f"would be {of_100(graph['homophily']['chance'])}."
        )
    classes = graph["classes"]
    shown = classes[1:] if len(classes) == 2 else classes[:6]
    first = 1 if len(classes) == 2 else 0
    rows = []
    for row in graph["groups"]:
        rates = row["base_rates"] or [None] * len(classes)
        rows.append(
            [
                row["name"],
                f"{row['nodes']:,}",
                points(row["share"]),
                *(points(rate) for rate in rates[first : first + len(shown)]),
                f"{row['mean_degree']:.1f}",
                points(row["inside"]),
            ]
        )
    return [
        Section(
            "What the graph looks like, and what that means",
            text=[facts],
            bullets=graph.get("verdict", []),
            svg=svg,
            alt=f"Picture of the graph {graph['name']}: ties inside a group dark, across groups "
            "red.",
            header=[
                *("group", noun, "share %", *(f"labelled {name} %" for name in shown)),
                *("ties each", "ties inside %"),
            ],
            rows=rows,
            caption="What is known of each group before any model: its size, how often each label "
            "occurs among those labelled, how many ties each has, and what share of these stays "
            "inside the group.",
        )
    ]


def _shown(story: Story) -> list[int]:
    """The classes to show: the positive one of two, else those whose shares differ most."""
    classes = story.get("classes", [])
    if len(classes) == 2:
        return [1]
    ranges = []
    for c in range(len(classes)):
        rates = [group["after"][c] or 0.0 for group in story["groups"] if known(group["after"][c])]
        ranges.append(max(rates, default=0.0) - min(rates, default=0.0))
    return sorted(sorted(range(len(classes)), key=lambda c: -ranges[c])[:4])


def _groups(story: Story) -> list[Section]:
    groups, classes = story.get("groups", []), story.get("classes", [])
    if not groups:
        return []
    noun, shown = story.get("noun", "people"), _shown(story)
    say = []
    for c in shown[:2]:
        told = [
            f"{of_100(group['after'][c])} in {group['name']!r} ({_ends(group, c, 'after')})"
            for group in _extremes(groups, c)
        ]
        say.append(f"Of 100 {noun}, the decision is {classes[c]!r} for {listed(told)}.")
    found = [group for group in groups if group.get("positives")]
    header = ["group", noun, *(f"decided {classes[c]!r} %" for c in shown)]
    truly = ""
    if found and len(classes) == 2:
        truly = f" Of the truly {classes[1]!r}: of those with that label, the share decided so."
        header.append(f"of the truly {classes[1]!r} %")
    header += ["accuracy %"] * any(known(group.get("accuracy")) for group in groups)
    rows = []
    for group in groups:
        row = [group["name"], f"{group['nodes']:,}"]
        row += [with_span(group["after"][c], _wilson(group, c, "after")) for c in shown]
        if found and len(classes) == 2:
            hits, of = group.get("found", 0), group.get("positives", 0)
            row.append(with_span(hits / of if of else None, wilson(hits, of)))
        if any(known(g.get("accuracy")) for g in groups):
            share, n = group.get("accuracy"), group.get("labelled", 0)
            row.append(with_span(share, wilson((share or 0) * n, n) if known(share) else None))
        rows.append(row)
    return [
        Section(
            "What the model does to each group",
            text=say,
            bullets=story.get("notes", []),
            svg=to_svg(charts.group_bars(story, shown)),
            alt=" ".join(say),
            header=header,
            rows=rows,
            caption=f"{story.get('measured', 'All nodes measured')}. In brackets, and as lines "
            "across the bars, 95 % intervals: what other draws of as many would show 19 times of "
            f"20.{truly}",
        )
    ]


def _ends(group: GroupPart, c: int, when: str) -> str:
    low, high = _wilson(group, c, when)
    return f"{of_100(low)} to {of_100(high)}" if known(low) else "n/a"


def _wilson(group: GroupPart, c: int, when: str) -> tuple[float, float]:
    rates = group.get(when)
    share = cast(Sequence[float | None], rates)[c] if rates else None
    if share is None:
        return float("nan"), float("nan")
    return wilson(share * group["nodes"], group["nodes"])


def _extremes(groups: Sequence[GroupPart], c: int) -> list[GroupPart]:
    """All groups where they are few, else the two furthest apart."""
    rated = [group for group in groups if known(group["after"][c])]
    if len(rated) <= 4:
        return rated
    order = sorted(rated, key=lambda group: group["after"][c] or 0.0)
    return [order[0], order[-1]]


def _before_after(story: Story) -> list[Section]:
    criteria = [c for c in story.get("criteria", []) if known(c.get("before"))]
    if not criteria:
        return []
    targeted = any(known(c.get("target")) for c in criteria)
    header = ["", "before", "after", "change", *(["asked for"] * targeted)]
    rows = []
    for c in criteria:
        unit = "%" if c.get("unit") == "%" else "points"
        row = [
            f"{c['name']}, {unit}",
            with_span(c.get("before"), c.get("before_interval")),
            with_span(c.get("after"), c.get("after_interval")),
            moved(c.get("before"), c.get("after")),
        ]
        if targeted:
            row.append(f"≤ {points(c.get('target'))}" if known(c.get("target")) else "")
        rows.append(row)
    meanings = [f"{c['name']}: {c['meaning']}" for c in criteria if c.get("meaning")]
    return [
        Section(
            "Before and after",
            text=[story["correction"]] if story.get("correction") else [],
            bullets=meanings,
            header=header,
            rows=rows,
            caption=" ".join(_cautions(story, criteria)),
        )
    ]


def _cautions(story: Story, criteria: Sequence[Criterion]) -> list[str]:
    """How to read gaps: with intervals, on few nodes, on very few."""
    found = []
    if any(span(c.get("after_interval")) for c in criteria):
        found.append("In brackets, 95 % intervals.")
    found += [asked(within) for c in criteria if (within := c.get("within")) is not None]
    found.append(LARGEST)
    least = min((group["nodes"] for group in story.get("groups", [])), default=0)
    if 0 < least < 100:
        found.append(
            f"The smallest group has {least}: one decision there is {points(1 / least)} points."
        )
    return found


def changed(story: Story) -> tuple[int | None, int]:
    """Decisions that changed, None where that is not known, and of how many.

    Example:
        >>> changed({"groups": [{"name": "a", "nodes": 10, "changed": 2, "after": [0.5, 0.5]}]})
        (2, 10)
    """
    if "changed" in story:
        return story["changed"][0], story["changed"][1]
    counts = [group.get("changed") for group in story.get("groups", [])]
    total = sum(group["nodes"] for group in story.get("groups", []))
    if not counts or any(count is None for count in counts):
        return None, total
    return sum(count or 0 for count in counts), total


def _changed(story: Story) -> list[Section]:
    groups = [group for group in story.get("groups", []) if group.get("changed") is not None]
    if not groups or not any(group.get("before") for group in groups):
        return []
    noun, classes = story.get("noun", "people"), story.get("classes", [])
    kinds = sorted({(m[0], m[1]) for group in groups for m in group.get("moves", [])})
    kinds = kinds[:6]
    header = ["group", noun, "changed", "of 100"]
    header += [f"{classes[a]} → {classes[b]}" for a, b in kinds]
    rows = []
    for group in groups:
        counts = {(m[0], m[1]): m[2] for m in group.get("moves", [])}
        count, n = group.get("changed") or 0, group["nodes"]
        rows.append(
            [
                group["name"],
                f"{n:,}",
                f"{count:,}",
                of_100(count / n if n else None),
                *(f"{counts.get(kind, 0):,}" for kind in kinds),
            ]
        )
    total, everyone = changed(story)
    total = total or 0
    share = of_100(total / everyone if everyone else None)
    text = [f"The decision changed for {total:,} of {everyone:,} {noun}: {share} of 100."]
    return [
        Section(
            "What changed for whom",
            text=text,
            svg=to_svg(charts.changes(groups, classes, noun)) if total else "",
            alt=text[0],
            header=header,
            rows=rows,
        )
    ]


def _tradeoff(story: Story) -> list[Section]:
    if not story.get("curve") and not story.get("points"):
        return []
    gap, chosen = story.get("gap", "ΔDP"), None
    for point in story.get("points", []):
        chosen = point if point.get("kind") == "chosen" else chosen
    text = []
    if chosen is not None:
        text.append(
            f"The point chosen has {points(chosen['accuracy'])} % accuracy and a gap of "
            f"{points(chosen['gap'])} points."
        )
    if story.get("curve_note"):
        text.append(story["curve_note"])
    return [
        Section(
            "The trade-off",
            text=text,
            svg=to_svg(charts.curve(story)),
            alt=f"Accuracy against {gap}. " + " ".join(text),
            caption=f"Further left is fairer ({gap}), further up more often right. Bars are 95 % "
            "intervals.",
        )
    ]


def _lines(story: Story) -> list[Section]:
    lines = story.get("lines")
    if not lines:
        return []
    return [Section(lines.get("title", "Over several splits"), **_table(lines))]


def _table(lines: Mapping[str, Any]) -> dict[str, Any]:
    return {key: lines[key] for key in ("header", "rows", "caption", "text") if key in lines}


def _assumptions(story: Story) -> list[Section]:
    if not story.get("assumptions"):
        return []
    return [Section("What rests on assumptions", bullets=story["assumptions"])]


def _rerun(story: Story) -> list[Section]:
    if not story.get("command"):
        return []
    made = ", ".join(f"{name} {version}" for name, version in story.get("versions", {}).items())
    more = json.dumps(story["setting"], indent=1, ensure_ascii=False) if "setting" in story else ""
    return [
        Section(
            "How to rerun it",
            text=story.get("read", []),
            code=story["command"],
            caption=f"Computed with {made}." if made else "",
            more=more,
        )
    ]

"""Content of a report as plain data, and its sections; a section without data is omitted."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple, Self, TypedDict

import numpy as np

from fairmp.errors import InputError
from fairmp.report import figures
from fairmp.report import panel as live
from fairmp.report.formats import (
    GAP_NOTE,
    change_text,
    interval_text,
    is_known,
    join_names,
    per_hundred,
    points,
    wilson_interval,
    with_interval,
)

LIVE_NOTE = (
    "Corrections for equal opportunity and equalized odds are found with the labels of these "
    "nodes; expect slightly larger gaps on others."
)
OPENED = 0.02  # growth of a gap that is said in the headline
Ends = list[float | None] | None
"""An interval, as fractions."""


class Card(NamedTuple):
    """A key figure: label, value, and a note on its uncertainty."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Section:
    """A section of a page: text, a figure, a table; all but the figure's markup is escaped."""

    title: str
    text: Sequence[str] = ()  # paragraphs
    header: Sequence[str] = ()  # column titles of a table
    rows: Sequence[Sequence[str]] = ()  # the first cell names the row
    svg: str = ""  # a figure, from fairmp.report.figures
    caption: str = ""
    code: str = ""  # preformatted text, such as a command
    bullets: Sequence[str] = ()  # a list below the paragraphs
    alt: str = ""  # text alternative of the figure; by default the caption, or the title
    more: str = ""  # preformatted details, collapsed, and omitted in print
    chapter: bool = False  # whether the heading is one level above the others
    appendix: bool = False  # for specialists: at the end of the page, collapsed
    flags: Sequence[str] = ()  # warnings
    cards: Sequence[Card] = ()
    panel: Mapping[str, Any] | None = None  # from fairmp.report.panel

    def to_dict(self) -> dict[str, Any]:
        """Return the parts that are not empty, for JSON."""
        return {key: value for key, value in asdict(self).items() if value}

    @classmethod
    def from_dict(cls, part: Mapping[str, Any]) -> Self:
        """Make a section from its dict; unknown keys are ignored."""
        return cls(**{f.name: part[f.name] for f in fields(cls) if f.name in part})


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
    before: float | None
    after: float | None
    before_interval: Ends
    after_interval: Ends


class Point(TypedDict, total=False):
    """A point of the trade-off; ``kind`` is "before", "chosen" or "other"."""

    name: str
    kind: str
    accuracy: float
    gap: float
    accuracy_interval: Ends
    gap_interval: Ends


class Document(TypedDict, total=False):
    """Content of a report; every part but the title is optional."""

    title: str
    summary: str  # the main result; by default derived from the metrics
    flags: list[str]  # warnings for the headline
    noun: str  # what the nodes are, in the plural; "people" by default
    graph: dict[str, Any]  # an audit's record (fairmp.Audit.to_dict)
    picture: str  # name of an SVG file of the graph, in the report's directory
    picture_note: str  # what it shows
    classes: list[str]
    groups: list[GroupSummary]
    changed: list[int]  # changed decisions, and all, if not the sums over groups
    measured: str  # description of the evaluated nodes
    correction: str  # the difference between before and after
    metrics: list[Metric]
    curve: list[Point]  # the trade-off, from the fairest point on
    curve_label: str
    curve_note: str
    bars: str  # what those of the trade-off are, if not intervals
    trials: list[Point]  # of a search
    gap: str  # name of the gap; "ΔDP" by default
    points: list[Point]  # other points of the trade-off
    target: float | None  # the largest gap that was requested
    lines: dict[str, Any]  # table of runs: header, rows, title, caption
    panel: dict[str, Any] | None  # from fairmp.report.panel: every target and criterion
    reliability: list[dict[str, Any]]  # fairmp.metrics.ReliabilityCurve of each group, as dicts
    extra: list[dict[str, Any]]  # further sections (fairmp.report.Section.to_dict)
    notes: list[str]  # remarks on the figures
    assumptions: list[str]
    read: list[str]  # messages of the loader
    command: str  # that reproduces the result
    setting: dict[str, Any]  # the full configuration
    versions: dict[str, str]


def sections(document: Document, folder: Path | None = None) -> list[Section]:
    """Sections of a document's page: result, groups, cost, graph, and last what is for experts."""
    extra = [Section.from_dict(part) for part in document.get("extra", [])]
    lines, assumptions = document.get("lines"), document.get("assumptions")
    parts: list[Section | None] = [
        _result(document),
        groups_section(document) if document.get("groups") else None,
        _changed(document),
        _live(document) if document.get("panel") else None,
        _tradeoff(document) if document.get("curve") or document.get("points") else None,
        Section.from_dict({"title": "Over several splits", **lines}) if lines else None,
        reliability_section(document) if document.get("reliability") else None,
        _graph(document, folder) if document.get("graph") else None,
        *(part for part in extra if not part.appendix),
        Section("Assumptions", bullets=assumptions) if assumptions else None,
        _rerun(document) if document.get("command") else None,
    ]
    found = [part for part in parts if part is not None]
    if not found:
        raise InputError(document["title"], "the report is empty", "run the command again")
    return found + [part for part in extra if part.appendix]


def flags(document: Document) -> list[str]:
    """Warnings for the headline, such as gaps that grew by over two points."""
    return [*document.get("flags", [])] + [
        f"the correction made another gap worse. The {metric.get('label', metric['name'])} grew "
        f"from {points(before)} to {points(after)} points."
        for metric in document.get("metrics", [])
        if metric.get("unit", "points") == "points"
        and is_known(before := metric.get("before"))
        and is_known(after := metric.get("after"))
        and after - before > OPENED
    ]


def _graph(document: Document, folder: Path | None) -> Section:
    graph = document["graph"]
    picture, noun = document.get("picture"), document.get("noun", "people")
    drawn = folder / picture if picture and folder is not None else None
    facts = f"{graph['nodes']:,} {noun} and {graph['edges']:,} edges between them"
    facts += f", {graph['average_degree']:.1f} per node on average."
    raw, chance = (graph["homophily"][key] for key in ("raw", "chance"))
    if is_known(raw):
        facts += f" Of 100 edges, {per_hundred(raw)} are within a group; by chance it would be "
        facts += f"{per_hundred(chance)}."
    header, *rows = group_table(graph, noun)
    note = f"The picture: {document['picture_note']} " if document.get("picture_note") else ""
    return Section(
        "The graph",
        text=[facts],
        bullets=graph.get("verdict", []),
        svg=drawn.read_text(encoding="utf-8") if drawn is not None and drawn.is_file() else "",
        alt=f"Picture of the graph {graph['name']}: edges within a group dark, between groups red.",
        header=header,
        rows=rows,
        caption=f"{note}The table: each group before any model, its size, the frequency of each "
        "label among the labelled, the edges per node (mean and median), the isolated nodes, and "
        "the share of edges within the group (inside).",
    )


def group_table(graph: Mapping[str, Any], noun: str) -> list[list[str]]:
    """Header, and one row per group of an audit's record."""
    classes = graph["classes"]
    shown = slice(1, 2) if len(classes) == 2 else slice(0, 8)
    header = ["group", noun, "share %", "labelled", *(f"{name} %" for name in classes[shown])]
    table = [[*header, "mean degree", "median", "isolated", "inside %"]]
    for group in graph["groups"]:
        rates = (group["base_rates"] or [None] * len(classes))[shown]
        row = [group["name"], f"{group['nodes']:,}", points(group["share"])]
        row += [f"{group['labelled']:,}", *map(points, rates), f"{group['mean_degree']:.1f}"]
        row += [f"{group['median_degree']:g}", f"{group['isolated']:,}", points(group["inside"])]
        table.append(row)
    return table


def _shown_classes(document: Document) -> list[int]:
    """The positive class of two, else all, at most those eight whose shares differ most."""
    if len(document.get("classes", [])) == 2:
        return [1]
    rates = np.array([g["after"] for g in document["groups"]], dtype=float)
    ranges = np.nan_to_num(np.fmax.reduce(rates) - np.fmin.reduce(rates))
    return sorted(np.argsort(-ranges, kind="stable")[:8].tolist())


def groups_section(document: Document) -> Section:
    """Decisions by group, with a chart and a table."""
    groups, classes = document["groups"], document.get("classes", [])
    noun, shown = document.get("noun", "people"), _shown_classes(document)
    columns = {"group": [g["name"] for g in groups], noun: [f"{g['nodes']:,}" for g in groups]}
    sentences = []
    for c in shown:
        cells = [_share(group["after"][c], group["nodes"]) for group in groups]
        columns[f"decided {classes[c]!r} %"] = cells
        rated = [group for group in groups if is_known(group["after"][c])]
        if len(rated) > 4:  # name the lowest and the highest only
            rated = sorted(rated, key=lambda group: group["after"][c] or 0.0)[:: len(rated) - 1]
        rates = []
        for group in rated:
            share, n = group["after"][c] or 0.0, group["nodes"]
            low, high = map(per_hundred, wilson_interval(share * n, n))
            rates.append(f"{per_hundred(share)} in {group['name']!r} ({low} to {high})")
        sentences.append(f"Of 100 {noun}, {join_names(rates)} get the decision {classes[c]!r}.")
    caption = ""
    if len(classes) == 2 and any(group.get("positives") for group in groups):
        counts = [(g.get("true_positives", 0), g.get("positives", 0)) for g in groups]
        cells = [_share(k / n if n else None, n) for k, n in counts]
        columns[f"of those labelled {classes[1]!r} %"] = cells
        caption = f" Of those labelled {classes[1]!r}: the share with that decision."
    if any(is_known(group.get("accuracy")) for group in groups):
        cells = [_share(group.get("accuracy"), group.get("labelled", 0)) for group in groups]
        columns["accuracy %"] = cells
    return Section(
        "Decisions by group",
        text=sentences,
        bullets=document.get("notes", []),
        svg=figures.to_svg(figures.group_bars(document, shown[:4])),
        alt=" ".join(sentences),
        header=list(columns),
        rows=[list(row) for row in zip(*columns.values(), strict=True)],
        caption=f"{document.get('measured', 'All evaluated nodes')}. Brackets and error bars are "
        f"95 % intervals.{caption}",
    )


def _share(share: float | None, n: int) -> str:
    return with_interval(share, wilson_interval(share * n, n) if is_known(share) else None)


def metric_cells(metric: Metric) -> list[str]:
    """A metric before and after, with intervals, and its target."""
    before, after = (
        with_interval(metric.get(when), metric.get(f"{when}_interval"))  # type: ignore[arg-type]
        for when in ("before", "after")
    )
    return [before, after, f"≤ {points(t)}" if is_known(t := metric.get("target")) else ""]


def _result(document: Document) -> Section | None:
    metrics = [m for m in document.get("metrics", []) if is_known(m.get("before"))]
    if not metrics:
        return None
    targeted = any(is_known(metric.get("target")) for metric in metrics)
    rows = []
    for metric in metrics:
        before, after, target = metric_cells(metric)
        change = change_text(metric["before"], metric.get("after"))
        name = f"{metric['name']}, {metric.get('unit', 'points')}"
        rows.append([name, before, after, change, *[target] * targeted])
    bracketed = any(interval_text(metric.get("after_interval")) for metric in metrics)
    notes = [*["Brackets are 95 % intervals."] * bracketed, GAP_NOTE]
    known = [g for g in document.get("groups", []) if not g["name"].endswith("unknown")]
    least = min((group["nodes"] for group in known), default=0)
    if 0 < least < 100:
        one = points(1 / least)
        notes.append(f"The smallest group has {least} nodes: one decision is {one} points.")
    return Section(
        "Result",
        text=[document["correction"]] if document.get("correction") else [],
        bullets=[f"{m['name']}: {m['meaning']}" for m in metrics if m.get("meaning")],
        header=["", "before", "after", "change", *["target"] * targeted],
        rows=rows,
        caption=" ".join(notes),
    )


def changed(document: Document) -> tuple[int | None, int]:
    """Number of changed decisions (None if unknown), and of all."""
    if "changed" in document:
        return document["changed"][0], document["changed"][1]
    groups = document.get("groups", [])
    counts = [group.get("changed") for group in groups]
    known = sum(filter(None, counts)) if counts and None not in counts else None
    return known, sum(group["nodes"] for group in groups)


def _changed(document: Document) -> Section | None:
    groups = [group for group in document.get("groups", []) if group.get("changed") is not None]
    if not any(group.get("before") for group in groups):
        return None
    noun, classes = document.get("noun", "people"), document.get("classes", [])
    kinds = sorted({(m[0], m[1]) for group in groups for m in group.get("moves", [])})[:6]
    rows = []
    for group in groups:
        counts = {(m[0], m[1]): m[2] for m in group.get("moves", [])}
        count, n = group["changed"] or 0, group["nodes"]
        cells = [f"{counts.get(kind, 0):,}" for kind in kinds]
        share = per_hundred(count / n if n else None)
        rows.append([group["name"], f"{n:,}", f"{count:,}", share, *cells])
    found, everyone = changed(document)
    total = found or 0
    share = per_hundred(total / everyone if everyone else None)
    text = f"The decision changed for {total:,} of {everyone:,} {noun}: {share} of 100."
    moves = [f"{classes[a]} → {classes[b]}" for a, b in kinds]
    return Section(
        "Changed decisions",
        text=[text],
        svg=figures.to_svg(figures.changes(groups, classes, noun)) if total else "",
        alt=text,
        header=["group", noun, "changed", "of 100", *moves],
        rows=rows,
    )


def _live(document: Document) -> Section:
    found, noun = document["panel"] or {}, document.get("noun", "people")
    header, rows = live.table(found, noun)
    text = json.dumps({**found, "noun": noun}, ensure_ascii=False, separators=(",", ":"))
    criteria = [criterion["title"] for criterion in found["criteria"]]
    panel = {"criteria": criteria, "json": text.replace("<", "\\u003c")}
    return Section(
        "Try another target",
        text=[
            "What should be equal, and how much difference is acceptable? Every position was "
            f"computed for the same {found['total']:,} {noun} when this page was made, by "
            "correcting the predictions that the model makes on its own."
        ],
        panel={**panel, "header": header, "rows": rows, "start": found.get("start", 0)},
        caption=LIVE_NOTE * (len(criteria) > 1),
    )


def reliability_section(document: Document) -> Section:
    """Predicted probabilities against observed frequencies, by group."""
    curves, classes = document["reliability"], document.get("classes", [])
    name = repr(classes[1]) if len(classes) == 2 else "the most likely class"
    rows = []
    for curve in curves:
        ends = interval_text([curve["predicted"][0], curve["predicted"][-1]])
        rows.append([curve["group"], f"{sum(curve['counts']):,}", points(curve["error"]), ends])
    worst = max(curves, key=lambda curve: float(curve["error"]))
    text = (
        f"Where the model says 70 %, {name} should come true for 70 of 100. On average the "
        f"probabilities are off by {points(worst['error'])} points in {worst['group']!r}"
    )
    return Section(
        "Can the probabilities be trusted?",
        text=[text + (", the worst group." if len(curves) > 1 else ".")],
        svg=figures.to_svg(figures.reliability(curves)),
        alt=f"{text}. Observed frequency against predicted probability, one curve per group.",
        header=["group", "labelled", "average error, points", "range of probabilities, %"],
        rows=rows,
        caption="Before the correction, by tenths of the predicted probability. On the diagonal "
        "the probabilities are right; bars are 95 % intervals.",
    )


def _tradeoff(document: Document) -> Section:
    text = [
        f"The chosen point has an accuracy of {points(point['accuracy'])} % and a gap of "
        f"{points(point['gap'])} points."
        for point in document.get("points", [])
        if point.get("kind") == "chosen"
    ]
    text = [*text[-1:], *filter(None, [document.get("curve_note")])]
    return Section(
        "The trade-off",
        text=text,
        svg=figures.to_svg(figures.curve(document)),
        alt="Accuracy against the gap. " + " ".join(text),
        caption="Left is fairer, up is more accurate. "
        f"Bars are {document.get('bars', '95 % intervals')}.",
    )


def _rerun(document: Document) -> Section:
    made = ", ".join(f"{name} {version}" for name, version in document.get("versions", {}).items())
    setting = document.get("setting")
    return Section(
        "How to rerun it",
        text=document.get("read", []),
        code=document["command"],
        caption=f"Computed with {made}." if made else "",
        more=json.dumps(setting, indent=1, ensure_ascii=False) if setting is not None else "",
    )

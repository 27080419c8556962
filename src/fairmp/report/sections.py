"""Sections of a report; a section without data is omitted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fairmp.errors import InputError
from fairmp.report import charts
from fairmp.report.figures import to_svg
from fairmp.report.formatting import (
    GAP_NOTE,
    change_text,
    interval_text,
    is_known,
    join_names,
    per_hundred,
    points,
    target_note,
    wilson_interval,
    with_interval,
)
from fairmp.report.page import Section

if TYPE_CHECKING:
    from fairmp.report.document import Document, GroupSummary, Metric


def sections(document: Document, folder: Path | None = None) -> list[Section]:
    """Sections of a document's page, in a fixed order."""
    parts = [
        _graph(document, folder),
        _groups(document),
        _before_after(document),
        _changed(document),
        _tradeoff(document),
        _lines(document),
        *(Section.from_dict(part) for part in document.get("extra", [])),
        _assumptions(document),
        _rerun(document),
    ]
    found = [part for part in parts if part is not None]
    if not found:
        raise InputError(document["title"], "the report is empty", "run the command again")
    return found


def _graph(document: Document, folder: Path | None) -> Section | None:
    graph = document.get("graph")
    if not graph:
        return None
    picture, noun = document.get("picture"), document.get("noun", "people")
    drawn = folder / picture if picture and folder is not None else None
    facts = (
        f"{graph['nodes']:,} {noun} and {graph['edges']:,} edges between them, "
        f"{graph['average_degree']:.1f} per node on average."
    )
    if is_known(graph["homophily"]["raw"]):
        facts += (
            f" Of 100 edges, {per_hundred(graph['homophily']['raw'])} are within a group; by "
            f"chance it would be {per_hundred(graph['homophily']['chance'])}."
        )
    classes = graph["classes"]
    shown = slice(1, 2) if len(classes) == 2 else slice(0, 6)
    rows = [
        [
            group["name"],
            f"{group['nodes']:,}",
            points(group["share"]),
            *(points(rate) for rate in (group["base_rates"] or [None] * len(classes))[shown]),
            f"{group['mean_degree']:.1f}",
            points(group["inside"]),
        ]
        for group in graph["groups"]
    ]
    labels = [f"labelled {name} %" for name in classes[shown]]
    return Section(
        "The graph",
        text=[facts],
        bullets=graph.get("verdict", []),
        svg=drawn.read_text(encoding="utf-8") if drawn is not None and drawn.is_file() else "",
        alt=f"Picture of the graph {graph['name']}: edges within a group dark, between groups red.",
        header=["group", noun, "share %", *labels, "mean degree", "edges within the group %"],
        rows=rows,
        caption="Each group before any model: its size, the frequency of each label among the "
        "labelled, the mean number of edges per node, and the share of them within the group.",
    )


def _shown_classes(document: Document) -> list[int]:
    """The positive class of two, else the four whose shares differ most."""
    classes = document.get("classes", [])
    if len(classes) == 2:
        return [1]
    ranges = []
    for c in range(len(classes)):
        rates = [g["after"][c] or 0.0 for g in document["groups"] if is_known(g["after"][c])]
        ranges.append(max(rates, default=0.0) - min(rates, default=0.0))
    return sorted(sorted(range(len(classes)), key=lambda c: -ranges[c])[:4])


def _groups(document: Document) -> Section | None:
    groups, classes = document.get("groups", []), document.get("classes", [])
    if not groups:
        return None
    noun, shown = document.get("noun", "people"), _shown_classes(document)
    sentences = []
    for c in shown[:2]:
        rates = []
        for group in _extremes(groups, c):
            low, high = (per_hundred(end) for end in _share_interval(group, c))
            rates.append(f"{per_hundred(group['after'][c])} in {group['name']!r} ({low} to {high})")
        sentences.append(f"Of 100 {noun}, {join_names(rates)} get the decision {classes[c]!r}.")
    # A column is (title, its cells), shown if some group has a value.
    columns = [
        ("group", [group["name"] for group in groups]),
        (noun, [f"{group['nodes']:,}" for group in groups]),
    ]
    for c in shown:
        cells = [with_interval(group["after"][c], _share_interval(group, c)) for group in groups]
        columns.append((f"decided {classes[c]!r} %", cells))
    caption = ""
    if len(classes) == 2 and any(group.get("positives") for group in groups):
        counts = [(g.get("true_positives", 0), g.get("positives", 0)) for g in groups]
        cells = [with_interval(k / n if n else None, wilson_interval(k, n)) for k, n in counts]
        columns.append((f"of those labelled {classes[1]!r} %", cells))
        caption = f" Of those labelled {classes[1]!r}: the share with that decision."
    if any(is_known(group.get("accuracy")) for group in groups):
        cells = []
        for group in groups:
            share, n = group.get("accuracy"), group.get("labelled", 0)
            ends = wilson_interval((share or 0) * n, n) if is_known(share) else None
            cells.append(with_interval(share, ends))
        columns.append(("accuracy %", cells))
    return Section(
        "Decisions by group",
        text=sentences,
        bullets=document.get("notes", []),
        svg=to_svg(charts.group_bars(document, shown)),
        alt=" ".join(sentences),
        header=[title for title, _ in columns],
        rows=[list(row) for row in zip(*(cells for _, cells in columns), strict=True)],
        caption=f"{document.get('measured', 'All evaluated nodes')}. Brackets and error bars are "
        f"95 % intervals.{caption}",
    )


def _share_interval(group: GroupSummary, c: int) -> tuple[float, float]:
    share = group["after"][c]
    if share is None:
        return float("nan"), float("nan")
    return wilson_interval(share * group["nodes"], group["nodes"])


def _extremes(groups: Sequence[GroupSummary], c: int) -> list[GroupSummary]:
    """All groups if they are few, else those with the lowest and highest rate."""
    rated = [group for group in groups if is_known(group["after"][c])]
    if len(rated) <= 4:
        return rated
    order = sorted(rated, key=lambda group: group["after"][c] or 0.0)
    return [order[0], order[-1]]


def _before_after(document: Document) -> Section | None:
    metrics = [metric for metric in document.get("metrics", []) if is_known(metric.get("before"))]
    if not metrics:
        return None
    targeted = any(is_known(metric.get("target")) for metric in metrics)
    rows = []
    for metric in metrics:
        row = [
            f"{metric['name']}, {metric.get('unit', 'points')}",
            with_interval(metric.get("before"), metric.get("before_interval")),
            with_interval(metric.get("after"), metric.get("after_interval")),
            change_text(metric.get("before"), metric.get("after")),
        ]
        if targeted:
            target = metric.get("target")
            row.append(f"≤ {points(target)}" if is_known(target) else "")
        rows.append(row)
    return Section(
        "Before and after",
        text=[document["correction"]] if document.get("correction") else [],
        bullets=[f"{m['name']}: {m['meaning']}" for m in metrics if m.get("meaning")],
        header=["", "before", "after", "change", *(["target"] * targeted)],
        rows=rows,
        caption=" ".join(_cautions(document, metrics)),
    )


def _cautions(document: Document, metrics: Sequence[Metric]) -> list[str]:
    found = []
    if any(interval_text(metric.get("after_interval")) for metric in metrics):
        found.append("Brackets are 95 % intervals.")
    found += [target_note(within) for m in metrics if (within := m.get("within")) is not None]
    found.append(GAP_NOTE)
    least = min((group["nodes"] for group in document.get("groups", [])), default=0)
    if 0 < least < 100:
        found.append(
            f"The smallest group has {least} nodes: one decision is {points(1 / least)} points."
        )
    return found


def changed(document: Document) -> tuple[int | None, int]:
    """Number of changed decisions (None if unknown), and of all."""
    if "changed" in document:
        return document["changed"][0], document["changed"][1]
    counts = [group.get("changed") for group in document.get("groups", [])]
    total = sum(group["nodes"] for group in document.get("groups", []))
    if not counts or any(count is None for count in counts):
        return None, total
    return sum(count or 0 for count in counts), total


def _changed(document: Document) -> Section | None:
    groups = [group for group in document.get("groups", []) if group.get("changed") is not None]
    if not groups or not any(group.get("before") for group in groups):
        return None
    noun, classes = document.get("noun", "people"), document.get("classes", [])
    kinds = sorted({(m[0], m[1]) for group in groups for m in group.get("moves", [])})[:6]
    rows = []
    for group in groups:
        counts = {(m[0], m[1]): m[2] for m in group.get("moves", [])}
        count, n = group.get("changed") or 0, group["nodes"]
        share = per_hundred(count / n if n else None)
        cells = [f"{counts.get(kind, 0):,}" for kind in kinds]
        rows.append([group["name"], f"{n:,}", f"{count:,}", share, *cells])
    total, everyone = changed(document)
    total = total or 0
    share = per_hundred(total / everyone if everyone else None)
    text = f"The decision changed for {total:,} of {everyone:,} {noun}: {share} of 100."
    moves = [f"{classes[a]} → {classes[b]}" for a, b in kinds]
    return Section(
        "Changed decisions",
        text=[text],
        svg=to_svg(charts.changes(groups, classes, noun)) if total else "",
        alt=text,
        header=["group", noun, "changed", "of 100", *moves],
        rows=rows,
    )


def _tradeoff(document: Document) -> Section | None:
    if not document.get("curve") and not document.get("points"):
        return None
    gap = document.get("gap", "ΔDP")
    text = [
        f"The chosen point has an accuracy of {points(point['accuracy'])} % and a gap of "
        f"{points(point['gap'])} points."
        for point in document.get("points", [])
        if point.get("kind") == "chosen"
    ][-1:]
    if document.get("curve_note"):
        text.append(document["curve_note"])
    return Section(
        "The trade-off",
        text=text,
        svg=to_svg(charts.curve(document)),
        alt=f"Accuracy against {gap}. " + " ".join(text),
        caption=f"Left is fairer (smaller {gap}), up is more accurate. Bars are 95 % intervals.",
    )


def _lines(document: Document) -> Section | None:
    lines = document.get("lines")
    return Section.from_dict({"title": "Over several splits", **lines}) if lines else None


def _assumptions(document: Document) -> Section | None:
    assumptions = document.get("assumptions")
    return Section("Assumptions", bullets=assumptions) if assumptions else None


def _rerun(document: Document) -> Section | None:
    if not document.get("command"):
        return None
    made = ", ".join(f"{name} {version}" for name, version in document.get("versions", {}).items())
    setting = document.get("setting")
    return Section(
        "How to rerun it",
        text=document.get("read", []),
        code=document["command"],
        caption=f"Computed with {made}." if made else "",
        more=json.dumps(setting, indent=1, ensure_ascii=False) if setting is not None else "",
    )


part_of = Section.to_dict

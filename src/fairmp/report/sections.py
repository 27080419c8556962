"""Sections of a report's page, from its document; a section without data is omitted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fairmp.errors import InputError
from fairmp.metrics.evaluation import CRITERIA
from fairmp.report import figures, story
from fairmp.report import panel as live
from fairmp.report.content import (
    Document,
    GraphSummary,
    GroupSummary,
    LivePanel,
    Metric,
    Point,
    Section,
)
from fairmp.report.formats import (
    GAP_NOTE,
    interval_text,
    is_known,
    join_names,
    per_hundred,
    points,
    ratio_with_interval,
    signed_change,
    wilson_interval,
    with_interval,
)

if TYPE_CHECKING:
    from fairmp.analysis.audits.result import Leak

LIVE_NOTE = (
    "Corrections for equal opportunity and equalized odds are found with the labels of these "
    "people; expect slightly larger gaps on others."
)
MAX_CLASSES = 8  # of a table
MAX_NAMED_GROUPS = 4  # of a sentence
MAX_MOVES = 6  # kinds of changed decisions in a table
MAX_INTERVALS = 3  # columns of rates with intervals; more do not fit


def page_sections(document: Document, folder: Path | None = None) -> list[Section]:
    """Sections of a document's page: result, groups, cost, graph, and last what is for experts."""
    extra, assumptions = document.get("extra", []), document.get("assumptions")
    candidates: list[Section | None] = [
        _result(document),
        groups_section(document) if document.get("groups") else None,
        _changed(document),
        _choices(document),
        _live(document),
        _tradeoff(document) if document.get("curve") or document.get("points") else None,
        document.get("lines"),
        reliability_section(document) if document.get("reliability") else None,
        _graph(document, folder) if document.get("graph") else None,
        *(section for section in extra if not section.appendix),
        Section("Assumptions", bullets=assumptions) if assumptions else None,
        _rerun(document) if document.get("command") else None,
    ]
    present = [section for section in candidates if section is not None]
    if not present:
        raise InputError(document["title"], "the report is empty", "run the command again")
    return present + [section for section in extra if section.appendix]


def metrics_by_key(document: Document) -> dict[str, Metric]:
    """The metrics of a document that have a key."""
    return {metric["key"]: metric for metric in document.get("metrics", []) if "key" in metric}


def flags(document: Document) -> list[str]:
    """Warnings for the headline: gaps that changed sides, or grew by over two points.

    Example:
        >>> eo: Metric = {"key": "eo", "name": "ΔEO", "before": 0.01, "after": 0.08}
        >>> flags({"title": "Hiring", "metrics": [eo]})
        ['the correction made a gap worse. The ΔEO grew from 1.0 to 8.0 points.']
    """
    warnings = list(document.get("flags", []))
    measured = metrics_by_key(document)
    # Equalized odds are the larger of ΔEO and ΔFPR, which have flags of their own.
    repeated = {"odds"} if {"eo", "fpr"} <= measured.keys() else set()
    for metric in document.get("metrics", []):
        key = metric.get("key")
        if key in CRITERIA.values() and key not in repeated:
            warnings += filter(None, [story.flag(document, metric)])
    return warnings


def _graph(document: Document, folder: Path | None) -> Section:
    graph = document["graph"]
    noun = document.get("noun", "people")
    facts = (
        f"{graph['nodes']:,} {noun} and {graph['edges']:,} edges between them, "
        f"{graph['average_degree']:.1f} per node on average."
    )
    within, chance = graph["homophily"]["raw"], graph["homophily"]["chance"]
    if is_known(within):
        facts += (
            f" Of 100 edges, {per_hundred(within)} are within a group; by chance it would be "
            f"{per_hundred(chance)}."
        )
    svg = ""
    if folder is not None and (picture := document.get("picture")):
        path = folder / picture
        svg = path.read_text(encoding="utf-8") if path.is_file() else ""
    header, *rows = group_table(graph, noun)
    note = f"The picture: {document['picture_note']} " if document.get("picture_note") else ""
    return Section(
        "The graph",
        text=[facts],
        bullets=graph.get("verdict", []),
        svg=svg,
        on_white=True,
        alt=f"Picture of the graph {graph['name']}: edges within a group dark, between groups red.",
        header=header,
        rows=rows,
        caption=f"{note}The table: each group before any model, its size, the frequency of each "
        "label among the labelled, the edges per node (mean and median), the isolated nodes, and "
        "the share of edges within the group (inside).",
    )


def group_table(graph: GraphSummary, noun: str) -> list[list[str]]:
    """Header, and one row per group of an audit's record."""
    classes = graph["classes"]
    shown = slice(1, 2) if len(classes) == 2 else slice(0, MAX_CLASSES)
    header = ["group", noun, "share %", "labelled", *(f"{name} %" for name in classes[shown])]
    table = [[*header, "mean degree", "median", "isolated", "inside %"]]
    for group in graph["groups"]:
        unknown: list[float | None] = [None] * len(classes)
        rates = (group["base_rates"] or unknown)[shown]
        row = [group["name"], f"{group['nodes']:,}", points(group["share"])]
        row += [f"{group['labelled']:,}", *map(points, rates), f"{group['mean_degree']:.1f}"]
        row += [f"{group['median_degree']:g}", f"{group['isolated']:,}", points(group["inside"])]
        table.append(row)
    return table


def leak_sentence(leak: Leak) -> str:
    """Say that a column gives the label or the group away."""
    advice = (
        "Is it known when the prediction is made? If not, drop it."
        if leak.of == "label"
        else "Leaving out the sensitive column does not hide the group."
    )
    return (
        f"The column {leak.column!r} gives the {leak.of} away: {leak.rule} equals "
        f"{leak.value!r} on {points(leak.agreement)} % of the nodes where it is known (a "
        f"constant answer: {points(leak.most_frequent)} %). {advice}"
    )


def groups_section(document: Document) -> Section:
    """Decisions by group, with a chart and a table."""
    groups, classes = document["groups"], document.get("classes", [])
    noun, shown = document.get("noun", "people"), _shown_classes(document)
    columns = {
        "group": [group["name"] for group in groups],
        noun: [f"{group['nodes']:,}" for group in groups],
    }
    for c in shown:
        if len(shown) > MAX_INTERVALS:
            cells = [_before_after(group, c) for group in groups]
        else:
            cells = [_share(group["after"][c], group["nodes"]) for group in groups]
        columns[f"decided {classes[c]!r} %"] = cells
    caption = (
        f"{document.get('measured', 'All evaluated people')}. Brackets and error bars are 95 % "
        "intervals."
    )
    if len(classes) == 2 and any(group.get("positives") for group in groups):
        columns[f"of those labelled {classes[1]!r} %"] = [_true_positive_rate(g) for g in groups]
        caption += f" Of those labelled {classes[1]!r}: the share with that decision."
    if any(is_known(group.get("accuracy")) for group in groups):
        cells = [_share(group.get("accuracy"), group.get("labelled", 0)) for group in groups]
        columns["accuracy %"] = cells
    if len(classes) == 2 and any(is_known(group.get("ppv")) for group in groups):
        columns["precision %"] = [points(group.get("ppv")) for group in groups]
    sentences = [_decisions_sentence(groups, c, classes[c], noun) for c in shown]
    return Section(
        "Decisions by group",
        text=sentences,
        bullets=document.get("notes", []),
        svg=figures.to_svg(figures.group_bars(document, shown[:4])),
        alt=" ".join(sentences),
        header=list(columns),
        rows=[list(row) for row in zip(*columns.values(), strict=True)],
        caption=caption,
    )


def _shown_classes(document: Document) -> list[int]:
    """The positive class of two, else all, at most those eight whose shares differ most."""
    if len(document.get("classes", [])) == 2:
        return [1]
    rates = np.array([group["after"] for group in document["groups"]], dtype=float)
    ranges = np.nan_to_num(np.fmax.reduce(rates) - np.fmin.reduce(rates))
    return sorted(np.argsort(-ranges, kind="stable")[:MAX_CLASSES].tolist())


def _decisions_sentence(groups: Sequence[GroupSummary], c: int, name: str, noun: str) -> str:
    """How many of 100 in each group get a decision, or in the extreme groups if there are many."""
    shares = [(share, g) for g in groups if is_known(share := g["after"][c])]
    if len(shares) > MAX_NAMED_GROUPS:
        ordered = sorted(shares, key=lambda pair: pair[0])
        shares = [ordered[0], ordered[-1]]
    rates = []
    for share, group in shares:
        low, high = map(per_hundred, wilson_interval(share * group["nodes"], group["nodes"]))
        rates.append(f"{per_hundred(share)} in {group['name']!r} ({low} to {high})")
    return f"Of 100 {noun}, {join_names(rates)} get the decision {name!r}."


def _before_after(group: GroupSummary, c: int) -> str:
    before = group.get("before")
    start = f"{points(before[c])} → " if before else ""
    return start + points(group["after"][c])


def _true_positive_rate(group: GroupSummary) -> str:
    count, n = group.get("true_positives", 0), group.get("positives", 0)
    return _share(count / n if n else None, n)


def _share(share: float | None, n: int) -> str:
    return with_interval(share, wilson_interval(share * n, n) if is_known(share) else None)


def metric_cells(metric: Metric) -> list[str]:
    """A metric before and after, with intervals, and its target."""
    target = metric.get("target")
    show = ratio_with_interval if metric.get("unit") == "ratio" else with_interval
    return [
        show(metric.get("before"), metric.get("before_interval")),
        show(metric.get("after"), metric.get("after_interval")),
        f"≤ {points(target)}" if is_known(target) else "",
    ]


def _result(document: Document) -> Section | None:
    metrics = [m for m in document.get("metrics", []) if is_known(m.get("before"))]
    if not metrics:
        return None
    header = ["", "before", "after", "change", "who is ahead", "target"]
    rows = []
    for metric in metrics:
        before, after, target = metric_cells(metric)
        unit = metric.get("unit", "points")
        name = metric["name"] if unit == "ratio" else f"{metric['name']}, {unit}"
        change = "" if unit == "ratio" else signed_change(metric["before"], metric.get("after"))
        rows.append([name, before, after, change, story.direction_cell(document, metric), target])
    for column in (5, 4):
        if not any(row[column] for row in rows):
            header = header[:column] + header[column + 1 :]
            rows = [row[:column] + row[column + 1 :] for row in rows]
    caption = [GAP_NOTE]
    if any(interval_text(metric.get("after_interval")) for metric in metrics):
        caption.insert(0, "Brackets are 95 % intervals.")
    return Section(
        "Result",
        text=[document["correction"]] if document.get("correction") else [],
        definitions=[f"{m['name']}: {m['meaning']}" for m in metrics if m.get("meaning")],
        header=header,
        rows=rows,
        caption=" ".join(caption),
    )


def changed(document: Document) -> tuple[int | None, int]:
    """Number of changed decisions (None if unknown), and of all."""
    if "changed" in document:
        return document["changed"][0], document["changed"][1]
    groups = document.get("groups", [])
    counts = [group.get("changed") for group in groups]
    total = sum(filter(None, counts)) if counts and None not in counts else None
    return total, sum(group["nodes"] for group in groups)


def _changed(document: Document) -> Section | None:
    groups = [group for group in document.get("groups", []) if group.get("changed") is not None]
    if not any(group.get("before") for group in groups):
        return None
    noun, classes = document.get("noun", "people"), document.get("classes", [])
    all_kinds = {(before, after) for group in groups for before, after, _ in group.get("moves", [])}
    kinds = sorted(all_kinds)[:MAX_MOVES]
    rows = []
    for group in groups:
        moved = {(before, after): nodes for before, after, nodes in group.get("moves", [])}
        count, n = group["changed"] or 0, group["nodes"]
        cells = [f"{moved.get(kind, 0):,}" for kind in kinds]
        share = per_hundred(count / n if n else None)
        rows.append([group["name"], f"{n:,}", f"{count:,}", share, *cells])
    count_or_none, everyone = changed(document)
    total = count_or_none or 0
    share = per_hundred(total / everyone if everyone else None)
    text = f"The decision changed for {total:,} of {everyone:,} {noun}: {share} of 100."
    moves = [f"{classes[before]} → {classes[after]}" for before, after in kinds]
    return Section(
        "Changed decisions",
        text=[text, *_payers(document)],
        svg=figures.to_svg(figures.changes(groups, classes, noun)) if total else "",
        alt=text,
        header=["group", noun, "changed", "of 100", *moves],
        rows=rows,
    )


def _payers(document: Document) -> list[str]:
    """Who pays, in a sentence."""
    paid, classes = story.payers(document), document.get("classes", [])
    if paid is None or len(classes) != 2:
        return []
    return [
        f"{paid.lost:,} lost the decision {classes[1]!r}; {paid.lost_with_label:,} of them are "
        f"labelled {classes[1]!r}. {paid.gained:,} gained it; {paid.gained_without_label:,} of "
        f"them are labelled {classes[0]!r}."
    ]


def _choices(document: Document) -> Section | None:
    """What each criterion would do, from the panel's figures."""
    record, noun = document.get("panel"), document.get("noun", "people")
    if not record or len(record["criteria"]) < 2:
        return None
    header, rows = live.criteria_table(record, noun)
    best = live.most_accurate(record)
    text = [] if best is None else [f"The most accurate choice that corrects: {best}."]
    caption = " ".join(live.unreached(record))
    return Section(
        "What each criterion would do", text=text, header=header, rows=rows, caption=caption
    )


def _live(document: Document) -> Section | None:
    record, noun = document.get("panel"), document.get("noun", "people")
    if not record:
        return None
    header, rows = live.table(record, noun)
    words = {"noun": noun, "sample": document.get("sample", "")}
    text = json.dumps({**record, **words}, ensure_ascii=False, separators=(",", ":"))
    titles = [criterion["title"] for criterion in record["criteria"]]
    return Section(
        "Try another target",
        text=[
            "What should be equal, and how much difference is acceptable? Every position was "
            f"computed for the same {record['total']:,} {noun} when this page was made, by "
            "post-processing the predictions without the correction."
        ],
        panel=LivePanel(
            criteria=titles,
            start=record.get("start", 0),
            json=text.replace("<", "\\u003c"),
            header=header,
            rows=rows,
        ),
        caption=LIVE_NOTE if len(titles) > 1 else "",
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
    chosen = [point for point in document.get("points", []) if point.get("kind") == "chosen"]
    text = []
    for point in chosen[-1:]:
        name = f"{point['name'][:1].upper()}{point['name'][1:]}"
        accuracy, gap = points(point["accuracy"]), points(point["gap"])
        sample = f", {document['sample']}" if document.get("sample") else ""
        text.append(f"{name} (star): {accuracy} % accurate, gap {gap} points{sample}.")
    if document.get("curve_note"):
        text.append(document["curve_note"])
    caption = "Left is fairer, up is more accurate."
    if any(_has_bars(point) for point in document.get("points", [])):
        caption += f" Bars are {document.get('bars', '95 % intervals')}."
    return Section(
        "The trade-off",
        text=text,
        svg=figures.to_svg(figures.curve(document)),
        alt="Accuracy against the gap. " + " ".join(text),
        caption=caption,
    )


def _has_bars(point: Point) -> bool:
    ends = (point.get("accuracy_interval"), point.get("gap_interval"))
    return any(map(interval_text, ends))


def _rerun(document: Document) -> Section:
    versions = [f"{name} {version}" for name, version in document.get("versions", {}).items()]
    setting = document.get("setting")
    return Section(
        "How to rerun it",
        text=document.get("read", []),
        code=document["command"],
        caption=f"Computed with {', '.join(versions)}." if versions else "",
        more="" if setting is None else json.dumps(setting, indent=1, ensure_ascii=False),
    )

"""Reports and model cards from result directories that commands wrote earlier."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from fairmp.errors import InputError
from fairmp.metrics.evaluation import CRITERIA, TITLES
from fairmp.report import sections as content
from fairmp.report.document import DOCUMENT, LABELS, MAX_BYTES, cards, html, page, read, summary
from fairmp.report.formats import Table, is_known, markdown, points, wilson_interval, with_interval
from fairmp.report.sections import Document, GroupSummary, Metric, Section, flags

RESULTS = (DOCUMENT, "corrected.json")
"""Files that a report can be made from, in order of preference."""
NO_USE = "Not stated. Add it with --use when the card is made."


def document_of(path: Path) -> Document:
    """Report of a result directory (the ``--out`` of a command), or of one of its files."""
    file = next((file for name in RESULTS if (file := path / name).is_file()), path)
    if not file.is_file():
        problem = f"has none of {', '.join(RESULTS)}" if path.is_dir() else "does not exist"
        raise InputError("RESULTS", f"{path} {problem}", "give a result directory")
    if file.name == DOCUMENT:
        return read(file.parent)
    try:
        return from_corrected(json.loads(file.read_text(encoding="utf-8")))
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        problem = f"is damaged, of another version, or not a result of fairmp ({error!r})"
        raise InputError(str(file), problem, "run the command again") from None


def together(folders: list[Path]) -> str:
    """Render one page of several result directories: a comparison, then one chapter each."""
    documents = [(path if path.is_dir() else path.parent, document_of(path)) for path in folders]
    if len(documents) == 1:
        return html(documents[0][1], documents[0][0])
    assumptions = [line for _, document in documents for line in document.get("assumptions", [])]
    for pictures in (True, False):
        parts = [part] if (part := _overview([document for _, document in documents])) else []
        graphs: list[str] = []
        for folder, document in documents:
            # What several reports share is said once.
            own = cast(Document, {k: v for k, v in document.items() if k != "assumptions"})
            name = str(own.get("graph", {}).get("name"))
            if name in graphs:
                own.pop("graph", None)
            graphs.append(name)
            head = {"text": [summary(document)], "flags": flags(document), "cards": cards(document)}
            parts.append(Section(document["title"], chapter=True, **head))  # type: ignore[arg-type]
            with suppress(InputError):  # nothing but assumptions
                parts += content.sections(own, folder if pictures else None)
        if assumptions:
            unique = list(dict.fromkeys(assumptions))
            parts.append(Section("Assumptions", bullets=unique, chapter=True))
        text = page(f"{len(documents)} reports", "", parts)
        if len(text.encode()) <= MAX_BYTES:
            break
    return text


def _overview(documents: list[Document]) -> Section | None:
    """One row per report with metrics."""
    names = ("accuracy", "ΔDP", "ΔEO")
    rows = []
    for document in documents:
        found = {metric["name"]: metric for metric in document.get("metrics", [])}
        if not any(name in found for name in names):
            continue
        row = [document["title"]]
        for name in names:
            own = found.get(name, {})
            before = f"{points(own['before'])} → " if is_known(own.get("before")) else ""
            row.append(before + with_interval(own.get("after"), own.get("after_interval")))
        rows.append(row)
    if len(rows) < 2:
        return None
    header = ["report", "accuracy %", "ΔDP, points", "ΔEO, points"]
    caption = "Before → after, with 95 % intervals in brackets."
    return Section("Comparison", header=header, rows=rows, caption=caption, chapter=True)


def from_corrected(found: Mapping[str, Any]) -> Document:
    """Report of ``debias``, from :meth:`fairmp.postprocessing.result.DebiasResult.to_dict`."""
    several = len({group["attribute"] for group in found["groups"]}) > 1
    criteria = [*found["criteria"], *found.get("others", [])]
    metrics = [_criterion(one, several) for one in criteria]
    labelled = found.get("labelled") or 0
    given = "Before: the predictions as given. After: the corrected predictions."
    if any(c["after"] <= c["target"] + 1e-3 < c["decisions_after"] for c in found["criteria"]):
        given += " The target holds for mean probabilities; the gaps shown are those of decisions."
    if labelled:
        meaning = f"share of correct decisions on {labelled:,} labelled nodes."
        accuracy: Any = {"name": "accuracy", "meaning": meaning, "unit": "%"}
        for when in ("before", "after"):
            share = accuracy[when] = found[f"accuracy_{when}"]
            accuracy[f"{when}_interval"] = list(wilson_interval(share * labelled, labelled))
        metrics.insert(0, accuracy)
    document: Document = {
        "title": f"{found.get('data', 'Predictions')}, corrected",
        "classes": [str(name) for name in found["classes"]],
        "measured": f"{found['nodes']:,} nodes",
        "changed": [int(found["changed"]), int(found["nodes"])],
        "correction": given,
        "groups": [_group(group, several) for group in found["groups"]],
        "metrics": metrics,
        "notes": list(found.get("warnings", [])),
        "assumptions": [
            *found["estimates"],
            "The correction uses the group of every node it applies to.",
            "Which gap to close, and how far, is a decision rather than a measurement: closing one "
            "gap can open another.",
            *["The labels are correct."] * bool(labelled),
        ],
    }
    optional = ("command", "read", "panel", "reliability")
    return cast(Document, document | {key: found[key] for key in optional if found.get(key)})


def _criterion(one: Mapping[str, Any], several: bool) -> Metric:
    attribute, title = one["attribute"], str(one["criterion"]).replace("_", " ")
    key = CRITERIA.get(one["criterion"], title)
    name, label = TITLES.get(key, title), LABELS.get(key, f"gap: {title}")
    if several:
        name, label = f"{name}, {attribute}", f"{label}, {attribute}"
    return {
        "name": name,
        "label": label,
        "meaning": f"{title}: the largest gap of decisions between two groups, on {one['where']}.",
        "before": one["decisions_before"],
        "after": one["decisions_after"],
        "before_interval": one["interval_before"],
        "after_interval": one["decisions_interval"],
        "target": one["target"],
    }


def _group(group: Mapping[str, Any], several: bool) -> GroupSummary:
    before, after = list(group["decided_before"]), list(group["decided_after"])
    name = f"{group['attribute']}: {group['group']}" if several else str(group["group"])
    part: GroupSummary = {"name": name, "nodes": group["nodes"], "before": before, "after": after}
    part["changed"] = group["changed"]
    # With two classes the shares give the direction, if all changes go the same way.
    count = round((after[1] - before[1]) * group["nodes"]) if len(after) == 2 else None
    if count is not None and abs(count) == group["changed"]:
        part["moves"] = [[int(count < 0), int(count > 0), abs(count)]] if count else []
    return part


def card(document: Document, use: str = "") -> list[Section]:
    """Sections of a model card: use, data, groups, gaps, calibration, limits, origin."""
    metrics, graph = document.get("metrics"), document.get("graph")
    monitored = document.get("command", "").startswith("fairmp monitor ")
    if monitored or not metrics or not document.get("groups"):
        hint = "give the result directory of train, debias, tune or demo"
        raise InputError("RESULTS", f"{document['title']!r} describes no model", hint)
    decides = ", ".join(map(repr, document.get("classes", [])))
    parts = [
        Section("Intended use", text=[use or NO_USE, f"It decides between {decides}."]),
        Section("Result", text=[summary(document)], flags=flags(document)),
    ]
    if graph:
        header, *rows = content.group_table(graph, "nodes")
        size = f"{graph['name']}: {graph['nodes']:,} nodes, {graph['edges']:,} edges."
        text = [size, *graph.get("verdict", []), *document.get("read", [])]
        parts.append(Section("Data", text=text, header=header, rows=rows))
    by_group = content.groups_section(document)
    parts.append(Section("Groups", header=by_group.header, rows=by_group.rows))
    how: Any = {"rows": [[m["name"], *content.metric_cells(m)] for m in metrics]}
    how["bullets"] = [f"{m['name']}: {m['meaning']}" for m in metrics if m.get("meaning")]
    header = ["", "without the correction", "as it is", "target"]
    measured = f"{document.get('measured', 'All evaluated nodes')}; in points, 95 % intervals."
    parts.append(Section("Criteria and gaps", header=header, caption=measured, **how))
    if document.get("reliability"):
        found = content.reliability_section(document)
        parts.append(Section("Calibration", text=found.text, header=found.header, rows=found.rows))
    limits = [*document.get("notes", []), *document.get("assumptions", [])]
    parts.append(Section("Limits", bullets=limits))
    versions = [[name, version] for name, version in document.get("versions", {}).items()]
    command = document.get("command", "")
    parts.append(Section("Origin", header=["", "version"], rows=versions, code=command))
    return parts


def to_markdown(title: str, sections: Sequence[Section]) -> str:
    """Sections as Markdown."""
    lines = [f"# {title}"]
    for section in sections:
        lines += [f"## {section.title}", *(f"**Warning:** {flag}" for flag in section.flags)]
        lines += section.text
        lines.append("\n".join(f"- {line}" for line in section.bullets))
        lines += [markdown([Table("", section.header, section.rows)])] if section.rows else []
        lines += [section.caption, f"```\n{section.code}\n```" if section.code else ""]
    return "\n\n".join(line.strip() for line in lines if line.strip()) + "\n"


def card_texts(document: Document, use: str = "") -> tuple[str, str]:
    """The card as a page and as Markdown."""
    title, parts = f"Model card: {document['title']}", card(document, use)
    return page(title, "", parts), to_markdown(title, parts)

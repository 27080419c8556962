"""Reports and model cards from result directories that commands wrote earlier."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from fairmp.errors import InputError, plural
from fairmp.metrics.evaluation import CRITERIA, TITLES, Evaluation
from fairmp.report.content import Document, GroupSummary, Metric, Section
from fairmp.report.corrections import notes_of_record
from fairmp.report.document import DOCUMENT, MAX_BYTES, cards, html, page, read, summary
from fairmp.report.evaluations import LABELS, UNITS, meanings
from fairmp.report.formats import Table, is_known, markdown, points, wilson_interval, with_interval
from fairmp.report.sections import (
    flags,
    group_table,
    groups_section,
    metric_cells,
    metrics_by_key,
    page_sections,
    reliability_section,
)

RESULTS = (DOCUMENT, "corrected.json")
"""Files that a report can be made from, in order of preference."""
NO_USE = "Not stated."


def document_of(results: Path) -> Document:
    """Report of a result directory that a command wrote, or of one of its files."""
    file = next((file for name in RESULTS if (file := results / name).is_file()), results)
    if not file.is_file():
        problem = f"has none of {', '.join(RESULTS)}" if results.is_dir() else "does not exist"
        raise InputError("results", f"{results} {problem}", "give a result directory")
    if file.name == DOCUMENT:
        return read(file.parent)
    try:
        return from_corrected(json.loads(file.read_text(encoding="utf-8")))
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        problem = f"{file} is damaged, of another version, or not a result of fairmp"
        hint = "give a result directory, or run its command again"
        raise InputError("results", problem, hint) from error


def recorded_evaluation(run: Path) -> Evaluation:
    """Evaluation of the test nodes of a training's first split, from its result directory."""
    path = run / "records.jsonl"
    if not run.is_dir():
        problem = "is not a folder" if run.exists() else "does not exist"
        raise InputError("run", f"{run} {problem}", "give the folder that 'fairmp train' wrote")
    try:
        with path.open(encoding="utf-8") as file:
            return Evaluation.from_dict(json.loads(file.readline())["run"]["test"])
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        hint = "give the folder that 'fairmp train' wrote"
        raise InputError("run", f"{path} is not a record of a training ({error})", hint) from None


def together(folders: Sequence[Path]) -> str:
    """Render one page of several result directories: a comparison, then one chapter each."""
    documents = [(path if path.is_dir() else path.parent, document_of(path)) for path in folders]
    if len(documents) == 1:
        folder, document = documents[0]
        return html(document, folder)
    title = f"{len(documents)} reports"
    text = page(title, "", _chapters(documents, pictures=True))
    if len(text.encode()) > MAX_BYTES:
        text = page(title, "", _chapters(documents, pictures=False))
    return text


def _chapters(documents: Sequence[tuple[Path, Document]], *, pictures: bool) -> list[Section]:
    """A comparison and the sections of each document; what several reports share is said once."""
    overview = _overview([document for _, document in documents])
    chapters = [] if overview is None else [overview]
    graphs: set[str] = set()
    assumptions: list[str] = []
    for folder, document in documents:
        chapter = document.copy()
        assumptions += chapter.pop("assumptions", [])
        graph = str(chapter.get("graph", {}).get("name"))
        if graph in graphs:
            chapter.pop("graph", None)
        graphs.add(graph)
        heading = Section(
            document["title"],
            text=[summary(document)],
            flags=flags(document),
            cards=cards(document),
            chapter=True,
        )
        chapters.append(heading)
        with suppress(InputError):  # nothing but assumptions
            chapters += page_sections(chapter, folder if pictures else None)
    if assumptions:
        unique = list(dict.fromkeys(assumptions))
        chapters.append(Section("Assumptions", bullets=unique, chapter=True))
    return chapters


def _overview(documents: Sequence[Document]) -> Section | None:
    """One row per report with metrics."""
    keys = ("accuracy", "dp", "eo")
    rows = []
    for document in documents:
        metrics = metrics_by_key(document)
        if not any(key in metrics for key in keys):
            continue
        row = [document["title"]]
        for key in keys:
            metric = metrics.get(key, {})
            before = metric.get("before")
            start = f"{points(before)} → " if is_known(before) else ""
            row.append(start + with_interval(metric.get("after"), metric.get("after_interval")))
        rows.append(row)
    if len(rows) < 2:
        return None
    header = ["report", "accuracy %", "ΔDP, points", "ΔEO, points"]
    caption = "Before → after, with 95 % intervals in brackets."
    return Section("Comparison", header=header, rows=rows, caption=caption, chapter=True)


def from_corrected(record: Mapping[str, Any]) -> Document:
    """Report of ``debias``, from :meth:`fairmp.postprocessing.result.DebiasResult.to_dict`."""
    several = len({group["attribute"] for group in record["groups"]}) > 1
    criteria = [*record["criteria"], *record.get("others", [])]
    classes = [str(name) for name in record["classes"]]
    metrics = [_criterion(criterion, several, classes, on=record["on"]) for criterion in criteria]
    metrics += [_further(metric, several, classes) for metric in record.get("further", [])]
    assumptions = [
        *notes_of_record(record),
        "The correction uses the group of everyone it applies to.",
        "Which gap to close, and how far, is a decision rather than a measurement: closing one "
        "gap can open another.",
    ]
    if record.get("labelled"):
        metrics.insert(0, _accuracy(record))
        assumptions.append("The labels are correct.")
    correction = "Before: the predictions as given. After: the corrected predictions."
    if record["on"] == "probabilities":
        correction += (
            " The target holds for mean probabilities; the gaps shown are those of decisions."
        )
    document: Document = {
        "title": f"{record.get('data', 'Predictions')}, corrected",
        "classes": classes,
        "measured": plural(int(record["nodes"]), "person"),
        "changed": [int(record["changed"]), int(record["nodes"])],
        "correction": correction,
        "groups": [_group(group, several) for group in record["groups"]],
        "metrics": metrics,
        "notes": list(record.get("warnings", [])),
        "assumptions": assumptions,
    }
    optional = ("command", "read", "panel", "reliability")
    return cast(Document, document | {key: record[key] for key in optional if record.get(key)})


def _accuracy(record: Mapping[str, Any]) -> Metric:
    labelled, before, after = (record[k] for k in ("labelled", "accuracy_before", "accuracy_after"))
    return {
        "key": "accuracy",
        "name": "accuracy",
        "meaning": f"share of correct decisions on {plural(labelled, 'labelled person')}.",
        "unit": "%",
        "before": before,
        "before_interval": list(wilson_interval(before * labelled, labelled)),
        "after": after,
        "after_interval": list(wilson_interval(after * labelled, labelled)),
    }


def _criterion(
    criterion: Mapping[str, Any], several: bool, classes: Sequence[str], *, on: str
) -> Metric:
    title, where = criterion["criterion"].replace("_", " "), criterion["where"]
    key = CRITERIA.get(criterion["criterion"], title)
    name, label = TITLES.get(key, title), LABELS.get(key, f"gap: {title}")
    meaning = meanings(classes).get(key, f"{title}: the largest gap between two groups")
    metric: Metric = {"key": key, "name": name, "label": label}
    if several:
        attribute = criterion["attribute"]
        metric = {"name": f"{name}, {attribute}", "label": f"{label}, {attribute}"}
    return {
        **metric,
        "meaning": f"{meaning.removesuffix('.')}, on {where}.",
        "before": criterion["decisions_before"],
        "after": criterion["decisions_after"],
        "before_interval": criterion["interval_before"],
        "after_interval": criterion["decisions_interval"],
        "target": criterion["target"] if on == "decisions" else None,
    }


def _further(metric: Mapping[str, Any], several: bool, classes: Sequence[str]) -> Metric:
    """The impact ratio or the gap in precision."""
    key, attribute = metric["key"], metric["attribute"]
    names: Metric = {"key": key, "name": TITLES[key], "label": LABELS[key]}
    if several:
        names = {"name": f"{TITLES[key]}, {attribute}", "label": f"{LABELS[key]}, {attribute}"}
    return {
        **names,
        "meaning": meanings(classes)[key],
        "unit": UNITS.get(key, "points"),
        "before": metric["before"],
        "after": metric["after"],
        "after_interval": metric["interval"],
    }


def _group(group: Mapping[str, Any], several: bool) -> GroupSummary:
    before, after = list(group["decided_before"]), list(group["decided_after"])
    summary: GroupSummary = {
        "name": f"{group['attribute']}: {group['group']}" if several else str(group["group"]),
        "known": group["known"],
        "nodes": group["nodes"],
        "before": before,
        "after": after,
        "changed": group["changed"],
    }
    if group.get("tpr_after"):
        times = ("before", "after")
        summary["tpr"] = {when: list(group[f"tpr_{when}"]) for when in times}
        summary["fpr"] = {when: list(group[f"fpr_{when}"]) for when in times}
    if len(group.get("ppv_after", [])) == 2:
        summary["ppv"] = group["ppv_after"][1]
    if group.get("paid"):
        summary["paid"] = list(group["paid"])
    if group.get("turned"):
        summary["turned"] = list(group["turned"])
    # With two classes the shares give the direction, if all changes go the same way.
    count = round((after[1] - before[1]) * group["nodes"]) if len(after) == 2 else None
    if count is not None and abs(count) == group["changed"]:
        summary["moves"] = [[int(count < 0), int(count > 0), abs(count)]] if count else []
    return summary


def card(document: Document, use: str = "") -> list[Section]:
    """Sections of a model card: use, data, groups, gaps, calibration, limits, origin.

    Example:
        >>> from fairmp import evaluate
        >>> from fairmp.report.evaluations import from_evaluations
        >>> hired, sex = ["yes", "no", "yes", "yes"] * 10, ["f", "f", "m", "m"] * 10
        >>> result = evaluate(hired, hired, sensitive_features=sex, bootstrap=0)
        >>> document: Document = {"title": "Hiring", **from_evaluations(result)}
        >>> sections = card(document, use="Trainees rank applications; a person decides.")
        >>> print(to_markdown("Model card", sections[:2]))
        # Model card
        <BLANKLINE>
        ## Intended use
        <BLANKLINE>
        Trainees rank applications; a person decides.
        <BLANKLINE>
        It decides between 'no', 'yes'.
        <BLANKLINE>
        ## Result
        <BLANKLINE>
        'f' gets 'yes' 50 times in 100, 'm' 100 times. Accuracy is 100.0 %.
        <BLANKLINE>
    """
    metrics = document.get("metrics")
    if not document.get("describes_model", True) or not metrics or not document.get("groups"):
        hint = "give the result directory of train, debias, tune or demo"
        raise InputError("results", f"{document['title']!r} describes no model", hint)
    decisions = ", ".join(map(repr, document.get("classes", [])))
    sections = [
        Section("Intended use", text=[use or NO_USE, f"It decides between {decisions}."]),
        Section("Result", text=[summary(document)], flags=flags(document)),
    ]
    if graph := document.get("graph"):
        header, *rows = group_table(graph, "nodes")
        size = f"{graph['name']}: {graph['nodes']:,} nodes, {graph['edges']:,} edges."
        text = [size, *graph.get("verdict", []), *document.get("read", [])]
        sections.append(Section("Data", text=text, header=header, rows=rows))
    if held := document.get("held"):
        sections.append(Section("Data in the model", text=[held]))
    by_group = groups_section(document)
    sections.append(Section("Groups", header=by_group.header, rows=by_group.rows))
    gaps = Section(
        "Criteria and gaps",
        bullets=[f"{m['name']}: {m['meaning']}" for m in metrics if m.get("meaning")],
        header=["", "without the correction", "as it is", "target"],
        rows=[[metric["name"], *metric_cells(metric)] for metric in metrics],
        caption=f"{document.get('measured', 'All evaluated nodes')}; in points, 95 % intervals.",
    )
    sections.append(gaps)
    if document.get("reliability"):
        curves = reliability_section(document)
        section = Section("Calibration", text=curves.text, header=curves.header, rows=curves.rows)
        sections.append(section)
    keys = ("checks", "notes", "assumptions")
    limits = [line for key in keys for line in cast(list[str], document.get(key, []))]
    sections.append(Section("Limits", bullets=limits))
    versions = [[name, version] for name, version in document.get("versions", {}).items()]
    command = document.get("command", "")
    sections.append(Section("Origin", header=["", "version"], rows=versions, code=command))
    return sections


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


def card_texts(results: Path, use: str = "") -> list[str]:
    """The card of a result directory as a page and as Markdown."""
    document = document_of(results)
    title, sections = f"Model card: {document['title']}", card(document, use)
    return [page(title, "", sections), to_markdown(title, sections)]

"""Model card from a report's document, as Markdown and as a page."""

from __future__ import annotations

from collections.abc import Sequence

from fairmp.errors import InputError
from fairmp.report.document import page, summary
from fairmp.report.formats import Table, markdown
from fairmp.report.sections import (
    Document,
    Section,
    flags,
    group_table,
    groups_section,
    metric_cells,
    reliability_section,
)

NO_USE = "Not stated. Add it with --use when the card is made."


def card(document: Document, use: str = "") -> list[Section]:
    """Sections of a model card: use, data, groups, gaps, calibration, limits, origin."""
    metrics, graph = document.get("metrics"), document.get("graph")
    if not metrics or not document.get("groups"):
        hint = "give the result directory of train, debias, tune or demo"
        raise InputError("RESULTS", f"{document['title']!r} has no model or predictions", hint)
    decides = ", ".join(map(repr, document.get("classes", [])))
    parts = [
        Section("Intended use", text=[use or NO_USE, f"It decides between {decides}."]),
        Section("Result", text=[summary(document)], flags=flags(document)),
    ]
    if graph:
        header, *rows = group_table(graph, "nodes")
        size = f"{graph['name']}: {graph['nodes']:,} nodes, {graph['edges']:,} edges."
        text = [size, *graph.get("verdict", []), *document.get("read", [])]
        parts.append(Section("Data", text=text, header=header, rows=rows))
    by_group = groups_section(document)
    parts.append(Section("Groups", header=by_group.header, rows=by_group.rows))
    rows = [[m["name"], *metric_cells(m), m.get("meaning", "")] for m in metrics]
    header = ["", "without the correction", "as it is", "target", "meaning"]
    measured = f"{document.get('measured', 'All evaluated nodes')}; in points, 95 % intervals."
    parts.append(Section("Criteria and gaps", header=header, rows=rows, caption=measured))
    if document.get("reliability"):
        found = reliability_section(document)
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


def texts(document: Document, use: str = "") -> tuple[str, str]:
    """The card as a page and as Markdown."""
    title, sections = f"Model card: {document['title']}", card(document, use)
    return page(title, "", sections), to_markdown(title, sections)

"""An audit's files: text, JSON, the picture, the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch_geometric.data import Data

from fairmp.analysis.audits.findings import Audit
from fairmp.analysis.audits.verdict import headline


def record(found: Audit, data: Data) -> dict[str, Any]:
    """Return an audit as plain data, with what the loader had to say about the graph."""
    return {**found.to_dict(), "read": _read(data)}


def write(found: Audit, data: Data, folder: Path, *, picture: bool = True) -> None:
    """Write audit.txt, audit.json, topology.png, topology.svg and report.html under a folder.

    Args:
        found: the audit.
        data: the graph it is of.
        folder: where the files go.
        picture: whether to draw the graph; it takes a few seconds.
    """
    from fairmp.report import Section, page
    from fairmp.report.figures import to_svg
    from fairmp.report.topology import topology

    (folder / "audit.txt").write_text(f"{found}\n", encoding="utf-8")
    (folder / "audit.json").write_text(
        json.dumps(record(found, data), indent=2, ensure_ascii=False, allow_nan=False) + "\n",
        encoding="utf-8",
    )
    sections = found.sections()
    if picture:
        figure = topology(data, seed=found.seed)
        figure.savefig(folder / "topology.png")
        svg = to_svg(figure)
        (folder / "topology.svg").write_text(svg, encoding="utf-8")
        sections.insert(1, Section("The picture", svg=svg))
    if _read(data):
        sections.append(Section("What was read", text=_read(data)))
    (folder / "report.html").write_text(
        page(f"{found.name}: what its topology does", headline(found), sections), encoding="utf-8"
    )


def _read(data: Data) -> list[str]:
    report = getattr(data, "report", None)
    return [] if report is None else list(report.lines())

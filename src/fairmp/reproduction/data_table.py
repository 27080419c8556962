"""The table of data sets: what the files hold, and what the paper printed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from fairmp.comparison.page import section
from fairmp.datasets.by_name import EMBEDDED, from_files
from fairmp.datasets.statistics import PAPER, Statistics, agreement, of_dataset, statistics
from fairmp.report.formats import Table, latex, markdown
from fairmp.report.page import Section, page

QUICK = ["embedded:1000", "nba", "german", "bail"]
HEADER = (
    "data set",
    "nodes",
    "features",
    "edges",
    "label homophily %",
    "among labelled %",
    "sensitive homophily %",
)
_FIELDS = (
    "nodes",
    "features",
    "edges",
    "label_homophily",
    "label_homophily_labelled",
    "sens_homophily",
)


def measure(name: str, data_dir: str | Path | None = None) -> Statistics:
    """Describe a data set with the labels of its file, or the embedded network.

    Example:
        >>> measure("embedded:300").nodes
        300
    """
    if name.startswith(EMBEDDED):
        return statistics(from_files(name))
    return of_dataset(name, data_dir)


def table(ours: Mapping[str, Statistics]) -> Table:
    """Make a row a data set and, where the paper has one, its row below; what differs is starred.

    Example:
        >>> rows = table({"nba": PAPER["nba"]}).rows
        >>> rows[0][1], rows[1][0]
        ('403', "– the paper's")
    """
    rows = []
    for key, own in ours.items():
        paper = PAPER.get(key)
        same = agreement(own, paper) if paper else {}
        rows.append(
            [own.name]
            + [_shown(own, field) + ("" if same.get(field, True) else " *") for field in _FIELDS]
        )
        if paper:
            rows.append(["– the paper's", *(_shown(paper, field) for field in _FIELDS)])
    return Table("The data sets", HEADER, rows)


def write(
    ours: Mapping[str, Statistics], absent: Mapping[str, str], folder: Path, *, command: str
) -> Table:
    """Write the table, the numbers and the page."""
    found = table(ours)
    (folder / "table.md").write_text(markdown([found]), encoding="utf-8")
    (folder / "table.tex").write_text(latex([found]), encoding="utf-8")
    numbers = {key: row.as_dict() for key, row in ours.items()}
    text = json.dumps(numbers, ensure_ascii=False, indent=2) + "\n"
    (folder / "statistics.json").write_text(text, encoding="utf-8")
    sections = [
        section(
            found,
            "Edges are directed and without self-loops. Label homophily counts unlabelled as a "
            "class, as the paper does; the next column is among pairs whose labels are known. "
            "A star marks what differs from the paper.",
        )
    ]
    if absent:
        rows = list(absent.items())
        sections.append(Section("Left out", header=["data set", "why"], rows=rows))
    sections.append(Section("How to rerun it", code=command))
    html = page("The data sets", f"{len(ours)} data sets, as their files have them.", sections)
    (folder / "report.html").write_text(html, encoding="utf-8")
    return found


def _shown(row: Statistics, field: str) -> str:
    value = getattr(row, field)
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{100 * value:.2f}"

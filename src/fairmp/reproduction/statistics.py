"""The table of data sets: statistics of the files next to those the paper prints."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from fairmp.comparison.page import section, write_page, write_tables
from fairmp.datasets.by_name import EMBEDDED, from_files
from fairmp.datasets.statistics import PAPER, Statistics, agreement, of_dataset, statistics
from fairmp.report.formats import Table

CAPTION = (
    "Edges are directed, without self-loops. Label homophily counts unlabelled as a class, as the "
    "paper does; the next column is among pairs of labelled nodes. A star marks a difference from "
    "the paper."
)
QUICK = ["embedded:1000", "nba", "german", "bail"]
COLUMNS = {
    "nodes": "nodes",
    "features": "features",
    "edges": "edges",
    "label_homophily": "label homophily %",
    "label_homophily_labelled": "among labelled %",
    "sens_homophily": "sensitive homophily %",
}


def measure(name: str, data_dir: str | Path | None = None) -> Statistics:
    """Describe a data set with the labels of its file, or the embedded network."""
    if name.startswith(EMBEDDED):
        return statistics(from_files(name))
    return of_dataset(name, data_dir)


def table(ours: Mapping[str, Statistics]) -> Table:
    """One row per data set and, where the paper has one, its row below; differences are starred."""
    rows = []
    for key, own in ours.items():
        paper = PAPER.get(key)
        same = agreement(own, paper) if paper else {}
        stars = {field: "" if same.get(field, True) else " *" for field in COLUMNS}
        rows.append([own.name, *(_text(own, field) + star for field, star in stars.items())])
        if paper:
            rows.append(["– in the paper", *(_text(paper, field) for field in COLUMNS)])
    return Table("Data sets", ["data set", *COLUMNS.values()], rows)


def write(
    ours: Mapping[str, Statistics], absent: Mapping[str, str], folder: Path, *, command: str
) -> Table:
    """Write the table, the numbers and the page."""
    found = table(ours)
    write_tables([found], folder)
    numbers = {key: row.as_dict() for key, row in ours.items()}
    text = json.dumps(numbers, ensure_ascii=False, indent=2) + "\n"
    (folder / "statistics.json").write_text(text, encoding="utf-8")
    summary = f"{len(ours)} data sets, as their files have them."
    sections = [section(found, CAPTION)]
    write_page(folder, "Data sets", summary, sections, command=command, absent=absent)
    return found


def _text(row: Statistics, field: str) -> str:
    value = getattr(row, field)
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{100 * value:.2f}"

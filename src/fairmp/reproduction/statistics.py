"""The table of data sets: statistics of the files next to those the paper prints."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from fairmp.comparison.page import write_page
from fairmp.datasets.by_name import EMBEDDED, from_files
from fairmp.datasets.statistics import (
    CAPTION,
    COLUMNS,
    Statistics,
    of_dataset,
    rows,
    statistics,
)
from fairmp.report.formats import Table

QUICK = ["embedded:1000", "nba", "german", "bail"]


def measure(name: str, data_dir: str | Path | None = None) -> Statistics:
    """Describe a data set with the labels of its file, or the embedded network."""
    if name.startswith(EMBEDDED):
        return statistics(from_files(name))
    return of_dataset(name, data_dir)


def write(
    ours: Mapping[str, Statistics], absent: Mapping[str, str], folder: Path, *, command: str
) -> Table:
    """Write the table, the numbers and the page."""
    found = Table("Data sets", ["data set", *COLUMNS.values()], rows(ours))
    numbers = {key: row.as_dict() for key, row in ours.items()}
    text = json.dumps(numbers, ensure_ascii=False, indent=2) + "\n"
    (folder / "statistics.json").write_text(text, encoding="utf-8")
    summary = f"{len(ours)} data sets, as their files have them. {CAPTION}"
    write_page(folder, "Data sets", summary, [found], command=command, absent=absent)
    return found

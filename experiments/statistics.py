"""The paper's table of data sets: size and homophily."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from experiments.options import Page, Scope, show
from fairmp.cli.options import Results
from fairmp.datasets import statistics
from fairmp.datasets.by_name import EMBEDDED, from_files
from fairmp.datasets.statistics import Statistics
from fairmp.outputs import write_json
from fairmp.report.formats import Table

QUICK_DATA = ["embedded:1000", "nba", "german", "bail"]


def command(results: Results, scope: Scope) -> None:
    """Count nodes, edges and homophily of each data set, next to what the paper prints."""
    folder = results.folder("statistics")
    data_sets = scope.load_with(described, QUICK_DATA)
    record = {key: asdict(row) for key, row in data_sets.graphs.items()}
    with results.staging(folder) as staging:
        write_json(staging / "statistics.json", record)
        tables = content(data_sets.graphs).write(staging, data_sets.absent)
    show(results, record, folder, tables)


def described(name: str, data_dir: Path | None = None) -> Statistics:
    """Describe a data set with the labels of its file, or the embedded network."""
    if name.startswith(EMBEDDED):
        return statistics.statistics(from_files(name))
    return statistics.of_dataset(name, data_dir)


def content(ours: Mapping[str, Statistics]) -> Page:
    """Content of the page."""
    header = ["data set", *statistics.COLUMNS.values()]
    table = Table("Data sets", header, statistics.rows(ours))
    summary = f"{len(ours)} data sets, as their files have them. {statistics.CAPTION}"
    return Page("Data sets", summary, [table])

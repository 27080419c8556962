"""Records of a comparison in figures: means over seeds and splits, and hypervolumes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from fairmp.comparison import Record
from fairmp.metrics import Interval
from fairmp.metrics.evaluation import json_safe
from fairmp.metrics.pareto import hypervolume_over_splits
from fairmp.report import Line, formats, summarise
from fairmp.report.formats import METRICS, Table, max_known, same_decision


@dataclass(frozen=True)
class Comparison:
    """Summary of a comparison's records."""

    lines: dict[str, list[Line]]  # rows of each data set's table
    families: dict[str, dict[str, list[Line]]]  # the same by method, ordered by strength
    hypervolumes: dict[str, dict[str, Interval]]
    failed: list[Record]
    records: list[Record]  # of runs that did not fail
    further_tables: tuple[Table, ...] = ()

    @property
    def num_splits(self) -> int:
        """The largest number of splits a method was run on."""
        return max((line.splits for lines in self.lines.values() for line in lines), default=1)

    def method_tables(self) -> list[Table]:
        """One table per data set."""
        return [formats.of_lines(name, lines) for name, lines in self.lines.items()]

    def hypervolume_tables(self) -> list[Table]:
        """The table of hypervolumes, if there are any."""
        if not self.hypervolumes:
            return []
        return [formats.of_hypervolumes("Hypervolume (hundredths)", self.hypervolumes)]

    def tables(self) -> list[Table]:
        """All tables."""
        return [*self.method_tables(), *self.hypervolume_tables(), *self.further_tables]

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers of the tables as JSON types."""
        tables = {
            name: [
                {
                    "method": line.name,
                    "splits": line.splits,
                    "constant": line.is_constant,
                    **line.figures,
                    "seconds": line.seconds,
                }
                for line in lines
            ]
            for name, lines in self.lines.items()
        }
        keys = ("data", "name", "split", "seed", "failed")
        failed = [{key: record[key] for key in keys} for record in self.failed]
        numbers = {"tables": tables, "hypervolume": self.hypervolumes, "failed": failed}
        return dict(json_safe(numbers))


def compared(records: Sequence[Record], *, areas: bool = True) -> Comparison:
    """Summarise records, with hypervolumes if asked: means over seeds, then over splits."""
    good = [record for record in records if "failed" not in record]
    titles = _titles(good)
    comparison = Comparison({}, {}, {}, [record for record in records if "failed" in record], good)
    for data, title in titles.items():
        runs = [record for record in good if record["data"] == data]
        lines = comparison.lines[title] = _lines(runs)
        families = comparison.families[title] = _families(runs, lines)
        if areas:
            comparison.hypervolumes[title] = {
                family: hypervolume_over_splits([run for run in runs if run["family"] == family])
                for family in families
            }
    return comparison


def _lines(records: Sequence[Record]) -> list[Line]:
    """The rows of a data set's table."""
    shares: dict[str, list[float]] = {}
    for record in records:
        shares.setdefault(record["name"], []).append(same_decision(record["run"]["test"]))
    return [
        replace(line, same_decision=max_known(shares[line.name]))
        for line in summarise(_over_seeds(records))
    ]


def _titles(records: Sequence[Record]) -> dict[str, str]:
    """The title of each data set; two may share one, such as two sizes of the embedded network."""
    names = {record["data"]: record["dataset"] for record in records}
    shared = [name for name in names.values() if list(names.values()).count(name) > 1]
    return {data: f"{name} ({data})" if name in shared else name for data, name in names.items()}


def _families(records: Sequence[Record], lines: Sequence[Line]) -> dict[str, list[Line]]:
    """The rows of each method, ordered by strength."""
    by_name = {line.name: line for line in lines}
    families = {}
    for family, runs in results(records).fillna({"strength": 0}).groupby("family", sort=False):
        names = runs.sort_values("strength", kind="stable")["name"].unique()
        families[str(family)] = [by_name[name] for name in names]
    return families


def results(records: Sequence[Record]) -> pd.DataFrame:
    """One row per run that did not fail: what was run, and its figures on the test nodes."""
    head = ("data", "dataset", "name", "family", "split", "strength")
    spec, setting, numbers = ("backbone", "strategy"), ("solver", "lambda_s"), [*METRICS, "seconds"]
    rows = [
        {key: record[key] for key in head}
        | {key: record["spec"][key] for key in spec}
        | {key: record["spec"]["setting"][key] for key in setting}
        | {key: record["run"]["test"].get(key) for key in METRICS}
        | {"seconds": record["run"].get("seconds")}
        for record in records
        if "failed" not in record
    ]
    frame = pd.DataFrame(rows, columns=[*head, *spec, *setting, *numbers])
    return frame.astype(dict.fromkeys(numbers, float))


def _over_seeds(records: Sequence[Record]) -> list[Record]:
    """Means over the seeds of each split, as records."""
    groups = results(records).groupby(["name", "split"], sort=False)
    means = groups[[*METRICS, "seconds"]].mean()
    return [
        {"name": name, "run": {"seconds": row.pop("seconds"), "test": row}}
        for name, row in zip(means.index.get_level_values(0), means.to_dict("records"), strict=True)
    ]

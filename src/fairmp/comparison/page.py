"""A comparison's files: tables, trade-off figures, page."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairmp.comparison.grid import BACKBONES, STRATEGIES, cell_of
from fairmp.comparison.runner import Record
from fairmp.metrics import Interval
from fairmp.report import Line, Section, pareto, summarise
from fairmp.report.document import Story
from fairmp.report.document import write as write_story
from fairmp.report.figures import curves, to_svg
from fairmp.report.formats import Table, latex, markdown, of_hypervolumes, of_lines, to_csv
from fairmp.report.sections import part_of

ASSUMPTIONS = [
    "Every method got the same splits, and chose its epoch on validation nodes; strengths stand "
    "side by side, and none was chosen by the test nodes.",
    "Intervals are over splits of one graph: they tell of other splits of it, not of other graphs.",
    "Methods that correct at prediction use each node's group there; regulariser and adversary use "
    "groups in training only.",
]
HYPERVOLUME = (
    "The area of accuracy × ΔDP that a method's points dominate, one point a strength, measured "
    "from the accuracy of a constant answer (the test nodes' largest class) and a ΔDP of 100, in "
    "hundredths of all there is. More is better; ± is half of a 95 % jackknife interval over "
    "splits. A method with one strength has one point."
)


@dataclass(frozen=True)
class Comparison:
    """What a comparison's records say.

    Attributes:
        lines: the lines of each data set, by its name.
        families: the same by family, in the order of strengths.
        hypervolumes: of each family, by data set.
        failed: records of cells that failed.
        records: all that did not fail.
    """

    lines: dict[str, list[Line]]
    families: dict[str, dict[str, list[Line]]]
    hypervolumes: dict[str, dict[str, Interval]]
    failed: list[Record]
    records: list[Record]

    def tables(self) -> list[Table]:
        """One table a data set, and the hypervolumes."""
        tables = [of_lines(name, lines) for name, lines in self.lines.items()]
        if self.hypervolumes:
            tables.append(of_hypervolumes("Hypervolume (hundredths)", self.hypervolumes))
        return tables

    def to_dict(self) -> dict[str, Any]:
        """The tables' numbers as what JSON can say."""
        return {
            "tables": {
                name: [
                    {
                        "method": line.name,
                        "splits": line.splits,
                        "seconds": line.seconds,
                        **{key: _plain(value) for key, value in line.figures.items()},
                    }
                    for line in lines
                ]
                for name, lines in self.lines.items()
            },
            "hypervolume": {
                name: {family: _plain(value) for family, value in column.items()}
                for name, column in self.hypervolumes.items()
            },
            "failed": [
                {key: record[key] for key in ("data", "name", "split", "seed", "failed")}
                for record in self.failed
            ],
        }


def compared(records: Sequence[Record]) -> Comparison:
    """Summarise records: means over splits, several seeds of one split counting as one."""
    failed = [record for record in records if "failed" in record]
    good = [record for record in records if "failed" not in record]
    names = {record["data"]: record["dataset"] for record in good}
    lines: dict[str, list[Line]] = {}
    families: dict[str, dict[str, list[Line]]] = {}
    volumes: dict[str, dict[str, Interval]] = {}
    for key, name in names.items():
        own = [record for record in good if record["data"] == key]
        # Two graphs of one title, such as two sizes of the embedded network, stay apart.
        title = name if list(names.values()).count(name) == 1 else f"{name} ({key})"
        lines[title] = summarise(_over_seeds(own))
        named = {line.name: line for line in lines[title]}
        members: dict[str, dict[str, float]] = {}
        for record in own:
            strength = record["strength"]
            members.setdefault(record["family"], {})[record["name"]] = strength or 0.0
        families[title] = {
            family: [named[member] for member in sorted(strengths, key=strengths.__getitem__)]
            for family, strengths in members.items()
        }
        volumes[title] = {
            family: pareto.over_splits([r for r in own if r["family"] == family])
            for family in members
        }
    return Comparison(lines, families, volumes, failed, good)


def write(
    records: Sequence[Record], folder: Path, *, title: str, summary: str, command: str
) -> Comparison:
    """Write tables, figures and page beside the records, and return what they show."""
    found = compared(records)
    tables = found.tables()
    (folder / "table.md").write_text(markdown(tables), encoding="utf-8")
    (folder / "table.tex").write_text(latex(tables), encoding="utf-8")
    (folder / "table.csv").write_text(to_csv(found.lines), encoding="utf-8")
    sections = []
    styles = family_styles(found.records)
    for name, table in zip(found.lines, tables, strict=False):
        figure = curves(found.families[name], name, styles=styles)
        figure.savefig(folder / f"tradeoff-{file_name(name)}.png", dpi=150)
        sections.append(
            Section(
                name,
                header=table.header,
                rows=table.rows,
                svg=to_svg(figure),
                alt=f"Accuracy against ΔDP on {name}, a curve a method; the table has the figures.",
                caption="Test nodes, in points; ± is half of a 95 % interval of the mean over "
                "splits. A curve joins a method's strengths; the dashed line is the front.",
            )
        )
    sections.append(section(tables[-1], HYPERVOLUME) if tables else Section("Nothing to show"))
    sections += closing(found)
    told: Story = {
        "title": title,
        "summary": summary,
        "extra": [part_of(part) for part in sections],
        "assumptions": ASSUMPTIONS,
        "command": command,
    }
    write_story(told, folder)
    return found


def section(table: Table, caption: str = "") -> Section:
    """Show a table on the page."""
    return Section(table.title, header=table.header, rows=table.rows, caption=caption)


def closing(found: Comparison, command: str = "") -> list[Section]:
    """What failed, the setting and the versions, and how to run it again if that is given."""
    sections = []
    if found.failed:
        rows = [
            [f"{record['data']}: {record['name']}, split {record['split']}", record["failed"]]
            for record in found.failed
        ]
        sections.append(Section("What failed", header=["run", "reason"], rows=rows))
    settings = {json.dumps(record["spec"]["setting"]) for record in found.records}
    made = {
        json.dumps({"device": record["device"], **record["run"]["versions"]})
        for record in found.records
    }
    sections.append(
        Section(
            "The setting",
            text=[
                "Each line of records.jsonl is a cell with its configuration. Split number i is "
                "drawn with seed i; validation nodes choose the epoch, the test nodes nothing."
            ],
            code="\n".join(sorted(settings) if len(settings) < 5 else []),
            caption="Computed with " + "; ".join(sorted(made)) if made else "",
        )
    )
    return [*sections, Section("How to rerun it", code=command)] if command else sections


def family_styles(records: Sequence[Record]) -> dict[str, tuple[int, int]]:
    """A colour a backbone and a marker a strategy."""
    styles = {}
    for record in records:
        cell = cell_of(record)
        colour = list(BACKBONES).index(cell.backbone)
        styles[record["family"]] = (colour, STRATEGIES.index(cell.strategy))
    return styles


def file_name(name: str) -> str:
    """A title as part of a file's name.

    Example:
        >>> file_name("Pokec-n (graph)")
        'pokec-n-graph'
    """
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _over_seeds(records: Sequence[Record]) -> list[dict[str, Any]]:
    groups: dict[tuple[str, int], list[Record]] = {}
    for record in records:
        groups.setdefault((record["name"], record["split"]), []).append(record)
    return [
        {
            "name": name,
            "run": {
                "seconds": _mean([record["run"]["seconds"] for record in group]),
                "test": {
                    key: _mean([record["run"]["test"][key] for record in group])
                    for key in ("accuracy", "dp", "eo", "auc")
                },
            },
        }
        for (name, _), group in groups.items()
    ]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def _plain(interval: Interval) -> Mapping[str, float | None]:
    pairs = zip(("mean", "low", "high"), interval[:3], strict=True)
    return {key: None if math.isnan(value) else value for key, value in pairs}

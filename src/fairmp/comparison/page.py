"""Results of a comparison: tables, trade-off figures and the HTML page."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from fairmp.comparison import Record
from fairmp.comparison.grid import BACKBONES, STRATEGIES
from fairmp.metrics import Interval
from fairmp.report import Line, Section, formats, page, pareto, summarise
from fairmp.report.document import Document
from fairmp.report.document import write as write_document
from fairmp.report.figures import curves, to_svg
from fairmp.report.formats import METRICS, SPREAD, Table

ASSUMPTIONS = [
    "Every method got the same splits, and its epoch was chosen on the validation nodes; all "
    "strengths are shown, and none was chosen on the test nodes.",
    "Intervals are over splits of one graph: they describe other splits of it, not other graphs.",
    "Methods that correct predictions use each node's group at prediction; regulariser and "
    "adversary use groups in training only.",
]
TRADEOFF = (
    f"Test nodes, in points. {SPREAD} A curve joins a method's strengths; the dashed line is the "
    "Pareto front."
)
HYPERVOLUME = (
    "The area of accuracy × ΔDP that a method's points dominate, one point per strength, measured "
    "from the accuracy of a constant prediction (the largest class of the test nodes) and a ΔDP of "
    "100, in hundredths of the whole area. More is better; ± is half of a 95 % jackknife interval "
    "over splits, from five on. A method with one strength has one point."
)


@dataclass(frozen=True)
class Comparison:
    """Summary of a comparison's records."""

    lines: dict[str, list[Line]]  # rows of each data set's table
    families: dict[str, dict[str, list[Line]]]  # the same by method, ordered by strength
    hypervolumes: dict[str, dict[str, Interval]]
    failed: list[Record]
    records: list[Record]  # of runs that did not fail
    more: tuple[Table, ...] = ()  # further tables

    def tables(self) -> list[Table]:
        """One table per data set, the hypervolumes, and any other."""
        tables = [formats.of_lines(name, lines) for name, lines in self.lines.items()]
        if self.hypervolumes:
            tables.append(formats.of_hypervolumes("Hypervolume (hundredths)", self.hypervolumes))
        return [*tables, *self.more]

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers of the tables as JSON types."""

        def row(line: Line) -> dict[str, Any]:
            figures = {key: _plain(value) for key, value in line.figures.items()}
            head = {"method": line.name, "splits": line.splits, "seconds": line.seconds}
            return head | figures

        return {
            "tables": {name: [row(line) for line in lines] for name, lines in self.lines.items()},
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
    """Summarise records: means over splits, after means over the seeds of each split."""
    failed = [record for record in records if "failed" in record]
    good = [record for record in records if "failed" not in record]
    names = {record["data"]: record["dataset"] for record in good}
    found = Comparison({}, {}, {}, failed, good)
    for key, name in names.items():
        own = [record for record in good if record["data"] == key]
        # Two graphs of the same title, such as two sizes of the embedded network.
        title = name if list(names.values()).count(name) == 1 else f"{name} ({key})"
        lines = found.lines[title] = summarise(_over_seeds(own))
        named = {line.name: line for line in lines}
        members: dict[str, dict[str, float]] = {}
        for record in own:
            members.setdefault(record["family"], {})[record["name"]] = record["strength"] or 0.0
        found.families[title] = {
            family: [named[member] for member in sorted(strengths, key=strengths.__getitem__)]
            for family, strengths in members.items()
        }
        found.hypervolumes[title] = {
            family: pareto.over_splits([r for r in own if r["family"] == family])
            for family in members
        }
    return found


def write(
    records: Sequence[Record],
    folder: Path,
    *,
    title: str,
    summary: str,
    command: str,
    more: Callable[[Comparison], Sequence[Table]] = lambda found: (),
    note: str = "",
) -> Comparison:
    """Write tables, figures and page next to the records, and return their summary.

    ``more`` makes further tables of the summary, captioned with ``note``.
    """
    found = compared(records)
    found = replace(found, more=tuple(more(found)))
    tables = found.tables()
    write_tables(tables, folder, found.lines)
    sections = []
    styles = family_styles(found.records)
    for name, table in zip(found.lines, tables, strict=False):
        figure = curves(found.families[name], name, styles=styles)
        figure.savefig(folder / f"tradeoff-{file_name(name)}.png", dpi=150)
        alt = f"Accuracy against ΔDP on {name}, one curve per method; figures in the table."
        sections.append(section(table, TRADEOFF, svg=to_svg(figure), alt=alt))
    if found.hypervolumes:
        sections.append(section(tables[len(found.lines)], HYPERVOLUME, appendix=True))
    sections += [section(table, note) for table in found.more]
    if not tables:
        sections.append(Section("No results"))
    extra = [part.to_dict() for part in [*sections, *closing(found)]]
    head: Document = {"title": title, "summary": summary, "command": command}
    write_document({**head, "extra": extra, "assumptions": ASSUMPTIONS}, folder)
    return found


def write_tables(
    tables: Sequence[Table], folder: Path, lines: Mapping[str, Sequence[Line]] | None = None
) -> None:
    """Write tables as Markdown and LaTeX, and the numbers behind them as CSV."""
    (folder / "table.md").write_text(formats.markdown(tables), encoding="utf-8")
    (folder / "table.tex").write_text(formats.latex(tables), encoding="utf-8")
    if lines is not None:
        (folder / "table.csv").write_text(formats.to_csv(lines), encoding="utf-8")


def write_records(records: Sequence[Record], folder: Path) -> None:
    """Write ``records.jsonl``."""
    lines = [json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n" for record in records]
    (folder / "records.jsonl").write_text("".join(lines), encoding="utf-8")


def write_page(
    folder: Path,
    title: str,
    summary: str,
    sections: Sequence[Section],
    *,
    command: str,
    absent: Mapping[str, str] | None = None,
) -> None:
    """Write ``report.html``, with the data sets left out and the command at its end."""
    rows = list((absent or {}).items())
    left_out = [Section("Left out", header=["data set", "why"], rows=rows)] if rows else []
    parts = [*sections, *left_out, Section("Rerun", code=command)]
    (folder / "report.html").write_text(page(title, summary, parts), encoding="utf-8")


def section(table: Table, caption: str = "", **more: Any) -> Section:
    """Return a table as a section of the page."""
    return Section(table.title, header=table.header, rows=table.rows, caption=caption, **more)


def closing(found: Comparison) -> list[Section]:
    """Sections on failed runs, the setting and the versions."""
    rows = [
        [f"{record['data']}: {record['name']}, split {record['split']}", record["failed"]]
        for record in found.failed
    ]
    failed = [Section("Failed runs", header=["run", "reason"], rows=rows)] if rows else []
    settings = sorted({json.dumps(record["spec"]["setting"]) for record in found.records})
    versions = ({"device": r["device"], **r["run"]["versions"]} for r in found.records)
    made = sorted({json.dumps(version) for version in versions})
    setting = Section(
        "Setting",
        text=[
            "Each line of records.jsonl is one run with its configuration. The number of a split "
            "is its seed. The epoch is chosen on the validation nodes, nothing on the test nodes."
        ],
        code="\n".join(settings) if len(settings) < 5 else "",
        caption="Computed with " + "; ".join(made) if made else "",
    )
    return [*failed, setting]


def family_styles(records: Sequence[Record]) -> dict[str, tuple[int, int]]:
    """Number of the colour (by backbone) and marker (by strategy) of each family."""
    colours = list(BACKBONES)
    specs = {record["family"]: record["spec"] for record in records}
    return {
        family: (colours.index(spec["backbone"]), STRATEGIES.index(spec["strategy"]))
        for family, spec in specs.items()
    }


def file_name(name: str) -> str:
    """Return a title as part of a file name, ``pokec-n-graph`` for ``Pokec-n (graph)``."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def results(records: Sequence[Record]) -> pd.DataFrame:
    """One row per run that did not fail: what was run, and its figures on the test nodes."""
    head = ("data", "dataset", "name", "family", "split", "strength")
    spec, setting = ("backbone", "strategy"), ("solver", "lambda_s")
    rows = [
        [r[key] for key in head]
        + [r["spec"][key] for key in spec]
        + [r["spec"]["setting"][key] for key in setting]
        + [*(r["run"]["test"].get(key) for key in METRICS), r["run"].get("seconds")]
        for r in records
        if "failed" not in r
    ]
    frame = pd.DataFrame(rows, columns=[*head, *spec, *setting, *METRICS, "seconds"])
    return frame.astype(dict.fromkeys([*METRICS, "seconds"], float))


def _over_seeds(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Means over the seeds of each split, as records."""
    groups = results(records).groupby(["name", "split"], sort=False)
    means = groups[[*METRICS, "seconds"]].mean()
    return [
        {"name": name, "run": {"seconds": row.pop("seconds"), "test": row}}
        for name, row in zip(means.index.get_level_values(0), means.to_dict("records"), strict=True)
    ]


def _plain(interval: Interval) -> Mapping[str, float | None]:
    pairs = zip(("mean", "low", "high"), interval[:3], strict=True)
    return {key: None if math.isnan(value) else value for key, value in pairs}

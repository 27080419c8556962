"""Results of a comparison: tables, trade-off figures and the HTML page."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from fairmp.comparison import Record
from fairmp.comparison.grid import BACKBONES, STRATEGIES
from fairmp.metrics import Interval
from fairmp.metrics.evaluation import json_safe
from fairmp.metrics.pareto import hypervolume_over_splits
from fairmp.report import Document, Line, Section, formats, summarise
from fairmp.report.document import write as write_document
from fairmp.report.figures import curves, to_svg
from fairmp.report.formats import METRICS, SPREAD, Table, is_known, points

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
SETTING = (
    "Each line of records.jsonl is one run with its configuration. The number of a split is its "
    "seed. The epoch is chosen on the validation nodes, nothing on the test nodes."
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
        tables = {
            name: [
                {
                    "method": line.name,
                    "splits": line.splits,
                    **line.figures,
                    "seconds": line.seconds,
                }
                for line in lines
            ]
            for name, lines in self.lines.items()
        }
        keys = ("data", "name", "split", "seed", "failed")
        failed = [{key: record[key] for key in keys} for record in self.failed]
        found = {"tables": tables, "hypervolume": self.hypervolumes, "failed": failed}
        return dict(json_safe(found))


def compared(records: Sequence[Record], *, areas: bool = True) -> Comparison:
    """Summarise records, with hypervolumes if asked: means over seeds, then over splits."""
    good = [record for record in records if "failed" not in record]
    names = {record["data"]: record["dataset"] for record in good}
    found = Comparison({}, {}, {}, [record for record in records if "failed" in record], good)
    for key, name in names.items():
        own = [record for record in good if record["data"] == key]
        # Two graphs of the same title, such as two sizes of the embedded network.
        title = name if list(names.values()).count(name) == 1 else f"{name} ({key})"
        lines = found.lines[title] = summarise(_over_seeds(own))
        named = {line.name: line for line in lines}
        found.families[title] = {}
        for family, runs in results(own).fillna({"strength": 0}).groupby("family", sort=False):
            ordered = runs.sort_values("strength", kind="stable")["name"].unique()
            found.families[title][str(family)] = [named[member] for member in ordered]
        if areas:
            found.hypervolumes[title] = {
                family: hypervolume_over_splits([r for r in own if r["family"] == family])
                for family in found.families[title]
            }
    return found


def headline(found: Comparison) -> list[str]:
    """The method with the smallest gap on each data set, by means over splits."""
    sentences = []
    for name, lines in found.lines.items():
        if known := [one for one in lines if is_known(one.figures["dp"].mean)]:
            best = min(known, key=lambda one: one.figures["dp"].mean)
            gap, own = (points(best.figures[key].mean) for key in ("dp", "accuracy"))
            top = points(max(one.figures["accuracy"].mean for one in known))
            price = f"at {own} % accuracy, where the most accurate method has {top} %"
            sentences.append(f"On {name}, {best.name} has the smallest ΔDP: {gap} points, {price}.")
    return sentences


def tradeoff(found: Comparison, name: str) -> Any:
    """Draw accuracy against ΔDP on a data set, one curve per method."""
    specs = {record["family"]: record["spec"] for record in found.records}
    styles = {  # colours by backbone, markers by strategy
        family: (list(BACKBONES).index(spec["backbone"]), STRATEGIES.index(spec["strategy"]))
        for family, spec in specs.items()
    }
    return curves(found.families[name], name, styles=styles)


def write(
    records: Sequence[Record],
    folder: Path,
    *,
    title: str,
    summary: str,
    command: str,
    more: Callable[[Comparison], Sequence[Table]] = lambda found: (),
    note: str = "",  # below further tables
    draw: Callable[[Comparison, str], Any] = tradeoff,  # of a data set; names its file
    caption: str = TRADEOFF,
) -> Comparison:
    """Write tables, figures and page next to the records, and return their summary."""
    found = compared(records, areas=draw is tradeoff)
    found = replace(found, more=tuple(more(found)))
    summary = " ".join([summary, *headline(found)] if draw is tradeoff else [summary])
    tables = found.tables()
    (folder / "table.csv").write_text(formats.to_csv(found.lines), encoding="utf-8")
    sections = []
    for name, table in zip(found.lines, tables, strict=False):
        figure = draw(found, name)
        figure.savefig(folder / f"{draw.__name__}-{file_name(name)}.png", dpi=150)
        sections.append(section(table, caption, svg=to_svg(figure)))
    if found.hypervolumes:
        sections.append(section(tables[len(found.lines)], HYPERVOLUME, appendix=True))
    sections += [section(table, note) for table in found.more]
    if not tables:
        sections.append(Section("No results"))
    runs = [f"{r['data']}: {r['name']}, split {r['split']}" for r in found.failed]
    rows = [[run, record["failed"]] for run, record in zip(runs, found.failed, strict=True)]
    if rows:
        sections.append(Section("Failed runs", header=["run", "reason"], rows=rows))
    settings = sorted({json.dumps(record["spec"]["setting"]) for record in found.records})
    versions = ({"device": r["device"], **r["run"]["versions"]} for r in found.records)
    made = "; ".join(sorted({json.dumps(version) for version in versions}))
    code = "\n".join(settings) if len(settings) < 5 else ""
    made = f"Computed with {made}" if made else ""
    sections.append(Section("Setting", [SETTING], code=code, caption=made, appendix=True))
    write_page(
        folder, title, summary, sections, command=command, tables=tables, assumptions=ASSUMPTIONS
    )
    return found


def write_page(
    folder: Path,
    title: str,
    summary: str,
    parts: Sequence[Section | Table],
    *,
    command: str,
    tables: Sequence[Table] | None = None,
    absent: Mapping[str, str] | None = None,
    assumptions: Sequence[str] = (),
) -> Sequence[Table]:
    """Write a report, and tables, by default those among its parts, as Markdown and LaTeX."""
    shown = [part for part in parts if isinstance(part, Table)] if tables is None else tables
    if shown or tables is not None:
        (folder / "table.md").write_text(formats.markdown(shown), encoding="utf-8")
        (folder / "table.tex").write_text(formats.latex(shown), encoding="utf-8")
    sections = [section(part) if isinstance(part, Table) else part for part in parts]
    if rows := [list(pair) for pair in (absent or {}).items()]:
        sections.append(Section("Left out", header=["data set", "why"], rows=rows))
    report: Document = {"title": title, "summary": summary, "command": command}
    report["extra"] = sections
    report["assumptions"] = list(assumptions)
    write_document(report, folder)
    return shown


def section(table: Table, caption: str = "", **more: Any) -> Section:
    """Return a table as a section of the page."""
    return Section(table.title, header=table.header, rows=table.rows, caption=caption, **more)


def file_name(name: str) -> str:
    """Return a title as part of a file name, ``pokec-n-graph`` for ``Pokec-n (graph)``."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def results(records: Sequence[Record]) -> pd.DataFrame:
    """One row per run that did not fail: what was run, and its figures on the test nodes."""
    head = ("data", "dataset", "name", "family", "split", "strength")
    spec, setting, numbers = ("backbone", "strategy"), ("solver", "lambda_s"), [*METRICS, "seconds"]
    rows = [
        {key: r[key] for key in head}
        | {key: r["spec"][key] for key in spec}
        | {key: r["spec"]["setting"][key] for key in setting}
        | {key: r["run"]["test"].get(key) for key in METRICS}
        | {"seconds": r["run"].get("seconds")}
        for r in records
        if "failed" not in r
    ]
    frame = pd.DataFrame(rows, columns=[*head, *spec, *setting, *numbers])
    return frame.astype(dict.fromkeys(numbers, float))


def _over_seeds(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Means over the seeds of each split, as records."""
    groups = results(records).groupby(["name", "split"], sort=False)
    means = groups[[*METRICS, "seconds"]].mean()
    return [
        {"name": name, "run": {"seconds": row.pop("seconds"), "test": row}}
        for name, row in zip(means.index.get_level_values(0), means.to_dict("records"), strict=True)
    ]

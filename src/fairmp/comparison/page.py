"""Results of a comparison: tables, trade-off figures and the HTML page."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fairmp.comparison import Record
from fairmp.comparison.grid import METHODS, STRATEGIES
from fairmp.comparison.summary import Comparison, compared
from fairmp.report import Document, Line, Section, formats
from fairmp.report.document import write as write_document
from fairmp.report.figures import curves, to_svg
from fairmp.report.formats import SPREAD, Table, constant_note, is_known, join_names, points

MAX_SETTINGS = 4  # that are printed
MAX_NAMED = 4  # constant methods of the headline
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


def headline(comparison: Comparison) -> list[str]:
    """The method with the smallest gap on each data set, by means over splits.

    Methods that decide the same for nearly everybody are left out: their gap is trivial.
    """
    sentences = []
    for name, lines in comparison.lines.items():
        measured = [line for line in lines if is_known(line.figures["dp"].mean)]
        constant = [line.name for line in measured if line.is_constant]
        compared_lines = [line for line in measured if not line.is_constant]
        if compared_lines:
            highest = max(line.figures["accuracy"].mean for line in measured)
            sentences.append(_fairest(name, compared_lines, highest))
        if constant:
            verb = "decides" if len(constant) == 1 else "decide"
            methods = join_names(constant, MAX_NAMED)
            left_out = ", so the gap is trivial" if compared_lines else f" on {name}"
            sentences.append(f"{methods} {verb} the same for nearly everybody{left_out}.")
    return sentences


def _fairest(name: str, lines: Sequence[Line], highest: float) -> str:
    best = min(lines, key=lambda line: line.figures["dp"].mean)
    gap, accuracy = (points(best.figures[key].mean) for key in ("dp", "accuracy"))
    price = f"at {accuracy} % accuracy, where the most accurate method has {points(highest)} %"
    return f"On {name}, {best.name} has the smallest ΔDP: {gap} points, {price}."


def _place(method: str) -> int:
    """Where a method comes in the order of ours; others come last."""
    return list(METHODS).index(method) if method in METHODS else len(METHODS)


def tradeoff(comparison: Comparison, name: str) -> Any:
    """Draw accuracy against ΔDP on a data set, one curve per method."""
    specs = {record["family"]: record["spec"] for record in comparison.records}
    styles = {  # colours by method, markers by strategy
        family: (_place(spec["backbone"]), STRATEGIES.index(spec["strategy"]))
        for family, spec in specs.items()
    }
    return curves(comparison.families[name], name, styles=styles)


@dataclass(frozen=True)
class Figure:
    """The figure of each data set."""

    name: str = "tradeoff"  # of its file, with that of the data set
    draw: Callable[[Comparison, str], Any] = tradeoff
    caption: str = TRADEOFF
    is_tradeoff: bool = True  # the page says which method has the smallest gap, and hypervolumes


def write(
    records: Sequence[Record],
    folder: Path,
    *,
    title: str,
    summary: str,
    command: str,
    further_tables: Callable[[Comparison], Sequence[Table]] = lambda comparison: (),
    note: str = "",
    figure: Figure | None = None,
) -> Comparison:
    """Write tables, figures and page next to the records, and return their summary.

    Args:
        records: of all runs.
        folder: where to write.
        title: of the page.
        summary: its first sentences.
        command: repeats the comparison.
        further_tables: makes more tables from the summary.
        note: shown below them.
        figure: what is drawn, by default accuracy against ΔDP.
    """
    figure = figure or Figure()
    comparison = compared(records, areas=figure.is_tradeoff)
    comparison = replace(comparison, further_tables=tuple(further_tables(comparison)))
    if figure.is_tradeoff:
        summary = " ".join([summary, *headline(comparison)])
    (folder / "table.csv").write_text(formats.to_csv(comparison.lines), encoding="utf-8")
    sections = []
    for name, table in zip(comparison.lines, comparison.method_tables(), strict=True):
        drawn = figure.draw(comparison, name)
        drawn.savefig(folder / f"{figure.name}-{file_name(name)}.png", dpi=150)
        caption = " ".join(filter(None, [figure.caption, constant_note(comparison.lines[name])]))
        sections.append(section(table, caption, svg=to_svg(drawn)))
    for table in comparison.hypervolume_tables():
        sections.append(section(table, HYPERVOLUME, appendix=True))
    sections += [section(table, note) for table in comparison.further_tables]
    if not comparison.lines:
        sections.append(Section("No results"))
    sections += [*_failures(comparison), _settings(comparison)]
    write_page(
        folder,
        title,
        summary,
        sections,
        command=command,
        tables=comparison.tables(),
        assumptions=ASSUMPTIONS,
    )
    return comparison


def _failures(comparison: Comparison) -> list[Section]:
    rows = [
        [f"{record['data']}: {record['name']}, split {record['split']}", record["failed"]]
        for record in comparison.failed
    ]
    return [Section("Failed runs", header=["run", "reason"], rows=rows)] if rows else []


def _settings(comparison: Comparison) -> Section:
    """Settings of the runs, and the versions they were computed with."""
    runs = comparison.records
    settings = sorted({json.dumps(run["spec"]["setting"]) for run in runs})
    code = "\n".join(settings) if len(settings) <= MAX_SETTINGS else ""
    versions = sorted({json.dumps({"device": r["device"], **r["run"]["versions"]}) for r in runs})
    caption = f"Computed with {'; '.join(versions)}" if versions else ""
    return Section("Setting", [SETTING], code=code, caption=caption, appendix=True)


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


def section(table: Table, caption: str = "", **fields: Any) -> Section:
    """Return a table as a section of the page."""
    return Section(table.title, header=table.header, rows=table.rows, caption=caption, **fields)


def file_name(name: str) -> str:
    """Return a title as part of a file name, ``pokec-n-graph`` for ``Pokec-n (graph)``."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")

"""The report and the files of an audit."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch_geometric.data import Data

from fairmp.analysis.audits.text import facts, guide, headline, step_table, theory
from fairmp.report.document import Document
from fairmp.report.document import write as write_document
from fairmp.report.figures import COLOURS, MARKERS, figure, to_svg
from fairmp.report.page import Section
from fairmp.report.topology import topology

if TYPE_CHECKING:
    from fairmp.analysis.audits.measure import Audit

ASSUMPTIONS = [
    "Nothing was trained: the audit shows what features and edges reveal about the groups. A model "
    "may use it or not.",
    "Predictability is measured with linear rules on held-out nodes; a nonlinear model may predict "
    "more.",
    "The forecast assumes a block model, in which edges depend on the groups alone, and normal "
    "features.",
]


def write(
    audit: Audit, data: Data, folder: Path, *, command: str = "", picture: bool = True
) -> dict[str, Any]:
    """Write audit.txt, audit.json, report.html, report.json and the picture; return the JSON.

    Args:
        audit: the audit.
        data: the graph it describes.
        folder: the directory to write to.
        command: command that reproduces the audit.
        picture: whether to draw the graph, which takes a few seconds.
    """
    report = getattr(data, "report", None)
    record = {**audit.to_dict(), "read": [] if report is None else list(report.lines())}
    text = json.dumps(record, indent=2, ensure_ascii=False, allow_nan=False)
    (folder / "audit.json").write_text(f"{text}\n", encoding="utf-8")
    (folder / "audit.txt").write_text(f"{audit}\n", encoding="utf-8")
    found = document(audit, read=record["read"], command=command)
    if picture:
        drawn = topology(data, seed=audit.seed)
        drawn.savefig(folder / "topology.png")
        (folder / "topology.svg").write_text(to_svg(drawn), encoding="utf-8")
        found["picture"] = "topology.svg"
    write_document(found, folder)
    return record


def document(audit: Audit, *, read: Sequence[str] = (), command: str = "") -> Document:
    """Report of an audit; ``read`` has the loader's messages about the tables."""
    from fairmp.training.model_files import versions

    header, rows = step_table(audit)
    # Of Ã the page shows the predictability only; the text and the JSON have the rest.
    steps = Section(
        "The effect of averaging over neighbours",
        header=[*header[:6], "predictability by Ã"],
        rows=[[*row[:6], row[-1]] for row in rows],
        svg=to_svg(_steps_figure(audit)) if audit.noise is not None else "",
        alt="Group predictability after each step of averaging; the table below has the figures.",
        caption=guide(audit),
    )
    extra = [Section("Graph statistics", header=["", "value"], rows=facts(audit)), steps]
    if theory(audit):
        extra.append(Section("Theory", header=["", "value"], rows=theory(audit)))
    if audit.notes:
        extra.append(Section("Notes", text=audit.notes))
    return {
        "title": f"{audit.name}: audit of the topology",
        "summary": headline(audit),
        "graph": audit.to_dict(),
        "extra": [section.to_dict() for section in extra],
        "assumptions": ASSUMPTIONS,
        "read": list(read),
        "command": command,
        "versions": versions(),
    }


def _steps_figure(audit: Audit) -> Any:
    """Group predictability after each step, with the prediction for the first."""
    fig, axes = figure(6.4, 3.4)
    for k, (name, biases) in enumerate((("row", audit.row), ("symmetric (Ã)", audit.symmetric))):
        axes.plot(
            [bias.step for bias in biases],
            [100 * bias.predictability for bias in biases],
            marker=MARKERS[k],
            color=COLOURS[k],
            label=f"features, {name} normalisation",
        )
    if audit.forecast.after is not None:
        style = {"color": "black", "fillstyle": "none", "markersize": 9, "linestyle": "none"}
        predicted = 100 * audit.forecast.after
        axes.plot([1], [predicted], marker="D", label="predicted, one step", **style)
    baseline = [100 * share for share in audit.random_baseline]
    axes.plot(range(len(baseline)), baseline, "--", color="#777777", label="random features, row")
    axes.set_xticks([bias.step for bias in audit.row])
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    axes.set_xlabel("averaging steps")
    axes.set_ylabel("group predictability (points)")
    axes.legend(frameon=False, fontsize=9)
    return fig

"""An audit as parts of an HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fairmp.analysis.audits.text import facts, group_table, reading_guide, step_table, theory
from fairmp.analysis.audits.verdict import headline
from fairmp.report import Section
from fairmp.report.document import Story
from fairmp.report.figures import COLOURS, MARKERS, figure, to_svg
from fairmp.report.sections import part_of

if TYPE_CHECKING:
    from fairmp.analysis.audits.findings import Audit


def story(audit: Audit, *, read: Sequence[str] = (), command: str = "") -> Story:
    """Tell an audit as a report.

    Args:
        audit: what was found.
        read: what the loader had to say about the graph.
        command: how to run it again.
    """
    from fairmp.training.model_files import versions

    return {
        "title": f"{audit.name}: what its topology does",
        "summary": headline(audit),
        "graph": audit.to_dict(),
        "extra": [
            part_of(Section("The graph in figures", header=["", "value"], rows=facts(audit))),
            *(part_of(section) for section in _measured(audit)),
        ],
        "assumptions": [
            "Nothing was trained: this is what the features and the ties give away of the groups, "
            "before any model. A model may use it or not.",
            "Told apart is read with linear rules on half of the nodes; a model that is not linear "
            "may tell more.",
            "The prediction takes the graph for a block model, with ties that depend on the groups "
            "alone, and the features for normal.",
        ],
        "read": list(read),
        "command": command,
        "versions": versions(),
    }


def sections(audit: Audit) -> list[Section]:
    """Return the parts of the page: meaning, graph, groups, averaging, theory, notes."""
    header, rows = group_table(audit)
    return [
        Section("What it means", text=audit.verdict()),
        Section("The graph", header=["", "value"], rows=facts(audit)),
        Section(
            "The groups",
            header=header,
            rows=rows,
            caption="inside: the share of a group's neighbours that belong to it too.",
        ),
        *_measured(audit),
    ]


def _measured(audit: Audit) -> list[Section]:
    steps, step_rows = step_table(audit)
    # The last column is what Ã leaves told apart; its other readings are in the text and the JSON.
    narrow = [[*row[:6], row[-1]] for row in step_rows]
    parts = [
        Section(
            "What averaging over neighbours does to the features",
            header=[*steps[:6], "told apart by Ã"],
            rows=narrow,
            svg=to_svg(steps_figure(audit)) if audit.noise is not None else "",
            alt="How far the groups are told apart after each step of averaging; the table below "
            "has the figures.",
            caption=reading_guide(audit),
        ),
    ]
    if theory(audit):
        parts.append(Section("What the theory says", header=["", "value"], rows=theory(audit)))
    if audit.notes:
        parts.append(Section("Notes", text=audit.notes))
    return parts


def steps_figure(audit: Audit) -> Any:
    """Draw how far the groups are told apart after each step, with the predicted first one."""
    fig, axes = figure(6.4, 3.4)
    kinds = (("plain averaging", audit.row), ("Ã, as the layers do", audit.symmetric))
    for k, (name, read) in enumerate(kinds):
        axes.plot(
            [reading.step for reading in read],
            [100 * reading.told_apart for reading in read],
            marker=MARKERS[k],
            color=COLOURS[k],
            label=name,
        )
    if audit.forecast.after is not None:
        axes.plot(
            [1], [100 * audit.forecast.after], "D", color="black", fillstyle="none",
            markersize=9, label="predicted, one step",
        )  # fmt: skip
    axes.plot(
        range(len(audit.made_up)), [100 * share for share in audit.made_up], "--",
        color="#777777", label="random numbers, plain averaging",
    )  # fmt: skip
    axes.set_xticks([reading.step for reading in audit.row])
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    axes.set_xlabel("steps of averaging")
    axes.set_ylabel("groups told apart (points)")
    axes.legend(frameon=False, fontsize=9)
    return fig

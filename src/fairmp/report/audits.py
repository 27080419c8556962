"""An :class:`~fairmp.Audit` as text, notebook HTML, plot and report."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from fairmp.datasets.load_report import messages
from fairmp.outputs import write_json
from fairmp.report import document as reports
from fairmp.report.audit_verdict import headline, homophily, verdict
from fairmp.report.content import Document, GraphSummary, Section
from fairmp.report.figures import COLOURS, MARKERS, NARROW, figure, to_svg
from fairmp.report.formats import aligned, points, to_html
from fairmp.report.sections import group_table, leak_sentence

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch_geometric.data import Data

    from fairmp.analysis.audits.result import Audit, FeatureBias

ASSUMPTIONS = [
    "Nothing was trained: a model may or may not use what features and edges reveal.",
    "Predictability is that of linear rules on held-out nodes; a nonlinear model may predict more.",
    "The forecast assumes normal features, and edges that depend on the groups alone.",
]
GUIDE = (
    "gap: distance between the groups' means in standard deviations of the features (chance: "
    "expected for random groups). separation: the same relative to the spread within groups. "
    "predictability: how well a linear rule predicts the group of held-out nodes, from 0 (not at "
    "all) to 100 points (perfectly). random: the predictability of random features, which after "
    "averaging reflect only a node's position in the graph."
)
EFFECT = (
    "How well the group of a node can be predicted from its features: 0 not at all, 100 perfectly. "
    "Graph networks average features over neighbours, step by step. Random features know nothing "
    "of the group: what they reveal after averaging comes from the edges alone."
)
Rows = list[tuple[str, str]]


def text(audit: Audit) -> str:
    """The audit for a terminal."""
    parts = [
        f"Audit of {audit.name}",
        _named(_fact_rows(audit)),
        "\n".join(aligned(group_table(graph_summary(audit), "nodes"))),
        "Features averaged over neighbours, by row normalisation (headline) and by Ã",
        "\n".join(aligned(_step_table(audit))),
        _wrapped([_guide(audit)], bullet=""),
    ]
    if theory := _prediction_rows(audit):
        parts += ["Theory for one step", _named(theory)]
    parts.append(f"Conclusions\n{_wrapped(verdict(audit))}")
    if audit.notes:
        parts.append(f"Notes\n{_wrapped(audit.notes)}")
    return "\n\n".join(parts)


def html(audit: Audit) -> str:
    """The audit for a notebook."""
    tables = [group_table(graph_summary(audit), "nodes"), _step_table(audit)]
    return to_html(f"Audit of {audit.name}", tables, [*verdict(audit), *audit.notes])


def plot(audit: Audit, ax: Axes | None = None) -> Axes:
    """Draw the group predictability after each step of averaging; return the axes."""
    axes: Axes = figure(NARROW, 3.4, interactive=True)[1] if ax is None else ax
    lines = {"features, averaged": audit.row, "features, averaged as by GCN": audit.symmetric}
    for k, (label, biases) in enumerate(lines.items()):
        shares = [100 * bias.predictability for bias in biases]
        axes.plot(shares, marker=MARKERS[k], color=COLOURS[k], label=label)
    if audit.forecast.after is not None:
        style: Any = {"color": "black", "fillstyle": "none", "markersize": 9}
        axes.plot([1], [100 * audit.forecast.after], "D", **style, label="predicted, one step")
    baseline = [100 * share for share in audit.random_baseline]
    axes.plot(baseline, "--", color="#777777", label="random features, averaged")
    axes.set(xlabel="averaging steps", ylabel="group predictability (points)")
    axes.set(xticks=range(len(audit.row)), ylim=(min(0.0, axes.get_ylim()[0]), None))
    axes.legend(frameon=False, fontsize=9)
    return axes


def write(
    audit: Audit, data: Data, folder: Path, *, command: str = "", picture: bool = True
) -> dict[str, Any]:
    """Write audit.txt, audit.json, report.html, report.json and the picture; return the JSON."""
    from fairmp.report.topology import topology

    record = {**audit.to_dict(), "read": messages(data)}
    write_json(folder / "audit.json", record)
    (folder / "audit.txt").write_text(f"{audit}\n", encoding="utf-8")
    drawn = topology(data, seed=audit.seed) if picture else None
    if drawn is not None:
        drawn.savefig(folder / "topology.png")
    reports.write(document(audit, read=record["read"], command=command), folder, drawn)
    return record


def document(audit: Audit, *, read: Sequence[str] = (), command: str = "") -> Document:
    """Report of an audit; ``read`` has the loader's messages about the tables.

    Example:
        >>> import textwrap
        >>> from fairmp import audit
        >>> from fairmp.datasets import social_network
        >>> report = document(audit(social_network(n=1000, average_degree=10)))
        >>> print(textwrap.fill(report["summary"], 88))
        From a person's own data the group can hardly be guessed (20.1 of 100). From their
        neighbours' data it can be guessed almost perfectly (99.8 of 100).
    """
    from fairmp.training.run import versions

    summary = [*headline(audit), *homophily(audit)]
    return {
        "title": f"{audit.name}: audit of the topology",
        "summary": summary[0],
        "flags": [leak_sentence(leak) for leak in audit.leaks if leak.of == "label"],
        "graph": graph_summary(audit),
        "checks": ["Next: 'fairmp train' on the same tables shows what closing the gap costs."],
        "extra": list(_extra_sections(audit)),
        "assumptions": ASSUMPTIONS,
        "read": list(read),
        "command": command,
        "versions": versions(),
    }


def graph_summary(audit: Audit) -> GraphSummary:
    """The graph's size, homophily and groups, and the verdict, for a report."""
    return cast(GraphSummary, audit.to_dict())


def _extra_sections(audit: Audit) -> Iterator[Section]:
    if audit.noise is not None:
        yield Section(
            "The effect of averaging over neighbours",
            svg=to_svg(cast("Figure", plot(audit).figure)),
            caption=EFFECT,
            alt="Group predictability after each step of averaging.",
        )
    if audit.notes:
        yield Section("Notes", text=audit.notes)
    header, *rows = _step_table(audit)
    # Of Ã the page shows the predictability only; the text and the JSON have the rest.
    yield Section(
        "The steps in numbers",
        header=[*header[:6], "predictability by Ã"],
        rows=[[*row[:6], row[-1]] for row in rows],
        caption=_guide(audit),
        appendix=True,
    )
    yield Section(
        "Statistics and theory",
        header=["", "value"],
        rows=[*_fact_rows(audit), *_prediction_rows(audit)],
        appendix=True,
    )


def _fact_rows(audit: Audit) -> Rows:
    """Name and value of the graph's statistics."""
    homophily = audit.homophily
    adjusted = "n/a" if homophily.adjusted is None else f"{homophily.adjusted:.3f}"
    rows = [
        ("nodes", f"{audit.nodes:,}"),
        ("edges", f"{audit.edges:,} undirected, {audit.directed_edges:,} directed"),
        ("features", f"{audit.features:,}"),
        ("labelled nodes", f"{audit.labelled:,}"),
        ("density ρ", f"{audit.density:.3g}"),
        ("average degree", f"{audit.average_degree:.1f}"),
        ("sensitive homophily ε", _percent(homophily.raw)),
        ("  expected by chance", _percent(homophily.chance)),
        ("  adjusted for chance", adjusted),
    ]
    if audit.c is not None:
        rows.append(("group ratio c", f"{audit.c:.3f} (share of {audit.groups[1].name})"))
    rows.append(("label homophily", f"{_percent(audit.label_homophily)} (unlabelled as a class)"))
    rows.append(("  over labelled pairs", _percent(audit.label_homophily_labelled)))
    if audit.unknown_groups:
        rows.append(("nodes of unknown group", f"{audit.unknown_groups:,}"))
        rows.append(("  edges with such an end", _percent(audit.unknown_edges)))
    return rows


def _step_table(audit: Audit) -> list[list[str]]:
    """Header, and one row per step: row normalisation, random baseline, Ã."""
    measures = ["gap", "chance", "separation", "predictability"]
    measured = audit.noise is not None

    def cells(bias: FeatureBias) -> list[str]:
        held_out = [f"{bias.separation:.2f}", points(bias.predictability)]
        return [f"{bias.gap:.3f}", f"{bias.chance:.3f}", *(held_out if measured else ["n/a"] * 2)]

    rows = [["step", *measures, "random", "Ã: gap", *measures[1:]]]
    for row, symmetric in zip(audit.row, audit.symmetric, strict=True):
        random = None
        if measured and audit.random_baseline:
            random = audit.random_baseline[row.step]
        rows.append([f"{row.step}", *cells(row), points(random), *cells(symmetric)])
    return rows


def _prediction_rows(audit: Audit) -> Rows:
    """Name and value of the theory's predictions for one step; empty if there are none."""
    forecast = audit.forecast
    rows = [("m = δᵀΣ⁻¹δ", f"{forecast.m:.3f}")] if forecast.m is not None else []
    for form, value in (("printed", forecast.printed), ("corrected", forecast.corrected)):
        if value is not None:
            claim = "adds bias" if value > 1 else "makes no claim"
            rows.append((f"Theorem 2, {form}", f"{value:.2f} ({claim}; the threshold is 1)"))
    if forecast.missing and forecast.before is not None:
        rows.append(("Theorem 2", forecast.missing))
    return rows


def _guide(audit: Audit) -> str:
    if audit.noise is None:
        return GUIDE
    noise = points(audit.noise)
    return f"{GUIDE} Changes of predictability below {noise} points may be due to chance."


def _percent(share: float | None) -> str:
    return "n/a" if share is None else f"{100 * share:.2f} %"


def _named(rows: Rows) -> str:
    return "\n".join(f"{name:<24}  {value}" for name, value in rows)


def _wrapped(lines: Sequence[str], bullet: str = "- ") -> str:
    wrapper = textwrap.TextWrapper(
        100, initial_indent=bullet, subsequent_indent=" " * len(bullet), break_on_hyphens=False
    )
    return "\n".join(map(wrapper.fill, lines))

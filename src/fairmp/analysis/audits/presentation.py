"""Text, tables, figure and report of an audit."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch_geometric.data import Data

from fairmp.outputs import write_json
from fairmp.report import Document, Section
from fairmp.report import document as reports
from fairmp.report.figures import COLOURS, MARKERS, NARROW, figure, to_svg
from fairmp.report.formats import aligned, points, to_html
from fairmp.report.sections import group_table, sections
from fairmp.report.topology import topology

if TYPE_CHECKING:
    from fairmp.analysis.audits.parts import FeatureBias, Group, Leak
    from fairmp.analysis.audits.result import Audit

MIN_CHANGE = 0.01  # of predictability that is worth a sentence
MIN_BASE_RATE_GAP = 0.05
MIN_LABELLED = 30
MIN_DEGREE_RATIO = 1.25
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
GUESSED = {  # what predictability below a limit means
    0.1: "cannot be guessed",
    0.4: "can hardly be guessed",
    0.75: "can be guessed in part",
    0.95: "can mostly be guessed",
    math.inf: "can be guessed almost perfectly",
}
Rows = list[tuple[str, str]]


def to_text(audit: Audit) -> str:
    """The audit for a terminal."""
    theory = _prediction_rows(audit)
    parts = [
        f"Audit of {audit.name}",
        _named(_fact_rows(audit)),
        "\n".join(aligned(group_table(asdict(audit), "nodes"))),
        "Features averaged over neighbours, by row normalisation (headline) and by Ã",
        "\n".join(aligned(_step_table(audit))),
        _wrapped([_guide(audit.noise)], bullet=""),
    ]
    if theory:
        parts += ["Theory for one step", _named(theory)]
    parts.append(f"Conclusions\n{_wrapped(verdict(audit))}")
    if audit.notes:
        parts.append(f"Notes\n{_wrapped(audit.notes)}")
    return "\n\n".join(parts)


def to_notebook(audit: Audit) -> str:
    """The audit as HTML for a notebook."""
    tables = [group_table(asdict(audit), "nodes"), _step_table(audit)]
    return to_html(f"Audit of {audit.name}", tables, [*verdict(audit), *audit.notes])


def plot(audit: Audit, ax: Any = None) -> Any:
    """Draw the group predictability after each step of averaging; return the axes."""
    axes = figure(NARROW, 3.4)[1] if ax is None else ax
    lines = {"features, averaged": audit.row, "features, averaged as by GCN": audit.symmetric}
    for k, (label, biases) in enumerate(lines.items()):
        shares = [100 * bias.predictability for bias in biases]
        axes.plot(shares, marker=MARKERS[k], color=COLOURS[k], label=label)
    if audit.forecast.after is not None:
        style = {"color": "black", "fillstyle": "none", "markersize": 9}
        axes.plot([1], [100 * audit.forecast.after], "D", **style, label="predicted, one step")
    baseline = [100 * share for share in audit.random_baseline]
    axes.plot(baseline, "--", color="#777777", label="random features, averaged")
    axes.set(xlabel="averaging steps", ylabel="group predictability (points)")
    axes.set(xticks=range(len(audit.row)), ylim=(min(0.0, axes.get_ylim()[0]), None))
    axes.legend(frameon=False, fontsize=9)
    return axes


def page_sections(audit: Audit) -> list[Section]:
    """Sections of the HTML page."""
    return sections(document(audit))


def write(
    audit: Audit, data: Data, folder: Path, *, command: str = "", picture: bool = True
) -> dict[str, Any]:
    """Write audit.txt, audit.json, report.html, report.json and the picture; return the JSON."""
    loaded = getattr(data, "report", None)
    record = {**audit.to_dict(), "read": [] if loaded is None else list(loaded.lines())}
    write_json(folder / "audit.json", record)
    (folder / "audit.txt").write_text(f"{audit}\n", encoding="utf-8")
    drawn = topology(data, seed=audit.seed) if picture else None
    if drawn is not None:
        drawn.savefig(folder / "topology.png")
    reports.write(document(audit, read=record["read"], command=command), folder, drawn)
    return record


def document(audit: Audit, *, read: Sequence[str] = (), command: str = "") -> Document:
    """Report of an audit; ``read`` has the loader's messages about the tables."""
    from fairmp.training.run import versions

    summary = [*_averaging(audit), *_homophily(audit)]
    return {
        "title": f"{audit.name}: audit of the topology",
        "summary": summary[0] if summary else "",
        "flags": [leak_sentence(leak) for leak in audit.leaks if leak.of == "label"],
        "graph": audit.to_dict(),
        "extra": [section.to_dict() for section in _extra_sections(audit)],
        "assumptions": ASSUMPTIONS,
        "read": list(read),
        "command": command,
        "versions": versions(),
    }


def _extra_sections(audit: Audit) -> Iterator[Section]:
    if audit.noise is not None:
        yield Section(
            "The effect of averaging over neighbours",
            svg=to_svg(plot(audit).figure),
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
        caption=_guide(audit.noise),
        appendix=True,
    )
    yield Section(
        "Statistics and theory",
        header=["", "value"],
        rows=[*_fact_rows(audit), *_prediction_rows(audit)],
        appendix=True,
    )


def verdict(audit: Audit) -> list[str]:
    """Conclusions, one or two sentences each."""
    return [
        *_homophily(audit),
        *_averaging(audit),
        *_theory(audit),
        *_base_rates(audit),
        *_few_labels(audit),
        *_degrees(audit),
        *_unknown_groups(audit),
        *map(leak_sentence, audit.leaks),
    ]


def leak_sentence(leak: Leak) -> str:
    """Say that a column gives the label or the group away."""
    advice = (
        "Is it known when the prediction is made? If not, drop it."
        if leak.of == "label"
        else "Leaving out the sensitive column does not hide the group."
    )
    return (
        f"The column {leak.column!r} gives the {leak.of} away: {leak.rule} equals "
        f"{leak.value!r} on {points(leak.agreement)} % of the nodes where it is known (a "
        f"constant answer: {points(leak.most_frequent)} %). {advice}"
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


def _homophily(audit: Audit) -> Iterator[str]:
    homophily = audit.homophily
    if homophily.adjusted is None:
        yield "No edges to compare the groups by: the topology carries no bias."
        return
    if homophily.adjusted > 0.2:
        kind = "stay within groups"
        effect = "Averaging over neighbours is mostly averaging within groups."
    elif homophily.adjusted > 0.05:
        kind, effect = "stay within groups slightly", "Averaging still mixes the groups."
    elif homophily.adjusted < -0.05:
        kind, effect = "cross between groups", "Averaging over neighbours mixes the groups."
    else:
        kind, effect = "are independent of the group", "Averaging over neighbours mixes the groups."
    yield (
        f"Edges {kind}: {points(homophily.raw)} % of the edges are within a group, "
        f"{points(homophily.chance)} % would be by chance (adjusted homophily "
        f"{homophily.adjusted:.2f}). {effect}"
    )


def _averaging(audit: Audit) -> Iterator[str]:
    """What averaging does to the predictability of the group."""
    if audit.noise is None:
        return
    first, *later = audit.row
    most, last = max(later, key=lambda bias: bias.predictability), later[-1]
    min_change = max(audit.noise, MIN_CHANGE)
    alone = f"From its own features the group of a node {_guessed(first)}"
    if most.predictability - first.predictability > min_change:
        yield (
            f"{alone}; after {_steps(most)} of averaging over neighbours it {_guessed(most)}. "
            "Message passing adds bias on this graph: leaving out the sensitive column does not "
            "hide the group."
        )
        random = audit.random_baseline[most.step]
        if random > most.predictability / 2:
            yield (
                f"Random features reach {points(random)} points after as many steps: the edges "
                "themselves reveal the group, whatever the features are."
            )
    elif last.predictability - first.predictability < -min_change:
        yield (
            f"{alone}; after {_steps(last)} of averaging over neighbours it {_guessed(last)}. "
            "Message passing removes bias on this graph; the rest comes from the features and the "
            "labels."
        )
    else:
        yield f"{alone}; averaging over neighbours does not change that significantly."


def _guessed(bias: FeatureBias) -> str:
    """How well the group can be guessed, in words and points."""
    words = next(words for limit, words in GUESSED.items() if bias.predictability < limit)
    return f"{words} ({points(bias.predictability)} of 100)"


def _steps(bias: FeatureBias) -> str:
    return "one step" if bias.step == 1 else f"{bias.step} steps"


def _theory(audit: Audit) -> Iterator[str]:
    forecast = audit.forecast
    if forecast.before is None or forecast.after is None or audit.noise is None:
        yield f"Theory: {forecast.missing or 'no prediction'}."
        return
    before, after = (bias.predictability for bias in audit.row[:2])
    yield (
        "For a graph like this one, theory predicts that one step of averaging "
        f"{_change(forecast.before, forecast.after, 0.0)}. Measured: it "
        f"{_change(before, after, audit.noise)}."
    )
    difference = (forecast.after - forecast.before) - (after - before)
    if abs(difference) > max(2 * audit.noise, 0.1):
        yield (
            "The two differ because the theory assumes that neighbours share nothing but a group. "
            "Here they are alike in other ways, or averaged features reveal a node's position."
        )


def _change(before: float, after: float, noise: float) -> str:
    text = "does not change the bias"
    if abs(after - before) > max(noise, MIN_CHANGE):
        verb = "raises" if after > before else "lowers"
        text = f"{verb} the bias by {points(abs(after - before))} points"
    return f"{text} ({points(before)} to {points(after)})"


def _known_groups(audit: Audit) -> list[Group]:
    return [group for group in audit.groups if group.share is not None]


def _base_rates(audit: Audit) -> Iterator[str]:
    """The label whose frequency differs most between two groups."""
    differences = []
    # Two classes mirror each other: one of them is enough.
    for k in range(1 if len(audit.classes) == 2 else 0, len(audit.classes)):
        rates = [
            (group.base_rates[k], group.name) for group in _known_groups(audit) if group.base_rates
        ]
        if len(rates) > 1:
            (low, fewer), (high, more) = min(rates), max(rates)
            differences.append((high - low, audit.classes[k], more, fewer))
    difference, label, more, fewer = max(differences, default=(0.0, "", "", ""))
    if difference > MIN_BASE_RATE_GAP:
        yield (
            f"The label {label!r} is {points(difference)} points more frequent in {more!r} than in "
            f"{fewer!r}: even a perfect classifier has that gap, so demographic parity costs "
            "accuracy and conflicts with equal opportunity. Choose the criterion before the model."
        )


def _few_labels(audit: Audit) -> Iterator[str]:
    few = [repr(group.name) for group in _known_groups(audit) if group.labelled < MIN_LABELLED]
    if audit.labelled and few:
        names = ", ".join(few[:5])
        yield f"Fewer than {MIN_LABELLED} nodes of {names} are labelled: expect wide intervals."


def _degrees(audit: Audit) -> Iterator[str]:
    groups = sorted(_known_groups(audit), key=lambda group: group.mean_degree)
    fewest, most = groups[0], groups[-1]
    if most.mean_degree > MIN_DEGREE_RATIO * fewest.mean_degree:
        yield (
            f"Nodes of {most.name!r} have {most.mean_degree:.1f} neighbours on average, those of "
            f"{fewest.name!r} {fewest.mean_degree:.1f}: the averages of the latter are noisier, "
            "and symmetric normalisation shrinks their features."
        )


def _unknown_groups(audit: Audit) -> Iterator[str]:
    if audit.unknown_groups:
        yield (
            f"The group of {points(audit.unknown_groups / audit.nodes)} % of the nodes is unknown: "
            "they count in no gap, and no group-wise correction applies to them."
        )


def _guide(noise: float | None) -> str:
    if noise is None:
        return GUIDE
    return f"{GUIDE} Changes of predictability below {points(noise)} points may be due to chance."


def _percent(share: float | None) -> str:
    return "n/a" if share is None else f"{100 * share:.2f} %"


def _named(rows: Rows) -> str:
    return "\n".join(f"{name:<24}  {value}" for name, value in rows)


def _wrapped(lines: Sequence[str], bullet: str = "- ") -> str:
    indent = " " * len(bullet)
    return "\n".join(
        textwrap.fill(
            line, 100, initial_indent=bullet, subsequent_indent=indent, break_on_hyphens=False
        )
        for line in lines
    )

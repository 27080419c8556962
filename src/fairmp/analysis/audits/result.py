"""Result of an audit: its numbers, conclusions, text for a terminal, and report."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch_geometric.data import Data

from fairmp.analysis.audits.parts import FeatureBias, Forecast, Group, Homophily, Leak
from fairmp.metrics.evaluation import aligned, to_html
from fairmp.outputs import write_json
from fairmp.report import document as reports
from fairmp.report.figures import COLOURS, MARKERS, NARROW, figure, to_svg
from fairmp.report.formats import points
from fairmp.report.sections import Document, Section, group_table, sections
from fairmp.report.topology import topology

MIN_CHANGE = 0.01
MIN_LABELLED = 30
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


@dataclass(frozen=True)
class Audit:
    """Effect of a graph's topology on its groups; ``print`` it, or use ``to_dict()``.

    Shares and rates are fractions in [0, 1]; the text prints per cent and points.
    """

    name: str
    nodes: int
    edges: int  # undirected
    directed_edges: int
    features: int
    constant_features: int  # ignored below
    labelled: int
    classes: tuple[str, ...]
    unknown_groups: int  # nodes of unknown group
    unknown_edges: float | None  # share of the edges with such an end
    density: float  # ρ, the share of all pairs of nodes that are edges
    average_degree: float
    homophily: Homophily
    label_homophily: float | None  # unlabelled counts as a class
    label_homophily_labelled: float | None  # among edges between labelled nodes
    c: float | None  # share of the second of two groups among nodes of known group
    groups: tuple[Group, ...]  # last the nodes of unknown group, if there are any
    row: tuple[FeatureBias, ...]  # after 0…K steps with row normalisation, as in the theory
    symmetric: tuple[FeatureBias, ...]  # the same for Ã, which the layers use
    random_baseline: tuple[float, ...]  # predictability of random features after 0…K row steps
    noise: float | None  # two standard errors of the predictability
    forecast: Forecast
    leaks: tuple[Leak, ...]  # columns that give the label or the group away, the worst first
    notes: tuple[str, ...]
    seed: int  # of the halves that rules are fitted and evaluated on

    def verdict(self) -> list[str]:
        """Conclusions, one or two sentences each."""
        parts = (_homophily, _averaging, _theory, _groups)
        lines = [line for part in parts for line in part(self)]
        return lines + [str(leak) for leak in self.leaks]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data, for JSON."""
        return {**asdict(self), "verdict": self.verdict()}

    def sections(self) -> list[Section]:
        """Sections of the HTML page, for :func:`fairmp.report.page`."""
        return sections(document(self))

    def _repr_html_(self) -> str:
        tables = [group_table(asdict(self), "nodes"), _step_table(self)]
        return to_html(f"Audit of {self.name}", tables, [*self.verdict(), *self.notes])

    def plot(self, ax: Any = None) -> Any:
        """Draw the group predictability after each step of averaging; return the axes.

        Args:
            ax: matplotlib axes to draw on; new ones by default.
        """
        axes = figure(NARROW, 3.4)[1] if ax is None else ax
        lines = {"features, averaged": self.row, "features, averaged as by GCN": self.symmetric}
        for k, (label, biases) in enumerate(lines.items()):
            shares = [100 * bias.predictability for bias in biases]
            axes.plot(shares, marker=MARKERS[k], color=COLOURS[k], label=label)
        if self.forecast.after is not None:
            style = {"color": "black", "fillstyle": "none", "markersize": 9}
            axes.plot([1], [100 * self.forecast.after], "D", **style, label="predicted, one step")
        baseline = [100 * share for share in self.random_baseline]
        axes.plot(baseline, "--", color="#777777", label="random features, averaged")
        axes.set(xlabel="averaging steps", ylabel="group predictability (points)")
        axes.set(xticks=range(len(self.row)), ylim=(min(0.0, axes.get_ylim()[0]), None))
        axes.legend(frameon=False, fontsize=9)
        return axes

    def __str__(self) -> str:
        theory = _predictions(self)
        parts = [
            f"Audit of {self.name}",
            _named(_facts(self)),
            "\n".join(aligned(group_table(asdict(self), "nodes"))),
            "Features averaged over neighbours, by row normalisation (headline) and by Ã",
            "\n".join(aligned(_step_table(self))),
            _wrapped([_guide(self.noise)], ""),
            *(["Theory for one step", _named(theory)] if theory else []),
            f"Conclusions\n{_wrapped(self.verdict())}",
            *([f"Notes\n{_wrapped(self.notes)}"] if self.notes else []),
        ]
        return "\n\n".join(parts)


def write(
    audit: Audit, data: Data, folder: Path, *, command: str = "", picture: bool = True
) -> dict[str, Any]:
    """Write audit.txt, audit.json, report.html, report.json and the picture; return the JSON."""
    report = getattr(data, "report", None)
    record = {**audit.to_dict(), "read": [] if report is None else list(report.lines())}
    write_json(folder / "audit.json", record)
    (folder / "audit.txt").write_text(f"{audit}\n", encoding="utf-8")
    found = document(audit, read=record["read"], command=command)
    drawn = topology(data, seed=audit.seed) if picture else None
    if drawn is not None:
        drawn.savefig(folder / "topology.png")
    reports.write(found, folder, drawn)
    return record


def document(audit: Audit, *, read: Sequence[str] = (), command: str = "") -> Document:
    """Report of an audit; ``read`` has the loader's messages about the tables."""
    from fairmp.training.loop import versions

    extra = []
    if audit.noise is not None:
        title = "The effect of averaging over neighbours"
        picture: Any = {"svg": to_svg(audit.plot().figure), "caption": EFFECT}
        alt = "Group predictability after each step of averaging."
        extra.append(Section(title, **picture, alt=alt))
    if audit.notes:
        extra.append(Section("Notes", text=audit.notes))
    header, *rows = _step_table(audit)
    # Of Ã the page shows the predictability only; the text and the JSON have the rest.
    header, rows = [*header[:6], "predictability by Ã"], [[*row[:6], row[-1]] for row in rows]
    steps: Any = {"header": header, "rows": rows, "caption": _guide(audit.noise)}
    facts: Any = {"header": ["", "value"], "rows": [*_facts(audit), *_predictions(audit)]}
    extra.append(Section("The steps in numbers", **steps, appendix=True))
    extra.append(Section("Statistics and theory", **facts, appendix=True))
    return {
        "title": f"{audit.name}: audit of the topology",
        "summary": next((line for part in (_averaging, _homophily) for line in part(audit)), ""),
        "flags": [str(leak) for leak in audit.leaks if leak.of == "label"],
        "graph": audit.to_dict(),
        "extra": [section.to_dict() for section in extra],
        "assumptions": ASSUMPTIONS,
        "read": list(read),
        "command": command,
        "versions": versions(),
    }


def _facts(audit: Audit) -> Rows:
    """Name and value of the graph's statistics."""
    raw, chance, adjusted = asdict(audit.homophily).values()
    rows = [
        ("nodes", f"{audit.nodes:,}"),
        ("edges", f"{audit.edges:,} undirected, {audit.directed_edges:,} directed"),
        ("features", f"{audit.features:,}"),
        ("labelled nodes", f"{audit.labelled:,}"),
        ("density ρ", f"{audit.density:.3g}"),
        ("average degree", f"{audit.average_degree:.1f}"),
        ("sensitive homophily ε", _percent(raw)),
        ("  expected by chance", _percent(chance)),
        ("  adjusted for chance", "n/a" if adjusted is None else f"{adjusted:.3f}"),
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
        known = measured and audit.random_baseline
        random = points(audit.random_baseline[row.step] if known else None)
        rows.append([f"{row.step}", *cells(row), random, *cells(symmetric)])
    return rows


def _predictions(audit: Audit) -> Rows:
    """Name and value of the theory's predictions for one step; empty if there are none."""
    forecast = audit.forecast
    rows = [("m = δᵀΣ⁻¹δ", f"{forecast.m:.3f}")] if forecast.m is not None else []
    for name, value in (("printed", forecast.printed), ("corrected", forecast.corrected)):
        if value is not None:
            claim = "adds bias" if value > 1 else "makes no claim"
            rows.append((f"Theorem 2, {name}", f"{value:.2f} ({claim}; the threshold is 1)"))
    if forecast.missing and forecast.before is not None:
        rows.append(("Theorem 2", forecast.missing))
    return rows


def _homophily(audit: Audit) -> Iterator[str]:
    raw, chance, adjusted = asdict(audit.homophily).values()
    if adjusted is None:
        yield "No edges to compare the groups by: the topology carries no bias."
        return
    kind, effect = "are independent of the group", "Averaging over neighbours mixes the groups."
    if adjusted > 0.2:
        kind = "stay within groups"
        effect = "Averaging over neighbours is mostly averaging within groups."
    elif adjusted > 0.05:
        kind, effect = "stay within groups slightly", "Averaging still mixes the groups."
    elif adjusted < -0.05:
        kind = "cross between groups"
    yield (
        f"Edges {kind}: {points(raw)} % of the edges are within a group, {points(chance)} % would "
        f"be by chance (adjusted homophily {adjusted:.2f}). {effect}"
    )


def _averaging(audit: Audit) -> Iterator[str]:
    first, *later = audit.row
    if audit.noise is None:
        return
    most, last = max(later, key=lambda bias: bias.predictability), later[-1]
    least_change = max(audit.noise, MIN_CHANGE)
    alone = f"Group predictability of the features alone is {points(first.predictability)} points"
    if most.predictability - first.predictability > least_change:
        yield (
            f"{alone}; after {_after(most)}. Message passing adds bias on this graph: leaving out "
            "the sensitive column does not hide the group."
        )
        random = audit.random_baseline[most.step]
        if random > most.predictability / 2:
            yield (
                f"Random features reach {points(random)} points after as many steps: the edges "
                "themselves reveal the group, whatever the features are."
            )
    elif last.predictability - first.predictability < -least_change:
        yield (
            f"{alone}; after {_after(last)}. Message passing removes bias on this graph; the rest "
            "comes from the features and the labels."
        )
    else:
        yield f"{alone}; averaging over neighbours does not change that significantly."


def _after(bias: FeatureBias) -> str:
    steps = "one step" if bias.step == 1 else f"{bias.step} steps"
    return f"{steps} of averaging it is {points(bias.predictability)}"


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
    size, verb = abs(after - before), "raises" if after > before else "lowers"
    large = size > max(noise, MIN_CHANGE)
    text = f"{verb} the bias by {points(size)} points" if large else "does not change the bias"
    return f"{text} ({points(before)} to {points(after)})"


def _groups(audit: Audit) -> Iterator[str]:
    known = [group for group in audit.groups if group.share is not None]
    widest = (0.05, "", "", "")
    # Two classes mirror each other: one of them is enough.
    for k in range(1 if len(audit.classes) == 2 else 0, len(audit.classes)):
        rates = [(group.base_rates[k], group.name) for group in known if group.base_rates]
        if len(rates) > 1:
            (low, fewer), (high, more) = min(rates), max(rates)
            widest = max(widest, (high - low, audit.classes[k], more, fewer))
    difference, label, more, fewer = widest
    if label:
        yield (
            f"The label {label!r} is {points(difference)} points more frequent in {more!r} than in "
            f"{fewer!r}: even a perfect classifier has that gap, so demographic parity costs "
            "accuracy and conflicts with equal opportunity. Choose the criterion before the model."
        )
    few = ", ".join([repr(group.name) for group in known if group.labelled < MIN_LABELLED][:5])
    if audit.labelled and few:
        yield f"Fewer than {MIN_LABELLED} nodes of {few} are labelled: expect wide intervals."
    rare, often = (pick(known, key=lambda group: group.mean_degree) for pick in (min, max))
    if often.mean_degree > 1.25 * rare.mean_degree:
        yield (
            f"Nodes of {often.name!r} have {often.mean_degree:.1f} neighbours on average, those of "
            f"{rare.name!r} {rare.mean_degree:.1f}: the averages of the latter are noisier, and "
            "symmetric normalisation shrinks their features."
        )
    if audit.unknown_groups:
        yield (
            f"The group of {points(audit.unknown_groups / audit.nodes)} % of the nodes is unknown: "
            "they count in no gap, and no group-wise correction applies to them."
        )


def _guide(noise: float | None) -> str:
    end = f" Changes of predictability below {points(noise)} points may be due to chance."
    return GUIDE + end * (noise is not None)


def _percent(share: float | None) -> str:
    return "n/a" if share is None else f"{100 * share:.2f} %"


def _named(rows: Rows) -> str:
    return "\n".join(f"{name:<24}  {value}" for name, value in rows)


def _wrapped(lines: Sequence[str], bullet: str = "- ") -> str:
    style: Any = {"initial_indent": bullet, "subsequent_indent": " " * len(bullet)}
    return "\n".join(textwrap.fill(line, 100, break_on_hyphens=False, **style) for line in lines)

"""An audit in words: conclusions, and the text for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from fairmp.report.formatting import points

if TYPE_CHECKING:
    from fairmp.analysis.audits.measure import Audit, FeatureBias

WIDTH = 100
MIN_CHANGE = 0.01
MIN_LABELLED = 30
_GUIDE = (
    "gap: distance between the groups' means in standard deviations of the features (chance: "
    "expected for random groups). separation: the same relative to the spread within groups. "
    "predictability: how well a linear rule predicts the group of held-out nodes, from 0 (not at "
    "all) to 100 points (perfectly). random: the predictability of random features, which after "
    "averaging reflect only a node's position in the graph."
)


def text(audit: Audit) -> str:
    """Format an audit for a terminal of 100 columns."""
    parts = [
        f"Audit of {audit.name}",
        _columns(facts(audit)),
        _table(*group_table(audit)),
        "Features averaged over neighbours, by row normalisation (headline) and by Ã",
        _table(*step_table(audit)),
        _wrapped(guide(audit)),
        "Theory for one step" if theory(audit) else "",
        _columns(theory(audit)),
        "Conclusions",
        "\n".join(_wrapped(line, "- ") for line in audit.verdict()),
    ]
    if audit.notes:
        parts += ["Notes", "\n".join(_wrapped(line, "- ") for line in audit.notes)]
    return "\n\n".join(part for part in parts if part).replace("\n\n- ", "\n- ")


def guide(audit: Audit) -> str:
    """Explain the columns of the steps, and which changes are significant."""
    if audit.noise is None:
        return _GUIDE
    limit = points(audit.noise)
    return f"{_GUIDE} Changes of predictability below {limit} points may be due to chance."


def facts(audit: Audit) -> list[tuple[str, str]]:
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
    rows += [
        ("label homophily", f"{_percent(audit.label_homophily)} (unlabelled as a class)"),
        ("  over labelled pairs", _percent(audit.label_homophily_labelled)),
    ]
    if audit.unknown_groups:
        rows += [
            ("nodes of unknown group", f"{audit.unknown_groups:,}"),
            ("  edges with such an end", _percent(audit.unknown_edges)),
        ]
    return rows


def group_table(audit: Audit) -> tuple[list[str], list[list[str]]]:
    """Header, and one row per group."""
    first = 1 if len(audit.classes) == 2 else 0
    shown = slice(first, first + 8)
    header = ["group", "nodes", "share %", "labelled", *(f"{c} %" for c in audit.classes[shown])]
    header += ["mean degree", "median", "isolated", "inside %"]
    rows = [
        [
            group.name,
            f"{group.nodes:,}",
            points(group.share),
            f"{group.labelled:,}",
            *(points(r) for r in (group.base_rates or (None,) * len(audit.classes))[shown]),
            f"{group.mean_degree:.1f}",
            f"{group.median_degree:g}",
            f"{group.isolated:,}",
            points(group.inside),
        ]
        for group in audit.groups
    ]
    return header, rows


def step_table(audit: Audit) -> tuple[list[str], list[list[str]]]:
    """Header, and one row per step: row normalisation, random baseline, Ã."""
    measures = ["gap", "chance", "separation", "predictability"]
    header = ["step", *measures, "random", "Ã: gap", *measures[1:]]
    measured = audit.noise is not None

    def cells(bias: FeatureBias) -> list[str]:
        return [
            f"{bias.gap:.3f}",
            f"{bias.chance:.3f}",
            f"{bias.separation:.2f}" if measured else "n/a",
            points(bias.predictability if measured else None),
        ]

    rows = []
    for row, symmetric in zip(audit.row, audit.symmetric, strict=True):
        known = measured and audit.random_baseline
        random = points(audit.random_baseline[row.step] if known else None)
        rows.append([f"{row.step}", *cells(row), random, *cells(symmetric)])
    return header, rows


def theory(audit: Audit) -> list[tuple[str, str]]:
    """Name and value of the theory's predictions for one step; empty if there are none."""
    forecast = audit.forecast
    rows = []
    if forecast.m is not None:
        rows.append(("m = δᵀΣ⁻¹δ", f"{forecast.m:.3f}"))
    for name, value in (("printed", forecast.printed), ("corrected", forecast.corrected)):
        if value is not None:
            claim = "adds bias" if value > 1 else "makes no claim"
            rows.append((f"Theorem 2, {name}", f"{value:.2f} ({claim}; the threshold is 1)"))
    if forecast.missing and forecast.before is not None:
        rows.append(("Theorem 2", forecast.missing))
    return rows


def verdict(audit: Audit) -> list[str]:
    """Conclusions, one or two sentences each."""
    parts = (_homophily, _averaging, _theory, _base_rates, _degrees, _unknown)
    return [line for part in parts for line in part(audit)]


def headline(audit: Audit) -> str:
    """The most important conclusion."""
    return next((line for part in (_averaging, _homophily) for line in part(audit)), "")


def _homophily(audit: Audit) -> Iterator[str]:
    raw, chance, adjusted = audit.homophily.raw, audit.homophily.chance, audit.homophily.adjusted
    if raw is None or chance is None or adjusted is None:
        yield "No edges to compare the groups by: the topology carries no bias."
        return
    figures = (
        f"{points(raw)} % of the edges are within a group, {points(chance)} % would be by chance "
        f"(adjusted homophily {adjusted:.2f})"
    )
    if adjusted > 0.2:
        yield (
            f"Edges stay within groups: {figures}. Averaging over neighbours is mostly averaging "
            "within groups."
        )
    elif adjusted > 0.05:
        yield f"Edges stay within groups slightly: {figures}. Averaging still mixes the groups."
    else:
        often = "cross between groups" if adjusted < -0.05 else "are independent of the group"
        yield f"Edges {often}: {figures}. Averaging over neighbours mixes the groups."


def _averaging(audit: Audit) -> Iterator[str]:
    first, *later = audit.row
    if audit.noise is None or not later:
        return
    most = max(later, key=lambda bias: bias.predictability)
    least_change = max(audit.noise, MIN_CHANGE)
    alone = f"Group predictability of the features alone is {points(first.predictability)} points"
    if most.predictability - first.predictability > least_change:
        yield (
            f"{alone}; after {_steps(most.step)} of averaging it is {points(most.predictability)}. "
            "Message passing adds bias on this graph: leaving out the sensitive column does not "
            "hide the group."
        )
        random = audit.random_baseline[most.step]
        if random > most.predictability / 2:
            yield (
                f"Random features reach {points(random)} points after as many steps: the edges "
                "themselves reveal the group, whatever the features are."
            )
    elif later[-1].predictability - first.predictability < -least_change:
        yield (
            f"{alone}; after {_steps(later[-1].step)} of averaging it is "
            f"{points(later[-1].predictability)}. Message passing removes bias on this graph; the "
            "rest comes from the features and the labels."
        )
    else:
        yield f"{alone}; averaging over neighbours does not change that significantly."


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
            "The two differ because the theory assumes that neighbours share a group and nothing "
            "else. Here they are similar in other ways, or many averaged features together reveal "
            "a node's position."
        )


def _change(before: float, after: float, noise: float) -> str:
    interval = f"({points(before)} to {points(after)})"
    change = after - before
    if abs(change) <= max(noise, MIN_CHANGE):
        return f"does not change the bias {interval}"
    verb = "raises" if change > 0 else "lowers"
    return f"{verb} the bias by {points(abs(change))} points {interval}"


def _base_rates(audit: Audit) -> Iterator[str]:
    known = [group for group in audit.groups if group.share is not None]
    rated = [(group.name, group.base_rates) for group in known if group.base_rates]
    differences = []
    # Two classes mirror each other: one of them is enough.
    for k in range(1 if len(audit.classes) == 2 else 0, len(audit.classes)):
        rates = [(rates[k], name) for name, rates in rated]
        if len(rates) > 1:
            (low, fewer), (high, more) = min(rates), max(rates)
            differences.append((high - low, audit.classes[k], more, fewer))
    widest = max(differences, default=(0.0, "", "", ""))
    if widest[0] > 0.05:
        difference, label, more, fewer = widest
        yield (
            f"The label {label!r} is {points(difference)} points more frequent in {more!r} than in "
            f"{fewer!r}: even a perfect classifier has that gap, so demographic parity costs "
            "accuracy and conflicts with equal opportunity. Choose the criterion before the model."
        )
    few = [group.name for group in known if group.labelled < MIN_LABELLED]
    if audit.labelled and few:
        yield (
            f"Fewer than {MIN_LABELLED} nodes of {', '.join(map(repr, few[:5]))} are labelled: "
            "their figures will be uncertain."
        )


def _degrees(audit: Audit) -> Iterator[str]:
    known = [group for group in audit.groups if group.share is not None]
    low, high = (pick(known, key=lambda group: group.mean_degree) for pick in (min, max))
    if high.mean_degree > 1.25 * low.mean_degree:
        yield (
            f"Nodes of {high.name!r} have {high.mean_degree:.1f} neighbours on average, those of "
            f"{low.name!r} {low.mean_degree:.1f}: the averages of the latter are noisier, and "
            "symmetric normalisation shrinks their features."
        )


def _unknown(audit: Audit) -> Iterator[str]:
    if audit.unknown_groups:
        yield (
            f"The group of {points(audit.unknown_groups / audit.nodes)} % of the nodes is unknown: "
            "they count in no gap, and no group-wise correction applies to them."
        )


def _steps(count: int) -> str:
    return "one step" if count == 1 else f"{count} steps"


def _percent(share: float | None) -> str:
    return "n/a" if share is None else f"{100 * share:.2f} %"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Align columns: the first to the left, the others to the right."""
    width = [max(len(row[k]) for row in (header, *rows)) for k in range(len(header))]
    return "\n".join(
        "  ".join([row[0].ljust(width[0]), *map(str.rjust, row[1:], width[1:])]).rstrip()
        for row in (header, *rows)
    )


def _columns(rows: Sequence[tuple[str, str]]) -> str:
    width = max((len(name) for name, _ in rows), default=0)
    return "\n".join(f"{name.ljust(width)}  {value}" for name, value in rows)


def _wrapped(line: str, bullet: str = "") -> str:
    indent = " " * len(bullet)
    return textwrap.fill(
        line, WIDTH, initial_indent=bullet, subsequent_indent=indent, break_on_hyphens=False
    )

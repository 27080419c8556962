"""What the figures of an audit mean, in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairmp.analysis.audits.findings import Audit
    from fairmp.analysis.audits.steps import Reading

_CLEAR = 0.01
_FEW = 30


def verdict(audit: Audit) -> list[str]:
    """Say what an audit means, a sentence or two a line."""
    return [
        line
        for part in (_ties, _averaging, _theory, _rates, _degrees, _unknown)
        for line in part(audit)
    ]


def headline(audit: Audit) -> str:
    """Say the most important of it."""
    return next((line for part in (_averaging, _ties) for line in part(audit)), "")


def points(share: float) -> str:
    """Write a share as points.

    Example:
        >>> points(0.1234), points(-0.0004)
        ('12.3', '0.0')
    """
    # Adding 0.0 turns a rounded −0.0 into 0.0.
    return f"{round(100 * share, 1) + 0.0:.1f}"


def moved(before: float, after: float, noise: float) -> str:
    """Say in words how far a share told apart moved.

    Example:
        >>> moved(0.1, 0.3, noise=0.02), moved(0.1, 0.11, noise=0.02)
        ('raise the bias by 20.0 points (10.0 to 30.0)', 'leave the bias as it is (10.0 to 11.0)')
    """
    span = f"({points(before)} to {points(after)})"
    change = after - before
    if abs(change) <= max(noise, _CLEAR):
        return f"leave the bias as it is {span}"
    verb = "raise" if change > 0 else "lower"
    return f"{verb} the bias by {points(abs(change))} points {span}"


def _ties(audit: Audit) -> Iterator[str]:
    raw, chance, adjusted = audit.homophily.raw, audit.homophily.chance, audit.homophily.adjusted
    if raw is None or chance is None or adjusted is None:
        yield "No edge joins nodes of two known groups or of one: topology says nothing here."
        return
    figures = (
        f"{points(raw)} % of the edges stay inside a group, {points(chance)} % would if groups did "
        f"not matter (adjusted homophily {adjusted:.2f})"
    )
    if adjusted > 0.2:
        yield (
            f"Ties keep to the group: {figures}. To average over neighbours is, for the most part, "
            "to average within groups."
        )
    elif adjusted > 0.05:
        yield f"Ties keep to the group a little: {figures}. Averaging mixes the groups even so."
    elif adjusted < -0.05:
        yield f"Ties cross between groups: {figures}. Averaging over neighbours mixes the groups."
    else:
        yield f"Ties do not mind the group: {figures}. Averaging over neighbours mixes the groups."


def _averaging(audit: Audit) -> Iterator[str]:
    first, *later = audit.row
    if audit.noise is None or not later:
        return
    far: Reading = max(later, key=lambda reading: reading.told_apart)
    alone = f"The features alone tell the groups apart by {points(first.told_apart)} points"
    if far.told_apart - first.told_apart > max(audit.noise, _CLEAR):
        yield (
            f"{alone}; after {_steps(far.step)} of averaging it is {points(far.told_apart)}. "
            "Message passing adds bias on this graph: leaving the sensitive column out does not "
            "hide it."
        )
        if audit.made_up[far.step] > far.told_apart / 2:
            yield (
                f"Random numbers in the features' place reach {points(audit.made_up[far.step])} "
                "points in as many steps: the ties themselves give the group away, whatever the "
                "features are."
            )
    elif later[-1].told_apart - first.told_apart < -max(audit.noise, _CLEAR):
        yield (
            f"{alone}; after {_steps(later[-1].step)} of averaging it is "
            f"{points(later[-1].told_apart)}. Message passing takes bias away here; what is left "
            "comes from the features and the labels."
        )
    else:
        yield f"{alone}; averaging over neighbours does not change that by more than chance."


def _theory(audit: Audit) -> Iterator[str]:
    found = audit.forecast
    if found.before is None or found.after is None or audit.noise is None:
        yield f"What theory predicts: {found.missing or 'nothing here'}."
        return
    predicted, measured = found.after - found.before, audit.row[1].told_apart
    measured -= audit.row[0].told_apart
    seen = moved(audit.row[0].told_apart, audit.row[1].told_apart, audit.noise)
    yield (
        "On a graph like yours one step of averaging is predicted to "
        f"{moved(found.before, found.after, 0.0)}; measured: to {seen}."
    )
    if abs(predicted - measured) > max(2 * audit.noise, 0.1):
        yield (
            "The two differ. The theory knows a node's neighbours by their groups alone; here they "
            "are alike in more than that, or many averaged features together tell where in the "
            "graph a node sits."
        )


def _rates(audit: Audit) -> Iterator[str]:
    named = [(row, row.base_rates) for row in audit.groups if row.share is not None]
    rated = [(row, rates) for row, rates in named if rates]
    widest, told = 0.0, ""
    # Two classes mirror each other: one of them says it all.
    for k in range(len(audit.classes) - 1, 0 if len(audit.classes) == 2 else -1, -1):
        if len(rated) < 2:
            break
        low, high = (pick(rated, key=lambda pair: pair[1][k]) for pick in (min, max))
        difference = high[1][k] - low[1][k]
        if difference > widest:
            widest = difference
            told = (
                f"The label {audit.classes[k]!r} is {points(difference)} points more frequent in "
                f"{high[0].name!r} than in {low[0].name!r}"
            )
    if widest > 0.05:
        yield (
            f"{told}: even a perfect classifier shows that gap, so parity costs accuracy and pulls "
            "away from equal opportunity. Choose the criterion before the model."
        )
    few = [row.name for row, _ in named if row.labelled < _FEW]
    if audit.labelled and few:
        yield (
            f"Fewer than {_FEW} nodes of {', '.join(map(repr, few[:5]))} are labelled: figures for "
            "them will be uncertain."
        )


def _degrees(audit: Audit) -> Iterator[str]:
    known = [row for row in audit.groups if row.share is not None]
    low, high = (pick(known, key=lambda row: row.mean_degree) for pick in (min, max))
    if high.mean_degree > 1.25 * low.mean_degree:
        yield (
            f"{high.name!r} has {high.mean_degree:.1f} neighbours a node, {low.name!r} "
            f"{low.mean_degree:.1f}: the averages of the latter are noisier, and symmetric "
            "normalisation makes its features shorter."
        )


def _unknown(audit: Audit) -> Iterator[str]:
    if audit.unknown_groups:
        yield (
            f"The group of {points(audit.unknown_groups / audit.nodes)} % of the nodes is unknown: "
            "they are in no gap, and a correction by group can not reach them."
        )


def _steps(count: int) -> str:
    return "one step" if count == 1 else f"{count} steps"

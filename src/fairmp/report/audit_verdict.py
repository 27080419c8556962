"""Conclusions of an audit, in sentences."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fairmp.report.formats import points
from fairmp.report.sections import leak_sentence

if TYPE_CHECKING:
    from fairmp.analysis.audits.result import Audit, FeatureBias, Group

MIN_CHANGE = 0.01  # of predictability that is worth a sentence
MIN_BASE_RATE_GAP = 0.05
MIN_LABELLED = 30
MIN_DEGREE_RATIO = 1.25
GUESSED = {  # what predictability below a limit means
    0.1: "cannot be guessed",
    0.4: "can hardly be guessed",
    0.75: "can be guessed in part",
    0.95: "can mostly be guessed",
    math.inf: "can be guessed almost perfectly",
}


def verdict(audit: Audit) -> list[str]:
    """Conclusions, one or two sentences each."""
    return [
        *homophily(audit),
        *averaging(audit),
        *_theory(audit),
        *_base_rates(audit),
        *_few_labels(audit),
        *_degrees(audit),
        *_unknown_groups(audit),
        *map(leak_sentence, audit.leaks),
    ]


def homophily(audit: Audit) -> Iterator[str]:
    """Whether edges stay within groups."""
    share = audit.homophily
    if share.adjusted is None:
        yield "No edges to compare the groups by: the topology carries no bias."
        return
    if share.adjusted > 0.2:
        kind = "stay within groups"
        effect = "Averaging over neighbours is mostly averaging within groups."
    elif share.adjusted > 0.05:
        kind, effect = "stay within groups slightly", "Averaging still mixes the groups."
    elif share.adjusted < -0.05:
        kind, effect = "cross between groups", "Averaging over neighbours mixes the groups."
    else:
        kind, effect = "are independent of the group", "Averaging over neighbours mixes the groups."
    yield (
        f"Edges {kind}: {points(share.raw)} % of the edges are within a group, "
        f"{points(share.chance)} % would be by chance (adjusted homophily "
        f"{share.adjusted:.2f}). {effect}"
    )


def headline(audit: Audit) -> Iterator[str]:
    """How well a person's group can be guessed, for readers without a background."""
    if audit.noise is None:
        return
    own_data, *averaged = audit.row
    friends = max(averaged, key=lambda bias: bias.predictability)
    yield (
        f"From a person's own data the group {_guessed(own_data)}. From their neighbours' data it "
        f"{_guessed(friends)}."
    )


def averaging(audit: Audit) -> Iterator[str]:
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
        f"{_change(forecast.before, forecast.after)}. Measured: "
        f"{_measured(before, after, audit.noise)}."
    )
    difference = (forecast.after - forecast.before) - (after - before)
    if abs(difference) > max(2 * audit.noise, 0.1):
        yield (
            "The two differ because the theory assumes that neighbours share nothing but a group. "
            "Here they are alike in other ways, or averaged features reveal a node's position."
        )


def _measured(before: float, after: float, noise: float) -> str:
    """A change that exceeds what may be chance, or both figures."""
    min_change = max(noise, MIN_CHANGE)
    if abs(after - before) > min_change:
        return f"it {_change(before, after)}"
    return f"{points(before)} to {points(after)}; a change below {points(min_change)} may be chance"


def _change(before: float, after: float) -> str:
    text = "does not change the bias"
    if abs(after - before) > MIN_CHANGE:
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
            (low, lowest), (high, highest) = min(rates), max(rates)
            differences.append((high - low, audit.classes[k], highest, lowest))
    difference, label, highest, lowest = max(differences, default=(0.0, "", "", ""))
    if difference > MIN_BASE_RATE_GAP:
        yield (
            f"The label {label!r} is {points(difference)} points more frequent in {highest!r} than "
            f"in {lowest!r}: even a perfect classifier has that gap, so demographic parity costs "
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

"""An :class:`~fairmp.training.explanation.Explanation` as text, HTML and plot; typical people."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fairmp.report.content import Section
from fairmp.report.figures import figure
from fairmp.report.formats import aligned, to_html

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from fairmp.training.explanation import Explanation

MAX_GROUPS = 4  # of which a typical person is shown
STAGES = ("own data", "with neighbours", "corrected")


def text(explanation: Explanation) -> str:
    """A row per stage: what it changed, the logit and probability after it, and the decision."""
    return "\n".join([_title(explanation), *aligned(_rows(explanation))])


def html(explanation: Explanation) -> str:
    """The same as a table."""
    return to_html(_title(explanation), [_rows(explanation)], ())


def plot(explanation: Explanation, ax: Axes | None = None) -> Axes:
    """Draw what each stage changed, one after the other."""
    if ax is None:
        ax = figure(6.0, 2.2, interactive=True)[1]
    parts = [explanation.own, explanation.neighbours, explanation.correction]
    starts = np.concatenate([[0.0], np.cumsum(parts[:-1])])
    ax.barh(STAGES, parts, left=starts, color=["C0", "C1", "C2"])
    ax.axvline(0, color="black", linewidth=0.8)
    ax.invert_yaxis()
    ax.set_xlabel(f"logit of {explanation.class_name!r}")
    return ax


def _title(explanation: Explanation) -> str:
    return f"logit of {explanation.class_name!r}, stage by stage"


def _rows(explanation: Explanation) -> list[list[str]]:
    rows, total = [["", "change", "logit", "probability", "decision"]], 0.0
    parts = (explanation.own, explanation.neighbours, explanation.correction)
    for stage, part, decision in zip(STAGES, parts, explanation.decisions, strict=True):
        total += part
        change = "" if stage == STAGES[0] else signed(part)
        rows.append([stage, change, signed(total), f"{100 * _probability(total):.1f} %", decision])
    return rows


def signed(value: float) -> str:
    """A number with its sign, two decimals."""
    return f"{value:+.2f}".replace("-", "−")


def _probability(logit: float) -> float:
    return 1 / (1 + math.exp(-logit))


def typical_people(
    people: Sequence[Explanation], groups: np.ndarray, names: Sequence[str]
) -> Section | None:
    """Explain a few of the test nodes, who stay nameless.

    Of each group the one in the middle is shown, and one of those whose decision the neighbours
    and the correction changed.

    Args:
        people: explanations of the nodes.
        groups: their groups (n), −1 where unknown.
        names: of the groups.
    """
    chosen = dict.fromkeys(_middle_of_groups(people, groups, len(names)), "typical")
    for stage, words in ((1, "neighbours decide"), (2, "correction decides")):
        changed = [
            k
            for k, person in enumerate(people)
            if person.decisions[stage] != person.decisions[stage - 1] and groups[k] >= 0
        ]
        if changed:
            size = [abs((people[k].neighbours, people[k].correction)[stage - 1]) for k in changed]
            chosen.setdefault(changed[int(np.argsort(size)[len(size) // 2])], words)
    if not chosen:
        return None
    rows = []
    for number, words in chosen.items():
        person = people[number]
        parts = (person.own, person.neighbours, person.correction, person.logit)
        decisions = " → ".join(person.decisions)
        rows.append([f"{names[groups[number]]}: {words}", *map(signed, parts), decisions])
    return Section(
        "Why these people?",
        text=[
            f"The logit of {people[0].class_name!r} is the sum of three parts: what a person's own "
            "data say, what the neighbours change, and what the correction between groups changes. "
            "Above 0 it is more likely than not."
            if len({person.class_name for person in people}) == 1
            else "The logit of the class that is decided is the sum of three parts: what a "
            "person's own data say, what the neighbours change, and what the correction changes."
        ],
        header=["", "own data", "neighbours", "correction", "logit", "decision at each stage"],
        rows=rows,
        caption="Test nodes: of each group the one in the middle, and one of those whose decision "
        "the neighbours or the correction changed by a typical amount.",
    )


def _middle_of_groups(
    people: Sequence[Explanation], groups: np.ndarray, num_groups: int
) -> list[int]:
    """The node with the median logit in each of the largest groups."""
    logits = np.array([person.logit for person in people])
    sizes = np.bincount(groups[groups >= 0], minlength=num_groups)
    largest = sorted(np.argsort(-sizes, kind="stable")[:MAX_GROUPS])
    middle = []
    for group in largest:
        members = np.flatnonzero(groups == group)
        if len(members):
            middle.append(int(members[np.argsort(logits[members])[len(members) // 2]]))
    return middle

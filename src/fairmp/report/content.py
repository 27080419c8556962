"""What a report contains, as plain data: a document of results, and the sections of a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict

Ends = list[float | None] | None
"""An interval, as fractions."""


class Card(NamedTuple):
    """A key figure: label, value, and a note on its uncertainty."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class LivePanel:
    """A slider over targets and a switch of criteria, and a table that says the same."""

    criteria: Sequence[str]  # titles of the switch
    start: int  # the criterion that is chosen first
    json: str  # a PanelRecord and the noun, for the script
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Section:
    """A section of a page: text, a figure, a table; all but the figure's markup is escaped.

    Example:
        >>> from fairmp.report import page
        >>> rows = [["f", "31 %"], ["m", "33 %"]]
        >>> groups = Section("Groups", header=["group", "hired"], rows=rows)
        >>> text = page("Who is hired", "Rates are two points apart.", [groups])
        >>> [cell for cell in ("Groups", "31 %", "33 %") if cell in text]
        ['Groups', '31 %', '33 %']
    """

    title: str
    text: Sequence[str] = ()  # paragraphs
    header: Sequence[str] = ()  # column titles of a table
    rows: Sequence[Sequence[str]] = ()  # the first cell names the row
    svg: str = ""  # a figure, from fairmp.report.figures
    on_white: bool = False  # whether the figure has parts that need a white background
    caption: str = ""
    code: str = ""  # preformatted text, such as a command
    bullets: Sequence[str] = ()  # a list below the paragraphs
    alt: str = ""  # text alternative of the figure; by default the caption, or the title
    more: str = ""  # preformatted details, collapsed, and omitted in print
    chapter: bool = False  # whether the heading is one level above the others
    definitions: Sequence[str] = ()  # of the figures, collapsed
    appendix: bool = False  # for specialists: at the end of the page, collapsed
    flags: Sequence[str] = ()  # warnings
    cards: Sequence[Card] = ()
    panel: LivePanel | None = None


class HomophilySummary(TypedDict):
    """Share of edges within a group."""

    raw: float | None
    chance: float | None  # expected by chance


class GraphGroup(TypedDict):
    """A group of a graph, before any model."""

    name: str
    nodes: int
    share: float | None
    labelled: int
    base_rates: Sequence[float] | None  # by class
    mean_degree: float
    median_degree: float
    isolated: int
    inside: float | None  # share of the neighbours that are in the group


class GraphSummary(TypedDict):
    """A graph before any model, from an audit's record (:meth:`fairmp.Audit.to_dict`)."""

    name: str
    nodes: int
    edges: int
    average_degree: float
    homophily: HomophilySummary
    classes: Sequence[str]
    groups: Sequence[GraphGroup]
    verdict: Sequence[str]


class GroupSummary(TypedDict, total=False):
    """Decisions for one group; shares by class."""

    name: str
    known: bool  # false for the nodes of unknown group; true by default
    nodes: int
    labelled: int
    before: list[float | None] | None
    after: list[float | None]
    changed: int | None  # decisions
    moves: list[list[int]]  # [class before, class after, nodes] of the changed decisions
    accuracy: float | None
    tpr: dict[str, list[float | None]]  # "before" and "after", by class
    fpr: dict[str, list[float | None]]
    paid: list[int]  # lost, of them with the label, gained, of them without it
    turned: list[int]  # with more than two classes: right before and wrong now, and the reverse
    ppv: float | None  # share of the positive decisions whose label is positive
    positives: int  # nodes whose label is the second of two classes
    true_positives: int  # those of them with that decision


class Metric(TypedDict, total=False):
    """A metric before and after, as fractions, with intervals where known."""

    key: str  # of fairmp.metrics.METRICS; absent for a gap of one of several attributes
    name: str
    label: str  # of its card
    meaning: str
    unit: str  # "%", "points" or "ratio"
    target: float | None
    before: float | None
    after: float | None
    before_interval: Ends
    after_interval: Ends


class Point(TypedDict, total=False):
    """A point of the trade-off; ``kind`` is "before", "chosen" or "other".

    Example:
        >>> from fairmp import evaluate
        >>> from fairmp.report.evaluations import point
        >>> hired = ["yes", "no", "yes", "yes"]
        >>> result = evaluate(hired, hired, sensitive_features=["f", "f", "m", "m"], bootstrap=0)
        >>> point("as decided", "before", result)
        {'name': 'as decided', 'kind': 'before', 'accuracy': 1.0, 'gap': 0.5,
         'accuracy_interval': None, 'gap_interval': None}
    """

    name: str
    kind: str
    accuracy: float
    gap: float
    accuracy_interval: Ends
    gap_interval: Ends


class PanelFigures(TypedDict, total=False):
    """Decisions before a correction, or after it for one target; gaps by their key."""

    accuracy: float | None
    dp: float
    eo: float
    fpr: float
    odds: float
    rates: list[list[float]]  # by group and class
    target: float
    changed: list[int]  # decisions, by group
    total: int  # of changed decisions


class PanelCriterion(TypedDict, total=False):
    """What each target would do for one criterion."""

    name: str
    title: str
    gap: str  # key of its gap
    command: str  # with {target} in place of the target; empty if there is none
    start: int  # the step that is shown first
    steps: list[PanelFigures]


class PanelRecord(TypedDict, total=False):
    """What each target and criterion would do (:func:`fairmp.report.panel.panel`)."""

    classes: list[str]
    groups: list[str]
    nodes: list[int]
    total: int
    before: PanelFigures
    start: int  # the criterion that is shown first
    criteria: list[PanelCriterion]


class Reliability(TypedDict):
    """A :class:`~fairmp.metrics.ReliabilityCurve` of one group, and its error."""

    group: str
    predicted: Sequence[float]
    observed: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    counts: Sequence[int]
    error: float


class Document(TypedDict, total=False):
    """Content of a report; every part but the title is optional.

    Plain data but for the sections, which ``report.json`` has as dictionaries.

    Example:
        >>> from fairmp import evaluate
        >>> from fairmp.report.document import summary
        >>> from fairmp.report.evaluations import from_evaluations
        >>> hired = ["yes", "no", "yes", "yes"] * 10
        >>> result = evaluate(hired, hired, sensitive_features=["f", "f", "m", "m"] * 10)
        >>> document: Document = {"title": "Who is hired", **from_evaluations(result)}
        >>> print(summary(document))
        'f' gets 'yes' 50 times in 100, 'm' 100 times. Accuracy is 100.0 %.
    """

    title: str
    describes_model: bool  # whether a model card can be made from it; true by default
    summary: str  # the main result; by default derived from the metrics
    flags: list[str]  # warnings for the headline
    checks: list[str]  # what to look at before the model is used
    held: str  # what the model's folder holds of single people
    sample: str  # which splits the figures are of, as in "split 1 of 3"
    date: str
    noun: str  # what the nodes are, in the plural; "people" by default
    graph: GraphSummary
    picture: str  # name of an SVG file of the graph, in the report's directory
    picture_note: str  # what it shows
    classes: list[str]
    groups: list[GroupSummary]
    unknown_groups: int  # people who are in none of the groups
    changed: list[int]  # changed decisions, and all, if not the sums over groups
    measured: str  # description of the evaluated nodes
    correction: str  # the difference between before and after
    metrics: list[Metric]
    curve: list[Point]  # the trade-off, from the fairest point on
    curve_label: str
    curve_note: str
    bars: str  # what those of the trade-off are, if not intervals
    trials: list[Point]  # of a search
    gap: str  # name of the gap; "ΔDP" by default
    points: list[Point]  # other points of the trade-off
    target: float | None  # the largest gap that was requested
    lines: Section  # table of runs
    panel: PanelRecord | None
    reliability: list[Reliability]  # by group
    extra: list[Section]  # further ones
    notes: list[str]  # remarks on the figures
    assumptions: list[str]
    read: list[str]  # messages of the loader
    command: str  # that reproduces the result
    setting: dict[str, Any]  # the full configuration
    versions: dict[str, str]

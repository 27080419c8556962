"""The audit: everything measured on a graph, in one record."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from torch_geometric.data import Data

from fairmp.analysis.audits.counts import Group, Homophily, cleaned, groups, homophily
from fairmp.analysis.audits.forecast import Forecast, forecast
from fairmp.analysis.audits.steps import SMALLEST, Reading, halves, made_up, readings, standardised
from fairmp.datasets.statistics import statistics
from fairmp.errors import InputError
from fairmp.graph import normalise

if TYPE_CHECKING:
    from fairmp.report import Section

COLUMNS = 64
"""Made-up columns at most: enough to see what a topology gives away, on a graph of any width."""


@dataclass(frozen=True)
class Audit:
    """What a graph's topology does to its groups; ``print`` it, or take ``to_dict()``.

    Shares and rates are fractions in [0, 1]; the text prints per cent and points.

    Attributes:
        name: the graph.
        nodes: its nodes.
        edges: its undirected edges; ``directed_edges`` counts both directions.
        directed_edges: twice that.
        features: columns a node.
        constant_features: those with one value only, which tell nothing and are left out below.
        labelled: nodes with a label.
        classes: their names.
        unknown_groups: nodes whose group is not known.
        unknown_edges: share of the edges with at least one such end.
        density: ρ, the share of all pairs of nodes that are joined.
        average_degree: neighbours a node.
        homophily: ε, how often an edge stays inside a group, raw and adjusted for chance.
        label_homophily: share of edges that join the same label, unlabelled a class of its own.
        label_homophily_labelled: the same among the edges whose two ends are labelled.
        c: share of the second group among nodes of known group; None for more than two groups.
        groups: a row a group, and one for unknown where there are any.
        row: how far apart the groups' features are after 0…K steps of plain averaging. This is
            the headline: rows sum to 1, and it is what the theory speaks of.
        symmetric: the same after steps of Ã, as the layers here propagate.
        made_up: ``told_apart`` of as many made-up features (64 at most), which know nothing of the
            groups, after 0…K steps of plain averaging: what the topology does by itself.
        noise: two standard errors of ``told_apart``; a smaller change says nothing.
        forecast: what the theory predicts for one step.
        notes: what else a reader should know.
        seed: of the halves that ``told_apart`` was read on.
    """

    name: str
    nodes: int
    edges: int
    directed_edges: int
    features: int
    constant_features: int
    labelled: int
    classes: tuple[str, ...]
    unknown_groups: int
    unknown_edges: float | None
    density: float
    average_degree: float
    homophily: Homophily
    label_homophily: float | None
    label_homophily_labelled: float | None
    c: float | None
    groups: tuple[Group, ...]
    row: tuple[Reading, ...]
    symmetric: tuple[Reading, ...]
    made_up: tuple[float, ...]
    noise: float | None
    forecast: Forecast
    notes: tuple[str, ...]
    seed: int

    def verdict(self) -> list[str]:
        """Say what it means, a sentence or two a line."""
        from fairmp.analysis.audits.verdict import verdict

        return verdict(self)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data, for JSON."""
        return {**asdict(self), "verdict": self.verdict()}

    def sections(self) -> list[Section]:
        """Return the parts of an HTML page, for :func:`fairmp.report.page`."""
        from fairmp.analysis.audits.page import sections

        return sections(self)

    def __str__(self) -> str:
        from fairmp.analysis.audits.text import text

        return text(self)


def audit(data: Data, *, steps: int = 5, seed: int = 0) -> Audit:
    r"""Measure what a graph's topology does to its groups, before anything is trained.

    Homophily adjusted for chance is :math:`(\epsilon - \bar\epsilon)/(1 - \bar\epsilon)` with
    :math:`\bar\epsilon = \sum_g D_g^2/(2E)^2`, where :math:`D_g` is the sum of the degrees in group
    g. The features are standardised, columns with one value left out, and averaged over neighbours
    step by step; after each step the distance of the groups' means is read with the incidence,
    :math:`\lVert\Delta X\rVert`, and relative to the spread within the groups, as
    :math:`\sqrt{\delta^\top\Sigma^{-1}\delta}` and as what a linear rule tells apart. Columns that
    follow from each other do no harm: Σ gets a ridge of 0.01 of the columns' mean variance.

    Args:
        data: a graph with ``x``, ``edge_index`` and ``sens`` (−1: unknown); ``y`` if there is one.
            Any number of groups and classes.
        steps: how many steps of averaging to follow.
        seed: of the halves a rule is learned and read on.

    Raises:
        InputError: If the graph lacks something, or has fewer than two groups.

    Example:
        >>> from fairmp.datasets import social_network
        >>> found = audit(social_network(n=2000, average_degree=10))
        >>> found.nodes, round(found.homophily.adjusted, 2) > 0.8
        (2000, True)
        >>> found.row[0].told_apart < found.row[1].told_apart
        True
    """
    if steps < 1:
        raise InputError("steps", f"{steps} is too few", "give 1 or more")
    if seed < 0:
        raise InputError("seed", f"{seed} is negative", "give 0 or a positive integer")
    clean, notes = cleaned(data)
    table = statistics(clean)
    rows = groups(clean)
    known = [row for row in rows if row.share is not None]
    x, constant = standardised(clean.x)
    # One deal into halves is noisy on few nodes; several cost nothing there.
    deals = [
        halves(clean.sens, [seed, deal])
        for deal in range(max(1, min(10, 20_000 // clean.sens.numel())))
    ]
    adjacency = normalise(clean.edge_index, table.nodes)
    read = readings(x, adjacency, clean.sens, steps, deals)
    columns = min(x.size(1), COLUMNS)
    notes += list(_notes(known, constant, x.size(1)))
    ends = clean.sens[clean.edge_index]
    n = table.nodes
    return Audit(
        name=table.name,
        nodes=n,
        edges=table.edges // 2,
        directed_edges=table.edges,
        features=table.features,
        constant_features=constant,
        labelled=table.labelled or 0,
        classes=tuple(clean.class_names),
        unknown_groups=n - sum(row.nodes for row in known),
        unknown_edges=float((ends < 0).any(0).double().mean()) if table.edges else None,
        density=table.edges / (n * (n - 1)),
        average_degree=table.edges / n,
        homophily=homophily(clean.edge_index, clean.sens),
        label_homophily=table.label_homophily if table.labelled else None,
        label_homophily_labelled=table.label_homophily_labelled,
        c=known[1].share if len(known) == 2 else None,
        groups=rows,
        row=read["row"],
        symmetric=read["symmetric"],
        made_up=tuple(made_up(columns, adjacency, steps, deals, seed)) if columns else (),
        noise=_noise(known),
        forecast=forecast(x.numpy(), clean, deals),
        notes=tuple(notes),
        seed=seed,
    )


def _noise(known: list[Group]) -> float | None:
    """Two standard errors of a difference of two shares, at most, for the two smallest groups."""
    sizes = sorted(row.nodes for row in known if row.nodes >= SMALLEST)[:2]
    return 2 * math.sqrt(sum(0.25 / size for size in sizes)) if len(sizes) == 2 else None


def _notes(known: list[Group], constant: int, varied: int) -> Iterator[str]:
    if constant:
        yield f"{constant} of {constant + varied} feature columns have one value and are left out"
    small = [row for row in known if row.nodes < SMALLEST]
    if small:
        named = ", ".join(f"{row.name} ({row.nodes})" for row in small[:5])
        more = f" and {len(small) - 5} more" if len(small) > 5 else ""
        yield (
            f"groups of fewer than {SMALLEST} nodes are left out of separation, told apart and the "
            f"prediction: {named}{more}"
        )
    if len(known) > 2:
        yield "gaps are those of the two groups furthest apart"

"""What an audit returns."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from fairmp.display import Displayed
from fairmp.metrics.counts import rate_range, smallest_ratio
from fairmp.metrics.intervals import gap_interval, ratio_interval
from fairmp.report import audit_verdict


@dataclass(frozen=True)
class Group:
    """A sensitive group in the graph."""

    name: str
    nodes: int
    share: float | None  # of the nodes of known group; None for the nodes of unknown group
    labelled: int
    base_rates: tuple[float, ...] | None  # share of each class among the labelled nodes
    mean_degree: float
    median_degree: float
    isolated: int  # nodes without a neighbour
    inside: float | None  # share of the neighbours of known group that are in the same group


@dataclass(frozen=True)
class Homophily:
    """Share of edges within a group; None without edges, or with edges in one group only."""

    raw: float | None  # ε, among the edges between nodes of known group
    chance: float | None  # expected if edges were rewired at random with the same degrees
    adjusted: float | None  # (ε − chance)/(1 − chance): 0 by chance, 1 without crossing edges


@dataclass(frozen=True)
class Leak:
    """A feature column whose best threshold nearly equals the label or the group."""

    column: str
    of: Literal["label", "group"]
    value: str  # the class or group that the rule stands for
    rule: str  # such as "TIME > 0"
    agreement: float  # share of the known nodes on which the rule is right
    balanced: float  # mean share of the two sides on which it is right; 0.5 by chance
    most_frequent: float  # agreement of the constant answer


@dataclass(frozen=True)
class FeatureBias:
    """Bias of the features after averaging, for the most distinct two groups.

    Separation and predictability are cross-fitted on two halves of the nodes.
    """

    step: int  # number of averaging steps; 0 means the features themselves
    gap: float  # distance between the groups' means, in standard deviations of the input features
    chance: float  # expected gap of random groups of the same sizes
    separation: float  # distance between the means relative to the spread within groups, √(δᵀΣ⁻¹δ)
    predictability: float  # ΔDP, in [−1, 1], of a linear rule that predicts the group


@dataclass(frozen=True)
class LabelGap:
    """Largest difference of a class's base rate between two groups; nan if it is not known."""

    estimate: float
    interval: tuple[float, float] | None  # 95 %


@dataclass(frozen=True)
class Forecast:
    """Prediction for one averaging step from group sizes, edge probabilities and moments."""

    before: float | None  # group predictability of the features, assuming normality
    after: float | None  # the same after one step with row normalisation
    m: float | None = None  # δᵀΣ⁻¹δ; two groups only
    printed: float | None = None  # Theorem 2's condition: above 1 it claims that bias is added
    corrected: float | None = None  # the same, corrected for random neighbourhoods
    missing: str = ""  # reason why a value is None


@dataclass(frozen=True)
class GraphFacts:
    """The part of an audit that needs no averaging."""

    name: str
    nodes: int
    edges: int  # undirected
    average_degree: float
    homophily: Homophily
    classes: tuple[str, ...]
    groups: tuple[Group, ...]  # last the nodes of unknown group, if there are any
    leaks: tuple[Leak, ...]  # columns that give the label or the group away, the worst first


@dataclass(frozen=True, repr=False)
class Audit(
    GraphFacts,
    Displayed,
    renderer="fairmp.report.audits",
    summary=("name", "nodes", "edges", "homophily"),
):
    """Effect of a graph's topology on its groups; ``print`` it, or use ``to_dict()``.

    Shares and rates are fractions in [0, 1]; the text prints per cent and points, and ``plot`` the
    predictability of the group after each step of averaging.

    Example:
        >>> from fairmp import audit
        >>> from fairmp.datasets import social_network
        >>> found = audit(social_network(n=600, average_degree=8, base_rate_gap=0.2), steps=2)
        >>> [f"{group.name}: {group.base_rates[1]:.2f}" for group in found.groups]
        ['group 0: 0.40', 'group 1: 0.60']
        >>> found.verdict()[0].partition(":")[0]
        'Edges stay within groups'
    """

    __repr__ = Displayed.__repr__  # rather than that of the facts

    directed_edges: int
    features: int
    constant_features: int  # ignored below
    labelled: int
    unknown_groups: int  # nodes of unknown group
    unknown_edges: float | None  # share of the edges with such an end
    density: float  # ρ, the share of all pairs of nodes that are edges
    label_homophily: float | None  # unlabelled counts as a class
    label_homophily_labelled: float | None  # among edges between labelled nodes
    c: float | None  # share of the second of two groups among nodes of known group
    row: tuple[FeatureBias, ...]  # after 0…K steps with row normalisation, as in the theory
    symmetric: tuple[FeatureBias, ...]  # the same for Ã, which the layers use
    random_baseline: tuple[float, ...]  # predictability of random features after 0…K row steps
    noise: float | None  # two standard errors of the predictability
    forecast: Forecast
    notes: tuple[str, ...]
    seed: int  # of the halves that rules are fitted and evaluated on

    def label_gap(self) -> LabelGap:
        """The gap of the labels themselves, which a perfect classifier would have."""
        rates, sizes = self._base_rates()
        if len(rates) < 2:
            return LabelGap(math.nan, None)
        return LabelGap(float(rate_range(rates).max()), gap_interval(rates, sizes))

    def label_ratio(self) -> LabelGap:
        """The impact ratio of the labels themselves: smallest over largest base rate."""
        rates, sizes = self._base_rates()
        if len(rates) < 2:
            return LabelGap(math.nan, None)
        estimate = float(np.fmin.reduce(smallest_ratio(rates)))
        return LabelGap(estimate, ratio_interval(rates, sizes))

    def _base_rates(self) -> tuple[np.ndarray, np.ndarray]:
        """Base rates of the labelled groups, and the labels behind them."""
        groups = [g for g in self.groups if g.share is not None and g.base_rates is not None]
        classes = slice(1, 2) if len(self.classes) == 2 else slice(None)
        if len(groups) < 2:
            return np.empty((0, 1)), np.empty((0, 1))
        rates = np.array([g.base_rates for g in groups])[:, classes]
        labelled = np.array([[g.labelled] for g in groups], dtype=float)
        return rates, np.broadcast_to(labelled, rates.shape)

    def verdict(self) -> list[str]:
        """Conclusions, one or two sentences each."""
        return audit_verdict.verdict(self)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data, for JSON."""
        return {**asdict(self), "verdict": self.verdict()}

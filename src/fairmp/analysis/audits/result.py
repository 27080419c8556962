"""Result of an audit."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fairmp.analysis.audits import presentation
from fairmp.analysis.audits.facts import GraphFacts
from fairmp.analysis.audits.parts import FeatureBias, Forecast, LabelGap
from fairmp.metrics.counts import gap_interval, rate_range
from fairmp.report import Section


@dataclass(frozen=True)
class Audit(GraphFacts):
    """Effect of a graph's topology on its groups; ``print`` it, or use ``to_dict()``.

    Shares and rates are fractions in [0, 1]; the text prints per cent and points.
    """

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
        known = [g for g in self.groups if g.share is not None and g.base_rates is not None]
        if len(known) < 2:
            return LabelGap(math.nan, None)
        classes = slice(1, 2) if len(self.classes) == 2 else slice(None)
        rates = np.array([g.base_rates for g in known])[:, classes]
        sizes = np.broadcast_to(np.array([[g.labelled] for g in known], dtype=float), rates.shape)
        return LabelGap(float(rate_range(rates).max()), gap_interval(rates, sizes))

    def verdict(self) -> list[str]:
        """Conclusions, one or two sentences each."""
        return presentation.verdict(self)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data, for JSON."""
        return {**asdict(self), "verdict": self.verdict()}

    def sections(self) -> list[Section]:
        """Sections of the HTML page, for :func:`fairmp.report.page`."""
        return presentation.page_sections(self)

    def plot(self, ax: Any = None) -> Any:
        """Draw the group predictability after each step of averaging; return the axes.

        Args:
            ax: matplotlib axes to draw on; new ones by default.
        """
        return presentation.plot(self, ax)

    def _repr_html_(self) -> str:
        return presentation.to_notebook(self)

    def __str__(self) -> str:
        return presentation.to_text(self)

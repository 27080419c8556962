"""The result of post-processing: gaps before and after, changed decisions, estimates."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from fairmp.errors import check_choice, check_integer
from fairmp.metrics.counts import rate_range, ratio
from fairmp.metrics.evaluation import canonical, json_safe
from fairmp.report.figures import plot_rates
from fairmp.report.formats import aligned, points, to_html

OPENED = 0.02  # a gap that grows by more than this is reported in the headline


class ExpectedGap(NamedTuple):
    """Gap of decisions expected on a new batch: its mean, and the bound 95 % of batches keep."""

    mean: float
    high: float


@dataclass(frozen=True)
class UnlabelledEstimate:
    """A criterion on nodes without a label, estimated from calibrated probabilities."""

    nodes: int
    before: float  # nan where not reliable, like after
    after: float
    interval: tuple[float, float] | None  # 95 %, of after
    on_labelled: tuple[float, float]  # the same estimate on labelled nodes, before and after
    reliable: bool = True  # whether it agrees with what is measured there


@dataclass(frozen=True)
class CriterionResult:
    """A criterion before and after, in fractions: the largest gap over groups and classes."""

    criterion: str
    attribute: str  # name of the criterion for a matrix
    target: float  # nan where the criterion was not requested
    before: float  # gap of the probabilities, at the requested temperature
    after: float
    decisions_before: float
    decisions_after: float
    where: str  # the nodes it is measured on
    nodes: int  # number of these
    interval: tuple[float, float] | None = None  # 95 %, of after; for a sample of labelled nodes
    decisions_interval: tuple[float, float] | None = None  # 95 %, of decisions_after
    interval_before: tuple[float, float] | None = None  # 95 %, of decisions_before
    unlabelled: UnlabelledEstimate | None = None  # on the other nodes, if there are any

    @property
    def title(self) -> str:
        """Criterion and attribute as text."""
        name = self.criterion.replace("_", " ")
        return name if self.attribute in (self.criterion, "sens") else f"{name}, {self.attribute}"

    def notes(self) -> list[str]:
        """The interval on labelled nodes, and the estimate on the others."""
        found, there = [], self.unlabelled
        if self.interval is not None:
            ends = " to ".join(map(points, self.interval))
            found = [f"{points(self.after)} on the labelled nodes, 95 % interval {ends}"]
        if there is not None:
            where = f"on {there.nodes:,} unlabelled nodes"
            interval = f" [{', '.join(map(points, there.interval))}]" if there.interval else ""
            found.append(
                f"estimated {points(there.before)} before and {points(there.after)}{interval} "
                f"after {where}"
                if there.reliable
                else f"cannot be estimated {where}: the estimate disagrees with the labels where "
                "they are known"
            )
        return [f"{self.title}: {text}" for text in found]


@dataclass(frozen=True)
class GroupChange:
    """Predictions of one group (or "unknown") before and after; one rate per class."""

    attribute: str
    group: str
    nodes: int
    changed: int  # decisions
    decided_before: tuple[float, ...]  # P(ŷ=c)
    decided_after: tuple[float, ...]
    mean_before: tuple[float, ...]  # mean probability
    mean_after: tuple[float, ...]
    labelled: tuple[int, ...] = ()  # labelled nodes of each class; empty without labels
    tpr_before: tuple[float, ...] = ()  # P(ŷ=c | y=c); nan where undefined
    tpr_after: tuple[float, ...] = ()
    fpr_before: tuple[float, ...] = ()  # P(ŷ=c | y≠c)
    fpr_after: tuple[float, ...] = ()
    known: bool = field(default=True, kw_only=True)  # False for the nodes of unknown group


@dataclass(frozen=True)
class GroupUncertainty:
    """How much of an attribute is estimated rather than observed."""

    attribute: str
    nodes: int  # nodes of the population whose group is given by probabilities
    share: float  # of the population's weight
    by_group: dict[str, float]  # of each group's weight
    left_out: int  # nodes of unknown group, which are left alone
    accuracy: float = math.nan  # of the estimate on held-out known nodes; nan if none was made
    baseline: float = math.nan  # of the largest group alone

    def notes(self) -> list[str]:
        """What is unknown or estimated, and how well."""
        found = []
        if self.left_out:
            found.append(f"{self.left_out:,} nodes of unknown group are left alone")
        if self.nodes:
            shares = (f"{name} {100 * share:.0f} %" for name, share in self.by_group.items())
            found.append(
                f"the group of {100 * self.share:.1f} % of the population ({self.nodes:,} nodes) "
                f"is estimated rather than observed ({', '.join(shares)})"
            )
        if self.nodes and not math.isnan(self.accuracy):
            found.append(
                f"the estimate is right for {100 * self.accuracy:.1f} % of held-out known nodes, "
                f"the largest group alone for {100 * self.baseline:.1f} %"
            )
        return [f"{self.attribute}: {text}" for text in found]


@dataclass(frozen=True)
class DebiasResult:
    """Corrected predictions and their effect; ``print`` shows it in points (hundredths)."""

    predictions: Any = field(repr=False)  # corrected, in the type that was given
    classes: tuple[str, ...]  # names
    nodes: int  # nodes in the population
    changed: int  # changed decisions in the population
    changed_outside: int  # and outside it
    divergence: float  # KL(Q‖P), the mean over nodes
    labelled: int  # labelled nodes in the population
    accuracy_before: float  # on these, as given; nan without labels
    accuracy_after: float  # the same, corrected
    criteria: tuple[CriterionResult, ...]  # each requested criterion, by attribute
    groups: tuple[GroupChange, ...]  # the groups of each attribute
    others: tuple[CriterionResult, ...] = ()  # criteria that were not requested, for comparison
    group_uncertainty: tuple[GroupUncertainty, ...] = ()  # of unknown or estimated groups
    warnings: tuple[str, ...] = ()  # notes for the user
    drawn: int = 0  # nodes whose decision was drawn at random because their scores tie

    @property
    def opened(self) -> list[dict[str, Any]]:
        """Criteria whose gap of decisions grew by more than two points."""
        return [
            {"criterion": one.criterion, "attribute": one.attribute}
            | {"before": one.decisions_before, "after": one.decisions_after}
            for one in (*self.criteria, *self.others)
            if one.decisions_after - one.decisions_before > OPENED
        ]

    def expected_gap(
        self, m: int, criterion: str = "demographic_parity", *, draws: int = 2000, seed: int = 0
    ) -> ExpectedGap:
        """Gap of decisions to expect on m new people from sampling alone.

        Batches are drawn with the rates of this result, which are uncertain themselves. A gap
        within the bound is no sign that the correction failed.

        Args:
            m: size of the batch.
            criterion: ``"demographic_parity"``, ``"equal_opportunity"`` or ``"equalized_odds"``.
            draws: number of simulated batches.
            seed: of the simulation.
        """
        check_integer("m", m, "give the number of people in a batch")
        name = canonical(criterion)
        parity = name == "demographic_parity"
        if not parity:
            check_choice(
                "criterion", name, [one.criterion for one in (*self.criteria, *self.others)]
            )
        first = self.groups[0].attribute
        groups = [g for g in self.groups if g.attribute == first and g.known]
        used = slice(1, 2) if len(self.classes) == 2 else slice(None)
        nodes = np.array([[g.nodes if parity else sum(g.labelled)] for g in groups])
        rates = np.array([g.decided_after if parity else g.tpr_after for g in groups])[:, used]
        behind = np.broadcast_to(nodes, rates.shape)  # the nodes behind each rate
        if not parity:
            behind = np.array([g.labelled for g in groups])[:, used]
        if name == "equalized_odds":
            rates = np.hstack([rates, np.array([g.fpr_after for g in groups])[:, used]])
            behind = np.hstack([behind, nodes - behind])
        behind, rates = np.where(np.isnan(rates), 0, behind), np.nan_to_num(rates)
        rng = np.random.default_rng(seed)
        sizes = rng.binomial(m, np.minimum(behind / nodes.sum(), 1.0), (draws, *rates.shape))
        noise = rng.normal(size=sizes.shape) * np.sqrt(rates * (1 - rates) / behind.clip(1))
        hits = rng.binomial(sizes, np.clip(rates + noise, 0, 1))
        worst = np.nan_to_num(np.fmax.reduce(rate_range(ratio(hits, sizes)), -1))
        return ExpectedGap(float(worst.mean()), float(np.quantile(worst, 0.95)))

    def to_dict(self) -> dict[str, Any]:
        """Everything but the predictions as plain JSON values, with ``None`` for nan."""
        rest = asdict(replace(self, predictions=None))
        del rest["predictions"]
        return dict(json_safe({**rest, "opened": self.opened, "estimates": self._notes()}))

    def __str__(self) -> str:
        lines = [*self._head(), "", *aligned(self._criteria())]
        lines += ["", *aligned(self._groups())] if self.groups else []
        return "\n".join([*lines, *self._notes(), *(f"note: {text}" for text in self.warnings)])

    def _repr_html_(self) -> str:
        first, *more = self._head()
        tables = [self._criteria(), *[self._groups()] * bool(self.groups)]
        return to_html(first, tables, [*more, *self._notes(), *self.warnings])

    def _notes(self) -> list[str]:
        criteria = [note for one in self.criteria for note in one.notes()]
        return criteria + [note for one in self.group_uncertainty for note in one.notes()]

    def plot(self, ax: Any = None) -> Any:
        """Draw decisions for the last class by group, before and after; return the axes.

        Args:
            ax: matplotlib axes to draw on; new ones by default.
        """
        names, sizes = [g.group for g in self.groups], [g.nodes for g in self.groups]
        rates = {
            "before": [g.decided_before[-1] for g in self.groups],
            "after": [g.decided_after[-1] for g in self.groups],
        }
        ax = plot_rates(names, sizes, rates, f"decided {self.classes[-1]}, %", ax)
        ax.legend(frameon=False)
        return ax

    def _head(self) -> list[str]:
        share = 100 * self.changed / max(self.nodes, 1)
        plural = "s" * (self.changed != 1)
        first = f"{self.nodes:,} nodes: {self.changed:,} decision{plural} changed ({share:.1f} %)"
        if self.changed_outside:
            first += f", and {self.changed_outside:,} outside the population"
        if self.drawn:
            first += f"; {self.drawn:,} of tied scores drawn at random"
        worse = [
            f"WORSE: the gap of {one['criterion'].replace('_', ' ')} ({one['attribute']}) grew "
            f"from {points(one['before'])} to {points(one['after'])} points"
            for one in self.opened
        ]
        accuracy = (
            f"accuracy on {self.labelled:,} labelled nodes: {points(self.accuracy_before)} % "
            f"before, {points(self.accuracy_after)} % after"
        )
        return [first, *worse, *[accuracy] * bool(self.labelled)]

    def _criteria(self) -> list[list[str]]:
        rows = [["gap in points", "target", "before", "after", "decided before", "after", "nodes"]]
        for one in (*self.criteria, *self.others):
            numbers = [points(value, 2) for value in (one.target, one.before, one.after)]
            decided = [points(one.decisions_before), points(one.decisions_after)]
            labelled = one.criterion in ("equal_opportunity", "equalized_odds")
            rows.append([one.title, *numbers, *decided, f"{one.nodes:,}" + " labelled" * labelled])
        return rows

    def _groups(self) -> list[list[str]]:
        binary = len(self.classes) == 2
        shown = (1,) if binary else range(len(self.classes))
        rates = binary and any(group.labelled for group in self.groups)
        rows = [["group", "nodes", "changed", *(f"decided {self.classes[c]} %" for c in shown)]]
        rows[0] += ["TPR %", "FPR %"] * rates
        several = len({group.attribute for group in self.groups}) > 1
        for group in self.groups:
            name = f"{group.attribute}: {group.group}" if several else group.group
            share = 100 * group.changed / max(group.nodes, 1)
            pairs = [(group.decided_before[c], group.decided_after[c]) for c in shown]
            if rates:
                pairs.append((group.tpr_before[1], group.tpr_after[1]))
                pairs.append((group.fpr_before[1], group.fpr_after[1]))
            moves = [f"{points(before)} → {points(after)}" for before, after in pairs]
            rows.append([name, f"{group.nodes:,}", f"{group.changed:,} ({share:.1f} %)", *moves])
        return rows

"""The result of post-processing: gaps before and after, changed decisions, estimates."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from fairmp.display import Displayed
from fairmp.errors import check_choice, check_integer
from fairmp.metrics.counts import GroupRates, rate_range, ratio, smallest_ratio
from fairmp.metrics.direction import Lead, NamedRates, Reversal, reversal
from fairmp.metrics.evaluation import CRITERIA, canonical, json_safe
from fairmp.metrics.intervals import ratio_interval

OPENED = 0.02  # a gap that grows by more than this is reported in the headline


class ExpectedGap(NamedTuple):
    """Gap of decisions expected on a new batch: its mean, and the bound 95 % of batches keep."""

    mean: float
    high: float


class ImpactRatio(NamedTuple):
    """Smallest over largest rate of positive decisions, and its 95 % interval."""

    estimate: float
    interval: tuple[float, float]


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
    attribute: str
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
    ppv_before: tuple[float, ...] = ()  # P(y=c | ŷ=c)
    ppv_after: tuple[float, ...] = ()
    paid: tuple[int, ...] = ()  # of two classes: lost, of them with label 1, gained, without it
    turned: tuple[int, ...] = ()  # of more: right before and wrong now, and the reverse
    known: bool = field(default=True, kw_only=True)  # False for the nodes of unknown group


@dataclass(frozen=True)
class FurtherMetric:
    """A metric of decisions that has no target, before and after, as fractions."""

    key: str  # "impact_ratio" or "ppv", of fairmp.metrics.METRICS
    attribute: str
    before: float
    after: float
    interval: tuple[float, float] | None = None  # 95 %, of after


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


@dataclass(frozen=True, repr=False)
class DebiasResult(
    Displayed,
    renderer="fairmp.report.corrections",
    summary=("on", "nodes", "changed", "gaps"),
):
    """Corrected predictions and their effect.

    ``print`` shows it in points (hundredths), and ``plot`` the decisions by group.

    Example:
        >>> from fairmp import debias
        >>> hired = [0.9, 0.8, 0.7, 0.6, 0.7, 0.4, 0.3, 0.2]
        >>> result = debias(hired, list("mmmmffff"), target=0.0, full_output=True)
        >>> result
        DebiasResult(on='decisions', nodes=8, changed=3, gaps={'demographic_parity': 0})
        >>> result.changed, [f"{group.group}: {group.decided_after[1]}" for group in result.groups]
        (3, ['f: 0.5', 'm: 0.5'])
        >>> for criterion in result.criteria:
        ...     gaps = criterion.decisions_before, criterion.decisions_after
        ...     print(f"{criterion.criterion}: gap {gaps[0]} before, {gaps[1]} after")
        demographic_parity: gap 0.75 before, 0.0 after
    """

    predictions: Any  # corrected, in the type that was given
    on: str  # "decisions" or "probabilities": what the targets are about
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
    def gaps(self) -> dict[str, float]:
        """Gap of the corrected decisions of each requested criterion; the largest attribute's."""
        largest: dict[str, float] = {}
        for each in self.criteria:
            largest[each.criterion] = max(each.decisions_after, largest.get(each.criterion, 0.0))
        return largest

    @property
    def opened(self) -> list[dict[str, Any]]:
        """Criteria whose gap of decisions grew by more than two points."""
        return [
            {"criterion": criterion.criterion, "attribute": criterion.attribute}
            | {"before": criterion.decisions_before, "after": criterion.decisions_after}
            for criterion in (*self.criteria, *self.others)
            if criterion.decisions_after - criterion.decisions_before > OPENED
        ]

    def _named_rates(self, attribute: str, moment: str) -> NamedRates:
        """Rates of the known groups of an attribute; ``moment`` is "before" or "after"."""
        groups = [g for g in self.groups if g.attribute == attribute and g.known]
        undefined = (math.nan,) * len(self.classes)
        rates = GroupRates(
            *(
                np.array([getattr(g, f"{name}_{moment}") or undefined for g in groups])
                for name in ("decided", "tpr", "fpr")
            )
        )
        return NamedRates(rates, [g.group for g in groups], self.classes)

    def one_node(self, criterion: CriterionResult) -> float:
        """What one node of the smallest group adds to a gap of decisions that was closed."""
        if self.on != "decisions" or math.isnan(criterion.target):
            return 0.0
        groups = [g for g in self.groups if g.attribute == criterion.attribute and g.known]
        sizes = [g.nodes for g in groups]
        if criterion.criterion != "demographic_parity":
            sizes = [n for g in groups for n in _nodes_behind(criterion.criterion, g.labelled)]
        return 1 / min((n for n in sizes if n), default=1)

    def lead_before(self, criterion: CriterionResult) -> Lead | None:
        """Who was ahead in the decisions of a criterion before the correction."""
        return self._named_rates(criterion.attribute, "before").lead(CRITERIA[criterion.criterion])

    def lead_after(self, criterion: CriterionResult) -> Lead | None:
        """Who is ahead in the decisions of a criterion after the correction."""
        return self._named_rates(criterion.attribute, "after").lead(CRITERIA[criterion.criterion])

    def changed_sides(self, criterion: CriterionResult) -> bool:
        """Whether the group that was behind in a criterion is ahead now, by over two points."""
        return self.reversal(criterion) is not None

    def reversal(self, criterion: CriterionResult) -> Reversal | None:
        """The two groups that changed sides in a criterion, if any did, by over two points."""
        before, after = (
            self._named_rates(criterion.attribute, moment) for moment in ("before", "after")
        )
        return reversal(CRITERIA[criterion.criterion], before, after)

    def impact_ratio(self) -> ImpactRatio:
        """Smallest over largest rate of the positive decision after the correction.

        Of several attributes the smallest ratio, and of more than two classes that of a class.
        """
        ratios = [metric for metric in self.further_metrics() if metric.key == "impact_ratio"]
        smallest = min(ratios, key=lambda metric: metric.after, default=None)
        if smallest is None or smallest.interval is None:
            return ImpactRatio(math.nan, (math.nan, math.nan))
        return ImpactRatio(smallest.after, smallest.interval)

    def further_metrics(self) -> list[FurtherMetric]:
        """The impact ratio and, with labels, the gap in precision, of each attribute."""
        shown = slice(1, 2) if len(self.classes) == 2 else slice(None)
        metrics = []
        for attribute in dict.fromkeys(group.attribute for group in self.groups):
            groups = [g for g in self.groups if g.attribute == attribute and g.known and g.nodes]
            if len(groups) < 2:
                continue
            decided = [
                np.array([rates[shown] for rates in by_group])
                for by_group in (
                    [g.decided_before for g in groups],
                    [g.decided_after for g in groups],
                )
            ]
            before, after = (float(np.fmin.reduce(smallest_ratio(rates))) for rates in decided)
            if not math.isnan(after):
                interval = ratio_interval(decided[1], np.array([[g.nodes] for g in groups]))
                metrics.append(FurtherMetric("impact_ratio", attribute, before, after, interval))
            if all(g.ppv_after for g in groups):
                precisions = [
                    np.array([g.ppv_before[shown] for g in groups]),
                    np.array([g.ppv_after[shown] for g in groups]),
                ]
                before, after = (float(np.fmax.reduce(rate_range(p))) for p in precisions)
                if not math.isnan(after):
                    metrics.append(FurtherMetric("ppv", attribute, before, after))
        return metrics

    def expected_gap(
        self, m: int, criterion: str = "demographic_parity", *, draws: int = 2000, seed: int = 0
    ) -> ExpectedGap:
        """Gap of decisions to expect on m new people from sampling alone.

        Batches are drawn with the rates of this result, which are uncertain themselves. A gap
        within the bound is no sign that the correction failed.

        Args:
            m: size of the batch.
            criterion: any that was measured, ``"demographic_parity"`` by default.
            draws: number of simulated batches.
            seed: of the simulation.
        """
        check_integer("m", m, "give the number of people in a batch")
        rates, behind, total = self._rates(canonical(criterion))
        behind, rates = np.where(np.isnan(rates), 0, behind), np.nan_to_num(rates)
        rng = np.random.default_rng(seed)
        sizes = rng.binomial(m, np.minimum(behind / total, 1.0), (draws, *rates.shape))
        noise = rng.normal(size=sizes.shape) * np.sqrt(rates * (1 - rates) / behind.clip(1))
        hits = rng.binomial(sizes, np.clip(rates + noise, 0, 1))
        worst = np.nan_to_num(np.fmax.reduce(rate_range(ratio(hits, sizes)), -1))
        return ExpectedGap(float(worst.mean()), float(np.quantile(worst, 0.95)))

    def _rates(self, criterion: str) -> tuple[np.ndarray, np.ndarray, int]:
        """Rates of a criterion by group of the first attribute, the nodes behind, and all nodes."""
        first = self.groups[0].attribute
        groups = [g for g in self.groups if g.attribute == first and g.known]
        shown = slice(1, 2) if len(self.classes) == 2 else slice(None)
        if criterion == "demographic_parity":
            rates = np.array([g.decided_after for g in groups])[:, shown]
            nodes = np.array([[g.nodes] for g in groups])
            return rates, np.broadcast_to(nodes, rates.shape), int(nodes.sum())
        measured = [result.criterion for result in (*self.criteria, *self.others)]
        check_choice("criterion", criterion, measured)
        labelled = np.array([g.labelled for g in groups])
        nodes, behind = labelled.sum(1, keepdims=True), labelled[:, shown]
        recall = np.array([g.tpr_after for g in groups])[:, shown]
        fallout = np.array([g.fpr_after for g in groups])[:, shown]
        by_criterion = {
            "equal_opportunity": (recall, behind),
            "false_positive_rate_parity": (fallout, nodes - behind),
            "equalized_odds": (
                np.hstack([recall, fallout]),
                np.hstack([behind, nodes - behind]),
            ),
        }
        return (*by_criterion[criterion], int(nodes.sum()))

    def to_dict(self) -> dict[str, Any]:
        """Everything but the predictions as plain JSON values, with ``None`` for nan."""
        numbers = asdict(replace(self, predictions=None))
        del numbers["predictions"]
        further = [asdict(metric) for metric in self.further_metrics()]
        return dict(json_safe({**numbers, "opened": self.opened, "further": further}))


def _nodes_behind(criterion: str, labelled: tuple[int, ...]) -> tuple[int, ...]:
    """Labelled nodes behind the rates of a criterion, from those of each class."""
    others = tuple(sum(labelled) - n for n in labelled)
    shown = slice(1, 2) if len(labelled) == 2 else slice(None)
    if criterion == "equal_opportunity":
        return labelled[shown]
    if criterion == "false_positive_rate_parity":
        return others[shown]
    return labelled + others

"""The result of post-processing: gaps before and after, changed decisions, estimates."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np

from fairmp.errors import check_choice, check_integer
from fairmp.metrics.formatting import aligned, json_safe, points

OPENED = 0.02  # a gap that grows by more than this is reported in the headline


class ExpectedGap(NamedTuple):
    """Gap of decisions expected on a new batch: its mean, and the bound 95 % of batches keep."""

    mean: float
    high: float


@dataclass(frozen=True)
class UnlabelledEstimate:
    """A criterion on nodes without a label, estimated from calibrated probabilities.

    ``on_labelled`` is the same estimate on the labelled nodes, before and after. Where it disagrees
    with what is measured there, the estimate is not ``reliable`` and the gaps are nan.
    """

    nodes: int
    before: float
    after: float
    interval: tuple[float, float] | None  # 95 %, of after
    on_labelled: tuple[float, float]
    reliable: bool = True


@dataclass(frozen=True)
class CriterionResult:
    """A criterion before and after, in fractions: the largest gap over groups and classes.

    ``interval`` takes the labelled nodes as a sample; it is ``None`` where the gap is measured on
    the whole population.
    """

    criterion: str
    attribute: str  # name of the criterion for a matrix
    target: float  # nan where the criterion was not requested
    before: float  # gap of the probabilities, at the requested temperature
    after: float
    decisions_before: float
    decisions_after: float
    where: str  # the nodes it is measured on
    nodes: int  # number of these
    interval: tuple[float, float] | None = None  # 95 %, of after
    unlabelled: UnlabelledEstimate | None = None

    @property
    def title(self) -> str:
        """Criterion and attribute as text."""
        name = self.criterion.replace("_", " ")
        return name if self.attribute in (self.criterion, "sens") else f"{name}, {self.attribute}"


@dataclass(frozen=True)
class GroupChange:
    """Predictions of one group in the population before and after; one rate per class.

    ``group`` is ``"unknown"`` for nodes of unknown group. Where groups are estimated, ``nodes`` and
    ``changed`` count the most probable group, and rates are weighted.
    """

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


@dataclass(frozen=True)
class GroupUncertainty:
    """How much of an attribute is estimated rather than observed.

    ``accuracy`` is that of the estimate on held-out known nodes (nan where the probabilities were
    given), ``baseline`` that of the largest group alone.
    """

    attribute: str
    nodes: int  # nodes of the population whose group is given by probabilities
    share: float  # of the population's weight
    by_group: dict[str, float]  # of each group's weight
    left_out: int  # nodes of unknown group, which are left alone
    accuracy: float = math.nan
    baseline: float = math.nan


@dataclass(frozen=True)
class DebiasResult:
    """Corrected predictions and their effect; ``print`` shows it in points (hundredths).

    Attributes:
        predictions: corrected, in the type that was given.
        classes: names of the classes.
        nodes: nodes in the population.
        changed: changed decisions in the population.
        changed_outside: changed decisions outside it.
        divergence: KL(Q‖P), the mean over nodes.
        labelled: labelled nodes in the population.
        accuracy_before: accuracy on these as given; nan without labels.
        accuracy_after: the same, corrected.
        criteria: each requested criterion, by attribute.
        others: criteria that were not requested, measured for comparison.
        groups: the groups of each attribute.
        group_uncertainty: attributes with nodes of unknown or estimated group.
        warnings: notes for the user.
        drawn: nodes whose decision was drawn at random because their scores tie.
    """

    predictions: Any = field(repr=False)
    classes: tuple[str, ...]
    nodes: int
    changed: int
    changed_outside: int
    divergence: float
    labelled: int
    accuracy_before: float
    accuracy_after: float
    criteria: tuple[CriterionResult, ...]
    groups: tuple[GroupChange, ...]
    others: tuple[CriterionResult, ...] = ()
    group_uncertainty: tuple[GroupUncertainty, ...] = ()
    warnings: tuple[str, ...] = ()
    drawn: int = 0

    @property
    def opened(self) -> list[dict[str, Any]]:
        """Criteria whose gap of decisions grew by more than two points."""
        return [
            {
                "criterion": one.criterion,
                "attribute": one.attribute,
                "before": one.decisions_before,
                "after": one.decisions_after,
            }
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
        from fairmp.postprocessing.criteria import NAMES, canonical

        check_integer("m", m, "give the number of people in a batch")
        name = check_choice("criterion", canonical(criterion), NAMES)
        if name != "demographic_parity":
            check_choice(
                "criterion", name, [one.criterion for one in (*self.criteria, *self.others)]
            )
        first = self.groups[0].attribute
        groups = [g for g in self.groups if g.attribute == first and g.group != "unknown"]
        rng = np.random.default_rng(seed)
        gaps = [np.zeros(draws)]
        for rates, counts, total in _families(groups, name):
            sizes = rng.binomial(m, np.minimum(counts / total, 1.0), (draws, len(rates)))
            noise = rng.normal(size=sizes.shape) * np.sqrt(rates * (1 - rates) / counts.clip(1))
            hits = rng.binomial(sizes, np.clip(rates + noise, 0, 1))
            share = np.divide(hits, sizes, out=np.full(sizes.shape, np.nan), where=sizes > 0)
            there = ~np.isnan(share)
            high = np.where(there, share, -1).max(1)
            gaps.append(np.where(there.sum(1) > 1, high - np.where(there, share, 2).min(1), 0.0))
        worst = np.max(gaps, axis=0)
        return ExpectedGap(float(worst.mean()), float(np.quantile(worst, 0.95)))

    def to_dict(self) -> dict[str, Any]:
        """Everything but the predictions as plain JSON values, with ``None`` for nan."""
        rest = {key: value for key, value in vars(self).items() if key != "predictions"}
        for key in ("criteria", "others", "groups", "group_uncertainty"):
            rest[key] = [asdict(item) for item in rest[key]]
        return dict(json_safe({**rest, "opened": self.opened}))

    def __str__(self) -> str:
        return "\n".join(
            [
                *self._head(),
                "",
                *aligned(self._criteria()),
                *self._estimates(),
                *(["", *aligned(self._groups())] if self.groups else []),
                *self._uncertainty(),
                *(f"note: {warning}" for warning in self.warnings),
            ]
        )

    def _head(self) -> list[str]:
        share = 100 * self.changed / max(self.nodes, 1)
        plural = "s" * (self.changed != 1)
        lines = [f"{self.nodes:,} nodes: {self.changed:,} decision{plural} changed ({share:.1f} %)"]
        if self.changed_outside:
            lines[0] += f", and {self.changed_outside:,} outside the population"
        if self.drawn:
            lines[0] += f"; {self.drawn:,} of tied scores drawn at random"
        lines += [
            f"WORSE: the gap of {one['criterion'].replace('_', ' ')} ({one['attribute']}) grew "
            f"from {points(one['before'])} to {points(one['after'])} points"
            for one in self.opened
        ]
        if self.labelled:
            lines.append(
                f"accuracy on {self.labelled:,} labelled nodes: {points(self.accuracy_before)} % "
                f"before, {points(self.accuracy_after)} % after"
            )
        return lines

    def _criteria(self) -> list[list[str]]:
        rows = [["gap in points", "target", "before", "after", "decided before", "after", "nodes"]]
        for one in (*self.criteria, *self.others):
            numbers = [points(value, 2) for value in (one.target, one.before, one.after)]
            decided = [points(one.decisions_before), points(one.decisions_after)]
            labelled = one.criterion in ("equal_opportunity", "equalized_odds")
            rows.append([one.title, *numbers, *decided, f"{one.nodes:,}" + " labelled" * labelled])
        return rows

    def _estimates(self) -> list[str]:
        lines = []
        for one in self.criteria:
            if one.interval is not None:
                low, high = map(points, one.interval)
                lines.append(
                    f"{one.title}: {points(one.after)} on the labelled nodes, 95 % interval "
                    f"{low} to {high}"
                )
            there = one.unlabelled
            if there is None or not there.nodes:
                continue
            if not there.reliable:
                lines.append(
                    f"{one.title}: cannot be estimated on {there.nodes:,} unlabelled nodes: "
                    "the estimate disagrees with the labels where they are known"
                )
                continue
            interval = ""
            if there.interval is not None:
                interval = " [{}, {}]".format(*map(points, there.interval))
            lines.append(
                f"{one.title}: estimated {points(there.before)} before and "
                f"{points(there.after)}{interval} after on {there.nodes:,} unlabelled nodes"
            )
        return lines

    def _groups(self) -> list[list[str]]:
        shown = range(len(self.classes)) if len(self.classes) > 2 else (1,)
        rows = [["group", "nodes", "changed", *(f"decided {self.classes[c]} %" for c in shown)]]
        rates = len(self.classes) == 2 and any(group.labelled for group in self.groups)
        rows[0] += ["TPR %", "FPR %"] * rates
        several = len({group.attribute for group in self.groups}) > 1
        for group in self.groups:
            name = f"{group.attribute}: {group.group}" if several else group.group
            share = 100 * group.changed / max(group.nodes, 1)
            pairs = [(group.decided_before[c], group.decided_after[c]) for c in shown]
            if rates:
                pairs += [(group.tpr_before[1], group.tpr_after[1])]
                pairs += [(group.fpr_before[1], group.fpr_after[1])]
            moves = [f"{points(before)} → {points(after)}" for before, after in pairs]
            rows.append([name, f"{group.nodes:,}", f"{group.changed:,} ({share:.1f} %)", *moves])
        return rows

    def _uncertainty(self) -> list[str]:
        lines = []
        for rest in self.group_uncertainty:
            if rest.left_out:
                lines.append(
                    f"{rest.attribute}: {rest.left_out:,} nodes of unknown group are left alone"
                )
            if not rest.nodes:
                continue
            shares = (f"{name} {100 * share:.0f} %" for name, share in rest.by_group.items())
            lines.append(
                f"{rest.attribute}: the group of {100 * rest.share:.1f} % of the population "
                f"({rest.nodes:,} nodes) is estimated rather than observed ({', '.join(shares)})"
            )
            if not math.isnan(rest.accuracy):
                lines.append(
                    f"{rest.attribute}: the estimate is right for {100 * rest.accuracy:.1f} % of "
                    f"held-out known nodes, the largest group alone for {100 * rest.baseline:.1f} %"
                )
        return lines


def _families(
    groups: list[GroupChange], criterion: str
) -> list[tuple[np.ndarray, np.ndarray, int]]:
    """Rates that a criterion compares, the nodes behind each, and how many nodes there are."""
    classes = (1,) if len(groups[0].decided_after) == 2 else range(len(groups[0].decided_after))
    parity = criterion == "demographic_parity"
    nodes = np.array([g.nodes if parity else sum(g.labelled) for g in groups])
    families = []
    for c in classes:
        if parity:
            families.append(([g.decided_after[c] for g in groups], nodes))
            continue
        positive = np.array([g.labelled[c] for g in groups])
        families.append(([g.tpr_after[c] for g in groups], positive))
        if criterion == "equalized_odds":
            families.append(([g.fpr_after[c] for g in groups], nodes - positive))
    kept = [(np.array(rates), counts, ~np.isnan(rates)) for rates, counts in families]
    return [(rates[mask], counts[mask], int(nodes.sum())) for rates, counts, mask in kept]

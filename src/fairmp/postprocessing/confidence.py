r"""A promise about new people: with some confidence, their gap is within the target.

Nothing is assumed about the scores, except that new people are drawn from the population that the
correction was found on.

**A threshold per group.** Above the (k+1)-th largest of n scores lies a share of the population
that is distributed as Beta(k+1, n−k), whatever the scores: exact. So is the distribution of the
largest difference between groups. Equal scores are ordered at random.

:mod:`fairmp.postprocessing.blind_confidence` makes promises about blind rules.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import betainc, betaln, roots_legendre, xlog1py, xlogy

from fairmp.errors import InputError, check_number, plural
from fairmp.metrics.evaluation import canonical
from fairmp.nn.cuts import Floats, Integers
from fairmp.nn.decisions import DecisionRule
from fairmp.schema import conform

THRESHOLD_CRITERIA = ("demographic_parity", "equal_opportunity")  # what thresholds can promise
BLIND_CRITERIA = (*THRESHOLD_CRITERIA, "false_positive_rate_parity", "equalized_odds")
PEOPLE = {
    "demographic_parity": "people",
    "equal_opportunity": "people of class 1",
    "false_positive_rate_parity": "people of class 0",
    "equalized_odds": "people of each true class",
}
CONFIDENCE_HINT = "give a number between 0.5 and 1, like 0.95"
MAX_PEOPLE = 10**9
WIDTH_STEPS = 8  # halvings in the search for the gap between thresholds
_POINTS, _WEIGHTS = roots_legendre(128)
NODES, WEIGHTS = (_POINTS + 1) / 2, _WEIGHTS / 2  # Gauss's quadrature of [0, 1]


@dataclass(frozen=True)
class Promise:
    """What is promised about new people of the same population.

    Attributes:
        criterion: ``"demographic_parity"`` for example.
        target: the largest gap of decisions that is promised.
        confidence: probability, over the people the correction was found on, that the promise is
            kept.
        bound: the gap that is kept with this confidence; at most the target.
        groups: names of the groups.
        people: how many of each the promise rests on; those of class 1 for equal opportunity, and
            those who tested the rule for a blind one.
    """

    criterion: str
    target: float
    confidence: float
    bound: float
    groups: tuple[str, ...]
    people: tuple[int, ...]

    def __str__(self) -> str:
        counts = ", ".join(
            f"{count:,} of {group}" for group, count in zip(self.groups, self.people, strict=True)
        )
        return (
            f"With {100 * self.confidence:g} % confidence, the groups of new "
            f"{PEOPLE[self.criterion]} are at most {100 * self.target:g} points apart "
            f"({100 * self.bound:.1f} by the bound). This rests on {counts}, and holds for people "
            "of the same population."
        )

    def to_dict(self) -> dict[str, Any]:
        """The promise as plain JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Promise:
        """Rebuild what :meth:`to_dict` described."""
        promise: Promise = conform(record, cls, "promise")
        shares = (promise.target, promise.confidence, promise.bound)
        counts = len(promise.people) == len(promise.groups) and min(promise.people, default=0) >= 0
        shares_are_valid = all(0 <= share <= 1 for share in shares)
        if promise.criterion not in BLIND_CRITERIA or not shares_are_valid or not counts:
            raise ValueError("the promise is none that can be made")
        return promise


def check_promise(
    criterion: str, target: float, confidence: float, criteria: Sequence[str] = THRESHOLD_CRITERIA
) -> str:
    """The canonical name of a criterion about which a promise can be made."""
    name = canonical(criterion)
    check_number("confidence", confidence, CONFIDENCE_HINT, low=0.5, high=1 - 1e-9)
    check_number("target", target, "give the largest gap you promise, above 0", low=0, high=1)
    if name not in criteria:
        hint = f"{{confidence}} is for {' and '.join(criteria)}"
        raise InputError("criterion", f"no promise about {name}", hint)
    if not target:
        raise InputError("target", "a gap of 0 cannot be promised", "give one above 0, like 0.05")
    return name


# Thresholds: exact order statistics.


def probability_within(selected: Sequence[int], people: Sequence[int], target: float) -> float:
    """Probability that shares Beta(k+1, n−k) of independent groups lie within a target.

    It is :math:`Σ_g ∫ f_g(x) Π_{h≠g} (F_h(x + t) − F_h(x)) dx`, where g has the smallest share x.

    Example:
        >>> round(probability_within([50, 50], [100, 100], 0.1), 3)
        0.846
    """
    k, n = np.asarray(selected, dtype=float), np.asarray(people, dtype=float)
    shape_a, shape_b = (k + 1)[:, None], np.maximum(n - k, 0.5)[:, None]
    total = 0.0
    for g in range(len(k)):
        others = np.arange(len(k)) != g
        x, weight = beta_quadrature(float(shape_a[g, 0]), float(shape_b[g, 0]))
        above = betainc(shape_a[others], shape_b[others], np.minimum(x + target, 1.0))
        below = betainc(shape_a[others], shape_b[others], x)
        total += float((above - below).prod(0) @ weight)
    return min(total, 1.0)


def beta_quadrature(shape_a: float, shape_b: float) -> tuple[Floats, Floats]:
    """Points and weights of the mean over a Beta distribution, which is at 0 where a is 0."""
    if shape_a <= 0:
        return np.zeros(1), np.ones(1)
    mean = shape_a / (shape_a + shape_b)
    spread = math.sqrt(mean * (1 - mean) / (shape_a + shape_b + 1))
    reach = max(10 * spread, 40 / (shape_a + shape_b))
    low, high = max(mean - reach, 0.0), min(mean + reach, 1.0)
    x = low + (high - low) * NODES
    log_density = xlogy(shape_a - 1, x) + xlog1py(shape_b - 1, -x) - betaln(shape_a, shape_b)
    return x, np.exp(log_density) * WEIGHTS * (high - low)


@dataclass(frozen=True)
class CertifiedThresholds:
    """A threshold per group, and the promise about it."""

    rule: DecisionRule
    promise: Promise


def certify_thresholds(
    margin: Floats,
    group: Integers,
    y: Integers | None = None,
    *,
    target: float,
    confidence: float,
    criterion: str = "demographic_parity",
    rate: float | None = None,
    groups: Sequence[str] | None = None,
    seed: int = 0,
) -> CertifiedThresholds:
    """The thresholds that change least among those whose gap can be promised.

    Every group is moved to within ``rate ± w/2``, for the largest w with which the largest
    difference between groups of new people is within the target at the given confidence.

    Args:
        margin: log-odds of class 1 (n).
        group: true groups (n), −1 where unknown.
        y: true classes (n), −1 where unknown; needed for equal opportunity.
        target: the largest gap that is promised, above 0.
        confidence: 0.95, for example.
        criterion: ``"demographic_parity"`` or ``"equal_opportunity"``.
        rate: the common rate; that of the plain decisions by default.
        groups: names of the groups, for the promise.
        seed: orders equal scores.
    """
    name = check_promise(criterion, target, confidence)
    names = tuple(map(str, range(int(group.max()) + 1))) if groups is None else tuple(groups)
    rows = _counted(name, group, y)
    scores = [_Ordered.of(margin[rows & (group == g)], seed + g) for g in range(len(names))]
    people = [len(part.values) for part in scores]
    check_present(people, names)
    common = float((margin[rows] > 0).mean()) if rate is None else rate
    plain = [float((part.values > 0).mean()) for part in scores]

    def counts(width: float, sizes: Sequence[int]) -> list[int]:
        wanted = np.clip(plain, common - width / 2, common + width / 2)
        return [int(np.clip(round(r * n), 0, n - 1)) for r, n in zip(wanted, sizes, strict=True)]

    def is_kept(width: float, sizes: Sequence[int]) -> bool:
        return probability_within(counts(width, sizes), sizes, target) >= confidence

    if not is_kept(0.0, people):
        goal = Goal(target, confidence, _bound(counts(0.0, people), people, confidence))
        refuse(people, names, goal, lambda sizes: is_kept(0.0, sizes))
    width, too_wide = 0.0, 2 * target
    for _ in range(WIDTH_STEPS):
        middle = (width + too_wide) / 2
        width, too_wide = (middle, too_wide) if is_kept(middle, people) else (width, middle)
    selected = counts(width, people)
    thresholds = [part.threshold(k) for part, k in zip(scores, selected, strict=True)]
    passed = np.array(selected) / people
    rule = DecisionRule(
        np.array([t for t, _ in thresholds]),
        np.array([share for _, share in thresholds]),
        float(np.ptp(passed)),
        float(np.average(passed, weights=people)),
    )
    bound = _bound(selected, people, confidence)
    return CertifiedThresholds(
        rule, Promise(name, target, confidence, min(bound, target), names, tuple(people))
    )


@dataclass(frozen=True)
class _Ordered:
    """Scores in descending order, equal ones in a random order."""

    values: Floats
    draws: Floats  # of each, uniform in [0, 1]

    @classmethod
    def of(cls, values: Floats, seed: int) -> _Ordered:
        draws = np.random.default_rng(seed).random(len(values))
        order = np.lexsort((-draws, -values))
        return cls(values[order], draws[order])

    def threshold(self, selected: int) -> tuple[float, float]:
        """The (k+1)-th largest score, and the share of people with this very score who pass."""
        value, draw = float(self.values[selected]), float(self.draws[selected])
        is_tied = (self.values == value).sum() > 1
        return value, 1 - draw if is_tied else 0.0


def _bound(selected: Sequence[int], people: Sequence[int], confidence: float) -> float:
    """The gap that is kept with a confidence."""
    return kept_gap(lambda gap: probability_within(selected, people, gap), confidence, low=0.0)


def kept_gap(probability: Callable[[float], float], confidence: float, *, low: float) -> float:
    """The gap, ``low`` at least, whose probability of being kept is the confidence; at most 1."""
    if probability(1.0) < confidence:
        return 1.0
    return float(brentq(lambda gap: probability(gap) - confidence, low, 1.0, xtol=1e-5))


def _counted(criterion: str, group: Integers, y: Integers | None) -> NDArray[np.bool_]:
    """The nodes whose decisions a criterion compares."""
    if criterion == "demographic_parity":
        return np.asarray(group >= 0)
    if y is None:
        raise InputError("y", "missing", f"{criterion} is promised on labelled nodes")
    return np.asarray((group >= 0) & (y == 1))


def check_present(people: Sequence[int], names: Sequence[str]) -> None:
    """Raise if a group has fewer than two people."""
    for count, name in zip(people, names, strict=True):
        if count < 2:
            value = f"{plural(count, 'person')} of group {name!r}"
            raise InputError("confidence", value, "a promise rests on many of every group")


@dataclass(frozen=True)
class Goal:
    """What was to be promised, and what can be."""

    target: float
    confidence: float
    bound: float
    people: str = "people"  # who are missing
    condition: str = ""  # on which more of them would do

    @property
    def alternative(self) -> str:
        """What can be promised instead."""
        return f"give a target of {math.ceil(1000 * self.bound) / 1000:g}, or a smaller confidence"


def refuse(
    people: Sequence[int],
    names: Sequence[str],
    goal: Goal,
    is_enough: Callable[[list[int]], bool],
) -> NoReturn:
    """Say how many more people of which group the promise would need."""

    def raised(least: int) -> list[int]:
        return [max(count, least) for count in people]

    promise = f"{100 * goal.target:g} points with {100 * goal.confidence:g} %"
    value = f"too few {goal.people} to promise {promise}"
    low, high = min(people), MAX_PEOPLE
    if is_enough(raised(low)) or not is_enough(raised(high)):
        raise InputError("confidence", value, goal.alternative)
    while high - low > max(1, low // 200):
        middle = int(math.sqrt(low * high)) if high > 2 * low else (low + high) // 2
        low, high = (low, middle) if is_enough(raised(middle)) else (middle, high)
    more = ", ".join(
        f"{high - count:,} more of {name}"
        for count, name in zip(people, names, strict=True)
        if count < high
    )
    raise InputError(
        "confidence", value, f"about {more} would do{goal.condition}; or {goal.alternative}"
    )

r"""Promises about blind rules, for any number of groups, classes and labels.

A third of the people finds the rule, the others test it. Of a fixed rule the decisions about a
group are binomial, so that each pair of groups has an exact test. Rules of smaller and smaller
multipliers are tested in this order until one fails; the last that passed is promised.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc
from scipy.stats import norm

from fairmp.errors import InputError
from fairmp.nn.cuts import Floats, Integers
from fairmp.postprocessing.blind import BlindRule, Cell, compared_cells, find_blind_rule
from fairmp.postprocessing.confidence import (
    BLIND_CRITERIA,
    PEOPLE,
    Goal,
    Promise,
    beta_quadrature,
    check_present,
    check_promise,
    kept_gap,
    refuse,
)

FINDING_SHARE = 1 / 3  # of the people, who find a blind rule; the others test it
STEPS = 33  # blind rules that are tested, from the full correction to none
POWER = 0.8  # probability of a promise with the number of people that a refusal names
TINY = 1e-12  # a Beta distribution with this first parameter is at 0


@dataclass(frozen=True)
class CertifiedBlindRule:
    """A blind rule, and the promise about it."""

    rule: BlindRule
    promise: Promise


def confidence_within(hits: Floats, people: Floats, target: float) -> float:
    r"""Confidence that the rates of a fixed rule differ by at most a target.

    Of n_g people x_g are decided class 1. With :math:`U_g \sim` Beta(x_g + 1, n_g − x_g) and
    :math:`L_h \sim` Beta(x_h, n_h − x_h + 1), whose quantiles are Clopper and Pearson's upper and
    lower bounds, it is the smallest :math:`P(U_g - L_h \le t)` of all pairs of groups: the melded
    test of two rates (Fay, Proschan and Brittain, 2015). A gap above the target is one between some
    pair, in some direction; so each pair is tested at the full level, and the worst of them
    decides.

    Args:
        hits: people decided class 1 (G).
        people: all people (G).
        target: the gap t.

    Example:
        >>> round(confidence_within(np.array([50.0, 52.0]), np.array([100.0, 100.0]), 0.15), 3)
        0.957
    """
    smallest = 1.0
    for h, (x, n) in enumerate(zip(hits, people, strict=True)):
        others = np.arange(len(hits)) != h
        upper_a, upper_b = (hits + 1)[others], (people - hits)[others]
        lower, weight = beta_quadrature(x, n - x + 1)
        within = betainc(
            upper_a[:, None],
            np.maximum(upper_b, 1)[:, None],
            np.clip(lower + target, 0.0, 1.0),
        )
        # U is 1 where all of g are decided class 1.
        at_one = 1.0 - betainc(max(x, TINY), n - x + 1, float(np.clip(1 - target, 0.0, 1.0)))
        confidence = np.where(upper_b > 0, within @ weight, at_one)
        smallest = min(smallest, float(confidence.min(initial=1.0)))
    return smallest


@dataclass(frozen=True)
class _Test:
    """People a rule was not found on, and the rates that are compared among them."""

    num_classes: int
    cells: Sequence[Cell]

    @property
    def people(self) -> tuple[int, ...]:
        """How many of each group a rate rests on, at least."""
        return tuple(int(n) for n in np.min([cell.people for cell in self.cells], axis=0))

    def run(self, decided: Integers) -> _Tested:
        """Count decisions."""
        hits, people = [], []
        for cell in self.cells:
            classes = np.flatnonzero(cell.columns)
            # With two classes, the second rate follows from the first.
            for c in classes[-1:] if self.num_classes == 2 else classes:
                hits.append(((cell.weights > 0) & (decided == c)).sum(1))
                people.append(cell.people)
        return _Tested(np.array(hits, dtype=float), np.array(people, dtype=float))


@dataclass(frozen=True)
class _Tested:
    """What a rule decides about people it was not found on, for each rate that is compared."""

    hits: Floats  # by rate and group (R×G)
    people: Floats  # R×G

    def confidence(self, target: float) -> float:
        """That all gaps are within a target."""
        rows = zip(self.hits, self.people, strict=True)
        return min(confidence_within(hits, people, target) for hits, people in rows)

    def bound(self, confidence: float) -> float:
        """The gap that is kept with a confidence."""
        return kept_gap(self.confidence, confidence, low=-1.0)

    def error(self, people: Sequence[int]) -> float:
        """The standard error of a gap between so many people."""
        rate = self.hits.sum(1) / self.people.sum(1)
        sizes = np.sort(np.asarray(people, dtype=float))[:2]  # of the pair with the largest error
        return float(np.sqrt((rate * (1 - rate)).max() * (1 / sizes).sum()))

    def expected_bound(self, people: Sequence[int], confidence: float) -> float:
        """The bound that most rules found, and tested, on so many people in all would keep."""
        error = self.error(people)
        tested = error / math.sqrt(1 - FINDING_SHARE)
        both = math.hypot(tested, error / math.sqrt(FINDING_SHARE))
        return float(norm.ppf(confidence) * tested + norm.ppf(POWER) * both)


def certify_blind_rule(
    p: Floats,
    a: Floats,
    group: Integers,
    y: Integers | None = None,
    *,
    target: float,
    confidence: float,
    criterion: str = "demographic_parity",
    groups: Sequence[str] | None = None,
    seed: int = 0,
) -> CertifiedBlindRule:
    """The smallest correction by a blind rule whose gap of new people can be promised.

    A third of the people, drawn by ``seed``, finds the rule for target 0. Its multipliers are
    then made smaller in equal steps, and each rule is tested on the other people
    (:func:`confidence_within`); the last one before the first that fails is promised. Tests in a
    fixed order that stop at the first failure need no correction for their number. So the promise
    is broken with probability 1 − confidence at most, whatever the scores, for any number of
    groups and classes and every criterion of blind rules.

    The arguments are those of :func:`~fairmp.postprocessing.blind.find_blind_rule`, and names of
    the groups.
    """
    name = check_promise(criterion, target, confidence, BLIND_CRITERIA)
    names = tuple(map(str, range(a.shape[-1]))) if groups is None else tuple(groups)
    finding = _draw_part(group, seed)
    fit = find_blind_rule(
        p[finding],
        a[finding],
        group[finding],
        None if y is None else y[finding],
        criterion=name,
        target=0.0,
    )
    rest = ~finding & (group >= 0)
    held = compared_cells(name, p[rest], a[rest], group[rest], None if y is None else y[rest])
    test = _Test(p.shape[1], held)
    check_present(test.people, names)
    prices = fit.rule.prices(p[rest], a[rest])
    certified: tuple[float, _Tested] | None = None
    for part in np.linspace(1.0, 0.0, STEPS):
        tested = test.run(np.asarray((p[rest] - part * prices).argmax(1)))
        if tested.confidence(target) < confidence:
            break
        certified = float(part), tested
    if certified is None:
        people = _Test(p.shape[1], compared_cells(name, p, a, group, y)).people
        goal = Goal(target, confidence, tested.bound(confidence), PEOPLE[name])
        # Few people may leave a gap by chance, which more of them would close.
        chance = norm.ppf(confidence) * tested.error(people) / math.sqrt(FINDING_SHARE)
        if fit.gap > target + chance:
            value = f"the rule leaves {100 * fit.gap:.1f} points at best, however many the people"
            hint = f"give features that tell more about the group; or {goal.alternative}"
            raise InputError("confidence", value, hint)
        if fit.gap > target:
            goal = replace(goal, condition=", if the features tell enough about the group")
        refuse(people, names, goal, lambda n: tested.expected_bound(n, confidence) <= target)
    part, tested = certified
    rule = replace(fit.rule, multipliers=part * fit.rule.multipliers)
    bound = float(np.clip(tested.bound(confidence), 0.0, target))
    promise = Promise(name, target, confidence, bound, names, test.people)
    return CertifiedBlindRule(rule, promise)


def _draw_part(group: Integers, seed: int) -> NDArray[np.bool_]:
    """A third of the people of each group, drawn at random."""
    order = np.random.default_rng(seed).permutation(len(group))
    order = order[np.argsort(group[order], kind="stable")]
    part = np.zeros(len(group), dtype=bool)
    part[order[:: round(1 / FINDING_SHARE)]] = True
    return part & (group >= 0)

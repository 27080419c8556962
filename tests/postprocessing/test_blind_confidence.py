"""Promises about blind rules, against enumeration and simulation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import softmax
from scipy.stats import binom

from fairmp import InputError
from fairmp.postprocessing.blind_confidence import certify_blind_rule, confidence_within

TRIALS = 100
ALLOWED = 0.05 + 2 * np.sqrt(0.05 * 0.95 / TRIALS)  # and two standard errors


@pytest.mark.parametrize(("people", "target"), [((9, 30), 0.3), ((25, 25), 0.2), ((40, 12), 0.4)])
def test_gap_above_the_target_is_seldom_certified(people: tuple[int, int], target: float) -> None:
    """The probability of all outcomes that are certified, at any pair of rates so far apart."""
    outcomes = [np.arange(n + 1.0) for n in people]
    sizes = np.array(people, dtype=float)
    confidence = [
        [confidence_within(np.array([x, z]), sizes, target) for z in outcomes[1]]
        for x in outcomes[0]
    ]
    is_certified = np.array(confidence) >= 0.95
    for rate in np.linspace(0, 1 - target, 41):
        for rates in ((rate, rate + target), (rate + target, rate)):
            first, second = (
                binom.pmf(x, n, r) for x, n, r in zip(outcomes, people, rates, strict=True)
            )
            assert first @ is_certified @ second <= 0.05
    assert is_certified.any()


def test_worst_pair_of_groups_decides() -> None:
    hits, people = np.array([30.0, 50.0, 45.0]), np.array([100.0, 100.0, 90.0])
    pairs = [[0, 1], [0, 2], [1, 2]]
    worst = min(confidence_within(hits[pair], people[pair], 0.3) for pair in pairs)
    assert confidence_within(hits, people, 0.3) == pytest.approx(worst)
    assert confidence_within(people, people, 0.05) == pytest.approx(1 - 0.95**90, abs=1e-6)


def blind_people(
    rng: np.random.Generator, n: int, groups: int = 2, classes: int = 2
) -> tuple[np.ndarray, ...]:
    """Calibrated probabilities of classes and groups, true groups and labels."""
    group = rng.integers(0, groups, n)
    hint = rng.normal(size=(n, groups)) + np.eye(groups)[group]
    a = softmax(hint, axis=1)
    tendency = np.linspace(-0.7, 0.7, groups)[:, None] * np.linspace(-1, 1, classes)
    p = softmax(rng.normal(size=(n, classes)) + hint @ tendency, axis=1)
    y = (p.cumsum(1) < rng.random((n, 1))).sum(1).clip(0, classes - 1)
    return p, a, group, y


def true_gap(decided: np.ndarray, group: np.ndarray, y: np.ndarray, criterion: str) -> float:
    """Between the two groups farthest apart."""
    classes, groups = range(y.max() + 1), range(group.max() + 1)
    labels = {"demographic_parity": [y >= 0], "equal_opportunity": [y == 1]}
    gaps = []
    for rows in labels.get(criterion, [y == label for label in classes]):
        for c in classes:
            rates = [(decided[rows & (group == g)] == c).mean() for g in groups]
            gaps.append(np.ptp(rates))
    return float(max(gaps))


@pytest.mark.parametrize(
    ("criterion", "groups", "classes", "target", "trials"),
    [
        ("demographic_parity", 2, 2, 0.18, TRIALS),
        ("equal_opportunity", 2, 2, 0.25, TRIALS),
        ("demographic_parity", 3, 3, 0.3, 4),
        ("equalized_odds", 2, 2, 0.35, 8),
    ],
)
def test_promise_of_blind_rules_is_kept(
    criterion: str, groups: int, classes: int, target: float, trials: int
) -> None:
    rng = np.random.default_rng(2)
    p, a, group, y = blind_people(rng, 50_000, groups, classes)
    promises, broken, moved = 0, 0, 0
    for trial in range(trials):
        sample = blind_people(rng, 900, groups, classes)
        try:
            certified = certify_blind_rule(
                *sample, target=target, confidence=0.95, criterion=criterion, seed=trial
            )
        except InputError:  # too few people, in some samples
            continue
        promises += 1
        broken += true_gap(certified.rule.predict(p, a), group, y, criterion) > target
        moved += bool(certified.rule.multipliers.any())
        assert 0 <= certified.promise.bound <= target
    assert promises >= 0.75 * trials
    assert moved > 0
    assert broken / trials <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / trials)


def test_promise_holds_where_the_estimates_say_nothing() -> None:
    """The gap of the fitting people then depends on λ by chance, and the smallest one lies."""

    def draw(n: int) -> tuple[np.ndarray, ...]:
        group = np.arange(n) % 2
        p1 = rng.beta(2, 2, n) ** np.where(group == 1, 0.66, 1.0)
        a1 = rng.beta(50, 50, n)
        return np.stack([1 - p1, p1], 1), np.stack([1 - a1, a1], 1), group

    rng, broken = np.random.default_rng(7), 0
    p, a, group = draw(50_000)
    for trial in range(TRIALS):
        try:
            certified = certify_blind_rule(*draw(800), target=0.12, confidence=0.95, seed=trial)
        except InputError:
            continue
        decided = certified.rule.predict(p, a)
        broken += true_gap(decided, group, group, "demographic_parity") > 0.12
    assert broken / TRIALS <= ALLOWED


def test_number_of_people_that_a_refusal_names_is_enough_for_most() -> None:
    rng, goal = np.random.default_rng(4), {"target": 0.1, "confidence": 0.95}
    with pytest.raises(InputError, match=r"more of f.* more of m") as caught:
        certify_blind_rule(*blind_people(rng, 200), **goal, groups=("f", "m"))
    words = str(caught.value).replace(",", "").split()
    needed = sum(int(words[k - 1]) for k, word in enumerate(words) if word == "more")
    promised = 0
    for seed in range(20):
        try:
            certify_blind_rule(*blind_people(rng, 200 + needed), **goal, seed=seed)
        except InputError:
            continue
        promised += 1
    assert 10 <= promised < 20


def test_estimates_too_weak_for_the_target_are_refused() -> None:
    rng = np.random.default_rng(5)
    p, a, group, _ = blind_people(rng, 600)
    with pytest.raises(InputError, match=r"points at best.*; or give a target of 0\.\d+"):
        certify_blind_rule(p, np.full_like(a, 0.5), group, target=0.05, confidence=0.95)


@pytest.mark.parametrize(
    ("criterion", "groups"), [("equalized_odds", 2), ("demographic_parity", 4)]
)
def test_a_gap_left_by_chance_is_refused_with_the_people_missing(
    criterion: str, groups: int
) -> None:
    rng = np.random.default_rng(0)
    p, _, group, y = blind_people(rng, 200, groups)
    a = rng.dirichlet(np.full(groups, 50.0), 200)  # says nothing, and little is to be said
    with pytest.raises(InputError, match=r"too few people .* more of 0.* if the features"):
        certify_blind_rule(p, a, group, y, target=0.05, confidence=0.95, criterion=criterion)

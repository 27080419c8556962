"""The blind rule."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.special import softmax

from fairmp import InputError
from fairmp.postprocessing.blind import BlindRule, blind_path, compared_cells, find_blind_rule

CRITERIA = (
    "demographic_parity",
    "equal_opportunity",
    "false_positive_rate_parity",
    "equalized_odds",
)
People = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def people(seed: int, n: int, groups: int = 2, classes: int = 2) -> People:
    """Calibrated probabilities of classes and groups, true groups and labels."""
    rng = np.random.default_rng(seed)
    group = rng.integers(0, groups, n)
    sign = rng.normal(size=(n, groups)) + 2 * np.eye(groups)[group]
    effect = np.random.default_rng(5).normal(size=(groups, classes))
    p = softmax(1.5 * rng.normal(size=(n, classes)) + 0.7 * sign @ effect, axis=1)
    y = (p.cumsum(1) < rng.random((n, 1))).sum(1).clip(0, classes - 1)
    return p, softmax(2 * sign, axis=1), group, y


def rate_gap(decided: np.ndarray, group: np.ndarray) -> float:
    return abs(float(decided[group == 1].mean() - decided[group == 0].mean()))


@pytest.mark.parametrize("groups", [2, 3])
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("criterion", CRITERIA)
def test_gap_between_true_groups_is_within_the_target(
    criterion: str, classes: int, groups: int
) -> None:
    p, a, group, y = people(0, 3000, groups, classes)
    fit = find_blind_rule(p, a, group, y, criterion=criterion, target=0.05)
    assert fit.gap_before > 0.1
    assert fit.gap <= 0.05
    accuracy = (fit.rule.predict(p, a) == y).mean()
    assert accuracy > (p.argmax(1) == y).mean() - 0.15
    # New people, about whom nothing but the estimates is known.
    p, a, group, y = people(1, 3000, groups, classes)
    fresh = find_blind_rule(p, a, group, y, criterion=criterion, target=1.0)
    decided = fit.rule.predict(p, a)
    if criterion == "demographic_parity":
        rates = np.array(
            [[(decided[group == g] == c).mean() for c in range(classes)] for g in range(groups)]
        )
        assert np.ptp(rates, axis=0).max() < fresh.gap_before / 2


@pytest.mark.parametrize("target", [0.0, 0.03])
def test_one_multiplier_is_the_smallest_of_a_fine_grid(target: float) -> None:
    p, a, group, _ = people(2, 500)
    fit = find_blind_rule(p, a, group, target=target)
    lam = abs(float(fit.rule.multipliers[0, 1, 1]))
    shares = fit.rule.shares[0]
    b = a[:, 1] / shares[1] - a[:, 0] / shares[0]
    grid = np.linspace(-2, 2, 40_001)
    gaps = np.array([rate_gap(p[:, 1] - 0.5 > one * b, group) for one in grid])
    best = np.abs(grid[gaps <= max(target, gaps.min()) + 1e-9]).min()
    assert fit.gap <= max(target, gaps.min()) + 1e-9
    assert lam <= best + 2e-4


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(["demographic_parity", "equal_opportunity"]))
@example(977, "equal_opportunity")  # p = ½ of some
def test_path_has_the_gaps_of_its_rules(seed: int, criterion: str) -> None:
    p, a, group, y = people(seed, 60)
    y[:4], group[:4] = 1, [0, 1, 0, 1]
    p = p.round(2)
    rows = np.ones(60, dtype=bool) if criterion == "demographic_parity" else y == 1
    plain = find_blind_rule(p, a, group, y, criterion=criterion, target=1.0).rule
    (cell,) = compared_cells(criterion, p, a, group, y)
    path = blind_path(p, a, cell, plain.shares[0])
    for k in range(0, len(path.cuts), 7):
        u = path.multipliers(float(path.cuts[k]))
        rule = BlindRule(plain.criterion, plain.labels, plain.shares, u)
        decided = rule.predict(p[rows], a[rows]) == 1
        measured = decided[group[rows] == 1].mean() - decided[group[rows] == 0].mean()
        assert measured == pytest.approx(path.gaps[k], abs=1e-9)


@pytest.mark.parametrize("classes", [2, 3])
def test_saved_rule_decides_the_same_and_probabilities_follow_decisions(classes: int) -> None:
    p, a, group, y = people(3, 400, 3, classes)
    rule = find_blind_rule(p, a, group, y, criterion="equalized_odds", target=0.1).rule
    again = BlindRule.from_dict(json.loads(json.dumps(rule.to_dict())), 3, classes)
    fair = again.apply(p, a)
    assert np.array_equal(fair, rule.apply(p, a))
    assert (fair.argmax(1) == rule.predict(p, a)).all()
    assert fair.min() >= 0
    assert fair.sum(1) == pytest.approx(1)
    with pytest.raises(ValueError, match="multipliers"):
        BlindRule.from_dict({**rule.to_dict(), "multipliers": [[1.0]]}, 3, classes)


def test_groups_given_the_label_are_used_for_criteria_on_labels() -> None:
    p, a, group, y = people(4, 3000)
    by_label = np.stack([a, a], 1)
    plain = find_blind_rule(p, a, group, y, criterion="equal_opportunity")
    given_label = find_blind_rule(p, by_label, group, y, criterion="equal_opportunity")
    assert np.array_equal(plain.rule.multipliers, given_label.rule.multipliers)


def test_nodes_of_unknown_group_do_not_count() -> None:
    p, a, group, _ = people(5, 800)
    hidden = np.where(np.arange(800) < 300, -1, group)
    whole = find_blind_rule(p, a, hidden, target=0.02).rule
    part = find_blind_rule(p[300:], a[300:], group[300:], target=0.02).rule
    assert whole.multipliers == pytest.approx(part.multipliers)


def test_wrong_inputs_are_refused() -> None:
    p, a, group, y = people(6, 50)
    with pytest.raises(InputError, match="y: missing"):
        find_blind_rule(p, a, group, criterion="equal_opportunity")
    with pytest.raises(InputError, match="a: shape"):
        find_blind_rule(p, a[:-1], group)
    with pytest.raises(InputError, match="group: fewer than two"):
        find_blind_rule(p, a, np.zeros_like(group), y)

"""Promises about new people, against simulation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from fairmp import Debiaser, InputError
from fairmp.postprocessing.confidence import (
    Promise,
    certify_thresholds,
    probability_within,
)

TRIALS = 100
ALLOWED = 0.05 + 2 * np.sqrt(0.05 * 0.95 / TRIALS)  # and two standard errors


@pytest.mark.parametrize("people", [(80, 120), (50, 90, 200)])
def test_probability_within_agrees_with_draws(people: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    selected = [round(0.3 * n) for n in people]
    draws = np.array(
        [rng.beta(k + 1, n - k, 40_000) for k, n in zip(selected, people, strict=True)]
    )
    expected = (np.ptp(draws, axis=0) <= 0.1).mean()
    assert probability_within(selected, people, 0.1) == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize("criterion", ["demographic_parity", "equal_opportunity"])
@pytest.mark.parametrize("shifts", [(0.0, 0.8), (0.0, 0.4, 1.0)])
def test_promise_of_thresholds_is_kept(shifts: tuple[float, ...], criterion: str) -> None:
    rng, target, n = np.random.default_rng(1), 0.15, 1500
    broken = 0
    for _ in range(TRIALS):
        group = rng.integers(0, len(shifts), n)
        y = (rng.random(n) < 0.6) * 1
        margin = rng.normal(size=n) + np.array(shifts)[group] + 0.5 * y
        certified = certify_thresholds(
            margin, group, y, target=target, confidence=0.95, criterion=criterion
        )
        t = certified.rule.thresholds
        positive, negative = norm.sf(t - np.array(shifts) - 0.5), norm.sf(t - np.array(shifts))
        rates = positive if criterion == "equal_opportunity" else 0.6 * positive + 0.4 * negative
        broken += np.ptp(rates) > target
    assert broken / TRIALS <= ALLOWED


@pytest.mark.parametrize("criterion", ["demographic_parity", "equal_opportunity"])
def test_expected_gap_of_many_people_is_the_bound(criterion: str) -> None:
    """Of a batch so large that it has no sampling error of its own."""
    rng, outside = np.random.default_rng(6), []
    for trial in range(4):
        group, y = rng.integers(0, 2, 1500), (rng.random(1500) < 0.6) * 1
        margin = rng.normal(size=1500) + 0.8 * group + 0.5 * y
        corrector = Debiaser(
            criterion, 0.15, confidence=0.95, kind="logits", calibrate=False, seed=trial
        )
        logits = np.stack([-margin / 2, margin / 2], 1)
        corrector.fit(logits, y, sensitive_features=group)
        expected = corrector.result_.expected_gap(10**8, criterion)
        assert expected.high == pytest.approx(corrector.promise_.bound, abs=0.01)
        t = corrector.correction_.thresholds - np.array([0.0, 0.8])
        positive, negative = norm.sf(t - 0.5), norm.sf(t)
        rates = positive if criterion == "equal_opportunity" else 0.6 * positive + 0.4 * negative
        outside.append(np.ptp(rates) > expected.high)
    assert sum(outside) <= 1


def test_equal_scores_are_ordered_at_random() -> None:
    rng, target = np.random.default_rng(3), 0.15
    broken = 0
    for trial in range(TRIALS):
        group = rng.integers(0, 2, 1200)
        margin = (rng.normal(size=1200) + 0.8 * group).round()
        rule = certify_thresholds(
            margin, group, target=target, confidence=0.95, seed=2 * trial
        ).rule
        rates = []
        for shift, t, share in zip((0.0, 0.8), rule.thresholds, rule.tie_rates, strict=True):
            above, at = (
                norm.sf(t + 0.5 - shift),
                norm.sf(t - 0.5 - shift) - norm.sf(t + 0.5 - shift),
            )
            rates.append(above + share * at)
        broken += np.ptp(rates) > target
    assert broken / TRIALS <= ALLOWED


def test_too_few_people_are_told_how_many_more() -> None:
    rng = np.random.default_rng(4)

    def certify(n: int) -> Promise:
        margin, group = rng.normal(size=n), np.arange(n) % 2
        goal = {"target": 0.1, "confidence": 0.95, "groups": ("f", "m")}
        return certify_thresholds(margin + group, group, **goal).promise  # type: ignore[arg-type]

    with pytest.raises(InputError, match=r"more of f.* more of m") as caught:
        certify(200)
    words = str(caught.value).replace(",", "").split()
    needed = sum(int(words[k - 1]) for k, word in enumerate(words) if word == "more")
    promise = certify(200 + round(1.3 * needed))
    assert promise.target == 0.1
    assert sum(promise.people) > 200
    assert "95 % confidence" in str(promise)


@pytest.mark.parametrize(
    ("goal", "argument"),
    [
        ({"target": 0.0, "confidence": 0.95}, "target"),
        ({"target": 0.1, "confidence": 1.5}, "confidence"),
        ({"target": 0.1, "confidence": 0.9, "criterion": "equalized_odds"}, "criterion"),
    ],
)
def test_promises_that_cannot_be_made_are_refused(goal: dict[str, object], argument: str) -> None:
    with pytest.raises(InputError, match=argument):
        certify_thresholds(np.arange(10.0), np.arange(10) % 2, **goal)  # type: ignore[arg-type]

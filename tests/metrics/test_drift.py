"""Changes between two samples: published intervals, and the rate of false alarms."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chi2_contingency

from fairmp.metrics import Evaluation, evaluate
from fairmp.metrics.counts import wilson
from fairmp.metrics.drift import Estimate, Figure, _change, compare


def sample(n: int, rng: np.random.Generator, shift: float = 0.0, share: float = 0.5) -> Evaluation:
    sens = (rng.random(n) < share).astype(int)
    y = rng.integers(0, 2, n)
    odds = y - 0.5 + rng.normal(size=n) + shift * sens
    return evaluate(y, np.stack([0 * odds, odds], 1), sensitive_features=sens, bootstrap=50)


def test_interval_of_two_rates_is_newcombes() -> None:
    # Newcombe (1998), example (a), method 10: 56/70 against 48/80.
    old, new = (Estimate(rate, *wilson(rate, n)) for rate, n in ((48 / 80, 80), (56 / 70, 70)))
    change = _change(Figure("rate"), old, new, 0.05)
    assert (change.low, change.high) == pytest.approx((0.0524, 0.3339), abs=1e-4)
    assert change.changed
    assert not _change(Figure("rate"), old, new, 0.0005).changed


def test_samples_of_one_population_rarely_differ() -> None:
    rng = np.random.default_rng(0)
    alarms = sum(compare(sample(400, rng), sample(600, rng)).changed for _ in range(200))
    assert alarms <= 16  # 5 % are expected at most


def test_changed_group_is_found() -> None:
    rng = np.random.default_rng(0)
    before, after = sample(3000, rng), sample(3000, rng, shift=0.6, share=0.6)
    drift = compare(before, after)
    changed = {change.figure for change in drift.figures if change.changed}
    shares = {Figure("share", "0"), Figure("share", "1")}
    assert changed >= {*shares, Figure("rate", "1", "1"), Figure("dp")}
    assert Figure("rate", "0", "1") not in changed
    for change in drift.figures:
        assert change.low <= change.after - change.before <= change.high
    assert [score.changed for score in drift.scores] == [False, True]
    assert drift.changed
    counts = [evaluation.groups[1].score_counts for evaluation in (before, after)]
    assert sum(counts[0]) == before.groups[1].count
    assert drift.scores[1].p_value == pytest.approx(chi2_contingency(counts).pvalue)


def test_figures_without_labels_are_left_out() -> None:
    rng = np.random.default_rng(0)
    before = sample(300, rng)
    scores, sens = rng.normal(size=(300, 2)), rng.integers(0, 2, 300)
    after = evaluate(np.full(300, -1), scores, sensitive_features=sens, bootstrap=10)
    kinds = {change.figure.kind for change in compare(before, after).figures}
    assert kinds == {"share", "rate", "dp"}

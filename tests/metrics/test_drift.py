"""Changes between two samples: published intervals, and the rate of false alarms."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chi2_contingency

from fairmp.metrics import evaluate
from fairmp.metrics.counts import wilson
from fairmp.metrics.drift import _change, changes


def sample(n: int, rng: np.random.Generator, shift: float = 0.0, share: float = 0.5) -> dict:
    sens = (rng.random(n) < share).astype(int)
    y = rng.integers(0, 2, n)
    odds = y - 0.5 + rng.normal(size=n) + shift * sens
    return evaluate(np.stack([0 * odds, odds], 1), y, sens, bootstrap=50).to_dict()


def test_the_interval_of_two_rates_is_newcombes() -> None:
    # Newcombe (1998), example (a), method 10: 56/70 against 48/80.
    both = ((48 / 80, *wilson(48 / 80, 80)), (56 / 70, *wilson(56 / 70, 70)))
    found = _change("rate", *both, 0.05)
    assert (found.low, found.high) == pytest.approx((0.0524, 0.3339), abs=1e-4)
    assert found.changed
    assert not _change("rate", *both, 0.0005).changed


def test_samples_of_one_population_rarely_differ() -> None:
    rng = np.random.default_rng(0)
    alarms = 0
    for _ in range(200):
        figures, scores = changes(sample(400, rng), sample(600, rng))
        alarms += any(one.changed for one in (*figures, *scores))
    assert alarms <= 16  # 5 % are expected at most


def test_what_changed_is_found() -> None:
    rng = np.random.default_rng(0)
    before, after = sample(3000, rng), sample(3000, rng, shift=0.6, share=0.6)
    figures, scores = changes(before, after)
    changed = {one.name for one in figures if one.changed}
    assert changed >= {"share of 0", "share of 1", "rate of 1 in 1", "ΔDP"}
    assert "rate of 1 in 0" not in changed
    for one in figures:
        assert one.low <= one.after - one.before <= one.high
    assert [one.changed for one in scores] == [False, True]
    counts = [part["groups"][1]["score_counts"] for part in (before, after)]
    assert sum(counts[0]) == before["groups"][1]["count"]
    assert scores[1].p_value == pytest.approx(chi2_contingency(counts).pvalue)


def test_figures_that_are_missing_are_left_out() -> None:
    rng = np.random.default_rng(0)
    before = sample(300, rng)
    scores, sens = rng.normal(size=(300, 2)), rng.integers(0, 2, 300)
    after = evaluate(scores, np.full(300, -1), sens, bootstrap=10).to_dict()
    names = [one.name for one in changes(before, after)[0]]
    assert "ΔDP" in names
    assert not {"accuracy", "ΔEO", "Δodds"} & set(names)

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy.stats import binomtest

from fairmp.metrics import evaluate

RNG = np.random.default_rng(0)
SENS, Y = RNG.integers(0, 2, 300), RNG.integers(0, 2, 300)
P = 1 / (1 + np.exp(-RNG.normal(size=300) - SENS))
SCORES = np.stack([1 - P, P], 1)


@pytest.mark.parametrize("classes", [2, 3])
def test_text_has_figures_groups_and_notes(classes: int) -> None:
    scores = np.eye(classes)[[1, 0, 1, 1]]
    result = evaluate(scores, [0, 0, 0, 0], [0, 0, 1, 1], bootstrap=10)
    text = str(dataclasses.replace(result, mode="per-node"))
    assert "mode per-node" in text
    assert "ΔDP        50.0" in text
    assert "nan" not in text
    assert all(f"note: {note}" in text for note in result.notes)
    low, high = result.intervals["dp"]
    assert f"[{100 * low:.1f}, {100 * high:.1f}]" in text


def test_html_has_figures_and_escapes_names() -> None:
    result = evaluate(SCORES, Y, SENS, group_names=["<b>", "m"])
    text = result._repr_html_()
    assert "&lt;b&gt;" in text
    assert f"<td>{100 * result.dp:.1f}</td>" in text


def test_plot_shows_rates_with_wilson_intervals() -> None:
    result = evaluate(SCORES, Y, SENS, group_names=["f", "m"])
    ax = result.plot()
    rates = [(P[g == SENS] > 0.5).mean() for g in (0, 1)]
    assert [patch.get_width() / 100 for patch in ax.patches] == pytest.approx(rates)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["f", "m"]
    assert result.plot(ax) is ax
    share = binomtest(int((P[SENS == 0] > 0.5).sum()), int((SENS == 0).sum()))
    low, high = share.proportion_ci(method="wilson")
    (left, _), (right, _) = ax.containers[0].lines[2][0].get_segments()[0]
    assert (left, right) == pytest.approx((100 * low, 100 * high), abs=1e-4)

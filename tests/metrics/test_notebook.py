"""What a notebook shows of a result."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest

from fairmp import FairClassifier, audit, debias
from fairmp.datasets import social_network
from fairmp.metrics import evaluate

RNG = np.random.default_rng(0)
SENS, Y = RNG.integers(0, 2, 300), RNG.integers(0, 2, 300)
P = 1 / (1 + np.exp(-RNG.normal(size=300) - SENS))
SCORES = np.stack([1 - P, P], 1)


def widths(ax: object) -> list[float]:
    return [patch.get_width() / 100 for patch in ax.patches]  # type: ignore[attr-defined]


def test_an_evaluation() -> None:
    found = evaluate(SCORES, Y, SENS, group_names=["<b>", "m"])
    text = found._repr_html_()
    assert "&lt;b&gt;" in text
    assert f"<td>{100 * found.dp:.1f}</td>" in text
    ax = found.plot()
    assert widths(ax) == pytest.approx([(P[g == SENS] > 0.5).mean() for g in (0, 1)])
    assert [label.get_text() for label in ax.get_yticklabels()] == ["<b>", "m"]
    assert found.plot(ax) is ax
    share = binomtest(int((P[SENS == 0] > 0.5).sum()), int((SENS == 0).sum()))
    low, high = share.proportion_ci(method="wilson")
    (left, _), (right, _) = ax.containers[0].lines[2][0].get_segments()[0]
    assert (left, right) == pytest.approx((100 * low, 100 * high), abs=1e-4)


def test_a_correction() -> None:
    found = debias(P, SENS, target=0.02, labels=Y, full_output=True)
    text = found._repr_html_()
    assert text.count("<table>") == 2
    assert "demographic parity" in text
    expected = [(P[g == SENS] > 0.5).mean() for g in (0, 1)]
    expected += [(np.asarray(found.predictions)[g == SENS] > 0.5).mean() for g in (0, 1)]
    ax = found.plot()
    assert widths(ax) == pytest.approx(expected)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["before", "after"]


def test_a_run_and_an_audit() -> None:
    data = social_network(n=200, average_degree=5)
    run = FairClassifier(epochs=1, backbone="mlp").fit(data, seed=0)
    assert run.test._repr_html_() in run._repr_html_()
    assert widths(run.plot()) == pytest.approx([g.rates[1] for g in run.test.groups])
    found = audit(data, steps=2)
    assert "Audit of embedded network" in found._repr_html_()
    steps = 100 * np.array([bias.predictability for bias in found.row])
    assert found.plot().lines[0].get_ydata() == pytest.approx(steps)

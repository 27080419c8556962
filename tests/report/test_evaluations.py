from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy.stats import binomtest

from fairmp.metrics import evaluate
from fairmp.report import Document
from fairmp.report.document import html, summary
from fairmp.report.evaluations import cautions, from_evaluations
from fairmp.report.formats import GAP_NOTE
from tests.report.documents import decided, document_for

RNG = np.random.default_rng(0)
SENS, Y = RNG.integers(0, 2, 300), RNG.integers(0, 2, 300)
P = 1 / (1 + np.exp(-RNG.normal(size=300) - SENS))
SCORES = np.stack([1 - P, P], 1)


@pytest.mark.parametrize("classes", [2, 3])
def test_text_has_figures_groups_and_notes(classes: int) -> None:
    scores = np.eye(classes)[[1, 0, 1, 1]]
    result = evaluate([0, 0, 0, 0], scores, sensitive_features=[0, 0, 1, 1], bootstrap=10)
    text = str(dataclasses.replace(result, mode="per-node"))
    assert "mode per-node" in text
    assert "ΔDP                 50.0" in text
    assert "nan" not in text
    assert all(f"note: {note}" in text for note in result.notes)
    low, high = result.intervals["dp"]
    assert f"[{100 * low:.1f}, {100 * high:.1f}]" in text


def test_html_has_figures_and_escapes_names() -> None:
    result = evaluate(Y, SCORES, sensitive_features=SENS, group_names=["<b>", "m"])
    text = result._repr_html_()
    assert "&lt;b&gt;" in text
    assert f"<td>{100 * result.dp:.1f}</td>" in text


def test_plot_shows_rates_with_wilson_intervals() -> None:
    result = evaluate(Y, SCORES, sensitive_features=SENS, group_names=["f", "m"])
    ax = result.plot()
    rates = [(P[g == SENS] > 0.5).mean() for g in (0, 1)]
    assert [patch.get_width() / 100 for patch in ax.patches] == pytest.approx(rates)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["f", "m"]
    assert result.plot(ax) is ax
    share = binomtest(int((P[SENS == 0] > 0.5).sum()), int((SENS == 0).sum()))
    low, high = share.proportion_ci(method="wilson")
    (left, _), (right, _) = ax.containers[0].lines[2][0].get_segments()[0]
    assert (left, right) == pytest.approx((100 * low, 100 * high), abs=1e-4)


def test_add_decisions_counts_by_group() -> None:
    sens, y, before, after = decided()
    document = document_for()
    for g, group in enumerate(document["groups"]):
        inside = sens == g
        assert group["nodes"] == inside.sum()
        assert group["after"][1] == pytest.approx((after.argmax(1)[inside] == 1).mean())
        assert group["before"][1] == pytest.approx((before.argmax(1)[inside] == 1).mean())
        changed = (after.argmax(1) != before.argmax(1))[inside]
        assert group["changed"] == changed.sum() == sum(m[2] for m in group["moves"])
        assert group["positives"] == (inside & (y == 1)).sum()
        assert group["true_positives"] == (inside & (y == 1) & (after.argmax(1) == 1)).sum()


@pytest.mark.parametrize("groups", [2, 3])
def test_from_evaluations_keeps_the_target(groups: int) -> None:
    sens, y, before, after = decided(groups=groups)
    first, second = (evaluate(y, s, sensitive_features=sens, bootstrap=0) for s in (before, after))
    document = from_evaluations(second, first, target=0.1)
    [dp] = [metric for metric in document["metrics"] if metric["name"] == "ΔDP"]
    assert (document["target"], dp["target"]) == (0.1, 0.1)
    assert "≤ 10.0" in html({**document, "title": "t"})


def test_constant_decisions_are_noted() -> None:
    sens, y, _, after = decided(classes=3)
    after[:, 1] = 9.0
    evaluation = evaluate(
        y, after, sensitive_features=sens, bootstrap=50, class_names=["low", "mid", "high"]
    )
    note, caution = cautions(evaluation)
    assert "'mid'" in note
    assert caution == GAP_NOTE
    document: Document = {**from_evaluations(evaluation), "title": "t"}
    assert note in document["notes"]
    assert summary(document).endswith(note)
    after[0, 0] = 99.0
    after[sens < 0, 0] = 99.0
    sens[0] = 0
    assert not evaluate(y, after, sensitive_features=sens, bootstrap=0).notes
    assert cautions(evaluate(y, after, sensitive_features=sens, bootstrap=0)) == []


def test_text_without_labels_has_only_what_is_known() -> None:
    sens, y, _, after = decided()
    shown = str(evaluate(None, after, sensitive_features=sens, bootstrap=0))
    assert "n/a" not in shown
    assert "ΔDP" in shown
    assert "TPR" in str(evaluate(y, after, sensitive_features=sens, bootstrap=0))


def test_people_of_unknown_group_are_not_among_everyone() -> None:
    sens, y, _, after = decided()
    after[:, 1] = np.where(sens < 0, -9.0, 9.0)
    evaluation = evaluate(y, after, sensitive_features=sens, bootstrap=0)
    [note] = cautions(evaluation)
    assert note.startswith("Everyone whose group is known gets")
    assert summary({**from_evaluations(evaluation), "title": "t"}).endswith(note)
    known = sens >= 0
    evaluation = evaluate(y[known], after[known], sensitive_features=sens[known], bootstrap=0)
    assert cautions(evaluation)[0].startswith("Everyone gets")

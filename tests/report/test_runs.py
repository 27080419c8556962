from __future__ import annotations

import pytest
import torch

from fairmp import FMP, PPR, FairClassifier, evaluate
from fairmp.datasets import social_network
from fairmp.metrics.evaluation import CRITERIA
from fairmp.training.run import Run


@pytest.fixture(scope="module")
def model() -> FairClassifier:
    data = social_network(n=300, average_degree=5, base_rate_gap=0.3)
    model = FairClassifier(FMP(target=0.02), epochs=20, lr=0.02, backbone="mlp")
    return model.fit(data, seed=0, bootstrap=100)


@pytest.fixture(scope="module")
def run(model: FairClassifier) -> Run:
    return model.run_


@pytest.fixture(scope="module")
def plain() -> Run:
    data = social_network(n=200, average_degree=5)
    return FairClassifier(PPR(), epochs=1, backbone="mlp").fit(data, seed=0, bootstrap=0).run_


def widths(axes: object) -> list[float]:
    return [patch.get_width() / 100 for patch in axes.patches]  # type: ignore[attr-defined]


def test_uncorrected_measures_the_plain_propagation(model: FairClassifier) -> None:
    data = social_network(n=300, average_degree=5, base_rate_gap=0.3)
    with torch.no_grad():
        logits = model.uncorrected()
    expected = evaluate(data.y, logits, sensitive_features=data.sens, mask=data.test_mask)
    found = model.run_.uncorrected
    assert found is not None
    for key in ("n", "accuracy", "auc", *CRITERIA.values()):
        assert getattr(found, key) == pytest.approx(getattr(expected, key))
    assert found.mode is None
    assert "dp" in found.intervals
    assert found.dp > 0.05 > 0.02 + 1 / 37 > model.run_.test.dp
    assert model.run_.to_dict()["uncorrected"] == found.to_dict()


def test_plain_propagation_has_nothing_uncorrected(plain: Run) -> None:
    assert plain.uncorrected is None
    assert "uncorrected" not in plain.to_dict()
    assert len(plain.plot().patches) == 2


def test_text_and_html_are_of_the_test_nodes(run: Run) -> None:
    assert run.uncorrected is not None
    assert str(run).startswith(f"Test nodes, epoch {run.history.best.epoch}: {run.test}")
    assert run.test._repr_html_() in run._repr_html_()
    change = f"ΔDP {100 * run.uncorrected.dp:.1f} → {100 * run.test.dp:.1f}"
    assert change in str(run)
    assert change in run._repr_html_()


def test_text_says_which_gaps_changed_sides(run: Run) -> None:
    assert run.uncorrected is not None
    keys = ("dp", "eo", "fpr", "odds")
    reversed_gaps = [key for key in keys if run.test.changed_sides(key, run.uncorrected)]
    assert str(run).count("REVERSED") == len(reversed_gaps) > 0


def test_plot_shows_gaps_and_rates_before_and_after(run: Run) -> None:
    assert run.uncorrected is not None
    decisions = run.plot()
    moments = (run.uncorrected, run.test)
    rates = [group.rates[1] for evaluation in moments for group in evaluation.groups]
    assert widths(decisions) == pytest.approx(rates)
    gaps = [getattr(evaluation, key) for evaluation in moments for key in CRITERIA.values()]
    assert widths(decisions.figure.axes[0]) == pytest.approx(gaps)


def test_plot_draws_decisions_on_given_axes(run: Run) -> None:
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    assert run.plot(axes) is axes
    assert len(widths(axes)) == 4


def test_repr_is_short(run: Run) -> None:
    assert len(repr(run)) < 150

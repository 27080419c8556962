"""The explainer of the home page computes what the library computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fairmp import FMP, PPR
from fairmp.analysis.theory import blocks, predicted_change
from fairmp.analysis.theory.measurement import averaged
from fairmp.groups import group_operator
from fairmp.nn.decisions import close_decision_gap

MODEL = Path(__file__).parents[2] / "docs" / "assets" / "explainer-model.js"
SETTINGS = [
    {"homophily": 0.9, "degree": 8, "share": 0.5, "seed": 7},
    {"homophily": 0.98, "degree": 3, "share": 0.1, "seed": 8},
    {"homophily": 0.5, "degree": 16, "share": 0.3, "seed": 9},
]


@pytest.fixture(scope="module")
def model(browser: Any) -> Any:
    """A page that has nothing but the model of the explainer."""
    page = browser.new_page()
    page.add_script_tag(path=str(MODEL))
    yield page
    page.close()


def network(model: Any, settings: dict[str, float]) -> tuple[torch.Tensor, ...]:
    people = model.evaluate("settings => fairmpExplainer.network(settings)", settings)
    edges = torch.tensor(people["edges"]).T
    edge_index = torch.cat([edges, edges.flip(0)], dim=1)
    score = torch.tensor(people["score"], dtype=torch.float64)
    return score, edge_index, torch.tensor(people["group"])


def call(model: Any, settings: dict[str, float], expression: str) -> Any:
    names = "const E = fairmpExplainer, people = E.network(settings);"
    return model.evaluate(f"settings => {{ {names} return {expression}; }}", settings)


@pytest.mark.parametrize("settings", SETTINGS)
def test_theory_equals_predicted_change(model: Any, settings: dict[str, float]) -> None:
    n, difference = (model.evaluate(f"fairmpExplainer.{name}") for name in ("PEOPLE", "DIFFERENCE"))
    drawn_from = blocks(n, settings["degree"] / (n - 1), settings["homophily"], settings["share"])
    for steps in range(6):
        predicted = call(model, settings, f"E.predictedPredictability(settings, {steps})")
        means, variance = [[-difference / 2], [difference / 2]], [[1.0]]
        change = predicted_change(*drawn_from, means=means, covariances=variance, steps=steps)
        assert predicted == pytest.approx(float(change.after.parity), abs=1e-9)


@pytest.mark.parametrize("settings", SETTINGS)
def test_averages_equal_those_of_the_audit(model: Any, settings: dict[str, float]) -> None:
    score, edge_index, _ = network(model, settings)
    values = call(model, settings, "E.averaged(people, 3)")
    *_, expected = averaged(score[:, None].numpy(), edge_index, 3, "row")
    np.testing.assert_allclose(values, expected[:, 0], atol=1e-12)


@pytest.mark.parametrize("settings", SETTINGS)
def test_propagation_equals_the_layers(model: Any, settings: dict[str, float]) -> None:
    score, edge_index, group = network(model, settings)
    logits = torch.stack([-score / 2, score / 2], 1)
    lambda_s = model.evaluate("fairmpExplainer.LAMBDA_S")
    plain = PPR(K=3, lambda_s=lambda_s)(logits, edge_index)
    margins = call(model, settings, "E.propagate(people, 3)")
    np.testing.assert_allclose(margins, plain[:, 1] - plain[:, 0], atol=1e-9)
    for target in (0.0, 0.05):
        fair = FMP(K=3, lambda_s=lambda_s, target=target)(logits, edge_index, group)
        margins = call(model, settings, f"E.propagate(people, 3, {target})")
        np.testing.assert_allclose(margins, fair[:, 1] - fair[:, 0], atol=1e-5)


@pytest.mark.parametrize("settings", SETTINGS)
def test_fair_decisions_equal_those_of_the_library(model: Any, settings: dict[str, float]) -> None:
    _, _, group = network(model, settings)
    margins = torch.tensor(call(model, settings, "E.propagate(people, 2, 0)"), dtype=torch.float64)
    logits = torch.stack([-margins / 2, margins / 2], 1)
    expected = close_decision_gap(logits, group_operator(group)).logits.argmax(1)
    decided = call(model, settings, "E.fairDecisions(people, 2)")
    assert decided == expected.bool().tolist()
    rates = call(model, settings, "E.rates(E.fairDecisions(people, 2), people.group)")
    assert abs(rates[1] - rates[0]) <= 0.5 / int(group.sum()) + 1e-12


def test_homophily_and_degree_are_those_of_the_sliders(model: Any) -> None:
    settings = {"homophily": 0.8, "degree": 10, "share": 0.5}
    within, degree = [], []
    for seed in range(20):
        _, edge_index, group = network(model, {**settings, "seed": seed})
        within.append(float((group[edge_index[0]] == group[edge_index[1]]).double().mean()))
        degree.append(edge_index.size(1) / 200)
    assert np.mean(within) == pytest.approx(0.8, abs=0.01)
    assert np.mean(degree) == pytest.approx(10, abs=0.2)

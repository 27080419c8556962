from __future__ import annotations

import json
import os
from dataclasses import replace

import pandas as pd
import pytest
import torch

from experiments.synthetic import CENTRE, COUNTEREXAMPLE
from experiments.synthetic_settings import (
    OPERATORS,
    Design,
    GraphSetting,
    agreement_by_operator,
    agreement_table,
    coverage,
    measure,
    measure_all,
    parity_error,
    place,
    sign,
)
from fairmp.analysis.theory.block_model import block_graph
from fairmp.datasets import load
from fairmp.errors import InputError
from tests.experiments.synthetic_points import SMALL


@pytest.fixture(scope="module", params=OPERATORS)
def grid(request: pytest.FixtureRequest) -> pd.DataFrame:
    settings = [
        GraphSetting(
            3_000,
            degree / 2_999,
            eps,
            c,
            separation=separation,
            normalisation=request.param,
        )
        for degree in (3, 5, 8, 12, 20, 35, 60)
        for eps in (0.05, 0.23, 0.41, 0.59, 0.77, 0.95)
        for c in (0.5, 0.65, 0.8)
        for separation in (1.0, 2.0)
    ]
    return measure_all(Design(2, [("agreement", setting) for setting in settings]))


def test_counterexample_loses_bias_though_the_printed_condition_holds() -> None:
    assert GraphSetting(n=20_000, rho=5e-4, eps=0.64, c=0.5) == COUNTEREXAMPLE
    point = measure(replace(COUNTEREXAMPLE, normalisation="row"), seeds=5)
    assert point["printed"] == pytest.approx(1.31, abs=0.005)
    assert point["corrected"] == pytest.approx(0.91, abs=0.005)
    assert point["information_measured"] == pytest.approx(-0.036, abs=0.01)
    assert point["information_predicted"] == pytest.approx(-0.034, abs=0.001)
    symmetric = measure(COUNTEREXAMPLE, seeds=5)
    assert symmetric["corrected"] == pytest.approx(0.90, abs=0.005)
    assert symmetric["information_measured"] == pytest.approx(-0.023, abs=0.01)
    both = pd.DataFrame([point, symmetric])
    assert sign(both, "information").tolist() == [-1, -1]
    assert sign(both, "parity")[0] == -1


def test_corrected_condition_is_right_more_often(grid: pd.DataFrame) -> None:
    assert len(grid) >= 200
    printed, corrected, prediction = agreement_table(grid)
    assert [row["form"] for row in (printed, corrected, prediction)] == [
        "as printed", "corrected", "prediction",
    ]  # fmt: skip
    assert printed["border"] == corrected["border"] >= 30
    assert printed["false_alarms"] >= 4
    assert corrected["false_alarms"] == 0
    assert corrected["agree_border"] > printed["agree_border"] + 0.05
    assert prediction["agree"] >= corrected["agree"] > printed["agree"]
    # For equal groups the corrected condition is also necessary.
    _, corrected, _ = agreement_table(grid[grid["c"] == 0.5])
    assert corrected["agree"] > 0.98


def test_predicted_gap_lies_in_the_measured_interval(grid: pd.DataFrame) -> None:
    # Where the gap nearly closes, its norm is all noise and theory's 0 cannot be met.
    interior = grid[(grid["average_degree"] >= 5) & (grid["printed"] > 0.1)]
    assert len(interior) >= 150
    assert coverage(interior, "gap") > 0.9
    assert coverage(interior, "information") > 0.9


def test_different_covariances_are_measured_and_predicted() -> None:
    point = measure(replace(CENTRE, n=3000, rho=5e-3, eps=0.8, covariance="different"), seeds=4)
    assert point["printed"] is None
    assert point["corrected"] is None
    assert point["information_measured"] > point["information_interval"]
    error = abs(point["information_measured"] - point["information_predicted"])
    assert error < 2 * point["information_interval"] + 0.005


def test_agreement_table_counts_by_hand() -> None:
    def point(change: float, interval: float, predicted: float, printed: float, corrected: float):
        reading = {"measured": change, "interval": interval, "predicted": predicted}
        row = {f"information_{name}": value for name, value in reading.items()}
        return {**row, "as printed": printed, "printed": printed, "corrected": corrected}

    points = [
        point(-0.1, 0.01, -0.1, 1.3, 0.9),  # the printed form's false alarm
        point(+0.1, 0.01, +0.1, 1.5, 0.8),  # the corrected form's miss
        point(+0.2, 0.01, -0.1, 9.0, 7.0),  # away from the border
        point(+0.2, 0.30, -0.1, 1.0, 1.0),  # undecided
    ]
    printed, corrected, prediction = agreement_table(pd.DataFrame(points))
    assert (printed["points"], printed["decided"], printed["border"]) == (4, 3, 2)
    assert printed["agree"] == corrected["agree"] == prediction["agree"] == pytest.approx(2 / 3)
    assert (printed["agree_border"], prediction["agree_border"]) == (0.5, 1.0)
    assert (printed["false_alarms"], printed["misses"]) == (1, 0)
    assert (corrected["false_alarms"], corrected["misses"]) == (0, 1)
    assert (prediction["false_alarms"], prediction["misses"]) == (0, 1)


def test_agreement_is_counted_for_each_operator() -> None:
    point = {"information_measured": 0.1, "information_interval": 0.01}
    point |= {"information_predicted": 0.1, "as printed": 0.5}
    point |= {"printed": 2.0, "corrected": 2.0}
    points = [{**point, "normalisation": name} for name in ("symmetric", "row", "row")]
    rows = agreement_by_operator(pd.DataFrame(points))
    assert [(row["normalisation"], row["points"]) for row in rows] == [
        *4 * [("symmetric", 1)],
        *3 * [("row", 2)],
    ]
    assert [row["misses"] for row in rows] == [1, 0, 0, 0, 2, 0, 0]


def test_parity_error_is_the_median_by_degree() -> None:
    points = pd.DataFrame(
        {
            "average_degree": [2.9997, 3.0, 3.0, 20.0, 99.99],
            "parity_measured": [0.1, 0.1, 0.1, 0.1, 0.1],
            "parity_predicted": [0.1, 0.12, 0.05, 0.1, 0.2],
        }
    )
    assert parity_error(points) == {
        "3": pytest.approx(0.02),
        "20 or more": pytest.approx(0.05),
    }


def test_records_repeat_and_are_json() -> None:
    first, second = (measure(SMALL, seeds=2, seed=7, series="s") for _ in range(2))
    assert first == second
    assert json.loads(json.dumps(first)) == first
    assert first["series"] == "s"
    assert first["average_degree"] == pytest.approx(0.02 * 499)
    assert measure(SMALL, seeds=2, seed=8)["gap_measured"] != first["gap_measured"]


def test_place_finds_the_parameters_a_graph_was_drawn_with() -> None:
    data = block_graph(5000, 4e-3, 0.9, 0.2, covariances=[[1.0, 0.0], [0.0, 4.0]])
    data.x = torch.cat([data.x, torch.ones(5000, 1)], dim=1)
    spot = place(data)
    assert (spot["n"], spot["c"]) == (5000, 0.2)
    assert spot["average_degree"] == pytest.approx(20, rel=0.03)
    assert spot["eps"] == pytest.approx(0.9, abs=0.01)
    # Contrast of the neighbourhoods: b₁ − b₂ with n₊ = 1000, n₋ = 4000.
    p, q = 0.9 / 0.68, 0.1 / 0.32
    contrast = 4 * p / (4 * p + q) - 4 * q / (4 * q + p)
    assert 2 * spot["balanced_eps"] - 1 == pytest.approx(contrast, abs=0.02)
    for operator in OPERATORS:
        for quantity in ("parity", "information"):
            predicted = spot[f"{quantity}_predicted_{operator}"]
            assert spot[f"{quantity}_measured_{operator}"] == pytest.approx(predicted, abs=0.03)


@pytest.mark.skipif(not os.environ.get("FAIRMP_DATA"), reason="FAIRMP_DATA is not set")
@pytest.mark.parametrize("name", ["nba", "german", "credit", "bail"])
def test_theory_tells_the_direction_on_real_graphs(name: str) -> None:
    spot = place(load(name))
    for operator in OPERATORS:
        assert spot[f"parity_measured_{operator}"] * spot[f"parity_predicted_{operator}"] > 0


def test_measure_with_one_seed_is_refused() -> None:
    with pytest.raises(InputError, match="seeds: 1"):
        measure(SMALL, seeds=1)

from __future__ import annotations

import csv
import io
import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairmp.errors import InputError
from fairmp.metrics import Interval, mean_interval
from fairmp.report import summarise
from fairmp.report.figures import curves, front, hypervolume, over_splits
from fairmp.report.formats import best, latex, markdown, of_hypervolumes, of_lines, to_csv

fractions = st.integers(0, 20).map(lambda k: k / 20)
points = st.lists(st.tuples(fractions, fractions), max_size=12)


@given(points)
def test_front_keeps_what_no_point_beats(some: list[tuple[float, float]]) -> None:
    def beats(one: tuple[float, float], other: tuple[float, float]) -> bool:
        return one[0] >= other[0] and one[1] <= other[1] and one != other

    expected = {p for p in some if not any(beats(q, p) for q in some)}
    found = front(some)
    assert set(found) == expected
    assert len(found) == len(expected)
    assert all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(found))


def brute_force(some: list[tuple[float, float]], floor: float, ceiling: float) -> float:
    """Count the cells of a lattice that has every corner of every box on its lines."""
    cells = 0
    for i in range(20):
        for j in range(20):
            accuracy, dp = (i + 0.5) / 20, (j + 0.5) / 20
            inside = accuracy > floor and dp < ceiling
            cells += inside and any(a > accuracy and d < dp for a, d in some)
    return cells / 400 / ((1 - floor) * ceiling)


@given(points, st.integers(0, 19).map(lambda k: k / 20), st.integers(1, 20).map(lambda k: k / 20))
def test_hypervolume_is_the_area_of_the_union(
    some: list[tuple[float, float]], floor: float, ceiling: float
) -> None:
    found = hypervolume(some, (floor, ceiling))
    assert found == pytest.approx(brute_force(some, floor, ceiling), abs=1e-9)


def test_hypervolume_by_monte_carlo() -> None:
    rng = np.random.default_rng(0)
    some = rng.random((9, 2))
    draws = rng.random((200_000, 2))
    draws[:, 0] = 0.3 + 0.7 * draws[:, 0]
    covered = np.zeros(len(draws), dtype=bool)
    for accuracy, dp in some:
        covered |= (draws[:, 0] < accuracy) & (draws[:, 1] > dp)
    found = hypervolume([(float(a), float(d)) for a, d in some], (0.3, 1.0))
    assert found == pytest.approx(covered.mean(), abs=0.005)


@given(points, st.tuples(fractions, fractions))
def test_one_more_point_never_makes_it_smaller(
    some: list[tuple[float, float]], more: tuple[float, float]
) -> None:
    assert hypervolume([*some, more]) >= hypervolume(some) - 1e-12


def test_hypervolume_without_points_and_with_a_wrong_reference() -> None:
    assert hypervolume([]) == 0.0
    assert hypervolume([(math.nan, 0.1)]) == 0.0
    assert hypervolume([(1.0, 0.0)], (0.6, 1.0)) == pytest.approx(1.0)
    with pytest.raises(InputError, match="reference"):
        hypervolume([], (1.0, 1.0))


def record(accuracy: float, dp: float, split: int, strength: float = 0.0) -> dict[str, object]:
    test = {"accuracy": accuracy, "dp": dp, "eo": None, "auc": 0.5}
    run = {"test": test, "seconds": 1.0}
    return {"split": split, "strength": strength, "majority": 0.5, "run": run}


def test_the_interval_over_splits_is_the_means_where_the_area_is_linear() -> None:
    accuracies = [0.7, 0.75, 0.72, 0.9, 0.8]
    found = over_splits([record(a, 0.0, k) for k, a in enumerate(accuracies)])
    expected = mean_interval([(a - 0.5) / 0.5 for a in accuracies])
    assert found == pytest.approx(expected)


def test_luck_on_one_split_makes_no_front() -> None:
    # Each strength is once perfect and once no better than a constant: on average neither is good.
    some = [record(1.0 if k == s else 0.5, 0.0, k, float(s)) for k in range(2) for s in range(2)]
    assert over_splits(some).mean == pytest.approx(0.5)


def lines() -> list:
    def run(accuracy: float, dp: float) -> dict[str, object]:
        return {"test": {"accuracy": accuracy, "dp": dp, "eo": None, "auc": 0.5}, "seconds": 1.0}

    return summarise(
        [
            {"name": "MLP", "run": run(0.8, 0.10)},
            {"name": "MLP", "run": run(0.9, 0.20)},
            {"name": "FMP λ_f=1 & more", "run": run(0.7, 0.01)},
        ]
    )


def test_the_best_of_each_column_is_bold() -> None:
    table = of_lines("NBA", lines())
    assert table.header[2:4] == ["accuracy %", "ΔDP"]
    assert {place for place in table.bold if place[1] in (2, 3)} == {(0, 2), (1, 3)}
    assert not any(column == 4 for _, column in table.bold)  # ΔEO is known of none
    text = markdown([table])
    assert "**85.0 [80.0, 90.0]**" in text
    assert "**1.0**" in text
    tex = latex([table])
    assert "\\textbf{85.0 [80.0, 90.0]}" in tex
    assert "FMP $\\lambda_f$=1 \\& more" in tex
    assert tex.count("\\begin{tabular}") == tex.count("\\end{tabular}") == 1
    widths = {line.count(" & ") for line in tex.splitlines() if " & " in line}
    assert widths == {len(table.header) - 1}


def test_ties_to_the_digit_shown_are_all_best() -> None:
    assert best([0.8114, 0.8111, 0.7, math.nan]) == {0, 1}
    assert best([math.nan]) == set()


def test_csv_has_the_numbers() -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv({"NBA": lines()}))))
    assert [row["method"] for row in rows] == ["MLP", "FMP λ_f=1 & more"]
    assert float(rows[0]["accuracy"]) == pytest.approx(0.85)
    assert rows[0]["eo"] == rows[1]["accuracy_low"] == ""
    assert float(rows[0]["dp_low"]) < 0.15 < float(rows[0]["dp_high"])


def test_hypervolumes_of_data_sets_side_by_side() -> None:
    values = {
        "NBA": {"MLP": Interval(0.2, 0.1, 0.3, 5), "FMP": Interval(0.4, 0.3, 0.5, 5)},
        "Bail": {"MLP": Interval(0.3, math.nan, math.nan, 1)},
    }
    table = of_hypervolumes("volumes", values)
    assert table.rows == [["MLP", "20.0 ± 10.0", "30.0"], ["FMP", "40.0 ± 10.0", "n/a"]]
    assert table.bold == {(1, 1), (0, 2)}


def test_curves_draw_a_family_each_and_the_front() -> None:
    mlp, fmp = lines()
    figure = curves({"MLP": [mlp], "FMP": [fmp]}, "NBA")
    [axes] = figure.axes
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["MLP", "FMP"]
    dashed = [line for line in axes.lines if line.get_linestyle() == "--"]
    assert [tuple(dashed[0].get_xdata())] == [pytest.approx((1.0, 15.0))]

"""Criteria: what is compared, among which nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fairmp.errors import InputError
from fairmp.postprocessing import criteria
from fairmp.postprocessing.criteria import Criterion, Problem, read_problem
from fairmp.postprocessing.predictions import attributes, read_scores
from fairmp.postprocessing.solver import debias

P = np.array([0.2, 0.4, 0.6, 0.9])


def problem(**arguments: object) -> Problem:
    settings = {"y": None, "class_names": None, "sample_weight": None} | arguments
    return read_problem(read_scores(P), attributes([0, 0, 1, 1], 4), **settings)  # type: ignore[arg-type]


def test_read_problem_fills_in_defaults() -> None:
    plain = problem()
    assert plain.classes == ("0", "1")
    assert plain.y.tolist() == [-1] * 4
    assert plain.population.all()
    assert not plain.is_weighted
    assert plain.logits is plain.scores.logits


def test_read_problem_reads_names_weights_and_population() -> None:
    read = problem(
        y=["no", "yes", "", "no"], sample_weight=[1, 2, 1, 1], population=np.arange(4) > 0
    )
    assert read.classes == ("no", "yes")
    assert read.y.tolist() == [0, 1, -1, 0]
    assert read.is_weighted
    assert read.population.tolist() == [False, True, True, True]


@pytest.mark.parametrize(
    ("arguments", "argument"),
    [
        ({"y": [0, 1]}, "y"),
        ({"y": [0, 1, 2, 0]}, "y"),
        ({"class_names": ["a", "b", "c"]}, "class_names"),
        ({"sample_weight": [1, -1, 1, 1]}, "sample_weight"),
        ({"population": [True]}, "population"),
    ],
)
def test_read_problem_names_wrong_arguments(arguments: dict[str, object], argument: str) -> None:
    with pytest.raises(InputError) as error:
        problem(**arguments)
    assert error.value.argument == argument


def measures(
    criterion: Any, target: float, shape: tuple[int, int], sens: Any, y: Any = None
) -> tuple[tuple[criteria.Measure, ...], tuple[str, ...]]:
    """Measurements of all of n nodes, for predictions of a shape (n×C)."""
    n, classes = shape
    scores = read_scores(np.full(shape, 1 / classes))
    problem = read_problem(scores, attributes(sens, n), y, class_names=None, sample_weight=None)
    return criteria.measures_of(criteria.read_criteria(criterion, target), problem)


def probabilities(seed: int, n: int, classes: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.ones(classes), n)


def test_read_criteria_takes_one_target_or_one_for_each() -> None:
    both = criteria.read_criteria(["dp", "equalized-odds"], {"dp": 0.3, "Equalized-Odds": 0.1})
    assert both == [Criterion("demographic_parity", 0.3), Criterion("equalized_odds", 0.1)]
    assert criteria.read_criteria("eo", 0.2) == [Criterion("equal_opportunity", 0.2)]
    assert [
        criterion.target for criterion in criteria.read_criteria(["dp", "eo"], np.array([0.1, 0.2]))
    ] == [
        0.1,
        0.2,
    ]


def test_measures_compare_groups_among_labelled_nodes() -> None:
    sens = ["a", "a", "b", "b", "c", "c", "c", ""]
    labels = torch.tensor([0, 1, 1, -1, 1, 1, 2, 1])
    read, warnings = measures("equal_opportunity", 0.0, (8, 3), sens, labels)
    # Class 0 is labelled in one group, class 2 in one: class 1 alone is left.
    (measure,) = read
    assert (measure.labels, measure.classes) == ((1,), (1,))
    expected = np.zeros((3, 8))
    for row, nodes in enumerate(([1], [2], [4, 5])):
        expected[row, nodes] = 1 / len(nodes)
        expected[row, [1, 2, 4, 5]] -= 1 / 4
    np.testing.assert_allclose(measure.delta.matrix, expected)
    assert sum("fewer than two groups" in warning for warning in warnings) == 2
    assert sum("one labelled node" in warning for warning in warnings) == 2


def test_measures_leave_out_a_group_without_labels() -> None:
    p = probabilities(3, 60, 2)
    sens = np.arange(60) % 3
    labels = np.where(sens == 2, 0, np.arange(60) // 3 % 2)
    result = debias(
        p,
        sens,
        criterion="equalized_odds",
        y=labels,
        target=0.01,
        full_output=True,
        on="probabilities",
    )
    assert any("no labelled node in group '2'" in warning for warning in result.warnings)
    q = result.predictions
    rate = [q[(sens == g) & (labels == 1), 1].mean() for g in (0, 1)]
    assert abs(rate[0] - rate[1]) <= 0.0101


def test_equal_opportunity_of_two_classes_is_about_class_1() -> None:
    labels = torch.arange(40) % 2
    sens = (torch.arange(40) // 2) % 2
    read, _ = measures("equal_opportunity", 0.0, (40, 2), sens, labels)
    assert [(measure.labels, measure.classes) for measure in read] == [((1,), (1,))]


@pytest.mark.parametrize(
    ("criterion", "target", "argument"),
    [
        ([object()], 0.0, "criterion"),
        ("fairness", 0.0, "criterion"),
        (["dp", "demographic-parity"], 0.0, "criterion"),
        ([], 0.0, "criterion"),
        ("dp", True, "target"),
        ("dp", "0.1", "target"),
        ("dp", -0.1, "target"),
        ("dp", [0.1, 0.2], "target"),
        ("dp", {"eo": 0.1}, "target"),
    ],
)
def test_read_criteria_names_wrong_values(criterion: Any, target: object, argument: str) -> None:
    with pytest.raises(InputError) as error:
        criteria.read_criteria(criterion, target)
    assert error.value.argument == argument


@given(
    seed=st.integers(0, 1000),
    groups=st.integers(3, 6),
    classes=st.integers(2, 4),
    target=st.sampled_from([0.0, 0.02, 0.1]),
)
def test_target_bounds_the_distance_of_any_two_groups(
    seed: int, groups: int, classes: int, target: float
) -> None:
    rng = np.random.default_rng(seed)
    sens = np.r_[np.arange(2 * groups) % groups, rng.integers(0, groups, 100)]
    z = rng.normal(size=(len(sens), classes)) + rng.normal(size=(groups, classes))[sens]
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    result = debias(p, sens, target=target, full_output=True, on="probabilities")
    means = np.array([result.predictions[sens == g].mean(0) for g in range(groups)])
    widest = np.ptp(means, axis=0).max()
    assert result.criteria[0].after == pytest.approx(widest, abs=1e-9)
    assert widest <= target + 1e-4
    before = np.array([p[sens == g].mean(0) for g in range(groups)])
    assert widest == pytest.approx(min(target, np.ptp(before, axis=0).max()), abs=1e-4)


def test_target_bounds_the_distance_of_many_groups() -> None:
    rng = np.random.default_rng(0)
    sens = np.arange(1000) % 25
    p = 1 / (1 + np.exp(-rng.normal(size=1000) - rng.normal(size=25)[sens]))
    fair = debias(p, sens, target=0.1, on="probabilities")
    means = np.array([fair[sens == g].mean() for g in range(25)])
    assert 0.05 < np.ptp(means) <= 0.1001

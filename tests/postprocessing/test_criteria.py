"""Criteria, their feasibility, and the closest predictions that meet a matrix of one's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import LinearConstraint, linprog, minimize
from scipy.sparse import csr_array

from fairmp.errors import InputError
from fairmp.groups import group_operator
from fairmp.postprocessing import criteria
from fairmp.postprocessing.predictions import attributes, read
from fairmp.postprocessing.solver import debias


def measures(
    criterion: Any, target: float, shape: tuple[int, int], sens: Any = None, labels: Any = None
) -> tuple[list[criteria.Measure], list[str]]:
    """Measurements of all of n nodes, for predictions of a shape (n×C)."""
    n, classes = shape
    given, own = read(np.full(shape, 1 / classes)), attributes(sens, n)
    problem = criteria.read_problem(given, own, labels, None, None)
    return criteria.measures(criteria.read(criterion, target, n), problem)


def probabilities(seed: int, n: int, classes: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.ones(classes), n)


def closest(p: np.ndarray, delta: np.ndarray, target: float) -> np.ndarray:
    """The projection by brute force: scipy over every single probability."""
    n, classes = p.shape
    gaps = np.kron(delta, np.eye(classes))
    whole = np.kron(np.eye(n), np.ones((1, classes)))
    found = minimize(
        lambda q: float((q * np.log(np.maximum(q, 1e-12) / p.ravel())).sum()),
        np.full(p.size, 1 / classes),
        jac=lambda q: np.log(np.maximum(q, 1e-12) / p.ravel()) + 1,
        bounds=[(1e-9, 1)] * p.size,
        constraints=[
            LinearConstraint(whole, 1, 1),
            LinearConstraint(gaps, -target, target),
        ],
        method="SLSQP",
        options={"maxiter": 500, "ftol": 1e-14},
    )
    assert found.success, found.message
    return np.asarray(found.x.reshape(p.shape))


@pytest.mark.parametrize("target", [0.2, 0.3])
@pytest.mark.parametrize("balanced", [True, False])
def test_a_matrix_gives_the_closest_predictions(balanced: bool, target: float) -> None:
    p = probabilities(1, 7, 3)
    delta = np.random.default_rng(2).normal(size=(2, 7))
    delta = delta - delta.mean(1, keepdims=True) if balanced else delta / 2
    corrected = debias(p, None, criterion=delta, target=target)
    assert np.abs(delta @ corrected).max() <= target + 1e-4
    assert np.abs(delta @ p).max() > target
    np.testing.assert_allclose(corrected, closest(p, delta, target), atol=1e-3)


def test_the_groups_difference_as_a_matrix_is_demographic_parity() -> None:
    p = probabilities(0, 200, 3)
    sens = np.arange(200) % 2
    p[sens == 1] = 0.7 * p[sens == 1] + 0.3 * np.array([1.0, 0, 0])
    delta = group_operator(torch.from_numpy(sens)).matrix.numpy()
    expected = debias(p, sens, target=0.01)
    for matrix in (delta, torch.from_numpy(delta), csr_array(delta), delta.tolist()):
        np.testing.assert_allclose(debias(p, None, criterion=matrix, target=0.01), expected)
    # The scale of a matrix is its user's, and its target with it.
    scaled = debias(p, None, criterion=100 * delta, target=1.0)
    np.testing.assert_allclose(scaled, expected, atol=1e-6)


@given(
    seed=st.integers(0, 1000),
    rows=st.integers(1, 3),
    classes=st.integers(2, 3),
    target=st.sampled_from([0.0, 0.1, 0.5]),
)
def test_a_target_is_held_or_the_smallest_one_is_named(
    seed: int, rows: int, classes: int, target: float
) -> None:
    rng = np.random.default_rng(seed)
    n = 8
    delta = rng.choice([-1.0, 0.0, 0.0, 0.5, 1.0], size=(rows, n)) / 2
    delta[:, 0] = 0.5
    p = probabilities(seed, n, classes)
    found, _ = measures(delta, target, (n, classes))
    short = criteria.shortfall(found, classes)
    assert short == pytest.approx(max(by_node(delta, classes) - target, 0.0), abs=1e-7)
    if short > 1e-6:
        with pytest.raises(InputError, match="smallest target that can be reached"):
            debias(p, None, criterion=delta, target=target)
    elif short == 0.0:
        corrected = debias(p, None, criterion=delta, target=min(target + 0.02, 1.0))
        assert np.abs(delta @ corrected).max() <= target + 0.02 + 1e-4
        np.testing.assert_allclose(corrected.sum(1), 1)


def by_node(delta: np.ndarray, classes: int) -> float:
    """The smallest gap any predictions have: a program with a variable a node and class."""
    rows, n = delta.shape
    gaps = np.kron(delta, np.eye(classes))
    slack = -np.ones((rows * classes, 1))
    found = linprog(
        np.r_[np.zeros(n * classes), 1.0],
        A_ub=np.r_[np.c_[gaps, slack], np.c_[-gaps, slack]],
        b_ub=np.zeros(2 * rows * classes),
        A_eq=np.c_[np.kron(np.eye(n), np.ones((1, classes))), np.zeros(n)],
        b_eq=np.ones(n),
    )
    return float(found.fun)


def test_an_infeasible_combination_is_reported() -> None:
    p = probabilities(0, 100, 2)
    sens = np.arange(100) % 2
    # Group 0 should be predicted class 1 by 40 points less than it weighs, and yet like group 1.
    group = np.where(sens == 0, 1 / 50, 0.0)
    debias(p, sens, criterion=["demographic_parity", group], target=[0.0, 0.55])
    with pytest.raises(InputError) as error:
        debias(p, sens, criterion=["demographic_parity", group], target=[0.0, 0.3])
    message = str(error.value)
    assert "'demographic_parity' and 'matrix' together" in message
    assert "0.2 larger" in message


def test_criteria_are_read() -> None:
    matrix = np.ones((1, 4))
    found = criteria.read(
        {"mine": matrix, "x": "equalized-odds"}, {"mine": 3.0, "equalized_odds": 0.1}, 4
    )
    assert [(one.name, one.target) for one in found] == [("mine", 3.0), ("equalized_odds", 0.1)]
    several = criteria.read(["dp", matrix, 2 * matrix], [0.0, 1.0, 2.0], 4)
    assert [one.name for one in several] == ["demographic_parity", "matrix", "matrix 2"]


def test_measures_of_labelled_nodes() -> None:
    sens = ["a", "a", "b", "b", "c", "c", "c", ""]
    labels = torch.tensor([0, 1, 1, -1, 1, 1, 2, 1])
    found, warnings = measures("equal_opportunity", 0.0, (8, 3), sens, labels)
    # Class 0 is labelled in one group, class 2 in one: class 1 alone is left.
    (one,) = found
    assert (one.label, one.classes) == (1, (1,))
    expected = np.zeros((3, 8))
    for row, nodes in enumerate(([1], [2], [4, 5])):
        expected[row, nodes] = 1 / len(nodes)
        expected[row, [1, 2, 4, 5]] -= 1 / 4
    np.testing.assert_allclose(one.delta.matrix, expected)
    assert sum("fewer than two groups" in warning for warning in warnings) == 2
    assert sum("one labelled node" in warning for warning in warnings) == 2


def test_an_empty_group_is_left_out_and_told() -> None:
    p = probabilities(3, 60, 2)
    sens = np.arange(60) % 3
    labels = np.where(sens == 2, 0, np.arange(60) // 3 % 2)
    found = debias(
        p, sens, criterion="equalized_odds", labels=labels, target=0.01, full_output=True
    )
    assert any("no labelled node in group '2'" in warning for warning in found.warnings)
    q = found.predictions
    rate = [q[(sens == g) & (labels == 1), 1].mean() for g in (0, 1)]
    assert abs(rate[0] - rate[1]) <= 0.0101


def test_two_classes_ask_of_the_positive_one_alone() -> None:
    labels = torch.arange(40) % 2
    sens = (torch.arange(40) // 2) % 2
    found, _ = measures("equal_opportunity", 0.0, (40, 2), sens, labels)
    assert [(one.label, one.classes) for one in found] == [(1, (1,))]


@pytest.mark.parametrize(
    ("criterion", "target", "words"),
    [
        (object(), 0.0, ["object", "matrix"]),
        (np.ones((501, 4)), 0.0, ["(501, 4)", "500 rows"]),
        (np.ones((1, 4)), -1.0, ["target: -1"]),
        (np.ones((1, 4)), float("inf"), ["target: inf"]),
        ("dp", True, ["target: True"]),
        ("dp", "0.1", ["target: '0.1'"]),
    ],
)
def test_wrong_criteria_are_named(criterion: object, target: object, words: list[str]) -> None:
    with pytest.raises(InputError) as error:
        criteria.read(criterion, target, 4)
    assert all(word in str(error.value) for word in words), str(error.value)


@given(
    seed=st.integers(0, 1000),
    groups=st.integers(3, 6),
    classes=st.integers(2, 4),
    target=st.sampled_from([0.0, 0.02, 0.1]),
)
def test_the_target_bounds_the_distance_of_any_two_groups(
    seed: int, groups: int, classes: int, target: float
) -> None:
    rng = np.random.default_rng(seed)
    sens = np.r_[np.arange(2 * groups) % groups, rng.integers(0, groups, 100)]
    z = rng.normal(size=(len(sens), classes)) + rng.normal(size=(groups, classes))[sens]
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    found = debias(p, sens, target=target, full_output=True)
    means = np.array([found.predictions[sens == g].mean(0) for g in range(groups)])
    widest = np.ptp(means, axis=0).max()
    assert found.criteria[0].after == pytest.approx(widest, abs=1e-9)
    assert widest <= target + 1e-4
    before = np.array([p[sens == g].mean(0) for g in range(groups)])
    assert widest == pytest.approx(min(target, np.ptp(before, axis=0).max()), abs=1e-4)


def test_many_groups_are_bounded_too() -> None:
    rng = np.random.default_rng(0)
    sens = np.arange(1000) % 25
    p = 1 / (1 + np.exp(-rng.normal(size=1000) - rng.normal(size=25)[sens]))
    fair = debias(p, sens, target=0.1)
    means = np.array([fair[sens == g].mean() for g in range(25)])
    assert 0.05 < np.ptp(means) <= 0.1001

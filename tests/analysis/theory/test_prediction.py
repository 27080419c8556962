from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from fairmp.analysis.theory import (
    bias_of,
    blocks,
    group_moments,
    mutual_information_bound,
    predicted_change,
    predicted_moments,
)
from fairmp.analysis.theory.block_model import block_graph
from fairmp.analysis.theory.measurement import averaged, measured_moments
from fairmp.errors import InputError
from tests.analysis.theory.closed_forms import neighbourhood

MEANS = np.array([[0.0, 1.0], [1.5, -0.5], [0.3, 0.3]])
COVARIANCES = np.array(
    [[[1.0, 0.2], [0.2, 2.0]], [[0.5, 0.0], [0.0, 0.5]], [[1.0, -0.3], [-0.3, 1.0]]]
)
SIZES = np.array([4, 3, 2])
CHANCE = np.array([[0.5, 0.2, 0.9], [0.2, 1.0, 0.0], [0.9, 0.0, 0.3]])


def enumerate_inverse_root(
    trials: np.ndarray, chance: np.ndarray, fixed: int, kappa: float
) -> float:
    """E[(own + Σ a)^−κ] over every outcome."""
    return sum(
        np.prod(binom.pmf(counts, trials, chance)) * (fixed + sum(counts)) ** -kappa
        for counts in product(*(range(t + 1) for t in trials))
    )


def enumerate_step(group: int, theta: float) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of one node's new features, over every neighbourhood."""
    groups = len(SIZES)
    trials = SIZES - (np.arange(groups) == group)
    handed, spread = [], []
    for h in range(groups):
        half = whole = 1.0
        if theta != 1:
            seen = SIZES - (np.arange(groups) == h) - (np.arange(groups) == group)
            half, whole = (
                enumerate_inverse_root(np.maximum(seen, 0), CHANCE[h], 2, kappa)
                for kappa in (0.5, 1.0)
            )
        square = np.outer(MEANS[h], MEANS[h])
        handed.append(half * MEANS[h])
        spread.append(whole * (COVARIANCES[h] + square) - half**2 * square)
    first, second = np.zeros(2), np.zeros((2, 2))
    for counts in product(*(range(t + 1) for t in trials)):
        weight = np.prod(binom.pmf(counts, trials, CHANCE[group]))
        degree = 1 + sum(counts)
        mean = MEANS[group] / degree + degree**-theta * np.dot(counts, handed)
        noise = COVARIANCES[group] / degree**2 + degree ** (-2 * theta) * np.einsum(
            "h,hij->ij", np.array(counts, float), np.array(spread)
        )
        first += weight * mean
        second += weight * (noise + np.outer(mean, mean))
    return first, second - np.outer(first, first)


@pytest.mark.parametrize(("normalisation", "theta"), [("row", 1.0), ("symmetric", 0.5)])
def test_one_step_is_exact_over_every_neighbourhood(normalisation: str, theta: float) -> None:
    after = predicted_moments(SIZES, CHANCE, MEANS, COVARIANCES, normalisation=normalisation)
    for group in range(3):
        mean, covariance = enumerate_step(group, theta)
        np.testing.assert_allclose(after.means[group], mean, atol=1e-9)
        np.testing.assert_allclose(after.covariances[group], covariance, atol=1e-9)


@pytest.mark.parametrize("rate", [1e-4, 0.5, 7.0, 40.5, 41.5, 300.0, 1e5])
def test_quadrature_holds_for_sparse_and_dense_graphs(rate: float) -> None:
    n = 10**7
    after = predicted_moments([n, n], np.full((2, 2), rate / (2 * n)), [[1.0], [-1.0]], np.eye(1))
    # With equal probabilities a node's own share 1/d is what is left of its mean, but for the one
    # neighbour that its own group has less to offer.
    others = 2 * n - 1
    share = -np.expm1((others + 1) * np.log1p(-rate / (2 * n))) / ((others + 1) * rate / (2 * n))
    expected = share - (1 - share) / others
    np.testing.assert_allclose(after.means[:, 0], [expected, -expected], rtol=1e-8)


@settings(max_examples=25, deadline=None)
@given(
    st.floats(0, 1),
    st.floats(0.1, 0.9),
    st.integers(1, 3),
    st.lists(st.floats(-5, 5), min_size=2, max_size=2),
)
def test_row_weights_move_with_the_features(
    eps: float, c: float, steps: int, shift: list[float]
) -> None:
    model = blocks(1000, 0.02, eps, c)
    plain = predicted_moments(*model, MEANS[:2], COVARIANCES[:2], steps=steps)
    moved = predicted_moments(*model, MEANS[:2] + shift, COVARIANCES[:2], steps=steps)
    np.testing.assert_allclose(moved.means, plain.means + shift, atol=1e-8)
    np.testing.assert_allclose(moved.covariances, plain.covariances, atol=1e-8)


@pytest.mark.parametrize("normalisation", ["row", "symmetric"])
@pytest.mark.parametrize("steps", [0, 1, 3])
def test_groups_can_be_named_in_any_order(normalisation: str, steps: int) -> None:
    order = np.array([2, 0, 1])
    chance = np.array([[0.02, 0.01, 0.005], [0.01, 0.03, 0.0], [0.005, 0.0, 0.04]])
    sizes = np.array([500, 300, 200])
    options = {"steps": steps, "normalisation": normalisation}
    plain = predicted_moments(sizes, chance, MEANS, COVARIANCES, **options)
    shuffled = predicted_moments(
        sizes[order], chance[np.ix_(order, order)], MEANS[order], COVARIANCES[order], **options
    )
    np.testing.assert_allclose(shuffled.means, plain.means[order])
    np.testing.assert_allclose(shuffled.covariances, plain.covariances[order])


def test_no_steps_change_nothing() -> None:
    change = predicted_change(*blocks(1000, 0.01, 0.7, 0.5), steps=0)
    assert change.gap == change.parity == change.information == 0


@pytest.mark.parametrize("normalisation", ["row", "symmetric"])
@pytest.mark.parametrize("steps", [1, 2])
def test_arrays_agree_with_scalars(normalisation: str, steps: int) -> None:
    n, rho = np.array([[2000], [5000]]), np.array([2e-3, 5e-3, 1e-2])
    options = {"steps": steps, "normalisation": normalisation, "covariances": COVARIANCES[:2]}
    table = predicted_change(*blocks(n, rho, 0.7, 0.4), **options)
    single = predicted_change(*blocks(5000, 2e-3, 0.7, 0.4), **options)
    for quantity in ("gap", "parity", "information"):
        assert getattr(table, quantity).shape == (2, 3)
        assert getattr(table, quantity)[1, 0] == pytest.approx(getattr(single, quantity))


def test_blocks_of_two_groups_are_the_model() -> None:
    sizes, chance = blocks(3000, 5e-3, 0.8, 0.3)
    one = predicted_change(*blocks(3000, 5e-3, 0.8, 0.3))
    two = predicted_change(sizes, chance, means=[[0, 1], [1, 0]], covariances=np.eye(2))
    assert one == two


def test_counterexample_is_predicted_to_lose_bias() -> None:
    change = predicted_change(*blocks(20_000, 5e-4, 0.64, 0.5))
    assert change.information < -0.02
    assert change.parity < -0.02
    # Two steps add bias where one takes it away.
    assert predicted_change(*blocks(20_000, 5e-4, 0.64, 0.5), steps=2).information > 0.05


def test_bias_of_moments() -> None:
    weights = np.array([0.5, 0.3, 0.2])
    bias = bias_of(group_moments(MEANS, COVARIANCES, weights))
    assert bias.gap == pytest.approx(np.hypot(1.5, 1.5))
    assert bias.information == mutual_information_bound(MEANS, COVARIANCES, weights)
    pair = bias_of(group_moments(MEANS[:2], COVARIANCES[:2], weights[:2] / 0.8))
    assert bias.parity >= pair.parity


def simulate(model: tuple, steps: int, normalisation: str, seeds: int) -> list[np.ndarray]:
    gaps = []
    for seed in range(seeds):
        data = block_graph(*model, covariances=COVARIANCES[:2], seed=seed)
        *_, x = averaged(data.x.numpy(), data.edge_index, steps, normalisation)
        means = measured_moments(torch.from_numpy(x), data.sens).means
        gaps.append(means[0] - means[1])
    return gaps


@pytest.mark.parametrize("normalisation", ["row", "symmetric"])
@pytest.mark.parametrize("steps", [2, 3])
def test_more_steps_follow_the_tree(normalisation: str, steps: int) -> None:
    model = (20_000, 1e-3, 0.75, 0.4)
    means = [[0, 1], [1, 0]]
    after = predicted_moments(
        *blocks(*model), means, COVARIANCES[:2], steps=steps, normalisation=normalisation
    )
    predicted = after.means[0] - after.means[1]
    measured = np.mean(simulate(model, steps, normalisation, 4), axis=0)
    np.testing.assert_allclose(measured, predicted, rtol=0.08)
    if normalisation == "row":
        # Powers of one step's matrix leave out the walks that turn back, and fall short.
        nu1, nu2, *_ = neighbourhood(*model)
        naive = (nu1 - nu2) ** steps
        assert abs(measured[1] - predicted[1]) < abs(measured[1] - naive) / 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": -1}, r"steps: -1"),
        ({"normalisation": "none"}, r"normalisation: 'none' is unknown"),
        ({"covariances": -np.eye(2)}, r"covariances: smallest eigenvalue -1"),
        ({"means": [[0.0], [1.0]]}, r"means: shape \(2, 1\) with covariances of shape \(2, 2\)"),
        ({"sizes": [0.5, 10]}, r"sizes: 0.5 is below 1"),
        ({"sizes": [10, 10, 10]}, r"sizes: shape \(3,\)"),
        ({"probabilities": [[0.1, 1.2], [1.2, 0.1]]}, r"probabilities: 1.2 is outside \[0, 1\]"),
        ({"probabilities": [[0.1, 0.2], [0.3, 0.1]]}, r"probabilities: not symmetric"),
        ({"probabilities": np.diag([0.1, 0.0]), "steps": 2}, r"probabilities: a group has 0 neigh"),
    ],
)
def test_wrong_input_is_refused(options: dict, message: str) -> None:
    arguments = {
        "sizes": [10, 10],
        "probabilities": np.full((2, 2), 0.1),
        "means": np.eye(2),
        "covariances": np.eye(2),
    } | options
    with pytest.raises(InputError, match=message):
        predicted_moments(**arguments)

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from fairmp.analysis.theory import gaussian_kl, mutual_information, mutual_information_bound
from fairmp.errors import InputError


def mixture(seed: int, groups: int, d: int, spread: float) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    root = rng.standard_normal((groups, d, d))
    covariances = root @ root.swapaxes(1, 2) / d + 0.1 * np.eye(d)
    weights = rng.dirichlet(np.full(groups, 2.0)) * 0.98 + 0.02 / groups
    return spread * rng.standard_normal((groups, d)), covariances, weights


mixtures = st.builds(
    mixture,
    seed=st.integers(0, 2**32 - 1),
    groups=st.integers(2, 5),
    d=st.integers(1, 8),
    spread=st.floats(0, 6),
)


@settings(max_examples=40, deadline=None)
@given(mixtures)
def test_kl_agrees_with_torch(parts: tuple[np.ndarray, ...]) -> None:
    mu, sigma, _ = parts
    first, second = (
        torch.distributions.MultivariateNormal(torch.tensor(mu[k]), torch.tensor(sigma[k]))
        for k in (0, 1)
    )
    expected = float(torch.distributions.kl_divergence(first, second))
    assert gaussian_kl(mu[0], sigma[0], mu[1], sigma[1]) == pytest.approx(expected, rel=1e-8)


def test_kl_takes_numbers_and_arrays() -> None:
    by_hand = 0.5 * (2 / 3 - 1 + 4 / 3 + np.log(3 / 2))
    assert gaussian_kl(1.0, 2.0, 3.0, 3.0) == pytest.approx(by_hand)
    batch = gaussian_kl(np.array([[0.0], [1.0]]), 2.0, [3.0], 3.0)
    assert batch.shape == (2,)
    assert batch[1] == pytest.approx(by_hand)


@settings(max_examples=60, deadline=None)
@given(mixtures)
def test_bound_lies_above_the_mutual_information(parts: tuple[np.ndarray, ...]) -> None:
    bound = mutual_information_bound(*parts)
    value, error = mutual_information(*parts, samples=2000)
    entropy = -(parts[2] * np.log(parts[2])).sum()
    assert bound >= value - 5 * error - 1e-9
    assert 0 <= bound <= entropy + 1e-9


@settings(max_examples=40, deadline=None)
@given(mixtures)
def test_bound_lies_below_the_convexity_bound(parts: tuple[np.ndarray, ...]) -> None:
    mu, sigma, c = parts
    pairs = gaussian_kl(mu[:, None], sigma[:, None], mu[None], sigma[None])
    assert mutual_information_bound(*parts) <= c @ pairs @ c + 1e-9


@settings(max_examples=30, deadline=None)
@given(mixtures, st.integers(0, 1000))
def test_bound_does_not_depend_on_the_order_of_groups(
    parts: tuple[np.ndarray, ...], seed: int
) -> None:
    order = np.random.default_rng(seed).permutation(len(parts[2]))
    shuffled = tuple(part[order] for part in parts)
    assert mutual_information_bound(*shuffled) == pytest.approx(mutual_information_bound(*parts))


@settings(max_examples=30, deadline=None)
@given(mixtures, st.floats(0.05, 0.95))
def test_bound_of_two_groups_is_the_printed_form(parts: tuple[np.ndarray, ...], c: float) -> None:
    mu, sigma = parts[0][:2], parts[1][:2]
    d12, d21 = (
        gaussian_kl(mu[0], sigma[0], mu[1], sigma[1]),
        gaussian_kl(mu[1], sigma[1], mu[0], sigma[0]),
    )
    printed = -(1 - c) * np.log((1 - c) + c * np.exp(-d12)) - c * np.log(c + (1 - c) * np.exp(-d21))
    assert mutual_information_bound(mu, sigma, [1 - c, c]) == pytest.approx(printed, abs=1e-9)


@settings(max_examples=20, deadline=None)
@given(mixtures)
def test_bound_is_tight_at_both_ends(parts: tuple[np.ndarray, ...]) -> None:
    mu, sigma, c = parts
    equal_groups = (np.broadcast_to(mu[:1], mu.shape), np.broadcast_to(sigma[:1], sigma.shape), c)
    assert mutual_information_bound(*equal_groups) == pytest.approx(0, abs=1e-9)
    assert mutual_information(*equal_groups, samples=100).value == pytest.approx(0, abs=1e-9)
    far = (1e4 * np.arange(1.0, len(mu) + 1)[:, None] + mu, sigma, c)
    entropy = -(c * np.log(c)).sum()
    assert mutual_information_bound(*far) == pytest.approx(entropy)
    assert mutual_information(*far, samples=100).value == pytest.approx(entropy)


def test_monte_carlo_agrees_with_quadrature() -> None:
    weights, means, deviations = np.array([0.3, 0.5, 0.2]), [0.0, 1.0, -2.0], [1.0, 0.5, 1.5]

    def integrand(x: float) -> float:
        densities = norm.pdf(x, means, deviations)
        return float((weights * densities * np.log(densities / (weights @ densities))).sum())

    expected = quad(integrand, -9, 9, epsabs=1e-10, limit=200)[0]
    variances = np.square(deviations)[:, None, None]
    estimate = mutual_information(np.array(means)[:, None], variances, weights, samples=200_000)
    assert abs(estimate.value - expected) < 4 * estimate.standard_error
    assert estimate.standard_error < 0.002


def test_bound_broadcasts_over_weights_and_means() -> None:
    c = np.linspace(0.1, 0.9, 5)
    many = mutual_information_bound(
        np.ones((7, 1, 2, 1)) * [[0.0], [1.0]], np.eye(1), np.stack([1 - c, c], -1)
    )
    assert many.shape == (7, 5)
    assert many[3, 2] == mutual_information_bound([[0.0], [1.0]], np.eye(1), [0.5, 0.5])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gaussian_kl(0, -1, 0, 1), r"sigma1: smallest eigenvalue -1 is not positive"),
        (lambda: gaussian_kl([0, 0], np.eye(2), [0, 0], np.ones((2, 2))), r"sigma2: smallest"),
        (lambda: gaussian_kl([0, 0], [[1, 2], [0, 1]], [0, 0], np.eye(2)), r"sigma1: is not symm"),
        (lambda: gaussian_kl([0, 0], np.eye(2), [0, 0, 0], np.eye(3)), r"mu1: 2 dimensions"),
        (lambda: gaussian_kl(0, np.nan, 0, 1), r"sigma1: contains values that are not finite"),
        (lambda: gaussian_kl([0, 0], np.ones((2, 3)), [0, 0], np.eye(2)), r"sigma1: .* not square"),
        (lambda: mutual_information_bound([[0.0]], np.eye(1), [1.0]), r"means: shape \(1, 1\)"),
        (lambda: mutual_information_bound(np.eye(2), np.eye(3), [0.5, 0.5]), r"means: shape"),
        (lambda: mutual_information_bound(np.eye(2), np.eye(2), [0.5, 0.6]), r"weights: .* sum of"),
        (lambda: mutual_information_bound(np.eye(2), np.eye(2), [1.0]), r"weights: shape \(1,\)"),
        (lambda: mutual_information(np.eye(2), np.eye(2), [0.5, 0.5], samples=1), r"samples: 1"),
        (lambda: mutual_information(np.ones((3, 2, 1)), 1.0, [0.5, 0.5]), r"means: .* one mixture"),
    ],
)  # fmt: skip
def test_wrong_input_is_refused(call: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()  # type: ignore[operator]

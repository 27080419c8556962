"""Predicted moments and bias of features after averaging, without sampling a graph."""

from __future__ import annotations

from functools import cache
from itertools import combinations
from math import gamma
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fairmp.analysis.theory.bounds import Moments, as_moments, mutual_information_bound
from fairmp.analysis.theory.conditions import COVARIANCE, MEANS, Normalisation, blocks, exponent
from fairmp.errors import InputError, check_integer


class Bias(NamedTuple):
    """Three measures of the bias of features; gap and parity are the largest over pairs of groups.

    Parity is the demographic-parity gap of the linear decision along
    w = (c₁Σ₁ + c₂Σ₂)⁻¹(μ₁ − μ₂), with its threshold midway between the two means.
    """

    gap: Any  # distance between the groups' means, ‖μ₁ − μ₂‖, in units of the features
    parity: Any  # in [0, 1]
    information: Any  # Theorem 1's bound on the information about the group, in nats


class Change(NamedTuple):
    """Bias before and after averaging; the properties are differences, after − before."""

    before: Bias
    after: Bias

    @property
    def gap(self) -> Any:
        """Distance between the groups' means, after − before."""
        return self.after.gap - self.before.gap

    @property
    def parity(self) -> Any:
        """Demographic-parity gap, after − before."""
        return self.after.parity - self.before.parity

    @property
    def information(self) -> Any:
        """Bias in nats, after − before."""
        return self.after.information - self.before.information


def predicted_change(
    n: ArrayLike,
    rho: ArrayLike,
    eps: ArrayLike,
    c: ArrayLike,
    *,
    means: ArrayLike = MEANS,
    covariances: ArrayLike = COVARIANCE,
    **how: Any,
) -> Change:
    """Predict the change of the bias after averaging on an (n, ρ, ε, c)-graph.

    The arguments are those of ``connection_probabilities`` and ``predicted_moments``.

    Example:
        >>> change = predicted_change(20_000, 5e-4, 0.64, 0.5)
        >>> round(float(change.information), 3), round(float(change.after.gap), 3)
        (-0.034, 0.498)
    """
    model = blocks(n, rho, eps, c)
    return predicted_block_change(*model, means=means, covariances=covariances, **how)


def predicted_block_change(
    sizes: ArrayLike,
    probabilities: ArrayLike,
    *,
    means: ArrayLike,
    covariances: ArrayLike,
    **how: Any,
) -> Change:
    """Predict the change of the bias for any number of groups and any edge probabilities.

    The arguments are those of ``predicted_moments``.

    Example:
        >>> change = predicted_block_change([900, 900, 900], 0.01 * np.eye(3) + 0.001,
        ...                                 means=np.eye(3), covariances=np.eye(3))
        >>> bool(change.information > 0), bool(change.gap < 0)
        (True, True)
    """
    before, size = as_moments(means, covariances), np.asarray(sizes, dtype=float)
    after = predicted_moments(size, probabilities, *before, **how)
    weights = size / size.sum(-1, keepdims=True)
    return Change(bias_of(before, weights), bias_of(after, weights))


def bias_of(moments: Moments, weights: ArrayLike) -> Bias:
    """Bias of normal features with the given moments.

    Example:
        >>> bias = bias_of(Moments(np.eye(2), np.stack([np.eye(2)] * 2)), [0.5, 0.5])
        >>> [round(float(v), 4) for v in bias]
        [1.4142, 0.5205, 0.3799]
    """
    from scipy.special import ndtr

    (mu, sigma), share = moments, np.asarray(weights, dtype=float)
    gaps, parities = [], []
    for a, b in combinations(range(mu.shape[-2]), 2):
        w, threshold = decision(moments, share, a, b)
        rates = []
        for g in (a, b):
            spread = np.sqrt(np.einsum("...i,...ij,...j", w, sigma[..., g, :, :], w))
            score = np.asarray((w * mu[..., g, :]).sum(-1) - threshold)
            # Equal means leave no direction: both groups are decided alike.
            score = np.divide(score, spread, out=np.zeros_like(score), where=spread > 0)
            rates.append(ndtr(score))
        parities.append(np.abs(rates[0] - rates[1]))
        gaps.append(np.linalg.norm(mu[..., a, :] - mu[..., b, :], axis=-1))
    information = mutual_information_bound(mu, sigma, share)
    return Bias(np.max(gaps, axis=0)[()], np.max(parities, axis=0)[()], information)


def decision(
    moments: Moments, weights: np.ndarray, a: int, b: int
) -> tuple[np.ndarray, np.ndarray]:
    """Direction and threshold of the linear rule that separates group ``a`` from group ``b``."""
    mu, sigma = moments
    wa, wb = weights[..., a, None, None], weights[..., b, None, None]
    pooled = (wa * sigma[..., a, :, :] + wb * sigma[..., b, :, :]) / (wa + wb)
    difference = (mu[..., a, :] - mu[..., b, :])[..., None]
    w = np.linalg.solve(pooled, np.broadcast_to(difference, (*pooled.shape[:-1], 1)))[..., 0]
    return w, (w * (mu[..., a, :] + mu[..., b, :])).sum(-1) / 2


def predicted_moments(
    sizes: ArrayLike,
    probabilities: ArrayLike,
    means: ArrayLike,
    covariances: ArrayLike,
    *,
    steps: int = 1,
    normalisation: Normalisation = "row",
) -> Moments:
    """Predict each group's mean and covariance after ``steps`` steps of averaging.

    One step is exact up to a relative effect of order ρ. More steps use the tree approximation of
    a sparse graph (``docs/theory.md``): means are accurate to a few per cent and covariances to
    about 15 % at an average degree of 10, less at smaller degrees.

    Args:
        sizes: number of nodes in each group (…×G).
        probabilities: probability of an edge for each pair of groups (…×G×G), symmetric.
        means: mean of each group (…×G×d).
        covariances: covariance of each group (…×G×d×d), or one for all (d×d).
        steps: number of steps, 0 or more.
        normalisation: ``"row"`` or ``"symmetric"``.

    Example:
        >>> chance = [[0.02, 0.01], [0.01, 0.02]]
        >>> predicted_moments([500, 500], chance, [[0.0], [1.0]], np.eye(1)).means.round(3).ravel()
        array([0.311, 0.689])
    """
    theta = exponent(normalisation)
    check_integer("steps", steps, "give 0 or more", low=0)
    before = as_moments(means, covariances)
    groups = before.means.shape[-2]
    size, chance = np.asarray(sizes, dtype=float), np.asarray(probabilities, dtype=float)
    if size.ndim < 1 or size.shape[-1] != groups or chance.shape[-2:] != (groups, groups):
        shapes = f"shape {size.shape} with probabilities of shape {chance.shape}"
        raise InputError("sizes", shapes, f"give G sizes and G×G probabilities for G = {groups}")
    if not (size >= 1).all():
        raise InputError("sizes", f"{size.min():g} is below 1", "give every group a node")
    if not ((chance >= 0) & (chance <= 1)).all():
        worst = chance.flat[np.argmax(np.abs(chance - 0.5))]
        raise InputError("probabilities", f"{worst:g} is outside [0, 1]", "give edge probabilities")
    if not np.allclose(chance, chance.swapaxes(-1, -2)):
        raise InputError("probabilities", "not symmetric", "an edge has no direction")
    if steps == 0:
        return before
    exact = _one_step(size, chance, before, theta)
    if steps == 1:
        return exact
    tree, first = (_tree(size, chance, before, theta, k) for k in (steps, 1))
    # The tree neglects the variance of the degrees: agree with the exact covariance at one step.
    trace, first_trace = (np.trace(m.covariances, axis1=-2, axis2=-1) for m in (exact, first))
    scale = np.asarray(trace / first_trace)
    return Moments(tree.means, scale[..., None, None] * tree.covariances)


_quadrature = cache(lambda: np.polynomial.legendre.leggauss(128))


class _Degree:
    """Moments of d^−κ for d = ``own`` + Σ_h a_h, a_h ~ Bin(trials_h, chance_h) (…×h)."""

    def __init__(self, trials: np.ndarray, chance: np.ndarray, own: int) -> None:
        self.trials = trials = np.maximum(trials, 0)
        rate = (trials * chance).sum(-1)
        # The integrand is about exp(−rate (1 − e^−s) − s) in s = v²: stop where it is e^−30.
        end = np.sqrt(np.where(rate > 31, -np.log1p(-30 / np.maximum(rate, 31)), 30))
        x, w = _quadrature()
        self.v = end[..., None] * (x + 1) / 2
        s = self.v**2
        p = chance[..., None]
        less = np.log1p(p * np.expm1(-s)[..., None, :])
        log_transform = (trials[..., None] * less).sum(-2) - own * s
        self.density = end[..., None] * w / 2 * np.exp(log_transform)
        self.ratio = trials[..., None] * p * np.exp(-s[..., None, :] - less)

    def _weights(self, kappa: float) -> np.ndarray:
        return np.asarray(2 / gamma(kappa) * self.v ** (2 * kappa - 1) * self.density)

    def inverse(self, kappa: float) -> np.ndarray:
        """E[d^−κ] (…)."""
        return self._weights(kappa).sum(-1)

    def first(self, kappa: float) -> np.ndarray:
        """E[a_h d^−κ] (…×h)."""
        return np.einsum("...q,...hq->...h", self._weights(kappa), self.ratio)

    def second(self, kappa: float) -> np.ndarray:
        """E[a_h a_l d^−κ] (…×h×l)."""
        weights = self._weights(kappa)
        joint = np.einsum("...q,...hq,...lq->...hl", weights, self.ratio, self.ratio)
        # a² of a binomial is N(N−1)r² + Nr under the tilted law, not (Nr)².
        square = self.ratio - self.ratio**2 / np.maximum(self.trials, 1)[..., None]
        own = np.einsum("...q,...hq->...h", weights, square)
        return joint + own[..., None] * np.eye(own.shape[-1])


def _one_step(size: np.ndarray, chance: np.ndarray, before: Moments, theta: float) -> Moments:
    mu, sigma = before
    groups = np.eye(size.shape[-1])
    trials = size[..., None, :] - groups
    root = _Degree(trials, chance, own=1)

    # Mean and covariance of the message from group h to group g (…×g×h×…).
    handed = np.broadcast_to(mu[..., None, :, :], (*mu.shape[:-2], len(groups), *mu.shape[-2:]))
    spread = np.broadcast_to(sigma[..., None, :, :, :], (*handed.shape, mu.shape[-1]))
    if theta != 1:
        seen = trials[..., None, :, :] - groups[:, None, :]
        neighbour = _Degree(seen, np.broadcast_to(chance[..., None, :, :], seen.shape), own=2)
        half, whole = neighbour.inverse(1 - theta)[..., None], neighbour.inverse(2 - 2 * theta)
        square = handed[..., :, None] * handed[..., None, :]
        spread = whole[..., None, None] * (spread + square) - (half**2)[..., None] * square
        handed = half * handed

    own, own_square = root.inverse(1)[..., None], root.inverse(2)[..., None, None]
    mean = own * mu + np.einsum("...gh,...ghi->...gi", root.first(theta), handed)
    noise = np.einsum("...gh,...ghij->...gij", root.first(2 * theta), spread)
    cross = np.einsum("...gh,...ghi->...gi", root.first(1 + theta), handed)
    cross = mu[..., :, None] * cross[..., None, :]
    second = np.einsum("...ghl,...ghi,...glj->...gij", root.second(2 * theta), handed, handed)
    composition = own_square * mu[..., :, None] * mu[..., None, :] + cross + cross.swapaxes(-1, -2)
    composition = composition + second - mean[..., :, None] * mean[..., None, :]
    return Moments(mean, own_square * sigma + noise + composition)


def _tree(
    size: np.ndarray, chance: np.ndarray, before: Moments, theta: float, steps: int
) -> Moments:
    trials = size[..., None, :] - np.eye(size.shape[-1])
    expected = trials * chance
    rate = expected.sum(-1)
    if not (rate > 0).all():
        problem = f"a group has {rate.min():g} neighbours per node"
        raise InputError("probabilities", problem, "more than one step needs edges")
    mix = expected / rate[..., None]
    powers = [np.broadcast_to(np.eye(mix.shape[-1]), mix.shape)]
    for _ in range(steps):
        powers.append(powers[-1] @ mix)
    root, neighbour = _Degree(trials, chance, own=1), _Degree(trials, chance, own=2)
    law = _distances(root.inverse(1), neighbour.inverse(1), steps)
    shell = np.maximum(rate, 1)[..., None] ** np.arange(steps + 1)

    # Symmetric weights are the walk's times √(d_i / d_j), except for walks that return: E[d^(1−θ)]
    # of a node and E[d^(θ−1)] of a neighbour, by group.
    leave = arrive = np.ones_like(size)
    if theta != 1:
        leave = root.inverse(theta) + root.first(theta).sum(-1)
        arrive = neighbour.inverse(1 - theta)
    mu = arrive[..., None] * before.means
    sigma = arrive[..., None, None] ** 2 * before.covariances
    mean = law[..., :1] * (1 / (leave * arrive) - 1)[..., None] * mu
    spread = np.zeros_like(mu[..., None] * mu[..., None, :])
    for k in range(steps + 1):
        mean = mean + law[..., k, None] * (powers[k] @ mu)
        thinned = (law[..., k] ** 2 / shell[..., k])[..., None, None]
        spread = spread + thinned * np.einsum("...gh,...hij->...gij", powers[k], sigma)
    for k in range(1, steps + 1):
        # y: contribution of a node at distance k and its subtree, by the node's group (…×g×h×d).
        y = np.zeros_like(mu[..., None, :, :])
        for m in range(k, steps + 1):
            y = y + law[..., m, None, None] * (powers[m - k] @ mu)[..., None, :, :]
        average = np.einsum("...th,...ghi->...gti", mix, y)
        second = np.einsum("...th,...ghi,...ghj->...gtij", mix, y, y)
        innovation = second - average[..., :, None] * average[..., None, :]
        thinned = powers[k - 1] / shell[..., k, None]
        spread = spread + np.einsum("...gt,...gtij->...gij", thinned, innovation)
    mean, spread = leave[..., None] * mean, leave[..., None, None] ** 2 * spread
    # The degree has variance λ, so √d has a relative deviation of √λ/2ζ.
    own = ((1 - theta) * np.sqrt(rate) / (rate + 1))[..., None] * mean
    return Moments(mean, spread + own[..., :, None] * own[..., None, :])


def _distances(stay_root: np.ndarray, stay: np.ndarray, steps: int) -> np.ndarray:
    """π_k(l): distance after k steps of a lazy walk, by the starting group (…×g×l)."""
    law = np.zeros((*stay.shape, steps + 2))
    law[..., 0] = 1
    for _ in range(steps):
        new = stay[..., None] * law
        new[..., 0] = stay_root * law[..., 0] + stay * law[..., 1]
        new[..., 1] += (1 - stay_root) * law[..., 0]
        new[..., 1:-1] += stay[..., None] * law[..., 2:]
        new[..., 2:] += (1 - 2 * stay)[..., None] * law[..., 1:-1]
        law = new
    return law[..., :-1]

"""Predicted moments and bias of features after averaging, without sampling a graph."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import combinations
from math import gamma
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr

from fairmp.analysis.theory.bounds import GroupMoments, group_moments, mutual_information_bound
from fairmp.analysis.theory.conditions import (
    COVARIANCE,
    MEANS,
    Blocks,
    Normalisation,
    exponent,
)
from fairmp.errors import InputError, check_integer


class Bias(NamedTuple):
    """Three measures of the bias of features; gap and parity are the largest over pairs of groups.

    Parity is the demographic-parity gap of the linear decision along
    w = (c₁Σ₁ + c₂Σ₂)⁻¹(μ₁ − μ₂), with its threshold midway between the two means.
    """

    gap: Any  # distance between the groups' means, ‖μ₁ − μ₂‖, in units of the features
    parity: Any  # in [0, 1]
    information: Any  # Theorem 1's bound on the information about the group, in nats


class BiasChange(NamedTuple):
    """Bias before and after averaging; the properties are differences, after − before.

    Parity is that of the best linear decision, found anew after averaging: what a classifier
    trained on the averaged features can do. ``kept`` is the parity after averaging of the decision
    found before it: a fixed threshold on averaged scores.
    """

    before: Bias
    after: Bias
    kept: Any  # in [0, 1]

    @property
    def gap(self) -> Any:
        """Distance between the groups' means, after − before."""
        return self.after.gap - self.before.gap

    @property
    def parity(self) -> Any:
        """Demographic-parity gap of the best linear decision, after − before."""
        return self.after.parity - self.before.parity

    @property
    def fixed_parity(self) -> Any:
        """Demographic-parity gap of the decision found before averaging, after − before."""
        return self.kept - self.before.parity

    @property
    def information(self) -> Any:
        """Bias in nats, after − before."""
        return self.after.information - self.before.information


def predicted_change(
    sizes: ArrayLike,
    probabilities: ArrayLike,
    *,
    means: ArrayLike = MEANS,
    covariances: ArrayLike = COVARIANCE,
    steps: int = 1,
    normalisation: Normalisation = "row",
) -> BiasChange:
    """Predict the change of the bias after averaging.

    The arguments are those of ``predicted_moments``; ``blocks`` gives sizes and probabilities of an
    (n, ρ, ε, c)-graph.

    Example:
        >>> from fairmp.analysis.theory import blocks
        >>> change = predicted_change(*blocks(20_000, 5e-4, 0.64, 0.5))
        >>> round(float(change.information), 3), round(float(change.after.gap), 3)
        (-0.034, 0.498)
        >>> three_groups = [900, 900, 900], 0.01 * np.eye(3) + 0.001
        >>> change = predicted_change(*three_groups, means=np.eye(3), covariances=np.eye(3))
        >>> round(float(change.information), 2), round(float(change.gap), 2)
        (0.55, -0.3)
    """
    after = predicted_moments(
        sizes, probabilities, means, covariances, steps=steps, normalisation=normalisation
    )
    before = group_moments(means, covariances, after.shares)
    return BiasChange(bias_of(before), bias_of(after), bias_of(after, before).parity)


def bias_of(moments: GroupMoments, decided_on: GroupMoments | None = None) -> Bias:
    """Bias of normal features with the given moments.

    Parity is that of the best linear decision for these moments, or for those ``decided_on``.

    Example:
        >>> bias = bias_of(group_moments(np.eye(2), np.eye(2), [0.5, 0.5]))
        >>> [round(float(v), 4) for v in bias]
        [1.4142, 0.5205, 0.3799]
    """
    mu, sigma = moments.means, moments.covariances
    gaps, parities = [], []
    for a, b in combinations(range(mu.shape[-2]), 2):
        direction, threshold = decision(moments if decided_on is None else decided_on, a, b)
        rates = []
        for g in (a, b):
            spread = np.sqrt(
                np.einsum("...i,...ij,...j", direction, sigma[..., g, :, :], direction)
            )
            score = np.asarray((direction * mu[..., g, :]).sum(-1) - threshold)
            # Equal means leave no direction: both groups are decided alike.
            score = np.divide(score, spread, out=np.zeros_like(score), where=spread > 0)
            rates.append(ndtr(score))
        parities.append(np.abs(rates[0] - rates[1]))
        gaps.append(np.linalg.norm(mu[..., a, :] - mu[..., b, :], axis=-1))
    information = mutual_information_bound(mu, sigma, moments.shares)
    return Bias(np.max(gaps, axis=0)[()], np.max(parities, axis=0)[()], information)


def decision(moments: GroupMoments, a: int, b: int) -> tuple[np.ndarray, np.ndarray]:
    """Direction and threshold of the linear rule that separates group ``a`` from group ``b``."""
    mu, sigma = moments.means, moments.covariances
    share_a, share_b = (moments.shares[..., g, None, None] for g in (a, b))
    pooled = share_a * sigma[..., a, :, :] + share_b * sigma[..., b, :, :]
    pooled = pooled / (share_a + share_b)
    delta = (mu[..., a, :] - mu[..., b, :])[..., None]
    direction = np.linalg.solve(pooled, np.broadcast_to(delta, (*pooled.shape[:-1], 1)))[..., 0]
    threshold = (direction * (mu[..., a, :] + mu[..., b, :])).sum(-1) / 2
    return direction, threshold


def predicted_moments(
    sizes: ArrayLike,
    probabilities: ArrayLike,
    means: ArrayLike,
    covariances: ArrayLike,
    *,
    steps: int = 1,
    normalisation: Normalisation = "row",
) -> GroupMoments:
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
    model = _as_blocks(sizes, probabilities)
    shares = model.sizes / model.sizes.sum(-1, keepdims=True)
    before = group_moments(means, covariances, shares)
    if steps == 0:
        return before
    exact = _one_step(model, before, theta)
    if steps == 1:
        return exact
    tree = _tree(model, before, theta, steps)
    tree_one_step = _tree(model, before, theta, 1)
    # The tree neglects the variance of the degrees: agree with the exact covariance at one step.
    scale = np.asarray(_trace(exact.covariances) / _trace(tree_one_step.covariances))
    return replace(tree, covariances=scale[..., None, None] * tree.covariances)


def _as_blocks(sizes: ArrayLike, probabilities: ArrayLike) -> Blocks:
    size, chance = np.asarray(sizes, dtype=float), np.asarray(probabilities, dtype=float)
    if size.ndim < 1 or chance.shape[-2:] != (size.shape[-1], size.shape[-1]):
        shapes = f"shape {size.shape} with probabilities of shape {chance.shape}"
        raise InputError("sizes", shapes, "give G sizes and G×G probabilities")
    if not (size >= 1).all():
        raise InputError("sizes", f"{size.min():g} is below 1", "give every group a node")
    if not ((chance >= 0) & (chance <= 1)).all():
        worst = chance.flat[np.argmax(np.abs(chance - 0.5))]
        raise InputError("probabilities", f"{worst:g} is outside [0, 1]", "give edge probabilities")
    if not np.allclose(chance, chance.swapaxes(-1, -2)):
        raise InputError("probabilities", "not symmetric", "an edge has no direction")
    return Blocks(size, chance)


def _trace(matrices: np.ndarray) -> np.ndarray:
    return np.asarray(np.trace(matrices, axis1=-2, axis2=-1))


_quadrature = cache(lambda: np.polynomial.legendre.leggauss(128))


class _Degree:
    """Moments of d^−κ for d = ``fixed`` + Σ_h a_h, a_h ~ Bin(trials_h, chance_h) (…×h)."""

    def __init__(self, trials: np.ndarray, chance: np.ndarray, fixed: int) -> None:
        self.trials = trials = np.maximum(trials, 0)
        rate = (trials * chance).sum(-1)
        # The integrand is about exp(−rate (1 − e^−s) − s) in s = v²: stop where it is e^−30.
        end = np.sqrt(np.where(rate > 31, -np.log1p(-30 / np.maximum(rate, 31)), 30))
        x, w = _quadrature()
        self.v = end[..., None] * (x + 1) / 2
        s = self.v**2
        p = chance[..., None]
        less = np.log1p(p * np.expm1(-s)[..., None, :])
        log_transform = (trials[..., None] * less).sum(-2) - fixed * s
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
        diagonal = np.einsum("...q,...hq->...h", weights, square)
        return joint + diagonal[..., None] * np.eye(diagonal.shape[-1])


def _one_step(model: Blocks, before: GroupMoments, theta: float) -> GroupMoments:
    mu, sigma = before.means, before.covariances
    groups = np.eye(model.sizes.shape[-1])
    trials = model.sizes[..., None, :] - groups
    root = _Degree(trials, model.probabilities, fixed=1)

    # Mean and covariance of the message from group h to group g (…×g×h×…).
    message = np.broadcast_to(mu[..., None, :, :], (*mu.shape[:-2], len(groups), *mu.shape[-2:]))
    spread = np.broadcast_to(sigma[..., None, :, :, :], (*message.shape, mu.shape[-1]))
    if theta != 1:
        others = trials[..., None, :, :] - groups[:, None, :]
        chance = np.broadcast_to(model.probabilities[..., None, :, :], others.shape)
        neighbour = _Degree(others, chance, fixed=2)
        factor = neighbour.inverse(1 - theta)[..., None]
        square_factor = neighbour.inverse(2 - 2 * theta)[..., None, None]
        square = _outer(message, message)
        spread = square_factor * (spread + square) - (factor**2)[..., None] * square
        message = factor * message

    itself = root.inverse(1)[..., None]
    itself_square = root.inverse(2)[..., None, None]
    mean = itself * mu + np.einsum("...gh,...ghi->...gi", root.first(theta), message)
    noise = np.einsum("...gh,...ghij->...gij", root.first(2 * theta), spread)
    cross = _outer(mu, np.einsum("...gh,...ghi->...gi", root.first(1 + theta), message))
    second = np.einsum("...ghl,...ghi,...glj->...gij", root.second(2 * theta), message, message)
    composition = itself_square * _outer(mu, mu) + cross + cross.swapaxes(-1, -2)
    composition = composition + second - _outer(mean, mean)
    return replace(before, means=mean, covariances=itself_square * sigma + noise + composition)


def _outer(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """abᵀ, over the last axis."""
    return np.asarray(a[..., :, None] * b[..., None, :])


def _tree(model: Blocks, before: GroupMoments, theta: float, steps: int) -> GroupMoments:
    trials = model.sizes[..., None, :] - np.eye(model.sizes.shape[-1])
    expected = trials * model.probabilities
    rate = expected.sum(-1)
    if not (rate > 0).all():
        problem = f"a group has {rate.min():g} neighbours per node"
        raise InputError("probabilities", problem, "more than one step needs edges")
    mix = expected / rate[..., None]
    powers = [np.broadcast_to(np.eye(mix.shape[-1]), mix.shape)]
    for _ in range(steps):
        powers.append(powers[-1] @ mix)
    root = _Degree(trials, model.probabilities, fixed=1)
    neighbour = _Degree(trials, model.probabilities, fixed=2)
    law = _distances(root.inverse(1), neighbour.inverse(1), steps)
    shell = np.maximum(rate, 1)[..., None] ** np.arange(steps + 1)

    # Symmetric weights are the walk's times √(d_i / d_j), except for walks that return: E[d^(1−θ)]
    # of a node and E[d^(θ−1)] of a neighbour, by group.
    leave = arrive = np.ones_like(model.sizes)
    if theta != 1:
        leave = root.inverse(theta) + root.first(theta).sum(-1)
        arrive = neighbour.inverse(1 - theta)
    mu = arrive[..., None] * before.means
    sigma = arrive[..., None, None] ** 2 * before.covariances
    mean = law[..., :1] * (1 / (leave * arrive) - 1)[..., None] * mu
    spread = np.zeros_like(_outer(mu, mu))
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
        innovation = second - _outer(average, average)
        thinned = powers[k - 1] / shell[..., k, None]
        spread = spread + np.einsum("...gt,...gtij->...gij", thinned, innovation)
    mean, spread = leave[..., None] * mean, leave[..., None, None] ** 2 * spread
    # The degree has variance λ, so √d has a relative deviation of √λ/2ζ.
    by_degree = ((1 - theta) * np.sqrt(rate) / (rate + 1))[..., None] * mean
    return replace(before, means=mean, covariances=spread + _outer(by_degree, by_degree))


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

"""Predicted change of the feature bias under averaging, without sampling a graph."""

from __future__ import annotations

from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fairmp.analysis.theory.bounds import mutual_information_bound
from fairmp.analysis.theory.conditions import COVARIANCE, MEANS, Normalisation, blocks
from fairmp.analysis.theory.moments import Moments, as_moments, predicted_moments


class Bias(NamedTuple):
    """Three measures of the bias of features.

    Attributes:
        gap: distance between the groups' means, ‖μ₁ − μ₂‖, in units of the features.
        parity: demographic-parity gap of a linear decision, in [0, 1]: the difference of the
            groups' shares on the positive side of the midpoint between the two means, along
            w = (c₁Σ₁ + c₂Σ₂)⁻¹(μ₁ − μ₂).
        information: Theorem 1's bound on the information about the group, in nats.

    For more than two groups, gap and parity are the largest over pairs of groups.
    """

    gap: Any
    parity: Any
    information: Any


class Change(NamedTuple):
    """Bias before and after averaging; the properties are differences, after − before."""

    before: Bias
    after: Bias

    @property
    def gap(self) -> Any:
        """Change of the distance between the groups' means."""
        return self.after.gap - self.before.gap

    @property
    def parity(self) -> Any:
        """Change of the demographic-parity gap."""
        return self.after.parity - self.before.parity

    @property
    def information(self) -> Any:
        """Change of the bias, in nats: positive where averaging adds bias."""
        return self.after.information - self.before.information


def predicted_change(
    n: ArrayLike,
    rho: ArrayLike,
    eps: ArrayLike,
    c: ArrayLike,
    *,
    means: ArrayLike = MEANS,
    covariances: ArrayLike = COVARIANCE,
    steps: int = 1,
    normalisation: Normalisation = "row",
) -> Change:
    """Predict the change of the bias after ``steps`` averaging steps on an (n, ρ, ε, c)-graph.

    Args:
        n: number of nodes.
        rho: density.
        eps: sensitive homophily.
        c: share of the second group. All four broadcast.
        means: the two groups' means (2×d).
        covariances: their covariances (2×d×d), or one for both (d×d).
        steps: number of steps; one step is exact, see ``predicted_moments``.
        normalisation: ``"row"`` or ``"symmetric"``.

    Example:
        >>> change = predicted_change(20_000, 5e-4, 0.64, 0.5)
        >>> round(float(change.information), 3), round(float(change.after.gap), 3)
        (-0.034, 0.498)
        >>> predicted_change(10_000, 1e-3, [0.5, 0.75, 1.0], 0.5).information > 0
        array([False,  True,  True])
    """
    sizes, probabilities = blocks(n, rho, eps, c)
    options: dict[str, Any] = {"steps": steps, "normalisation": normalisation}
    return predicted_block_change(
        sizes, probabilities, means=means, covariances=covariances, **options
    )


def predicted_block_change(
    sizes: ArrayLike,
    probabilities: ArrayLike,
    *,
    means: ArrayLike,
    covariances: ArrayLike,
    steps: int = 1,
    normalisation: Normalisation = "row",
) -> Change:
    """Predict the change of the bias for any number of groups and any edge probabilities.

    Args:
        sizes: number of nodes in each group (…×G).
        probabilities: probability of an edge for each pair of groups (…×G×G), symmetric.
        means: mean of each group (…×G×d).
        covariances: covariance of each group (…×G×d×d), or one for all (d×d).
        steps: number of steps of averaging.
        normalisation: ``"row"`` or ``"symmetric"``.

    Example:
        >>> change = predicted_block_change([900, 900, 900], 0.01 * np.eye(3) + 0.001,
        ...                                 means=np.eye(3), covariances=np.eye(3))
        >>> bool(change.information > 0), bool(change.gap < 0)
        (True, True)
    """
    size = np.asarray(sizes, dtype=float)
    before = as_moments(means, covariances)
    after = predicted_moments(
        size, probabilities, *before, steps=steps, normalisation=normalisation
    )
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

    share = np.asarray(weights, dtype=float)
    gaps, parities = [], []
    for a, b in combinations(range(moments.means.shape[-2]), 2):
        w, threshold = decision(moments, share, a, b)
        rates = [
            ndtr(
                ((w * moments.means[..., g, :]).sum(-1) - threshold)
                / np.sqrt(np.einsum("...i,...ij,...j", w, moments.covariances[..., g, :, :], w))
            )
            for g in (a, b)
        ]
        parities.append(np.abs(rates[0] - rates[1]))
        gaps.append(np.linalg.norm(moments.means[..., a, :] - moments.means[..., b, :], axis=-1))
    information = mutual_information_bound(moments.means, moments.covariances, share)
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

"""Information that features carry about the group: Gaussian KL, bound (Theorem 1), estimate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fairmp.errors import InputError


@dataclass(frozen=True)
class GroupMoments:
    """Mean and covariance of each group's features, and the groups' shares."""

    means: np.ndarray  # …×G×d
    covariances: np.ndarray  # …×G×d×d
    shares: np.ndarray  # …×G, with a sum of 1


class MonteCarloEstimate(NamedTuple):
    """A Monte-Carlo mean and its standard error."""

    value: float
    standard_error: float


def gaussian_kl(mu1: ArrayLike, sigma1: ArrayLike, mu2: ArrayLike, sigma2: ArrayLike) -> Any:
    r"""Kullback-Leibler divergence between two normal distributions, in nats.

    .. math::
        D(p_1 \| p_2) = \tfrac12 \left[ \operatorname{tr}(\Sigma_2^{-1}\Sigma_1) - d
        + (\mu_1-\mu_2)^\top \Sigma_2^{-1} (\mu_1-\mu_2) + \ln\frac{|\Sigma_2|}{|\Sigma_1|} \right]

    Means (…×d) and covariances (…×d×d) broadcast; numbers are one-dimensional.

    Example:
        >>> float(gaussian_kl([0.0, 1.0], np.eye(2), [1.0, 0.0], np.eye(2)))
        1.0
    """
    first = np.atleast_1d(np.asarray(mu1, dtype=float))
    second = np.atleast_1d(np.asarray(mu2, dtype=float))
    factor1 = np.linalg.cholesky(check_covariance("sigma1", sigma1))
    factor2 = np.linalg.cholesky(check_covariance("sigma2", sigma2))
    d = first.shape[-1]
    if not second.shape[-1] == factor1.shape[-1] == factor2.shape[-1] == d:
        sizes = (d, factor1.shape[-1], second.shape[-1], factor2.shape[-1])
        raise InputError("mu1", f"{d} dimensions", f"mu1, sigma1, mu2, sigma2 have {sizes}")
    return _kl(first, factor1, second, factor2)[()]


def mutual_information_bound(means: ArrayLike, covariances: ArrayLike, weights: ArrayLike) -> Any:
    r"""Upper bound on the information that features carry about the group (Theorem 1), in nats.

    .. math::
        I(s; x) \le -\sum_i c_i \ln \sum_j c_j \, e^{-D(p_i \| p_j)}

    for groups with shares :math:`c_i` and normal features :math:`p_i`; the *bias* of the features.

    Args:
        means: mean of each group (…×G×d).
        covariances: covariance of each group (…×G×d×d), or one for all (d×d).
        weights: share of each group (…×G), positive, with a sum of 1.

    Example:
        >>> round(float(mutual_information_bound([[0, 1], [1, 0]], np.eye(2), [0.5, 0.5])), 4)
        0.3799
    """
    groups = group_moments(means, covariances, weights)
    mu, share = groups.means, groups.shares
    factor = np.linalg.cholesky(groups.covariances)
    divergence = _kl(
        mu[..., :, None, :],
        factor[..., :, None, :, :],
        mu[..., None, :, :],
        factor[..., None, :, :, :],
    )
    inner = np.logaddexp.reduce(np.log(share)[..., None, :] - divergence, axis=-1)
    # Rounding makes the bound of identical groups slightly negative.
    return np.maximum(-(share * inner).sum(-1), 0.0)[()]


def mutual_information(
    means: ArrayLike,
    covariances: ArrayLike,
    weights: ArrayLike,
    *,
    samples: int = 100_000,
    seed: int = 0,
) -> MonteCarloEstimate:
    r"""Monte-Carlo estimate of the mutual information, in nats.

    .. math::
        I(s; x) = \sum_i c_i \, \mathbb{E}_{x \sim p_i}
        \left[ \ln p_i(x) - \ln \textstyle\sum_j c_j p_j(x) \right]

    with ``samples`` points from each group; the other arguments are those of
    ``mutual_information_bound``.

    Example:
        >>> estimate = mutual_information([[0, 1], [1, 0]], np.eye(2), [0.5, 0.5])
        >>> round(estimate.value, 2), estimate.standard_error < 0.002
        (0.2, True)
    """
    if samples < 2:
        raise InputError("samples", f"{samples} gives no standard error", "give 2 or more")
    groups = group_moments(means, covariances, weights)
    mu, share = groups.means, groups.shares
    factor = np.linalg.cholesky(groups.covariances)
    if mu.ndim != 2:
        raise InputError("means", f"shape {mu.shape} is more than one mixture", "give a G×d array")
    rng = np.random.default_rng(seed)
    value, variance = 0.0, 0.0
    for i, points in enumerate(rng.standard_normal((len(mu), samples, mu.shape[1]))):
        x = mu[i] + points @ factor[i].T
        z = np.linalg.solve(factor, (x - mu[:, None]).swapaxes(1, 2))
        density = -0.5 * (z**2).sum(1) - _log_diagonal(factor)[:, None]  # up to a constant
        gain = density[i] - np.logaddexp.reduce(np.log(share)[:, None] + density, axis=0)
        value += share[i] * gain.mean()
        variance += share[i] ** 2 * gain.var(ddof=1) / samples
    return MonteCarloEstimate(float(value), float(np.sqrt(variance)))


def check_covariance(name: str, covariance: ArrayLike) -> np.ndarray:
    """Return covariances (…×d×d) as floats; raise if one is not symmetric positive definite."""
    hint = "give a symmetric positive definite d×d matrix"
    matrix = np.asarray(covariance, dtype=float)
    matrix = matrix if matrix.ndim else matrix.reshape(1, 1)
    if matrix.ndim < 2 or matrix.shape[-1] != matrix.shape[-2]:
        raise InputError(name, f"shape {matrix.shape} is not square", hint)
    if not np.isfinite(matrix).all():
        raise InputError(name, "contains values that are not finite", hint)
    scale = np.abs(matrix).max(initial=0.0)
    if not np.allclose(matrix, matrix.swapaxes(-1, -2), rtol=0, atol=1e-8 * scale):
        raise InputError(name, "is not symmetric", hint)
    # Rounding gives a singular matrix a tiny pivot of either sign.
    try:
        pivot = np.diagonal(np.linalg.cholesky(matrix), axis1=-2, axis2=-1).min(initial=np.inf) ** 2
    except np.linalg.LinAlgError:
        pivot = 0.0
    if not pivot > 1e-13 * scale:
        smallest = float(np.linalg.eigvalsh(matrix).min())
        problem = f"smallest eigenvalue {smallest:.4g} is not positive"
        raise InputError(name, problem, f"{hint}, or add a little to its diagonal")
    return matrix


def group_moments(means: ArrayLike, covariances: ArrayLike, weights: ArrayLike) -> GroupMoments:
    """Check the moments and shares of two or more groups; give every group its covariance."""
    mu = np.asarray(means, dtype=float)
    sigma = check_covariance("covariances", covariances)
    groups, d = mu.shape[-2:] if mu.ndim > 1 else (0, 0)
    one_or_each = sigma.ndim == 2 or sigma.shape[-3] in (1, groups)
    if groups < 2 or sigma.shape[-1] != d or not one_or_each:
        shapes = f"shape {mu.shape} with covariances of shape {sigma.shape}"
        raise InputError("means", shapes, "give G×d means, G ≥ 2, and one d×d covariance or G")
    share = np.asarray(weights, dtype=float)
    if share.ndim == 0 or share.shape[-1] != groups:
        raise InputError("weights", f"shape {share.shape} for {groups} groups", "give G shares")
    if not (share > 0).all() or not np.allclose(share.sum(-1), 1):
        raise InputError("weights", share.tolist(), "shares must be positive with a sum of 1")
    return GroupMoments(mu, np.broadcast_to(sigma, (*sigma.shape[:-3], groups, d, d)), share)


def _kl(mu1: np.ndarray, factor1: np.ndarray, mu2: np.ndarray, factor2: np.ndarray) -> np.ndarray:
    """Divergence from Cholesky factors."""
    whitened = np.linalg.solve(factor2, factor1)
    shift = np.linalg.solve(factor2, (mu1 - mu2)[..., None])[..., 0]
    log_volume = _log_diagonal(factor2) - _log_diagonal(factor1)
    trace = (whitened**2).sum((-1, -2))
    return np.asarray(0.5 * (trace - mu1.shape[-1] + (shift**2).sum(-1)) + log_volume)


def _log_diagonal(factor: np.ndarray) -> np.ndarray:
    """Half of the log-determinant of the covariance."""
    return np.asarray(np.log(np.diagonal(factor, axis1=-2, axis2=-1)).sum(-1))

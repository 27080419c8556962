"""Information that features carry about the group: Gaussian KL, bound (Theorem 1), estimate."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fairmp.errors import InputError


class Estimate(NamedTuple):
    """A Monte-Carlo mean and its standard error."""

    value: float
    standard_error: float


def gaussian_kl(mu1: ArrayLike, sigma1: ArrayLike, mu2: ArrayLike, sigma2: ArrayLike) -> Any:
    r"""Kullback-Leibler divergence between two normal distributions, in nats.

    .. math::
        D(p_1 \| p_2) = \tfrac12 \left[ \operatorname{tr}(\Sigma_2^{-1}\Sigma_1) - d
        + (\mu_1-\mu_2)^\top \Sigma_2^{-1} (\mu_1-\mu_2) + \ln\frac{|\Sigma_2|}{|\Sigma_1|} \right]

    Args:
        mu1: mean of the first distribution (…×d), or a number.
        sigma1: its covariance (…×d×d); a number is the variance in one dimension.
        mu2: mean of the second distribution.
        sigma2: its covariance. Leading dimensions of all four broadcast.

    Returns:
        A number, or an array of the leading dimensions' shape.

    Raises:
        InputError: If a covariance is not symmetric positive definite.

    Example:
        >>> float(gaussian_kl([0.0, 1.0], np.eye(2), [1.0, 0.0], np.eye(2)))
        1.0
        >>> round(float(gaussian_kl(0.0, 1.0, 0.0, 4.0)), 4)
        0.3181
    """
    first, second = (np.atleast_1d(np.asarray(mu, dtype=float)) for mu in (mu1, mu2))
    factor1, factor2 = _cholesky("sigma1", sigma1), _cholesky("sigma2", sigma2)
    return _kl(first, factor1, second, factor2)[()]


def mutual_information_bound(means: ArrayLike, covariances: ArrayLike, weights: ArrayLike) -> Any:
    r"""Upper bound on the information that features carry about the group (Theorem 1), in nats.

    .. math::
        I(s; x) \le -\sum_i c_i \ln \sum_j c_j \, e^{-D(p_i \| p_j)}

    for any number of groups with shares :math:`c_i` and normal features :math:`p_i`. For two
    groups this is the printed form,
    :math:`-(1-c)\ln[(1-c)+c\,e^{-D_{12}}] - c\ln[c+(1-c)\,e^{-D_{21}}]`. It lies between 0 (equal
    groups) and the entropy of the groups (disjoint groups), and is exact at both ends. The library
    calls this number the *bias* of the features.

    Args:
        means: mean of each group (…×G×d).
        covariances: covariance of each group (…×G×d×d), or one for all (d×d).
        weights: share of each group (…×G), positive, with a sum of 1.

    Example:
        >>> round(float(mutual_information_bound([[0, 1], [1, 0]], np.eye(2), [0.5, 0.5])), 4)
        0.3799
        >>> far = mutual_information_bound([[0.0], [99.0], [-99.0]], np.eye(1), [0.5, 0.25, 0.25])
        >>> round(float(far), 4), round(float(1.5 * np.log(2)), 4)
        (1.0397, 1.0397)
    """
    mu = _means(means)
    share = _weights(weights, mu.shape[-2])
    factor = _cholesky("covariances", covariances)
    if factor.ndim == 2:
        factor = factor[None]
    if factor.shape[-3] not in (1, mu.shape[-2]) or factor.shape[-1] != mu.shape[-1]:
        shapes = f"shape {np.shape(covariances)} does not fit means of shape {mu.shape}"
        raise InputError("covariances", shapes, "give one d×d matrix, or one for each group")
    one, other = (
        (mu[..., :, None, :], factor[..., :, None, :, :]),
        (mu[..., None, :, :], factor[..., None, :, :, :]),
    )
    pairs = _kl(*one, *other)
    inner = np.logaddexp.reduce(np.log(share)[..., None, :] - pairs, axis=-1)
    # Rounding makes the bound of identical groups slightly negative.
    return np.maximum(-(share * inner).sum(-1), 0.0)[()]


def mutual_information(
    means: ArrayLike,
    covariances: ArrayLike,
    weights: ArrayLike,
    *,
    samples: int = 100_000,
    seed: int = 0,
) -> Estimate:
    r"""Monte-Carlo estimate of the mutual information, in nats.

    .. math::
        I(s; x) = \sum_i c_i \, \mathbb{E}_{x \sim p_i}
        \left[ \ln p_i(x) - \ln \textstyle\sum_j c_j p_j(x) \right]

    Sampling is stratified: every group gets ``samples`` points, however small its share.

    Args:
        means: mean of each group (G×d).
        covariances: covariance of each group (G×d×d), or one for all (d×d).
        weights: share of each group (G), positive, with a sum of 1.
        samples: number of points drawn from each group.
        seed: the same seed gives the same estimate.

    Example:
        >>> estimate = mutual_information([[0, 1], [1, 0]], np.eye(2), [0.5, 0.5])
        >>> round(estimate.value, 2), estimate.standard_error < 0.002
        (0.2, True)
    """
    if samples < 2:
        raise InputError("samples", f"{samples} gives no standard error", "give 2 or more")
    mu = _means(means)
    if mu.ndim != 2:
        raise InputError("means", f"shape {mu.shape} is more than one mixture", "give a G×d array")
    groups, d = mu.shape
    share = _weights(weights, groups)
    factor = np.broadcast_to(_cholesky("covariances", covariances), (groups, d, d))
    rng = np.random.default_rng(seed)
    value, variance = 0.0, 0.0
    for i in range(groups):
        x = mu[i] + rng.standard_normal((samples, d)) @ factor[i].T
        density = np.stack([_log_density(x, mu[j], factor[j]) for j in range(groups)])
        mixture = np.logaddexp.reduce(np.log(share)[:, None] + density, axis=0)
        gain = density[i] - mixture
        value += share[i] * gain.mean()
        variance += share[i] ** 2 * gain.var(ddof=1) / samples
    return Estimate(float(value), float(np.sqrt(variance)))


def check_covariance(name: str, covariance: ArrayLike) -> np.ndarray:
    """Return covariances (…×d×d) as floats; raise if one is not symmetric positive definite."""
    matrix = np.asarray(covariance, dtype=float)
    if matrix.ndim == 0:
        matrix = matrix.reshape(1, 1)
    if matrix.ndim < 2 or matrix.shape[-1] != matrix.shape[-2]:
        raise InputError(name, f"shape {matrix.shape} is not square", "give a d×d matrix")
    if not np.isfinite(matrix).all():
        raise InputError(name, "contains values that are not finite", "give a d×d matrix")
    scale = np.abs(matrix).max(initial=0.0)
    if not np.allclose(matrix, matrix.swapaxes(-1, -2), rtol=0, atol=1e-8 * scale):
        raise InputError(name, "is not symmetric", "give a symmetric positive definite matrix")
    # Rounding gives a singular matrix a tiny pivot of either sign.
    try:
        pivot = np.diagonal(np.linalg.cholesky(matrix), axis1=-2, axis2=-1).min(initial=np.inf) ** 2
    except np.linalg.LinAlgError:
        pivot = 0.0
    if not pivot > 1e-13 * scale:
        smallest = float(np.linalg.eigvalsh(matrix).min())
        raise InputError(
            name,
            f"smallest eigenvalue {smallest:.4g} is not positive",
            "give a symmetric positive definite matrix, or add a little to its diagonal",
        )
    return matrix


def _cholesky(name: str, covariance: ArrayLike) -> np.ndarray:
    return np.linalg.cholesky(check_covariance(name, covariance))


def _kl(mu1: np.ndarray, factor1: np.ndarray, mu2: np.ndarray, factor2: np.ndarray) -> np.ndarray:
    """Divergence from Cholesky factors."""
    d = mu1.shape[-1]
    if not mu2.shape[-1] == factor1.shape[-1] == factor2.shape[-1] == d:
        sizes = (d, factor1.shape[-1], mu2.shape[-1], factor2.shape[-1])
        raise InputError("mu1", f"{d} dimensions", f"mu1, sigma1, mu2, sigma2 have {sizes}")
    whitened = np.linalg.solve(factor2, factor1)
    shift = np.linalg.solve(factor2, (mu1 - mu2)[..., None])[..., 0]
    log_volume = _log_diagonal(factor2) - _log_diagonal(factor1)
    trace = (whitened**2).sum((-1, -2))
    return np.asarray(0.5 * (trace - d + (shift**2).sum(-1)) + log_volume)


def _log_diagonal(factor: np.ndarray) -> np.ndarray:
    return np.asarray(np.log(np.diagonal(factor, axis1=-2, axis2=-1)).sum(-1))


def _log_density(x: np.ndarray, mu: np.ndarray, factor: np.ndarray) -> np.ndarray:
    z = np.linalg.solve(factor, (x - mu).T)
    constant = _log_diagonal(factor) + 0.5 * len(mu) * np.log(2 * np.pi)
    return np.asarray(-0.5 * (z**2).sum(0) - constant)


def _means(means: ArrayLike) -> np.ndarray:
    mu = np.asarray(means, dtype=float)
    if mu.ndim < 2 or mu.shape[-2] < 2:
        raise InputError("means", f"shape {mu.shape}", "give a G×d array for G ≥ 2 groups")
    return mu


def _weights(weights: ArrayLike, groups: int) -> np.ndarray:
    share = np.asarray(weights, dtype=float)
    if share.ndim == 0 or share.shape[-1] != groups:
        raise InputError("weights", f"shape {share.shape} for {groups} groups", "give G shares")
    if not (share > 0).all() or not np.allclose(share.sum(-1), 1):
        given = share.reshape(-1, groups)[0].tolist()
        raise InputError("weights", f"{given}", "shares must be positive with a sum of 1")
    return share

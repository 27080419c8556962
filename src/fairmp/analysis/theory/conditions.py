"""The (n, ρ, ε, c) graph model and the bias-enhancement condition (Theorem 2), corrected."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fairmp.analysis.theory.bounds import check_covariance
from fairmp.errors import InputError, check_choice

Normalisation = Literal["row", "symmetric"]
Form = Literal["printed", "corrected"]

MEANS = ((0.0, 1.0), (1.0, 0.0))
COVARIANCE = ((1.0, 0.0), (0.0, 1.0))


class ConnectionProbabilities(NamedTuple):
    """Edge probability of a pair of nodes."""

    p: Any  # within a group
    q: Any  # between groups


class Blocks(NamedTuple):
    """Group sizes (…×G) and the probability of an edge for each pair of groups (…×G×G)."""

    sizes: np.ndarray
    probabilities: np.ndarray


def connection_probabilities(
    n: ArrayLike, rho: ArrayLike, eps: ArrayLike, c: ArrayLike
) -> ConnectionProbabilities:
    r"""Edge probabilities of the (n, ρ, ε, c)-graph (Lemma 2).

    .. math::
        p = \frac{\rho\,\epsilon}{c^2 + (1-c)^2}, \qquad q = \frac{\rho\,(1-\epsilon)}{2c(1-c)}

    Args:
        n: number of nodes.
        rho: density, the share of pairs that are edges, in (0, 1].
        eps: sensitive homophily, the share of edges inside a group, in [0, 1].
        c: share of the second group, in (0, 1). All four broadcast.

    Example:
        >>> p, q = connection_probabilities(10_000, 1e-3, 0.8, 0.5)
        >>> round(float(p), 6), round(float(q), 6)
        (0.0016, 0.0004)
    """
    n, rho, eps, c = np.broadcast_arrays(*(np.asarray(a, dtype=float) for a in (n, rho, eps, c)))
    _check_range("n", n, n >= 2, "below 2", "give at least two nodes")
    _check_range(
        "rho", rho, (rho > 0) & (rho <= 1), "outside (0, 1]", "give the share of pairs joined"
    )
    _check_range(
        "eps", eps, (eps >= 0) & (eps <= 1), "outside [0, 1]", "give the in-group share of edges"
    )
    _check_range("c", c, (c > 0) & (c < 1), "outside (0, 1)", "give the share of the second group")
    pairs_within = c**2 + (1 - c) ** 2
    pairs_between = 2 * c * (1 - c)
    p = rho * eps / pairs_within
    q = rho * (1 - eps) / pairs_between
    for name, value, pairs, share in (
        ("p", p, pairs_within, eps),
        ("q", q, pairs_between, 1 - eps),
    ):
        if (value > 1).any():
            k = np.unravel_index(np.argmax(value), value.shape)
            problem = f"{rho[k]:g} with eps={eps[k]:g} and c={c[k]:g} makes {name} = {value[k]:.4g}"
            limit = f"the largest density here is {pairs[k] / share[k]:.4g}"
            raise InputError("rho", f"{problem}, above 1", limit)
    return ConnectionProbabilities(p[()], q[()])


def _check_range(name: str, values: np.ndarray, good: np.ndarray, problem: str, hint: str) -> None:
    if not good.all():
        raise InputError(name, f"{values[~good].flat[0]:g} is {problem}", hint)


def blocks(n: ArrayLike, rho: ArrayLike, eps: ArrayLike, c: ArrayLike) -> Blocks:
    """Group sizes (…×2) and edge probabilities (…×2×2) of the (n, ρ, ε, c) model.

    Example:
        >>> blocks(1000, 0.01, 0.8, 0.25).sizes.tolist()
        [750.0, 250.0]
    """
    within, between = connection_probabilities(n, rho, eps, c)
    p, q, size, share = np.broadcast_arrays(
        within, between, np.asarray(n, dtype=float), np.asarray(c, dtype=float)
    )
    probabilities = np.stack([np.stack([p, q], -1), np.stack([q, p], -1)], -2)
    return Blocks(np.stack([(1 - share) * size, share * size], -1), probabilities)


def bias_enhancement(
    n: ArrayLike,
    rho: ArrayLike,
    eps: ArrayLike,
    c: ArrayLike,
    *,
    form: Form = "corrected",
    normalisation: Normalisation = "row",
    means: ArrayLike = MEANS,
    covariance: ArrayLike = COVARIANCE,
) -> Any:
    r"""Left-hand side of the condition of Theorem 2: above 1, one step of averaging adds bias.

    For row normalisation, with :math:`\delta = \mu_1 - \mu_2` and
    :math:`m = \delta^\top\Sigma^{-1}\delta`,

    .. math::
        \text{printed: } (\nu_1-\nu_2)^2 \min_g \zeta_g, \qquad
        \text{corrected: } (\nu_1-\nu_2)^2 \min_g \frac{\zeta_g}{1 + \nu_g(1-\nu_g)\,m}.

    A node of group g averages :math:`\zeta_g` terms on average, a share :math:`\nu_g` of them from
    the first group. The printed form assumes that every neighbourhood has exactly that share; the
    corrected form includes its variance. ``docs/theory.md`` has ν and ζ, and the form for symmetric
    normalisation. ``means`` are the two groups' (…×2×d), with a common ``covariance`` (…×d×d);
    ``connection_probabilities`` describes the other parameters.

    Example:
        >>> [round(float(bias_enhancement(20_000, 5e-4, 0.64, 0.5, form=form)), 2)
        ...  for form in ("printed", "corrected")]
        [1.31, 0.91]
    """
    check_choice("form", form, ("printed", "corrected"))
    theta = exponent(normalisation)
    mu = np.asarray(means, dtype=float)
    if mu.ndim < 2 or mu.shape[-2] != 2:
        raise InputError("means", f"shape {mu.shape} is not two means", "give a 2×d array")
    sigma = check_covariance("covariance", covariance)
    m = _quadratic(sigma, mu[..., 0, :] - mu[..., 1, :])
    if (m <= 0).any():
        raise InputError("means", "both are equal, so there is no bias", "give different means")

    terms = _expected_terms(blocks(n, rho, eps, c))
    zeta = terms.sum(-1)
    weight = zeta[..., :, None] ** -theta * zeta[..., None, :] ** (theta - 1)
    new_mu = (terms * weight) @ mu
    new_sigma = (terms * weight**2).sum(-1)[..., None, None] * sigma[..., None, :, :]
    if form == "corrected":
        # What one more neighbour of group h changes in a node of group g.
        response = weight[..., None] * mu[..., None, :, :]
        response = response - theta * (new_mu / zeta[..., None])[..., :, None, :]
        composition = np.einsum("...gh,...ghi,...ghj->...gij", terms, response, response)
        new_sigma = new_sigma + composition
    new_delta = new_mu[..., 0, :] - new_mu[..., 1, :]
    return (_quadratic(new_sigma, new_delta[..., None, :]).min(-1) / m)[()]


def exponent(normalisation: Normalisation) -> float:
    """θ in the weight d_i^−θ d_j^(θ−1) of neighbour j: 1 for row, ½ for symmetric normalisation."""
    check_choice("normalisation", normalisation, ("row", "symmetric"))
    return 1.0 if normalisation == "row" else 0.5


def _expected_terms(model: Blocks) -> np.ndarray:
    """K: expected terms of each group in a node's average, including itself (…×g×h)."""
    itself = np.eye(model.sizes.shape[-1])
    return np.asarray((model.sizes[..., None, :] - itself) * model.probabilities + itself)


def _quadratic(sigma: np.ndarray, delta: np.ndarray) -> np.ndarray:
    """δᵀΣ⁻¹δ, broadcast."""
    shape = np.broadcast_shapes(sigma.shape[:-1], delta.shape)
    vector = np.broadcast_to(delta, shape)[..., None]
    return np.asarray((vector[..., 0] * np.linalg.solve(sigma, vector)[..., 0]).sum(-1))

"""Random graphs of the (n, ρ, ε, c) model: two groups, two edge probabilities, normal features."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch_geometric.data import Data

from fairmp.analysis.theory.bounds import check_covariance
from fairmp.analysis.theory.conditions import COVARIANCE, MEANS, connection_probabilities
from fairmp.datasets.synthetic import both_directions, distinct_pairs
from fairmp.errors import InputError, check_integer


def block_graph(
    n: int = 10_000,
    rho: float = 1e-3,
    eps: float = 0.8,
    c: float = 0.5,
    *,
    means: ArrayLike = MEANS,
    covariances: ArrayLike = COVARIANCE,
    label_direction: ArrayLike | None = None,
    seed: int = 0,
) -> Data:
    r"""Sample a graph of the (n, ρ, ε, c) model with Gaussian-mixture features.

    The last ``round(c·n)`` nodes are in group 1, the others in group 0. Each pair is an edge
    independently, with probability p within a group and q between groups
    (``connection_probabilities``); features are :math:`\mathcal N(\mu_s, \Sigma_s)`.

    Sampling is exact: the number of edges in each block is binomial, and given the number every
    set of distinct pairs is equally likely. Time and memory are O(n + edges).

    Args:
        n: number of nodes.
        rho: density, the share of pairs that are edges.
        eps: sensitive homophily, the share of edges within a group.
        c: share of group 1.
        means: mean of each group's features (2×d).
        covariances: covariance of each group's features (2×d×d), or one for both (d×d).
        label_direction: if given (d), ``y`` is 1 where the features' projection on it is above
            the median; by default every label is unknown (−1).
        seed: the same arguments and seed give the same graph.

    Returns:
        A graph with ``x``, ``edge_index``, ``y``, ``sens`` and masks (half of the nodes for
        training, a quarter each for validation and test).

    Raises:
        InputError: If a parameter leaves its range, p or q would exceed 1, a group would be empty,
            or a covariance is not positive definite.

    Example:
        >>> data = block_graph(2000, 0.01, 0.9, 0.25, seed=1)
        >>> data.num_nodes, int(data.sens.sum()), int(data.y.max())
        (2000, 500, -1)
        >>> source, target = data.edge_index
        >>> float((data.sens[source] == data.sens[target]).float().mean())
        0.90...
    """
    p, q = connection_probabilities(n, rho, eps, c)
    ones = round(c * n)
    sizes = np.array([n - ones, ones])
    if sizes.min() < 1:
        raise InputError("c", f"{c} of {n} nodes leaves a group empty", "give more nodes")
    check_integer("seed", seed, "give 0 or a positive integer", low=0)
    mu, factor = _features(means, covariances)

    # Independent streams: the features of a seed do not depend on the number of edges.
    edge_rng, feature_rng, mask_rng = (
        np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(3)
    )
    zero, one = np.arange(n - ones), np.arange(n - ones, n)
    pairs = np.concatenate(
        [
            _edges(edge_rng, zero, None, float(p)),
            _edges(edge_rng, one, None, float(p)),
            _edges(edge_rng, zero, one, float(q)),
        ],
        axis=1,
    )
    sens = np.repeat([0, 1], sizes)
    noise = feature_rng.standard_normal((n, mu.shape[1]))
    x = mu[sens]
    for group, members in enumerate((zero, one)):
        x[members] += noise[members] @ factor[group].T
    place = mask_rng.permutation(n)
    train, test = place < n // 2, place >= n - n // 4
    return Data(
        x=torch.from_numpy(x.astype(np.float32)),
        edge_index=torch.from_numpy(both_directions(pairs, n)),
        y=torch.from_numpy(_labels(x, label_direction)),
        sens=torch.from_numpy(sens),
        train_mask=torch.from_numpy(train),
        val_mask=torch.from_numpy(~train & ~test),
        test_mask=torch.from_numpy(test),
        feature_names=[f"x{k}" for k in range(mu.shape[1])],
        class_names=[] if label_direction is None else ["below", "above"],
        group_names=["group 0", "group 1"],
        name="block model",
    )


def _features(means: ArrayLike, covariances: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    mu = np.asarray(means, dtype=float)
    sigma = check_covariance("covariances", covariances)
    d = mu.shape[-1] if mu.ndim == 2 and len(mu) == 2 else 0
    if not d or sigma.shape not in ((d, d), (2, d, d)):
        shapes = f"shape {mu.shape} with covariances of shape {sigma.shape}"
        raise InputError("means", shapes, "give 2×d means with one d×d covariance or two")
    return mu, np.linalg.cholesky(np.broadcast_to(sigma, (2, d, d)))


def _edges(
    rng: np.random.Generator, rows: np.ndarray, cols: np.ndarray | None, chance: float
) -> np.ndarray:
    room = len(rows) * (len(rows) - 1) // 2 if cols is None else len(rows) * len(cols)
    return distinct_pairs(rng, rows, cols, int(rng.binomial(room, chance)))


def _labels(x: np.ndarray, direction: ArrayLike | None) -> np.ndarray:
    if direction is None:
        return np.full(len(x), -1, dtype=np.int64)
    along = np.asarray(direction, dtype=float)
    if along.shape != x.shape[1:]:
        shapes = f"shape {along.shape} for {x.shape[1]} features"
        raise InputError("label_direction", shapes, "give one number per feature")
    score = x @ along
    return (score > np.median(score)).astype(np.int64)

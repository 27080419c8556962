"""Random graphs of the (n, ρ, ε, c) model: two groups, two edge probabilities, normal features."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch_geometric.data import Data

from fairmp.analysis.theory.bounds import group_moments
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

    The last ``round(c·n)`` nodes are in group 1. Each pair is an edge independently, with
    probability p within a group and q between groups; features are
    :math:`\mathcal N(\mu_s, \Sigma_s)`. Sampling is exact, in O(n + edges) time and memory.
    ``connection_probabilities`` describes the parameters. ``y`` is 1 where the features' projection
    on ``label_direction`` is above the median; every label is unknown (−1) without a direction.
    Half of the nodes are for training, a quarter each for validation and test.

    Example:
        >>> data = block_graph(2000, 0.01, 0.9, 0.25, seed=1)
        >>> source, target = data.edge_index
        >>> float((data.sens[source] == data.sens[target]).float().mean())
        0.90...
    """
    p, q = connection_probabilities(n, rho, eps, c)
    zeros = n - round(c * n)
    if not 0 < zeros < n:
        raise InputError("c", f"{c} of {n} nodes leaves a group empty", "give more nodes")
    check_integer("seed", seed, "give 0 or a positive integer", low=0)
    moments = group_moments(means, covariances, [1 - c, c])
    mu = moments.means
    if mu.shape[:-1] != (2,) or moments.covariances.ndim != 3:
        raise InputError("means", f"shape {mu.shape}", "give 2×d means, and one covariance or two")
    factor = np.linalg.cholesky(moments.covariances)

    # Independent streams: the features of a seed do not depend on the number of edges.
    edge_rng, feature_rng, mask_rng = (
        np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(3)
    )
    first, second = np.arange(zeros), np.arange(zeros, n)
    pairs = []
    for rows, columns, chance in ((first, None, p), (second, None, p), (first, second, q)):
        inside = len(rows) * (len(rows) - 1) // 2
        possible = inside if columns is None else len(rows) * len(columns)
        count = int(edge_rng.binomial(possible, float(chance)))
        pairs.append(distinct_pairs(edge_rng, rows, columns, count))
    sens = (np.arange(n) >= zeros).astype(np.int64)
    noise = feature_rng.standard_normal((n, mu.shape[1]))
    x = mu[sens]
    for group, members in enumerate((first, second)):
        x[members] += noise[members] @ factor[group].T
    position = mask_rng.permutation(n)
    train, test = position < n // 2, position >= n - n // 4
    arrays = {
        "x": x.astype(np.float32),
        "edge_index": both_directions(np.concatenate(pairs, axis=1), n),
        "y": _labels(x, label_direction),
        "sens": sens,
        "train_mask": train,
        "val_mask": ~train & ~test,
        "test_mask": test,
    }
    return Data(
        **{key: torch.from_numpy(array) for key, array in arrays.items()},
        feature_names=[f"x{k}" for k in range(mu.shape[1])],
        class_names=[] if label_direction is None else ["below", "above"],
        group_names=["group 0", "group 1"],
        name="block model",
    )


def _labels(x: np.ndarray, direction: ArrayLike | None) -> np.ndarray:
    """1 where the projection on the direction is above the median; unknown without a direction."""
    if direction is None:
        return np.full(len(x), -1, dtype=np.int64)
    along = np.asarray(direction, dtype=float)
    if along.shape != x.shape[1:]:
        shapes = f"shape {along.shape} for {x.shape[1]} features"
        raise InputError("label_direction", shapes, "give one number per feature")
    score = x @ along
    return (score > np.median(score)).astype(np.int64)

"""Clusters of a graph whose nodes are resampled together."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import reverse_cuthill_mckee

from fairmp.metrics.counts import Array, as_array

ROUNDS = 5  # of label propagation
MIN_CLUSTERS = 20  # a community is at most this share of the nodes
MAX_EDGES = 5_000_000  # above, only connected blocks are cut


def graph_clusters(edge_index: Array, n: int, *, seed: int = 0) -> np.ndarray:
    """Cut a graph into communities, for the intervals of :func:`~fairmp.metrics.evaluate`.

    Communities are found by label propagation: each node takes the label most common among its
    neighbours, ties at random. One that holds more than a twentieth of the nodes is cut into
    blocks of neighbouring nodes, so that there are clusters enough to resample.

    Args:
        edge_index: edges (2×E); their direction does not matter.
        n: number of nodes.
        seed: of the order of updates, and of ties.

    Returns:
        The cluster of each node, numbered from 0.

    Example:
        >>> ring = np.arange(400)
        >>> clusters = graph_clusters(np.stack([ring, (ring + 1) % 400]), 400)
        >>> sizes = np.bincount(clusters)
        >>> print(f"{len(sizes)} clusters of {sizes.min()} to {sizes.max()} nodes")
        111 clusters of 1 to 10 nodes
    """
    source, target = as_array(edge_index, "edge_index").astype(np.int64)
    between = source != target
    pairs = np.unique(
        np.concatenate(
            [source[between] * n + target[between], target[between] * n + source[between]]
        )
    )
    both, other = np.divmod(pairs, n)
    labels = np.zeros(n, dtype=np.int64)
    if both.size <= MAX_EDGES:
        labels = _propagated_labels(both, other, n, np.random.default_rng(seed))
    adjacency = sp.coo_array((np.ones(len(both), dtype=np.int8), (both, other)), shape=(n, n))
    order = reverse_cuthill_mckee(adjacency.tocsr(), symmetric_mode=True)
    return _cut_large(labels, order, max(n // MIN_CLUSTERS, 1))


def _propagated_labels(
    source: np.ndarray, target: np.ndarray, n: int, rng: np.random.Generator
) -> np.ndarray:
    """Labels after some rounds; half of the nodes at a time, which keeps labels from swapping."""
    labels = np.arange(n)
    for _ in range(ROUNDS):
        in_first_half = rng.random(n) < 0.5
        for half in (in_first_half, ~in_first_half):
            chosen = half[target]
            pairs, votes = np.unique(
                target[chosen] * n + labels[source[chosen]], return_counts=True
            )
            nodes, candidates = np.divmod(pairs, n)
            # The last candidate of a node after sorting has the most votes; noise breaks ties.
            best = np.lexsort((votes + rng.random(len(votes)) / 2, nodes))
            labels[nodes[best]] = candidates[best]
    return np.unique(labels, return_inverse=True)[1]


def _cut_large(labels: np.ndarray, order: np.ndarray, largest: int) -> np.ndarray:
    """Cut clusters above a size into blocks of nodes that follow each other in an order."""
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    by_label = np.lexsort((place, labels))
    sizes = np.bincount(labels)
    starts = np.repeat(np.cumsum(sizes) - sizes, sizes)
    block = np.empty(len(labels), dtype=np.int64)
    block[by_label] = (np.arange(len(labels)) - starts) // largest
    return np.unique(np.stack([labels, block]), axis=1, return_inverse=True)[1].ravel()

r"""Intervals for nodes whose decisions are correlated within clusters, as in a graph's communities.

Resampling nodes one by one takes neighbours for independent. Here whole clusters are resampled. The
spread of a difference between two groups' rates over resampled clusters has a closed form,

.. math::
    V_{gh} = \frac{m}{m-1} \sum_c (z_{cg} - z_{ch})^2, \qquad
    z_{cg} = \frac{x_{cg} - r_g n_{cg}}{n_g},

where cluster c has :math:`x_{cg}` decisions among :math:`n_{cg}` nodes of group g. Its ratio to the
variance of independent nodes is the *design effect*. Intervals are stretched by its root, and by
Student's quantile for the effective number of clusters in place of the normal one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import reverse_cuthill_mckee
from scipy.special import ndtri, stdtrit

from fairmp.errors import InputError
from fairmp.frames import as_pandas
from fairmp.metrics.counts import Array, as_array, effective_size, ratio

MIN_CLUSTERS = 2
# Chosen by the coverage of intervals on simulated communities (benchmarks/intervals.py): with fewer
# rounds communities stay in pieces, and with smaller ones large communities are cut.
ROUNDS = 10  # of label propagation
MIN_COMMUNITIES = 10  # a community has at most the nodes divided by this
MAX_EDGES = 5_000_000  # above, only connected blocks are cut
CHUNK = 2_000_000  # entries of resampled tables held at once


class Clusters(NamedTuple):
    """The cluster of each measured node, and how many clusters there are."""

    codes: np.ndarray
    number: int


def read_clusters(clusters: Array, n: int, keep: np.ndarray) -> Clusters:
    """The cluster of each kept node, checked; names may be numbers or text."""
    array = np.asarray(as_pandas(clusters))
    if array.dtype.kind not in "biufUO":
        array = as_array(clusters, "clusters")
    if array.shape != (n,):
        raise InputError("clusters", f"shape {array.shape}", f"give one for each of {n} nodes")
    _, codes = np.unique(array[keep], return_inverse=True)
    count = int(codes.max(initial=-1)) + 1
    if count < MIN_CLUSTERS:
        hint = "give more, or none for independent nodes"
        raise InputError("clusters", f"{count} among the nodes measured", hint)
    return Clusters(codes, count)


class PairStretch(NamedTuple):
    """By how much intervals of pairs of groups are longer than those of independent nodes."""

    effect: np.ndarray  # roots of the design effects (G×G×F)
    degrees_of_freedom: float

    def at(self, tail: float) -> np.ndarray:
        """The factor for a tail probability."""
        quantile = float(stdtrit(self.degrees_of_freedom, 1 - tail) / -ndtri(tail))
        return self.effect * quantile


def pair_stretch(
    hits: np.ndarray, nodes: np.ndarray, sizes: np.ndarray, *, logarithm: bool = False
) -> PairStretch:
    """The stretch of each pair of groups, from counts by cluster.

    Args:
        hits: decisions counted by a rate (m×G×F).
        nodes: nodes the rate is over (m×G×F).
        sizes: effective numbers of nodes (G×F).
        logarithm: of the logarithms of rates instead of the rates.
    """
    total = nodes.sum(0)
    rates = ratio(hits.sum(0), total)
    deviation = hits - np.nan_to_num(rates) * nodes
    influence = np.nan_to_num(ratio(deviation, np.broadcast_to(total, hits.shape)))
    independent = ratio(rates * (1 - rates), sizes)
    if logarithm:
        scale = np.nan_to_num(ratio(np.ones_like(rates), rates))
        influence, independent = influence * scale, independent * scale**2
    m = len(hits)
    products = np.einsum("cgf,chf->ghf", influence, influence) * m / (m - 1)
    variance = np.einsum("ggf->gf", products)
    clustered = variance[:, None] + variance[None] - 2 * products
    expected = np.nan_to_num(independent)[:, None] + np.nan_to_num(independent)[None]
    effect = np.nan_to_num(ratio(clustered, expected), nan=1.0)
    # Clusters of unequal size count for fewer.
    by_cluster = nodes.sum((1, 2))
    effective = float(effective_size(by_cluster.sum(), np.square(by_cluster).sum()))
    return PairStretch(np.sqrt(np.maximum(effect, 1.0)), max(effective - 1, 1.0))


def cluster_tables(
    clusters: Clusters, cells: np.ndarray, weights: np.ndarray, size: int
) -> sp.csr_array:
    """Weights of nodes by cluster × cell of a table (m×size, sparse)."""
    shape = (clusters.number, size)
    return sp.coo_array((weights, (clusters.codes, cells)), shape=shape).tocsr()


def resampled_tables(
    tables: sp.csr_array, resamples: int, rng: np.random.Generator
) -> list[np.ndarray]:
    """Tables of resampled clusters, some at a time (…×size)."""
    m, size = tables.shape
    step = max(1, CHUNK // max(size, m))
    chunks = []
    for start in range(0, resamples, step):
        times = rng.multinomial(m, np.full(m, 1 / m), size=min(step, resamples - start))
        chunks.append(np.asarray((tables.T @ times.T).T, dtype=float))
    return chunks


def graph_clusters(edge_index: Array, n: int, *, seed: int = 0) -> np.ndarray:
    """Cut a graph into communities, for the intervals of :func:`~fairmp.metrics.evaluate`.

    Communities are found by label propagation: each node takes the label most common among its
    neighbours, ties at random. One that holds more than a tenth of the nodes is cut into
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
        71 clusters of 1 to 13 nodes
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
    return _cut_large(labels, order, max(n // MIN_COMMUNITIES, 1))


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

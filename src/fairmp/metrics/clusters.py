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
from scipy.special import ndtri, stdtrit

from fairmp.errors import InputError
from fairmp.frames import as_pandas
from fairmp.metrics.counts import Array, as_array, effective_size, ratio

MIN_CLUSTERS = 2
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

"""Intervals of nodes that are correlated within clusters."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch_geometric.utils import to_undirected

from fairmp.errors import InputError
from fairmp.metrics import evaluate, graph_clusters


def communities(
    seed: int, m: int = 40, size: int = 25, effect: float = 0.3, gap: float = 0.1
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Clusters, groups (sorted by cluster) and decisions, whose rate varies by cluster."""
    rng = np.random.default_rng(seed)
    cluster = np.repeat(np.arange(m), size)
    share = np.where(rng.random(m) < 0.5, 0.9, 0.1)
    sens = (rng.random(m * size) < share[cluster]).astype(int)
    rate = 0.4 + rng.uniform(-effect, effect, m)[cluster] + gap * sens
    return cluster, sens, (rng.random(m * size) < rate).astype(int)


def draw_edges(cluster: np.ndarray, mixing: float, seed: int, degree: int = 10) -> np.ndarray:
    """Edges within communities of equal size (sorted), a share of them to any node instead."""
    rng = np.random.default_rng(seed)
    n, size = len(cluster), np.bincount(cluster)[0]
    source = np.repeat(np.arange(n), degree // 2)
    inside = cluster[source] * size + rng.integers(0, size, len(source))
    leaves = rng.random(len(source)) < mixing
    return np.stack([source, np.where(leaves, rng.integers(0, n, len(source)), inside)])


def independent(cluster: np.ndarray, seed: int) -> None:
    """No clusters."""


def planted(cluster: np.ndarray, seed: int) -> np.ndarray:
    """The true communities."""
    return cluster


def coverage(
    repeats: int, clusters: Callable[[np.ndarray, int], np.ndarray | None], **options: float
) -> float:
    """How often intervals cover the gap; ``clusters`` gets the true communities and a seed."""
    hits = 0
    for seed in range(repeats):
        cluster, sens, decisions = communities(seed, **options)  # type: ignore[arg-type]
        low, high = evaluate(
            None,
            decisions,
            sensitive_features=sens,
            clusters=clusters(cluster, seed),
            bootstrap=1,
        ).intervals["dp"]
        hits += low <= 0.1 <= high
    return hits / repeats


def test_coverage_where_communities_decide_alike() -> None:
    assert coverage(200, independent) < 0.85
    assert 0.92 <= coverage(200, planted) <= 0.98


def test_coverage_of_independent_nodes_is_kept() -> None:
    assert 0.92 <= coverage(200, planted, effect=0.0) <= 0.985


@pytest.mark.parametrize(("mixing", "lowest"), [(0.2, 0.92), (0.4, 0.92)])
def test_coverage_of_communities_found_in_edges(mixing: float, lowest: float) -> None:
    def found(cluster: np.ndarray, seed: int) -> np.ndarray:
        return graph_clusters(draw_edges(cluster, mixing, seed), len(cluster))

    assert lowest <= coverage(200, found) <= 0.98


def test_clusters_of_one_node_are_nearly_independent_nodes() -> None:
    _, sens, decisions = communities(3)
    y = (np.arange(1000) % 3 == 0).astype(int)
    scores = np.stack([1 - 0.6 * decisions - 0.1 * y, 0.6 * decisions + 0.1 * y], 1)
    each = evaluate(y, scores, sensitive_features=sens, clusters=np.arange(1000), seed=1)
    plain = evaluate(y, scores, sensitive_features=sens, seed=1)
    for key in plain.intervals:
        assert each.intervals[key] == pytest.approx(plain.intervals[key], abs=0.012), key


def test_clusters_lengthen_every_interval_of_a_sorted_graph() -> None:
    cluster, sens, decisions = communities(5)
    y = np.where(np.random.default_rng(0).random(1000) < 0.8, decisions, 1 - decisions)
    names = np.array([f"village {c}" for c in cluster])  # text is fine
    plain, clustered = (
        evaluate(y, decisions, sensitive_features=sens, clusters=clusters)
        for clusters in (None, names)
    )
    for key in ("dp", "impact_ratio"):
        widths = [np.diff(result.intervals[key])[0] for result in (plain, clustered)]
        assert widths[1] > 1.2 * widths[0]
    assert clustered.dp == plain.dp
    low, high = clustered.intervals["dp"]
    assert low <= clustered.dp <= high


def test_mask_restricts_clusters() -> None:
    cluster, sens, decisions = communities(1)
    mask = cluster < 20
    masked = evaluate(None, decisions, sensitive_features=sens, clusters=cluster, mask=mask)
    alone = evaluate(None, decisions[mask], sensitive_features=sens[mask], clusters=cluster[mask])
    assert masked.intervals["dp"] == alone.intervals["dp"]


@pytest.mark.parametrize("clusters", [np.zeros(1000), np.arange(7), "a"])
def test_wrong_clusters_are_refused(clusters: object) -> None:
    _, sens, decisions = communities(1)
    with pytest.raises(InputError, match="clusters"):
        evaluate(None, decisions, sensitive_features=sens, clusters=clusters)


class TestGraphClusters:
    def test_planted_communities_are_found(self) -> None:
        rng = np.random.default_rng(0)
        planted = np.repeat(np.arange(30), 20)
        inside = [(a, b) for a in range(600) for b in rng.integers(0, 20, 6) + 20 * planted[a]]
        bridges = rng.integers(0, 600, (60, 2)).tolist()
        edges = torch.tensor(inside + bridges).T
        found = graph_clusters(to_undirected(edges), 600)
        same = planted[:, None] == planted[None]
        agreed = (found[:, None] == found[None]) == same
        assert agreed.mean() > 0.98
        assert np.array_equal(found, graph_clusters(edges, 600))  # direction does not matter

    def test_one_community_is_cut_into_blocks(self) -> None:
        complete = np.stack(np.triu_indices(100, 1))
        sizes = np.bincount(graph_clusters(complete, 100))
        assert sizes.max() <= 10  # a tenth of the nodes

    def test_isolated_nodes_are_clusters_of_their_own(self) -> None:
        assert len(set(graph_clusters(np.empty((2, 0)), 7))) == 7

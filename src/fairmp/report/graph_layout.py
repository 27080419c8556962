"""Layout and sampling of connected graphs, deterministic for a seed."""

from __future__ import annotations

from typing import Any

import numpy as np

NUM_WALKS = 24


def layout(
    source: np.ndarray, target: np.ndarray, n: int, *, seed: int = 0, steps: int = 200
) -> np.ndarray:
    r"""Force-directed positions (n×2) of a connected graph's nodes, the long side horizontal.

    Nodes repel each other by :math:`m_i m_j / r` with mass degree + 1, and edges attract by
    :math:`\ln(1 + r)` (LinLog), starting from the two slowest modes of the normalised Laplacian:
    communities separate. networkx's layouts take three to six times as long at 1,500 nodes;
    its spring layout draws dense graphs as a ball, and its ForceAtlas2 does not separate groups.
    """
    if n < 3:
        return np.stack([np.arange(n) - (n - 1) / 2, np.zeros(n)], 1)
    rng = np.random.default_rng(seed)
    scale = float(np.sqrt(n))
    place = 3 * scale * _spectral(source, target, n) + rng.normal(scale=0.05, size=(n, 2))
    place = place.astype(np.float32)
    mass = (np.bincount(np.concatenate([source, target]), minlength=n) + 1).astype(np.float32)
    # Weighted so that repulsion and attraction balance at distances of about `scale`, for graphs
    # of any density.
    push = len(source) * np.log1p(scale) * scale / float(mass.sum() ** 2 - (mass**2).sum())
    gravity = 0.02 * len(source) / n * np.log1p(scale) / scale
    for step in range(steps):
        force = push * _repulsion(place, mass) + _attraction(place, source, target)
        force = (force - gravity * place) / mass[:, None]
        length = np.linalg.norm(force, axis=1, keepdims=True) + 1e-9
        limit = 0.5 * scale * (1 - step / steps) ** 2
        place += (force / length * np.minimum(length * scale, limit)).astype(np.float32)
    place = place.astype(np.float64) - place.mean(0)
    _, _, axes = np.linalg.svd(place, full_matrices=False)
    # Signs of singular vectors are arbitrary; make the largest entry positive.
    axes *= np.sign(axes[np.arange(2), np.abs(axes).argmax(1)])[:, None]
    return np.asarray(place @ axes.T)


def _spectral(source: np.ndarray, target: np.ndarray, n: int) -> np.ndarray:
    """Ranks of the nodes along the two slowest modes, in [−½, ½]."""
    from scipy.linalg import eigh

    root = 1 / np.sqrt(np.bincount(np.concatenate([source, target]), minlength=n))
    matrix = np.zeros((n, n))
    matrix[source, target] = matrix[target, source] = root[source] * root[target]
    modes = eigh(matrix, subset_by_index=[n - 3, n - 2])[1]
    # Ranks, because a chain of nodes would otherwise dominate the picture.
    return np.asarray(modes.argsort(0, kind="stable").argsort(0, kind="stable") / n - 0.5)


def _repulsion(place: np.ndarray, mass: np.ndarray) -> np.ndarray:
    square = (place**2).sum(1)
    distance = square[:, None] + square[None, :] - 2 * (place @ place.T)
    np.maximum(distance, 1e-2, out=distance)
    weight = np.divide(mass[:, None] * mass[None, :], distance, out=distance)
    np.fill_diagonal(weight, 0)
    return place * weight.sum(1, keepdims=True) - weight @ place


def _attraction(place: np.ndarray, source: np.ndarray, target: np.ndarray) -> np.ndarray:
    apart = place[target] - place[source]
    distance = np.linalg.norm(apart, axis=1) + 1e-9
    n, pull = len(place), (apart * (np.log1p(distance) / distance)[:, None]).T
    sums = [np.bincount(source, side, n) - np.bincount(target, side, n) for side in pull]
    return np.stack(sums, 1)


def sample(
    neighbours: Any, count: int, groups: np.ndarray, *, seed: int = 0, tries: int = NUM_WALKS
) -> np.ndarray:
    """Sample connected nodes of a connected graph (scipy CSR) by a random walk, sorted.

    Short walks may not leave a community, so of several walks it keeps the one whose shares of
    groups and of between-group edges are closest to the graph's.
    """
    rng = np.random.default_rng(seed)
    n = neighbours.shape[0]
    overall = _split(neighbours, groups, np.arange(n))
    walks = (_walk(neighbours.indptr, neighbours.indices, count, rng) for _ in range(tries))
    return min(walks, key=lambda w: float(np.abs(_split(neighbours, groups, w) - overall).sum()))


def _walk(starts: np.ndarray, ends: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    node = int(rng.integers(len(starts) - 1))
    met = {node}
    for draw in rng.random(200 * count):
        if len(met) == count:
            break
        low, high = starts[node], starts[node + 1]
        node = int(ends[low + int(draw * (high - low))])
        met.add(node)
    return np.sort(np.fromiter(met, dtype=np.int64))


def _split(neighbours: Any, groups: np.ndarray, nodes: np.ndarray) -> np.ndarray:
    """Shares of the groups among nodes, and the weighted share of between-group edges."""
    part = neighbours if len(nodes) == len(groups) else neighbours[nodes][:, nodes]
    own = groups[nodes]
    part = part.tocoo()
    crossing = (own[part.row] != own[part.col]).mean() if part.nnz else 0.0
    shares = np.bincount(own + 1, minlength=groups.max() + 2) / len(nodes)
    return np.append(shares, 4 * crossing)

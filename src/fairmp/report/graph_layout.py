"""Where to draw the nodes of a connected graph: like ends up with like, the same every time."""

from __future__ import annotations

from typing import Any

import numpy as np

WALKS = 24


def layout(
    source: np.ndarray, target: np.ndarray, n: int, *, seed: int = 0, steps: int = 200
) -> np.ndarray:
    r"""Place the nodes of a connected graph in the plane; for up to a few thousand nodes.

    Starting from the two slowest modes of the normalised Laplacian, nodes repel each other as
    charges of their degree plus one, :math:`m_i m_j / r`, and edges pull by :math:`\ln(1 + r)`.
    That keeps tightly knit nodes together and pushes apart what few edges join, so that groups
    which keep to themselves can be seen. Moves are cut off at a length that falls to 0. A step
    takes O(n²).

    Args:
        source: one end of each undirected edge, from 0.
        target: the other end.
        n: number of nodes.
        seed: breaks ties in the start.
        steps: how many moves.

    Returns:
        Positions (n×2), centred, the long side along the first axis.

    Example:
        >>> place = layout(np.array([0, 1, 2]), np.array([1, 2, 3]), 4)
        >>> place.shape, bool(np.ptp(place[:, 0]) > np.ptp(place[:, 1]))
        ((4, 2), True)
    """
    if n < 3:
        return np.stack([np.arange(n) - (n - 1) / 2, np.zeros(n)], 1)
    rng = np.random.default_rng(seed)
    room = float(np.sqrt(n))
    place = 3 * room * _spectral(source, target, n) + rng.normal(scale=0.05, size=(n, 2))
    place = place.astype(np.float32)
    mass = (np.bincount(np.concatenate([source, target]), minlength=n) + 1).astype(np.float32)
    # Repulsion grows with all pairs and attraction with the edges; so weighted, the two balance at
    # distances of about `room` in graphs of any density.
    push = len(source) * np.log1p(room) * room / float(mass.sum() ** 2 - (mass**2).sum())
    gravity = 0.02 * len(source) / n * np.log1p(room) / room
    for step in range(steps):
        force = push * _repulsion(place, mass) + _attraction(place, source, target)
        force = (force - gravity * place) / mass[:, None]
        length = np.linalg.norm(force, axis=1, keepdims=True) + 1e-9
        limit = 0.5 * room * (1 - step / steps) ** 2
        place += (force / length * np.minimum(length * room, limit)).astype(np.float32)
    return _turned(place)


def _spectral(source: np.ndarray, target: np.ndarray, n: int) -> np.ndarray:
    """Ranks of the nodes along the two slowest modes, from −½ to ½."""
    from scipy.linalg import eigh

    scale = 1 / np.sqrt(np.bincount(np.concatenate([source, target]), minlength=n))
    matrix = np.zeros((n, n))
    matrix[source, target] = matrix[target, source] = scale[source] * scale[target]
    modes = eigh(matrix, subset_by_index=[n - 3, n - 2])[1]
    # Ranks, since a chain that hangs off the rest would take up the whole picture by itself.
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
    pull = apart * (np.log1p(distance) / distance)[:, None]
    n = len(place)
    return np.stack(
        [np.bincount(source, pull[:, k], n) - np.bincount(target, pull[:, k], n) for k in range(2)],
        1,
    )


def _turned(place: np.ndarray) -> np.ndarray:
    place = place.astype(np.float64) - place.mean(0)
    _, _, axes = np.linalg.svd(place, full_matrices=False)
    # A singular vector's sign is arbitrary; its largest entry is taken to be positive.
    axes *= np.sign(axes[np.arange(2), np.abs(axes).argmax(1)])[:, None]
    return np.asarray(place @ axes.T)


def sample(
    neighbours: Any, count: int, groups: np.ndarray, *, seed: int = 0, tries: int = WALKS
) -> np.ndarray:
    """Take a connected part of a connected graph: what a random walk meets, in the best of tries.

    A walk goes along every edge equally often in the long run; a short one may not leave its
    corner. Of several walks the one is kept whose nodes and edges are split between groups most
    like the whole graph's.

    Args:
        neighbours: the graph's symmetric adjacency, a scipy CSR array.
        count: how many nodes to take.
        groups: group of each node, −1 = unknown.
        seed: of the walks.
        tries: how many walks.

    Returns:
        The nodes taken, ascending.
    """
    rng = np.random.default_rng(seed)
    n = neighbours.shape[0]
    whole = _split(neighbours, groups, np.arange(n))
    best: tuple[float, np.ndarray] | None = None
    for _ in range(tries):
        nodes = _walk(neighbours.indptr, neighbours.indices, count, rng)
        off = float(np.abs(_split(neighbours, groups, nodes) - whole).sum())
        if best is None or off < best[0]:
            best = off, nodes
    assert best is not None
    return best[1]


def _walk(starts: np.ndarray, ends: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    node = int(rng.integers(len(starts) - 1))
    met = {node}
    draws = iter(rng.random(200 * count))
    for draw in draws:
        if len(met) == count:
            break
        low, high = starts[node], starts[node + 1]
        node = int(ends[low + int(draw * (high - low))])
        met.add(node)
    return np.sort(np.fromiter(met, dtype=np.int64))


def _split(neighbours: Any, groups: np.ndarray, nodes: np.ndarray) -> np.ndarray:
    """Shares of the groups among nodes, and the share of edges that cross."""
    part = neighbours if len(nodes) == len(groups) else neighbours[nodes][:, nodes]
    own = groups[nodes]
    part = part.tocoo()
    crossing = (own[part.row] != own[part.col]).mean() if part.nnz else 0.0
    shares = np.bincount(own + 1, minlength=groups.max() + 2) / len(nodes)
    return np.append(shares, 4 * crossing)

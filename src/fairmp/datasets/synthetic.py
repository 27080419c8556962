"""The embedded network: a generated social graph with given homophily, groups and base rates.

Real graphs fix all of these at once. Here each one is an argument and is met exactly (up to one
edge or one node), so that an effect can be traced to its cause.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from fairmp.datasets.splits import largest_remainder, with_split
from fairmp.errors import InputError

if TYPE_CHECKING:
    from torch_geometric.data import Data


def social_network(
    n: int = 20_000,
    *,
    average_degree: float | None = None,
    density: float | None = None,
    sens_homophily: float = 0.92,
    label_homophily: float = 0.65,
    group_ratio: float | Sequence[float] = 0.5,
    base_rate: float = 0.5,
    base_rate_gap: float = 0.18,
    classes: int = 2,
    groups: int = 2,
    features: int = 32,
    label_signal: float = 0.9,
    sens_signal: float = 0.5,
    seed: int = 0,
) -> Data:
    """Generate a simple undirected graph with the given homophily, groups and base rates.

    Nodes form blocks ``(group, class)`` of exact sizes. The edge mass of a pair of blocks is

        ``m_ab = n_a n_b · w[same group, same class]``  (``n_a (n_a − 1) / 2`` inside a block),

    where iterative proportional fitting finds the four weights ``w`` for which the share of edges
    within groups is ``sens_homophily`` and the share within classes is ``label_homophily``. The
    edges of a pair of blocks are drawn uniformly without replacement. Features are
    ``noise + label_signal · d_class + sens_signal · d_group`` with unit directions ``d``; the group
    itself is not a feature.

    The defaults were chosen for the demonstration: plain propagation shows a gap well above 20
    points, and closing it costs 2 to 3 points of accuracy. They illustrate the method and are no
    evidence for it.

    Args:
        n: Number of nodes.
        average_degree: Mean number of neighbours; 15 if ``density`` is not given either.
        density: Share of all pairs that are edges, instead of ``average_degree``.
        sens_homophily: Share of edges between nodes of the same group.
        label_homophily: Share of edges between nodes of the same class.
        group_ratio: Share of group 1, the others being of equal size; or the share of each group.
        base_rate: Rate of class 1 midway between the first and the last group.
        base_rate_gap: Rate of class 1 in the last group minus that in the first, linear in
            between; the other classes are of equal size.
        classes: Number of classes.
        groups: Number of groups.
        features: Number of feature columns.
        label_signal: Norm of the class mean in the features; the noise has standard deviation 1.
        sens_signal: Norm of the group mean in the features.
        seed: The same arguments and seed give the same graph.

    Returns:
        A graph with ``x``, ``edge_index``, ``y``, ``sens`` and the masks of ``split(seed=seed)``.

    Raises:
        InputError: If an argument is out of range or no graph meets them all.

    Example:
        >>> data = social_network(1000, average_degree=8, sens_homophily=0.8)
        >>> source, target = data.edge_index
        >>> float((data.sens[source] == data.sens[target]).float().mean())
        0.80...
    """
    from torch_geometric.data import Data

    least = {"n": (n, 2), "classes": (classes, 2), "groups": (groups, 2)}
    for name, (number, low) in {**least, "features": (features, 1), "seed": (seed, 0)}.items():
        if number < low:
            raise InputError(name, f"{number} is too small", f"give {low} or more")
    for name, share in {"sens": sens_homophily, "label": label_homophily}.items():
        if not 0 <= share <= 1:
            raise InputError(f"{name}_homophily", f"{share} is outside [0, 1]", "give a share")
    edges = _edge_count(n, average_degree, density)
    sizes = _block_sizes(n, _group_shares(group_ratio, groups), base_rate, base_rate_gap, classes)
    counts = _edge_counts(sizes, edges, sens_homophily, label_homophily)

    # One stream per purpose: nodes and features do not change with the edges.
    node_rng, edge_rng, feature_rng = (
        np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(3)
    )
    place = node_rng.permutation(n)
    block = np.empty(n, dtype=np.int64)
    block[place] = np.repeat(np.arange(sizes.size), sizes.reshape(-1))
    sens, y = np.divmod(block, classes)
    members = np.split(place, np.cumsum(sizes.reshape(-1))[:-1])
    pairs = np.concatenate(
        [
            distinct_pairs(edge_rng, members[a], None if a == b else members[b], int(counts[a, b]))
            for a, b in zip(*np.nonzero(counts), strict=True)
        ],
        axis=1,
    )

    direction = _directions(feature_rng, classes + groups, features)
    x = feature_rng.standard_normal((n, features), dtype=np.float32)
    x += (label_signal * direction[:classes]).astype(np.float32)[y]
    x += (sens_signal * direction[classes:]).astype(np.float32)[sens]

    data = Data(
        x=torch.from_numpy(x),
        edge_index=torch.from_numpy(both_directions(pairs, n)),
        y=torch.from_numpy(y),
        sens=torch.from_numpy(sens),
        feature_names=[f"f{k}" for k in range(features)],
        class_names=[f"class {k}" for k in range(classes)],
        group_names=[f"group {k}" for k in range(groups)],
        name="embedded network",
    )
    return with_split(data, seed=seed)


def distinct_pairs(
    rng: np.random.Generator, rows: np.ndarray, cols: np.ndarray | None, count: int
) -> np.ndarray:
    """Draw distinct unordered pairs of nodes uniformly, as a 2×count array, in O(count).

    Pairs connect a node of ``rows`` to one of ``cols``, which must be disjoint, or two different
    nodes of ``rows`` if ``cols`` is None.
    """
    n = len(rows)
    if cols is None:
        code = _distinct_integers(rng, n * (n - 1) // 2, count)
        # The pairs of n nodes on a circle: node i and the one `step` further on, up to half way.
        step, i = np.divmod(code, max(n, 1))
        return np.stack([rows[i], rows[(i + step + 1) % max(n, 1)]])
    code = _distinct_integers(rng, n * len(cols), count)
    i, j = np.divmod(code, max(len(cols), 1))
    return np.stack([rows[i], cols[j]])


def _distinct_integers(rng: np.random.Generator, total: int, count: int) -> np.ndarray:
    if not 0 <= count <= total:
        raise InputError("count", f"{count} distinct pairs of {total}", f"ask for at most {total}")
    if total <= 4 * count:
        return rng.permutation(total)[:count]
    # At most a quarter is wanted, so that repeats are few. They do not depend on the values: a
    # random subset of the distinct ones is uniform.
    found = np.empty(0, dtype=np.int64)
    while len(found) < count:
        more = rng.integers(total, size=(count - len(found)) * 5 // 4 + 16)
        # np.unique hashes, which is many times slower than sorting at this size.
        found = np.sort(np.concatenate([found, more]))
        found = found[np.r_[True, found[1:] != found[:-1]]]
    return rng.permutation(found)[:count]


def _edge_count(n: int, average_degree: float | None, density: float | None) -> int:
    if average_degree is not None and density is not None:
        raise InputError(
            "density", f"{density} along with average_degree={average_degree}", "give one of them"
        )
    if density is not None and not 0 < density <= 1:
        raise InputError("density", f"{density} is outside (0, 1]", "give a share of all pairs")
    degree = 15.0 if average_degree is None else average_degree
    degree = degree if density is None else density * (n - 1)
    edges = round(n * degree / 2) if 0 < degree <= n - 1 else 0
    if not edges:
        raise InputError(
            "average_degree",
            f"{degree} is outside (0, {n - 1}] or gives no edge",
            f"{n} nodes have at most {n - 1} neighbours each",
        )
    return edges


def _group_shares(group_ratio: float | Sequence[float], groups: int) -> np.ndarray:
    shares = np.asarray(group_ratio, dtype=float)
    if shares.ndim == 0:
        shares = np.full(groups, (1 - shares) / (groups - 1))
        shares[1] = group_ratio
    if shares.shape != (groups,):
        raise InputError(
            "group_ratio", f"{shares.size} shares for {groups} groups", f"give groups={shares.size}"
        )
    if not (shares > 0).all() or abs(shares.sum() - 1) > 1e-6:
        raise InputError(
            "group_ratio",
            f"the shares {shares.tolist()} must be positive with a sum of 1",
            "give the share of group 1 or of every group",
        )
    return shares


def _block_sizes(
    n: int, shares: np.ndarray, base_rate: float, base_rate_gap: float, classes: int
) -> np.ndarray:
    """Return the number of nodes by group and class."""
    positive = base_rate + base_rate_gap * np.linspace(-0.5, 0.5, len(shares))
    # A rate that is 0 or 1 up to rounding errors is meant to be exactly that.
    positive = np.where(np.abs(positive - positive.round()) < 1e-12, positive.round(), positive)
    if not ((positive >= 0) & (positive <= 1)).all():
        raise InputError(
            "base_rate",
            f"{base_rate} with base_rate_gap={base_rate_gap} gives group rates "
            f"{positive.round(4).tolist()}, outside [0, 1]",
            "make the gap smaller",
        )
    rates = np.repeat((1 - positive)[:, None] / (classes - 1), classes, axis=1)
    rates[:, 1] = positive
    of_group = largest_remainder(n * shares, n)
    sizes = np.stack(
        [largest_remainder(m * rate, int(m)) for m, rate in zip(of_group, rates, strict=True)]
    )
    empty = (sizes == 0) & (rates > 0)
    if empty.any():
        group, label = (int(k[0]) for k in np.nonzero(empty))
        raise InputError(
            "n",
            f"{n} leaves group {group} without a node of class {label}",
            "give more nodes or less extreme group_ratio and base rates",
        )
    return sizes


def _edge_counts(
    sizes: np.ndarray, edges: int, sens_homophily: float, label_homophily: float
) -> np.ndarray:
    """Return the number of edges by pair of blocks, as an upper triangular matrix."""
    size = sizes.reshape(-1)
    group, label = np.divmod(np.arange(len(size)), sizes.shape[1])
    a, b = np.triu_indices(len(size))
    room = np.where(a == b, size[a] * (size[a] - 1) // 2, size[a] * size[b])
    kind = 2 * (group[a] == group[b]) + (label[a] == label[b])

    chance = np.bincount(kind, weights=room, minlength=4).reshape(2, 2)
    shares = _fit_margins(chance, sens_homophily, label_homophily).reshape(-1)
    by_kind = largest_remainder(edges * shares, edges)
    count = np.zeros(len(room), dtype=np.int64)
    for k in range(4):
        if by_kind[k]:
            pairs = np.flatnonzero(kind == k)
            share = room[pairs] / room[pairs].sum()
            count[pairs] = largest_remainder(by_kind[k] * share, int(by_kind[k]))
    if (count > room).any():
        k = int(np.argmax(count - room))
        raise InputError(
            "average_degree",
            f"{2 * edges / size.sum():g} with this homophily asks for {count[k]} edges between "
            f"(group {group[a[k]]}, class {label[a[k]]}) and (group {group[b[k]]}, class "
            f"{label[b[k]]}), which have {room[k]} pairs",
            "give fewer edges",
        )
    result = np.zeros((len(size), len(size)), dtype=np.int64)
    result[a, b] = count
    return result


def _fit_margins(chance: np.ndarray, sens_homophily: float, label_homophily: float) -> np.ndarray:
    """Return edge shares [same group, same class] with given margins and chance's odds ratio."""
    by_group = np.array([1 - sens_homophily, sens_homophily])
    by_label = np.array([1 - label_homophily, label_homophily])
    mass = chance / chance.sum()
    for _ in range(10_000):
        rows = mass.sum(1)
        mass = mass * np.divide(by_group, rows, out=np.zeros(2), where=rows > 0)[:, None]
        columns = mass.sum(0)
        mass = mass * np.divide(by_label, columns, out=np.zeros(2), where=columns > 0)
        if np.abs(mass.sum(1) - by_group).max() < 1e-12 > np.abs(mass.sum(0) - by_label).max():
            return mass
    raise InputError(
        "sens_homophily",
        f"{sens_homophily} cannot go with label_homophily={label_homophily} and these base rates",
        "move one of them, or the base rates away from 0 and 1",
    )


def _directions(rng: np.random.Generator, count: int, features: int) -> np.ndarray:
    """Return random unit vectors, orthogonal if there are enough features."""
    vectors = rng.standard_normal((count, features))
    if count <= features:
        return np.linalg.qr(vectors.T)[0].T
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def both_directions(pairs: np.ndarray, n: int) -> np.ndarray:
    """Return a sorted edge_index with both directions of distinct undirected pairs (2×count)."""
    key = np.concatenate([pairs[0] * n + pairs[1], pairs[1] * n + pairs[0]])
    key.sort()
    return np.stack(np.divmod(key, n))

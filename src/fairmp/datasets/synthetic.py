"""The embedded network: a generated social graph with given homophily, groups and base rates."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch_geometric.data import Data

from fairmp.datasets.splits import largest_remainder, with_split
from fairmp.errors import InputError, check_number


def social_network(  # noqa: PLR0913
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

    Nodes form blocks ``(group, class)`` of exact sizes. The number of edges between two blocks is
    proportional to their number of pairs times one of four weights ``w[same group, same class]``,
    fitted so that both homophilies are met up to one edge; edges are drawn uniformly without
    replacement. Features are ``noise + label_signal · d_class + sens_signal · d_group`` with unit
    directions ``d``. The defaults were chosen for the demonstration and are no evidence for FMP.

    Args:
        n: Number of nodes.
        average_degree: Mean number of neighbours; 15 if ``density`` is not given either.
        density: Share of all pairs that are edges, instead of ``average_degree``.
        sens_homophily: Share of edges between nodes of the same group.
        label_homophily: Share of edges between nodes of the same class.
        group_ratio: Share of group 1, the others being of equal size; or the share of each group.
        base_rate: Rate of class 1 midway between the first and the last group.
        base_rate_gap: Rate of class 1 in the last group minus that in the first.
        classes: Number of classes.
        groups: Number of groups.
        features: Number of feature columns.
        label_signal: Norm of the class mean in the features; the noise has standard deviation 1.
        sens_signal: Norm of the group mean in the features.
        seed: Seed of the graph, and of its split.

    Example:
        >>> data = social_network(1000, average_degree=8, sens_homophily=0.8)
        >>> source, target = data.edge_index
        >>> float((data.sens[source] == data.sens[target]).float().mean())
        0.80...
    """
    for name, number, least in (
        ("n", n, 2),
        ("classes", classes, 2),
        ("groups", groups, 2),
        ("features", features, 1),
        ("seed", seed, 0),
    ):
        if number < least:
            raise InputError(name, f"{number} is too small", f"give {least} or more")
    for name, share in {"sens": sens_homophily, "label": label_homophily}.items():
        check_number(f"{name}_homophily", share, "give a share, from 0 to 1", low=0, high=1)
    edges = _edge_count(n, average_degree, density)
    shares = _group_shares(group_ratio, groups)
    sizes = _block_sizes(n, shares, base_rate, base_rate_gap, classes)
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
    pairs = [
        distinct_pairs(edge_rng, members[a], None if a == b else members[b], int(counts[a, b]))
        for a, b in zip(*np.nonzero(counts), strict=True)
    ]
    direction = _directions(feature_rng, classes + groups, features)
    x = feature_rng.standard_normal((n, features), dtype=np.float32)
    x += (label_signal * direction[:classes]).astype(np.float32)[y]
    x += (sens_signal * direction[classes:]).astype(np.float32)[sens]
    data = Data(
        torch.from_numpy(x),
        torch.from_numpy(both_directions(np.concatenate(pairs, axis=1), n)),
        y=torch.from_numpy(y),
        sens=torch.from_numpy(sens),
        feature_names=[f"f{k}" for k in range(features)],
        class_names=[f"class {k}" for k in range(classes)],
        group_names=[f"group {k}" for k in range(groups)],
        name="embedded network",
    )
    return with_split(data, seed=seed)


def _group_shares(group_ratio: float | Sequence[float], groups: int) -> np.ndarray:
    shares = np.asarray(group_ratio, dtype=float)
    if shares.ndim == 0:
        shares = np.full(groups, (1 - shares) / (groups - 1))
        shares[1] = group_ratio
    if shares.shape != (groups,):
        problem = f"{shares.size} shares for {groups} groups"
        raise InputError("group_ratio", problem, f"give {{groups={shares.size}}}")
    if not (shares > 0).all() or abs(shares.sum() - 1) > 1e-6:
        problem = f"the shares {shares.tolist()} must be positive with a sum of 1"
        raise InputError("group_ratio", problem, "give the share of group 1 or of every group")
    return shares


def _directions(rng: np.random.Generator, count: int, features: int) -> np.ndarray:
    """Draw unit vectors, orthogonal ones if there is room for them."""
    direction = rng.standard_normal((count, features))
    if count <= features:
        return np.linalg.qr(direction.T)[0].T
    return direction / np.linalg.norm(direction, axis=1, keepdims=True)


def distinct_pairs(
    rng: np.random.Generator, rows: np.ndarray, cols: np.ndarray | None, count: int
) -> np.ndarray:
    """Draw distinct pairs of ``rows`` and disjoint ``cols``, or within ``rows``, as 2×count."""
    n = max(len(rows), 1)
    if cols is None:
        # The pairs of n nodes on a circle: node i and the one `step` further on, up to half way.
        step, i = np.divmod(_distinct_integers(rng, n * (n - 1) // 2, count), n)
        return np.stack([rows[i], rows[(i + step + 1) % n]])
    code = _distinct_integers(rng, len(rows) * len(cols), count)
    i, j = np.divmod(code, max(len(cols), 1))
    return np.stack([rows[i], cols[j]])


def _distinct_integers(rng: np.random.Generator, total: int, count: int) -> np.ndarray:
    if total <= 4 * count:
        return rng.permutation(total)[:count]
    # Repeats are few, and do not depend on the values: a random subset of the rest is uniform.
    drawn = np.empty(0, dtype=np.int64)
    while len(drawn) < count:
        new = rng.integers(total, size=(count - len(drawn)) * 5 // 4 + 16)
        # np.unique hashes, which is many times slower than sorting at this size.
        drawn = np.sort(np.concatenate([drawn, new]))
        drawn = drawn[np.r_[True, drawn[1:] != drawn[:-1]]]
    return rng.permutation(drawn)[:count]


def _edge_count(n: int, average_degree: float | None, density: float | None) -> int:
    if average_degree is not None and density is not None:
        problem = f"{density} along with average_degree={average_degree}"
        raise InputError("density", problem, "give one of them")
    degree = 15.0 if average_degree is None else average_degree
    if density is not None:
        check_number("density", density, "give a share of all pairs", low=0, high=1, above=True)
        degree = density * (n - 1)
    edges = round(n * degree / 2) if 0 < degree <= n - 1 else 0
    if not edges:
        problem = f"{degree} is outside (0, {n - 1}] or gives no edge"
        raise InputError("average_degree", problem, "give the mean number of neighbours")
    return edges


def _block_sizes(
    n: int, shares: np.ndarray, base_rate: float, base_rate_gap: float, classes: int
) -> np.ndarray:
    """Return the number of nodes by group and class."""
    positive = base_rate + base_rate_gap * np.linspace(-0.5, 0.5, len(shares))
    # A rate that is 0 or 1 up to rounding errors is meant to be exactly that.
    positive = np.where(np.abs(positive - positive.round()) < 1e-12, positive.round(), positive)
    if not ((positive >= 0) & (positive <= 1)).all():
        rates = f"gives group rates {positive.round(4).tolist()}, outside [0, 1]"
        problem = f"{base_rate} with base_rate_gap={base_rate_gap} {rates}"
        raise InputError("base_rate", problem, "make the gap smaller")
    by_class = np.repeat((1 - positive)[:, None] / (classes - 1), classes, axis=1)
    by_class[:, 1] = positive
    of_group = largest_remainder(n * shares, n)
    pairs = zip(of_group, by_class, strict=True)
    sizes = np.stack([largest_remainder(m * rate, int(m)) for m, rate in pairs])
    empty = np.argwhere((sizes == 0) & (by_class > 0))
    if len(empty):
        problem = f"{n} leaves group {empty[0][0]} without a node of class {empty[0][1]}"
        raise InputError("n", problem, "give more nodes or less extreme shares and rates")
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
        first, second = (f"group {group[end]}, class {label[end]}" for end in (a[k], b[k]))
        problem = f"{2 * edges / size.sum():g} with this homophily asks for {count[k]} edges"
        limit = f"there are {room[k]} pairs between ({first}) and ({second})"
        raise InputError("average_degree", problem, limit)
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
    problem = f"{sens_homophily} cannot go with label_homophily={label_homophily} and base rates"
    raise InputError("sens_homophily", problem, "move one of them, or the base rates from 0 and 1")


def both_directions(pairs: np.ndarray, n: int) -> np.ndarray:
    """Return a sorted edge_index with both directions of distinct undirected pairs (2×count)."""
    key = np.concatenate([pairs[0] * n + pairs[1], pairs[1] * n + pairs[0]])
    key.sort()
    return np.stack(np.divmod(key, n))

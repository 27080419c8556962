"""The audit: groups, homophily, and the bias of features before and after averaging."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import remove_self_loops, to_undirected

from fairmp.analysis.audits.parts import FeatureBias, Forecast, Group, Homophily, Leak
from fairmp.analysis.audits.result import Audit
from fairmp.analysis.theory import (
    bias_enhancement,
    block_counts,
    graph_parameters,
    group_moments,
    predicted_block_change,
)
from fairmp.analysis.theory.measurement import averaged, held_out_bias, held_out_scores
from fairmp.datasets.splits import check
from fairmp.datasets.statistics import statistics
from fairmp.errors import InputError, check_integer
from fairmp.groups import group_operator
from fairmp.report.formats import join_names

MIN_GROUP_SIZE = 10  # of a group that rules are fitted for, on one half of the nodes
MIN_BALANCED = 0.9  # mean share of both sides on which a threshold of a leaking column is right
MAX_RANDOM_COLUMNS = 64  # of the random-feature baseline: enough to show what the topology reveals
Folds = Sequence[tuple[np.ndarray, np.ndarray]]


def audit(data: Data, *, steps: int = 5, seed: int = 0) -> Audit:
    r"""Measure the effect of a graph's topology on its groups, before anything is trained.

    Homophily adjusted for chance is :math:`(\epsilon - \bar\epsilon)/(1 - \bar\epsilon)` with
    :math:`\bar\epsilon = \sum_g D_g^2/(2E)^2`, where :math:`D_g` is the sum of the degrees in group
    g. The features are standardised, constant columns dropped, and averaged over neighbours step
    by step. After each step the audit measures the distance between the groups' means, that
    distance relative to the spread within groups, :math:`\sqrt{\delta^\top\Sigma^{-1}\delta}`, and
    how well a linear rule predicts the group. Σ gets a ridge of 0.01 of the mean variance, so
    linearly dependent columns do no harm.

    Args:
        data: a graph with ``x``, ``edge_index`` and ``sens`` (−1: unknown); ``y`` is optional.
            Any number of groups and classes.
        steps: number of averaging steps.
        seed: seed of the halves that rules are fitted and evaluated on.

    Raises:
        InputError: If the graph is incomplete, or has fewer than two groups.

    Example:
        >>> from fairmp.datasets import social_network
        >>> found = audit(social_network(n=2000, average_degree=10))
        >>> found.nodes, round(found.homophily.adjusted, 2) > 0.8
        (2000, True)
        >>> found.row[0].predictability < found.row[1].predictability
        True
    """
    check_integer("steps", steps, "give 1 or more")
    check_integer("seed", seed, "give 0 or a positive integer", low=0)
    clean, notes = _cleaned(data)
    table, facts = statistics(clean), _facts(clean)
    known = [group for group in facts["groups"] if group.share is not None]
    centred = clean.x - clean.x.mean(0)
    deviation = torch.linalg.vector_norm(centred, dim=0) / math.sqrt(len(centred))
    # Rounding can give a constant column a deviation, and a nearly constant one none.
    varied = (clean.x.amax(0) > clean.x.amin(0)) & (deviation > 0)
    x = centred[:, varied].div_(deviation[varied]).numpy()
    # A single split into halves is noisy on small graphs, where several are cheap.
    folds = [_halves(clean.sens, [seed, k]) for k in range(max(1, min(10, 20_000 // len(x))))]
    columns = min(x.shape[1], MAX_RANDOM_COLUMNS)
    generator = torch.Generator().manual_seed(seed)
    random = torch.randn(len(x), columns, generator=generator).numpy()
    after_random = averaged(random, clean.edge_index, steps, "row") if columns else ()

    def cross_fitted(values: np.ndarray) -> list[float]:
        """Separation and predictability, averaged over random halves."""
        return np.mean([held_out_bias(values, *fold) for fold in folds], axis=0).tolist()

    def measure(step: int, values: np.ndarray) -> FeatureBias:
        return FeatureBias(step, *mean_gap(values, clean.sens.numpy()), *cross_fitted(values))

    before = measure(0, x)
    row, symmetric = (
        (before, *map(measure, range(1, steps + 1), averaged(x, clean.edge_index, steps, kind)))
        for kind in ("row", "symmetric")
    )
    unknown = (clean.sens[clean.edge_index] < 0).any(0).double()
    # Two standard errors (at most) of a difference of shares, for the two smallest groups.
    smallest = sorted(group.nodes for group in known if group.nodes >= MIN_GROUP_SIZE)[:2]
    noise = 2 * math.sqrt(sum(0.25 / size for size in smallest)) if len(smallest) == 2 else None
    n = table.nodes
    return Audit(
        **facts,
        directed_edges=table.edges,
        features=table.features,
        constant_features=int((~varied).sum()),
        labelled=table.labelled or 0,
        unknown_groups=n - sum(group.nodes for group in known),
        unknown_edges=float(unknown.mean()) if table.edges else None,
        density=table.edges / (n * (n - 1)),
        label_homophily=table.label_homophily if table.labelled else None,
        label_homophily_labelled=table.label_homophily_labelled,
        c=known[1].share if len(known) == 2 else None,
        row=row,
        symmetric=symmetric,
        random_baseline=tuple(
            cross_fitted(values)[1] for values in (random, *after_random) if columns
        ),
        noise=noise,
        forecast=_forecast(x, clean, folds),
        notes=(*notes, *_notes(known, varied)),
        seed=seed,
    )


def _cleaned(data: Data) -> tuple[Data, list[str]]:
    """Return an undirected graph without self-loops, and notes on what was changed."""
    check(data, labels=False)
    if not isinstance(data.get("sens"), Tensor):
        hint = "give the group of each node, -1 where it is unknown"
        raise InputError("data.sens", "missing", hint)
    sens = data.sens.cpu().long()
    group_operator(sens)
    n = data.x.size(0)
    y = data.y.cpu().long() if isinstance(data.get("y"), Tensor) else torch.full((n,), -1)
    edges, notes = data.edge_index.cpu(), []
    if edges.dim() != 2 or edges.size(0) != 2 or (edges.numel() and int(edges.max()) >= n):
        largest = int(edges.max()) if edges.numel() else -1
        value = f"shape {tuple(edges.shape)}, largest index {largest}, for {n} nodes"
        raise InputError("data.edge_index", value, "give a (2, edges) tensor of node indices")
    if bool((edges[0] == edges[1]).any()):
        edges = remove_self_loops(edges)[0]
        notes.append("self-loops were removed")
    both = to_undirected(edges, num_nodes=n)
    if not torch.equal(both, edges):
        notes.append("edges were made undirected and unique")
    x, name = data.x.detach().cpu().float(), str(getattr(data, "name", "graph"))
    clean = Data(x=x, edge_index=both, y=y, sens=sens, name=name)
    columns = data.get("feature_names")
    named = isinstance(columns, list | tuple) and len(columns) == x.size(1)
    clean.feature_names = list(map(str, columns if named else range(x.size(1))))
    for key, codes in (("group_names", sens), ("class_names", y)):
        count, given = int(codes.max()) + 1, data.get(key)
        fits = isinstance(given, list | tuple) and len(given) >= count
        clean[key] = [str(name) for name in (given if fits else range(count))]
    return clean, notes


def homophily(edge_index: Tensor, sens: Tensor) -> Homophily:
    """Sensitive homophily among edges between nodes of known group, raw and adjusted for chance."""
    source, target = sens[edge_index]
    known = (source >= 0) & (target >= 0)
    source, target = source[known], target[known]
    if not source.numel():
        return Homophily(None, None, None)
    raw = float((source == target).double().mean())
    degrees = torch.bincount(source).double()
    chance = float(((degrees / degrees.sum()) ** 2).sum())
    return Homophily(raw, chance, (raw - chance) / (1 - chance) if chance < 1 else None)


def _leaks(data: Data) -> tuple[Leak, ...]:
    """Columns that give the label or the group away, the worst first."""
    found = []
    x, names = data.x.numpy(), data.feature_names
    for of, codes, values in (
        ("label", data.y.numpy(), data.class_names),
        ("group", data.sens.numpy(), data.group_names),
    ):
        known = codes >= 0
        counts = np.bincount(codes[known], minlength=1)
        # Two values mirror each other: one of them is enough. Few nodes agree by chance.
        tested = range(1, 2) if len(counts) == 2 else range(len(counts))
        for c in [c for c in tested if MIN_GROUP_SIZE <= counts[c] <= known.sum() - MIN_GROUP_SIZE]:
            for column, best in enumerate(best_thresholds(x[known], codes[known] == c)):
                balanced, threshold, above, right = best
                if balanced < MIN_BALANCED:
                    continue
                rule = f"{names[column]} {'>' if above else '≤'} {threshold:.4g}"
                if threshold == x[known, column].min():
                    rule += " (its smallest value)"
                most = float(max(counts[c], known.sum() - counts[c]) / known.sum())
                found.append(Leak(names[column], of, values[c], rule, right, balanced, most))
    return tuple(sorted(found, key=lambda leak: -leak.balanced))


def best_thresholds(
    x: np.ndarray, positive: np.ndarray
) -> Iterator[tuple[float, float, bool, float]]:
    """The threshold of each column that separates best, by sorting.

    Yields the balanced accuracy of the rule "x > threshold" (or "x ≤ threshold", if not ``above``),
    the threshold, ``above``, and the share of rows on which it is right.
    """
    total, n = int(positive.sum()), len(positive)
    for column in x.T:
        order = np.argsort(column, kind="stable")
        ordered, hits = column[order], np.cumsum(positive[order])
        # The last place of each value but the largest: rows up to it against those after it.
        ends = np.flatnonzero(ordered[:-1] < ordered[1:])
        if not len(ends):
            yield 0.5, math.nan, True, max(total, n - total) / n
            continue
        below, true_below = ends + 1, hits[ends]
        recall, specificity = 1 - true_below / total, (below - true_below) / (n - total)
        balanced = (recall + specificity) / 2
        k = int(np.abs(balanced - 0.5).argmax())
        right = float((total - true_below[k] + below[k] - true_below[k]) / n)
        score, threshold = float(balanced[k]), float(ordered[ends[k]])
        above = score >= 0.5
        score, right = (score, right) if above else (1 - score, 1 - right)
        yield score, threshold, above, right


def _groups(data: Data) -> tuple[Group, ...]:
    """Describe each group, and last the nodes of unknown group if there are any."""
    sens, y = data.sens.numpy(), data.y.numpy()
    degree = np.bincount(data.edge_index[0].numpy(), minlength=len(sens))
    source, target = sens[data.edge_index.numpy()]
    known = int((sens >= 0).sum())
    names = [*data.group_names, "unknown"]
    found = []
    for g in [*range(int(sens.max()) + 1), *([-1] if known < len(sens) else [])]:
        labels, own = y[(sens == g) & (y >= 0)], degree[sens == g]
        reached = target[(source == g) & (target >= 0)]
        counts = np.bincount(labels, minlength=len(data.class_names))
        group = Group(
            name=names[g],
            nodes=len(own),
            share=len(own) / known if g >= 0 else None,
            labelled=len(labels),
            base_rates=tuple((counts / len(labels)).tolist()) if len(labels) else None,
            mean_degree=float(own.mean()),
            median_degree=float(np.median(own)),
            isolated=int((own == 0).sum()),
            inside=float((reached == g).mean()) if g >= 0 and len(reached) else None,
        )
        found.append(group)
    return tuple(found)


def _halves(sens: Tensor, seed: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Groups, renumbered without the small ones, and a random half (0 or 1) of each; −1 outside."""
    rng = np.random.default_rng(seed)
    groups, half = np.full((2, len(sens)), -1)
    number = 0
    for g in range(int(sens.max()) + 1):
        members = rng.permutation(np.flatnonzero(sens.numpy() == g))
        if len(members) >= MIN_GROUP_SIZE:
            groups[members], number = number, number + 1
            half[members] = np.arange(len(members)) % 2
    return groups, half


def mean_gap(values: np.ndarray, sens: np.ndarray) -> tuple[float, float]:
    """Largest distance between two groups' means, and its root mean square for random groups."""
    counts = np.bincount(sens[sens >= 0])
    means = [values[sens == g].mean(0, dtype=float) for g in range(len(counts))]
    pairs = combinations(range(len(means)), 2)
    gap, a, b = max((float(np.linalg.norm(means[a] - means[b])), a, b) for a, b in pairs)
    known = values if (sens >= 0).all() else values[sens >= 0]
    mean = np.average(means, axis=0, weights=counts)
    variance = max(float(np.vdot(known, known)) / len(known) - float(mean @ mean), 0.0)
    return gap, math.sqrt(variance * (1 / counts[a] + 1 / counts[b]))


def _forecast(x: np.ndarray, data: Data, folds: Folds) -> Forecast:
    """Predict one step of averaging from held-out scores that separate the groups.

    Averaging is linear, so it acts on the scores as it acts on the features.
    """
    groups = folds[0][0]
    if int(groups.max()) < 1 or not x.shape[1]:
        return Forecast(None, None, missing="too few nodes or varying features for a prediction")
    graph = Data(edge_index=data.edge_index, sens=torch.from_numpy(groups))
    parities, distances, conditions = [], [], []
    try:
        blocks = block_counts(graph)
        halves = [half for fold in folds for half in held_out_scores(x, *fold, with_first=True)]
        for scores, own in halves:
            # The ridge only matters for constant scores.
            tensors = torch.from_numpy(scores), torch.from_numpy(own)
            (means, covariances), weights = group_moments(*tensors, ridge=1e-9)
            change = predicted_block_change(*blocks, means=means, covariances=covariances)
            parities.append((change.before.parity, change.after.parity))
            if len(weights) > 2:
                continue
            delta, covariance = means[1] - means[0], np.tensordot(weights, covariances, 1)
            distances.append(delta @ np.linalg.solve(covariance, delta))
            with suppress(InputError):
                fixed: dict[str, Any] = {"means": means, "covariance": covariance}
                condition = partial(bias_enhancement, *graph_parameters(graph), **fixed)
                conditions.append((condition(form="printed"), condition(form="corrected")))
    except InputError as error:
        return Forecast(None, None, missing=f"no prediction: {error}")
    before, after = (float(value) for value in np.mean(parities, axis=0))
    if not distances:
        return Forecast(before, after, missing="the condition is stated for two groups")
    m = float(np.mean(distances))
    if not conditions:
        reason = "the graph is too dense or the groups too similar for the condition"
        return Forecast(before, after, m, missing=reason)
    printed, corrected = (float(value) for value in np.mean(conditions, axis=0))
    return Forecast(before, after, m, printed, corrected)


def _notes(known: list[Group], varied: Tensor) -> Iterator[str]:
    if not varied.all():
        constant = int((~varied).sum())
        yield f"{constant} of {len(varied)} feature columns are constant and were dropped"
    small = [f"{g.name} ({g.nodes})" for g in known if g.nodes < MIN_GROUP_SIZE]
    if small:
        yield (
            f"groups of fewer than {MIN_GROUP_SIZE} nodes are excluded from separation, "
            f"predictability and the forecast: {join_names(small, 5)}"
        )
    if len(known) > 2:
        yield "gaps are those between the two most distinct groups"


def describe(data: Data) -> dict[str, Any]:
    """Size, homophily, groups and leaking columns of a graph: the fast part of an audit."""
    found = _facts(_cleaned(data)[0])
    found["verdict"] = list(map(str, found.pop("leaks")))
    found["groups"] = list(map(vars, found["groups"]))
    return {**found, "homophily": vars(found["homophily"])}


def _facts(data: Data) -> dict[str, Any]:
    """What needs no averaging, by its name in :class:`Audit`."""
    edges = data.edge_index.size(1)
    return {
        "name": data.name,
        "nodes": len(data.sens),
        "edges": edges // 2,
        "average_degree": edges / len(data.sens),
        "homophily": homophily(data.edge_index, data.sens),
        "classes": tuple(data.class_names),
        "groups": _groups(data),
        "leaks": _leaks(data),
    }

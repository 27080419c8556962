"""Parts of an audit, and those that need no averaging: groups, homophily, leaking columns."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import remove_self_loops, to_undirected

from fairmp.datasets.splits import check
from fairmp.errors import InputError
from fairmp.graph import to_scipy
from fairmp.groups import group_operator
from fairmp.report.formats import points

MIN_GROUP_SIZE = 10  # of a group that rules are fitted for, on one half of the nodes
MIN_BALANCED = 0.9  # mean share of both sides on which a threshold of a leaking column is right


@dataclass(frozen=True)
class Group:
    """A sensitive group in the graph."""

    name: str
    nodes: int
    share: float | None  # of the nodes of known group; None for the nodes of unknown group
    labelled: int
    base_rates: tuple[float, ...] | None  # share of each class among the labelled nodes
    mean_degree: float
    median_degree: float
    isolated: int  # nodes without a neighbour
    inside: float | None  # share of the neighbours of known group that are in the same group


@dataclass(frozen=True)
class Homophily:
    """Share of edges within a group; None without edges, or with edges in one group only."""

    raw: float | None  # ε, among the edges between nodes of known group
    chance: float | None  # expected if edges were rewired at random with the same degrees
    adjusted: float | None  # (ε − chance)/(1 − chance): 0 by chance, 1 without crossing edges


@dataclass(frozen=True)
class FeatureBias:
    """Bias of the features after averaging, for the most distinct two groups.

    Separation and predictability are cross-fitted on two halves of the nodes.
    """

    step: int  # number of averaging steps; 0 means the features themselves
    gap: float  # distance between the groups' means, in standard deviations of the input features
    chance: float  # expected gap of random groups of the same sizes
    separation: float  # distance between the means relative to the spread within groups, √(δᵀΣ⁻¹δ)
    predictability: float  # ΔDP, in [−1, 1], of a linear rule that predicts the group


@dataclass(frozen=True)
class Forecast:
    """Prediction for one averaging step from group sizes, edge probabilities and moments."""

    before: float | None  # group predictability of the features, assuming normality
    after: float | None  # the same after one step with row normalisation
    m: float | None = None  # δᵀΣ⁻¹δ; two groups only
    printed: float | None = None  # Theorem 2's condition: above 1 it claims that bias is added
    corrected: float | None = None  # the same, corrected for random neighbourhoods
    missing: str = ""  # reason why a value is None


@dataclass(frozen=True)
class Leak:
    """A feature column whose best threshold nearly equals the label or the group."""

    column: str
    of: str  # "label" or "group"
    value: str  # the class or group that the rule stands for
    rule: str  # such as "TIME > 0"
    agreement: float  # share of the known nodes on which the rule is right
    balanced: float  # mean share of the two sides on which it is right; 0.5 by chance
    most_frequent: float  # agreement of the constant answer

    def __str__(self) -> str:
        advice = (
            "Is it known when the prediction is made? If not, drop it."
            if self.of == "label"
            else "Leaving out the sensitive column does not hide the group."
        )
        return (
            f"The column {self.column!r} gives the {self.of} away: {self.rule} equals "
            f"{self.value!r} on {points(self.agreement)} % of the nodes where it is known (a "
            f"constant answer: {points(self.most_frequent)} %). {advice}"
        )


def describe(data: Data) -> dict[str, Any]:
    """Size, homophily, groups and leaking columns of a graph: the fast part of an audit."""
    found = graph_facts(cleaned(data)[0])
    found["verdict"] = list(map(str, found.pop("leaks")))
    found["groups"] = list(map(vars, found["groups"]))
    return {**found, "homophily": vars(found["homophily"])}


def graph_facts(data: Data) -> dict[str, Any]:
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


def cleaned(data: Data) -> tuple[Data, list[str]]:
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


def _leaks(data: Data) -> tuple[Leak, ...]:
    """Columns that give the label or the group away, the worst first."""
    found = []
    x = to_scipy(data.x) if data.x.is_sparse else data.x.numpy()
    names = data.feature_names
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
                balanced, threshold, above, right, smallest = best
                if balanced < MIN_BALANCED:
                    continue
                rule = f"{names[column]} {'>' if above else '≤'} {threshold:.4g}"
                if threshold == smallest:
                    rule += " (its smallest value)"
                most = float(max(counts[c], known.sum() - counts[c]) / known.sum())
                found.append(Leak(names[column], of, values[c], rule, right, balanced, most))
    return tuple(sorted(found, key=lambda leak: -leak.balanced))


def best_thresholds(
    x: np.ndarray | sp.csr_array, positive: np.ndarray
) -> Iterator[tuple[float, float, bool, float, float]]:
    """The threshold of each column that separates best, by sorting.

    Yields the balanced accuracy of the rule "x > threshold" (or "x ≤ threshold", if not ``above``),
    the threshold, ``above``, the share of rows on which it is right, and the smallest value.
    """
    total, n = int(positive.sum()), len(positive)
    for values, hit, size in _columns(x, positive):
        order = np.argsort(values, kind="stable")
        ordered, hits, sizes = values[order], np.cumsum(hit[order]), np.cumsum(size[order])
        # The last place of each value but the largest: rows up to it against those after it.
        ends = np.flatnonzero(ordered[:-1] < ordered[1:])
        if not len(ends):
            yield 0.5, math.nan, True, max(total, n - total) / n, float(ordered[0])
            continue
        below, true_below = sizes[ends], hits[ends]
        recall, specificity = 1 - true_below / total, (below - true_below) / (n - total)
        balanced = (recall + specificity) / 2
        k = int(np.abs(balanced - 0.5).argmax())
        right = float((total - true_below[k] + below[k] - true_below[k]) / n)
        score, threshold = float(balanced[k]), float(ordered[ends[k]])
        above = score >= 0.5
        score, right = (score, right) if above else (1 - score, 1 - right)
        yield score, threshold, above, right, float(ordered[0])


def _columns(
    x: np.ndarray | sp.csr_array, positive: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Values of each column, how many of their rows are positive, and how many rows they have."""
    if isinstance(x, np.ndarray):
        for column in x.T:
            yield column, positive, np.ones(len(positive), dtype=int)
        return
    x = x.tocsc()
    for start, end in pairwise(x.indptr):
        values, hit = x.data[start:end], positive[x.indices[start:end]].astype(int)
        size = np.ones(len(hit), dtype=int)
        if zeros := len(positive) - len(hit):  # one value, for all rows that are not stored
            values, size = np.append(values, 0), np.append(size, zeros)
            hit = np.append(hit, positive.sum() - hit.sum())
        yield values, hit, size

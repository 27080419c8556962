"""Facts about a graph: its groups, edges and features, and columns that leak."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Literal, cast

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import remove_self_loops, to_undirected

from fairmp.analysis.audits.result import GraphFacts, Group, Homophily, Leak
from fairmp.datasets.splits import check
from fairmp.datasets.statistics import homophily
from fairmp.datasets.transforms import as_read
from fairmp.errors import InputError
from fairmp.graph import to_scipy
from fairmp.groups import group_operator
from fairmp.report.content import GraphSummary
from fairmp.report.sections import leak_sentence

MIN_BALANCED = 0.9  # mean share of both sides on which a threshold of a leaking column is right
MIN_SIDE = 10  # nodes of a class or group: fewer can be singled out by chance


def describe(data: Data) -> GraphSummary:
    """Size, homophily, groups and leaking columns of a graph, for a report."""
    facts = graph_facts(CleanGraph.of(data).data)
    record = asdict(facts)
    del record["leaks"]
    record["verdict"] = [leak_sentence(leak) for leak in facts.leaks]
    return cast(GraphSummary, record)


def graph_facts(data: Data) -> GraphFacts:
    """Describe a clean graph."""
    directed_edges = data.edge_index.size(1)
    return GraphFacts(
        name=data.name,
        nodes=len(data.sens),
        edges=directed_edges // 2,
        average_degree=directed_edges / len(data.sens),
        homophily=sensitive_homophily(data.edge_index, data.sens),
        classes=tuple(data.class_names),
        groups=_groups(data),
        leaks=find_leaks(data),
    )


@dataclass(frozen=True)
class CleanGraph:
    """An undirected graph without self-loops, with names, and notes on what was changed."""

    data: Data
    notes: list[str]

    @classmethod
    def of(cls, data: Data) -> CleanGraph:
        """Check a graph and copy it to the CPU."""
        data = as_read(data)
        check(data, labels=False)
        if not isinstance(data.get("sens"), Tensor):
            hint = "give the group of each node, -1 where it is unknown"
            raise InputError("data.sens", "missing", hint)
        sens = data.sens.cpu().long()
        group_operator(sens)  # checks it
        x = data.x.detach().cpu().float()
        y = data.y.cpu().long() if isinstance(data.get("y"), Tensor) else torch.full_like(sens, -1)
        edges, notes = _undirected(data.edge_index.cpu(), len(sens))
        name = str(getattr(data, "name", "graph"))
        clean = Data(x=x, edge_index=edges, y=y, sens=sens, name=name)
        columns = data.get("feature_names")
        named = isinstance(columns, list | tuple) and len(columns) == x.size(1)
        clean.feature_names = list(map(str, columns if named else range(x.size(1))))
        clean.group_names = _names(data.get("group_names"), sens)
        clean.class_names = _names(data.get("class_names"), y)
        return cls(clean, notes)


def _undirected(edges: Tensor, n: int) -> tuple[Tensor, list[str]]:
    """Both directions of every edge, without self-loops, and notes on what was changed."""
    first, last = map(int, edges.aminmax()) if edges.numel() else (0, -1)
    if edges.dim() != 2 or edges.size(0) != 2 or first < 0 or last >= n:
        value = f"shape {tuple(edges.shape)}, nodes {first} to {last}, for {n} nodes"
        raise InputError("data.edge_index", value, "give a (2, edges) tensor of node indices")
    notes = []
    if bool((edges[0] == edges[1]).any()):
        edges = remove_self_loops(edges)[0]
        notes.append("self-loops were removed")
    both = to_undirected(edges, num_nodes=n)
    if not torch.equal(both, edges):
        notes.append("edges were made undirected and unique")
    return both, notes


def _names(names: object, codes: Tensor) -> list[str]:
    """Names of classes or groups, or their numbers where there are too few names."""
    count = int(codes.max()) + 1
    if isinstance(names, list | tuple) and len(names) >= count:
        return [str(name) for name in names]
    return [str(code) for code in range(count)]


def sensitive_homophily(edge_index: Tensor, sens: Tensor) -> Homophily:
    """Homophily among edges between nodes of known group, raw and adjusted for chance."""
    raw = homophily(edge_index, sens)
    if raw is None:
        return Homophily(None, None, None)
    source, target = sens[edge_index]
    degrees = torch.bincount(source[(source >= 0) & (target >= 0)]).double()
    chance = float(((degrees / degrees.sum()) ** 2).sum())
    return Homophily(raw, chance, (raw - chance) / (1 - chance) if chance < 1 else None)


def _groups(data: Data) -> tuple[Group, ...]:
    """Describe each group, and last the nodes of unknown group if there are any."""
    sens, y = data.sens.numpy(), data.y.numpy()
    degree = np.bincount(data.edge_index[0].numpy(), minlength=len(sens))
    source, target = sens[data.edge_index.numpy()]
    known_nodes = int((sens >= 0).sum())
    codes = list(range(int(sens.max()) + 1))
    if known_nodes < len(sens):
        codes.append(-1)
    groups = []
    for code in codes:
        member = sens == code
        labels = y[member & (y >= 0)]
        neighbours = target[(source == code) & (target >= 0)]
        counts = np.bincount(labels, minlength=len(data.class_names))
        has_group = code >= 0
        groups.append(
            Group(
                name=data.group_names[code] if has_group else "unknown",
                nodes=int(member.sum()),
                share=int(member.sum()) / known_nodes if has_group else None,
                labelled=len(labels),
                base_rates=tuple((counts / len(labels)).tolist()) if len(labels) else None,
                mean_degree=float(degree[member].mean()),
                median_degree=float(np.median(degree[member])),
                isolated=int((degree[member] == 0).sum()),
                inside=float((neighbours == code).mean())
                if has_group and len(neighbours)
                else None,
            )
        )
    return tuple(groups)


@dataclass(frozen=True)
class Threshold:
    """The rule "x > value", or "x ≤ value", that separates two sides best."""

    value: float
    above: bool  # whether it is x > value
    balanced: float  # mean share of the two sides on which it is right
    agreement: float  # share of rows on which it is right
    smallest: float  # value of the column


def find_leaks(data: Data) -> tuple[Leak, ...]:
    """Columns that give the label or the group away, the worst first."""
    x = to_scipy(data.x) if data.x.is_sparse else data.x.numpy()
    names = data.feature_names
    leaks = [
        *_leaks_of("label", x, names, data.y.numpy(), data.class_names),
        *_leaks_of("group", x, names, data.sens.numpy(), data.group_names),
    ]
    return tuple(sorted(leaks, key=lambda leak: -leak.balanced))


def _leaks_of(
    of: Literal["label", "group"],
    x: np.ndarray | sp.csr_array,
    columns: list[str],
    codes: np.ndarray,
    values: list[str],
) -> Iterator[Leak]:
    known_mask = codes >= 0
    total = int(known_mask.sum())
    counts = np.bincount(codes[known_mask], minlength=1)
    # Two values mirror each other: one of them is enough.
    tested = range(1, 2) if len(counts) == 2 else range(len(counts))
    for code in tested:
        if not MIN_SIDE <= counts[code] <= total - MIN_SIDE:
            continue
        most_frequent = float(max(counts[code], total - counts[code]) / total)
        thresholds = best_thresholds(x[known_mask], codes[known_mask] == code)
        for column, best in zip(columns, thresholds, strict=True):
            if best.balanced >= MIN_BALANCED:
                rule = f"{column} {'>' if best.above else '≤'} {best.value:.4g}"
                if best.value == best.smallest:
                    rule += " (its smallest value)"
                yield Leak(
                    column, of, values[code], rule, best.agreement, best.balanced, most_frequent
                )


def best_thresholds(x: np.ndarray | sp.csr_array, positive: np.ndarray) -> Iterator[Threshold]:
    """The threshold of each column that separates positive rows from the others best."""
    total, n = int(positive.sum()), len(positive)
    for column in _columns(x, positive):
        order = np.argsort(column.values, kind="stable")
        values = column.values[order]
        rows_below = np.cumsum(column.rows[order])
        positive_below = np.cumsum(column.positive[order])
        smallest = float(values[0])
        # The last place of each value but the largest: rows up to it against those after it.
        ends = np.flatnonzero(values[:-1] < values[1:])
        if not len(ends):
            constant = max(total, n - total) / n
            yield Threshold(math.nan, True, 0.5, constant, smallest)
            continue
        rows_below, positive_below = rows_below[ends], positive_below[ends]
        recall = 1 - positive_below / total
        specificity = (rows_below - positive_below) / (n - total)
        balanced = (recall + specificity) / 2
        best = int(np.abs(balanced - 0.5).argmax())
        score = float(balanced[best])
        agreement = float((total + rows_below[best] - 2 * positive_below[best]) / n)
        value = float(values[ends[best]])
        if score >= 0.5:
            yield Threshold(value, True, score, agreement, smallest)
        else:
            yield Threshold(value, False, 1 - score, 1 - agreement, smallest)


@dataclass(frozen=True)
class _Column:
    """Values of a column; the zeros of a sparse one are a single value."""

    values: np.ndarray
    positive: np.ndarray  # number of positive rows with each value
    rows: np.ndarray  # number of rows with each value


def _columns(x: np.ndarray | sp.csr_array, positive: np.ndarray) -> Iterator[_Column]:
    if isinstance(x, np.ndarray):
        for values in x.T:
            yield _Column(values, positive, np.ones(len(positive), dtype=int))
        return
    x = x.tocsc()
    for start, end in pairwise(x.indptr):
        values = x.data[start:end]
        stored_positive = positive[x.indices[start:end]].astype(int)
        rows = np.ones(len(values), dtype=int)
        if zeros := len(positive) - len(values):
            values = np.append(values, 0)
            rows = np.append(rows, zeros)
            stored_positive = np.append(stored_positive, positive.sum() - stored_positive.sum())
        yield _Column(values, stored_positive, rows)

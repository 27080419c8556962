"""Estimate the sensitive group of nodes where it is unknown, from nodes where it is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairmp.errors import InputError
from fairmp.graph import Adjacency, normalise
from fairmp.nn.functional import propagate

FOLDS = 5
RIDGES = (100.0, 10.0, 1.0)
MOST = 20_000  # known nodes learned from; a small model needs no more
HOPS = 4


@dataclass(frozen=True)
class Estimate:
    """Probabilities of groups, and how far they can be trusted.

    Attributes:
        probabilities: of each group for each node (n×G, float64); where the group is known, as
            given.
        known: nodes it was learned from.
        accuracy: how often the likeliest group was right, on known nodes held out in turn.
        baseline: how often the largest group alone would have been.
    """

    probabilities: Tensor
    known: int
    accuracy: float
    baseline: float

    def __str__(self) -> str:
        return (
            f"groups estimated from {self.known:,} known nodes: {100 * self.accuracy:.1f} % right "
            f"on held-out ones, where the largest group alone is {100 * self.baseline:.1f} %"
        )


def estimate(
    sens: Any,
    features: Any = None,
    edge_index: Tensor | Adjacency | None = None,
    *,
    seed: int = 0,
) -> Estimate:
    r"""Estimate groups by multinomial logistic regression on the nodes where they are known.

    .. math::
        \min_W -\frac{1}{m}\sum_{i\ \mathrm{known}} \sum_g s_{ig} \log \mathrm{softmax}(x_i W)_g
        + \frac{r}{2m} \|W\|^2 ,

    with :math:`x_i` the node's standardised features and, with a graph, the (log) shares of the
    groups among the known nodes around it, smoothed over a few steps. A node's own group never
    enters its own columns: those of a known node are made from the folds it is not in. The ridge r
    and a temperature, which makes the probabilities honest, are chosen on held-out folds.

    Args:
        sens: group of each node (n; −1 unknown), or memberships (n×G; zeros unknown).
        features: what to read (n×d numbers); may be left out where there is a graph.
        edge_index: a graph (2×E).
        seed: of the folds.

    Raises:
        InputError: If there is nothing to read, or a group is known for fewer than two nodes.

    Example:
        >>> from fairmp.datasets import social_network
        >>> data = social_network(n=1000, average_degree=10)
        >>> some = torch.where(torch.arange(1000) % 10 == 0, data.sens, -1)
        >>> found = estimate(some, data.x, data.edge_index)
        >>> found.known, found.accuracy > 0.8
        (100, True)
        >>> hidden = some < 0
        >>> bool((found.probabilities.argmax(1) == data.sens)[hidden].double().mean() > 0.8)
        True
    """
    targets = _targets(sens)
    n = targets.size(0)
    x = _features(features, n)
    adjacency = _adjacency(edge_index, n)
    if x is None and adjacency is None:
        raise InputError(
            "estimate_sens", "nothing to estimate groups from", "give features= or a graph"
        )
    known = targets.sum(1) > 0
    _check_known(targets, known)
    generator = torch.Generator().manual_seed(seed)
    nodes = known.nonzero().flatten()
    nodes = nodes[torch.randperm(len(nodes), generator=generator)][:MOST]
    folds = _folds(targets[nodes].argmax(1))

    inside = _held_out_columns(x, adjacency, targets, nodes, folds)
    centre, scale = inside.mean(0), inside.std(0, correction=0)
    scale = torch.where(scale > 0, scale, 1.0)
    inside = (inside - centre) / scale
    y = targets[nodes]
    ridge, held_out, weights = _chosen(inside, y, folds)
    temperature = _temperature(held_out, y)
    right = held_out.argmax(1) == y.argmax(1)

    outside = (_columns(x, adjacency, targets) - centre) / scale
    shares = (_with_one(outside) @ _fit(inside, y, ridge, weights) / temperature).softmax(1)
    return Estimate(
        torch.where(known.unsqueeze(1), targets, shares),
        int(known.sum()),
        float(right.double().mean()),
        float(y.mean(0).max()),
    )


def _targets(sens: Any) -> Tensor:
    sens = sens.detach().cpu() if isinstance(sens, Tensor) else torch.from_numpy(np.array(sens))
    if sens.dim() == 2:
        return sens.double()
    one = torch.eye(int(sens.max()) + 2, dtype=torch.float64)
    return one[sens.long(), :-1]


def _features(features: Any, n: int) -> Tensor | None:
    if features is None:
        return None
    if isinstance(features, Tensor):
        x = features.detach().cpu().double()
    else:
        try:
            x = torch.from_numpy(np.array(features, dtype=np.float64))
        except (TypeError, ValueError):
            raise InputError(
                "features", "values that are not numbers", "encode them first"
            ) from None
    x = x.unsqueeze(1) if x.dim() == 1 else x
    if x.dim() != 2 or x.size(0) != n:
        raise InputError("features", f"shape {tuple(x.shape)} for {n} nodes", "give a row a node")
    if not bool(torch.isfinite(x).all()):
        row = int((~torch.isfinite(x)).any(1).nonzero()[0])
        raise InputError("features", f"row {row} is not finite", "fill or drop it first")
    return x


def _adjacency(edge_index: Tensor | Adjacency | None, n: int) -> Adjacency | None:
    if edge_index is None or isinstance(edge_index, Adjacency):
        return edge_index if edge_index is None else edge_index.to("cpu")
    return normalise(edge_index.cpu(), n, dtype=torch.float64)


def _check_known(targets: Tensor, known: Tensor) -> None:
    if targets.size(1) < 2 or not bool(known.any()):
        raise InputError(
            "estimate_sens",
            f"{int(known.sum())} nodes and {targets.size(1)} groups are known",
            "estimates need known nodes of two groups or more",
        )
    counts = torch.bincount(targets[known].argmax(1), minlength=targets.size(1))
    few = (counts < 2).nonzero().flatten().tolist()
    if few:
        raise InputError(
            "estimate_sens",
            f"group {few[0]} is known for {int(counts[few[0]])} "
            f"node{'s' * (int(counts[few[0]]) != 1)}",
            "know it for two or more, or leave estimate_sens out",
        )


def _folds(group: Tensor) -> Tensor:
    """A fold for each node, each group dealt out evenly."""
    order = group.argsort(stable=True)
    folds = torch.empty_like(order)
    folds[order] = torch.arange(len(order)) % min(FOLDS, len(order))
    return folds


def _columns(x: Tensor | None, adjacency: Adjacency | None, targets: Tensor) -> Tensor:
    """What is read of each node, where the groups in ``targets`` are known of its neighbours."""
    parts = [] if x is None else [x]
    if adjacency is not None:
        start = targets.to(adjacency.scale.dtype)
        around = propagate(start, adjacency, K=HOPS, lambda_s=HOPS).double()
        prior = targets.sum(0) / targets.sum()
        # Far from every known node the shares say nothing, and are drawn to the whole's.
        pull = around.sum(1).mean() / 4
        shares = ((around + pull * prior) / (around.sum(1, keepdim=True) + pull)).log()
        parts.append(shares - shares.mean(1, keepdim=True))
    return torch.cat(parts, 1)


def _held_out_columns(
    x: Tensor | None, adjacency: Adjacency | None, targets: Tensor, nodes: Tensor, folds: Tensor
) -> Tensor:
    if adjacency is None:
        assert x is not None
        return x[nodes]
    rows: Tensor | None = None
    for fold in folds.unique().tolist():
        here = folds == fold
        seen = targets.clone()
        seen[nodes[here]] = 0
        found = _columns(None if x is None else x, adjacency, seen)[nodes[here]]
        rows = found.new_empty(len(nodes), found.size(1)) if rows is None else rows
        rows[here] = found
    assert rows is not None
    return rows


def _chosen(x: Tensor, y: Tensor, folds: Tensor) -> tuple[float, Tensor, Tensor]:
    """The ridge that does best on held-out folds, the logits there, and weights to start from."""
    starts: dict[int, Tensor] = {}
    best: tuple[float, float, Tensor, Tensor] | None = None
    for ridge in RIDGES:  # from strong to weak, each from where the one before arrived
        logits = torch.empty_like(y)
        for fold in folds.unique().tolist():
            here = folds == fold
            starts[fold] = _fit(x[~here], y[~here], ridge, starts.get(fold))
            logits[here] = _with_one(x[here]) @ starts[fold]
        loss = _loss(logits, y)
        if best is not None and loss >= best[0]:
            break
        best = loss, ridge, logits, starts[fold]
    assert best is not None
    return best[1:]


def _with_one(x: Tensor) -> Tensor:
    return torch.cat([x, x.new_ones(len(x), 1)], 1)


def _fit(x: Tensor, y: Tensor, ridge: float, start: Tensor | None = None) -> Tensor:
    """Weights of a multinomial logistic regression; the last row is the constant's."""
    x = _with_one(x)
    if start is None:
        start = torch.zeros(x.size(1), y.size(1), dtype=torch.float64)
        start[-1] = (y.sum(0) + 1).log()
    weights = start.clone().requires_grad_()
    descent = torch.optim.LBFGS(
        [weights], max_iter=100, tolerance_grad=1e-5, line_search_fn="strong_wolfe"
    )

    def objective() -> Tensor:
        descent.zero_grad()
        fit = -(y * (x @ weights).log_softmax(1)).sum() / len(x)
        value = fit + ridge / (2 * len(x)) * weights[:-1].square().sum()
        value.backward()
        return value

    with torch.enable_grad():
        descent.step(objective)
    return weights.detach()


def _loss(logits: Tensor, y: Tensor) -> float:
    return float(-(y * logits.log_softmax(1)).sum() / len(y))


def _temperature(logits: Tensor, y: Tensor) -> float:
    return min(np.geomspace(0.2, 10, 41).tolist(), key=lambda t: _loss(logits / t, y))

"""Estimate unknown sensitive groups from the nodes whose group is known."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fairmp.errors import InputError, plural
from fairmp.graph import Adjacency
from fairmp.nn.solvers import propagate
from fairmp.postprocessing.predictions import Attribute, finite_numbers

if TYPE_CHECKING:
    from sklearn.linear_model import LogisticRegression

FOLDS = 5
PENALTIES = (100.0, 10.0, 1.0)
TEMPERATURES = np.geomspace(0.2, 10, 41)
MAX_TRAINING_NODES = 20_000
HOPS = 4
MIN_PROBABILITY = 1e-60  # above 0 at every temperature


def estimate(attribute: Attribute, features: Any, graph: Adjacency | None = None) -> Attribute:
    """Estimate unknown groups by multinomial logistic regression on the nodes of known group.

    A node's group never enters its own inputs: those of a known node come from the other folds. The
    penalty and a temperature, which calibrates, are chosen on held-out folds.
    """
    from sklearn.preprocessing import StandardScaler

    if bool(attribute.known.all()):
        return attribute
    targets = attribute.membership.cpu()
    known_mask = targets.sum(1) > 0
    adjacency = None if graph is None else graph.to("cpu")
    x = _read_features(features, len(targets))
    _check_known(attribute, targets[known_mask])
    nodes = known_mask.nonzero().flatten()
    order = torch.randperm(len(nodes), generator=torch.Generator().manual_seed(0))
    nodes = nodes[order][:MAX_TRAINING_NODES]
    y = targets[nodes].numpy()
    folds = _stratified_folds(y)
    everyone = _columns(x, adjacency, targets).numpy()
    columns = np.empty((len(y), everyone.shape[1]))
    for fold in range(folds.max() + 1):
        held_out = nodes[torch.from_numpy(folds == fold)]
        visible = targets.clone()
        visible[held_out] = 0
        columns[folds == fold] = _columns(x, adjacency, visible)[held_out].numpy()
    scaler = StandardScaler().fit(columns)
    sample = _Sample(scaler.transform(columns), y, folds)
    penalty, held_out_scores = sample.choose_penalty()
    temperature = min(TEMPERATURES, key=lambda t: _loss(held_out_scores / t, y))
    model = sample.fit(np.ones(len(y), dtype=bool), penalty)
    scores = _log_proba(model, scaler.transform(everyone))
    estimated = torch.from_numpy(scores / temperature).softmax(1)
    return replace(
        attribute,
        sens=torch.where(known_mask.unsqueeze(1), targets, estimated).to(attribute.sens.device),
        accuracy=float((held_out_scores.argmax(1) == y.argmax(1)).mean()),
        baseline=float(y.mean(0).max()),
    )


def _read_features(features: Any, n: int) -> Tensor:
    x = finite_numbers("features", features, "encode them first").cpu()
    if x.dim() > 2 or len(x) != n:
        value = f"shape {tuple(x.shape)} for {n} nodes"
        raise InputError("features", value, "give one row each")
    return x.double().reshape(n, -1)


def _check_known(attribute: Attribute, targets: Tensor) -> None:
    """Refuse known nodes (m×G) from which nothing can be learned."""
    if targets.size(1) < 2 or not len(targets):
        counts = f"{plural(len(targets), 'node')} and {plural(targets.size(1), 'group')}"
        value = f"{counts} of {attribute.name!r} are known"
        raise InputError("estimate_sens", value, "know nodes of two groups or more")
    least, rarest = torch.bincount(targets.argmax(1), minlength=targets.size(1)).min(0)
    if int(least) < 2:
        name = f"{attribute.groups[int(rarest)]!r} of {attribute.name!r}"
        value = f"group {name} is known for {plural(int(least), 'node')}"
        raise InputError("estimate_sens", value, "know it for two or more, or leave it out")


def _stratified_folds(y: np.ndarray) -> np.ndarray:
    """The fold of each node; scikit-learn's refuse groups with fewer nodes than folds."""
    folds = np.empty(len(y), dtype=np.int64)
    folds[y.argmax(1).argsort(kind="stable")] = np.arange(len(y)) % min(FOLDS, len(y))
    return folds


@dataclass(frozen=True)
class _Sample:
    """Known nodes: their inputs (m×d), probabilities of groups (m×G) and folds (m)."""

    inputs: np.ndarray
    y: np.ndarray
    folds: np.ndarray

    def fit(self, train: np.ndarray, penalty: float) -> LogisticRegression:
        """Fit the nodes of a mask; one of several groups enters once for each, weighted."""
        from sklearn.linear_model import LogisticRegression

        row, group = self.y.nonzero()
        used = train[row]
        row, group = row[used], group[used]
        model = LogisticRegression(C=1 / penalty, max_iter=1000)
        return model.fit(self.inputs[row], group, sample_weight=self.y[row, group])

    def choose_penalty(self) -> tuple[float, np.ndarray]:
        """The penalty of the smallest loss on held-out folds, and their log-probabilities."""
        best, scores, chosen = np.inf, np.empty(0), PENALTIES[0]
        for penalty in PENALTIES:
            held_out = np.empty_like(self.y)
            for fold in range(self.folds.max() + 1):
                inside = self.folds == fold
                held_out[inside] = _log_proba(self.fit(~inside, penalty), self.inputs[inside])
            if _loss(held_out, self.y) >= best:
                break
            best, scores, chosen = _loss(held_out, self.y), held_out, penalty
        return chosen, scores


def _log_proba(model: LogisticRegression, inputs: np.ndarray) -> np.ndarray:
    return np.log(np.maximum(model.predict_proba(inputs), MIN_PROBABILITY))


def _columns(x: Tensor, adjacency: Adjacency | None, targets: Tensor) -> Tensor:
    """Features of each node and, with a graph, log shares of the known groups around it."""
    if adjacency is None:
        return x
    start = targets.to(adjacency.scale.dtype)
    around = propagate(start, adjacency, K=HOPS, lambda_s=HOPS).double()
    prior = targets.sum(0) / targets.sum()
    # Far from every known node the shares are shrunk to the overall ones.
    pull = around.sum(1).mean() / 4
    shares = ((around + pull * prior) / (around.sum(1, keepdim=True) + pull)).log()
    return torch.cat([x, shares - shares.mean(1, keepdim=True)], 1)


def _loss(scores: np.ndarray, y: np.ndarray) -> float:
    return float(-(y * torch.from_numpy(scores).log_softmax(1).numpy()).sum() / len(y))

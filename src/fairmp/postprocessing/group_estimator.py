"""Estimate unknown sensitive groups from the nodes whose group is known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairmp.errors import InputError, plural
from fairmp.graph import Adjacency
from fairmp.nn.solvers import propagate
from fairmp.postprocessing.predictions import Attribute, numbers

FOLDS = 5
PENALTIES = (100.0, 10.0, 1.0)
MAX_TRAINING_NODES = 20_000
HOPS = 4
MIN_PROBABILITY = 1e-60  # above 0 at every temperature


def estimate(attribute: Attribute, features: Any, graph: Adjacency | None = None) -> Attribute:
    """Estimate unknown groups by multinomial logistic regression on the nodes of known group."""
    # A node's group never enters its own inputs: those of a known node come from the other folds.
    # The penalty and a temperature, which calibrates, are chosen on held-out folds.
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    if bool(attribute.known.all()):
        return attribute
    targets = attribute.membership.cpu()
    adjacency = None if graph is None else graph.to("cpu")
    x = numbers("features", features, "encode them first").cpu()
    if x.dim() > 2 or len(x) != len(targets):
        value = f"shape {tuple(x.shape)} for {len(targets)} nodes"
        raise InputError("features", value, "give one row each")
    x = x.double().reshape(len(x), -1)
    known = targets.sum(1) > 0
    if targets.size(1) < 2 or not bool(known.any()):
        counts = f"{int(known.sum())} nodes and {targets.size(1)} groups"
        value = f"{counts} of {attribute.name!r} are known"
        raise InputError("estimate_sens", value, "know nodes of two groups or more")
    least, rarest = torch.bincount(targets[known].argmax(1), minlength=targets.size(1)).min(0)
    if int(least) < 2:
        name = f"{attribute.groups[int(rarest)]!r} of {attribute.name!r}"
        value = f"group {name} is known for {plural(int(least), 'node')}"
        raise InputError("estimate_sens", value, "know it for two or more, or leave it out")
    nodes = known.nonzero().flatten()
    order = torch.randperm(len(nodes), generator=torch.Generator().manual_seed(0))
    nodes = nodes[order][:MAX_TRAINING_NODES]
    y = targets[nodes].numpy()
    # Stratified folds; scikit-learn's refuse groups with fewer nodes than folds.
    folds = np.empty(len(y), dtype=np.int64)
    folds[y.argmax(1).argsort(kind="stable")] = np.arange(len(y)) % min(FOLDS, len(y))
    everyone = _columns(x, adjacency, targets).numpy()
    inside = np.empty((len(y), everyone.shape[1]))
    for fold in range(folds.max() + 1):
        held = nodes[torch.from_numpy(folds == fold)]
        visible = targets.clone()
        visible[held] = 0
        inside[folds == fold] = _columns(x, adjacency, visible)[held].numpy()
    scaler = StandardScaler().fit(inside)
    inside = scaler.transform(inside)
    # A node with probabilities of several groups enters once for each, with these as weights.
    row, group = y.nonzero()

    def fit(train: np.ndarray, penalty: float) -> LogisticRegression:
        used = train[row]
        model = LogisticRegression(C=1 / penalty, max_iter=1000)
        return model.fit(inside[row[used]], group[used], sample_weight=y[row, group][used])

    def log_proba(model: LogisticRegression, values: np.ndarray) -> np.ndarray:
        return np.log(np.maximum(model.predict_proba(values), MIN_PROBABILITY))

    best, held_out, chosen = np.inf, np.empty(0), PENALTIES[0]
    for penalty in PENALTIES:
        scores = np.empty_like(y)
        for fold in range(folds.max() + 1):
            scores[folds == fold] = log_proba(fit(folds != fold, penalty), inside[folds == fold])
        if _loss(scores, y) >= best:
            break
        best, held_out, chosen = _loss(scores, y), scores, penalty
    temperature = min(np.geomspace(0.2, 10, 41), key=lambda t: _loss(held_out / t, y))
    scores = log_proba(fit(np.ones(len(y), dtype=bool), chosen), scaler.transform(everyone))
    estimated = torch.from_numpy(scores / temperature).softmax(1)
    return replace(
        attribute,
        sens=torch.where(known.unsqueeze(1), targets, estimated).to(attribute.sens.device),
        accuracy=float((held_out.argmax(1) == y.argmax(1)).mean()),
        baseline=float(y.mean(0).max()),
    )


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

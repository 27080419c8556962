"""Estimate unknown sensitive groups from the nodes whose group is known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairmp.errors import InputError
from fairmp.graph import Adjacency, normalise
from fairmp.nn.functional import propagate
from fairmp.postprocessing.predictions import Attribute, Estimate, numbers

FOLDS = 5
PENALTIES = (100.0, 10.0, 1.0)
MAX_TRAINING_NODES = 20_000
HOPS = 4
MIN_PROBABILITY = 1e-60  # above 0 at every temperature


def estimated(
    attribute: Attribute, features: Any = None, edge_index: Tensor | Adjacency | None = None
) -> Attribute:
    """Estimate the groups of nodes of unknown group, if there are any."""
    if bool(attribute.known.all()):
        return attribute
    try:
        found = estimate(attribute.membership, features, edge_index)
    except InputError as error:
        value = f"{error.value} (attribute {attribute.name!r})"
        raise InputError(error.argument, value, error.hint) from None
    return replace(attribute, sens=found.probabilities.to(attribute.sens.device), estimate=found)


def estimate(
    sens: Any, features: Any = None, edge_index: Tensor | Adjacency | None = None
) -> Estimate:
    """Estimate groups by multinomial logistic regression on the nodes where they are known.

    ``sens`` has groups (n; −1 unknown) or memberships (n×G; zeros unknown). The inputs are the
    standardised features of a node and, with a graph, the log shares of the groups among the known
    nodes around it, smoothed over a few steps. The group of a node never enters its own inputs:
    those of a known node are computed from the other folds. The penalty and a temperature, which
    calibrates the probabilities, are chosen on held-out folds.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    sens = sens.detach().cpu() if isinstance(sens, Tensor) else torch.from_numpy(np.array(sens))
    if sens.dim() == 1:
        sens = torch.eye(int(sens.max()) + 2, dtype=torch.float64)[sens.long(), :-1]
    targets = sens.double()
    n = len(targets)
    x = None if features is None else numbers("features", features, "encode them first").cpu()
    if x is not None and (x.dim() > 2 or len(x) != n):
        raise InputError("features", f"shape {tuple(x.shape)} for {n} nodes", "give one row each")
    if isinstance(edge_index, Tensor):
        edge_index = normalise(edge_index.cpu(), n, dtype=torch.float64)
    adjacency = None if edge_index is None else edge_index.to("cpu")
    if x is None and adjacency is None:
        raise InputError("estimate_sens", "no inputs to estimate groups from", "give features=")
    known = targets.sum(1) > 0
    if targets.size(1) < 2 or not bool(known.any()):
        value = f"{int(known.sum())} nodes and {targets.size(1)} groups are known"
        raise InputError("estimate_sens", value, "know nodes of two groups or more")
    least, group = torch.bincount(targets[known].argmax(1), minlength=targets.size(1)).min(0)
    if int(least) < 2:
        value = f"group {int(group)} is known for {int(least)} node{'s' * (int(least) != 1)}"
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
    return Estimate(
        torch.where(known.unsqueeze(1), targets, estimated),
        int(known.sum()),
        float((held_out.argmax(1) == y.argmax(1)).mean()),
        float(y.mean(0).max()),
    )


def _columns(x: Tensor | None, adjacency: Adjacency | None, targets: Tensor) -> Tensor:
    """Inputs of each node, given the groups in ``targets``."""
    parts = [] if x is None else [x.double().reshape(len(x), -1)]
    if adjacency is not None:
        start = targets.to(adjacency.scale.dtype)
        around = propagate(start, adjacency, K=HOPS, lambda_s=HOPS).double()
        prior = targets.sum(0) / targets.sum()
        # Far from every known node the shares are shrunk to the overall ones.
        pull = around.sum(1).mean() / 4
        shares = ((around + pull * prior) / (around.sum(1, keepdim=True) + pull)).log()
        parts.append(shares - shares.mean(1, keepdim=True))
    return torch.cat(parts, 1)


def _loss(scores: np.ndarray, y: np.ndarray) -> float:
    return float(-(y * torch.from_numpy(scores).log_softmax(1).numpy()).sum() / len(y))

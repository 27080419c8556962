"""The audit: groups, homophily, and the bias of features before and after averaging."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from scipy.sparse.linalg import aslinearoperator
from torch import Tensor
from torch_geometric.data import Data

from fairmp.analysis.audits.parts import (
    MIN_GROUP_SIZE,
    FeatureBias,
    Forecast,
    Group,
    cleaned,
    graph_facts,
)
from fairmp.analysis.audits.result import Audit
from fairmp.analysis.theory import bias_enhancement, measurement, predicted_block_change
from fairmp.analysis.theory.measurement import Features, averaged, held_out_bias, held_out_scores
from fairmp.datasets.statistics import statistics
from fairmp.errors import InputError, check_integer
from fairmp.graph import to_scipy
from fairmp.report.formats import join_names

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
    clean, notes = cleaned(data)
    table, facts = statistics(clean), graph_facts(clean)
    known = [group for group in facts["groups"] if group.share is not None]
    x, varied = _standardised(clean.x)
    n = table.nodes
    # A single split into halves is noisy on small graphs, where several are cheap.
    most = 10 if isinstance(x, np.ndarray) else 2
    folds = [_halves(clean.sens, [seed, k]) for k in range(max(1, min(most, 20_000 // n)))]
    columns = min(x.shape[1], MAX_RANDOM_COLUMNS)
    generator = torch.Generator().manual_seed(seed)
    random = torch.randn(n, columns, generator=generator).numpy()
    after_random = averaged(random, clean.edge_index, steps, "row") if columns else ()

    def cross_fitted(values: Features) -> list[float]:
        """Separation and predictability, averaged over random halves."""
        return np.mean([held_out_bias(values, *fold) for fold in folds], axis=0).tolist()

    def measure(step: int, values: Features) -> FeatureBias:
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


def _standardised(x: Tensor) -> tuple[Features, Tensor]:
    """Features of mean 0 and deviation 1, and which columns they are: those not constant."""
    if x.is_sparse:
        matrix = to_scipy(x).astype(np.float64)
        mean = np.asarray(matrix.mean(0))
        variance = np.asarray(matrix.power(2).mean(0)) - mean**2
        chosen = variance > 1e-12 * mean**2  # beyond rounding
        scale = 1 / np.sqrt(variance[chosen])
        # (X − 1μᵀ)D⁻¹ as a product of sparse matrices.
        ones, shift = np.ones((len(x), 1)), -mean[chosen][None]
        left = sp.csr_array(sp.hstack([matrix[:, chosen], ones]))
        right = sp.csr_array(sp.vstack([sp.eye_array(len(scale)), shift]) @ sp.diags_array(scale))
        return aslinearoperator(left) @ aslinearoperator(right), torch.from_numpy(chosen)
    centred = x - x.mean(0)
    deviation = torch.linalg.vector_norm(centred, dim=0) / math.sqrt(len(centred))
    # Rounding can give a constant column a deviation, and a nearly constant one none.
    varied = (x.amax(0) > x.amin(0)) & (deviation > 0)
    return centred[:, varied].div_(deviation[varied]).numpy(), varied


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


def mean_gap(values: Features, sens: np.ndarray) -> tuple[float, float]:
    """Largest distance between two groups' means, and its root mean square for random groups."""
    counts = np.bincount(sens[sens >= 0])
    means = measurement.group_means(values, sens)
    pairs = combinations(range(len(means)), 2)
    gap, a, b = max((float(np.linalg.norm(means[a] - means[b])), a, b) for a, b in pairs)
    mean = np.average(means, axis=0, weights=counts)
    squares = measurement.mean_squares(values, sens >= 0)
    variance = max(squares - float(mean @ mean), 0.0)
    return gap, math.sqrt(variance * (1 / counts[a] + 1 / counts[b]))


def _forecast(x: Features, data: Data, folds: Folds) -> Forecast:
    """Predict one step of averaging from held-out scores that separate the groups."""
    # Averaging is linear, so it acts on the scores as it acts on the features.
    groups = folds[0][0]
    if int(groups.max()) < 1 or not x.shape[1]:
        return Forecast(None, None, missing="too few nodes or varying features for a prediction")
    graph = Data(edge_index=data.edge_index, sens=torch.from_numpy(groups))
    parities, distances, conditions = [], [], []
    try:
        blocks = measurement.block_counts(graph)
        halves = [half for fold in folds for half in held_out_scores(x, *fold, with_first=True)]
        for scores, own in halves:
            # The ridge only matters for constant scores.
            tensors = torch.from_numpy(scores), torch.from_numpy(own)
            (means, covariances), weights = measurement.group_moments(*tensors, ridge=1e-9)
            change = predicted_block_change(*blocks, means=means, covariances=covariances)
            parities.append((change.before.parity, change.after.parity))
            if len(weights) > 2:
                continue
            delta, covariance = means[1] - means[0], np.tensordot(weights, covariances, 1)
            distances.append(delta @ np.linalg.solve(covariance, delta))
            with suppress(InputError):
                fixed: dict[str, Any] = {"means": means, "covariance": covariance}
                condition = partial(bias_enhancement, *measurement.graph_parameters(graph), **fixed)
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

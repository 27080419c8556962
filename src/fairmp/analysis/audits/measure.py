"""The audit: groups, homophily, and the bias of features before and after averaging."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import scipy.sparse as sp
import torch
from scipy.sparse.linalg import aslinearoperator
from torch import Tensor
from torch_geometric.data import Data

from fairmp.analysis.audits.facts import CleanGraph, graph_facts
from fairmp.analysis.audits.forecast import forecast
from fairmp.analysis.audits.result import Audit, FeatureBias, Group
from fairmp.analysis.theory import measurement
from fairmp.analysis.theory.conditions import Normalisation
from fairmp.analysis.theory.measurement import Features, Halves, averaged
from fairmp.datasets.statistics import statistics
from fairmp.errors import check_integer
from fairmp.graph import to_scipy
from fairmp.report.formats import join_names

MIN_GROUP_SIZE = 10  # of a group that rules are fitted for, on one half of the nodes
MAX_RANDOM_COLUMNS = 64  # of the random-feature baseline: enough to show what the topology reveals


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
        >>> result = audit(social_network(n=2000, average_degree=10))
        >>> result
        Audit(name='embedded network', nodes=2000, edges=10000,
              homophily=Homophily(raw=0.92, chance=0.5, adjusted=0.84))
        >>> for bias in result.row[:4]:
        ...     print(f"{bias.step} steps: {100 * bias.predictability:.0f} points")
        0 steps: 29 points
        1 steps: 72 points
        2 steps: 94 points
        3 steps: 99 points
    """
    check_integer("steps", steps, "give 1 or more")
    check_integer("seed", seed, "give 0 or a positive integer", low=0)
    clean = CleanGraph.of(data)
    graph = clean.data
    table, facts = statistics(graph), graph_facts(graph)
    known_groups = [group for group in facts.groups if group.share is not None]
    x, varied = _standardised(graph.x)
    n = table.nodes
    # A single split into halves is noisy on small graphs, where several are cheap.
    most = 10 if isinstance(x, np.ndarray) else 2
    folds = [_halves(graph.sens, [seed, k]) for k in range(max(1, min(most, 20_000 // n)))]
    measure = _Measure(graph.edge_index, graph.sens.numpy(), folds)
    before = measure.bias(0, x)
    unknown_ends = (graph.sens[graph.edge_index] < 0).any(0).double()
    return Audit(
        **vars(facts),
        directed_edges=table.edges,
        features=table.features,
        constant_features=int((~varied).sum()),
        labelled=table.labelled or 0,
        unknown_groups=n - sum(group.nodes for group in known_groups),
        unknown_edges=float(unknown_ends.mean()) if table.edges else None,
        density=table.edges / (n * (n - 1)),
        label_homophily=table.label_homophily if table.labelled else None,
        label_homophily_labelled=table.label_homophily_labelled,
        c=known_groups[1].share if len(known_groups) == 2 else None,
        row=(before, *measure.after_steps(x, steps, "row")),
        symmetric=(before, *measure.after_steps(x, steps, "symmetric")),
        random_baseline=measure.random_baseline(x.shape[1], steps, seed),
        noise=_noise(known_groups),
        forecast=forecast(x, graph.edge_index, folds),
        notes=(*clean.notes, *_notes(known_groups, varied)),
        seed=seed,
    )


@dataclass(frozen=True)
class _Measure:
    """Measures the bias of features on a graph."""

    edge_index: Tensor
    sens: np.ndarray
    folds: Sequence[Halves]

    def bias(self, step: int, values: Features) -> FeatureBias:
        """Bias of features after some steps of averaging."""
        gap = mean_gap(values, self.sens)
        held_out = self.held_out(values)
        return FeatureBias(step, gap.gap, gap.chance, held_out.separation, held_out.parity)

    def after_steps(
        self, x: Features, steps: int, normalisation: Normalisation
    ) -> Iterator[FeatureBias]:
        """Bias after 1, …, ``steps`` steps of averaging."""
        values_by_step = averaged(x, self.edge_index, steps, normalisation)
        for step, values in enumerate(values_by_step, start=1):
            yield self.bias(step, values)

    def random_baseline(self, columns: int, steps: int, seed: int) -> tuple[float, ...]:
        """Predictability of the group from random features after 0, …, ``steps`` row steps."""
        if not columns:
            return ()
        shape = len(self.sens), min(columns, MAX_RANDOM_COLUMNS)
        random = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).numpy()
        values_by_step = (random, *averaged(random, self.edge_index, steps, "row"))
        return tuple(self.held_out(values).parity for values in values_by_step)

    def held_out(self, values: Features) -> measurement.HeldOutBias:
        """Separation and predictability, averaged over random halves."""
        folds = [measurement.held_out_bias(values, fold) for fold in self.folds]
        separation, parity = np.mean(folds, axis=0).tolist()
        return measurement.HeldOutBias(separation, parity)


def _standardised(x: Tensor) -> tuple[Features, Tensor]:
    """Features of mean 0 and deviation 1, and which columns they are: those not constant."""
    if x.is_sparse:
        return _standardised_sparse(x)
    centred = x - x.mean(0)
    deviation = torch.linalg.vector_norm(centred, dim=0) / math.sqrt(len(centred))
    # Rounding can give a constant column a deviation, and a nearly constant one none.
    varied = (x.amax(0) > x.amin(0)) & (deviation > 0)
    return centred[:, varied].div_(deviation[varied]).numpy(), varied


def _standardised_sparse(x: Tensor) -> tuple[Features, Tensor]:
    """(X − 1μᵀ)D⁻¹ as a product of sparse matrices."""
    matrix = to_scipy(x).astype(np.float64)
    mean = np.asarray(matrix.mean(0))
    variance = np.asarray(matrix.power(2).mean(0)) - mean**2
    varied = variance > 1e-12 * mean**2  # beyond rounding
    scale = 1 / np.sqrt(variance[varied])
    ones, shift = np.ones((len(x), 1)), -mean[varied][None]
    left = sp.csr_array(sp.hstack([matrix[:, varied], ones]))
    right = sp.csr_array(sp.vstack([sp.eye_array(len(scale)), shift]) @ sp.diags_array(scale))
    return aslinearoperator(left) @ aslinearoperator(right), torch.from_numpy(varied)


def _halves(sens: Tensor, seed: Sequence[int]) -> Halves:
    """Groups, renumbered without the small ones, and a random half of each."""
    rng = np.random.default_rng(seed)
    group, half = np.full((2, len(sens)), -1)
    number = 0
    for g in range(int(sens.max()) + 1):
        members = rng.permutation(np.flatnonzero(sens.numpy() == g))
        if len(members) >= MIN_GROUP_SIZE:
            group[members] = number
            half[members] = np.arange(len(members)) % 2
            number += 1
    return Halves(group, half)


@dataclass(frozen=True)
class MeanGap:
    """Largest distance between two groups' means."""

    gap: float
    chance: float  # its root mean square for random groups of the same sizes


def mean_gap(values: Features, sens: np.ndarray) -> MeanGap:
    """Distance between the means of the two groups farthest apart."""
    counts = np.bincount(sens[sens >= 0])
    means = measurement.group_means(values, sens)
    pairs = combinations(range(len(means)), 2)
    gap, a, b = max((float(np.linalg.norm(means[a] - means[b])), a, b) for a, b in pairs)
    mean = np.average(means, axis=0, weights=counts)
    squares = measurement.mean_squares(values, sens >= 0)
    variance = max(squares - float(mean @ mean), 0.0)
    return MeanGap(gap, math.sqrt(variance * (1 / counts[a] + 1 / counts[b])))


def _noise(known_groups: Sequence[Group]) -> float | None:
    """Two standard errors (at most) of a difference of shares, for the two smallest groups."""
    sizes = sorted(group.nodes for group in known_groups if group.nodes >= MIN_GROUP_SIZE)
    if len(sizes) < 2:
        return None
    return 2 * math.sqrt(sum(0.25 / size for size in sizes[:2]))


def _notes(known_groups: Sequence[Group], varied: Tensor) -> Iterator[str]:
    if not varied.all():
        constant = int((~varied).sum())
        yield f"{constant} of {len(varied)} feature columns are constant and were dropped"
    small = [
        f"{group.name} ({group.nodes})" for group in known_groups if group.nodes < MIN_GROUP_SIZE
    ]
    if small:
        yield (
            f"groups of fewer than {MIN_GROUP_SIZE} nodes are excluded from separation, "
            f"predictability and the forecast: {join_names(small, 5)}"
        )
    if len(known_groups) > 2:
        yield "gaps are those between the two most distinct groups"

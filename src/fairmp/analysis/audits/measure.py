"""The audit: groups, homophily, and the bias of features before and after averaging."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import remove_self_loops, to_undirected

from fairmp.analysis.theory import (
    bias_enhancement,
    block_counts,
    graph_parameters,
    group_moments,
    predicted_block_change,
)
from fairmp.analysis.theory.measurement import averaged, held_out_bias, held_out_scores
from fairmp.datasets.checks import check
from fairmp.datasets.statistics import statistics
from fairmp.errors import InputError, check_integer
from fairmp.groups import group_operator

if TYPE_CHECKING:
    from fairmp.report import Section

MIN_GROUP_SIZE = 10
"""Smaller groups are excluded from rules that are fitted on one half of the nodes."""

MAX_RANDOM_COLUMNS = 64
"""Columns of the random-feature baseline: enough to show what the topology reveals."""

Folds = Sequence[tuple[np.ndarray, np.ndarray]]


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
    """Bias of the features after a number of averaging steps, for the most distinct two groups.

    Separation and predictability are cross-fitted on two halves of the nodes.

    Attributes:
        step: number of averaging steps; 0 means the features themselves.
        gap: distance between the groups' means, in standard deviations of the input features.
        chance: expected gap of random groups of the same sizes.
        separation: distance between the means relative to the spread within groups, √(δᵀΣ⁻¹δ).
        predictability: difference of the rates at which a linear rule assigns the two groups'
            nodes to the second group, in [−1, 1]: the ΔDP of a decision that predicts the group.
    """

    step: int
    gap: float
    chance: float
    separation: float
    predictability: float


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
class Audit:
    """Effect of a graph's topology on its groups; ``print`` it, or use ``to_dict()``.

    Shares and rates are fractions in [0, 1]; the text prints per cent and points.
    """

    name: str
    nodes: int
    edges: int  # undirected
    directed_edges: int
    features: int
    constant_features: int  # ignored below
    labelled: int
    classes: tuple[str, ...]
    unknown_groups: int  # nodes of unknown group
    unknown_edges: float | None  # share of the edges with such an end
    density: float  # ρ, the share of all pairs of nodes that are edges
    average_degree: float
    homophily: Homophily
    label_homophily: float | None  # unlabelled counts as a class
    label_homophily_labelled: float | None  # among edges between labelled nodes
    c: float | None  # share of the second of two groups among nodes of known group
    groups: tuple[Group, ...]  # last the nodes of unknown group, if there are any
    row: tuple[FeatureBias, ...]  # after 0…K steps with row normalisation, as in the theory
    symmetric: tuple[FeatureBias, ...]  # the same for Ã, which the layers use
    random_baseline: tuple[float, ...]  # predictability of random features after 0…K row steps
    noise: float | None  # two standard errors of the predictability
    forecast: Forecast
    notes: tuple[str, ...]
    seed: int  # of the halves that rules are fitted and evaluated on

    def verdict(self) -> list[str]:
        """Conclusions, one or two sentences each."""
        from fairmp.analysis.audits.text import verdict

        return verdict(self)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data, for JSON."""
        return {**asdict(self), "verdict": self.verdict()}

    def sections(self) -> list[Section]:
        """Sections of the HTML page, for :func:`fairmp.report.page`."""
        from fairmp.analysis.audits.page import document
        from fairmp.report.sections import sections

        return sections(document(self))

    def __str__(self) -> str:
        from fairmp.analysis.audits.text import text

        return text(self)


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
    table = statistics(clean)
    groups = _groups(clean)
    known = [group for group in groups if group.share is not None]
    x, constant = standardise(clean.x)
    # A single split into halves is noisy on small graphs, where several are cheap.
    folds = [halves(clean.sens, [seed, k]) for k in range(max(1, min(10, 20_000 // len(x))))]
    columns = min(x.shape[1], MAX_RANDOM_COLUMNS)
    generator = torch.Generator().manual_seed(seed)
    random = torch.randn(len(x), columns, generator=generator).numpy()
    after_random = averaged(random, clean.edge_index, steps, "row") if columns else ()
    measure = _measure(clean.sens, folds)
    before = measure(0, x)
    row, symmetric = (
        (before, *map(measure, range(1, steps + 1), averaged(x, clean.edge_index, steps, kind)))
        for kind in ("row", "symmetric")
    )
    notes += list(_notes(known, constant, x.shape[1]))
    ends = clean.sens[clean.edge_index]
    n = table.nodes
    return Audit(
        name=table.name,
        nodes=n,
        edges=table.edges // 2,
        directed_edges=table.edges,
        features=table.features,
        constant_features=constant,
        labelled=table.labelled or 0,
        classes=tuple(clean.class_names),
        unknown_groups=n - sum(group.nodes for group in known),
        unknown_edges=float((ends < 0).any(0).double().mean()) if table.edges else None,
        density=table.edges / (n * (n - 1)),
        average_degree=table.edges / n,
        homophily=homophily(clean.edge_index, clean.sens),
        label_homophily=table.label_homophily if table.labelled else None,
        label_homophily_labelled=table.label_homophily_labelled,
        c=known[1].share if len(known) == 2 else None,
        groups=groups,
        row=row,
        symmetric=symmetric,
        random_baseline=tuple(
            _cross_fitted(values, folds)[1] for values in (random, *after_random) if columns
        ),
        noise=_noise(known),
        forecast=_forecast(x, clean, folds),
        notes=tuple(notes),
        seed=seed,
    )


def _cleaned(data: Data) -> tuple[Data, list[str]]:
    """Return an undirected graph without self-loops, and notes on what was changed."""
    check(data, labels=False)
    if not isinstance(data.get("sens"), Tensor):
        raise InputError(
            "data.sens", "missing", "give the group of each node, -1 where it is unknown"
        )
    sens = data.sens.cpu().long()
    group_operator(sens)
    n = data.x.size(0)
    y = data.y.cpu().long() if isinstance(data.get("y"), Tensor) else torch.full((n,), -1)
    edges, notes = data.edge_index.cpu(), []
    if edges.dim() != 2 or edges.size(0) != 2 or (edges.numel() and int(edges.max()) >= n):
        raise InputError(
            "data.edge_index",
            f"shape {tuple(edges.shape)} with indices up to "
            f"{int(edges.max()) if edges.numel() else 0} does not fit {n} nodes",
            "give a (2, edges) tensor of node indices",
        )
    if bool((edges[0] == edges[1]).any()):
        edges = remove_self_loops(edges)[0]
        notes.append("self-loops were removed")
    both = to_undirected(edges, num_nodes=n)
    if not torch.equal(both, edges):
        notes.append("edges were made undirected and unique")
    clean = Data(x=data.x.detach().cpu().float(), edge_index=both, y=y, sens=sens)
    clean.name = str(getattr(data, "name", "graph"))
    clean.group_names = _names(data, "group_names", sens)
    clean.class_names = _names(data, "class_names", y)
    return clean, notes


def _names(data: Data, key: str, codes: Tensor) -> list[str]:
    count = max(int(codes.max()) + 1, 0)
    given = data.get(key)
    if isinstance(given, list | tuple) and len(given) >= count:
        return [str(name) for name in given]
    return [str(k) for k in range(count)]


def homophily(edge_index: Tensor, sens: Tensor) -> Homophily:
    r"""Sensitive homophily, raw and adjusted for chance.

    Among the E edges between nodes of known group, let :math:`D_g` be the sum of the degrees in
    group g. Random edges with the same degrees would give

    .. math::
        \bar\epsilon = \sum_g \frac{D_g^2}{(2E)^2}, \qquad
        \epsilon_{adj} = \frac{\epsilon - \bar\epsilon}{1 - \bar\epsilon} .

    Raw homophily misleads where a group is large or well connected: if one group has nine tenths
    of all degrees, 82 % of the edges are within a group by chance.

    Example:
        >>> path = torch.tensor([[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]])
        >>> homophily(path, torch.tensor([0, 0, 1, 1]))
        Homophily(raw=0.666..., chance=0.5, adjusted=0.333...)
    """
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
        members = sens == g
        labels = y[members & (y >= 0)]
        reached = target[(source == g) & (target >= 0)]
        counts = np.bincount(labels, minlength=len(data.class_names))
        found.append(
            Group(
                name=names[g],
                nodes=int(members.sum()),
                share=int(members.sum()) / known if g >= 0 else None,
                labelled=len(labels),
                base_rates=tuple((counts / len(labels)).tolist()) if len(labels) else None,
                mean_degree=float(degree[members].mean()),
                median_degree=float(np.median(degree[members])),
                isolated=int((degree[members] == 0).sum()),
                inside=float((reached == g).mean()) if g >= 0 and len(reached) else None,
            )
        )
    return tuple(found)


def standardise(x: Tensor) -> tuple[np.ndarray, int]:
    """Scale columns to mean 0 and variance 1; drop and count constant ones."""
    centred = x - x.mean(0)
    deviation = torch.linalg.vector_norm(centred, dim=0) / math.sqrt(len(x))
    # Rounding can give a constant column a deviation, and a nearly constant one none.
    varied = (x.amax(0) > x.amin(0)) & (deviation > 0)
    return centred[:, varied].div_(deviation[varied]).numpy(), int((~varied).sum())


def halves(sens: Tensor, seed: int | Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Split each group into random halves.

    Returns the groups, renumbered without those below ``MIN_GROUP_SIZE``, and the half (0 or 1)
    of each node; both are −1 for nodes of small or unknown groups.
    """
    rng = np.random.default_rng(seed)
    groups, half = np.full((2, len(sens)), -1)
    number = 0
    for g in range(int(sens.max()) + 1):
        members = rng.permutation(np.flatnonzero(sens.numpy() == g))
        if len(members) >= MIN_GROUP_SIZE:
            groups[members], number = number, number + 1
            half[members] = np.arange(len(members)) % 2
    return groups, half


def _measure(sens: Tensor, folds: Folds) -> Callable[[int, np.ndarray], FeatureBias]:
    def measure(step: int, values: np.ndarray) -> FeatureBias:
        return FeatureBias(step, *mean_gap(values, sens.numpy()), *_cross_fitted(values, folds))

    return measure


def _cross_fitted(values: np.ndarray, folds: Folds) -> tuple[float, float]:
    """Separation and predictability, averaged over random halves."""
    found = [held_out_bias(values, groups, half) for groups, half in folds]
    separation, predictability = np.mean(found, axis=0)
    return float(separation), float(predictability)


def mean_gap(values: np.ndarray, sens: np.ndarray) -> tuple[float, float]:
    r"""Largest distance between two groups' means, and its expectation for random groups.

    For groups at random, :math:`\mathbb E\lVert\delta\rVert^2 = \sum_j \mathrm{Var}(x_j)
    (1/n_a + 1/n_b)`; the second number is its root.
    """
    counts = np.bincount(sens[sens >= 0])
    means = [values[sens == g].mean(0, dtype=float) for g in range(len(counts))]
    gap, a, b = max(
        (float(np.linalg.norm(means[a] - means[b])), a, b)
        for a, b in combinations(range(len(means)), 2)
    )
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
    try:
        blocks = block_counts(graph)
        rows = [
            _predict(scores, own, graph, blocks)
            for large, half in folds
            for scores, own in held_out_scores(x, large, half, reference=0)
        ]
    except InputError as error:
        return Forecast(None, None, missing=f"no prediction: {error}")
    before, after, m = (float(v) for v in np.mean([row[:3] for row in rows], axis=0))
    if len(blocks[0]) > 2:
        return Forecast(before, after, missing="the condition is stated for two groups")
    conditions = [row[3] for row in rows if row[3]]
    if not conditions:
        reason = "the graph is too dense or the groups too similar for the condition"
        return Forecast(before, after, m, missing=reason)
    printed, corrected = (float(v) for v in np.mean(conditions, axis=0))
    return Forecast(before, after, m, printed, corrected)


def _predict(
    scores: np.ndarray, groups: np.ndarray, graph: Data, blocks: tuple[np.ndarray, np.ndarray]
) -> tuple[float, float, float, tuple[float, float] | None]:
    """Predictability before and after, m, and Theorem 2's two conditions."""
    # The ridge only matters for constant scores.
    moments, weights = group_moments(torch.from_numpy(scores), torch.from_numpy(groups), ridge=1e-9)
    change = predicted_block_change(*blocks, means=moments.means, covariances=moments.covariances)
    before, after = float(change.before.parity), float(change.after.parity)
    if len(weights) > 2:
        return before, after, 0.0, None
    covariance = np.tensordot(weights, moments.covariances, 1)
    delta = moments.means[1] - moments.means[0]
    m = float(delta @ np.linalg.solve(covariance, delta))
    try:
        parameters = graph_parameters(graph)
        features: dict[str, Any] = {"means": moments.means, "covariance": covariance}
        printed = float(bias_enhancement(*parameters, form="printed", **features))
        corrected = float(bias_enhancement(*parameters, form="corrected", **features))
    except InputError:
        return before, after, m, None
    return before, after, m, (printed, corrected)


def _noise(known: list[Group]) -> float | None:
    """Two standard errors (at most) of a difference of shares, for the two smallest groups."""
    sizes = sorted(group.nodes for group in known if group.nodes >= MIN_GROUP_SIZE)[:2]
    return 2 * math.sqrt(sum(0.25 / size for size in sizes)) if len(sizes) == 2 else None


def _notes(known: list[Group], constant: int, varied: int) -> Iterator[str]:
    if constant:
        yield f"{constant} of {constant + varied} feature columns are constant and were dropped"
    small = [group for group in known if group.nodes < MIN_GROUP_SIZE]
    if small:
        named = ", ".join(f"{group.name} ({group.nodes})" for group in small[:5])
        more = f" and {len(small) - 5} more" if len(small) > 5 else ""
        yield (
            f"groups of fewer than {MIN_GROUP_SIZE} nodes are excluded from separation, "
            f"predictability and the forecast: {named}{more}"
        )
    if len(known) > 2:
        yield "gaps are those between the two most distinct groups"


def describe(data: Data) -> dict[str, Any]:
    """Size, homophily and groups of a graph: the part of an audit that needs no features."""
    clean, _ = _cleaned(data)
    edges = clean.edge_index.size(1)
    return {
        "name": clean.name,
        "nodes": len(clean.sens),
        "edges": edges // 2,
        "average_degree": edges / len(clean.sens),
        "homophily": vars(homophily(clean.edge_index, clean.sens)),
        "classes": clean.class_names,
        "groups": [vars(group) for group in _groups(clean)],
    }

"""The work behind :func:`fairmp.debias`: read what is asked, solve it, and make sure it holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fairmp.errors import InputError
from fairmp.graph import Adjacency, Operator, normalise
from fairmp.groups import GroupOperator, stack
from fairmp.kernels import softmax
from fairmp.nn import functional as solvers
from fairmp.nn.decisions import close_decision_gap
from fairmp.nn.fmp import FMP
from fairmp.postprocessing import criteria, feasibility
from fairmp.postprocessing.attributes import Attribute, attributes, estimated
from fairmp.postprocessing.criteria import Criterion, Measure
from fairmp.postprocessing.predictions import Predictions, check_aligned, read

HELD = 1e-4
CERTAIN = 1e-9
NEARLY = 1e-6  # a target of 0 beside larger ones
Temperature = float | Literal["decisions"]


@dataclass(frozen=True)
class Asked:
    """The arguments of :func:`fairmp.debias`, which says what they mean."""

    sens: Any
    target: Any
    edge_index: Any
    population: Any
    temperature: Temperature
    K: int
    lambda_s: float
    criterion: Any
    labels: Any
    estimate_sens: bool
    features: Any


@dataclass(frozen=True)
class Solved:
    """DebiasResult logits, and all that was read on the way.

    Attributes:
        given: the predictions.
        logits: mended (n×C).
        temperature: τ.
        attributes: the sensitive attributes, estimated where that was asked for.
        criteria: what was asked for.
        measures: the same as measurements.
        population: the nodes (n, bool).
        labels: true classes (n, −1 unknown), where they were given.
        warnings: what a reader should know.
    """

    given: Predictions
    logits: Tensor
    temperature: float
    attributes: tuple[Attribute, ...]
    criteria: tuple[Criterion, ...]
    measures: tuple[Measure, ...]
    population: Tensor
    labels: Tensor | None
    warnings: tuple[str, ...]


class Alone:
    """A graph without edges, in which every node is its own neighbourhood."""

    def aggregate(
        self, f: Tensor, x: Tensor | None, gamma: float, *, transposed: bool = False
    ) -> Tensor:
        """γX + (1−γ)F."""
        return f if x is None else gamma * x + (1 - gamma) * f


def solve(predictions: Any, asked: Asked) -> Solved:
    """Mend predictions; every target holds to 1e-4 where it is measured, or an error says why."""
    given = read(predictions)
    check_aligned(
        predictions,
        sens=asked.sens,
        labels=asked.labels,
        population=asked.population,
        features=asked.features,
    )
    n, classes = given.logits.shape
    device = given.logits.device
    wanted = criteria.read(asked.criterion, asked.target, n)
    _check_numbers(asked, wanted)
    inside = _mask(asked.population, n, device)
    labels = _labels(asked.labels, n, classes, device)
    own = [] if asked.sens is None else attributes(asked.sens, n)
    if not own and any(one.matrix is None for one in wanted):
        raise InputError("sens", "missing", "give the group of each node, -1 where unknown")
    # Demographic parity alone, the common case, stays in the precision it was given in.
    plain = len(wanted) == len(own) == 1 and wanted[0].name == "demographic_parity"
    graph = _graph(asked.edge_index, n, given.logits.dtype if plain else torch.float64, device)
    if asked.estimate_sens:
        seen = given.proba if asked.features is None else asked.features
        own = [estimated(one, seen, graph) for one in own]
    elif asked.features is not None:
        raise InputError("features", "they are read to estimate groups", "add estimate_sens=True")
    own = [one.to(device) for one in own]

    x = given.logits
    x = x.to(graph.scale.dtype) if graph is not None else x if plain else x.double()
    measures, warnings = criteria.measures(wanted, own, inside, labels, classes, x.dtype)
    feasibility.check(measures, classes)
    logits, tau, more = _run(x, graph, asked, own, inside, measures)
    warnings += more
    if float((given.proba.amax(1) > 1 - CERTAIN).double().mean()) > 0.5:
        warnings.append(
            "most predictions are 0 or 1 and can only be evened out by chance: draw decisions with "
            "the mended probabilities"
        )
    return Solved(
        given,
        logits,
        tau,
        tuple(own),
        tuple(wanted),
        tuple(measures),
        inside,
        labels,
        tuple(warnings),
    )


def _run(
    x: Tensor,
    graph: Adjacency | None,
    asked: Asked,
    own: Sequence[Attribute],
    inside: Tensor,
    measures: Sequence[Measure],
) -> tuple[Tensor, float, list[str]]:
    """DebiasResult logits, the temperature, and warnings."""
    on_labels = any(measure.label is not None for measure in measures)
    lopsided = any(map(_lopsided, measures))
    if asked.temperature == "decisions":
        if lopsided:
            raise InputError(
                "temperature",
                "'decisions' goes with a matrix whose rows sum to 0",
                "give a number, such as 0.1",
            )
        return *_projected(x, graph, asked, inside, measures), []
    if on_labels or lopsided:
        logits, warnings = _searched(x, graph, asked, own, inside, measures, on_labels)
        tau = float(asked.temperature)
    else:
        (logits, tau), warnings = _projected(x, graph, asked, inside, measures), []
    _verify(measures, logits, tau)
    return logits, tau, warnings


def _projected(
    x: Tensor,
    graph: Adjacency | None,
    asked: Asked,
    inside: Tensor,
    measures: Sequence[Measure],
) -> tuple[Tensor, float]:
    delta, target = _stacked(measures, inside, x.dtype)
    operator: Operator = Alone() if graph is None else graph
    K, lambda_s = (1, 0.0) if graph is None else (asked.K, asked.lambda_s)
    with torch.no_grad():
        by_decision = asked.temperature == "decisions"
        found = solvers.projection(
            x,
            operator,
            delta,
            K=K,
            lambda_s=lambda_s,
            target=target,
            temperature=1.0 if by_decision else float(asked.temperature),
        )
        if by_decision:
            return close_decision_gap(found.f, delta, target).logits, 1.0
    return found.f, found.temperature


def _stacked(
    measures: Sequence[Measure], inside: Tensor, dtype: torch.dtype
) -> tuple[GroupOperator, float]:
    """All measurements as one incidence with one target."""
    if len(measures) == 1:
        return measures[0].delta, measures[0].target
    goal = max(measure.target for measure in measures)
    parts = []
    for measure in measures:
        delta = measure.delta
        # |ΔQ| ≤ t is |(goal/t)ΔQ| ≤ goal.
        scale = 1.0 if measure.target == goal else goal / max(measure.target, NEARLY)
        member = delta.membership.to(dtype) if delta.codes is None else None
        parts.append(
            GroupOperator(
                member,
                inside,
                delta.rows * scale,
                codes=delta.codes,
                blocks=delta.blocks,
                dtype=dtype,
            )
        )
    return stack(*parts), goal


def _lopsided(measure: Measure) -> bool:
    """Whether it does not compare: the projection counts on rows of Δ that sum to 0."""
    return measure.own and bool((measure.delta.matrix.sum(1).abs() > 1e-9 * measure.unit).any())


def _searched(
    x: Tensor,
    graph: Adjacency | None,
    asked: Asked,
    own: Sequence[Attribute],
    inside: Tensor,
    measures: Sequence[Measure],
    on_labels: bool,
) -> tuple[Tensor, list[str]]:
    from fairmp.postprocessing import odds

    tau = float(asked.temperature)
    with torch.no_grad():
        if graph is not None:
            x = solvers.propagate(x, graph, K=asked.K, lambda_s=asked.lambda_s)
    x = x.double()
    wanted = {measure.attribute for measure in measures}
    parts = [one.membership for one in own if one.name in wanted]
    membership = torch.cat(parts, 1) if parts else x.new_zeros(len(x), 0)
    found = odds.correct(
        (x / tau).cpu().numpy(),
        x.softmax(1).cpu().numpy(),
        membership.cpu().numpy(),
        inside.cpu().numpy(),
        measures,
        by_prediction=on_labels,
    )
    mended = tau * torch.from_numpy(found.logits).to(x.device)
    moved = torch.from_numpy(found.reached).to(x.device).unsqueeze(1)
    warnings = []
    if found.randomised:
        warnings.append(
            "no shift of logits was found that holds the targets; mended probabilities are the "
            "given ones, mixed between classes by group"
        )
    return torch.where(moved, mended, x), warnings


def _verify(measures: Sequence[Measure], logits: Tensor, tau: float) -> None:
    q = softmax(logits.double() / tau)
    for measure in measures:
        gap = measure.gap(q)
        if gap > measure.target + HELD * measure.unit:
            raise InputError(
                "target",
                f"{measure.target:g} for {measure.criterion} ({measure.attribute}) could not be "
                f"reached, the smallest gap found is {gap:.4g}",
                "relax the target, leave a criterion out, or take a larger temperature",
            )


def _check_numbers(asked: Asked, wanted: Sequence[Criterion]) -> None:
    if asked.temperature == "decisions":
        if any(one.on_labels for one in wanted):
            raise InputError(
                "temperature",
                "'decisions' goes with demographic parity or a matrix",
                "give a number, such as 0.1",
            )
        FMP(asked.K, asked.lambda_s)
    else:
        FMP(asked.K, asked.lambda_s, temperature=asked.temperature)


def _mask(population: Any, n: int, device: torch.device) -> Tensor:
    if population is None:
        return torch.ones(n, dtype=torch.bool, device=device)
    if not isinstance(population, Tensor):
        population = torch.from_numpy(np.array(population))
    if population.dtype != torch.bool or population.shape != (n,):
        raise InputError(
            "population",
            f"{population.dtype} of shape {tuple(population.shape)}",
            f"give {n} booleans",
        )
    if not bool(population.any()):
        raise InputError("population", f"none of {n} nodes is in it", "choose nodes to mend")
    return population.to(device)


def _labels(labels: Any, n: int, classes: int, device: torch.device) -> Tensor | None:
    if labels is None:
        return None
    values = labels.detach() if isinstance(labels, Tensor) else np.array(labels)
    if isinstance(values, np.ndarray):
        if values.dtype.kind not in "biuf":
            raise InputError(
                "labels",
                f"{values.dtype} values",
                "give the number of each node's class, -1 unknown",
            )
        values = torch.from_numpy(values)
    if values.shape != (n,):
        raise InputError(
            "labels", f"shape {tuple(values.shape)}", f"give one class for each of {n}"
        )
    whole = torch.where(values.isnan(), -1, values) if values.is_floating_point() else values
    codes = whole.long()
    wrong = (codes != whole) | (codes < -1) | (codes >= classes)
    if bool(wrong.any()):
        raise InputError(
            "labels",
            f"{whole[wrong][0].item():g} is no class of {classes}",
            f"give 0…{classes - 1}, -1 where unknown",
        )
    return codes.to(device)


def _graph(edge_index: Any, n: int, dtype: torch.dtype, device: torch.device) -> Adjacency | None:
    if edge_index is None:
        return None
    if isinstance(edge_index, Adjacency):
        if edge_index.num_nodes != n:
            raise InputError("edge_index", f"a graph of {edge_index.num_nodes} nodes for {n} rows")
        return edge_index.to(device)
    if not isinstance(edge_index, Tensor):
        edge_index = torch.from_numpy(np.array(edge_index))
    return normalise(edge_index.to(device), n, dtype=dtype)

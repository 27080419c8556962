"""Solve for corrected predictions, and verify that every target is met."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fairmp.errors import InputError, check_integer, check_number
from fairmp.graph import Adjacency, normalise
from fairmp.groups import GroupOperator, soft, stack
from fairmp.kernels import softmax
from fairmp.metrics.evaluation import boolean_mask
from fairmp.nn import functional as solvers
from fairmp.nn.decisions import close_decision_gap
from fairmp.postprocessing import criteria
from fairmp.postprocessing.attributes import Attribute, attributes, estimated
from fairmp.postprocessing.criteria import Criterion, Measure
from fairmp.postprocessing.predictions import Predictions, check_aligned, read, read_labels
from fairmp.postprocessing.thresholds import GroupThresholds

TOLERANCE = 1e-4  # excess within which a target counts as met
CERTAIN = 1e-9  # distance from 1 of probabilities that stand for decisions
MIN_TARGET = 1e-6  # stands for a target of 0 next to larger ones
Temperature = float | Literal["decisions"]


@dataclass(frozen=True)
class Request:
    """The arguments of :func:`fairmp.debias`."""

    sens: Any
    target: Any = 0.0
    edge_index: Any = None
    population: Any = None
    temperature: Temperature = 1.0
    K: int = 5
    lambda_s: float = 1.0
    criterion: Any = "demographic_parity"
    labels: Any = None
    estimate_sens: bool = False
    features: Any = None
    kind: str = "auto"
    class_names: Sequence[str] | None = None
    ties: Literal["random", "keep"] = "random"
    seed: int = 0


@dataclass(frozen=True)
class Solution:
    """Corrected logits, and the problem they solve."""

    given: Predictions
    logits: Tensor  # corrected (n×C)
    temperature: float
    attributes: tuple[Attribute, ...]  # estimated where requested
    criteria: tuple[Criterion, ...]
    measures: tuple[Measure, ...]  # the criteria as measurements
    population: Tensor  # n, bool
    labels: Tensor | None  # n, −1 unknown
    classes: tuple[str, ...]
    warnings: tuple[str, ...]
    weights: tuple[np.ndarray, ...] = ()  # the correction for criteria on labels; see odds
    drawn: int = 0  # nodes whose decision was drawn at random because their scores tie


class NoGraph:
    """A graph without edges."""

    def aggregate(
        self, f: Tensor, x: Tensor | None, gamma: float, *, transposed: bool = False
    ) -> Tensor:
        """γX + (1−γ)F."""
        return f if x is None else gamma * x + (1 - gamma) * f


def solve(predictions: Any, request: Request) -> Solution:
    """Correct predictions so that every target is met to 1e-4, or raise."""
    given = read(predictions, request.kind)
    aligned = ("sens", "labels", "population", "features")
    check_aligned(predictions, **{name: getattr(request, name) for name in aligned})
    n, classes = given.logits.shape
    device = given.logits.device
    wanted = criteria.read(request.criterion, request.target, n)
    check_integer("K", request.K, "give the number of propagation steps, 1 or more")
    check_number("lambda_s", request.lambda_s, "give a number of 0 or more", low=0)
    if request.temperature != "decisions":
        hint = "give a number above 0, or 'decisions'"
        check_number("temperature", request.temperature, hint, low=0, above=True)
    elif any(one.on_labels for one in wanted):
        hint = "give a number, such as 0.1"
        raise InputError("temperature", "'decisions' is for demographic parity or a matrix", hint)
    inside = torch.from_numpy(boolean_mask(request.population, n, "population")).to(device)
    titles, labels = read_labels(request.labels, given, request.class_names)
    own = [] if request.sens is None else attributes(request.sens, n)
    if not own and any(one.matrix is None for one in wanted):
        raise InputError("sens", "missing", "give the group of each node, -1 where unknown")
    # Demographic parity alone, the common case, stays in the precision it was given in.
    plain = len(wanted) == len(own) == 1 and wanted[0].name == "demographic_parity"
    graph = _graph(request.edge_index, n, given.logits.dtype if plain else torch.float64, device)
    if request.estimate_sens:
        inputs = given.proba if request.features is None else request.features
        own = [estimated(one, inputs, graph) for one in own]
    elif request.features is not None:
        raise InputError("features", "they are used to estimate groups", "add estimate_sens=True")
    own = [one.to(device) for one in own]

    x = given.logits
    x = x.to(graph.scale.dtype) if graph is not None else x if plain else x.double()
    measures, warnings = criteria.measures(wanted, own, inside, labels, classes, x.dtype)
    criteria.check_feasible(measures, classes)
    on_labels = any(measure.label is not None for measure in measures)
    # The projection needs rows that sum to 0.
    unbalanced = any(
        m.own and bool((m.delta.matrix.sum(1).abs() > 1e-9 * m.unit).any()) for m in measures
    )
    weights: tuple[np.ndarray, ...] = ()
    drawn = 0
    if request.temperature == "decisions" and unbalanced:
        hint = "give a number, such as 0.1"
        raise InputError("temperature", "'decisions' needs rows that sum to 0", hint)
    if on_labels or unbalanced:
        tau = float(request.temperature)
        logits, weights, notes = _label_free(x, graph, request, own, inside, measures, on_labels)
        warnings += notes
    elif request.temperature == "decisions" and plain and _has_thresholds(x, request, own[0]):
        rule = GroupThresholds(
            wanted[0].target, ties=request.ties, seed=request.seed, kind="logits"
        )
        rows = inside & own[0].known
        logits, drawn = rule.solve(x[rows], own[0].sens[rows]).correct(x, own[0].sens)
        tau = 1.0
    else:
        logits, tau = _projected(x, graph, request, inside, measures)
    if request.temperature != "decisions":
        _verify(measures, logits, tau)
    else:
        warnings += missed_decisions(measures, logits, own, inside)
    if float((given.proba.amax(1) > 1 - CERTAIN).double().mean()) > 0.5:
        draw = "draw decisions from the corrected probabilities"
        warnings.append(f"most predictions are 0 or 1 and can only be equalised by chance: {draw}")
    return Solution(
        given, logits, tau, tuple(own), tuple(wanted), tuple(measures), inside, labels, titles,
        tuple(warnings), weights, drawn,
    )  # fmt: skip


def _projected(
    x: Tensor,
    graph: Adjacency | None,
    request: Request,
    inside: Tensor,
    measures: Sequence[Measure],
) -> tuple[Tensor, float]:
    """The projection onto all targets, and its temperature."""
    delta, target = measures[0].delta, max(measure.target for measure in measures)
    if len(measures) > 1:
        parts = []
        for one in measures:
            # |ΔQ| ≤ t is |(target/t)ΔQ| ≤ target.
            scale = 1.0 if one.target == target else target / max(one.target, MIN_TARGET)
            codes, rows = one.delta.codes, one.delta.rows * scale
            member = one.delta.membership.to(x.dtype) if codes is None else None
            parts.append(
                GroupOperator(
                    member, inside, rows, codes=codes, blocks=one.delta.blocks, dtype=x.dtype
                )
            )
        delta = stack(*parts)
    operator: Any = NoGraph() if graph is None else graph
    K, lambda_s = (1, 0.0) if graph is None else (request.K, request.lambda_s)
    settings: dict[str, Any] = {"K": K, "lambda_s": lambda_s, "target": target}
    with torch.no_grad():
        decisions = request.temperature == "decisions"
        settings["temperature"] = 1.0 if decisions else request.temperature
        found = solvers.projection(x, operator, delta, **settings)
        if decisions:
            return close_decision_gap(found.f, delta, target).logits, 1.0
    return found.f, found.temperature


def _label_free(
    x: Tensor,
    graph: Adjacency | None,
    request: Request,
    own: Sequence[Attribute],
    inside: Tensor,
    measures: Sequence[Measure],
    on_labels: bool,
) -> tuple[Tensor, tuple[np.ndarray, ...], list[str]]:
    from fairmp.postprocessing import odds

    tau = float(request.temperature)
    if graph is not None:
        with torch.no_grad():
            x = solvers.propagate(x, graph, K=request.K, lambda_s=request.lambda_s)
    x = x.double()
    used = {measure.attribute for measure in measures}
    parts = [one.membership for one in own if one.name in used]
    membership = torch.cat(parts, 1) if parts else x.new_zeros(len(x), 0)
    found = odds.correct(
        (x / tau).cpu().numpy(),
        x.softmax(1).cpu().numpy(),
        membership.cpu().numpy(),
        inside.cpu().numpy(),
        measures,
        by_prediction=on_labels,
    )
    corrected = tau * torch.from_numpy(found.logits).to(x.device)
    reached = torch.from_numpy(found.reached).to(x.device).unsqueeze(1)
    warning = (
        "no shift of logits was found that meets the targets; the corrected probabilities are the "
        "given ones, mixed between classes by group"
    )
    randomised = len(found.weights) == 1
    return torch.where(reached, corrected, x), found.weights, [warning] * randomised


def _has_thresholds(x: Tensor, request: Request, attribute: Attribute) -> bool:
    """Whether one threshold per group closes the gap of decisions exactly."""
    smoothed = request.edge_index is not None and request.lambda_s > 0
    return x.size(1) == 2 and not smoothed and not soft(attribute.sens)


def missed_decisions(
    measures: Sequence[Measure], logits: Tensor, own: Sequence[Attribute], inside: Tensor
) -> list[str]:
    """Warnings where the gap of decisions exceeds the target by more than one node."""
    decided = torch.nn.functional.one_hot(logits.argmax(1), logits.size(1)).double()
    step = 1 / min([float(one.weights(inside).min()) for one in own], default=1.0)
    return [
        f"{measure.criterion} ({measure.attribute}): nodes with equal scores get the same "
        f"decision, which leaves a gap of {100 * measure.gap(decided):.1f} points"
        for measure in measures
        if measure.gap(decided) > measure.target + step * measure.unit
    ]


def _verify(measures: Sequence[Measure], logits: Tensor, tau: float) -> None:
    q = softmax(logits.double() / tau)
    for measure in measures:
        gap = measure.gap(q)
        if gap > measure.target + TOLERANCE * measure.unit:
            which = f"{measure.target:g} for {measure.criterion} ({measure.attribute})"
            value = f"{which} could not be reached, the smallest gap found is {gap:.4g}"
            hint = "relax the target, leave a criterion out, or use a larger temperature"
            raise InputError("target", value, hint)


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

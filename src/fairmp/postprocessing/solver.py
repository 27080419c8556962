"""Solve for corrected predictions, and verify that every target is met."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fairmp.errors import InputError, check_integer, check_number
from fairmp.graph import Adjacency, normalise
from fairmp.groups import GroupOperator, soft, stack
from fairmp.kernels import softmax
from fairmp.metrics.calibration import label_probabilities
from fairmp.metrics.kinds import boolean_mask
from fairmp.metrics.kinds import weights as positive_weights
from fairmp.nn import functional as solvers
from fairmp.nn.decisions import close_decision_gap
from fairmp.postprocessing import criteria
from fairmp.postprocessing.attributes import Attribute, attributes, estimated
from fairmp.postprocessing.criteria import Criterion, Measure
from fairmp.postprocessing.predictions import Predictions, check_aligned, read, read_labels
from fairmp.postprocessing.thresholds import GroupThresholds

TOLERANCE = 1e-4  # excess within which a target counts as met
ROUNDING = 1e-9  # of a gap
MIN_TARGET = 1e-6  # stands for a target of 0 next to larger ones
EXACT_DECISIONS = ("demographic_parity", "equal_opportunity")  # by one threshold per group
Temperature = float | Literal["decisions"]


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
    rule: GroupThresholds | None = None  # the correction of decisions by a threshold per group
    missed: tuple[str, ...] = ()  # targets of decisions that are not met
    weight: Tensor | None = None  # of each node (n, float64)


class NoGraph:
    """A graph without edges."""

    def aggregate(
        self, f: Tensor, x: Tensor | None, gamma: float, *, transposed: bool = False
    ) -> Tensor:
        """γX + (1−γ)F."""
        return f if x is None else gamma * x + (1 - gamma) * f


def solve(
    predictions: Any,
    sens: Any,
    *,
    target: Any = 0.0,
    edge_index: Any = None,
    population: Any = None,
    temperature: Temperature = 1.0,
    K: int = 5,
    lambda_s: float = 1.0,
    criterion: Any = "demographic_parity",
    labels: Any = None,
    estimate_sens: bool = False,
    features: Any = None,
    kind: str = "auto",
    class_names: Sequence[str] | None = None,
    ties: Literal["random", "keep"] = "random",
    seed: int = 0,
    sample_weight: Any = None,
    calibrate: bool = False,
) -> Solution:
    """Correct predictions so that every target is met to 1e-4, or raise; see fairmp.debias."""
    # With calibrate, thresholds are found for the distribution the nodes are a sample of.
    given = read(predictions, kind)
    others = {"sens": sens, "labels": labels, "population": population, "features": features}
    check_aligned(predictions, **others, sample_weight=sample_weight)
    n, classes = given.logits.shape
    device, decisions = given.logits.device, temperature == "decisions"
    wanted = criteria.read(criterion, target, n)
    check_integer("K", K, "give the number of propagation steps, 1 or more")
    check_number("lambda_s", lambda_s, "give a number of 0 or more", low=0)
    if not decisions:
        hint = "give a number above 0, or 'decisions'"
        check_number("temperature", temperature, hint, low=0, above=True)
    inside = torch.from_numpy(boolean_mask(population, n, "population")).to(device)
    titles, codes = read_labels(labels, given, class_names)
    weight = None
    if sample_weight is not None:
        weight = torch.from_numpy(positive_weights(sample_weight, n)).to(device)
        if any(one.matrix is not None for one in wanted):
            raise InputError("sample_weight", "a matrix has weights of its own", "omit them")
    own = [] if sens is None else attributes(sens, n)
    if not own and any(one.matrix is None for one in wanted):
        raise InputError("sens", "missing", "give the group of each node, -1 where unknown")
    # Demographic parity alone, the common case, stays in the precision it was given in.
    alone = len(wanted) == len(own) == 1
    plain = alone and wanted[0].name == "demographic_parity"
    graph = _graph(edge_index, n, given.logits.dtype if plain else torch.float64, device)
    if estimate_sens:
        inputs = given.proba if features is None else features
        own = [estimated(one, inputs, graph) for one in own]
    elif features is not None:
        raise InputError("features", "they are used to estimate groups", "add estimate_sens=True")
    own = [replace(one, sens=one.sens.to(device)) for one in own]

    x = given.logits
    x = x.to(graph.scale.dtype) if graph is not None else x if plain else x.double()
    measures, warnings = criteria.measures(wanted, own, inside, codes, classes, x.dtype, weight)
    criteria.check_feasible(measures, classes)
    on_labels = any(measure.label is not None for measure in measures)
    # The projection needs rows that sum to 0.
    unbalanced = any(
        m.own and bool((m.delta.matrix.sum(1).abs() > 1e-9 * m.unit).any()) for m in measures
    )
    smoothed = graph is not None and lambda_s > 0
    exact = alone and wanted[0].name in EXACT_DECISIONS and classes == 2 and not smoothed
    weights: tuple[np.ndarray, ...] = ()
    missed: list[str] = []
    rule, drawn, tau = None, 0, 1.0 if decisions else float(temperature)
    if decisions and exact and not soft(own[0].sens):
        rule = GroupThresholds(wanted[0].target, ties=ties, seed=seed, kind="logits")
        rule = _thresholds(rule, x, own[0], inside, codes, weight, on_labels, calibrate)
        logits, drawn = rule.correct(x, own[0].sens)
    elif decisions and (on_labels or unbalanced or weight is not None):
        value = "'decisions' needs parity, or equal opportunity of two classes and known groups"
        raise InputError("temperature", value, "give a number, such as 0.1")
    elif on_labels or unbalanced or weight is not None:
        if graph is not None:
            with torch.no_grad():
                x = solvers.propagate(x, graph, K=K, lambda_s=lambda_s)
        counted = inside.double() if weight is None else inside * weight
        logits, weights, notes = _label_free(x.double(), tau, own, counted, measures, on_labels)
        warnings += notes
    else:
        # Without a graph, one step that does not smooth.
        steps = {"K": 1, "lambda_s": 0.0} if graph is None else {"K": K, "lambda_s": lambda_s}
        logits, tau = _projected(x, graph, inside, measures, None if decisions else tau, steps)
    if not decisions:
        _verify(measures, logits, tau)
    elif rule is None or rule.excess_ > ROUNDING:
        missed = _missed_decisions(measures, logits)
    return Solution(
        given, logits, tau, tuple(own), tuple(wanted), tuple(measures), inside, codes, titles,
        tuple(warnings), weights, drawn, rule, tuple(missed), weight,
    )  # fmt: skip


def _projected(
    x: Tensor,
    graph: Adjacency | None,
    inside: Tensor,
    measures: Sequence[Measure],
    tau: float | None,
    steps: dict[str, Any],
) -> tuple[Tensor, float]:
    """The projection onto all targets, and its temperature; of decisions without one."""
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
    with torch.no_grad():
        found = solvers.projection(
            x, operator, delta, target=target, temperature=tau or 1.0, **steps
        )
        if tau is None:
            return close_decision_gap(found.f, delta, target).logits, 1.0
    return found.f, found.temperature


def _thresholds(
    rule: GroupThresholds,
    x: Tensor,
    attribute: Attribute,
    inside: Tensor,
    labels: Tensor | None,
    given_weight: Tensor | None,
    on_labels: bool,
    calibrate: bool,
) -> GroupThresholds:
    """One threshold per group: the same rate of all nodes, or with labels of those of class 1."""
    rows, rate = inside & attribute.known, None
    weight = torch.ones(len(x)).double() if given_weight is None else given_weight.cpu().clone()
    if calibrate and labels is not None and bool((labels[rows] >= 0).any()):
        # True positive rates from probabilities of the labels vary less than from few labels; and
        # the overall rate is that of calibrated decisions.
        parts = (x.double(), torch.where(rows, labels, -1), attribute.sens)
        z, y, group = (part[rows].cpu().numpy() for part in parts)
        if on_labels:
            weight[rows.cpu()] *= torch.from_numpy(label_probabilities(z, y, group)[:, 1])
        yes = label_probabilities(z, y)[:, 1] > 0.5
        rate = float(np.average(yes, weights=weight[rows.cpu()].numpy()))
    elif on_labels and labels is not None:
        rows = rows & (labels == 1)
    return rule.solve(x[rows], attribute.sens[rows], rate, sample_weight=weight[rows.cpu()])


def _label_free(
    x: Tensor,
    tau: float,
    own: Sequence[Attribute],
    weight: Tensor,
    measures: Sequence[Measure],
    on_labels: bool,
) -> tuple[Tensor, tuple[np.ndarray, ...], list[str]]:
    """Predictions that meet criteria on labels, the weights of the correction, and notes."""
    from fairmp.postprocessing import odds

    used = {measure.attribute for measure in measures}
    parts = [one.membership for one in own if one.name in used]
    membership = torch.cat(parts, 1) if parts else x.new_zeros(len(x), 0)
    found = odds.correct(
        (x / tau).cpu().numpy(),
        x.softmax(1).cpu().numpy(),
        membership.cpu().numpy(),
        weight.cpu().numpy(),
        measures,
        by_prediction=on_labels,
    )
    corrected = tau * torch.from_numpy(found.logits).to(x.device)
    reached = torch.from_numpy(found.reached).to(x.device).unsqueeze(1)
    warning = (
        "no shift of logits was found that meets the targets; the corrected probabilities are the "
        "given ones, mixed between classes by group"
    )
    randomised = on_labels and len(found.weights) == 1
    weights = found.weights if on_labels else ()
    return torch.where(reached, corrected, x), weights, [warning] * randomised


def _missed_decisions(measures: Sequence[Measure], logits: Tensor) -> list[str]:
    """Warnings where the gap of decisions exceeds the target by more than one node."""
    decided = torch.nn.functional.one_hot(logits.argmax(1), logits.size(1)).double()
    return [
        f"{measure.criterion} ({measure.attribute}): nodes with equal scores get the same "
        f"decision, which leaves a gap of {100 * measure.gap(decided):.1f} points"
        for measure in measures
        if measure.gap(decided)
        > measure.target + float(measure.delta.pair_matrix.abs().max()) + ROUNDING
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

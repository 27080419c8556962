"""Correct the predictions of any model without retraining it, and verify every target."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array, hstack
from torch import Tensor

from fairmp.errors import InputError, check_choice, check_integer, check_number
from fairmp.graph import Adjacency, normalise
from fairmp.groups import GroupOperator, is_soft, stack
from fairmp.kernels import softmax
from fairmp.metrics.calibration import label_probabilities
from fairmp.nn import solvers
from fairmp.nn.cuts import ROUNDING
from fairmp.nn.decisions import ON, TIES, On, Ties, close_decision_gap, equal_rates
from fairmp.nn.dual import shift_groups, solve_dual
from fairmp.postprocessing import odds
from fairmp.postprocessing.corrections import (
    CorrectedLogits,
    GroupShift,
    Membership,
    Thresholds,
    Transitions,
)
from fairmp.postprocessing.criteria import (
    Criterion,
    Measure,
    Problem,
    measures_of,
    read_criteria,
    read_problem,
)
from fairmp.postprocessing.effects import summarise
from fairmp.postprocessing.group_estimator import estimate
from fairmp.postprocessing.predictions import (
    Attribute,
    attributes_of_all,
    one_hot,
    read_scores,
)
from fairmp.postprocessing.threshold_mixtures import find_threshold_mixture, strata_of

TOLERANCE = 1e-4  # excess within which a target of probabilities counts as met
COARSE = 0.05  # excess of a gap of decisions that is said, although no node fewer would close it
# Stand for decisions where these have no exact solution: the next one where a target is missed.
SMALL_TEMPERATURES = (0.05, 0.1, 0.2)
MAX_DENSE_MEMBERSHIP = 2**22  # numbers (n×G); more are sparse
# By one threshold per group, for two classes.
EXACT_CRITERIA = ("demographic_parity", "equal_opportunity", "false_positive_rate_parity")


@dataclass(frozen=True)
class Settings:
    """How a problem is solved."""

    on: On = "decisions"  # whose gaps are closed
    temperature: float = 1.0  # τ of the probabilities
    ties: Ties = "random"
    seed: int = 0  # of the random choice among ties
    calibrate: bool = False  # find thresholds for the distribution the nodes are a sample of
    for_other_rows: bool = False  # find a correction that applies to other rows
    graph: Adjacency | None = None  # smooths the predictions over neighbours
    K: int = 5  # propagation steps
    lambda_s: float = 1.0  # strength of the smoothing

    def __post_init__(self) -> None:
        check_choice("on", self.on, ON)
        check_choice("ties", self.ties, TIES)
        hint = "give a number above 0"
        check_number("temperature", self.temperature, hint, low=0, above=True)
        if self.on == "decisions" and self.temperature != 1:
            value = f"{self.temperature:g} is the temperature of probabilities"
            raise InputError("temperature", value, "add {on='probabilities'}, or leave it out")
        check_integer("K", self.K, "give the number of propagation steps, 1 or more")
        check_number("lambda_s", self.lambda_s, "give a number of 0 or more", low=0)


def debias(  # noqa: PLR0913
    scores: Any,
    sens: Any,
    *,
    target: Any = 0.0,
    on: On = "decisions",
    criterion: str | Sequence[str] = "demographic_parity",
    y: Any = None,
    edge_index: Any = None,
    population: Any = None,
    temperature: float = 1.0,
    K: int = 5,
    lambda_s: float = 1.0,
    estimate_sens: bool = False,
    features: Any = None,
    kind: str = "auto",
    class_names: Sequence[str] | None = None,
    ties: Ties = "random",
    seed: int = 0,
    sample_weight: Any = None,
    full_output: bool = False,
) -> Any:
    r"""Find the closest predictions whose gap between groups is at most the target.

    The gap is that of decisions, or with ``on="probabilities"`` that of mean probabilities:

    .. math::
        \min_Q \sum_i \mathrm{KL}(Q_i \| P_i) \quad \text{s.t.} \quad |\Delta Q| \le \text{target}

    For demographic parity the result is a shift of the logits per group. For the other criteria the
    correction depends on the group and the prediction of a node, never on its label. The gap of
    decisions is within ``target`` to one node of the smallest group, or a warning says what is
    left; for criteria on labels it is never larger than before; that of probabilities is within
    ``target`` to 1e-4, or an error says which target can be reached. A node of unknown group is
    left alone.

    Args:
        scores: n×C logits or probabilities, or n probabilities of class 1; a torch tensor, a numpy
            array, or a table or column of pandas, polars or Arrow.
        sens: group of each node (n; −1 unknown), or probabilities of groups (n×G); or several
            attributes, as a dict, a table or a list of such.
        target: the largest gap accepted, 0.02 for two points; or one for each criterion.
        on: close the gap of ``"decisions"`` or of ``"probabilities"``. That of decisions is exact
            for demographic parity, and with two classes for every criterion, by thresholds per
            group that are drawn at random where one is not enough. More classes, several
            attributes, groups given as probabilities and ``ties="keep"`` use small temperatures.
        criterion: ``"demographic_parity"``, ``"equal_opportunity"`` (or
            ``"true_positive_rate_parity"``), ``"false_positive_rate_parity"``,
            ``"equalized_odds"``, or a list of these.
        y: true classes (n): numbers (−1 unknown) or names (empty unknown). Needed for all
            criteria but demographic parity.
        edge_index: a graph (2×E); with it, predictions are also smoothed over neighbours.
        population: nodes whose gap is closed (n, bool); all nodes of known group by default.
        temperature: τ; with ``on="probabilities"`` the gap is that of softmax(logits/τ).
        K: propagation steps, with a graph.
        lambda_s: strength of the smoothing, with a graph.
        estimate_sens: estimate unknown groups, so that these nodes take part, weighted.
        features: inputs of the estimate (n×d), by default the predictions; with a graph the groups
            of the neighbours are inputs as well.
        kind: ``"logits"``, ``"probabilities"`` or ``"auto"``: rows in [0, 1] that sum to 1 are
            probabilities. One-hot rows are ambiguous and refused, unless the kind is given.
        class_names: names of the classes.
        ties: nodes with equal scores at a threshold are split at random (``"random"``) or get the
            same decision (``"keep"``); then no thresholds are drawn.
        seed: of the random choice among ties.
        sample_weight: weight of each node (n), in gaps, rates and the divergence.
        full_output: return a :class:`~fairmp.postprocessing.result.DebiasResult`, which has the
            predictions and what changed.

    Returns:
        Logits for logits and probabilities for probabilities, in the type that was given; float32
        where that is half precision.

    Example:
        >>> import numpy as np
        >>> p = np.array([0.2, 0.4, 0.6, 0.9, 0.55, 0.7])
        >>> fair = debias(p, [0, 0, 0, 1, 1, 1], target=0.1, on="probabilities")
        >>> round(float(fair[3:].mean() - fair[:3].mean()), 4)
        0.1
        >>> print(debias(p, ["f", "f", "f", "m", "m", "m"], target=0.4, full_output=True))
        6 nodes: 1 decision changed (16.7 %)
        <BLANKLINE>
        gap in points       decided before  after  target  ahead  probability before  after ...
        demographic parity            66.7   33.3   40.00      m               31.67  21.40 ...
        impact ratio: 0.33 before, 0.50 after, 95 % interval 0.09 to 1.00
        <BLANKLINE>
        group  nodes     changed   decided 1 %
        f          3   0 (0.0 %)   33.3 → 33.3
        m          3  1 (33.3 %)  100.0 → 66.7
    """
    aligned = {"sens": sens, "y": y, "population": population, "features": features}
    aligned["sample_weight"] = sample_weight
    predictions = read_scores(scores, kind, aligned=aligned)
    criteria = read_criteria(criterion, target)
    problem = read_problem(
        predictions,
        attributes_of_all(sens, len(predictions.logits)),
        y,
        class_names=class_names,
        sample_weight=sample_weight,
        population=population,
    )
    # Demographic parity alone, the common case, stays in the precision it was given in.
    names = [item.name for item in criteria]
    if len(problem.attributes) > 1 or names != ["demographic_parity"]:
        problem = replace(problem, logits=predictions.logits.double())
    graph = _read_graph(edge_index, problem)
    if estimate_sens:
        group_features = predictions.proba if features is None else features
        estimates = (estimate(item, group_features, graph) for item in problem.attributes)
        problem = replace(problem, attributes=tuple(estimates))
    elif features is not None:
        hint = "add {estimate_sens=True}"
        raise InputError("features", "they are used to estimate groups", hint)
    settings = Settings(on, temperature, ties, seed, graph=graph, K=K, lambda_s=lambda_s)
    solution = solve(problem, criteria, settings)
    if full_output:
        return summarise(problem, solution, on=on, temperature=temperature)
    for text in solution.notes + solution.missed:
        warnings.warn(text, stacklevel=2)
    return predictions.like_original(predictions.corrected(solution.logits))


def _read_graph(edge_index: Any, problem: Problem) -> Adjacency | None:
    if edge_index is None:
        return None
    is_tensor = isinstance(edge_index, Tensor)
    edges = edge_index if is_tensor else torch.from_numpy(np.array(edge_index))
    logits = problem.logits
    return normalise(edges.to(logits.device), len(logits), dtype=logits.dtype)


def solve(problem: Problem, criteria: Sequence[Criterion], settings: Settings) -> CorrectedLogits:
    """Correct predictions so that every target is met, or say what is missed."""
    if settings.graph is not None and not settings.lambda_s:
        settings = replace(settings, graph=None)  # one step without smoothing does not touch it
    measures, notes = measures_of(criteria, problem)
    # The projection is for nodes of equal weight, and needs no labels.
    projects = not problem.is_weighted and all(measure.labels is None for measure in measures)
    by_threshold = (
        settings.on == "decisions"
        and len(problem.attributes) == 1
        and len(problem.classes) == 2
        and not is_soft(problem.attributes[0].sens)
    )
    exact = by_threshold and len(criteria) == 1 and criteria[0].name in EXACT_CRITERIA
    if _draws(problem, settings) and not exact:
        return _drawn(problem, criteria, settings)
    if projects and (settings.graph is not None or not exact):
        solution = _by_projection(problem, measures, settings)
    elif exact:
        solution = _by_thresholds(_smoothed(problem, settings), measures, settings)
    else:
        problem, found = _smoothed(problem, settings), None
        if by_threshold and settings.ties == "random":
            found = _by_threshold_mixture(problem, measures, settings)
        solution = found or _by_group_and_prediction(problem, measures, settings)
        if settings.on == "decisions":
            solution = _never_worse(problem, measures, solution)
    if settings.on == "probabilities":
        _check_targets(solution, settings.temperature)
    notes += solution.notes
    if settings.on == "decisions" and not settings.for_other_rows:
        notes += coarse_groups(measures, solution.logits)
        notes += same_decision(problem, solution.logits)
    return replace(solution, notes=notes)


def _draws(problem: Problem, settings: Settings) -> bool:
    """Whether scores are decisions: all nodes tie, and new decisions are drawn at random."""
    scores = problem.scores
    return (
        settings.on == "decisions"
        and settings.ties == "random"
        and settings.graph is None
        and not settings.for_other_rows
        and scores.are_probabilities
        and bool(((scores.values == 0) | (scores.values == 1)).all())
    )


def _drawn(problem: Problem, criteria: Sequence[Criterion], settings: Settings) -> CorrectedLogits:
    """Correct the probabilities of decisions, and draw as many of each class as they say."""
    solution = solve(problem, criteria, replace(settings, on="probabilities"))
    proba = problem.scores.corrected(solution.logits).double().cpu().numpy()
    rng = np.random.default_rng(settings.seed)
    classes = np.empty(len(proba), dtype=np.int64)
    _, kind = np.unique(proba.round(9), axis=0, return_inverse=True)
    for k in range(int(kind.max()) + 1):
        (nodes,) = np.nonzero(kind.reshape(-1) == k)
        # Evenly spread quantiles in random order: the counts are those of the probabilities.
        quantiles = (rng.permutation(len(nodes)) + rng.random()) / len(nodes)
        bounds = proba[nodes[0]].cumsum()[:-1]
        classes[nodes] = np.searchsorted(bounds, quantiles, side="right")
    tiny = torch.finfo(problem.scores.values.dtype).tiny
    one_hot = torch.nn.functional.one_hot(torch.from_numpy(classes), proba.shape[1])
    logits = one_hot.to(problem.scores.values).clamp_min(tiny).log()
    return replace(
        solution,
        logits=logits,
        correction=None,
        drawn=int((proba.max(1) < 1).sum()),
        missed=missed_targets(solution.measures, logits),
    )


def _smoothed(problem: Problem, settings: Settings) -> Problem:
    if settings.graph is None:
        return problem
    with torch.no_grad():
        smooth = solvers.propagate(
            problem.logits, settings.graph, K=settings.K, lambda_s=settings.lambda_s
        )
    return replace(problem, logits=smooth)


def _by_projection(
    problem: Problem, measures: tuple[Measure, ...], settings: Settings
) -> CorrectedLogits:
    """The projection onto all targets, and the decisions that follow from it."""
    # They are the same criterion, for each attribute.
    target, delta = measures[0].target, stack(*(measure.delta for measure in measures))
    x, tau = problem.logits, settings.temperature
    table = x.new_zeros(delta.num_groups, x.size(1), dtype=torch.float64)
    with torch.no_grad():
        if settings.graph is None:
            dual = solve_dual(x, delta, target, tau)
            table = tau * delta.by_group(dual.u)
            projected = shift_groups(x, dual)
        else:
            projected = solvers.projection(
                x,
                settings.graph,
                delta,
                K=settings.K,
                lambda_s=settings.lambda_s,
                target=target,
                temperature=tau,
            ).f
        logits, drawn = projected, 0
        missed: tuple[str, ...] = ()
        if settings.on == "decisions":
            with warnings.catch_warnings():  # of what is missed, by this module's own words
                warnings.simplefilter("ignore", UserWarning)
                closed = close_decision_gap(
                    projected, delta, target, ties=settings.ties, seed=settings.seed
                )
            logits, drawn, table = closed.logits, closed.drawn, table + closed.shift
            missed = missed_targets(measures, logits)
    correction = None
    if settings.for_other_rows:
        correction = _shift_by_group(problem.attributes, delta, table)
    return CorrectedLogits(logits, measures, correction, drawn, missed=missed)


def _shift_by_group(groups: Sequence[Attribute], delta: GroupOperator, table: Tensor) -> GroupShift:
    """The shift of each attribute's groups, from what is subtracted from those of an operator."""
    sizes = [len(attribute.groups) for attribute in groups]
    if len(groups) == 1 or delta.codes is None:
        # The operator has these groups; the last ones may have no node.
        shift = table.new_zeros(sum(sizes), table.size(1))
        shift[: len(table)] = -table
        return GroupShift(shift.cpu().numpy())
    # The operator has their combinations, and the shift of each is a sum over its attributes.
    combinations = table.new_zeros(len(table), sum(sizes))
    known_mask = delta.codes >= 0
    membership = torch.cat([attribute.membership for attribute in groups], 1)
    combinations[delta.codes[known_mask].long()] = membership[known_mask].to(table)
    shift = torch.linalg.pinv(combinations) @ -table
    return GroupShift(shift.cpu().numpy())


def memberships_of(groups: Sequence[Attribute]) -> Membership:
    """Memberships in the groups of all attributes, side by side (n×G)."""
    numbers = sum(len(attribute.sens) * len(attribute.groups) for attribute in groups)
    if numbers <= MAX_DENSE_MEMBERSHIP or any(is_soft(attribute.sens) for attribute in groups):
        return torch.cat([attribute.membership for attribute in groups], 1).cpu().numpy()
    parts = [one_hot(attribute.sens, len(attribute.groups)) for attribute in groups]
    return csr_array(hstack(parts, format="csr"))


def _by_thresholds(
    problem: Problem, measures: tuple[Measure, ...], settings: Settings
) -> CorrectedLogits:
    """One threshold per group: the same rate of all nodes, or of those with one label."""
    (attribute,), x = problem.attributes, problem.logits.double()
    membership = memberships_of(problem.attributes)
    (measure,) = measures
    label = None if measure.labels is None else measure.labels[0]
    rows, weight, rate = problem.population & attribute.known, problem.weight.clone(), None
    calibrates = settings.calibrate and bool((problem.y[rows] >= 0).any())
    if calibrates:
        # Rates from probabilities of the labels vary less than from few labels; and the overall
        # rate is that of calibrated decisions.
        z, y, sens = (part[rows].cpu().numpy() for part in (x, problem.y, attribute.sens))
        if label is not None:
            weight[rows] *= torch.from_numpy(label_probabilities(z, y, sens)[:, label]).to(weight)
        positive = label_probabilities(z, y)[:, 1] > 0.5
        rate = float(np.average(positive, weights=weight[rows].cpu().numpy()))
    elif label is not None:
        rows = rows & (problem.y == label)
    rule = equal_rates(
        (x[:, 1] - x[:, 0])[rows].cpu().numpy(),
        attribute.sens[rows].cpu().numpy(),
        target=measure.target,
        weight=weight[rows].cpu().numpy(),
        rate=rate,
        ties=settings.ties,
        num_groups=len(attribute.groups),
    )
    correction = Thresholds(rule.thresholds, rule.tie_rates)
    corrected = correction.apply(
        x.cpu().numpy(),
        membership,
        seed=settings.seed,
        measured=rows.cpu().numpy(),
    )
    logits = torch.from_numpy(corrected.logits).to(x.device)
    missed: tuple[str, ...] = ()
    # Calibrated, the target is that of expected rates, from which those of few labels differ.
    if not calibrates or rule.gap > measure.target + measure.one_node + ROUNDING:
        missed = missed_targets(measures, logits)
    return CorrectedLogits(logits, measures, correction, corrected.drawn, missed=missed)


def _by_threshold_mixture(
    problem: Problem, measures: tuple[Measure, ...], settings: Settings
) -> CorrectedLogits | None:
    """A few thresholds per group, drawn at random; None where they are not found."""
    (attribute,), x = problem.attributes, problem.logits.double().cpu().numpy()
    group, y = attribute.sens.cpu().numpy(), problem.y.cpu().numpy()
    weight = (problem.population * problem.weight).cpu().numpy()
    groups = len(attribute.groups)
    correction = find_threshold_mixture(measures, x[:, 1] - x[:, 0], group, weight, groups)
    if correction is None:
        return None
    # Nodes of each group and label have the rate that they should, in the population and outside.
    strata = strata_of(group, np.where(problem.population.cpu().numpy(), y + 1, 0))
    membership = memberships_of(problem.attributes)
    corrected = correction.apply(x, membership, seed=settings.seed, strata=strata)
    logits = torch.from_numpy(corrected.logits).to(problem.logits.device)
    missed = missed_targets(measures, logits)
    return CorrectedLogits(logits, measures, correction, corrected.drawn, missed=missed)


def _by_group_and_prediction(
    problem: Problem, measures: tuple[Measure, ...], settings: Settings
) -> CorrectedLogits:
    """Criteria on labels, and weighted nodes; of decisions, by a small temperature."""
    if settings.on == "probabilities":
        return _at_temperature(problem, measures, settings.temperature)
    solutions: list[CorrectedLogits] = []
    for temperature in SMALL_TEMPERATURES:
        solution = _at_temperature(problem, measures, temperature)
        missed = missed_targets(measures, solution.logits)
        solutions.append(replace(solution, missed=missed))
        if not missed:
            break
    return min(solutions, key=lambda solution: _decision_excess(measures, solution.logits))


def _at_temperature(
    problem: Problem, measures: tuple[Measure, ...], temperature: float
) -> CorrectedLogits:
    """The closest probabilities at a temperature whose gaps are within the targets."""
    x = problem.logits.double().cpu().numpy()
    membership = memberships_of(problem.attributes)
    weight = (problem.population * problem.weight).cpu().numpy()
    correction = odds.find_correction(measures, x, membership, weight, temperature=temperature)
    logits = torch.from_numpy(correction.apply(x, membership).logits).to(problem.logits.device)
    notes: tuple[str, ...] = ()
    if isinstance(correction, Transitions):
        notes = (
            "no shift of logits was found that meets the targets; the corrected probabilities are "
            "the given ones, mixed between classes by group",
        )
    return CorrectedLogits(logits, measures, correction, notes=notes)


def _never_worse(
    problem: Problem, measures: tuple[Measure, ...], solution: CorrectedLogits
) -> CorrectedLogits:
    """Leave decisions as they are if they meet the targets, or if their gap is not made smaller."""
    before = _decision_excess(measures, problem.logits)
    if before > ROUNDING and _decision_excess(measures, solution.logits) < before:
        return solution
    groups = sum(len(attribute.groups) for attribute in problem.attributes)
    unchanged = GroupShift(np.zeros((groups, len(problem.classes))))
    missed = missed_targets(measures, problem.logits)
    return CorrectedLogits(problem.logits, measures, unchanged, missed=missed)


def _decision_excess(measures: Sequence[Measure], logits: Tensor) -> float:
    """By how much the worst gap of decisions misses its target."""
    decided = _decided(logits)
    return max(measure.gap(decided) - measure.target for measure in measures)


def _decided(logits: Tensor) -> Tensor:
    """Decisions, one-hot (n×C)."""
    return torch.nn.functional.one_hot(logits.argmax(1), logits.size(1)).double()


def same_decision(problem: Problem, logits: Tensor) -> tuple[str, ...]:
    """A text where the correction gives everybody one class, and the given scores did not."""
    known_mask = torch.stack([attribute.known for attribute in problem.attributes]).any(0)
    inside = problem.population & known_mask
    before, after = (z.argmax(1)[inside].unique() for z in (problem.scores.logits, logits))
    if len(before) == 1 or len(after) != 1:
        return ()
    name = problem.classes[int(after)]
    return (f"everyone is decided {name!r} after the correction; allow a larger target",)


def missed_targets(
    measures: Sequence[Measure], logits: Tensor, *, slack: float = 0.0
) -> tuple[str, ...]:
    """A text for each criterion whose gap of decisions exceeds its target by more than one node.

    And by more than ``slack``.
    """
    decided = _decided(logits)
    gaps: dict[tuple[str, str, float], float] = {}
    for measure in measures:
        gap = measure.gap(decided)
        if gap > measure.target + max(measure.one_node, slack) + ROUNDING:
            key = measure.criterion, measure.attribute, measure.target
            gaps[key] = max(gap, gaps.get(key, 0.0))
    return tuple(
        f"{criterion} ({attribute}): the gap of decisions is {100 * gap:.1f} points, above the "
        f"target of {100 * target:g}"
        for (criterion, attribute, target), gap in gaps.items()
    )


def coarse_groups(measures: Sequence[Measure], logits: Tensor) -> tuple[str, ...]:
    """A text for each criterion on labels whose gap exceeds its target by much, but under one node.

    How few nodes of a group have a label is seen nowhere else.
    """
    decided = _decided(logits)
    texts = {}
    for measure in measures:
        gap = measure.gap(decided) if measure.labels is not None else 0.0
        if COARSE < gap - measure.target <= measure.one_node + ROUNDING:
            texts[measure.criterion, measure.attribute] = (
                f"{measure.criterion} ({measure.attribute}): the gap of decisions is "
                f"{100 * gap:.1f} points, above the target of {100 * measure.target:g}; one node "
                f"of the smallest group is {100 * measure.one_node:.1f} points"
            )
    return tuple(texts.values())


def missed_probability_targets(
    measures: Sequence[Measure], logits: Tensor, temperature: float
) -> tuple[str, ...]:
    """A text for each gap of probabilities that is above its target."""
    return tuple(
        f"{measure.criterion} ({measure.attribute}): the gap of probabilities is "
        f"{gap:.4g}, above the target of {measure.target:g}"
        for measure, gap in _missed_probabilities(measures, logits, temperature)
    )


def _check_targets(solution: CorrectedLogits, temperature: float) -> None:
    """Raise if a gap of probabilities is above its target."""
    for measure, gap in _missed_probabilities(solution.measures, solution.logits, temperature):
        name = f"{measure.criterion} ({measure.attribute})"
        value = f"{measure.target:g} for {name} could not be reached"
        hint = "relax the target, leave a criterion out, or use a larger temperature"
        raise InputError("target", f"{value}, the smallest gap found is {gap:.4g}", hint)


def _missed_probabilities(
    measures: Sequence[Measure], logits: Tensor, temperature: float
) -> Iterator[tuple[Measure, float]]:
    """The measures whose gap of probabilities is above their target, and the gap."""
    q = softmax(logits.double() / temperature)
    for measure in measures:
        gap = measure.gap(q)
        if gap > measure.target + TOLERANCE:
            yield measure, gap

"""Correct the predictions of any model without retraining it, and verify every target."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from math import nan
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fairmp.errors import InputError, check_integer, check_number
from fairmp.graph import normalise
from fairmp.groups import GroupOperator, is_soft, stack
from fairmp.kernels import softmax
from fairmp.metrics import counts
from fairmp.metrics.calibration import label_probabilities
from fairmp.nn import solvers
from fairmp.nn.decisions import close_decision_gap
from fairmp.nn.dual import shift_groups, solve_dual
from fairmp.nn.fmp import Temperature
from fairmp.postprocessing import criteria
from fairmp.postprocessing.criteria import Criterion, Measure, Solution, read_problem
from fairmp.postprocessing.group_estimator import estimate
from fairmp.postprocessing.predictions import Attribute, attributes, read
from fairmp.postprocessing.result import DebiasResult, GroupChange, GroupUncertainty
from fairmp.postprocessing.thresholds import GroupThresholds

TOLERANCE = 1e-4  # excess within which a target counts as met
ROUNDING = 1e-9  # of a gap
CERTAIN = 1e-9  # distance from 1 of probabilities that stand for decisions
MIN_TARGET = 1e-6  # stands for a target of 0 next to larger ones
EXACT_DECISIONS = ("demographic_parity", "equal_opportunity")  # by one threshold per group


def debias(
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
    full_output: bool = False,
) -> Any:
    r"""Find the closest predictions whose gap between groups is at most the target.

    .. math::
        \min_Q \sum_i \mathrm{KL}(Q_i \| P_i) \quad \text{s.t.} \quad |\Delta Q| \le \text{target}

    For demographic parity and a matrix the result is a shift of the logits per group. For equal
    opportunity and equalized odds the correction depends on the group and the prediction of a node,
    never on its label. The gap of the probabilities is within ``target`` to 1e-4 where it is
    measured, or an error says which target can be reached. A node of unknown group is left alone.

    Args:
        predictions: n×C logits or probabilities, or n probabilities of class 1; a torch tensor, a
            numpy array, or a pandas DataFrame or Series.
        sens: group of each node (n; −1 unknown), or probabilities of groups (n×G); or several
            attributes, as a dict, a DataFrame or a list of such.
        target: the largest gap accepted, 0.02 for two points; or one for each criterion.
        edge_index: a graph (2×E); with it, predictions are also smoothed over neighbours.
        population: nodes whose gap is closed (n, bool); all nodes of known group by default.
        temperature: τ; small, such as 0.1, to close the gap of decisions rather than probabilities;
            ``"decisions"`` closes that of decisions themselves, for demographic parity, and for
            equal opportunity of two classes.
        K: propagation steps, with a graph.
        lambda_s: strength of the smoothing, with a graph.
        criterion: ``"demographic_parity"``, ``"equal_opportunity"`` (or
            ``"true_positive_rate_parity"``), ``"equalized_odds"``, a matrix Δ of your own (rows×n,
            :math:`|\Delta Q| \le` target), or a list of these.
        labels: true classes (n): numbers (−1 unknown) or names (empty unknown). Needed for equal
            opportunity and equalized odds.
        estimate_sens: estimate unknown groups, so that these nodes take part, weighted.
        features: inputs of the estimate (n×d), by default the predictions; with a graph the groups
            of the neighbours are inputs as well.
        kind: ``"logits"``, ``"probabilities"`` or ``"auto"``: rows in [0, 1] that sum to 1 are
            probabilities. One-hot rows are ambiguous and refused, unless the kind is given.
        class_names: names of the classes.
        ties: with ``temperature="decisions"`` and two classes, nodes with equal scores at a
            threshold are split at random (``"random"``) or get the same decision (``"keep"``).
        seed: of the random choice among ties.
        sample_weight: weight of each node (n), in gaps, rates and the divergence.
        full_output: return a :class:`~fairmp.postprocessing.result.DebiasResult`, which has the
            predictions and what changed.

    Returns:
        Logits for logits and probabilities for probabilities, in the type that was given.

    Example:
        >>> import numpy as np
        >>> p = np.array([0.2, 0.4, 0.6, 0.9, 0.55, 0.3])
        >>> fair = debias(p, [0, 0, 0, 1, 1, 1], target=0.1)
        >>> round(float(fair[3:].mean() - fair[:3].mean()), 4)
        0.1
        >>> print(debias(p, ["f", "f", "f", "m", "m", "m"], target=0.05, full_output=True))
        6 nodes: 1 decision changed (16.7 %)
        <BLANKLINE>
        gap in points       target  before  after  decided before  after  nodes
        demographic parity    5.00   18.33   5.00            33.3    0.0      6
        <BLANKLINE>
        group  nodes     changed   decided 1 %
        f          3   0 (0.0 %)   33.3 → 33.3
        m          3  1 (33.3 %)   66.7 → 33.3
    """
    given = read(
        predictions, kind, sens=sens, labels=labels, population=population, features=features,
        sample_weight=sample_weight,
    )  # fmt: skip
    n, device = len(given.logits), given.logits.device
    wanted = criteria.read(criterion, target, n)
    check_integer("K", K, "give the number of propagation steps, 1 or more")
    check_number("lambda_s", lambda_s, "give a number of 0 or more", low=0)
    if sample_weight is not None and any(one.matrix is not None for one in wanted):
        raise InputError("sample_weight", "a matrix has weights of its own", "omit them")
    own = attributes(sens, n)
    problem = read_problem(given, own, labels, class_names, sample_weight, population)
    # Demographic parity alone, the common case, stays in the precision it was given in.
    if len(own) != 1 or [one.name for one in wanted] != ["demographic_parity"]:
        problem = replace(problem, logits=given.logits.double())
    graph = None
    if edge_index is not None:
        given_as_tensor = isinstance(edge_index, Tensor)
        edges = edge_index if given_as_tensor else torch.from_numpy(np.array(edge_index))
        graph = normalise(edges.to(device), n, dtype=problem.logits.dtype)
    if estimate_sens:
        inputs = given.proba if features is None else features
        estimates = (estimate(one, inputs, graph) for one in problem.attributes)
        problem = replace(problem, attributes=tuple(estimates))
    elif features is not None:
        raise InputError("features", "they are used to estimate groups", "add estimate_sens=True")
    smoothed = graph is not None and lambda_s > 0
    smoothing: Any = {"graph": graph, "K": K, "lambda_s": lambda_s} if smoothed else {}
    solution = solve(problem, wanted, temperature, ties=ties, seed=seed, **smoothing)
    if full_output:
        return summarise(solution)
    for text in solution.warnings + solution.missed:
        warnings.warn(text, stacklevel=2)
    return given.like(given.corrected(solution.logits))


def solve(
    problem: Solution,
    wanted: Sequence[Criterion],
    temperature: Temperature,
    *,
    graph: Any = None,
    K: int = 1,
    lambda_s: float = 0.0,
    ties: Literal["random", "keep"] = "random",
    seed: int = 0,
    calibrate: bool = False,
) -> Solution:
    """Correct predictions so that every target is met to 1e-4, or raise; see :func:`debias`."""
    # With calibrate, thresholds are found for the distribution the nodes are a sample of. One step
    # without smoothing does not touch the graph.
    decisions, own, classes = temperature == "decisions", problem.attributes, len(problem.classes)
    if not decisions:
        hint = "give a number above 0, or 'decisions'"
        tau = check_number("temperature", temperature, hint, low=0, above=True)
        problem = replace(problem, temperature=tau)
    if not own and any(one.matrix is None for one in wanted):
        raise InputError("sens", "missing", "give the group of each node, -1 where unknown")
    measures, notes = criteria.measures(wanted, problem)
    criteria.check_feasible(measures, classes)
    problem = replace(problem, measures=tuple(measures), warnings=tuple(notes))
    exact = len(wanted) == len(own) == 1 and wanted[0].name in EXACT_DECISIONS and classes == 2
    if decisions and exact and graph is None and not is_soft(own[0].sens):
        rule = GroupThresholds(wanted[0].target, ties=ties, seed=seed, kind="logits")
        return _by_thresholds(problem, rule, calibrate)
    # The projection needs rows that sum to 0, over nodes of equal weight.
    unbalanced = any(
        m.own and bool((m.delta.matrix.sum(1).abs() > 1e-9 * m.unit).any()) for m in measures
    )
    if not (problem.on_labels or unbalanced or problem.weighted):
        return _by_projection(problem, graph, decisions, K=K, lambda_s=lambda_s)
    if decisions:
        value = "'decisions' needs parity, or equal opportunity of two classes and known groups"
        raise InputError("temperature", value, "give a number, such as 0.1")
    if graph is not None:
        with torch.no_grad():
            smooth = solvers.propagate(problem.logits, graph, K=K, lambda_s=lambda_s)
        problem = replace(problem, logits=smooth)
    return _by_group_and_prediction(problem)


def _by_projection(problem: Solution, graph: Any, decisions: bool, **steps: Any) -> Solution:
    """The projection onto all targets, of probabilities or decisions."""
    measures, x, tau = problem.measures, problem.logits, problem.temperature
    delta, target = measures[0].delta, max(measure.target for measure in measures)
    if len(measures) > 1:
        parts = []
        for one in measures:
            # |ΔQ| ≤ t is |(target/t)ΔQ| ≤ target.
            scale = 1.0 if one.target == target else target / max(one.target, MIN_TARGET)
            codes, rows = one.delta.codes, one.delta.rows * scale
            member = one.delta.membership.to(x.dtype) if codes is None else None
            rest: Any = {"codes": codes, "blocks": one.delta.blocks, "dtype": x.dtype}
            parts.append(GroupOperator(member, problem.population, rows, **rest))
        delta = stack(*parts)
    with torch.no_grad():
        if graph is None:
            logits = shift_groups(x, solve_dual(x, delta, target, tau))
        else:
            logits = solvers.projection(x, graph, delta, target=target, temperature=tau, **steps).f
        if not decisions:
            return _verified(replace(problem, logits=logits))
        logits = close_decision_gap(logits, delta, target).logits
    return replace(problem, logits=logits, missed=_missed_decisions(measures, logits))


def _by_thresholds(problem: Solution, rule: GroupThresholds, calibrate: bool) -> Solution:
    """One threshold per group: the same rate of all nodes, or with labels of those of class 1."""
    (attribute,), labels, x = problem.attributes, problem.labels, problem.logits
    rows, rate = problem.population & attribute.known, None
    weight = problem.weight.clone()
    if calibrate and bool((labels[rows] >= 0).any()):
        # True positive rates from probabilities of the labels vary less than from few labels; and
        # the overall rate is that of calibrated decisions.
        parts = (x.double(), labels, attribute.sens)
        z, y, group = (part[rows].cpu().numpy() for part in parts)
        if problem.on_labels:
            weight[rows] *= torch.from_numpy(label_probabilities(z, y, group)[:, 1]).to(weight)
        yes = label_probabilities(z, y)[:, 1] > 0.5
        rate = float(np.average(yes, weights=weight[rows].cpu().numpy()))
    elif problem.on_labels:
        rows = rows & (labels == 1)
    rule = rule.solve(x[rows], attribute.sens[rows], rate, sample_weight=weight[rows])
    logits, drawn = rule.correct(x, attribute.sens)
    missed = _missed_decisions(problem.measures, logits) if rule.excess_ > ROUNDING else ()
    return replace(problem, logits=logits, drawn=drawn, rule=rule, missed=missed)


def _by_group_and_prediction(problem: Solution) -> Solution:
    """Predictions that meet criteria on labels, or any matrix."""
    from fairmp.postprocessing import odds

    x, tau, inside = problem.logits.double(), problem.temperature, problem.population
    used = {measure.attribute for measure in problem.measures}
    parts = [one.membership for one in problem.attributes if one.name in used]
    membership = torch.cat(parts, 1) if parts else x.new_zeros(len(x), 0)
    parts = [x / tau, x.softmax(1), membership, inside * problem.weight]
    arrays = [part.cpu().numpy() for part in parts]
    found, reached, weights = odds.correct(problem.measures, problem.on_labels, *arrays)
    corrected = tau * torch.from_numpy(found).to(x.device)
    where = torch.from_numpy(reached).to(x.device).unsqueeze(1)
    solution = replace(problem, logits=torch.where(where, corrected, x))
    if problem.on_labels:
        solution = replace(solution, weights=weights)
        if len(weights) == 1:
            warning = (
                "no shift of logits was found that meets the targets; the corrected probabilities "
                "are the given ones, mixed between classes by group"
            )
            solution = replace(solution, warnings=(*solution.warnings, warning))
    return _verified(solution)


def _missed_decisions(measures: Sequence[Measure], logits: Tensor) -> tuple[str, ...]:
    """Warnings where the gap of decisions exceeds the target by more than one node."""
    decided = torch.nn.functional.one_hot(logits.argmax(1), logits.size(1)).double()
    return tuple(
        f"{measure.criterion} ({measure.attribute}): nodes with equal scores get the same "
        f"decision, which leaves a gap of {100 * measure.gap(decided):.1f} points"
        for measure in measures
        if measure.gap(decided)
        > measure.target + float(measure.delta.pair_matrix.abs().max()) + ROUNDING
    )


def _verified(solution: Solution) -> Solution:
    q = softmax(solution.logits.double() / solution.temperature)
    for measure in solution.measures:
        gap = measure.gap(q)
        if gap > measure.target + TOLERANCE * measure.unit:
            which = f"{measure.target:g} for {measure.criterion} ({measure.attribute})"
            value = f"{which} could not be reached, the smallest gap found is {gap:.4g}"
            hint = "relax the target, leave a criterion out, or use a larger temperature"
            raise InputError("target", value, hint)
    return solution


def summarise(solution: Solution) -> DebiasResult:
    """Measure the effect of a correction."""
    given, inside, labels = solution.given, solution.population, solution.labels
    values = given.corrected(solution.logits)
    after = values if given.probabilities else values.softmax(1)
    proba = [given.proba.double(), after.double()]
    chosen = [p.argmax(1) for p in proba]
    changed = chosen[0] != chosen[1]
    labelled = inside & (labels >= 0)
    rows = solution.weight * labelled / solution.weight[labelled].sum()
    accuracy = [float((choice == labels).double() @ rows) for choice in chosen]
    log_ratio = proba[1].clamp_min(1e-300).log() - proba[0].clamp_min(1e-300).log()
    one = torch.eye(len(solution.classes), dtype=torch.float64, device=inside.device)
    decided = [one[choice] for choice in chosen]
    # Gaps are measured before and after, of probabilities and of decisions.
    versions = [
        *((z.double() / solution.temperature).softmax(1) for z in (given.logits, solution.logits)),
        *decided,
    ]
    notes = solution.warnings + solution.missed
    if solution.rule is None and float((proba[0].amax(1) > 1 - CERTAIN).double().mean()) > 0.5:
        draw = "draw decisions from the corrected probabilities"
        text = f"most predictions are 0 or 1 and can only be equalised by chance: {draw}"
        notes = (*notes, text)
    requested = {measure.criterion for measure in solution.measures}
    rest = [Criterion(name, nan) for name in criteria.NAMES if name not in requested]
    others, _ = criteria.measures(rest, solution, strict=False)
    return DebiasResult(
        predictions=given.like(values),
        classes=solution.classes,
        nodes=int(inside.sum()),
        changed=int((changed & inside).sum()),
        changed_outside=int((changed & ~inside).sum()),
        divergence=max(float((proba[1] * log_ratio).sum(1)[inside].mean()), 0.0),
        labelled=int(labelled.sum()),
        accuracy_before=accuracy[0],
        accuracy_after=accuracy[1],
        criteria=criteria.measured(solution, solution.measures, versions, estimates=True),
        groups=_group_changes(solution, [*decided, *proba], chosen),
        others=criteria.measured(solution, others, versions, estimates=False),
        group_uncertainty=_uncertainty(solution.attributes, inside),
        warnings=notes,
        drawn=solution.drawn,
    )


def _group_changes(
    solution: Solution, versions: Sequence[Tensor], chosen: Sequence[Tensor]
) -> tuple[GroupChange, ...]:
    """Decisions and rates of each group, and of the nodes of unknown group if there are any."""
    inside, classes = solution.population, len(solution.classes)
    rows = []
    for attribute in solution.attributes:
        names = [*attribute.groups, "unknown"]
        codes = torch.where(attribute.known, attribute.hard, len(attribute.groups))
        weights = torch.cat([attribute.membership, ~attribute.known.unsqueeze(1)], 1)
        weights = weights * (inside * solution.weight).unsqueeze(1)
        total = weights.sum(0).unsqueeze(1)
        means = [torch.where(total > 0, weights.T @ p / total, nan).tolist() for p in versions]
        parts = (solution.weight, codes, solution.labels, *chosen)
        weight, group, label, before, after = (part[inside].cpu().numpy() for part in parts)
        shape = (label, group, classes, len(names))
        changed = np.bincount(group[before != after], minlength=len(names)).tolist()
        nodes = np.bincount(group, minlength=len(names)).tolist()
        by_kind = {}
        if (label >= 0).any():
            by_kind["labelled"] = counts.count(before, *shape)[:, :-1].sum(2)
            for when, decided in (("before", before), ("after", after)):
                table = counts.count(decided, *shape, weight)
                _, by_kind[f"tpr_{when}"], by_kind[f"fpr_{when}"] = counts.group_rates(table)
        for g, name in enumerate(names):
            if not nodes[g] and not float(total[g]):
                continue
            shares = [tuple(mean[g]) for mean in means]
            rates: Any = {kind: tuple(values[g].tolist()) for kind, values in by_kind.items()}
            rows.append(GroupChange(attribute.name, name, nodes[g], changed[g], *shares, **rates))
    return tuple(rows)


def _uncertainty(
    attributes: Sequence[Attribute], population: Tensor
) -> tuple[GroupUncertainty, ...]:
    """How much of each attribute is estimated or unknown, where any is."""
    found = []
    for attribute in attributes:
        inside = attribute.estimated & population
        left_out = int((population & ~attribute.known).sum())
        if not left_out and not bool(inside.any()):
            continue
        weights = attribute.membership * population.unsqueeze(1)
        part, total = weights[inside].sum(0), weights.sum(0)
        share = float(part.sum() / total.sum().clamp_min(1e-300))
        shares = (part / total.clamp_min(1e-300)).tolist()
        by_group = dict(zip(attribute.groups, shares, strict=True))
        quality = (attribute.accuracy, attribute.baseline)
        row = (attribute.name, int(inside.sum()), share, by_group, left_out, *quality)
        found.append(GroupUncertainty(*row))
    return tuple(found)

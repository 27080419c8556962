"""Accuracy, AUC, F1, ΔDP, ΔEO and equalized odds, as fractions; nan where undefined."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from fairmp.display import Displayed
from fairmp.errors import InputError, check_choice
from fairmp.metrics import counts
from fairmp.metrics.counts import Array, as_array, boolean_mask, integers, weights

METRICS = ("accuracy", "auc", "f1", "dp", "eo", "odds")
TITLES = dict(zip(METRICS, ("accuracy", "AUC", "F1", "ΔDP", "ΔEO", "Δodds"), strict=True))
CRITERIA = {"demographic_parity": "dp", "equal_opportunity": "eo", "equalized_odds": "odds"}
"""Key of each criterion's gap."""
ALIASES = {key: name for name, key in CRITERIA.items()} | {
    "true_positive_rate_parity": "equal_opportunity",
    "equalised_odds": "equalized_odds",
}
SCORE_BINS = 10
AUC_BINS = 1000  # of scores, for its bootstrap


def canonical(name: str) -> str:
    """The name of a criterion, from any of its spellings."""
    key = name.strip().lower().replace("-", "_").replace(" ", "_")
    return check_choice("criterion", ALIASES.get(key, key), list(CRITERIA))


@dataclass(frozen=True)
class GroupRow:
    """Rates of one group, by class."""

    name: str
    count: int
    labelled: int
    accuracy: float
    rates: tuple[float, ...]  # P(ŷ=c | s), over all its nodes
    tprs: tuple[float, ...]  # P(ŷ=c | y=c, s), over the labelled ones
    fprs: tuple[float, ...]  # P(ŷ=c | y≠c, s)
    score_counts: tuple[int, ...] = ()  # nodes by probability of class 1 (of ŷ for more), ten bins

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> GroupRow:
        """Read a row of :meth:`Evaluation.to_dict`."""
        return cls(**{field.name: from_json(record[field.name]) for field in fields(cls)})

    @property
    def positive_rate(self) -> float:
        """P(ŷ=1 | s) for two classes; ``nan`` for more, see ``rates``."""
        return self.rates[1] if len(self.rates) == 2 else math.nan

    @property
    def tpr(self) -> float:
        """P(ŷ=1 | y=1, s) for two classes; the mean recall for more."""
        return self.tprs[1] if len(self.tprs) == 2 else _mean(self.tprs)

    @property
    def fpr(self) -> float:
        """P(ŷ=1 | y=0, s) for two classes; the mean over the classes for more."""
        return self.fprs[1] if len(self.fprs) == 2 else _mean(self.fprs)


@dataclass(frozen=True)
class Evaluation(Displayed, renderer="fairmp.report.evaluations"):
    """Result of :func:`evaluate`: figures as fractions, their intervals, and rates by group.

    ``print`` shows it in points (hundredths), and ``plot`` the decisions by group.
    """

    n: int
    accuracy: float
    auc: float
    f1: float
    dp: float
    eo: float
    odds: float
    intervals: dict[str, tuple[float, float]]
    groups: tuple[GroupRow, ...]
    class_names: tuple[str, ...]
    confidence: float = 0.95
    notes: tuple[str, ...] = ()
    mode: str | None = None  # set by the caller: how fair predictions were made

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain JSON values, with ``None`` for nan."""
        result = asdict(self)
        for row, group in zip(result["groups"], self.groups, strict=True):
            row.update(positive_rate=group.positive_rate, tpr=group.tpr, fpr=group.fpr)
        return dict(json_safe(result))

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Evaluation:
        """Read what :meth:`to_dict` wrote."""
        values = {field.name: from_json(record[field.name]) for field in fields(cls)}
        values["groups"] = tuple(map(GroupRow.from_dict, record["groups"]))
        values["mode"] = record["mode"]
        return cls(**values)


@dataclass(frozen=True)
class _Sample:
    """The nodes that are measured."""

    scores: np.ndarray
    labels: np.ndarray
    groups: np.ndarray
    weights: np.ndarray
    class_names: tuple[str, ...]
    group_names: tuple[str, ...]

    def counts(self, weight: np.ndarray | None = None) -> np.ndarray:
        """Nodes, or their weights, by group × label × decision."""
        decisions = self.scores.argmax(1)
        classes, groups = len(self.class_names), len(self.group_names)
        return counts.count(decisions, self.labels, self.groups, classes, groups, weight)


def evaluate(  # noqa: PLR0913
    scores: Array,
    y: Array,
    sens: Array,
    *,
    mask: Array | None = None,
    sample_weight: Array | None = None,
    class_names: Sequence[str] | None = None,
    group_names: Sequence[str] | None = None,
    bootstrap: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
) -> Evaluation:
    """Measure predictions and their gaps between groups.

    The decision ŷ is the class with the largest score. With C classes,

    - ``dp   = max_c range_s P(ŷ=c | s)`` over all nodes of known group, labelled or not;
    - ``eo   = range_s P(ŷ=1 | y=1, s)`` for C = 2, ``max_c range_s P(ŷ=c | y=c, s)`` for more;
    - ``odds = max_c max(range_s P(ŷ=c | y=c, s), range_s P(ŷ=c | y≠c, s))``,

    where ``range_s`` is the largest minus the smallest over the groups that have such nodes. A
    class with fewer than two such groups is left out, and a note says so; with no class left the
    gap is nan. Accuracy, F1 and AUC are over all labelled nodes: of class 1 for C = 2, the mean of
    one class versus the rest for more.

    In small samples a measured gap is too large on average. The intervals of gaps account for that
    (:func:`~fairmp.metrics.counts.gap_interval`) and always contain the estimate. The other
    intervals are percentiles of a bootstrap over nodes; AUC has one for two classes only.

    Args:
        scores: n×C logits or probabilities.
        y: Labels, −1 for unknown.
        sens: Groups, −1 for unknown.
        mask: The nodes to measure, all by default.
        sample_weight: Weight of each node in every figure; intervals use the effective sample size.
        class_names: Names for the table.
        group_names: Names for the table and the notes.
        bootstrap: Number of resamples; 0 for no intervals at all.
        confidence: Coverage of the intervals.
        seed: Seed of the bootstrap.

    Example:
        >>> scores = np.array([[0.2, 0.8], [0.9, 0.1], [0.3, 0.7], [0.6, 0.4]])
        >>> result = evaluate(scores, [1, 0, 1, 1], [0, 0, 1, 1], bootstrap=0)
        >>> result.accuracy, result.dp, result.eo
        (0.75, 0.0, 0.5)
    """
    if bootstrap < 0 or not 0 < confidence < 1:
        hint = "give a coverage inside (0, 1) and 0 or more resamples"
        raise InputError("confidence", f"{confidence} with bootstrap={bootstrap}", hint)
    sample = _check(scores, y, sens, mask, sample_weight, class_names, group_names)
    nodes = sample.counts()
    _require_two_groups(nodes, sample.group_names)
    table = sample.counts(sample.weights)
    labelled = sample.labels >= 0
    by_score = counts.score_tables(
        sample.scores[labelled], sample.labels[labelled], sample.weights[labelled]
    )
    figures = counts.gaps(table)
    figures |= {key: float(value) for key, value in counts.accuracy_and_f1(table).items()}
    figures["auc"] = _mean([float(counts.auc(t)) for t in by_score])
    rows = _group_rows(sample, nodes, table)
    intervals = {}
    if bootstrap:
        intervals = _intervals(sample, table, by_score, figures, confidence, bootstrap, seed)
    return Evaluation(
        n=len(sample.labels),
        accuracy=figures["accuracy"],
        auc=figures["auc"],
        f1=figures["f1"],
        dp=figures["dp"],
        eo=figures["eo"],
        odds=figures["odds"],
        intervals=intervals,
        groups=rows,
        class_names=sample.class_names,
        confidence=confidence,
        notes=_notes(rows, sample.class_names, nodes, figures),
    )


def accuracy(pred: Array, y: Array, *, sample_weight: Array | None = None) -> float:
    """P(ŷ = y) over the labelled nodes, ``nan`` if there are none.

    Example:
        >>> accuracy([1, 0, 1], [1, 1, -1])
        0.5
    """
    decision = integers(pred, "pred", None)
    label = integers(y, "y", len(decision))
    weight = weights(sample_weight, len(label)) * (label >= 0)
    return float(counts.ratio(((decision == label) * weight).sum(), weight.sum()))


def demographic_parity(pred: Array, sens: Array, *, sample_weight: Array | None = None) -> float:
    """``max_c range_s P(ŷ=c | s)`` over the nodes whose group is known.

    Example:
        >>> demographic_parity([1, 1, 0, 1], [0, 0, 1, 1])
        0.5
    """
    return _gap("dp", pred, None, sens, None, sample_weight)


def equal_opportunity(
    pred: Array,
    y: Array,
    sens: Array,
    *,
    classes: int | None = None,
    sample_weight: Array | None = None,
) -> float:
    """``range_s P(ŷ=1 | y=1, s)``; for more than two classes the largest such gap of a class.

    ``classes`` defaults to those seen in ``pred`` and ``y``, two at least.

    Example:
        >>> equal_opportunity([1, 1, 0, 1], [1, 1, 1, 1], [0, 0, 1, 1])
        0.5
    """
    return _gap("eo", pred, y, sens, classes, sample_weight)


def equalized_odds(
    pred: Array,
    y: Array,
    sens: Array,
    *,
    classes: int | None = None,
    sample_weight: Array | None = None,
) -> float:
    """``max_c max(range_s P(ŷ=c | y=c, s), range_s P(ŷ=c | y≠c, s))``.

    Example:
        >>> equalized_odds([1, 0, 1, 1], [1, 0, 1, 0], [0, 0, 1, 1])
        1.0
    """
    return _gap("odds", pred, y, sens, classes, sample_weight)


def json_safe(value: Any) -> Any:
    """Plain JSON values, with ``None`` for nan and dicts for named tuples."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {key: json_safe(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_safe(item) for item in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def from_json(value: Any) -> Any:
    """Undo :func:`json_safe`: nan for ``None``, and tuples for lists."""
    if isinstance(value, dict):
        return {key: from_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return tuple(map(from_json, value))
    return math.nan if value is None else value


def _check(
    scores: Array,
    y: Array,
    sens: Array,
    mask: Array | None,
    sample_weight: Array | None,
    class_names: Sequence[str] | None,
    group_names: Sequence[str] | None,
) -> _Sample:
    """The arguments of :func:`evaluate`, checked and restricted to the mask."""
    values = as_array(scores, "scores").astype(float)
    if values.ndim != 2 or values.shape[1] < 2:
        raise InputError("scores", f"shape {values.shape} is not n×C", "give one column per class")
    n, classes = values.shape
    keep = boolean_mask(mask, n)
    if not np.isfinite(values[keep]).all():
        raise InputError("scores", "some are nan or infinite", "check that training converged")
    labels = integers(y, "y", n, classes, "one column of scores per class")
    limit = None if group_names is None else len(group_names)
    groups = integers(sens, "sens", n, limit, "one name per group")
    if group_names is None:
        group_names = [str(g) for g in range(int(groups.max(initial=-1)) + 1)]
    if class_names is None:
        class_names = [str(c) for c in range(classes)]
    if len(class_names) != classes:
        raise InputError("class_names", f"{len(class_names)} names for {classes} columns of scores")
    weight = weights(sample_weight, n)
    return _Sample(
        scores=values[keep],
        labels=labels[keep],
        groups=groups[keep],
        weights=weight[keep],
        class_names=tuple(class_names),
        group_names=tuple(group_names),
    )


def _require_two_groups(table: np.ndarray, names: Sequence[str]) -> None:
    present = [name for name, nodes in zip(names, table, strict=False) if nodes.any()]
    if len(present) < 2:
        value = f"only group '{present[0]}'" if present else "no known group"
        raise InputError("sens", f"{value} among the nodes measured", "a gap needs two groups")


def _gap(
    key: str, pred: Array, y: Array | None, sens: Array, classes: int | None, weight: Array | None
) -> float:
    decision = integers(pred, "pred", None)
    n = len(decision)
    label = integers([-1] * n if y is None else y, "y", n)
    group = integers(sens, "sens", n)
    seen = 1 + int(max(decision.max(initial=1), label.max(initial=1)))
    if classes is not None and classes < seen:
        value = f"{classes} with a class {seen - 1} in pred or y"
        raise InputError("classes", value, f"give {seen}")
    groups = int(group.max(initial=-1)) + 1
    table = counts.count(decision, label, group, classes or seen, groups, weights(weight, n))
    _require_two_groups(table, [str(g) for g in range(groups)])
    return counts.gaps(table)[key]


def _intervals(
    sample: _Sample,
    table: np.ndarray,
    by_score: Sequence[np.ndarray],
    figures: dict[str, float],
    confidence: float,
    resamples: int,
    seed: int,
) -> dict[str, tuple[float, float]]:
    rng = np.random.default_rng(seed)
    squares = sample.counts(sample.weights**2)
    total = sample.weights.sum()
    scale = float(counts.effective_size(total, squares.sum()) / total)
    samples = counts.bootstrap(scale * table, counts.accuracy_and_f1, resamples, rng)
    if len(sample.class_names) == 2:
        binned = scale * counts.coarse(by_score[0], AUC_BINS)
        samples |= counts.bootstrap(binned, lambda t: {"auc": counts.auc(t)}, resamples, rng)
    intervals = {
        key: counts.percentiles(samples.get(key), figures[key], confidence)
        for key in ("accuracy", "auc", "f1")
    }
    return intervals | counts.gap_intervals(table, confidence, squares)


def _group_rows(sample: _Sample, nodes: np.ndarray, table: np.ndarray) -> tuple[GroupRow, ...]:
    """Rates of each group from a weighted table, with counts of nodes."""
    rates, tprs, fprs = counts.group_rates(table)
    score_counts = _score_counts(sample)
    rows = []
    for g, name in enumerate(sample.group_names):
        confusion = table[g, :-1]
        row = GroupRow(
            name=name,
            count=int(nodes[g].sum()),
            labelled=int(nodes[g, :-1].sum()),
            accuracy=float(counts.ratio(np.trace(confusion), confusion.sum())),
            rates=tuple(rates[g].tolist()),
            tprs=tuple(tprs[g].tolist()),
            fprs=tuple(fprs[g].tolist()),
            score_counts=tuple(score_counts[g].tolist()),
        )
        rows.append(row)
    return tuple(rows)


def _score_counts(sample: _Sample) -> np.ndarray:
    """Count the nodes of each group by probability of class 1, or of ŷ for more classes."""
    values, groups = sample.scores, len(sample.group_names)
    if not counts.look_like_probabilities(values):
        values = np.exp(values - values.max(1, keepdims=True))
    top = values[:, 1] if values.shape[1] == 2 else values.max(1)
    place = np.minimum(SCORE_BINS * top / values.sum(1), SCORE_BINS - 1).astype(np.int64)
    index = np.where(sample.groups < 0, groups, sample.groups) * SCORE_BINS + place
    return np.bincount(index, minlength=(groups + 1) * SCORE_BINS).reshape(-1, SCORE_BINS)


def _notes(
    rows: Sequence[GroupRow],
    class_names: Sequence[str],
    nodes: np.ndarray,
    figures: dict[str, float],
) -> tuple[str, ...]:
    """What cannot be estimated, and why."""
    absent = nodes[:, :-1].sum((0, 2)) == 0
    notes = [note for row in rows for note in _group_notes(row, class_names, absent)]
    if absent.all():
        return (*notes, "no labelled nodes: only ΔDP can be estimated")
    if absent.any() and len(class_names) > 2:
        missing = ", ".join(f"'{class_names[c]}'" for c in np.flatnonzero(absent).tolist())
        notes.append(f"no labelled node of class {missing}: left out of AUC, ΔEO and Δodds")
    if math.isnan(figures["auc"]):
        notes.append("labelled nodes of one class only: AUC cannot be estimated")
    notes += [
        f"{TITLES[key]} cannot be estimated: fewer than two groups have its rates"
        for key in ("eo", "odds")
        if math.isnan(figures[key])
    ]
    return tuple(notes)


def _group_notes(row: GroupRow, class_names: Sequence[str], absent: np.ndarray) -> list[str]:
    """Rates of a group that cannot be estimated; ``absent`` are the classes without labels."""
    if not row.count:
        return [f"group '{row.name}' has no nodes here"]
    if not row.labelled:
        note = f"group '{row.name}' has no labelled nodes: only ΔDP takes it into account"
        return [] if absent.all() else [note]
    binary = len(class_names) == 2
    notes = []
    for c in (1,) if binary else range(len(class_names)):
        inside, outside = "positives", "negatives"
        if not binary:
            inside = f"nodes of class '{class_names[c]}'"
            outside = f"nodes outside class '{class_names[c]}'"
        if math.isnan(row.tprs[c]) and (binary or not absent[c]):
            notes.append(f"group '{row.name}' has no {inside}: its TPR cannot be estimated")
        if math.isnan(row.fprs[c]):
            notes.append(f"group '{row.name}' has no {outside}: its FPR cannot be estimated")
    return notes


def _mean(values: Sequence[float]) -> float:
    defined = [value for value in values if not math.isnan(value)]
    return float(np.mean(defined)) if defined else math.nan

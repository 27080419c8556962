"""Accuracy, AUC, F1, and gaps between groups, as fractions; nan where undefined."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import scipy.sparse as sp

from fairmp.display import Displayed
from fairmp.errors import InputError, check_choice
from fairmp.metrics import counts
from fairmp.metrics.calibration import calibration_error
from fairmp.metrics.clusters import Clusters, cluster_tables, resampled_tables
from fairmp.metrics.counts import Array, require_two_groups
from fairmp.metrics.direction import RATES_OF_GAP, Lead, NamedRates, changed_sides, widest
from fairmp.metrics.inputs import Sample, read_sample
from fairmp.metrics.intervals import gap_intervals

TITLES = {
    "accuracy": "accuracy",
    "auc": "AUC",
    "f1": "F1",
    "dp": "ΔDP",
    "eo": "ΔEO",
    "fpr": "ΔFPR",
    "odds": "Δodds",
    "ppv": "ΔPPV",
    "accuracy_gap": "Δaccuracy",
    "calibration_error": "calibration error",
    "impact_ratio": "impact ratio",
}
METRICS = tuple(TITLES)
CRITERIA = {
    "demographic_parity": "dp",
    "equal_opportunity": "eo",
    "false_positive_rate_parity": "fpr",
    "equalized_odds": "odds",
}
"""Key of each criterion's gap; these can be corrected."""
GAPS = CRITERIA | {
    "predictive_parity": "ppv",
    "accuracy_parity": "accuracy_gap",
    "calibration": "calibration_error",
}
"""Key of everything that is better the smaller it is; those that are no criteria are measured."""
ALIASES = {key: name for name, key in CRITERIA.items()} | {
    "true_positive_rate_parity": "equal_opportunity",
    "equalised_odds": "equalized_odds",
}
SCORE_BINS = 10
AUC_BINS = 1000  # of scores, for its bootstrap


def canonical(name: str, names: Collection[str] = tuple(CRITERIA)) -> str:
    """The name of a criterion, from any of its spellings."""
    key = name.strip().lower().replace("-", "_").replace(" ", "_")
    return check_choice("criterion", ALIASES.get(key, key), list(names))


@dataclass(frozen=True)
class GroupRow:
    """Rates of one group, by class.

    Example:
        >>> result = evaluate([1, 0, 1, 1], [1, 0, 1, 0], sensitive_features=list("ffmm"))
        >>> for row in result.groups:
        ...     print(f"{row.name}: {row.count} nodes, rate {row.positive_rate}, TPR {row.tpr}")
        f: 2 nodes, rate 0.5, TPR 1.0
        m: 2 nodes, rate 0.5, TPR 0.5
    """

    name: str
    count: int
    labelled: int
    accuracy: float
    rates: tuple[float, ...]  # P(ŷ=c | s), over all its nodes
    tprs: tuple[float, ...]  # P(ŷ=c | y=c, s), over the labelled ones
    fprs: tuple[float, ...]  # P(ŷ=c | y≠c, s)
    ppvs: tuple[float, ...]  # P(y=c | ŷ=c, s)
    calibration_error: float  # of class 1 (of ŷ for more classes), over ten bins; nan for decisions
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

    @property
    def ppv(self) -> float:
        """P(y=1 | ŷ=1, s) for two classes; the mean precision for more."""
        return self.ppvs[1] if len(self.ppvs) == 2 else _mean(self.ppvs)


@dataclass(frozen=True, repr=False)
class Evaluation(
    Displayed,
    renderer="fairmp.report.evaluations",
    summary=("n", "mode", "accuracy", "dp", "eo"),
):
    """Result of :func:`evaluate`: figures as fractions, their intervals, and rates by group.

    ``print`` shows it in points (hundredths), and ``plot`` the decisions by group.

    Example:
        >>> y, scores = [1, 0, 1, 1, 0, 1], [0.8, 0.3, 0.7, 0.4, 0.1, 0.9]
        >>> result = evaluate(y, scores, sensitive_features=list("fffmmm"), bootstrap=0)
        >>> result
        Evaluation(n=6, mode=None, accuracy=0.8333, dp=0.3333, eo=0.5)
        >>> print(result)
        6 nodes
        accuracy            83.3
        AUC                100.0
        F1                  85.7
        ΔDP                 33.3  f ahead of m
        ΔEO                 50.0  f ahead of m
        ΔFPR                 0.0
        Δodds               50.0  f ahead of m
        ΔPPV                 0.0
        Δaccuracy           33.3  f ahead of m
        calibration error   26.7
        impact ratio        0.50
        group  nodes  labelled  accuracy  P(ŷ=1)    TPR  FPR    PPV  calibration error
        f          3         3     100.0    66.7  100.0  0.0  100.0               26.7
        m          3         3      66.7    33.3   50.0  0.0  100.0               26.7
    """

    n: int
    accuracy: float
    auc: float
    f1: float
    dp: float
    eo: float
    fpr: float
    odds: float
    ppv: float
    accuracy_gap: float
    calibration_error: float  # of the group with the largest
    impact_ratio: float  # smallest over largest rate of positive decisions
    intervals: dict[str, tuple[float, float]]
    groups: tuple[GroupRow, ...]
    class_names: tuple[str, ...]
    confidence: float = 0.95
    notes: tuple[str, ...] = ()
    mode: str | None = None  # set by the caller: how fair predictions were made

    @property
    def rates(self) -> NamedRates:
        """Rates of each group by class."""
        rates = counts.GroupRates(
            *(
                np.array([getattr(group, name) for group in self.groups], dtype=float)
                for name in ("rates", "tprs", "fprs")
            )
        )
        return NamedRates(rates, [group.name for group in self.groups], self.class_names)

    def lead(self, key: str) -> Lead | None:
        """Who is ahead in a gap (``"dp"``, ``"eo"``, ``"ppv"``, …), if anyone is.

        Example:
            >>> scores = np.array([[0.2, 0.8], [0.9, 0.1], [0.3, 0.7], [0.4, 0.6]])
            >>> sex = ["f", "f", "m", "m"]
            >>> lead = evaluate([1, 0, 1, 1], scores, sensitive_features=sex).lead("dp")
            >>> lead.ahead, lead.behind, lead.gap
            ('m', 'f', 0.5)
        """
        if key in RATES_OF_GAP:
            return self.rates.lead(key)
        names = [group.name for group in self.groups]
        if key == "accuracy_gap":
            parts = [("accuracy", "", np.array([group.accuracy for group in self.groups]))]
        else:
            precisions = np.array([group.ppvs for group in self.groups])
            shown = [1] if len(self.class_names) == 2 else range(len(self.class_names))
            parts = [("precision", self.class_names[c], precisions[:, c]) for c in shown]
        return widest(parts, names)

    def changed_sides(self, key: str, before: Evaluation) -> bool:
        """Whether the group that was behind in a gap before is ahead now, by over two points."""
        return changed_sides(key, before.rates, self.rates)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain JSON values, with ``None`` for nan."""
        result = asdict(self)
        for row, group in zip(result["groups"], self.groups, strict=True):
            row.update(positive_rate=group.positive_rate, tpr=group.tpr, fpr=group.fpr)
            row.update(ppv=group.ppv)
        return dict(json_safe(result))

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Evaluation:
        """Read what :meth:`to_dict` wrote."""
        values = {field.name: from_json(record[field.name]) for field in fields(cls)}
        values["groups"] = tuple(map(GroupRow.from_dict, record["groups"]))
        values["mode"] = record["mode"]
        return cls(**values)


def evaluate(  # noqa: PLR0913
    y: Any,
    scores: Any,
    *,
    sensitive_features: Any,
    positive: Any = None,
    mask: Array | None = None,
    sample_weight: Array | None = None,
    clusters: Array | None = None,
    class_names: Sequence[str] | None = None,
    group_names: Sequence[str] | None = None,
    bootstrap: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
) -> Evaluation:
    """Measure decisions or scores, and their gaps between groups.

    The decision ŷ is the class with the largest score. With C classes,

    - ``dp   = max_c range_s P(ŷ=c | s)`` over all nodes of known group, labelled or not;
    - ``eo   = range_s P(ŷ=1 | y=1, s)`` for C = 2, ``max_c range_s P(ŷ=c | y=c, s)`` for more;
    - ``fpr  = range_s P(ŷ=1 | y=0, s)`` for C = 2, ``max_c range_s P(ŷ=c | y≠c, s)`` for more;
    - ``odds = max_c max(range_s P(ŷ=c | y=c, s), range_s P(ŷ=c | y≠c, s))``;
    - ``ppv  = range_s P(y=1 | ŷ=1, s)`` for C = 2, ``max_c range_s P(y=c | ŷ=c, s)`` for more, the
      gap of predictive parity; and ``accuracy_gap = range_s P(ŷ=y | s)``;
    - ``calibration_error``: the largest expected calibration error of a group, over ten bins of the
      probability of class 1 (of ŷ for more classes);
    - ``impact_ratio = min_s P(ŷ=1 | s) / max_s P(ŷ=1 | s)`` for C = 2, the smallest of a class for
      more. The four-fifths rule asks whether it is below 0.8; whether that is lawful is not a
      question of a ratio.

    where ``range_s`` is the largest minus the smallest over the groups that have such nodes. A
    class with fewer than two such groups is left out, and a note says so; with no class left the
    gap is nan. Accuracy, F1 and AUC are over all labelled nodes: of class 1 for C = 2, the mean of
    one class versus the rest for more.

    In small samples a measured gap is too large on average. The intervals of gaps and of the impact
    ratio account for that (:func:`~fairmp.metrics.intervals.gap_interval`) and always contain the
    estimate. The other intervals are percentiles of a bootstrap over nodes; AUC has one for two
    classes only, calibration none.

    Args:
        y: Labels: numbers 0…C−1 (−1 or nan unknown), or text (empty unknown); None for no labels.
        scores: n×C logits or probabilities, n probabilities of class 1, or n decisions (numbers or
            text). Arrays, tensors and tables of pandas, polars and Arrow, as all arguments.
        sensitive_features: The group of each node: numbers (−1 or nan unknown) or text (empty
            unknown). Of several attributes (a table, a dict or a list of columns) the intersections
            are the groups.
        positive: The class that is the good decision, for two classes; all others count as one. By
            default class 1, and for text it is guessed from common words, or asked for.
        mask: The nodes to measure, all by default.
        sample_weight: Weight of each node in every figure; intervals use the effective sample size.
        clusters: The cluster of each node, numbers or text: nodes of one cluster (a household, a
            school, a community of a graph) are resampled together, since their decisions resemble
            each other. By default all nodes are independent, and on graphs intervals are too short;
            see :func:`~fairmp.metrics.graph_clusters`.
        class_names: Names of the classes, in the order of the columns of scores.
        group_names: Names of groups that are numbers.
        bootstrap: Number of resamples; 0 for no intervals at all.
        confidence: Coverage of the intervals.
        seed: Seed of the bootstrap.

    Example:
        >>> hired, sex = ["yes", "no", "yes", "yes"], ["f", "f", "m", "m"]
        >>> result = evaluate(hired, ["yes", "no", "yes", "no"], sensitive_features=sex)
        >>> result.accuracy, result.dp, result.eo, result.impact_ratio
        (0.75, 0.0, 0.5, 1.0)
        >>> by_both = evaluate(
        ...     [1, 0, 1, 1],
        ...     [0.8, 0.1, 0.7, 0.4],
        ...     sensitive_features={"sex": sex, "age": ["young", "old", "old", "old"]},
        ... )
        >>> [group.name for group in by_both.groups]
        ['f × old', 'f × young', 'm × old']
    """
    if bootstrap < 0 or not 0 < confidence < 1:
        hint = "give a coverage inside (0, 1) and 0 or more resamples"
        raise InputError("confidence", f"{confidence} with bootstrap={bootstrap}", hint)
    sample = read_sample(
        y,
        scores,
        sensitive_features,
        mask=mask,
        sample_weight=sample_weight,
        class_names=class_names,
        group_names=group_names,
        positive=positive,
        clusters=clusters,
    )
    nodes = sample.counts()
    require_two_groups(nodes, sample.group_names, "sensitive_features")
    table = sample.counts(sample.weights)
    labelled = sample.labels >= 0
    by_score = counts.score_tables(
        sample.scores[labelled], sample.labels[labelled], sample.weights[labelled]
    )
    figures = counts.gaps(table)
    figures |= {key: float(value) for key, value in counts.accuracy_and_f1(table).items()}
    figures["auc"] = math.nan
    if not sample.are_decisions:
        figures["auc"] = _mean([float(counts.auc(t)) for t in by_score])
    rows = _group_rows(sample, nodes, table)
    figures["calibration_error"] = _largest([row.calibration_error for row in rows])
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
        fpr=figures["fpr"],
        odds=figures["odds"],
        ppv=figures["ppv"],
        accuracy_gap=figures["accuracy_gap"],
        calibration_error=figures["calibration_error"],
        impact_ratio=figures["impact_ratio"],
        intervals=intervals,
        groups=rows,
        class_names=sample.class_names,
        confidence=confidence,
        notes=_notes(sample, rows, nodes, figures),
    )


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


def _intervals(
    sample: Sample,
    table: np.ndarray,
    by_score: Sequence[np.ndarray],
    figures: dict[str, float],
    confidence: float,
    resamples: int,
    seed: int,
) -> dict[str, tuple[float, float]]:
    """Percentiles of resampled accuracy, F1 and AUC, and intervals of the gaps."""
    rng = np.random.default_rng(seed)
    squares = sample.counts(sample.weights**2)
    by_cluster = None
    if sample.clusters is None:
        total = sample.weights.sum()
        scale = float(counts.effective_size(total, squares.sum()) / total)
        samples = counts.bootstrap(scale * table, counts.accuracy_and_f1, resamples, rng)
        if len(sample.class_names) == 2:
            binned = scale * counts.coarse(by_score[0], AUC_BINS)
            samples |= counts.bootstrap(binned, lambda t: {"auc": counts.auc(t)}, resamples, rng)
    else:
        tables = cluster_tables(sample.clusters, sample.cells(), sample.weights, table.size)
        samples = _resampled_clusters(sample, sample.clusters, tables, table, resamples, rng)
        by_cluster = tables.toarray().reshape(-1, *table.shape)
    intervals = {
        key: counts.percentiles(samples.get(key), figures[key], confidence)
        for key in ("accuracy", "auc", "f1")
    }
    return intervals | gap_intervals(table, confidence, squares, by_cluster)


def _resampled_clusters(
    sample: Sample,
    clusters: Clusters,
    by_cluster: sp.csr_array,
    table: np.ndarray,
    resamples: int,
    rng: np.random.Generator,
) -> dict[str, np.ndarray]:
    """Accuracy, F1 and AUC of resampled clusters; see :mod:`fairmp.metrics.clusters`."""
    drawn: dict[str, list[np.ndarray]] = {}
    for tables in resampled_tables(by_cluster, resamples, rng):
        statistics = counts.accuracy_and_f1(tables.reshape(-1, *table.shape))
        for key, values in statistics.items():
            drawn.setdefault(key, []).append(values)
    if len(sample.class_names) == 2 and not sample.are_decisions:
        labelled = sample.labels >= 0
        bins = counts.score_bins(sample.scores[labelled], AUC_BINS)
        nodes = Clusters(clusters.codes[labelled], clusters.number)
        place = (sample.labels[labelled] == 1) * AUC_BINS + bins
        by_score = cluster_tables(nodes, place, sample.weights[labelled], 2 * AUC_BINS)
        for tables in resampled_tables(by_score, resamples, rng):
            drawn.setdefault("auc", []).append(counts.auc(tables.reshape(-1, 2, AUC_BINS)))
    return {key: np.concatenate(parts) for key, parts in drawn.items()}


def _group_rows(sample: Sample, nodes: np.ndarray, table: np.ndarray) -> tuple[GroupRow, ...]:
    """Rates of each group from a weighted table, with counts of nodes."""
    rates, tprs, fprs = counts.group_rates(table)
    ppvs, accuracy = counts.precisions(table), counts.accuracies(table)
    calibration = _calibration_errors(sample)
    score_counts = _score_counts(sample)
    rows = []
    for g, name in enumerate(sample.group_names):
        row = GroupRow(
            name=name,
            count=int(nodes[g].sum()),
            labelled=int(nodes[g, :-1].sum()),
            accuracy=float(accuracy[g]),
            rates=tuple(rates[g].tolist()),
            tprs=tuple(tprs[g].tolist()),
            fprs=tuple(fprs[g].tolist()),
            ppvs=tuple(ppvs[g].tolist()),
            calibration_error=calibration[g],
            score_counts=tuple(score_counts[g].tolist()),
        )
        rows.append(row)
    return tuple(rows)


def _score_counts(sample: Sample) -> np.ndarray:
    """Count the nodes of each group by probability of class 1, or of ŷ for more classes."""
    groups = len(sample.group_names)
    place = np.minimum(SCORE_BINS * _top(sample), SCORE_BINS - 1).astype(np.int64)
    index = np.where(sample.groups < 0, groups, sample.groups) * SCORE_BINS + place
    return np.bincount(index, minlength=(groups + 1) * SCORE_BINS).reshape(-1, SCORE_BINS)


def _top(sample: Sample) -> np.ndarray:
    """Probability of class 1, or of ŷ for more classes."""
    values = sample.scores
    if not counts.look_like_probabilities(values):
        values = np.exp(values - values.max(1, keepdims=True))
    top = values[:, 1] if values.shape[1] == 2 else values.max(1)
    return np.asarray(top / values.sum(1))


def _calibration_errors(sample: Sample) -> list[float]:
    """Expected calibration error of each group; nan for decisions."""
    if sample.are_decisions:
        return [math.nan] * len(sample.group_names)
    top, decided = _top(sample), sample.scores.argmax(1)
    is_class = sample.labels == (1 if sample.scores.shape[1] == 2 else decided)
    members = [(sample.groups == g) & (sample.labels >= 0) for g in range(len(sample.group_names))]
    return [calibration_error(top[rows], is_class[rows], sample.weights[rows]) for rows in members]


def _notes(
    sample: Sample, rows: Sequence[GroupRow], nodes: np.ndarray, figures: dict[str, float]
) -> tuple[str, ...]:
    """What was guessed, and what cannot be estimated, and why."""
    class_names = sample.class_names
    absent = nodes[:, :-1].sum((0, 2)) == 0
    notes = [] if sample.note is None else [sample.note]
    notes += [note for row in rows for note in _group_notes(row, class_names, absent)]
    if absent.all():
        return (*notes, "no labelled nodes: only ΔDP and the impact ratio can be estimated")
    if absent.any() and len(class_names) > 2:
        missing = ", ".join(f"'{class_names[c]}'" for c in np.flatnonzero(absent).tolist())
        notes.append(f"no labelled node of class {missing}: left out of AUC, ΔEO and Δodds")
    if sample.are_decisions:
        notes.append("decisions without scores: no AUC and no calibration error")
    elif math.isnan(figures["auc"]):
        notes.append("labelled nodes of one class only: AUC cannot be estimated")
    notes += [
        f"{TITLES[key]} cannot be estimated: fewer than two groups have its rates"
        for key in ("eo", "fpr", "odds", "ppv")
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


def _largest(values: Sequence[float]) -> float:
    return float(np.fmax.reduce(values))


def _mean(values: Sequence[float]) -> float:
    defined = [value for value in values if not math.isnan(value)]
    return float(np.mean(defined)) if defined else math.nan

"""Accuracy, AUC, F1, ΔDP, ΔEO and equalized odds, as fractions; nan where undefined."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeGuard

import numpy as np

from fairmp.errors import InputError, check_choice
from fairmp.metrics import counts
from fairmp.metrics.counts import Array, as_array, boolean_mask, integers, weights

METRICS = ("accuracy", "auc", "f1", "dp", "eo", "odds")
SCORE_BINS = 10
TITLES = dict(zip(METRICS, ("accuracy", "AUC", "F1", "ΔDP", "ΔEO", "Δodds"), strict=True))
CRITERIA = {"demographic_parity": "dp", "equal_opportunity": "eo", "equalized_odds": "odds"}
"""Key of each criterion's gap."""
ALIASES = {key: name for name, key in CRITERIA.items()} | {
    "true_positive_rate_parity": "equal_opportunity",
    "equalised_odds": "equalized_odds",
}
INK, BEFORE, AFTER = "#1b1f24", "#6b7580", "#0072B2"
ERRORS = {"ecolor": INK, "elinewidth": 1.2, "capsize": 3}
STYLES: dict[str, dict[str, Any]] = {
    "before": {"facecolor": "white", "edgecolor": BEFORE, "hatch": "////"},
    "after": {"facecolor": AFTER},
}


def canonical(name: str) -> str:
    """The name of a criterion, from any of its spellings."""
    key = name.strip().lower().replace("-", "_").replace(" ", "_")
    return check_choice("criterion", ALIASES.get(key, key), list(CRITERIA))


@dataclass(frozen=True)
class GroupRow:
    """Rates of one group."""

    name: str
    count: int
    labelled: int
    accuracy: float
    rates: tuple[float, ...]  # P(ŷ=c | s), over all its nodes
    tprs: tuple[float, ...]  # P(ŷ=c | y=c, s), over the labelled ones
    fprs: tuple[float, ...]  # P(ŷ=c | y≠c, s)
    score_counts: tuple[int, ...] = ()  # nodes by probability of class 1 (of ŷ for more), ten bins

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
class Evaluation:
    """Result of :func:`evaluate`; ``print`` shows it in points (hundredths)."""

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

    def __str__(self) -> str:
        lines = [self._title()]
        lines += [f"{name:<9}{value:>6}{interval}" for name, value, interval in self._figures()]
        return "\n".join([*lines, *aligned(self._rows()), *(f"note: {x}" for x in self.notes)])

    def _repr_html_(self) -> str:
        figures = [["", "points", "95 % interval"], *self._figures()]
        return to_html(self._title(), [figures, self._rows()], self.notes)

    def plot(self, ax: Any = None) -> Any:
        """Draw each group's rate of decisions for the last class; return the axes.

        Args:
            ax: matplotlib axes to draw on; new ones by default.
        """
        names, sizes = [g.name for g in self.groups], [g.count for g in self.groups]
        rates = {"after": [g.rates[-1] for g in self.groups]}
        return plot_rates(names, sizes, rates, f"decided {self.class_names[-1]}, %", ax)

    def _title(self) -> str:
        return f"{self.n} nodes" + (f", mode {self.mode}" if self.mode else "")

    def _figures(self) -> list[list[str]]:
        rows = []
        for key in METRICS:
            low, high = self.intervals.get(key, (math.nan, math.nan))
            interval = "" if math.isnan(low) else f"  [{points(low)}, {points(high)}]"
            rows.append([TITLES[key], points(getattr(self, key)), interval])
        return rows

    def _rows(self) -> list[list[str]]:
        binary = len(self.class_names) == 2
        names = ["P(ŷ=1)", "TPR", "FPR"] if binary else [f"P({name})" for name in self.class_names]
        rows = [["group", "nodes", "labelled", "accuracy", *names]]
        for g in self.groups:
            rates = (g.accuracy, *((g.positive_rate, g.tpr, g.fpr) if binary else g.rates))
            rows.append([g.name, str(g.count), str(g.labelled), *map(points, rates)])
        return rows


def evaluate(
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

    Gaps are biased upward in small samples; their intervals account for it
    (:func:`~fairmp.metrics.counts.gap_interval`) and always contain the estimate. The other
    intervals are percentiles of a bootstrap over nodes, for AUC with C = 2 alone.

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
    values = as_array(scores, "scores").astype(float)
    if values.ndim != 2 or values.shape[1] < 2:
        raise InputError("scores", f"shape {values.shape} is not n×C", "give one column per class")
    n, classes = values.shape
    keep = boolean_mask(mask, n)
    values = values[keep]
    if not np.isfinite(values).all():
        raise InputError("scores", "some are nan or infinite", "check that training converged")
    if bootstrap < 0 or not 0 < confidence < 1:
        hint = "give a coverage inside (0, 1) and 0 or more resamples"
        raise InputError("confidence", f"{confidence} with bootstrap={bootstrap}", hint)
    label = integers(y, "y", n, classes, "one column of scores per class")[keep]
    limit = None if group_names is None else len(group_names)
    group = integers(sens, "sens", n, limit, "one name per group")
    seen = map(str, range(int(group.max(initial=-1)) + 1))
    names = list(seen if group_names is None else group_names)
    titles = tuple(map(str, range(classes)) if class_names is None else class_names)
    if len(titles) != classes:
        raise InputError("class_names", f"{len(titles)} names for {classes} columns of scores")
    weight = weights(sample_weight, n)[keep]
    coded = values.argmax(1), label, group[keep], classes, len(names)
    nodes = counts.count(*coded)
    _need_two_groups(nodes, names)

    table = counts.count(*coded, weight)
    rows = _rows(nodes, table, names, _score_counts(values, group[keep], len(names)))
    figures: dict[str, Any] = {key: float(value) for key, value in counts.figures(table).items()}
    known = label >= 0
    by_score = counts.score_tables(values[known], label[known], weight[known])
    figures["auc"] = _mean([float(counts.auc(t)) for t in by_score])
    intervals = {}
    if bootstrap:
        rng = np.random.default_rng(seed)
        squares = counts.count(*coded, weight**2)
        scale = float(counts.effective_size(weight.sum(), squares.sum()) / weight.sum())
        samples = counts.bootstrap(scale * table, counts.figures, bootstrap, rng)
        if classes == 2:
            binned = scale * counts.coarse(by_score[0], 1000)
            samples |= counts.bootstrap(binned, lambda t: {"auc": counts.auc(t)}, bootstrap, rng)
        intervals = {k: counts.percentiles(samples.get(k), figures[k], confidence) for k in METRICS}
        intervals |= counts.gap_intervals(table, confidence, squares)
    figures |= {"intervals": intervals, "notes": _notes(rows, titles, nodes, figures)}
    about: Any = {"groups": rows, "class_names": titles, "confidence": confidence}
    return Evaluation(len(label), **figures, **about)


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


def is_known(value: float | None) -> TypeGuard[float]:
    """Whether a value is neither None nor nan."""
    return value is not None and not math.isnan(value)


def points(share: float | None, digits: int = 1) -> str:
    """A share in points (hundredths): 0.1234 is "12.3"; "n/a" if unknown."""
    # Adding 0.0 turns a rounded −0.0 into 0.0.
    return f"{round(100 * share, digits) + 0.0:.{digits}f}" if is_known(share) else "n/a"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table: the first column to the left, the others to the right."""
    first, *others = zip(*rows, strict=True)
    columns = [[text.ljust(max(map(len, first))) for text in first]]
    columns += [[text.rjust(max(map(len, column))) for text in column] for column in others]
    return ["  ".join(row) for row in zip(*columns, strict=True)]


def to_html(title: str, tables: Sequence[Sequence[Sequence[str]]], notes: Sequence[str]) -> str:
    """A title, tables whose first row is the header, and notes; all escaped."""
    parts = [f"<p><strong>{html.escape(title)}</strong></p>"]
    for header, *rows in tables:
        body = [f"<tr><th>{'</th><th>'.join(map(html.escape, header))}</th></tr>"]
        for first, *rest in rows:
            cells = "".join(f"<td>{html.escape(text)}</td>" for text in rest)
            body.append(f"<tr><th>{html.escape(first)}</th>{cells}</tr>")
        parts.append(f"<table>{''.join(body)}</table>")
    return "".join([*parts, *(f"<p>{html.escape(note)}</p>" for note in notes)])


def plot_rates(
    names: Sequence[str],
    sizes: Sequence[int],
    rates: Mapping[str, Sequence[float | None]],
    label: str,
    ax: Any = None,
) -> Any:
    """Draw rates by group, in per cent with 95 % intervals, one series per key; return the axes."""
    if ax is None:
        from matplotlib.figure import Figure

        ax = Figure(figsize=(5.5, 0.9 + 0.5 * len(names)), layout="constrained").subplots()
    height, n = 0.8 / len(rates), np.maximum(np.array(sizes, dtype=float), 1e-9)
    for k, (when, values) in enumerate(rates.items()):
        share = np.array(values, dtype=float)
        low, high = counts.wilson(share, n)
        place = np.arange(len(names)) + (k - (len(rates) - 1) / 2) * height
        errors = 100 * np.nan_to_num(np.maximum([share - low, high - share], 0))
        style: dict[str, Any] = {"xerr": errors, "label": when, "error_kw": ERRORS}
        drawn = ax.barh(place, 100 * share, 0.9 * height, **style, **STYLES[when])
        ax.bar_label(drawn, fmt="%.1f", padding=4, fontsize=9, color=INK)
    ax.set_yticks(range(len(names)), names)
    ax.yaxis.set_inverted(True)
    ax.set(xlim=(0, 100), xlabel=label)
    return ax


def json_safe(value: Any) -> Any:
    """Plain JSON values, with ``None`` for nan and dicts for named tuples."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {key: json_safe(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_safe(item) for item in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def _need_two_groups(table: np.ndarray, names: Sequence[str]) -> None:
    present = [name for name, part in zip(names, table, strict=False) if part.any()]
    if len(present) < 2:
        found = f"only group '{present[0]}'" if present else "no known group"
        raise InputError("sens", f"{found} among the nodes measured", "a gap needs two groups")


def _gap(
    key: str, pred: Array, y: Array | None, sens: Array, classes: int | None, weight: Array | None
) -> float:
    decision = integers(pred, "pred", None)
    n = len(decision)
    label, group = integers([-1] * n if y is None else y, "y", n), integers(sens, "sens", n)
    seen = 1 + int(max(decision.max(initial=1), label.max(initial=1)))
    if classes is not None and classes < seen:
        value = f"{classes} with a class {seen - 1} in pred or y"
        raise InputError("classes", value, f"give {seen}")
    groups = int(group.max(initial=-1)) + 1
    table = counts.count(decision, label, group, classes or seen, groups, weights(weight, n))
    _need_two_groups(table, [str(g) for g in range(groups)])
    return float(counts.figures(table)[key])


def _rows(
    nodes: np.ndarray, table: np.ndarray, names: Sequence[str], scores: np.ndarray
) -> tuple[GroupRow, ...]:
    """Rates of each group from a weighted table, with counts of nodes."""
    rates, rows = counts.group_rates(table), []
    for g, name in enumerate(names):
        known, sizes = table[g, :-1], (int(nodes[g].sum()), int(nodes[g, :-1].sum()))
        correct = float(counts.ratio(np.trace(known), known.sum()))
        own = (tuple(kind[g].tolist()) for kind in (*rates, scores))
        rows.append(GroupRow(name, *sizes, correct, *own))
    return tuple(rows)


def _score_counts(values: np.ndarray, group: np.ndarray, groups: int) -> np.ndarray:
    """Count the nodes of each group by probability of class 1, or of ŷ for more classes."""
    if not counts.look_like_probabilities(values):
        values = np.exp(values - values.max(1, keepdims=True))
    top = values[:, 1] if values.shape[1] == 2 else values.max(1)
    place = np.minimum(SCORE_BINS * top / values.sum(1), SCORE_BINS - 1).astype(np.int64)
    index = np.where(group < 0, groups, group) * SCORE_BINS + place
    return np.bincount(index, minlength=(groups + 1) * SCORE_BINS).reshape(-1, SCORE_BINS)


def _notes(
    rows: Sequence[GroupRow], titles: Sequence[str], table: np.ndarray, figures: dict[str, float]
) -> tuple[str, ...]:
    """What cannot be estimated, and why."""
    notes = []
    absent = table[:, :-1].sum((0, 2)) == 0
    binary = len(titles) == 2
    for row in rows:
        who = f"group '{row.name}' has no"
        if not row.count:
            notes.append(f"{who} nodes here")
        elif not row.labelled and not absent.all():
            notes.append(f"{who} labelled nodes: only ΔDP takes it into account")
        elif row.labelled:
            for c in (1,) if binary else range(len(titles)):
                kinds = f"nodes of class '{titles[c]}'", f"nodes outside class '{titles[c]}'"
                inside, outside = ("positives", "negatives") if binary else kinds
                if math.isnan(row.tprs[c]) and (binary or not absent[c]):
                    notes.append(f"{who} {inside}: its TPR cannot be estimated")
                if math.isnan(row.fprs[c]):
                    notes.append(f"{who} {outside}: its FPR cannot be estimated")
    if absent.all():
        return (*notes, "no labelled nodes: only ΔDP can be estimated")
    if absent.any() and not binary:
        missing = ", ".join(f"'{titles[c]}'" for c in np.flatnonzero(absent).tolist())
        notes.append(f"no labelled node of class {missing}: left out of AUC, ΔEO and Δodds")
    if math.isnan(figures["auc"]):
        notes.append("labelled nodes of one class only: AUC cannot be estimated")
    notes += [
        f"{TITLES[key]} cannot be estimated: fewer than two groups have its rates"
        for key in ("eo", "odds")
        if math.isnan(figures[key])
    ]
    return tuple(notes)


def _mean(values: Sequence[float]) -> float:
    defined = [value for value in values if not math.isnan(value)]
    return float(np.mean(defined)) if defined else math.nan

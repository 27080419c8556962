"""Single figures of decisions: accuracy and the gaps between groups, as fractions."""

from __future__ import annotations

from fairmp.errors import InputError
from fairmp.metrics import counts
from fairmp.metrics.counts import Array, integers, require_two_groups, weights


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


def false_positive_rate_parity(
    pred: Array,
    y: Array,
    sens: Array,
    *,
    classes: int | None = None,
    sample_weight: Array | None = None,
) -> float:
    """``range_s P(ŷ=1 | y=0, s)``; for more than two classes ``max_c range_s P(ŷ=c | y≠c, s)``.

    Example:
        >>> false_positive_rate_parity([1, 0, 0, 0], [0, 0, 0, 0], [0, 0, 1, 1])
        0.5
    """
    return _gap("fpr", pred, y, sens, classes, sample_weight)


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


def predictive_parity(
    pred: Array,
    y: Array,
    sens: Array,
    *,
    classes: int | None = None,
    sample_weight: Array | None = None,
) -> float:
    """``range_s P(y=1 | ŷ=1, s)``; for more than two classes the largest such gap of a class.

    Example:
        >>> predictive_parity([1, 1, 1, 1], [1, 0, 1, 1], [0, 0, 1, 1])
        0.5
    """
    return _gap("ppv", pred, y, sens, classes, sample_weight)


def impact_ratio(pred: Array, sens: Array, *, sample_weight: Array | None = None) -> float:
    """``min_s P(ŷ=1 | s) / max_s P(ŷ=1 | s)``; with more than two classes the smallest of one.

    Example:
        >>> impact_ratio([1, 0, 1, 1], [0, 0, 1, 1])
        0.5
    """
    return _gap("impact_ratio", pred, None, sens, None, sample_weight)


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
    require_two_groups(table, [str(g) for g in range(groups)], "sens")
    return counts.gaps(table)[key]

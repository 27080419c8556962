"""Checked inputs of metrics; rates, gaps and AUC of tables of counts.

Resampling nodes is resampling the table group × label × prediction from a multinomial, so the
bootstrap here draws counts: its cost does not depend on the number of nodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.special import softmax, stdtrit
from torch import Tensor

from fairmp.errors import InputError, check_choice
from fairmp.frames import as_pandas

Array: TypeAlias = Tensor | np.ndarray | Sequence[Any]
Matrix = TypeVar("Matrix", np.ndarray, Tensor)
Rates = TypeVar("Rates", float, np.ndarray)
Kind = Literal["auto", "logits", "probabilities"]
SUM_TOLERANCE = 0.005  # per class; probabilities rounded to two digits are off by as much each
NORMAL_QUANTILE = 1.959964  # of a 95 % interval
MIN_SPLITS = 5  # for an interval over splits


def look_like_probabilities(values: Matrix) -> bool:
    """Whether every row of an n×C array or tensor lies in [0, 1] and sums to 1."""
    return not bool(_outside_unit_interval(values).any() or _not_normalised(values).any())


def are_probabilities(values: Matrix, kind: str = "auto", *, argument: str = "predictions") -> bool:
    """Whether n×C scores are probabilities (True) or logits (False).

    With ``kind="auto"``, rows in [0, 1] that sum to 1 are probabilities and anything else is
    logits. Two cases are ambiguous and raise an error: rows in [0, 1] that do not sum to 1, and
    rows that are all one-hot, which could be decisions or logits. ``argument`` is named in errors.

    Example:
        >>> import numpy as np
        >>> are_probabilities(np.array([[0.2, 0.8]])), are_probabilities(np.array([[0.0, 3.0]]))
        (True, False)
    """
    check_choice("kind", kind, get_args(Kind))
    outside, unnormalised = _outside_unit_interval(values), _not_normalised(values)
    if kind == "logits" or (kind == "auto" and bool(outside.any())):
        return False
    if bool(outside.any()):
        row = _first_row(outside.sum(1) > 0)
        value = f"{float(values[row][outside[row]][0]):g} in row {row} is not a probability"
        raise InputError(argument, value, "give numbers in [0, 1], or {kind='logits'}")
    if bool(unnormalised.any()):
        row = _first_row(unnormalised)
        value = f"row {row} lies in [0, 1] and sums to {float(values[row].sum()):.4g}"
        hint = "normalise probabilities so that they sum to 1, or give {kind='logits'}"
        raise InputError(argument, value, hint)
    one_hot = ((values == 0) | (values == 1)).all(1)
    constant = (values == values[:, :1]).all(1)
    is_boolean = str(values.dtype).endswith("bool")
    ambiguous = bool(one_hot.any()) and bool((one_hot | constant).all())
    if kind == "auto" and ambiguous and not is_boolean:
        value = f"every row of {argument} is one-hot, which fits decisions and logits"
        raise InputError("kind", value, "give {kind='probabilities'} or {kind='logits'}")
    return True


def _outside_unit_interval(values: Matrix) -> Matrix:
    return ~((values >= 0) & (values <= 1))


def _not_normalised(values: Matrix) -> Matrix:
    flags: Matrix = abs(values.sum(1) - 1) > SUM_TOLERANCE * values.shape[1]
    return flags


def _first_row(flags: Matrix) -> int:
    return int(flags.nonzero()[0][0])


def as_array(values: Array, name: str) -> np.ndarray:
    """An array of numbers, checked."""
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        values = (values.float() if values.dtype == torch.bfloat16 else values).numpy()
    array = np.asarray(as_pandas(values))
    if array.dtype.kind not in "biuf":
        raise InputError(name, "not an array of numbers", "give a tensor or an array")
    return array


def integers(
    values: Array, name: str, n: int | None, limit: int | None = None, wanted: str = ""
) -> np.ndarray:
    """Codes of classes or groups below a limit, checked; ``wanted`` says what the limit means."""
    array = as_array(values, name)
    if array.ndim != 1 or (n is not None and len(array) != n):
        hint = "give one value per node" if n is None else f"give one value for each of {n} nodes"
        raise InputError(name, f"shape {array.shape}", hint)
    least = 0 if name == "pred" else -1
    wrong = array[~(np.isfinite(array) & (array >= least) & (array == np.trunc(array)))]
    if len(wrong):
        hint = f"give integers from {least} up"
        raise InputError(name, f"{wrong[0]} is not a class or group", hint)
    result = array.astype(np.int64)
    if limit is not None and result.max(initial=0) >= limit:
        raise InputError(name, f"{result.max()} is not below {limit}", f"give {wanted}")
    return result


def weights(values: Array | None, n: int) -> np.ndarray:
    """Weights of n nodes, 1 by default, checked."""
    if values is None:
        return np.ones(n)
    array = as_array(values, "sample_weight").astype(float)
    if array.shape != (n,):
        raise InputError("sample_weight", f"shape {array.shape}", f"give one for each of {n} nodes")
    if not (np.isfinite(array) & (array >= 0)).all() or not array.any():
        hint = "give finite numbers of 0 or more"
        raise InputError("sample_weight", "some are negative or nan, or all are 0", hint)
    return array


def boolean_mask(mask: Array | None, n: int, name: str = "mask") -> np.ndarray:
    """A mask of n nodes, all by default, checked."""
    keep = np.ones(n, dtype=bool) if mask is None else as_array(mask, name).copy()
    if keep.dtype != bool or keep.shape != (n,):
        raise InputError(name, f"{keep.dtype} of shape {keep.shape}", f"give {n} booleans")
    if not keep.any():
        raise InputError(name, f"none of {n} nodes is in it", "choose at least one")
    return keep


def require_two_groups(table: np.ndarray, names: Sequence[str], argument: str) -> None:
    """Refuse counts (group × …) with nodes of fewer than two groups."""
    present = [name for name, nodes in zip(names, table, strict=False) if nodes.any()]
    if len(present) < 2:
        value = f"only group '{present[0]}'" if present else "no known group"
        raise InputError(argument, f"{value} among the nodes measured", "a gap needs two groups")


def ratio(part: ArrayLike, whole: ArrayLike) -> np.ndarray:
    """Divide, with nan where the denominator is 0."""
    numerator, denominator = np.asarray(part, dtype=float), np.asarray(whole, dtype=float)
    undefined = np.full(denominator.shape, np.nan)
    return np.asarray(np.divide(numerator, denominator, out=undefined, where=denominator > 0))


def count(
    pred: np.ndarray,
    label: np.ndarray,
    group: np.ndarray,
    classes: int,
    groups: int,
    weight: np.ndarray | None = None,
) -> np.ndarray:
    """Count nodes by group × label × prediction; the last group and label are the unknown ones."""
    shape = (groups + 1, classes + 1, classes)
    index = cells(pred, label, group, classes, groups)
    return np.bincount(index, weight, minlength=math.prod(shape)).reshape(shape)


def cells(
    pred: np.ndarray, label: np.ndarray, group: np.ndarray, classes: int, groups: int
) -> np.ndarray:
    """The cell of each node in the flat table of :func:`count`."""
    group, label = np.where(group < 0, groups, group), np.where(label < 0, classes, label)
    return np.ravel_multi_index((group, label, pred), (groups + 1, classes + 1, classes))


class GroupRates(NamedTuple):
    """Rates of each group by class, or the nodes behind them (…, groups, classes)."""

    decided: np.ndarray  # P(ŷ=c | s)
    true_positive: np.ndarray  # P(ŷ=c | y=c, s)
    false_positive: np.ndarray  # P(ŷ=c | y≠c, s)


def group_rates(table: np.ndarray) -> GroupRates:
    """Rates of decisions, of true positives and of false positives."""
    by_pred = table[..., :-1, :, :].sum(-2)
    labelled = table[..., :-1, :-1, :]
    hits = np.diagonal(labelled, axis1=-2, axis2=-1)
    by_label, labelled_by_pred = labelled.sum(-1), labelled.sum(-2)
    others = by_label.sum(-1, keepdims=True) - by_label
    rate = ratio(by_pred, np.broadcast_to(by_pred.sum(-1, keepdims=True), by_pred.shape))
    return GroupRates(rate, ratio(hits, by_label), ratio(labelled_by_pred - hits, others))


def precisions(table: np.ndarray) -> np.ndarray:
    """P(y=c | ŷ=c, s) over the labelled nodes (…, groups, classes)."""
    labelled = table[..., :-1, :-1, :]
    return ratio(np.diagonal(labelled, axis1=-2, axis2=-1), labelled.sum(-2))


def accuracies(table: np.ndarray) -> np.ndarray:
    """P(ŷ=y | s) over the labelled nodes (…, groups)."""
    labelled = table[..., :-1, :-1, :]
    return ratio(np.trace(labelled, axis1=-2, axis2=-1), labelled.sum((-2, -1)))


def smallest_ratio(rates: np.ndarray) -> np.ndarray:
    """Smallest over largest rate of the groups (…, groups, classes); nan below two, and for 0/0."""
    several = (~np.isnan(rates)).sum(-2) >= 2
    smallest, largest = np.fmin.reduce(rates, -2), np.fmax.reduce(rates, -2)
    return np.where(several, ratio(smallest, largest), np.nan)


def rate_range(rates: np.ndarray) -> np.ndarray:
    """Largest minus smallest over the groups (…, groups, classes) with a rate; nan below two."""
    # fmax and fmin ignore nan, where np.nanmax would warn.
    several = (~np.isnan(rates)).sum(-2) >= 2
    return np.where(several, np.fmax.reduce(rates, -2) - np.fmin.reduce(rates, -2), np.nan)


def effective_size(total: ArrayLike, squares: ArrayLike) -> np.ndarray:
    """Kish's effective sample size (Σw)²/Σw², from the sums of weights and squared weights."""
    return np.asarray(np.nan_to_num(ratio(np.square(total), squares)))


def accuracy_and_f1(table: np.ndarray) -> dict[str, np.ndarray]:
    """Accuracy and F1 of a table, or of each table of a stack."""
    confusion = table[..., :-1, :].sum(-3)
    hits = np.diagonal(confusion, axis1=-2, axis2=-1)
    f1 = ratio(2 * hits, confusion.sum(-1) + confusion.sum(-2))
    binary = hits.shape[-1] == 2
    return {
        "accuracy": ratio(hits.sum(-1), confusion.sum((-2, -1))),
        "f1": f1[..., 1] if binary else ratio(np.nansum(f1, -1), (~np.isnan(f1)).sum(-1)),
    }


def gaps(table: np.ndarray) -> dict[str, float]:
    """Gaps between groups of a table, and the impact ratio."""
    rate, tpr, fpr = group_rates(table)
    parity, recall, fallout = rate_range(rate), rate_range(tpr), rate_range(fpr)
    odds = np.maximum(recall, fallout)
    precision, share = rate_range(precisions(table)), smallest_ratio(rate)
    return {
        "dp": float(np.fmax.reduce(parity)),
        "eo": float(recall[1] if len(recall) == 2 else np.fmax.reduce(recall)),
        "fpr": float(fallout[1] if len(fallout) == 2 else np.fmax.reduce(fallout)),
        "odds": float(np.fmax.reduce(odds)),
        "ppv": float(precision[1] if len(precision) == 2 else np.fmax.reduce(precision)),
        "accuracy_gap": float(rate_range(accuracies(table)[:, None])[0]),
        "impact_ratio": float(share[1] if len(share) == 2 else np.fmin.reduce(share)),
    }


def score_tables(scores: np.ndarray, label: np.ndarray, weight: np.ndarray) -> list[np.ndarray]:
    """Count rest and class by distinct score, for class 1 of two, or for every class."""
    if scores.shape[1] == 2:
        # The margin rises with the probability of class 1 and does not saturate.
        columns = {1: scores[:, 1] - scores[:, 0]}
    else:
        proba = scores if look_like_probabilities(scores) else softmax(scores, axis=1)
        columns = dict(enumerate(proba.T))
    tables = []
    for c, column in columns.items():
        distinct, place = np.unique(column, return_inverse=True)
        index = (label == c) * len(distinct) + place
        tables.append(np.bincount(index, weight, 2 * len(distinct)).reshape(2, -1))
    return tables


def score_bins(scores: np.ndarray, bins: int) -> np.ndarray:
    """Bin of each node's score of class 1 of two, in bins of about equal count."""
    margin = scores[:, 1] - scores[:, 0]
    _, place, number = np.unique(margin, return_inverse=True, return_counts=True)
    rank = number.cumsum() - 1
    return np.asarray((rank * bins // len(margin))[place])


def auc(table: np.ndarray) -> np.ndarray:
    """P(score of class > score of rest) + ½ P(equal), from counts of both by rising score."""
    others, of_class = table[..., 0, :].astype(float), table[..., 1, :].astype(float)
    below = np.cumsum(others, -1) - others / 2
    return ratio((of_class * below).sum(-1), of_class.sum(-1) * others.sum(-1))


def coarse(table: np.ndarray, bins: int) -> np.ndarray:
    """Join neighbouring scores into bins of about equal count, to make resampling cheap."""
    if table.shape[1] <= bins:
        return table
    rank = table.sum(0).cumsum() - 1
    _, start = np.unique(rank * bins // (rank[-1] + 1), return_index=True)
    return np.add.reduceat(table, start, axis=1)


def bootstrap(
    table: np.ndarray,
    statistics: Callable[[np.ndarray], dict[str, np.ndarray]],
    resamples: int,
    rng: np.random.Generator,
) -> dict[str, np.ndarray]:
    """Resample the table and return the values of every statistic."""
    total = round(float(table.sum()))
    if not total:
        return {}
    # Most entries of a table of many classes are 0 and stay so.
    filled = np.flatnonzero(table)
    weights = table.reshape(-1)[filled] / table.sum()
    chunk = max(1, 2_000_000 // table.size)
    chunks = []
    for start in range(0, resamples, chunk):
        size = min(chunk, resamples - start)
        stack = np.zeros((size, table.size), dtype=np.int64)
        stack[:, filled] = rng.multinomial(total, weights, size=size)
        chunks.append(statistics(stack.reshape(size, *table.shape)))
    return {key: np.concatenate([values[key] for values in chunks]) for key in chunks[0]}


def percentiles(
    samples: np.ndarray | None, figure: float, confidence: float
) -> tuple[float, float]:
    """Percentile interval over the resamples in which the figure is defined."""
    if samples is None or math.isnan(figure) or np.isnan(samples).all():
        return math.nan, math.nan
    low, high = np.nanquantile(samples, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def wilson(rates: Rates, sizes: Rates, z: float = NORMAL_QUANTILE) -> tuple[Rates, Rates]:
    """Wilson's score interval of rates, for a normal quantile z (95 % by default)."""
    shrink = 1 + z**2 / sizes
    centre = (rates + z**2 / (2 * sizes)) / shrink
    half = z / shrink * (rates * (1 - rates) / sizes + z**2 / (4 * sizes**2)) ** 0.5
    return centre - half, centre + half


def weighted_rates(weights: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weighted means (G×C) of values in [0, 1], and how many 0/1 observations are as precise."""
    total = weights.sum(0)[:, None]
    safe = np.maximum(total, 1e-300)
    rates = np.where(total > 0, weights.T @ values / safe, np.nan)
    nodes = safe**2 / np.maximum((weights**2).sum(0)[:, None], 1e-300)
    spread = rates * (1 - rates)
    # One more observation with the variance of a 0/1 value keeps few equal values uncertain.
    variance = weights.T @ values**2 / safe - rates**2 + spread / nodes
    return rates, nodes * np.clip(spread / np.maximum(variance, 1e-12), 0.0, 1e6)


class Interval(NamedTuple):
    """A mean of ``n`` values and its confidence interval.

    Example:
        >>> over_splits = mean_interval([0.78, 0.81, 0.80, 0.77, 0.79])
        >>> print(f"{over_splits.mean:.3f} [{over_splits.low:.3f}, {over_splits.high:.3f}]")
        0.790 [0.770, 0.810]
    """

    mean: float
    low: float
    high: float
    n: int


def mean_interval(values: Sequence[float] | np.ndarray, confidence: float = 0.95) -> Interval:
    """Mean and Student-t interval of one figure over several splits; ``nan`` values are left out.

    ``mean ± t_{n−1} · sd / √n``. One value has no interval.

    Example:
        >>> mean_interval([0.5, 0.75])
        Interval(mean=0.625, low=-0.963..., high=2.213..., n=2)
    """
    if not 0 < confidence < 1:
        raise InputError("confidence", f"{confidence} is outside (0, 1)", "give 0.95 for 95 %")
    array = np.asarray(values, dtype=float).reshape(-1)
    array = array[~np.isnan(array)]
    n = len(array)
    if n < 2:
        return Interval(float(array[0]) if n else math.nan, math.nan, math.nan, n)
    mean = float(array.mean())
    half = float(stdtrit(n - 1, (1 + confidence) / 2) * array.std(ddof=1) / math.sqrt(n))
    return Interval(mean, mean - half, mean + half, n)

"""Feature columns that give the label or the group away."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import scipy.sparse as sp
from torch_geometric.data import Data

from fairmp.analysis.audits.result import Leak
from fairmp.graph import to_scipy

MIN_BALANCED = 0.9  # mean share of both sides on which a threshold of a leaking column is right
MIN_SIDE = 10  # nodes of a class or group: fewer can be singled out by chance


@dataclass(frozen=True)
class Threshold:
    """The rule "x > value", or "x ≤ value", that separates two sides best."""

    value: float
    above: bool  # whether it is x > value
    balanced: float  # mean share of the two sides on which it is right
    agreement: float  # share of rows on which it is right
    smallest: float  # value of the column


def find_leaks(data: Data) -> tuple[Leak, ...]:
    """Columns that give the label or the group away, the worst first."""
    x = to_scipy(data.x) if data.x.is_sparse else data.x.numpy()
    names = data.feature_names
    leaks = [
        *_leaks_of("label", x, names, data.y.numpy(), data.class_names),
        *_leaks_of("group", x, names, data.sens.numpy(), data.group_names),
    ]
    return tuple(sorted(leaks, key=lambda leak: -leak.balanced))


def _leaks_of(
    of: Literal["label", "group"],
    x: np.ndarray | sp.csr_array,
    columns: list[str],
    codes: np.ndarray,
    values: list[str],
) -> Iterator[Leak]:
    known = codes >= 0
    total = int(known.sum())
    counts = np.bincount(codes[known], minlength=1)
    # Two values mirror each other: one of them is enough.
    tested = range(1, 2) if len(counts) == 2 else range(len(counts))
    for code in tested:
        if not MIN_SIDE <= counts[code] <= total - MIN_SIDE:
            continue
        most_frequent = float(max(counts[code], total - counts[code]) / total)
        thresholds = best_thresholds(x[known], codes[known] == code)
        for column, best in zip(columns, thresholds, strict=True):
            if best.balanced >= MIN_BALANCED:
                rule = f"{column} {'>' if best.above else '≤'} {best.value:.4g}"
                if best.value == best.smallest:
                    rule += " (its smallest value)"
                yield Leak(
                    column, of, values[code], rule, best.agreement, best.balanced, most_frequent
                )


def best_thresholds(x: np.ndarray | sp.csr_array, positive: np.ndarray) -> Iterator[Threshold]:
    """The threshold of each column that separates positive rows from the others best."""
    total, n = int(positive.sum()), len(positive)
    for column in _columns(x, positive):
        order = np.argsort(column.values, kind="stable")
        values = column.values[order]
        rows_below = np.cumsum(column.rows[order])
        positive_below = np.cumsum(column.positive[order])
        smallest = float(values[0])
        # The last place of each value but the largest: rows up to it against those after it.
        ends = np.flatnonzero(values[:-1] < values[1:])
        if not len(ends):
            constant = max(total, n - total) / n
            yield Threshold(math.nan, True, 0.5, constant, smallest)
            continue
        rows_below, positive_below = rows_below[ends], positive_below[ends]
        recall = 1 - positive_below / total
        specificity = (rows_below - positive_below) / (n - total)
        balanced = (recall + specificity) / 2
        best = int(np.abs(balanced - 0.5).argmax())
        score = float(balanced[best])
        agreement = float((total + rows_below[best] - 2 * positive_below[best]) / n)
        value = float(values[ends[best]])
        if score >= 0.5:
            yield Threshold(value, True, score, agreement, smallest)
        else:
            yield Threshold(value, False, 1 - score, 1 - agreement, smallest)


@dataclass(frozen=True)
class _Column:
    """Values of a column; the zeros of a sparse one are a single value."""

    values: np.ndarray
    positive: np.ndarray  # number of positive rows with each value
    rows: np.ndarray  # number of rows with each value


def _columns(x: np.ndarray | sp.csr_array, positive: np.ndarray) -> Iterator[_Column]:
    if isinstance(x, np.ndarray):
        for values in x.T:
            yield _Column(values, positive, np.ones(len(positive), dtype=int))
        return
    x = x.tocsc()
    for start, end in pairwise(x.indptr):
        values = x.data[start:end]
        stored_positive = positive[x.indices[start:end]].astype(int)
        rows = np.ones(len(values), dtype=int)
        if zeros := len(positive) - len(values):
            values = np.append(values, 0)
            rows = np.append(rows, zeros)
            stored_positive = np.append(stored_positive, positive.sum() - stored_positive.sum())
        yield _Column(values, stored_positive, rows)

r"""Thresholds per group that are drawn at random, for criteria on labels of two classes.

A threshold gives a group one rate of class 1 among the nodes of each true class: a point of its ROC
curve. Thresholds drawn with fixed probabilities give every point of the curve's convex hull, so
that all targets are met by a linear program (`Hardt, Price and Srebro, 2016
<https://arxiv.org/abs/1610.02413>`_) for any number of groups. Of its solutions, the one whose
changed margins have the smallest expected sum is taken; a vertex of the program draws from three
thresholds per group at most.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import block_diag, csr_array, hstack, vstack

from fairmp.nn.cuts import Floats, Integers
from fairmp.postprocessing.corrections import MIXED, ThresholdMixture
from fairmp.postprocessing.criteria import Measure
from fairmp.postprocessing.many_groups import TIME_LIMIT_S

MAX_CANDIDATES = 300  # thresholds of a group; mixtures of these reach the rates between them
MIN_SHARE = 1e-9  # smaller ones are rounding


def find_threshold_mixture(
    measures: Sequence[Measure],
    margin: Floats,
    group: Integers,
    weight: Floats,
    num_groups: int,
) -> ThresholdMixture | None:
    """The mixture that changes least and meets every target; None if the program is not solved.

    Args:
        measures: what must be within its target, on groups given as codes.
        margin: :math:`z_1 - z_0` of each node (n).
        group: 0…G−1, −1 for unknown (n).
        weight: of each node in what is changed (n); 0 outside the population.
        num_groups: G.
    """
    # What is summed above each threshold: changed margins, then the nodes of each measure.
    counted = [_weight_in(measure) for measure in measures]
    values = np.stack([weight * margin, *counted], 1)
    thresholds, sums, costs = [], [], []
    order = np.argsort(group, kind="stable")
    starts = np.searchsorted(group[order], np.arange(num_groups + 1))
    for nodes in np.split(order, starts)[1:-1]:
        candidates = _candidates(margin[nodes])
        above = _sums_above(margin[nodes], values[nodes], candidates)
        plain = _sums_above(margin[nodes], values[nodes], np.zeros(1))
        thresholds.append(candidates)
        sums.append(above[:, 1:])
        costs.append(plain[0, 0] - above[:, 0])
    sizes = [len(candidates) for candidates in thresholds]
    owner = np.repeat(np.arange(num_groups), sizes)
    shares = _shares(measures, counted, group, owner, np.concatenate(sums), np.concatenate(costs))
    if shares is None:
        return None
    return _mixture(thresholds, np.split(shares, np.cumsum(sizes)[:-1]))


def _weight_in(measure: Measure) -> Floats:
    """The weight of each node in the means that are compared (n)."""
    delta = measure.delta
    weight = np.ones(len(delta.population)) if delta.weight is None else delta.weight.cpu().numpy()
    return np.asarray(weight * measure.nodes.cpu().numpy(), dtype=np.float64)


def _candidates(margin: Floats) -> Floats:
    """Thresholds between margins of a group, outside them, and 0, which changes nothing."""
    values = np.unique(margin)
    if not len(values):
        return np.zeros(1)
    middle = values[:-1] + np.diff(values) / 2
    between = np.where(middle < values[1:], middle, values[:-1])
    if len(between) > MAX_CANDIDATES:
        between = between[np.linspace(0, len(between) - 1, MAX_CANDIDATES).astype(int)]
    return np.concatenate([between, [values[0] - 1, 0.0, values[-1] + 1]])


def _sums_above(margin: Floats, values: Floats, thresholds: Floats) -> Floats:
    """Sums of the values of nodes above each threshold."""
    order = np.argsort(-margin, kind="stable")
    sums = np.concatenate([np.zeros((1, values.shape[1])), values[order].cumsum(0)])
    return np.asarray(sums[np.searchsorted(-margin[order], -thresholds)])


def _shares(
    measures: Sequence[Measure],
    counted: Sequence[Floats],
    group: Integers,
    owner: Integers,
    sums: Floats,
    costs: Floats,
) -> Floats | None:
    """How often each threshold is drawn: all rates lie within half a target of a centre."""
    columns, num_groups = np.arange(len(owner)), owner[-1] + 1
    known = group >= 0
    rates, bounds, centres = [], [], []
    for measure, weight, above in zip(measures, counted, sums.T, strict=True):
        total = np.bincount(group[known], weight[known], num_groups)
        share = above / np.maximum(total, 1e-300)[owner]
        matrix = csr_array((share, (owner, columns)), shape=(num_groups, len(owner)))
        rates.append(matrix[np.flatnonzero(total > 0)])
        bounds.append(np.full(rates[-1].shape[0], measure.target / 2))
        centres.append(np.ones((rates[-1].shape[0], 1)))
    constraint = hstack([vstack(rates), -block_diag(centres)], format="csr")
    bound = np.concatenate(bounds)
    one = csr_array((np.ones(len(owner)), (owner, columns)), shape=(num_groups, len(owner)))
    program = linprog(
        np.concatenate([costs / max(costs.max(), 1e-300), np.zeros(len(centres))]),
        A_ub=vstack([constraint, -constraint], format="csr"),
        b_ub=np.concatenate([bound, bound]),
        A_eq=hstack([one, csr_array((num_groups, len(centres)))], format="csr"),
        b_eq=np.ones(num_groups),
        bounds=(0, 1),
        method="highs-ds",  # ends at a vertex
        options={"time_limit": TIME_LIMIT_S},
    )
    return program.x[: len(owner)] if program.status == 0 else None


def _mixture(thresholds: Sequence[Floats], shares: Sequence[Floats]) -> ThresholdMixture:
    """The thresholds of each group that are drawn, the most frequent one first."""
    table, rates = np.zeros((len(shares), MIXED)), np.zeros((len(shares), MIXED))
    for g, (candidates, share) in enumerate(zip(thresholds, shares, strict=True)):
        drawn = np.argsort(-share, kind="stable")[:MIXED]
        drawn = drawn[share[drawn] > MIN_SHARE]
        table[g] = candidates[drawn[0]]
        table[g, : len(drawn)] = candidates[drawn]
        rates[g, : len(drawn)] = share[drawn] / share[drawn].sum()
    return ThresholdMixture(table, rates)


def strata_of(group: Integers, y: Integers) -> NDArray[np.int64]:
    """Nodes of the same group and label, as numbers (n)."""
    return np.asarray(group * (int(y.max(initial=0)) + 1) + y)

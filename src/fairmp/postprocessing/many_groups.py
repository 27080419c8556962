r"""Transitions between classes for many groups, by a sparse linear program.

Each mean of a group lies within half the target of a centre, :math:`|m_{gc} - c_c| \le t/2`, which
takes one more number per class instead of a constraint for each two groups. The transitions that
change least are a linear program of :math:`GC^2` numbers; where it is not solved in time, everyone
has the mean prediction, which meets any target.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import block_diag, csr_array, diags_array, eye_array, hstack, kron, vstack

from fairmp.postprocessing.corrections import (
    Array,
    Membership,
    Transitions,
    proba,
    row_products,
    shares_of,
)
from fairmp.postprocessing.criteria import Measure
from fairmp.postprocessing.predictions import one_hot

TIME_LIMIT_S = 120.0
SLACK = 2.5e-5  # of each mean, within which a target counts as met


def constraints_of(measures: Sequence[Measure]) -> int:
    """Number of gaps between pairs of groups, over all classes."""
    rows = [measure.delta.num_rows for measure in measures]
    pairs = [n * (n - 1) // 2 for n in rows]
    return sum(pair * len(measure.classes) for pair, measure in zip(pairs, measures, strict=True))


def transitions_of_many(
    measures: Sequence[Measure],
    logits: Array,
    membership: Membership,
    weight: Array,
    temperature: float,
) -> Transitions:
    """The transitions that change least and meet every target, for nodes of one group each."""
    shares, base = csr_array(shares_of(membership)), proba(logits / temperature)
    groups, classes = shares.shape[1], base.shape[1]
    basis = csr_array(row_products(shares, base))
    transitions = groups * classes * classes
    rows, bounds, centres = [], [], []
    for measure in measures:
        means = _group_means(measure) @ basis
        for c in measure.classes:
            pick = np.zeros((1, classes))
            pick[0, c] = 1.0
            rows.append(kron(means, pick, format="csr"))
            bounds.append(np.full(means.shape[0], measure.target / 2 + SLACK))
            centres.append(np.ones((means.shape[0], 1)))
    constraint = hstack([vstack(rows), -block_diag(centres)], format="csr")
    bound = np.concatenate(bounds)
    total = weight / max(weight.sum(), 1e-300)
    changes = 1 - np.tile(np.eye(classes), (groups, 1)).ravel()
    cost = np.repeat(basis.T @ total, classes) * changes
    sums = kron(eye_array(groups * classes), np.ones((1, classes)), format="csr")
    empty = csr_array((sums.shape[0], len(centres)))
    program = linprog(
        np.concatenate([cost, np.zeros(len(centres))]),
        A_ub=vstack([constraint, -constraint], format="csr"),
        b_ub=np.concatenate([bound, bound]),
        A_eq=hstack([sums, empty], format="csr"),
        b_eq=np.ones(sums.shape[0]),
        bounds=(0, 1),
        method="highs",
        options={"time_limit": TIME_LIMIT_S},
    )
    tau = np.array(temperature)
    if program.status != 0:
        return Transitions(np.tile(total @ base, (groups, classes, 1)), tau)
    solution = program.x[:transitions].reshape(groups, classes, classes)
    return Transitions(np.clip(solution, 0.0, 1.0), tau)


def _group_means(measure: Measure) -> csr_array:
    """The matrix that takes the mean of each compared group (G'×n)."""
    delta = measure.delta
    assert delta.population_codes is not None
    members = one_hot(delta.population_codes, delta.num_groups, delta.weight)
    total = np.asarray(members.sum(0))
    compared = np.flatnonzero(total > 0)
    return csr_array(diags_array(1 / total[compared]) @ members.T[compared])

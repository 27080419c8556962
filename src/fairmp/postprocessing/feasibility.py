"""Whether predictions that meet all criteria exist at all, by a linear program."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fairmp.errors import InputError
from fairmp.postprocessing.criteria import Measure

ROUNDING = 1e-9


def check(measures: Sequence[Measure], classes: int) -> None:
    """Refuse criteria that no predictions can meet together.

    Raises:
        InputError: It names the smallest target that can be reached.

    Example:
        >>> import torch
        >>> from fairmp.postprocessing import criteria
        >>> everyone = torch.full((1, 4), 0.25)
        >>> asked = criteria.read(everyone, 0.1, 4)
        >>> found, _ = criteria.measures(asked, [], torch.ones(4, dtype=torch.bool), None, 2)
        >>> check(found, classes=2)
        Traceback (most recent call last):
        fairmp.errors.InputError: target: 0.1 can not be reached by 'matrix'; the smallest ...
    """
    short = shortfall(measures, classes)
    if short <= ROUNDING:
        return
    names = list(dict.fromkeys(measure.criterion for measure in measures))
    asked = list(dict.fromkeys(measure.target for measure in measures))
    who = " and ".join(repr(name) for name in names)
    targets = ", ".join(f"{target:g}" for target in asked)
    if len(asked) == 1:
        reach = f"the smallest target that can be reached is {_up(asked[0] + short)}"
    else:
        reach = f"each target must be {_up(short)} larger"
    raise InputError(
        "target",
        f"{targets} can not be reached by {who}{' together' * (len(names) > 1)}; {reach}",
        f"relax {'a target or leave a criterion out' if len(names) > 1 else 'the target'}",
    )


def shortfall(measures: Sequence[Measure], classes: int) -> float:
    r"""How much every target would have to grow for predictions to exist that meet them.

    .. math::
        \min_{s \ge 0,\, Q} s \quad \text{s.t.} \quad |\Delta_k Q| \le t_k + s,
        \quad Q_i \text{ in the simplex.}

    Nodes whose columns of Δ are the same may as well have the same prediction, so that the program
    has a variable for each kind of node and class.
    """
    # A prediction that is the same for everyone has the gap (row's sum)·q: 0 between groups.
    if not any(measure.own for measure in measures):
        return 0.0
    rowsums = [np.abs(_matrix(measure).sum(1)).max() / classes for measure in measures]
    if all(
        total <= measure.target + ROUNDING for total, measure in zip(rowsums, measures, strict=True)
    ):
        return 0.0
    from scipy.optimize import linprog
    from scipy.sparse import coo_array, csr_array, hstack, kron, vstack

    delta = np.concatenate([_matrix(measure) for measure in measures])
    kinds, counts = np.unique(delta.T, axis=0, return_counts=True)
    weights = csr_array(kinds.T * counts)
    spoken = np.concatenate(
        [
            np.tile(np.isin(np.arange(classes), measure.classes), (measure.delta.rows.size(0), 1))
            for measure in measures
        ]
    ).reshape(-1)
    targets = np.concatenate(
        [np.full(measure.delta.rows.size(0), measure.target) for measure in measures]
    ).repeat(classes)[spoken]
    gaps = csr_array(kron(weights, np.eye(classes)))[spoken]
    slack = coo_array(-np.ones((gaps.shape[0], 1)))
    whole = kron(np.eye(len(kinds)), np.ones((1, classes)))
    found = linprog(
        np.append(np.zeros(gaps.shape[1]), 1.0),
        A_ub=vstack([hstack([gaps, slack]), hstack([-gaps, slack])]),
        b_ub=np.concatenate([targets, targets]),
        A_eq=hstack([whole, coo_array((len(kinds), 1))]),
        b_eq=np.ones(len(kinds)),
        method="highs",
    )
    return float(found.fun) if found.status == 0 else 0.0


def _matrix(measure: Measure) -> np.ndarray:
    return np.asarray(measure.delta.matrix.cpu().numpy())


def _up(value: float) -> str:
    """A number with four digits, not rounded below itself."""
    digits = 3 - math.floor(math.log10(value)) if value > 0 else 0
    return f"{math.ceil(value * 10**digits - 1e-6) / 10**digits:g}"

"""Mend the predictions of any model, without training it again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fairmp.postprocessing import accounting as accounts
from fairmp.postprocessing.result import DebiasResult
from fairmp.postprocessing.solver import Asked, Temperature, solve


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
) -> Any:
    r"""Move predictions as little as possible until the groups are no further apart than asked.

    .. math::
        \min_Q \sum_i \mathrm{KL}(Q_i \| P_i) \quad \text{s.t.} \quad |\Delta Q| \le \text{target}

    For demographic parity and a user's matrix the result is a shift of each group's logits
    (:func:`~fairmp.nn.functional.projection`).  For equal opportunity and equalised
    odds it depends on a node's group and its own prediction, never on its label
    (``odds``). Either way the gap of the probabilities is within ``target`` to
    1e-4 where it is measured, or an error says how far one can get. The group of a node must be
    known, or probable, for its prediction to be mended; a node of unknown group is left alone.

    :func:`mend` does the same and tells what it did.

    Args:
        predictions: n×C logits or probabilities, or for two classes n probabilities of class 1; a
            torch tensor, a numpy array, or a pandas DataFrame or Series. Rows that are not negative
            and sum to 1 (or single numbers in [0, 1]) are taken for probabilities.
        sens: group of each node (n; −1 unknown), or probabilities of groups (n×G); or several
            attributes, as a dict, a DataFrame or a list of such. See
            :func:`fairmp.postprocessing.attributes.attributes`.
        target: the largest gap accepted, 0.02 for two points; or one for each criterion.
        edge_index: a graph (2×E); with it, predictions are also smoothed over neighbours.
        population: nodes whose gap is closed (n, bool); all of known group by default.
        temperature: τ; small, such as 0.1, to close the gap of decisions rather than probabilities;
            ``"decisions"`` finds one that does, for demographic parity.
        K: propagation steps, with a graph.
        lambda_s: strength of the smoothing, with a graph.
        criterion: ``"demographic_parity"``, ``"equal_opportunity"``, ``"equalised_odds"``, a matrix
            Δ of your own (rows×n, :math:`|\Delta Q| \le` target), or a list of these.
        labels: true classes (n, −1 unknown), for equal opportunity and equalised odds.
        estimate_sens: estimate the groups of nodes where they are unknown, so that they take part,
            weighted (:func:`fairmp.postprocessing.group_estimator.estimate`).
        features: what the estimate reads (n×d); by default the predictions. With a graph it also
            reads the neighbours' groups.

    Returns:
        Logits for logits and probabilities for probabilities, of the kind that was given.

    Raises:
        InputError: If an input is wrong, or a target can not be reached.

    Example:
        >>> import numpy as np
        >>> p = np.array([0.2, 0.4, 0.6, 0.9])
        >>> mended = debias(p, [0, 0, 1, 1], target=0.1)
        >>> round(float(mended[2:].mean() - mended[:2].mean()), 4)
        0.1
    """
    asked = Asked(
        sens, target, edge_index, population, temperature, K, lambda_s, criterion, labels,
        estimate_sens, features,
    )  # fmt: skip
    solved = solve(predictions, asked)
    return solved.given.like(solved.given.mended(solved.logits))


def mend(
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
    class_names: Sequence[str] | None = None,
    bootstrap: int = 200,
    seed: int = 0,
) -> DebiasResult:
    """Mend predictions as :func:`debias` does, and tell what changed.

    Args:
        predictions: see :func:`debias`, as for all that is not said here.
        sens: groups.
        target: the largest gap accepted.
        edge_index: a graph.
        population: nodes whose gap is closed.
        temperature: τ.
        K: propagation steps.
        lambda_s: strength of the smoothing.
        criterion: what is asked for.
        labels: true classes; with any criterion, they tell the accuracy before and after.
        estimate_sens: estimate unknown groups.
        features: what the estimate reads.
        class_names: names for the tables.
        bootstrap: resamples for the intervals of equal opportunity and equalised odds; 0 for none.
        seed: of the resamples.

    Example:
        >>> import numpy as np
        >>> p = np.array([0.2, 0.4, 0.6, 0.9, 0.55, 0.3])
        >>> found = mend(p, ["f", "f", "f", "m", "m", "m"], target=0.05)
        >>> found.changed, [(group.group, group.changed) for group in found.groups]
        (1, [('f', 0), ('m', 1)])
        >>> print(found)
        6 nodes: 1 decision changed (16.7 %)
        <BLANKLINE>
        gap in points       target  before  after  decided before  after  nodes
        demographic parity    5.00   18.33   5.00            33.3    0.0      6
        <BLANKLINE>
        group  nodes     changed   decided 1 %
        f          3   0 (0.0 %)   33.3 → 33.3
        m          3  1 (33.3 %)   66.7 → 33.3
    """
    asked = Asked(
        sens, target, edge_index, population, temperature, K, lambda_s, criterion, labels,
        estimate_sens, features,
    )  # fmt: skip
    solved = solve(predictions, asked)
    return accounts.account(solved, class_names, bootstrap=bootstrap, seed=seed)

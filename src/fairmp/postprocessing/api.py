"""Correct the predictions of any model without retraining it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Literal

from fairmp.nn.fmp import Temperature
from fairmp.postprocessing.solver import solve


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
    kind: str = "auto",
    class_names: Sequence[str] | None = None,
    ties: Literal["random", "keep"] = "random",
    seed: int = 0,
    sample_weight: Any = None,
    full_output: bool = False,
) -> Any:
    r"""Find the closest predictions whose gap between groups is at most the target.

    .. math::
        \min_Q \sum_i \mathrm{KL}(Q_i \| P_i) \quad \text{s.t.} \quad |\Delta Q| \le \text{target}

    For demographic parity and a matrix the result is a shift of the logits per group. For equal
    opportunity and equalized odds the correction depends on the group and the prediction of a node,
    never on its label. The gap of the probabilities is within ``target`` to 1e-4 where it is
    measured, or an error says which target can be reached. A node of unknown group is left alone.

    Args:
        predictions: n×C logits or probabilities, or n probabilities of class 1; a torch tensor, a
            numpy array, or a pandas DataFrame or Series.
        sens: group of each node (n; −1 unknown), or probabilities of groups (n×G); or several
            attributes, as a dict, a DataFrame or a list of such.
        target: the largest gap accepted, 0.02 for two points; or one for each criterion.
        edge_index: a graph (2×E); with it, predictions are also smoothed over neighbours.
        population: nodes whose gap is closed (n, bool); all nodes of known group by default.
        temperature: τ; small, such as 0.1, to close the gap of decisions rather than probabilities;
            ``"decisions"`` closes that of decisions themselves, for demographic parity, and for
            equal opportunity of two classes.
        K: propagation steps, with a graph.
        lambda_s: strength of the smoothing, with a graph.
        criterion: ``"demographic_parity"``, ``"equal_opportunity"`` (or
            ``"true_positive_rate_parity"``), ``"equalized_odds"``, a matrix Δ of your own (rows×n,
            :math:`|\Delta Q| \le` target), or a list of these.
        labels: true classes (n): numbers (−1 unknown) or names (empty unknown). Needed for equal
            opportunity and equalized odds.
        estimate_sens: estimate unknown groups, so that these nodes take part, weighted.
        features: inputs of the estimate (n×d), by default the predictions; with a graph the groups
            of the neighbours are inputs as well.
        kind: ``"logits"``, ``"probabilities"`` or ``"auto"``: rows in [0, 1] that sum to 1 are
            probabilities. One-hot rows are ambiguous and refused, unless the kind is given.
        class_names: names of the classes.
        ties: with ``temperature="decisions"`` and two classes, nodes with equal scores at a
            threshold are split at random (``"random"``) or get the same decision (``"keep"``).
        seed: of the random choice among ties.
        sample_weight: weight of each node (n), in gaps, rates and the divergence.
        full_output: return a :class:`~fairmp.postprocessing.result.DebiasResult`, which has the
            predictions and what changed.

    Returns:
        Logits for logits and probabilities for probabilities, in the type that was given.

    Example:
        >>> import numpy as np
        >>> p = np.array([0.2, 0.4, 0.6, 0.9, 0.55, 0.3])
        >>> fair = debias(p, [0, 0, 0, 1, 1, 1], target=0.1)
        >>> round(float(fair[3:].mean() - fair[:3].mean()), 4)
        0.1
        >>> print(debias(p, ["f", "f", "f", "m", "m", "m"], target=0.05, full_output=True))
        6 nodes: 1 decision changed (16.7 %)
        <BLANKLINE>
        gap in points       target  before  after  decided before  after  nodes
        demographic parity    5.00   18.33   5.00            33.3    0.0      6
        <BLANKLINE>
        group  nodes     changed   decided 1 %
        f          3   0 (0.0 %)   33.3 → 33.3
        m          3  1 (33.3 %)   66.7 → 33.3
    """
    options = {name: value for name, value in locals().items() if name != "full_output"}
    solution = solve(**options)
    if full_output:
        from fairmp.postprocessing.summary import summarise

        return summarise(solution)
    for text in solution.warnings + solution.missed:
        warnings.warn(text, stacklevel=2)
    return solution.given.like(solution.given.corrected(solution.logits))

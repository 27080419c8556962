"""Group-specific thresholds, the simplest fair decision to compare with."""

from __future__ import annotations

import warnings
from copy import copy
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator
from torch import Tensor

from fairmp.errors import InputError, check_choice, check_number
from fairmp.metrics.counts import Array, integers, weights
from fairmp.nn.cuts import Floats, Integers
from fairmp.nn.decisions import TARGET_HINT, TIES, DecisionRule, Ties, equal_rates
from fairmp.postprocessing.predictions import read_scores


class GroupThresholds(BaseEstimator):
    r"""One threshold per group on the scores of any model of two classes.

    A node of group :math:`s` with log-odds :math:`d = z_1 - z_0` is selected (class 1) where
    :math:`d > t_s`; a plain model has :math:`t_s = 0`, that is probability ½, for everyone. There
    are two ways to choose the thresholds, the counterparts of per-node and batch prediction:

    - :meth:`fit`, "thresholds (validation)": on labelled nodes, the thresholds of highest accuracy
      among those whose selection rates differ by at most ``target`` (or half a node of each of the
      two smallest groups), found exactly. They apply to any node, one at a time.
    - :meth:`solve`, "thresholds (batch)": on the nodes to be predicted, without their labels, so
      that every group has the same selection rate.

    Nodes of one group with equal scores at the threshold are split at random under ``seed``, with
    ``ties="random"``, or all selected or none selected, with ``ties="keep"``. A node of unknown
    group (−1) keeps the threshold ½.

    Args:
        target: the largest difference of selection rates accepted, 0.02 for two points.
        ties: ``"random"`` or ``"keep"``.
        seed: of the random choice among ties.
        kind: ``"logits"``, ``"probabilities"`` or ``"auto"``, decided by the scores it is fitted on
            (:func:`~fairmp.metrics.counts.are_probabilities`).

    Attributes:
        rule_: the :class:`~fairmp.nn.decisions.DecisionRule`: thresholds on the log-odds, shares of
            the nodes at a threshold that are selected, and the rate and gap that result.
        kind_: ``"logits"`` or ``"probabilities"``.

    Example:
        >>> scores = np.array([[0.0, 3.0], [0.0, 1.0], [0.0, -1.0], [0.0, -3.0]])
        >>> sex = [0, 0, 1, 1]
        >>> rule = GroupThresholds().fit(scores, [1, 0, 1, 0], sensitive_features=sex)
        >>> rule.predict(scores, sensitive_features=sex)
        tensor([1, 0, 1, 0])
        >>> rule.solve(scores, sensitive_features=sex, rate=0.5).rule_.thresholds
        array([ 2., -2.])
    """

    rule_: DecisionRule
    kind_: str

    def __init__(
        self,
        target: float = 0.0,
        *,
        ties: Ties = "random",
        seed: int = 0,
        kind: str = "auto",
    ) -> None:
        self.target, self.ties, self.seed, self.kind = target, ties, seed, kind

    def fit(
        self, X: Array, y: Array, *, sensitive_features: Array, sample_weight: Array | None = None
    ) -> Self:
        """Choose the most accurate thresholds whose rates differ by at most ``target``.

        Args:
            X: logits or probabilities (n×2).
            y: labels; an unlabelled node (−1) counts for the rate of its group alone.
            sensitive_features: groups, −1 where unknown; such nodes are left out.
            sample_weight: weight of each node.
        """
        self._check_params()
        self.kind_, margin = _log_odds(X, self.kind)
        group = _known_groups(sensitive_features, len(margin))
        labels = integers(y, "y", len(margin))
        if labels.max(initial=-1) > 1:
            raise InputError("y", f"class {labels.max()} for two classes", "give 0, 1 and -1")
        if not (labels[group >= 0] >= 0).any():
            raise InputError("y", "no node of known group is labelled", "use solve()")
        weight = weights(sample_weight, len(margin))
        self.rule_ = equal_rates(
            margin, group, target=self.target, weight=weight, y=labels, ties=self.ties
        )
        self._warn_if_constant()
        return self

    def solve(
        self,
        X: Array,
        *,
        sensitive_features: Array,
        rate: float | None = None,
        sample_weight: Array | None = None,
    ) -> Self:
        """Return new thresholds that give every group of these nodes the same selection rate.

        With a ``target`` above 0 the plain rate of a group is moved no further than to the nearer
        end of ``rate ± target/2``. A rate is met to within half a node.

        Args:
            X: logits or probabilities of the nodes to be predicted (n×2).
            sensitive_features: their groups, −1 where unknown.
            rate: the rate; by default that of :meth:`fit`, else of the plain model on these nodes.
            sample_weight: weight of each node.
        """
        self._check_params()
        solved = copy(self)
        solved.kind_, margin = _log_odds(X, getattr(self, "kind_", self.kind))
        group = _known_groups(sensitive_features, len(margin))
        weight = weights(sample_weight, len(margin))
        if rate is None and hasattr(self, "rule_"):
            rate = self.rule_.rate
        elif rate is None:
            rate = float(np.average(margin > 0, weights=weight * (group >= 0)))
        check_number("rate", rate, "give the share to select, in [0, 1]", low=0, high=1)
        solved.rule_ = equal_rates(
            margin, group, target=self.target, weight=weight, rate=rate, ties=self.ties
        )
        if 0 < rate < 1:
            solved._warn_if_constant()
        return solved

    def predict(self, X: Array, *, sensitive_features: Array) -> Tensor:
        """Return decisions: 1 where the log-odds of a node are above the threshold of its group."""
        return self.shift(X, sensitive_features=sensitive_features).argmax(1)

    def shift(self, X: Array, *, sensitive_features: Array) -> Tensor:
        """Return logits (n×2, 0 for class 0) less the threshold of each node's group."""
        if not hasattr(self, "rule_"):
            raise InputError("GroupThresholds", "no thresholds yet", "call fit() or solve() first")
        _, margin = _log_odds(X, self.kind_)
        group = integers(sensitive_features, "sensitive_features", len(margin))
        if group.max() >= len(self.rule_.thresholds):
            value = f"group {group.max()} was not seen when the thresholds were chosen"
            raise InputError("sensitive_features", value, "mark it unknown (-1)")
        shifted, _ = self.rule_.apply(margin, group, seed=self.seed)
        logits = torch.from_numpy(np.stack([np.zeros_like(shifted), shifted], 1))
        return logits.to(X.device) if isinstance(X, Tensor) else logits

    def _check_params(self) -> None:
        check_number("target", self.target, TARGET_HINT, low=0, high=1)
        check_choice("ties", self.ties, TIES)

    def _warn_if_constant(self) -> None:
        if self.rule_.rate in (0.0, 1.0):
            selected = "every" if self.rule_.rate else "no"
            hint = " or ties='random'" if self.ties == "keep" else ""
            text = f"the thresholds select {selected} node of known group; allow a larger target"
            warnings.warn(text + hint, stacklevel=3)


def _known_groups(values: Any, n: int) -> Integers:
    """Groups of n nodes, two or more, each of which has a node."""
    group = integers(values, "sensitive_features", n)
    counts = np.bincount(group[group >= 0])
    if len(counts) < 2 or not counts.all():
        value = f"nodes by group are {counts.tolist()}"
        hint = "thresholds are chosen on nodes of every group, two groups at least"
        raise InputError("sensitive_features", value, hint)
    return group


def _log_odds(X: Any, kind: str) -> tuple[str, Floats]:
    """The kind of the scores, and the log-odds of class 1."""
    scores = read_scores(X, kind, argument="X")
    if scores.logits.size(1) != 2:
        raise InputError("X", f"{scores.logits.size(1)} classes", "thresholds are for 2 classes")
    logits = scores.logits.double().cpu().numpy()
    return "probabilities" if scores.are_probabilities else "logits", logits[:, 1] - logits[:, 0]

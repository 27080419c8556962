"""Group-wise thresholds: the simplest fair decision to compare with."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from fairmp.errors import InputError
from fairmp.metrics import Array

VALIDATION, BATCH = "thresholds (validation)", "thresholds (batch)"


class GroupThresholds:
    r"""One threshold a group on the scores of any model of two classes.

    A node of group :math:`s` with log-odds :math:`d = z_1 - z_0` is selected (class 1) where
    :math:`d > t_s`; a plain model has :math:`t_s = 0`, that is probability ½, for everyone. There
    are two ways to choose the thresholds, the twins of the two ways a fair propagation predicts:

    - :meth:`fit`, "thresholds (validation)": on labelled nodes, the thresholds of highest accuracy
      among those whose selection rates differ by at most ``target``, found exactly. They then serve
      any node one at a time; on other nodes the rates differ by what sampling adds.
    - :meth:`solve`, "thresholds (batch)": on the very nodes to be predicted, without their labels,
      so that every group has the same selection rate.

    The thresholds are deterministic: nodes of one group and one score are all selected or none,
    where randomised thresholds would split them. With n_s nodes a group's rate moves in steps of
    1/n_s, so rates count as equal within half a step of either group (of the two smallest ones, for
    more groups): the gap allowed by :meth:`fit` is the larger of that and ``target``. Scores may
    be logits or probabilities (n×2; rows of numbers in [0, 1] that sum to 1 are probabilities). A
    node of unknown group (−1) keeps the threshold ½. The group of a node must be known at
    prediction, as for a fair propagation.

    Args:
        target: the largest difference of selection rates accepted, 0.02 for two points.

    Attributes:
        thresholds_: each group's threshold on the log-odds (G, float64).
        rate_: the share of the nodes of known group that was selected.
        name: ``"thresholds (validation)"`` or ``"thresholds (batch)"``, for tables.

    Example:
        >>> scores = torch.tensor([[0.0, 3.0], [0.0, 1.0], [0.0, -1.0], [0.0, -3.0]])
        >>> y, sens = torch.tensor([1, 0, 1, 0]), torch.tensor([0, 0, 1, 1])
        >>> GroupThresholds().fit(scores, y, sens).predict(scores, sens)
        tensor([1, 0, 1, 0])
        >>> GroupThresholds().solve(scores, sens, rate=0.5).thresholds_
        tensor([ 2., -2.], dtype=torch.float64)
    """

    thresholds_: Tensor
    rate_: float
    name: str = VALIDATION

    def __init__(self, target: float = 0.0) -> None:
        if not 0 <= target <= 1:
            raise InputError(
                "target",
                f"{target!r} is outside [0, 1]",
                "give the largest gap you accept, 0.02 for two points",
            )
        self.target = float(target)

    def fit(self, scores: Array, y: Array, sens: Array) -> GroupThresholds:
        """Choose the most accurate thresholds whose rates differ by at most ``target``.

        The smallest of the groups' rates is one of the rates that can be reached: for each of
        these, every group takes its most accurate threshold with a rate between it and it plus
        ``target``. All of them are tried.

        Args:
            scores: logits or probabilities (n×2).
            y: labels; an unlabelled node (−1) counts for its group's rate alone.
            sens: groups, −1 where unknown; such nodes are left out.
        """
        odds = _odds(scores).numpy()
        group = _integers(sens, "sens", len(odds)).numpy()
        label = _integers(y, "y", len(odds)).numpy()
        if label.max(initial=-1) > 1:
            raise InputError(
                "y", f"class {label.max()} for two columns of scores", "give 0, 1 and -1"
            )
        if not (label[group >= 0] >= 0).any():
            raise InputError(
                "y", "no node of known group is labelled", "use solve(), which needs none"
            )
        curves = _curves(odds, group, label)
        steps = sorted((1 / curve.count for curve in curves), reverse=True)
        allowed = max(self.target, (steps[0] + steps[1]) / 2) + 1e-12
        low = np.unique(np.concatenate([curve.rates for curve in curves]))
        windows = [
            (curve.rates.searchsorted(low), curve.rates.searchsorted(low + allowed, side="right"))
            for curve in curves
        ]
        best = [
            _range_max(curve.hits, first, last)
            for curve, (first, last) in zip(curves, windows, strict=True)
        ]
        w = int(np.sum(best, axis=0).argmax())
        cuts = [
            int(first[w] + curve.hits[first[w] : last[w]].argmax())
            for curve, (first, last) in zip(curves, windows, strict=True)
        ]
        self._take(curves, cuts)
        self.name = VALIDATION
        return self

    def solve(self, scores: Array, sens: Array, rate: float | None = None) -> GroupThresholds:
        """Return thresholds that give every group of these nodes the same selection rate.

        With a ``target`` above 0 a group's plain rate is moved no further than to the nearer end of
        ``rate ± target/2``. A rate is met to within half a node, save where scores are tied.

        Args:
            scores: logits or probabilities of the nodes to be predicted (n×2).
            sens: their groups, −1 where unknown.
            rate: the rate; by default the one chosen by :meth:`fit` where there was one, else the
                plain model's on these nodes.

        Returns:
            New thresholds, named "thresholds (batch)"; these stay as they are.
        """
        odds = _odds(scores).numpy()
        group = _integers(sens, "sens", len(odds)).numpy()
        if rate is None:
            rate = getattr(self, "rate_", None)
        if rate is None:
            rate = float((odds[group >= 0] > 0).mean())
        if not 0 <= rate <= 1:
            raise InputError("rate", f"{rate!r} is outside [0, 1]", "give the share to select")
        curves = _curves(odds, group, np.full(len(odds), -1))
        cuts = []
        for g, curve in enumerate(curves):
            plain = (odds[group == g] > 0).mean()
            wanted = np.clip(plain, rate - self.target / 2, rate + self.target / 2)
            cuts.append(int(np.abs(curve.rates - wanted).argmin()))
        solved = GroupThresholds(self.target)
        solved._take(curves, cuts)
        solved.name = BATCH
        return solved

    def predict(self, scores: Array, sens: Array) -> Tensor:
        """Decide: 1 where a node's log-odds are above its group's threshold."""
        return self.shift(scores, sens).argmax(1)

    def shift(self, scores: Array, sens: Array) -> Tensor:
        """Return logits (n×2, class 0's are 0) whose log-odds are moved by the group's threshold.

        Their ``argmax`` is the decision, so :func:`fairmp.metrics.evaluate` can be fed with them.
        """
        if not hasattr(self, "thresholds_"):
            raise InputError("GroupThresholds", "no thresholds yet", "call fit() or solve() first")
        odds = _odds(scores)
        group = _integers(sens, "sens", len(odds))
        if int(group.max()) >= len(self.thresholds_):
            raise InputError(
                "sens",
                f"group {int(group.max())} was not there when the thresholds were chosen (groups "
                f"0…{len(self.thresholds_) - 1})",
                "mark it unknown (-1)",
            )
        moved = torch.where(group >= 0, self.thresholds_[group.clamp_min(0)], 0.0)
        margin = odds - moved
        logits = torch.stack([torch.zeros_like(margin), margin], dim=1)
        return logits.to(scores.device) if isinstance(scores, Tensor) else logits

    def _take(self, curves: list[_Curve], cuts: list[int]) -> None:
        chosen = [curve.thresholds[cut] for curve, cut in zip(curves, cuts, strict=True)]
        self.thresholds_ = torch.tensor(chosen, dtype=torch.float64)
        selected = sum(
            curve.rates[cut] * curve.count for curve, cut in zip(curves, cuts, strict=True)
        )
        self.rate_ = float(selected / sum(curve.count for curve in curves))

    def __repr__(self) -> str:
        return f"GroupThresholds(target={self.target})"


class _Curve:
    """One group's possible cuts: how many each selects, and how many it gets right."""

    def __init__(self, odds: np.ndarray, label: np.ndarray) -> None:
        order = np.argsort(-odds, kind="stable")
        odds, label = odds[order], label[order]
        self.count = len(odds)
        # A cut between equal scores is none.
        cuts = np.flatnonzero(np.r_[True, odds[:-1] != odds[1:], True])
        won = (label == 1).astype(np.int64) - (label == 0)
        self.hits = ((label == 0).sum() + np.r_[0, won.cumsum()])[cuts]
        self.rates = cuts / self.count
        above = np.r_[math.inf, odds][cuts]
        below = np.r_[odds, -math.inf][cuts]
        with np.errstate(invalid="ignore"):
            middle = below + (above - below) / 2
        middle = np.where(np.isinf(above), below + 1, np.where(np.isinf(below), above - 1, middle))
        middle = np.where(middle < above, middle, below)
        # Where the plain decision makes the same cut, it stays.
        self.thresholds = np.where((below <= 0) & (above > 0), 0.0, middle)


def _curves(odds: np.ndarray, group: np.ndarray, label: np.ndarray) -> list[_Curve]:
    counts = np.bincount(group[group >= 0])
    if len(counts) < 2 or not counts.all():
        raise InputError(
            "sens",
            f"nodes by group are {counts.tolist()}",
            "thresholds are chosen on nodes of every group, two groups at least",
        )
    return [_Curve(odds[group == g], label[group == g]) for g in range(len(counts))]


def _range_max(values: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """The largest of ``values[first:last]`` for many windows at once; −inf for empty ones."""
    # Level j holds the maxima of 2^j neighbours: two of them, overlapping, make any window.
    levels = [values.astype(float)]
    while 2 ** len(levels) <= len(values):
        half = 2 ** (len(levels) - 1)
        levels.append(np.maximum(levels[-1][:-half], levels[-1][half:]))
    length = last - first
    result = np.full(len(first), -math.inf)
    for j, level in enumerate(levels):
        here = (length >= 2**j) & (length < 2 ** (j + 1))
        result[here] = np.maximum(level[first[here]], level[last[here] - 2**j])
    return result


def _odds(scores: Array) -> Tensor:
    """The log-odds of class 1, from logits or probabilities."""
    values = torch.as_tensor(scores).detach().cpu().double()
    if values.dim() != 2 or values.size(1) != 2 or not len(values):
        raise InputError(
            "scores", f"shape {tuple(values.shape)} is not n×2", "thresholds are for two classes"
        )
    if not bool(torch.isfinite(values).all()):
        raise InputError("scores", "some are nan or infinite", "look for a diverged training")
    if bool((values >= 0).all()) and bool(((values.sum(1) - 1).abs() < 1e-4).all()):
        values = values.clamp_min(torch.finfo(torch.float64).tiny).log()
    return values[:, 1] - values[:, 0]


def _integers(values: Array, name: str, n: int) -> Tensor:
    result = torch.as_tensor(values).detach().cpu()
    if result.shape != (n,) or result.is_floating_point() or (n and int(result.min()) < -1):
        raise InputError(
            name,
            f"{result.dtype} of shape {tuple(result.shape)}",
            f"give an integer for each of {n} nodes, -1 where unknown",
        )
    return result.long()

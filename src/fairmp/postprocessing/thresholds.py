"""Group-specific thresholds, the simplest fair decision to compare with."""

from __future__ import annotations

import math
import warnings
from copy import copy
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fairmp.errors import InputError, check_choice, check_number
from fairmp.metrics.counts import Array, are_probabilities, integers, weights

MIN_MARGIN = 1e-4  # of corrected log-odds, so that decisions survive rounding to float32


class GroupThresholds:
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
        kind: ``"logits"``, ``"probabilities"`` or ``"auto"``, which decides by the first scores
            seen (:func:`~fairmp.metrics.counts.are_probabilities`).

    Example:
        >>> scores = torch.tensor([[0.0, 3.0], [0.0, 1.0], [0.0, -1.0], [0.0, -3.0]])
        >>> y, sens = torch.tensor([1, 0, 1, 0]), torch.tensor([0, 0, 1, 1])
        >>> GroupThresholds().fit(scores, y, sens).predict(scores, sens)
        tensor([1, 0, 1, 0])
        >>> GroupThresholds().solve(scores, sens, rate=0.5).thresholds_
        tensor([ 2., -2.], dtype=torch.float64)
    """

    thresholds_: Tensor  # of each group on the log-odds (G, float64)
    tie_rates_: Tensor  # share of the nodes at the threshold that is selected (G, float64)
    rate_: float  # share of the nodes of known group that is selected
    drawn_: int  # nodes at a threshold of which some are selected and some are not
    excess_: float  # of the difference of rates over the target and one node of the smallest group

    def __init__(
        self,
        target: float = 0.0,
        *,
        ties: Literal["random", "keep"] = "random",
        seed: int = 0,
        kind: str = "auto",
    ) -> None:
        hint = "give the largest gap you accept: a number in [0, 1], 0.02 for two points"
        self.target = check_number("target", target, hint, low=0, high=1)
        self.ties = check_choice("ties", ties, ("random", "keep"))
        self.seed, self.kind_ = seed, kind

    def fit(
        self, scores: Array, y: Array, sens: Array, *, sample_weight: Array | None = None
    ) -> GroupThresholds:
        """Choose the most accurate thresholds whose rates differ by at most ``target``.

        Args:
            scores: logits or probabilities (n×2).
            y: labels; an unlabelled node (−1) counts for the rate of its group alone.
            sens: groups, −1 where unknown; such nodes are left out.
            sample_weight: weight of each node.
        """
        # The smallest rate of the groups is one of those that can be reached: try each, with the
        # most accurate threshold of every group whose rate is between it and it plus the target.
        odds = self._odds(scores).numpy()
        group = integers(sens, "sens", len(odds))
        label = integers(y, "y", len(odds))
        if label.max(initial=-1) > 1:
            raise InputError("y", f"class {label.max()} for two classes", "give 0, 1 and -1")
        if not (label[group >= 0] >= 0).any():
            raise InputError("y", "no node of known group is labelled", "use solve()")
        curves = self._curves(odds, group, label, weights(sample_weight, len(odds)))
        steps = sorted((curve.step for curve in curves), reverse=True)
        allowed = max(self.target, (steps[0] + steps[1]) / 2) + 1e-12
        low = np.unique(np.concatenate([curve.rates for curve in curves]))
        first = [curve.rates.searchsorted(low) for curve in curves]
        last = [curve.rates.searchsorted(low + allowed, side="right") for curve in curves]
        hits = sum(map(_range_max, [curve.hits for curve in curves], first, last))
        w = int(np.argmax(hits))
        windows = zip(curves, first, last, strict=True)
        cuts = [int(a[w] + curve.hits[a[w] : b[w]].argmax()) for curve, a, b in windows]
        self._take(curves, cuts, warn=True)
        return self

    def solve(
        self,
        scores: Array,
        sens: Array,
        rate: float | None = None,
        *,
        sample_weight: Array | None = None,
    ) -> GroupThresholds:
        """Return new thresholds that give every group of these nodes the same selection rate.

        With a ``target`` above 0 the plain rate of a group is moved no further than to the nearer
        end of ``rate ± target/2``. A rate is met to within half a node.

        Args:
            scores: logits or probabilities of the nodes to be predicted (n×2).
            sens: their groups, −1 where unknown.
            rate: the rate; by default that of :meth:`fit`, else of the plain model on these nodes.
            sample_weight: weight of each node.
        """
        odds = self._odds(scores).numpy()
        group = integers(sens, "sens", len(odds))
        weight = weights(sample_weight, len(odds))
        rate = getattr(self, "rate_", None) if rate is None else rate
        if rate is None:
            rate = float(np.average(odds > 0, weights=weight * (group >= 0)))
        check_number("rate", rate, "give the share to select, in [0, 1]", low=0, high=1)
        curves = self._curves(odds, group, np.full(len(odds), -1), weight)
        cuts = []
        for g, curve in enumerate(curves):
            plain = np.average(odds > 0, weights=weight * (group == g))
            wanted = np.clip(plain, rate - self.target / 2, rate + self.target / 2)
            cuts.append(int(np.abs(curve.rates - wanted).argmin()))
        result = copy(self)
        result._take(curves, cuts, warn=0 < rate < 1)
        return result

    def predict(self, scores: Array, sens: Array) -> Tensor:
        """Return decisions: 1 where the log-odds of a node are above the threshold of its group."""
        return self.shift(scores, sens).argmax(1)

    def shift(self, scores: Array, sens: Array) -> Tensor:
        """Return logits (n×2, 0 for class 0) less the threshold of each node's group."""
        margin, _ = self._margins(scores, sens)
        logits = torch.stack([torch.zeros_like(margin), margin], dim=1)
        return logits.to(scores.device) if isinstance(scores, Tensor) else logits

    def correct(self, logits: Tensor, sens: Tensor) -> tuple[Tensor, int]:
        """Shifted logits (n×2) whose ``argmax`` is the decision, and how many were drawn."""
        margin, drawn = self._margins(logits, sens)
        half = margin.to(logits.device).unsqueeze(1) / 2
        return torch.where(sens.unsqueeze(1) >= 0, torch.cat([-half, half], 1), logits), drawn

    def _margins(self, scores: Array, sens: Array) -> tuple[Tensor, int]:
        """Log-odds less the threshold, away from 0 where the group is known, and how many tie."""
        if not hasattr(self, "thresholds_"):
            raise InputError("GroupThresholds", "no thresholds yet", "call fit() or solve() first")
        odds = self._odds(scores)
        group = torch.from_numpy(integers(sens, "sens", len(odds)))
        if int(group.max()) >= len(self.thresholds_):
            value = f"group {int(group.max())} was not seen when the thresholds were chosen"
            raise InputError("sens", value, "mark it unknown (-1)")
        known = group >= 0
        margin = odds - torch.where(known, self.thresholds_[group.clamp_min(0)], 0.0)
        tied = known & (margin == 0)
        least = torch.where(margin > 0, MIN_MARGIN, -MIN_MARGIN)
        margin = torch.where(known & (margin.abs() < MIN_MARGIN), least, margin)
        drawn = 0
        for g, share in enumerate(self.tie_rates_.tolist()):
            rows = (tied & (group == g)).nonzero().flatten()
            if len(rows) and share:
                drawn += len(rows)
                draw = torch.Generator().manual_seed(self.seed + g)
                order = torch.randperm(len(rows), generator=draw)
                # A fraction of a node is drawn too, so that single rows have their share.
                part = round(share * len(rows), 6) + float(torch.rand(1, generator=draw))
                margin[rows[order[: int(part)]]] = MIN_MARGIN
        return margin, drawn

    def _take(self, curves: list[_Curve], cuts: list[int], *, warn: bool) -> None:
        pairs = list(zip(curves, cuts, strict=True))
        self.thresholds_ = torch.tensor([curve.thresholds[cut] for curve, cut in pairs])
        self.tie_rates_ = torch.tensor([curve.tie_rates[cut] for curve, cut in pairs])
        self.drawn_ = int(sum(curve.tied[cut] for curve, cut in pairs))
        rates = [curve.rates[cut] for curve, cut in pairs]
        one_node = max(curve.step for curve in curves)
        self.excess_ = float(max(rates) - min(rates) - self.target - one_node)
        selected = sum(curve.rates[cut] * curve.total for curve, cut in pairs)
        self.rate_ = float(selected / sum(curve.total for curve in curves))
        if warn and self.rate_ in (0.0, 1.0):
            who = "every" if self.rate_ else "no"
            hint = "allow a larger target" + " or {ties='random'}" * (self.ties == "keep")
            warnings.warn(f"the thresholds select {who} node of known group; {hint}", stacklevel=3)

    def _curves(
        self, odds: np.ndarray, group: np.ndarray, label: np.ndarray, weight: np.ndarray
    ) -> list[_Curve]:
        counts = np.bincount(group[group >= 0])
        if len(counts) < 2 or not counts.all():
            hint = "thresholds are chosen on nodes of every group, two groups at least"
            raise InputError("sens", f"nodes by group are {counts.tolist()}", hint)
        return [
            _Curve(odds[own], label[own], weight[own], self.ties == "random")
            for own in (group == g for g in range(len(counts)))
        ]

    def _odds(self, scores: Array) -> Tensor:
        """The log-odds of class 1, from logits or probabilities."""
        values = torch.as_tensor(scores).detach().cpu().double()
        if values.dim() != 2 or values.size(1) != 2 or not len(values):
            value = f"shape {tuple(values.shape)} is not n×2"
            raise InputError("scores", value, "thresholds are for 2 classes")
        if not bool(torch.isfinite(values).all()):
            raise InputError("scores", "some are nan or infinite", "check that training converged")
        probabilities = are_probabilities(values, self.kind_, argument="scores")
        self.kind_ = "probabilities" if probabilities else "logits"
        if probabilities:
            values = values.clamp_min(torch.finfo(torch.float64).tiny).log()
        return values[:, 1] - values[:, 0]

    def __repr__(self) -> str:
        return f"GroupThresholds(target={self.target})"


class _Curve:
    """Possible cuts of one group: the share of its nodes each selects, and how many are right."""

    # Between equal scores there is no cut, or with split one per node: then a share of the nodes
    # at the threshold is selected, and the hits are those expected of a random choice.
    def __init__(
        self, odds: np.ndarray, label: np.ndarray, weight: np.ndarray, split: bool
    ) -> None:
        order = np.argsort(-odds, kind="stable")
        odds, label, weight = odds[order], label[order], weight[order]
        edges = np.flatnonzero(np.r_[True, odds[:-1] != odds[1:], True])
        cuts = np.arange(len(odds) + 1) if split else edges
        won = weight * ((label == 1).astype(np.int64) - (label == 0))
        hits, selected = (np.r_[0, part.cumsum()][edges] for part in (won, weight))
        self.hits = np.interp(cuts, edges, hits) + weight[label == 0].sum()
        self.total = weight.sum()
        self.rates = np.interp(cuts, edges, selected) / self.total
        self.step = weight.max() / self.total  # what one node changes
        above = np.r_[math.inf, odds][cuts]
        below = np.r_[odds, -math.inf][cuts]
        with np.errstate(invalid="ignore"):
            middle = below + (above - below) / 2
        middle = np.where(np.isinf(above), below + 1, np.where(np.isinf(below), above - 1, middle))
        middle = np.where(middle < above, middle, below)
        # Where the plain decision makes the same cut, it stays.
        self.thresholds = np.where((below <= 0) & (above > 0), 0.0, middle)
        inside = above == below
        self.thresholds[inside] = above[inside]
        start = np.searchsorted(edges, cuts, side="right") - 1
        stop = np.minimum(start + 1, len(edges) - 1)
        size = np.maximum(edges[stop] - edges[start], 1)
        self.tied = np.where(inside, size, 0)
        self.tie_rates = np.where(inside, (cuts - edges[start]) / size, 0.0)


def _range_max(values: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """The largest of ``values[first:last]`` for many windows at once; −inf for empty ones."""
    # Level j holds the maxima of 2^j neighbours: two of them, overlapping, cover any window.
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

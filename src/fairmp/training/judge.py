"""Which candidates predict held-out nodes best, alone and blended, and with which smoothing."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fairmp.nn.fmp import PPR
from fairmp.nn.models import BACKBONES, Network, name_of
from fairmp.training.calibration import (
    HeldOut,
    PlainPropagation,
    fit_calibration,
    propagate_uncorrected,
)
from fairmp.training.estimators import Classifier
from fairmp.training.graph_features import FeatureView
from fairmp.training.nodes import TrainingNodes

MAX_MEMBERS = 5  # of a blend
MAX_THETA = 40.0  # of a step that does not propagate: σ(40) = 1 in double precision

SkipWeights = tuple[float, ...]  # γ of each step


@dataclass(frozen=True)
class Candidate:
    """A backbone, and what it sees of a node."""

    backbone: str | nn.Module | Classifier
    view: FeatureView

    @property
    def name(self) -> str:
        """Name of the backbone."""
        return name_of(self.backbone)

    @property
    def is_network(self) -> bool:
        """Whether it is trained through the propagation."""
        return isinstance(self.backbone, nn.Module) or self.backbone in BACKBONES


@dataclass(frozen=True)
class Score:
    """Figures of held-out nodes with one smoothing, and the slope that calibrates them."""

    accuracy: float
    loss: float
    gamma: SkipWeights
    slope: float


@dataclass
class CandidateFits:
    """A candidate, and its model of each fold with what it predicts."""

    candidate: Candidate
    smoothings: list[SkipWeights]  # to choose from
    models: list[nn.Module] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)  # of all nodes, before propagation (n×C)
    rows: dict[tuple[int, SkipWeights], Tensor] = field(default_factory=dict)  # held out (m×C)
    seconds: float = 0.0
    score: Score | None = None

    @property
    def slope(self) -> float:
        """What calibrates it, once it is judged."""
        assert self.score is not None
        return self.score.slope


@dataclass(frozen=True)
class Blending:
    """How often each candidate counts, and the figures of their average."""

    counts: dict[int, int]
    score: Score

    @property
    def shares(self) -> dict[int, float]:
        """Weight of each candidate that counts."""
        total = sum(self.counts.values())
        return {k: count / total for k, count in self.counts.items()}


class Judge:
    """Measures what candidates predict of held-out nodes: propagated and calibrated.

    Plain propagation is linear, so each candidate is propagated once per smoothing, and a blend is
    an average of what was propagated.
    """

    def __init__(
        self,
        nodes: TrainingNodes,
        propagation: nn.Module | None,
        held: Sequence[Tensor],
        *,
        calibrate: bool,
    ) -> None:
        self.nodes, self.propagation, self.calibrate = nodes, propagation, calibrate
        self.held = held  # the nodes held out in each fold (masks)
        self.ones: dict[SkipWeights, Tensor] = {}  # propagated (n×1)

    def smoothings(self) -> list[SkipWeights]:
        """Skip weights to choose from; one entry if the smoothing is not learned."""
        layer = self.propagation
        if not isinstance(layer, PPR):
            return [()]
        if layer.theta is None:
            return [layer.gamma]
        smoothed = [(0, 1.0), (1, 0.8), (1, 0.5), (layer.K, 0.8), (layer.K, 0.5), (layer.K, 0.25)]
        weights = [(1.0,) * (layer.K - steps) + (gamma,) * steps for steps, gamma in smoothed]
        return list(dict.fromkeys(weights))

    def rows(self, fits: CandidateFits, gamma: SkipWeights, folds: int) -> Tensor:
        """What a candidate predicts of the nodes held out in the first folds, propagated (m×C)."""
        for fold in range(folds):
            if (fold, gamma) not in fits.rows:
                plain = self._propagated(fits.logits[fold], gamma)
                self.ones[gamma] = plain.ones
                fits.rows[fold, gamma] = plain.logits[self.held[fold]]
        return torch.cat([fits.rows[fold, gamma] for fold in range(folds)])

    def _propagated(self, logits: Tensor, gamma: SkipWeights) -> PlainPropagation:
        layer, graph = with_smoothing(self.propagation, gamma), self.nodes.graph
        with torch.no_grad():
            if isinstance(layer, PPR | None):
                return propagate_uncorrected(logits, layer, graph.adjacency(logits.dtype))
            sens, population = self.nodes.groups_for(layer, "val_mask")
            fair = Network(nn.Identity(), layer).propagate(logits, graph, sens, population)
        return PlainPropagation(fair, torch.ones_like(fair[:, :1]))

    def by_fold(self, values: Tensor, folds: int) -> Tensor:
        """The rows of the nodes held out in the first folds, fold by fold."""
        return torch.cat([values[mask] for mask in self.held[:folds]])

    def score(self, rows: Tensor, gamma: SkipWeights, folds: int) -> Score:
        """Accuracy and log loss of propagated rows, calibrated."""
        y, slope = self.by_fold(self.nodes.data.y, folds), 1.0
        if self.calibrate:
            plain = PlainPropagation(rows, self.by_fold(self.ones[gamma], folds))
            calibration = fit_calibration(plain, y)
            rows, slope = plain.calibrated(calibration), float(calibration[0])
        accuracy = float((rows.argmax(1) == y).double().mean())
        return Score(accuracy, float(cross_entropy(rows.double(), y)), gamma, slope)

    def blend(
        self,
        fitted: Mapping[int, CandidateFits],
        counts: Mapping[int, int],
        gamma: SkipWeights,
        folds: int,
    ) -> Tensor:
        """Average of candidates, each on the scale that calibrates it (m×C)."""
        parts = [
            count * fitted[k].slope * self.rows(fitted[k], gamma, folds)
            for k, count in counts.items()
        ]
        return torch.stack(parts).sum(0) / sum(counts.values())

    def held_out(
        self, fitted: Mapping[int, CandidateFits], blending: Blending, folds: int
    ) -> HeldOut:
        """What a blend predicts of the nodes held out in the first folds, in their order."""
        gamma = blending.score.gamma
        rows = self.blend(fitted, blending.counts, gamma, folds)
        mask = torch.stack(list(self.held[:folds])).any(0)
        logits = rows.new_zeros(len(mask), rows.size(1))
        logits[torch.cat([held.nonzero()[:, 0] for held in self.held[:folds]])] = rows
        plain = PlainPropagation(logits, self.ones[gamma])
        return HeldOut(mask, plain.rows(mask), cross_fitted=True)


def with_smoothing(propagation: nn.Module | None, gamma: SkipWeights) -> nn.Module | None:
    """Return a copy of a propagation with the given skip weights, if it learns them."""
    layer = copy.deepcopy(propagation)
    if isinstance(layer, PPR) and layer.theta is not None:
        theta = [MAX_THETA if g >= 1 else math.log(g / (1 - g)) for g in gamma]
        layer.theta.data = layer.theta.new_tensor(theta)
    return layer


def choose(
    judge: Judge, fitted: Mapping[int, CandidateFits], folds: int, min_members: int
) -> Blending:
    """Blend candidates while that lowers the loss on the nodes held out in the first folds.

    A blend of several is steadier than the best of them on a few hundred nodes. The loss says more
    about a model than the accuracy, which many models share.
    """
    for fits in fitted.values():
        scores = [judge.score(judge.rows(fits, g, folds), g, folds) for g in fits.smoothings]
        fits.score = min(scores, key=lambda score: score.loss)
    alone = {k: fits.score for k, fits in fitted.items() if fits.score is not None}

    def score(counts: Mapping[int, int], gamma: SkipWeights) -> Score:
        return judge.score(judge.blend(fitted, counts, gamma, folds), gamma, folds)

    def best_smoothing(counts: Mapping[int, int], gammas: Sequence[SkipWeights]) -> Score:
        scores = (score(counts, gamma) for gamma in dict.fromkeys(gammas))
        return min(scores, key=lambda score: score.loss)

    good = [score.gamma for score in alone.values()]
    counts = dict.fromkeys(sorted(alone, key=lambda k: alone[k].loss)[:min_members], 1)
    best = best_smoothing(counts, good)
    while sum(counts.values()) < MAX_MEMBERS:
        larger = [{**counts, k: counts.get(k, 0) + 1} for k in fitted]
        candidates = [(score(each, best.gamma).loss, each) for each in larger]
        counts_after = min(candidates, key=lambda pair: pair[0])[1]
        after = best_smoothing(counts_after, good)
        if after.loss >= best.loss:
            break
        counts, best = counts_after, after
    return Blending(counts, best_smoothing(counts, [*judge.smoothings(), *good]))

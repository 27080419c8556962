"""The choice of a backbone: a few candidates, their smoothing, and the blend that validates best.

Only training nodes are fitted on, and only validation nodes decide. A candidate is judged as it
would be used: its logits are calibrated, propagated and corrected on the validation nodes, and the
accuracy and the log loss of the result are measured. Test nodes are not looked at.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fairmp.display import bar
from fairmp.nn.decisions import On
from fairmp.nn.fmp import FMP, PPR
from fairmp.nn.models import BACKBONES, Network, name_of
from fairmp.training import estimators
from fairmp.training.blend import Blend, Member
from fairmp.training.estimators import Classifier
from fairmp.training.fitted import fit_calibration, propagate_uncorrected
from fairmp.training.graph_features import FeatureView, GraphInputs, fingerprint
from fairmp.training.nodes import TrainingNodes
from fairmp.training.trainer import (
    Epoch,
    History,
    NetworkSettings,
    TrainingSettings,
    Trial,
    train_network,
)

FEW_LABELS = 5000  # training nodes up to which a random forest is tried
MIN_MEMBERS, MAX_MEMBERS = 3, 5  # of a blend; fewer only where there are no more
MAX_THETA = 40.0  # of a step that does not propagate: σ(40) = 1 in double precision

CANDIDATES: tuple[tuple[str, FeatureView], ...] = (  # from cheap to expensive
    ("logistic", "features"),
    ("logistic", "neighbourhood"),
    ("logistic", "edges"),
    ("trees", "features"),
    ("forest", "features"),
    ("trees", "neighbourhood"),
    ("forest", "neighbourhood"),
    ("mlp", "features"),
    ("mlp", "neighbourhood"),
)

SkipWeights = tuple[float, ...]  # γ of each step


@dataclass(frozen=True)
class SelectionSettings:
    """What to choose from, and how candidates are fitted."""

    backbone: str | nn.Module | Classifier  # "auto", or the only candidate
    graph_features: bool | None  # let candidates read the neighbourhood; None tries both
    time_budget: float  # seconds after which no other candidate is fitted
    calibrate: bool  # before candidates are judged
    network: NetworkSettings  # of candidates that are networks, and the propagation of all
    training: TrainingSettings


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
    """Figures on the validation nodes with one smoothing, and the slope that calibrates it."""

    accuracy: float
    loss: float
    gamma: SkipWeights
    slope: float


@dataclass(frozen=True)
class FittedCandidate:
    """A fitted candidate, its figures, and its logits on the scale that calibrates them."""

    model: nn.Module
    trial: Trial
    slope: float
    logits: Tensor


@dataclass(frozen=True)
class Selection:
    """The network that was chosen, and what was tried."""

    network: Network
    history: History
    trials: tuple[Trial, ...]


@dataclass(frozen=True)
class Judge:
    """Measures logits on the validation nodes as predictions are made: calibrated and corrected."""

    nodes: TrainingNodes
    propagation: nn.Module | None
    on: On
    calibrate: bool

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

    def score(self, logits: Tensor, gamma: SkipWeights) -> Score:
        """Return accuracy and log loss with one smoothing."""
        data, graph = self.nodes.data, self.nodes.graph
        layer, slope = with_smoothing(self.propagation, gamma), 1.0
        network, y = Network(nn.Identity(), layer), data.y[data.val_mask]
        sens, population = self.nodes.groups_for(layer, "val_mask")
        decisions = isinstance(layer, FMP) and layer.closes_decisions(self.on)
        with torch.no_grad():
            if self.calibrate:
                plain = propagate_uncorrected(logits, layer, graph.adjacency(logits.dtype))
                network.calibration = fit_calibration(plain.rows(data.val_mask), y).to(logits)
                logits, slope = network.calibrated(logits), float(network.calibration[0])
            fair = network.propagate(logits, graph, sens, population, decisions=decisions)
        fair = fair[data.val_mask]
        accuracy = float((fair.argmax(1) == y).double().mean())
        return Score(accuracy, float(cross_entropy(fair.double(), y)), gamma, slope)

    def best(self, logits: Tensor, smoothings: Sequence[SkipWeights]) -> Score:
        """Return the figures with the smoothing of the lowest loss."""
        scores = (self.score(logits, gamma) for gamma in smoothings)
        return min(scores, key=lambda score: score.loss)


def with_smoothing(propagation: nn.Module | None, gamma: SkipWeights) -> nn.Module | None:
    """Return a copy of a propagation with the given skip weights, if it learns them."""
    layer = copy.deepcopy(propagation)
    if isinstance(layer, PPR) and layer.theta is not None:
        theta = [MAX_THETA if g >= 1 else math.log(g / (1 - g)) for g in gamma]
        layer.theta.data = layer.theta.new_tensor(theta)
    return layer


def select(
    settings: SelectionSettings,
    nodes: TrainingNodes,
    *,
    seed: int = 0,
    progress: bool | None = None,
) -> Selection:
    """Fit the candidates, and blend those that validate best."""
    start, x = time.perf_counter(), nodes.data.x
    propagation = copy.deepcopy(settings.network.propagation)
    if propagation is not None:
        propagation = propagation.to(x.device, x.dtype)
    judge = Judge(nodes, propagation, settings.training.on, settings.calibrate)
    labels = torch.where(nodes.data.train_mask, nodes.data.y, -1)
    inputs = GraphInputs(labels, fingerprint(nodes.graph), len(nodes.names.classes))
    candidates = list(candidates_for(settings, int(nodes.data.train_mask.sum())))
    fitted: dict[int, FittedCandidate] = {}
    with bar(len(candidates), "choosing a model", show=progress) as advance:
        for k, candidate in enumerate(candidates):
            if fitted and time.perf_counter() - start > settings.time_budget:
                break
            fitted[k] = fit_candidate(candidate, inputs, judge, settings, seed)
            advance(f"{candidate.name}: validation {100 * (fitted[k].trial.accuracy or 0):.1f} %")
    counts, best = choose(judge, fitted)
    shares = {k: count / sum(counts.values()) for k, count in counts.items()}
    blend = blended([fitted[k] for k in shares], list(shares.values()), inputs)
    network = Network(blend, with_smoothing(propagation, best.gamma)).eval()
    epoch = Epoch(0, best.loss, best.accuracy, best.loss)
    history = History((), epoch, time.perf_counter() - start)
    late = f"the {settings.time_budget:g} s allowed were over"
    trials = [
        replace(fitted[k].trial, weight=shares.get(k, 0.0))
        if k in fitted
        else Trial(candidate.name, candidate.view, note=late)
        for k, candidate in enumerate(candidates)
    ]
    return Selection(network.to(x.device, x.dtype), history, tuple(trials))


def candidates_for(settings: SelectionSettings, num_labels: int) -> Iterator[Candidate]:
    """Yield the candidates that suit the settings and the number of training nodes."""
    if settings.backbone != "auto":
        yield Candidate(
            settings.backbone, "neighbourhood" if settings.graph_features else "features"
        )
        return
    has_penalty = settings.training.strategy is not None  # which only networks can be trained with
    for name, view in CANDIDATES:
        if name == "forest" and num_labels > FEW_LABELS:
            continue
        if view != "features" and settings.graph_features is False:
            continue
        if name == "mlp" or not has_penalty:
            yield Candidate(name, view)


def fit_candidate(
    candidate: Candidate,
    inputs: GraphInputs,
    judge: Judge,
    settings: SelectionSettings,
    seed: int,
) -> FittedCandidate:
    """Fit a candidate on the training nodes, and judge it on the validation nodes."""
    start, nodes = time.perf_counter(), judge.nodes
    data, graph = nodes.data, nodes.graph
    rows, smoothings = inputs(candidate.view, data.x, graph), judge.smoothings()
    model: nn.Module
    if candidate.is_network:
        network, _ = train_network(
            candidate.backbone,  # type: ignore[arg-type]
            nodes.with_features(rows),
            settings.network,
            settings.training,
            seed=seed,
            progress=False,
        )
        model = network.transform.eval()
        if isinstance(network.propagation, PPR):
            smoothings = [*smoothings, network.propagation.gamma]
    else:
        classifier = estimators.make(
            candidate.backbone,  # type: ignore[arg-type]
            candidate.view,
            seed,
            sparse=data.x.is_sparse,
        )
        model = estimators.fit(
            classifier,
            rows,
            data.y,
            data.train_mask,
            len(nodes.names.classes),
            nodes.sample_weight,
        )
    model = model.to(data.x.device, data.x.dtype)
    with torch.no_grad():
        logits = Blend(inputs, [Member(candidate.name, candidate.view, model)])(data.x, graph)
    score = judge.best(logits, smoothings)
    trial = Trial(
        candidate.name,
        candidate.view,
        accuracy=score.accuracy,
        loss=score.loss,
        gamma=score.gamma,
        seconds=time.perf_counter() - start,
    )
    return FittedCandidate(model, trial, score.slope, score.slope * logits)


def choose(judge: Judge, fitted: Mapping[int, FittedCandidate]) -> tuple[dict[int, int], Score]:
    """Blend candidates while that lowers the loss; return how often each counts, and the figures.

    A blend of several is steadier than the best of them on a few hundred validation nodes. The loss
    says more about a model than the accuracy, which many models share.
    """
    good = list(dict.fromkeys(candidate.trial.gamma for candidate in fitted.values()))
    first = sorted(fitted, key=lambda k: fitted[k].trial.loss or 0.0)[:MIN_MEMBERS]
    counts = dict.fromkeys(first, 1)
    total = torch.stack([fitted[k].logits for k in first]).sum(0)
    lowest = judge.best(total / len(first), good).loss
    for size in range(len(first) + 1, MAX_MEMBERS + 1):
        losses = {
            k: judge.best((total + candidate.logits) / size, good).loss
            for k, candidate in fitted.items()
        }
        added = min(losses, key=losses.__getitem__)
        if losses[added] >= lowest:
            break
        counts[added] = counts.get(added, 0) + 1
        total, lowest = total + fitted[added].logits, losses[added]
    blend = total / sum(counts.values())
    return counts, judge.best(blend, list(dict.fromkeys([*judge.smoothings(), *good])))


def blended(
    chosen: Sequence[FittedCandidate], shares: Sequence[float], inputs: GraphInputs
) -> Blend:
    """Average candidates by their shares."""
    if all(candidate.trial.reads == "features" for candidate in chosen):
        inputs.labels = inputs.labels[:0]  # nothing reads them, so that no model file holds them
    members = [
        Member(candidate.trial.model, candidate.trial.reads, candidate.model)
        for candidate in chosen
    ]
    weights = [share * candidate.slope for share, candidate in zip(shares, chosen, strict=True)]
    return Blend(inputs, members, weights)

"""The choice of a backbone: a few candidates, their smoothing, and the blend that predicts best.

Candidates are cross-fitted. The labelled nodes outside the test set are cut into folds, each
candidate is fitted once per fold on the nodes of the others, and its *out-of-fold* predictions are
calibrated and judged by their log loss. So every label trains and every label decides. Candidates
that the blend of the first fold leaves out are not fitted on the others, unless it is too small to
tell; the models of all folds are averaged. With one fold, training nodes are fitted on and
validation nodes decide. Test nodes are never looked at.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fairmp.datasets.splits import cut_folds
from fairmp.display import bar
from fairmp.nn.fmp import PPR
from fairmp.nn.models import Network
from fairmp.training import estimators
from fairmp.training.blend import Blend, Member, member_logits
from fairmp.training.calibration import HeldOut
from fairmp.training.estimators import Classifier
from fairmp.training.graph_features import FeatureView, GraphInputs, fingerprint
from fairmp.training.judge import Blending, Candidate, CandidateFits, Judge, choose, with_smoothing
from fairmp.training.nodes import TrainingNodes
from fairmp.training.run import Epoch, History, Trial
from fairmp.training.trainer import NetworkSettings, TrainingSettings, train_network

FEW_LABELS = 5000  # training nodes up to which a random forest is tried
MIN_MEMBERS = 3  # of a blend
MIN_HELD = 100  # nodes in the first fold without which no candidate is dropped
ENOUGH_HELD = 100_000  # held-out nodes after which no further fold is fitted

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


@dataclass(frozen=True)
class SelectionSettings:
    """What to choose from, and how candidates are fitted."""

    backbone: str | nn.Module | Classifier  # "auto", or the only candidate
    graph_features: bool | None  # let candidates read the neighbourhood; None tries both
    time_budget: float  # seconds after which no other candidate is fitted
    calibrate: bool  # before candidates are judged
    folds: int  # of cross-fitting; 1 fits on training nodes and judges on validation nodes
    network: NetworkSettings  # of candidates that are networks, and the propagation of all
    training: TrainingSettings
    candidates: tuple[tuple[str, FeatureView], ...] = CANDIDATES  # of "auto"
    neighbour_labels: bool = True  # let candidates read the labels of neighbours
    min_members: int = MIN_MEMBERS  # of the blend; fewer only where there are no more
    max_columns: int = estimators.WIDE  # that boosted trees read
    max_fitted: int | None = None  # nodes that a model is fitted on, drawn from more


@dataclass(frozen=True)
class Folds:
    """What candidates read, and the nodes they are fitted and judged on (masks)."""

    inputs: GraphInputs
    labelled: Tensor  # nodes that are fitted on, but for the fold they are held out in
    held: list[Tensor]  # nodes held out in each fold


@dataclass(frozen=True)
class Selection:
    """The network that was chosen, how it predicts held-out nodes, and what was tried."""

    network: Network
    history: History
    trials: tuple[Trial, ...]
    logits: Tensor | None = None  # of all nodes, before propagation, if they are known
    held_out: HeldOut | None = None  # of a cross-fitted network


def select(
    settings: SelectionSettings,
    nodes: TrainingNodes,
    *,
    seed: int = 0,
    progress: bool | None = None,
) -> Selection:
    """Cross-fit the candidates, and blend those that predict held-out nodes best."""
    start, data = time.perf_counter(), nodes.data
    deadline = start + settings.time_budget
    propagation = copy.deepcopy(settings.network.propagation)
    if propagation is not None:
        propagation = propagation.to(data.x.device, data.x.dtype)
    cut = _folds(settings, nodes, seed)
    held = cut.held
    judge = Judge(nodes, propagation, held, calibrate=settings.calibrate)
    fitting = Fitting(settings, nodes, cut, judge, seed)
    candidates = list(candidates_for(settings, int(cut.labelled.sum())))
    fitted: dict[int, CandidateFits] = {}
    with bar(len(candidates), "choosing a model", show=progress) as advance:
        for k, candidate in enumerate(candidates):
            if fitted and time.perf_counter() > deadline:
                break
            fitted[k] = CandidateFits(candidate, judge.smoothings())
            advance(f"{candidate.name} on {candidate.view}, fold 1 of {len(held)}")
            fitting.fit(fitted[k], fold=0)
    first = choose(judge, fitted, 1, settings.min_members)
    can_drop = int(held[0].sum()) >= MIN_HELD
    kept = {k: fits for k, fits in fitted.items() if k in first.counts or not can_drop}
    folds = _fit_other_folds(kept, fitting, deadline, progress)
    blending = first if folds == 1 else choose(judge, kept, folds, settings.min_members)
    trials = [
        _trial(candidate, fitted.get(k), blending.shares.get(k, 0.0), folds, settings)
        for k, candidate in enumerate(candidates)
    ]
    best = blending.score
    history = History(
        (), Epoch(0, best.loss, best.accuracy, best.loss), time.perf_counter() - start
    )
    logits = _average(kept, blending, folds)
    network = Network(
        _blend(kept, blending, cut.inputs, folds), with_smoothing(propagation, best.gamma)
    )
    held_out = None
    if settings.folds > 1:
        held_out = judge.held_out(kept, blending, folds)
    return Selection(
        network.eval().to(data.x.device, data.x.dtype), history, tuple(trials), logits, held_out
    )


def _folds(settings: SelectionSettings, nodes: TrainingNodes, seed: int) -> Folds:
    """Cut the labelled nodes outside the test set into folds."""
    data, num_classes = nodes.data, len(nodes.names.classes)
    trained_on = fingerprint(nodes.graph)
    if settings.folds == 1:
        labels = torch.where(data.train_mask & settings.neighbour_labels, data.y, -1)
        graph_inputs = GraphInputs(labels, trained_on, num_classes)
        return Folds(graph_inputs, data.train_mask, [data.val_mask])
    labelled = data.train_mask | data.val_mask
    numbers = cut_folds(data, labelled, settings.folds, seed=seed)
    if int(numbers.max()) == 0:  # a group has a single labelled node
        numbers = torch.where(data.val_mask, 0, torch.where(data.train_mask, 1, -1))
    labels = torch.where(labelled & settings.neighbour_labels, data.y, -1)
    held = [numbers == k for k in range(int(numbers.max()) + 1)]
    return Folds(GraphInputs(labels, trained_on, num_classes, numbers), labelled, held)


def _fit_other_folds(
    kept: Mapping[int, CandidateFits],
    fitting: Fitting,
    deadline: float,
    progress: bool | None,
) -> int:
    """Fit candidates on the folds after the first; return how many were needed and had time."""
    held = torch.tensor([int(mask.sum()) for mask in fitting.cut.held])
    folds = 1 + int((held.cumsum(0)[:-1] < ENOUGH_HELD).sum())
    total = len(kept) * (folds - 1)
    with bar(total, "cross-fitting", show=progress) as advance:
        for fold in range(1, folds):
            if time.perf_counter() > deadline:
                return fold
            for fits in kept.values():
                candidate = fits.candidate
                advance(f"{candidate.name} on {candidate.view}, fold {fold + 1} of {folds}")
                fitting.fit(fits, fold)
    return folds


def candidates_for(settings: SelectionSettings, num_labels: int) -> Iterator[Candidate]:
    """Yield the candidates that suit the settings and the number of training nodes."""
    if settings.backbone != "auto":
        yield Candidate(
            settings.backbone, "neighbourhood" if settings.graph_features else "features"
        )
        return
    has_penalty = settings.training.strategy is not None  # which only networks can be trained with
    for name, view in settings.candidates:
        if name == "forest" and num_labels > FEW_LABELS:
            continue
        if view != "features" and settings.graph_features is False:
            continue
        if name == "mlp" or not has_penalty:
            yield Candidate(name, view)


@dataclass(frozen=True)
class Fitting:
    """How candidates are fitted on the nodes of all folds but one."""

    settings: SelectionSettings
    nodes: TrainingNodes
    cut: Folds
    judge: Judge
    seed: int

    def fit(self, fits: CandidateFits, fold: int) -> None:
        """Fit a candidate without the nodes held out in a fold, and predict all nodes."""
        start, data = time.perf_counter(), self.nodes.data
        candidate, held = fits.candidate, self.cut.held[fold]
        train = drawn_nodes(self.cut.labelled & ~held, self.settings.max_fitted, self.seed + fold)
        rows = self.cut.inputs(candidate.view, data.x, self.nodes.graph, fold)
        if candidate.is_network:
            model = self._network(
                fits, self.nodes.with_masks(train, held).with_features(rows), fold
            )
        else:
            model = self._estimator(candidate, rows, train, fold)
        model = model.to(data.x.device, data.x.dtype)
        with torch.no_grad():
            logits = member_logits(model, rows, self.nodes.graph).to(data.x)
        fits.models.append(model)
        fits.logits.append(logits)
        fits.seconds += time.perf_counter() - start

    def _network(self, fits: CandidateFits, nodes: TrainingNodes, fold: int) -> nn.Module:
        network, _ = train_network(
            fits.candidate.backbone,  # type: ignore[arg-type]
            nodes,
            self.settings.network,
            self.settings.training,
            seed=self.seed + fold,
            progress=False,
        )
        if fold == 0 and isinstance(network.propagation, PPR):
            fits.smoothings = list(dict.fromkeys([*fits.smoothings, network.propagation.gamma]))
        return network.transform.eval()

    def _estimator(self, candidate: Candidate, rows: Tensor, train: Tensor, fold: int) -> nn.Module:
        data = self.nodes.data
        classifier = estimators.make(
            candidate.backbone,  # type: ignore[arg-type]
            candidate.view,
            self.seed + fold,
            sparse=data.x.is_sparse,
            columns=rows.shape[1],
            max_columns=self.settings.max_columns,
        )
        num_classes, weight = len(self.nodes.names.classes), self.nodes.sample_weight
        return estimators.fit(classifier, rows, data.y, train, num_classes, weight)


def drawn_nodes(mask: Tensor, most: int | None, seed: int) -> Tensor:
    """Draw some nodes of a mask, if there are more than that."""
    numbers = mask.nonzero()[:, 0]
    if most is None or len(numbers) <= most:
        return mask
    order = torch.randperm(len(numbers), generator=torch.Generator().manual_seed(seed))
    drawn = torch.zeros_like(mask)
    drawn[numbers[order[:most].to(numbers.device)]] = True
    return drawn


def _trial(
    candidate: Candidate,
    fits: CandidateFits | None,
    weight: float,
    folds: int,
    settings: SelectionSettings,
) -> Trial:
    """The record of a candidate."""
    if fits is None or fits.score is None:
        late = f"the {settings.time_budget:g} s allowed were over"
        return Trial(candidate.name, candidate.view, note=late)
    return Trial(
        candidate.name,
        candidate.view,
        accuracy=fits.score.accuracy,
        loss=fits.score.loss,
        gamma=fits.score.gamma,
        seconds=fits.seconds,
        weight=weight,
        note="" if len(fits.models) == folds else f"left out after {len(fits.models)} of {folds}",
    )


def _blend(
    fitted: Mapping[int, CandidateFits], blending: Blending, graph_inputs: GraphInputs, folds: int
) -> Blend:
    """Average the models of all folds, candidates by their shares."""
    chosen = {k: fitted[k] for k in blending.counts}
    if all(fits.candidate.view == "features" for fits in chosen.values()):
        # Nothing reads the labels, so that no model file holds them.
        graph_inputs.labels, graph_inputs.folds = graph_inputs.labels[:0], graph_inputs.folds[:0]
    members, weights = [], []
    for fold in range(folds):  # a fold after the other: their columns are computed once
        for k, fits in chosen.items():
            candidate = fits.candidate
            members.append(Member(candidate.name, candidate.view, fits.models[fold], fold))
            weights.append(blending.shares[k] * fits.slope / folds)
    return Blend(graph_inputs, members, weights)


def _average(fitted: Mapping[int, CandidateFits], blending: Blending, folds: int) -> Tensor:
    """Logits of the blend, from those of its members (n×C)."""
    total = torch.zeros(())
    for k, share in blending.shares.items():
        fits = fitted[k]
        total = total + share * fits.slope * torch.stack(fits.logits[:folds]).mean(0)
    return total

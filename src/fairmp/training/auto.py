"""The choice of a backbone: a few candidates, their smoothing, and the blend that validates best.

Only training nodes are fitted on, and only validation nodes decide. A candidate is judged as it
would be used: its logits are calibrated, propagated and corrected on the validation nodes, and the
accuracy and the log loss of the result are measured. Test nodes are not looked at.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch_geometric.data import Data

from fairmp.graph import Graph
from fairmp.nn.fmp import PPR, Temperature
from fairmp.nn.models import BACKBONES, Network, name_of
from fairmp.progress import bar
from fairmp.training import estimators
from fairmp.training.blend import Blend
from fairmp.training.graph_features import GraphInputs, Reads, fingerprint
from fairmp.training.loop import Epoch, GroupOperators, History
from fairmp.training.penalties import Vanilla
from fairmp.training.predictor import fit_calibration, plainly_propagated

FEW_LABELS = 5000  # training nodes up to which a random forest is tried
MIN_MEMBERS, MAX_MEMBERS = 3, 5  # of a blend; fewer only where there are no more
MAX_THETA = 40.0  # of a step that does not propagate: σ(40) = 1 in double precision

CANDIDATES: tuple[tuple[str, Reads], ...] = (  # from cheap to expensive
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
class Trial:
    """A candidate, as it does on the validation nodes after the correction."""

    model: str  # its name
    reads: Reads  # what it sees of a node
    accuracy: float | None = None  # None if it was not tried
    loss: float | None = None  # log loss of the same predictions
    gamma: tuple[float, ...] = ()  # skip weights of the propagation that suit it best
    seconds: float = 0.0  # time to fit it
    weight: float = 0.0  # its share in the model that was chosen
    note: str = ""  # why it was not tried

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {**asdict(self), "gamma": list(self.gamma)}


class Score(NamedTuple):
    """Figures on the validation nodes with one smoothing, and the slope that calibrates it."""

    accuracy: float
    loss: float
    gamma: tuple[float, ...]
    slope: float


@dataclass(frozen=True)
class Judge:
    """Measures logits on the validation nodes as predictions are made: calibrated and corrected."""

    data: Data
    graph: Graph
    operators: GroupOperators
    propagation: nn.Module | None
    temperature: Temperature
    calibrate: bool

    def smoothings(self) -> list[tuple[float, ...]]:
        """Skip weights per step to choose from; one entry if the smoothing is given."""
        layer = self.propagation
        if not isinstance(layer, PPR):
            return [()]
        if layer.theta is None:
            return [layer.gamma]
        steps = [(0, 1.0), (1, 0.8), (1, 0.5), (layer.K, 0.8), (layer.K, 0.5), (layer.K, 0.25)]
        found = [(1.0,) * (layer.K - count) + (gamma,) * count for count, gamma in steps]
        return list(dict.fromkeys(found))

    def score(self, logits: Tensor, gamma: tuple[float, ...]) -> Score:
        """Return accuracy and log loss with one smoothing."""
        layer = with_smoothing(self.propagation, gamma)
        network, mask = Network(nn.Identity(), layer), self.data.val_mask
        groups = self.operators.group_arguments(network, "val_mask")
        y, slope = self.data.y[mask], 1.0
        with torch.no_grad():
            if self.calibrate:
                adjacency = self.graph.adjacency(logits.dtype)
                z, c = plainly_propagated(logits, layer, adjacency)
                network.calibration = fit_calibration(z[mask], c[mask], y).to(logits)
                logits, slope = network.calibrated(logits), float(network.calibration[0])
            fair = network.propagate(logits, self.graph, *groups, self.temperature)[mask]
        accuracy = (fair.argmax(1) == y).double().mean()
        return Score(float(accuracy), float(cross_entropy(fair.double(), y)), gamma, slope)

    def best(self, logits: Tensor, smoothings: Sequence[tuple[float, ...]]) -> Score:
        """Return the figures with the smoothing of the lowest loss."""
        scores = (self.score(logits, gamma) for gamma in smoothings)
        return min(scores, key=lambda score: score.loss)


def with_smoothing(propagation: nn.Module | None, gamma: tuple[float, ...]) -> nn.Module | None:
    """Return a copy of a propagation with the given skip weights, if it learns them."""
    layer = copy.deepcopy(propagation)
    if isinstance(layer, PPR) and layer.theta is not None:
        theta = [MAX_THETA if g >= 1 else math.log(g / (1 - g)) for g in gamma]
        layer.theta.data = layer.theta.new_tensor(theta)
    return layer


class Member(NamedTuple):
    """A fitted candidate and its logits, on the scale that calibrates them."""

    model: nn.Module
    logits: Tensor
    score: Score


def choose(
    judge: Judge, members: dict[int, Member], smoothings: Sequence[tuple[float, ...]]
) -> tuple[dict[int, int], Score]:
    """Blend members while that lowers the loss; return how often each counts, and the figures."""
    # A blend of several is steadier than the best of them on a few hundred validation nodes. The
    # loss says more about a model than the accuracy, which many models share.
    good = list(dict.fromkeys(member.score.gamma for member in members.values()))
    first = sorted(members, key=lambda key: members[key].score.loss)[:MIN_MEMBERS]
    counts = dict.fromkeys(first, 1)
    total = torch.stack([members[key].logits for key in first]).sum(0)
    best = judge.best(total / len(first), good).loss
    for size in range(len(first) + 1, MAX_MEMBERS + 1):
        losses = {
            key: judge.best((total + member.logits) / size, good).loss
            for key, member in members.items()
        }
        added = min(losses, key=losses.__getitem__)
        if losses[added] >= best:
            break
        counts[added] = counts.get(added, 0) + 1
        total, best = total + members[added].logits, losses[added]
    blend = total / sum(counts.values())
    return counts, judge.best(blend, list(dict.fromkeys([*smoothings, *good])))


def fit(
    model: Any,
    data: Data,
    graph: Graph,
    operators: GroupOperators,
    build: Callable[[Any, int], Network],
    train: Callable[[Network, Data], History],
    seed: int = 0,
    progress: bool | None = None,
) -> tuple[Network, History, tuple[Trial, ...]]:
    """Fit or choose the backbone of a FairClassifier; return the network and what was tried."""
    start, backbone = time.perf_counter(), model.backbone
    settings = model.predict_temperature, model.calibrates
    judge = Judge(data, graph, operators, build("mlp", 1).propagation, *settings)
    labels, num_classes = torch.where(data.train_mask, data.y, -1), len(model.classes_)
    inputs = GraphInputs(labels, fingerprint(graph), num_classes)
    smoothings = judge.smoothings()
    trials = list(_candidates(model, int(data.train_mask.sum())))
    members: dict[int, Member] = {}
    with bar(len(trials), "choosing a model", show=progress) as advance:
        for k, trial in enumerate(trials):
            began = time.perf_counter()
            if members and began - start > model.time_budget:
                trials[k] = replace(trial, note=f"the {model.time_budget:g} s allowed were over")
                continue
            design, own = inputs(trial.reads, data.x, graph), smoothings
            given = trial.model if isinstance(backbone, str) else backbone
            if trial.model in BACKBONES or isinstance(backbone, nn.Module):
                assert isinstance(design, Tensor)
                network = build(given, design.size(1))
                view = copy.copy(data)
                view.x = design
                train(network, view)
                fitted = network.transform.eval()
                if isinstance(network.propagation, PPR):
                    own = [*smoothings, network.propagation.gamma]
            else:
                unfitted = estimators.make(given, trial.reads, seed, sparse=data.x.is_sparse)
                known = data.y, data.train_mask, num_classes, data.get("sample_weight")
                fitted = estimators.fit(unfitted, design, *known)
            fitted = fitted.to(data.x.device, data.x.dtype)
            with torch.no_grad():
                logits = Blend(inputs, [(trial.model, trial.reads, fitted)])(data.x, graph)
            score = judge.best(logits, own)
            figures = score._asdict()
            members[k] = Member(fitted, figures.pop("slope") * logits, score)
            seconds = time.perf_counter() - began
            trials[k] = replace(trial, **figures, seconds=seconds)
            advance(f"{trial.model}: validation {100 * score.accuracy:.1f} %")
    counts, best = choose(judge, members, smoothings)
    for k, count in counts.items():
        trials[k] = replace(trials[k], weight=count / sum(counts.values()))
    chosen = [(trials[k].model, trials[k].reads, members[k].model) for k in counts]
    if all(reads == "features" for _, reads, _ in chosen):
        inputs.labels = inputs.labels[:0]  # nothing reads them, so that no model file holds them
    blend = Blend(inputs, chosen, [trials[k].weight * members[k].score.slope for k in counts])
    network = Network(blend, with_smoothing(judge.propagation, best.gamma)).eval()
    epoch = Epoch(0, best.loss, best.accuracy, best.loss)
    history = History((), epoch, time.perf_counter() - start)
    return network.to(data.x.device, data.x.dtype), history, tuple(trials)


def _candidates(model: Any, labels: int) -> Iterator[Trial]:
    """Yield the candidates that suit a classifier and its number of labels."""
    if model.backbone != "auto":
        reads: Reads = "neighbourhood" if model.graph_features else "features"
        yield Trial(name_of(model.backbone), reads)
        return
    gradient_only = not isinstance(model.strategy, Vanilla | None)  # the loss has a penalty
    for name, reads in CANDIDATES:
        allowed = reads == "features" or model.graph_features is not False
        if name == "forest" and labels > FEW_LABELS:
            continue
        if allowed and (name == "mlp" or not gradient_only):
            yield Trial(name, reads)

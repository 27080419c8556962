"""Training of a network: epochs, validation, the best weights, checkpoints, and its record."""

from __future__ import annotations

import copy
import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, get_args

import numpy
import torch
import torch_geometric
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fairmp import groups
from fairmp._version import __version__
from fairmp.display import Displayed, bar
from fairmp.errors import InputError, check_choice, check_integer, check_number
from fairmp.groups import GroupOperator, group_operator
from fairmp.metrics import Evaluation
from fairmp.nn.decisions import ON, On, close_decision_gap
from fairmp.nn.fmp import FMP, PPR
from fairmp.nn.models import Network, build
from fairmp.training import defaults
from fairmp.training.nodes import TrainingNodes
from fairmp.training.penalties import Strategy

if TYPE_CHECKING:
    from fairmp.postprocessing.confidence import Promise
    from fairmp.training.graph_features import FeatureView

UNUSED = -100  # label of a node that is not trained on
HOST_NODES = 2**16  # validation nodes up to which the host decides sooner than a GPU
RANK_SEED = 1_000_003  # between the seeds of two processes
Select = Literal["accuracy", "loss", "last"]


@dataclass(frozen=True)
class Epoch:
    """Figures of one evaluated epoch."""

    epoch: int
    loss: float
    val_accuracy: float
    val_loss: float


@dataclass(frozen=True)
class History:
    """The evaluated epochs, the one whose weights were kept, and the time training took."""

    epochs: tuple[Epoch, ...]
    best: Epoch
    seconds: float


@dataclass(frozen=True)
class Trial:
    """A candidate backbone, measured on the validation nodes after the correction."""

    model: str  # its name
    reads: FeatureView  # what it sees of a node
    accuracy: float | None = None  # None if it was not tried
    loss: float | None = None  # log loss of the same predictions
    gamma: tuple[float, ...] = ()  # skip weights of the propagation that suit it best
    seconds: float = 0.0  # time to fit it
    weight: float = 0.0  # its share in the model that was chosen
    note: str = ""  # why it was not tried

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {**asdict(self), "gamma": list(self.gamma)}


@dataclass(frozen=True, repr=False)
class Run(Displayed, renderer="fairmp.report.runs", summary=("test", "seed", "split_seed")):
    """Result of a fit: figures on the three parts of the split, and all it takes to repeat it.

    ``print`` shows the test nodes and what the correction changed; ``plot`` draws gaps and rates by
    group before and after.

    Example:
        >>> from fairmp import FMP, FairClassifier
        >>> from fairmp.datasets import social_network
        >>> data = social_network(n=800, average_degree=8, base_rate_gap=0.3)
        >>> model = FairClassifier(FMP(target=0.02), backbone="mlp", epochs=20, lr=0.02)
        >>> run = model.fit(data, seed=0, bootstrap=0).run_
        >>> run
        Run(test=Evaluation(n=200, mode='batch', accuracy=0.6..., dp=0.01, eo=0...),
            seed=0, split_seed=None)
        >>> print(f"ΔDP {100 * run.uncorrected.dp:.0f} → {100 * run.test.dp:.0f} points")
        ΔDP 14 → 1 points
    """

    train: Evaluation  # each part is predicted as a batch of its own
    val: Evaluation
    test: Evaluation
    history: History
    config: dict[str, Any]  # the classifier's arguments
    seed: int  # of the initialisation
    split_seed: int | None  # None if the data came with a split
    versions: dict[str, str]  # of the packages that computed it
    tried: tuple[Trial, ...] = ()  # the candidates a backbone was chosen from
    group_tried: tuple[Trial, ...] = ()  # those of the group estimate of a group-free model
    promise: Promise | None = None  # about new people, if a confidence was asked for
    uncorrected: Evaluation | None = None  # test nodes without the correction, if there is one

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            **{name: getattr(self, name) for name in ("config", "seed", "split_seed", "versions")},
            "best_epoch": self.history.best.epoch,
            "seconds": self.history.seconds,
            **({"tried": [trial.to_dict() for trial in self.tried]} if self.tried else {}),
            **({"promise": self.promise.to_dict()} if self.promise else {}),
            **{name: getattr(self, name).to_dict() for name in ("train", "val", "test")},
            **({"uncorrected": self.uncorrected.to_dict()} if self.uncorrected else {}),
        }

    def to_json(self) -> str:
        """Return one line of JSON."""
        return json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False)


def versions() -> dict[str, str]:
    """Return the versions of fairmp, torch, PyG and numpy."""
    packages = (torch, torch_geometric, numpy)
    return {"fairmp": __version__, **{p.__name__: str(p.__version__) for p in packages}}


@dataclass(frozen=True)
class NetworkSettings:
    """The layers of a network; see :class:`~fairmp.training.classifier.FairClassifier`."""

    propagation: nn.Module | None
    hidden: int = defaults.HIDDEN
    num_layers: int = defaults.NUM_LAYERS
    dropout: float = defaults.DROPOUT
    norm: str | None = None

    def build(self, backbone: str | nn.Module, in_channels: int, out_channels: int) -> Network:
        """Build a network with its own copy of the propagation, and of a module."""
        propagation = copy.deepcopy(self.propagation)
        if isinstance(backbone, nn.Module):
            return Network(copy.deepcopy(backbone), propagation)
        return build(
            backbone,  # type: ignore[arg-type]  # checked there
            in_channels=in_channels,
            out_channels=out_channels,
            hidden=self.hidden,
            num_layers=self.num_layers,
            dropout=self.dropout,
            norm=self.norm,
            propagation=propagation,
        )

    def is_deterministic(self, backbone: str | nn.Module) -> bool:
        """Whether a forward pass in training computes the same as one in validation."""
        foreign = isinstance(backbone, nn.Module) or not isinstance(self.propagation, PPR | None)
        return not (foreign or self.dropout or self.norm)


@dataclass(frozen=True)
class TrainingSettings:
    """How a network is trained; see :class:`~fairmp.training.classifier.FairClassifier`."""

    epochs: int = defaults.EPOCHS
    lr: float = defaults.LR
    weight_decay: float = defaults.WEIGHT_DECAY
    select: Select = "accuracy"
    patience: int | None = defaults.PATIENCE
    eval_every: int = defaults.EVAL_EVERY
    strategy: Strategy | None = None
    on: On = "decisions"

    def __post_init__(self) -> None:
        check_integer("epochs", self.epochs, "give a whole number, 1 or more")
        check_integer("eval_every", self.eval_every, "give a whole number, 1 or more")
        if self.patience is not None:
            check_integer("patience", self.patience, "give 1 or more epochs, or None")
        check_number("lr", self.lr, "give a number above 0, such as 1e-3", low=0, above=True)
        check_number("weight_decay", self.weight_decay, "give 0 or more", low=0)
        check_choice("select", self.select, get_args(Select))
        check_choice("on", self.on, ON)
        if self.epochs <= self.warmup:
            value = f"{self.epochs} end before the strategy is active, after {self.warmup}"
            hint = "give more epochs, or a smaller {pretrain_classifier}"
            raise InputError("epochs", value, hint)

    @property
    def warmup(self) -> int:
        """Epochs that are never kept."""
        return 0 if self.strategy is None else self.strategy.warmup


@dataclass
class State:
    """Everything that changes from epoch to epoch: after ``epoch``, and of the best one so far."""

    epoch: int = 0
    network: dict[str, Tensor] = field(default_factory=dict)
    optimiser: dict[str, Any] = field(default_factory=dict)
    random: list[Tensor] = field(default_factory=list)
    history: list[Epoch] = field(default_factory=list)
    best: Epoch | None = None
    best_network: dict[str, Tensor] = field(default_factory=dict)
    seconds: float = 0.0
    finished: bool = False


class Checkpoints(Protocol):
    """Storage that an interrupted training is resumed from."""

    def load(self) -> State:
        """Return the last state saved, or a new one."""

    def due(self, epoch: int) -> bool:
        """Whether to save the state after an epoch; the last is always saved."""

    def save(self, state: State) -> None:
        """Save a state."""


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch for a block, and restore its generators afterwards."""
    # Without a list of devices, fork_rng warns on machines with several GPUs.
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        yield


class Forward(NamedTuple):
    """A forward pass: the logits of all nodes before and after propagation (n×C)."""

    logits: Tensor
    propagated: Tensor


class Trainer:
    """Trains a network in place, and keeps the weights of its best epoch.

    Full-batch Adam on the cross-entropy of the training nodes; the test nodes are never used. A
    fair propagation closes the gap of the training nodes in training and that of the validation
    nodes in validation. **The epoch kept is the one with the highest validation accuracy; ties go
    to the lowest validation loss, then to the earliest epoch** (``select="loss"``: the lowest
    validation loss; ``"last"``: the last epoch). Epochs before a strategy is active are not kept.

    Args:
        network: the network.
        nodes: the nodes and their split.
        settings: hyperparameters.
        seed: seed of dropout.
        deterministic: the network has no dropout and no normalisation over nodes. Then the forward
            pass of each epoch also validates the one before, whose weights it has.
        checkpoints: save the training and resume it, except for what an adversary remembers.
        progress: show a bar; by default if standard error is a terminal.
    """

    def __init__(
        self,
        network: Network,
        nodes: TrainingNodes,
        settings: TrainingSettings,
        *,
        seed: int = 0,
        deterministic: bool = False,
        checkpoints: Checkpoints | None = None,
        progress: bool | None = None,
    ) -> None:
        self.network, self.nodes, self.settings, self.seed = network, nodes, settings, seed
        self.checkpoints, self.progress = checkpoints, progress
        self.optimiser = torch.optim.Adam(
            network.parameters(), lr=settings.lr, weight_decay=settings.weight_decay
        )
        self.validation = Validation(network, nodes, settings.on)
        self.shares_forward = deterministic and nodes.reducer.size == 1
        self.state, self.start_time = State(), 0.0

        data, total, strategy = nodes.data, nodes.reducer.total, settings.strategy
        self.groups = nodes.groups_for(network.propagation, "train_mask")
        self.labels = torch.where(data.train_mask, data.y, UNUSED)
        self.num_labels = int(total(data.train_mask.sum().view(1)))
        self.weight = nodes.sample_weight
        if self.weight is not None:
            training_weight = total(self.weight[data.train_mask].double().sum().view(1))
            self.weight = self.weight.to(data.x) / training_weight.to(data.x)
        self.penalty = None if strategy is None else strategy.begin()

    def train(self) -> History:
        """Train until the last epoch, or until patience is exhausted."""
        rank = self.nodes.reducer.rank
        show = self.progress if rank == 0 else False
        with (
            seeded(self.seed + RANK_SEED * rank),
            bar(self.settings.epochs, "training", show=show) as advance,
        ):
            state = self.resume(advance)
            self.start_time = time.perf_counter() - state.seconds
            loss: float | None = None  # of an epoch that is not yet validated
            while not state.finished:
                forward = self.forward()
                if loss is not None and self.finish_epoch(loss, advance, forward):
                    break
                loss = self.train_epoch(forward)
                if not self.shares_forward or state.epoch + 1 == self.settings.epochs:
                    self.finish_epoch(loss, advance)
                    loss = None
        assert state.best is not None  # the last epoch is validated, and comes after any warm-up
        self.network.load_state_dict(state.best_network)
        self.network.eval()
        return History(tuple(state.history), state.best, state.seconds)

    def forward(self) -> Forward:
        """Compute the logits of all nodes, with gradients."""
        self.network.train()
        self.optimiser.zero_grad()
        logits = self.network.logits(self.nodes.data.x, self.nodes.graph)
        sens, population = self.groups
        propagated = self.network.propagate(
            logits, self.nodes.graph, sens, population, softmax_only=self.penalty is None
        )
        return Forward(logits, propagated)

    def train_epoch(self, forward: Forward) -> float:
        """Take one step of Adam; return the cross-entropy before it."""
        reducer = self.nodes.reducer
        loss = self.training_loss(forward.propagated)
        penalty = None
        if self.penalty is not None:
            penalty = self.penalty(forward.propagated, self.nodes.group_operator("train_mask"))
        share = loss if penalty is None else loss + penalty / reducer.size
        shares = torch.stack([share.detach(), loss.detach()]).double()
        objective, mean = reducer.total(shares).tolist()
        if not math.isfinite(objective):
            where = f"in epoch {self.state.epoch + 1} with lr={self.settings.lr:g}"
            hint = "lower the learning rate, or scale the features"
            raise InputError("lr", f"the loss is no longer finite {where}", hint)
        share.backward()
        reducer.add_gradients(self.network.parameters())
        self.optimiser.step()
        return float(mean)

    def training_loss(self, logits: Tensor) -> Tensor:
        """This process's share in the mean over all training nodes."""
        if self.weight is None:
            total = cross_entropy(logits, self.labels, reduction="sum", ignore_index=UNUSED)
            return total / self.num_labels
        losses = cross_entropy(logits, self.labels, reduction="none", ignore_index=UNUSED)
        return (self.weight * losses).sum()

    def finish_epoch(
        self, loss: float, advance: Callable[[str], None], forward: Forward | None = None
    ) -> bool:
        """Validate an epoch, keep it if it is the best, and save a checkpoint if one is due.

        ``forward`` is a forward pass with the weights of that epoch, if there is one. Return
        whether training is finished.
        """
        state = self.state
        state.epoch += 1
        is_last = state.epoch == self.settings.epochs
        if is_last or state.epoch % self.settings.eval_every == 0:
            self.keep_best(self.validate(loss, forward))
        state.finished = state.finished or is_last
        state.seconds = time.perf_counter() - self.start_time
        if self.checkpoints is not None and (state.finished or self.checkpoints.due(state.epoch)):
            self.save_checkpoint(self.checkpoints)
        accuracy = f"{100 * state.history[-1].val_accuracy:.1f} %" if state.history else ""
        advance(f"validation {accuracy}")
        return state.finished

    def validate(self, loss: float, forward: Forward | None) -> Epoch:
        """Measure the network on the validation nodes."""
        epoch = self.validation.measure(self.state.epoch, loss, forward)
        self.state.history.append(epoch)
        return epoch

    def keep_best(self, epoch: Epoch) -> None:
        """Keep the weights if the epoch is the best so far; stop if patience is exhausted."""
        state, patience = self.state, self.settings.patience
        if epoch.epoch <= self.settings.warmup:
            return
        if state.best is None or self.score(epoch) > self.score(state.best):
            state.best = epoch
            weights = self.network.state_dict()
            state.best_network = {name: value.clone() for name, value in weights.items()}
        elif patience is not None and epoch.epoch - state.best.epoch >= patience:
            state.finished = True

    def score(self, epoch: Epoch) -> tuple[float, ...]:
        """What makes an epoch better than another, in order."""
        if self.settings.select == "last":
            return (epoch.epoch,)
        accuracy = epoch.val_accuracy if self.settings.select == "accuracy" else 0.0
        return accuracy, -epoch.val_loss

    def resume(self, advance: Callable[[str], None]) -> State:
        """Continue from the last checkpoint, if there is one."""
        if self.checkpoints is None:
            return self.state
        self.state = state = self.checkpoints.load()
        if state.epoch:
            self.network.load_state_dict(state.network)
            self.optimiser.load_state_dict(state.optimiser)
            torch.set_rng_state(state.random[0])
            if len(state.random) > 1:
                torch.cuda.set_rng_state_all(state.random[1:])
        for _ in range(state.epoch):
            advance("resumed")
        return state

    def save_checkpoint(self, checkpoints: Checkpoints) -> None:
        """Save the state, with weights, optimiser and random numbers."""
        state = self.state
        state.network, state.optimiser = self.network.state_dict(), self.optimiser.state_dict()
        on_gpu = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        state.random = [torch.get_rng_state(), *on_gpu]
        checkpoints.save(state)


def train_network(
    backbone: str | nn.Module,
    nodes: TrainingNodes,
    network_settings: NetworkSettings,
    settings: TrainingSettings,
    *,
    seed: int = 0,
    checkpoints: Checkpoints | None = None,
    progress: bool | None = None,
) -> tuple[Network, History]:
    """Build a network for the features of the nodes, and train it."""
    x = nodes.data.x
    with seeded(seed):
        network = network_settings.build(backbone, x.size(1), len(nodes.names.classes))
    network = network.to(x.device, x.dtype)
    trainer = Trainer(
        network,
        nodes,
        settings,
        seed=seed,
        deterministic=network_settings.is_deterministic(backbone),
        checkpoints=checkpoints,
        progress=progress,
    )
    return network, trainer.train()


class Validation:
    """Predicts the validation nodes as a batch, and measures them."""

    def __init__(self, network: Network, nodes: TrainingNodes, on: On) -> None:
        self.network, self.nodes = network, nodes
        self.layer, data = network.propagation, nodes.data
        self.decisions = isinstance(self.layer, FMP) and self.layer.closes_decisions(on)
        self.groups = nodes.groups_for(self.layer, "val_mask")
        self.rows = data.val_mask.nonzero()[:, 0]
        is_small = len(self.rows) <= HOST_NODES and nodes.reducer.size == 1
        self.device = torch.device("cpu") if is_small else self.rows.device
        self.y = data.y[self.rows].to(self.device)
        self.count = int(nodes.reducer.total(self.y.new_tensor([len(self.y)])))
        self._among: GroupOperator | None = None

    def measure(self, epoch: int, loss: float, forward: Forward | None) -> Epoch:
        """Measure the network, or the logits of a forward pass of the training nodes."""
        with torch.no_grad():
            logits = self.predict() if forward is None else self.predict_from(forward)
        decided = logits.argmax(1)
        val_loss = cross_entropy(logits, self.y, reduction="sum").double()
        correct = (decided == self.y).sum().double()
        shares = torch.stack([correct, val_loss]) / self.count
        accuracy, mean_loss = self.nodes.reducer.total(shares).tolist()
        return Epoch(epoch, loss, accuracy, mean_loss)

    def predict(self) -> Tensor:
        """Logits of the validation nodes, from a pass of the whole network."""
        self.network.eval()
        return self.propagate(self.network.logits(self.nodes.data.x, self.nodes.graph))

    def predict_from(self, forward: Forward) -> Tensor:
        """Logits of the validation nodes, from the forward pass of the training nodes."""
        if isinstance(self.layer, FMP) and not self.decisions:
            return self.propagate(forward.logits.detach())
        rows = forward.propagated.detach().index_select(0, self.rows).to(self.device)
        if not isinstance(self.layer, FMP):
            return rows
        return close_decision_gap(rows, self.among, self.layer.target).logits

    def propagate(self, logits: Tensor) -> Tensor:
        """Propagate logits with the validation nodes as the population."""
        sens, population = self.groups
        propagated = self.network.propagate(
            logits,
            self.nodes.graph,
            sens,
            population,
            decisions=self.decisions,
            softmax_only=True,
        )
        return propagated.index_select(0, self.rows).to(self.device)

    @property
    def among(self) -> GroupOperator:
        """The group operator of the validation nodes alone."""
        if self._among is None:
            sens = self.nodes.data.sens[self.rows].to(self.device)
            self._among = group_operator(sens, groups.known_mask(sens))
        return self._among

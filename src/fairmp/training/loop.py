"""The training loop, for nodes in one process or in several."""

from __future__ import annotations

import json
import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeGuard, TypeVar, get_args

import numpy
import torch
import torch_geometric
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch_geometric.data import Data

from fairmp._version import __version__
from fairmp.errors import InputError, check_choice, check_integer, check_number
from fairmp.graph import Graph
from fairmp.groups import GroupOperator, group_operator, known_mask
from fairmp.metrics import Evaluation
from fairmp.nn.decisions import close_decision_gap
from fairmp.nn.fmp import FMP, Temperature
from fairmp.nn.models import Network
from fairmp.outputs import bar
from fairmp.training import defaults
from fairmp.training.penalties import Strategy, Vanilla

UNUSED = -100  # label of a node that is not trained on
HOST_NODES = 2**16  # validation nodes up to which the host decides sooner than a GPU
Select = Literal["accuracy", "loss", "last"]
Result = TypeVar("Result")


@dataclass(frozen=True)
class Epoch:
    """Figures of one evaluated epoch."""

    epoch: int
    loss: float
    val_accuracy: float
    val_loss: float
    val_gap: float | None = None  # of decisions, if a strategy has a target for it


@dataclass(frozen=True)
class History:
    """The evaluated epochs, the one whose weights were kept, and the time training took."""

    epochs: tuple[Epoch, ...]
    best: Epoch
    seconds: float


@dataclass(frozen=True)
class Run:
    """Result of a fit: figures on the three parts of the split, and all it takes to repeat it."""

    train: Evaluation  # each part is predicted as a batch of its own
    val: Evaluation
    test: Evaluation
    history: History
    config: dict[str, Any]  # the classifier's arguments
    seed: int  # of the initialisation
    split_seed: int | None  # None if the data came with a split
    versions: dict[str, str]  # of the packages that computed it
    tried: tuple[Any, ...] = ()  # the candidates a backbone was chosen from (auto.Trial)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            **{name: getattr(self, name) for name in ("config", "seed", "split_seed", "versions")},
            "best_epoch": self.history.best.epoch,
            "seconds": self.history.seconds,
            **({"tried": [trial.to_dict() for trial in self.tried]} if self.tried else {}),
            **{name: getattr(self, name).to_dict() for name in ("train", "val", "test")},
        }

    def to_json(self) -> str:
        """Return one line of JSON."""
        return json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False)

    def _repr_html_(self) -> str:
        return f"<p>Test nodes, epoch {self.history.best.epoch}</p>{self.test._repr_html_()}"

    def plot(self, ax: Any = None) -> Any:
        """Draw the test nodes' decisions by group (:meth:`fairmp.metrics.Evaluation.plot`)."""
        return self.test.plot(ax)


def versions() -> dict[str, str]:
    """Return the versions of fairmp, torch, PyG and numpy."""
    packages = (torch, torch_geometric, numpy)
    return {"fairmp": __version__, **{p.__name__: str(p.__version__) for p in packages}}


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


class LocalReducer:
    """Sums over nodes that are all in this process; ``distributed.Ranks`` is for several."""

    rank, size = 0, 1

    def group_operator(self, sens: Tensor, population: Tensor, num_groups: int) -> GroupOperator:
        """Build the group operator of all nodes."""
        return group_operator(sens, population)

    def total(self, part: Tensor) -> Tensor:
        """Sum a tensor over the processes."""
        return part

    def add_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Sum the gradients over the processes, in place."""

    def on_first(self, work: Callable[..., Result], *parts: Tensor) -> Result:
        """Return what ``work`` returns on the first process, given the rows of all processes."""
        return work(*parts)


class GroupOperators(dict[str, GroupOperator]):
    """Group operators of the parts of a split, by the name of the mask, built when first used."""

    def __init__(self, data: Data, num_groups: int, reducer: LocalReducer) -> None:
        super().__init__()
        self.data, self.num_groups, self.reducer = data, num_groups, reducer

    def __missing__(self, mask: str) -> GroupOperator:
        sens = self.data.sens
        population = self.data[mask] & known_mask(sens)
        self[mask] = self.reducer.group_operator(sens, population, self.num_groups)
        return self[mask]

    def group_arguments(
        self, network: Network, mask: str
    ) -> tuple[Tensor | GroupOperator, Tensor | None]:
        """Groups and population as the propagation takes them."""
        if needs_groups(network.propagation):
            return self[mask], None
        return self.data.sens, self.data[mask] & known_mask(self.data.sens)


def needs_groups(propagation: nn.Module | None) -> TypeGuard[FMP]:
    """Whether a propagation corrects predictions by group, as FMP does."""
    return bool(getattr(propagation, "needs_groups", False))


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch for a block, and restore its generators afterwards."""
    # Without a list of devices, fork_rng warns on machines with several GPUs.
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        yield


@dataclass
class _Validation:
    """Accuracy, loss and, if wanted, the gap of decisions on the validation nodes."""

    network: Network
    data: Data
    graph: Graph
    operators: GroupOperators
    temperature: Temperature | None
    among: GroupOperator | None = None  # of the validation nodes alone

    def __post_init__(self) -> None:
        self.groups = self.operators.group_arguments(self.network, "val_mask")
        self.nodes = self.data.val_mask.nonzero()[:, 0]
        small = len(self.nodes) <= HOST_NODES and self.operators.reducer.size == 1
        self.device = torch.device("cpu") if small else self.nodes.device
        self.y = self.data.y[self.nodes].to(self.device)
        self.count = int(self.operators.reducer.total(self.y.new_tensor([len(self.y)])))

    def __call__(
        self, forward: tuple[Tensor, Tensor] | None = None, *, measure_gap: bool = False
    ) -> tuple[float, float, float | None]:
        """Validate the network, or the logits of a forward pass before and after propagation."""
        with torch.no_grad():
            logits = self._logits(forward)
        gap, decided = None, logits.argmax(1)
        if measure_gap:
            operator = self.operators["val_mask"]
            chosen = self.data.x.new_zeros(len(self.data.y), logits.size(1))
            chosen[self.nodes, decided.to(chosen.device)] = 1
            gap = float(operator.largest_gap(chosen).max())
        loss = cross_entropy(logits, self.y, reduction="sum").double()
        correct = (decided == self.y).sum().double()
        shares = torch.stack([correct, loss]) / self.count
        accuracy, loss = self.operators.reducer.total(shares).tolist()
        return accuracy, loss, gap

    def _logits(self, forward: tuple[Tensor, Tensor] | None) -> Tensor:
        """Correct the validation nodes, as a batch or in the forward pass of the training nodes."""
        network, layer, graph = self.network, self.network.propagation, self.graph
        if forward is None:
            network.eval()
            logits = network.logits(self.data.x, graph)
        else:
            logits, out = forward[0], forward[1].index_select(0, self.nodes).to(self.device)
            if not needs_groups(layer):
                return out
            if layer.at_prediction(self.temperature).get("decisions"):
                if self.among is None:
                    sens = self.data.sens[self.nodes].to(self.device)
                    self.among = group_operator(sens, known_mask(sens))
                return close_decision_gap(out, self.among, layer.target).logits
        inputs = logits, graph, *self.groups, self.temperature
        out = network.propagate(*inputs, softmax_only=True).index_select(0, self.nodes)
        return out.to(self.device)


def fit(
    network: Network,
    data: Data,
    graph: Graph,
    *,
    epochs: int = defaults.EPOCHS,
    lr: float = defaults.LR,
    weight_decay: float = defaults.WEIGHT_DECAY,
    select: Select = "accuracy",
    patience: int | None = None,
    eval_every: int = 1,
    temperature: Temperature | None = None,
    strategy: Strategy | None = None,
    seed: int = 0,
    progress: bool | None = None,
    operators: GroupOperators | None = None,
    checkpoints: Checkpoints | None = None,
    deterministic: bool = False,
) -> History:
    """Train a network in place, and keep the weights of its best epoch.

    Full-batch Adam on the cross-entropy of the training nodes; the test nodes are never used. A
    fair propagation closes the gap of the training nodes in training and that of the validation
    nodes in validation. **The epoch kept is the one with the highest validation accuracy; ties go
    to the lowest validation loss, then to the earliest epoch** (``select="loss"``: the lowest
    validation loss; ``"last"``: the last epoch). Epochs before a strategy is active are not kept,
    and those that meet its target, if it has one, are preferred.

    ``temperature`` is τ of a fair propagation in validation, ``seed`` that of dropout, and
    ``operators`` say where the nodes are. ``checkpoints`` save the training and resume it, except
    for what an adversary remembers. If the network is ``deterministic`` (no dropout, no
    normalisation over nodes), the forward pass of each epoch also validates the one before, whose
    weights it has. The other arguments are those of ``FairClassifier``.
    """
    check_integer("epochs", epochs, "give a whole number, 1 or more")
    check_integer("eval_every", eval_every, "give a whole number, 1 or more")
    if patience is not None:
        check_integer("patience", patience, "give 1 or more epochs, or None")
    check_number("lr", lr, "give a number above 0, such as 1e-3", low=0, above=True)
    check_number("weight_decay", weight_decay, "give 0 or more", low=0)
    check_choice("select", select, get_args(Select))
    strategy = None if isinstance(strategy, Vanilla) else strategy
    warmup, goal = (strategy.warmup, strategy.gap_target) if strategy else (0, None)
    if epochs <= warmup:
        value = f"{epochs} end before the strategy is active, after {warmup}"
        hint = "give more epochs, or a shorter pretraining (Adversary's pretrain_classifier)"
        raise InputError("epochs", value, hint)
    operators = GroupOperators(data, 0, LocalReducer()) if operators is None else operators
    reducer, train = operators.reducer, data.train_mask
    groups = operators.group_arguments(network, "train_mask")
    count = int(reducer.total(train.sum().view(1)))
    weight = data.get("sample_weight")
    if weight is not None:
        weight = weight.to(data.x) / reducer.total(weight[train].double().sum().view(1)).to(data.x)
    penalise: Any = strategy.begin() if strategy else None
    optimiser = torch.optim.Adam(network.parameters(), lr=lr, weight_decay=weight_decay)

    validate = _Validation(network, data, graph, operators, temperature)
    if goal is not None:
        goal += float(operators["val_mask"].rows.abs().max())  # one node of the smallest group
    # The forward pass of an epoch validates the one before it, if both would compute the same.
    shared = deterministic and reducer.size == 1
    labels = torch.where(train, data.y, UNUSED)

    def score(record: Epoch) -> tuple[float, ...]:
        if select == "last":
            return (record.epoch,)
        missed = min(0.0, (goal or 0.0) - (record.val_gap or 0.0))
        accuracy = record.val_accuracy if select == "accuracy" else 0.0
        return missed, accuracy, -record.val_loss

    with (
        seeded(seed + 1_000_003 * reducer.rank),
        bar(epochs, "training", show=progress if reducer.rank == 0 else False) as advance,
    ):
        state = State() if checkpoints is None else checkpoints.load()
        if state.epoch:
            network.load_state_dict(state.network)
            optimiser.load_state_dict(state.optimiser)
            torch.set_rng_state(state.random[0])
            if len(state.random) > 1:
                torch.cuda.set_rng_state_all(state.random[1:])
            for record in state.history if goal is not None else ():
                penalise.update(record.val_gap)
        for _ in range(state.epoch):
            advance("resumed")
        start = time.perf_counter() - state.seconds

        def finish(epoch: int, loss: float, forward: tuple[Tensor, Tensor] | None = None) -> None:
            """Validate an epoch, keep it if it is the best, and save the state."""
            state.epoch = epoch
            if epoch % eval_every == 0 or epoch == epochs:
                accuracy, val_loss, gap = validate(forward, measure_gap=goal is not None)
                record = Epoch(epoch, loss, accuracy, val_loss, gap)
                state.history.append(record)
                if gap is not None:
                    penalise.update(gap)
                if epoch <= warmup:
                    pass
                elif state.best is None or score(record) > score(state.best):
                    state.best, weights = record, network.state_dict()
                    state.best_network = {name: value.clone() for name, value in weights.items()}
                elif patience is not None and epoch - state.best.epoch >= patience:
                    state.finished = True
            state.finished = state.finished or epoch == epochs
            state.seconds = time.perf_counter() - start
            if checkpoints is not None and (state.finished or checkpoints.due(epoch)):
                state.network, state.optimiser = network.state_dict(), optimiser.state_dict()
                on_gpu = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
                state.random = [torch.get_rng_state(), *on_gpu]
                checkpoints.save(state)
            last = f"{100 * state.history[-1].val_accuracy:.1f} %" if state.history else ""
            advance(f"validation {last}")

        waiting: float | None = None  # loss of the epoch before, which is not yet validated
        for epoch in range(state.epoch + 1, (state.epoch if state.finished else epochs) + 1):
            network.train()
            optimiser.zero_grad()
            logits = network.logits(data.x, graph)
            out = network.propagate(logits, graph, *groups, softmax_only=penalise is None)
            if waiting is not None:
                finish(epoch - 1, waiting, (logits.detach(), out.detach()))
                if state.finished:
                    break
            # The share of this process in the mean over all training nodes.
            if weight is None:
                loss = cross_entropy(out, labels, reduction="sum", ignore_index=UNUSED) / count
            else:
                losses = cross_entropy(out, labels, reduction="none", ignore_index=UNUSED)
                loss = (weight * losses).sum()
            penalty = None if penalise is None else penalise(out, operators["train_mask"])
            share = loss if penalty is None else loss + penalty / reducer.size
            shares = torch.stack([share.detach(), loss.detach()]).double()
            total, mean = reducer.total(shares).tolist()
            if not math.isfinite(total):
                value = f"the loss is no longer finite in epoch {epoch} with lr={lr:g}"
                raise InputError("lr", value, "lower the learning rate, or scale the features")
            share.backward()
            reducer.add_gradients(network.parameters())
            optimiser.step()
            waiting = mean if shared and epoch < epochs else None
            if waiting is None:
                finish(epoch, mean)
                if state.finished:
                    break
    assert state.best is not None  # the last epoch is validated, and comes after any warm-up
    network.load_state_dict(state.best_network)
    network.eval()
    if goal is not None and (state.best.val_gap or 0.0) > goal and reducer.rank == 0:
        found = f"the gap of decisions on validation nodes is {state.best.val_gap:.4f}"
        hint = "train longer, allow a larger gap, or use the group at prediction (FMP)"
        warnings.warn(f"no epoch met the target: {found}; {hint}", stacklevel=2)
    return History(tuple(state.history), state.best, state.seconds)

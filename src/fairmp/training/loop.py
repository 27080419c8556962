"""The only training loop."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, get_args

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch_geometric.data import Data

from fairmp.errors import InputError
from fairmp.groups import GroupOperator, group_operator
from fairmp.groups import known as known_groups
from fairmp.nn.fmp import FMP, Temperature
from fairmp.nn.models import Graph, Network
from fairmp.progress import bar
from fairmp.training.penalties import Strategy, Vanilla

Select = Literal["accuracy", "loss", "last"]


@dataclass(frozen=True)
class Epoch:
    """One epoch at which the network was looked at."""

    epoch: int
    loss: float
    val_accuracy: float
    val_loss: float


@dataclass(frozen=True)
class History:
    """How training went: the epochs looked at, the one that was kept, and the time it took."""

    epochs: tuple[Epoch, ...]
    best: Epoch
    seconds: float


@dataclass
class State:
    """All of a training that changes from epoch to epoch.

    Attributes:
        epoch: the last one done.
        network: the network's weights after it.
        optimiser: the optimiser's state.
        random: torch's random number generators.
        seen: the epochs looked at.
        best: the best of them.
        kept: the network's weights in the best.
        seconds: spent so far.
        finished: whether there is no epoch to come.
    """

    epoch: int = 0
    network: dict[str, Tensor] = field(default_factory=dict)
    optimiser: dict[str, Any] = field(default_factory=dict)
    random: list[Tensor] = field(default_factory=list)
    seen: list[Epoch] = field(default_factory=list)
    best: Epoch | None = None
    kept: dict[str, Tensor] = field(default_factory=dict)
    seconds: float = 0.0
    finished: bool = False


class Checkpoints(Protocol):
    """Where a training is kept, to go on from after an interruption."""

    def load(self) -> State | None:
        """Return what was kept last, ``None`` at the beginning."""

    def due(self, epoch: int) -> bool:
        """Whether to keep the state after an epoch; the last is kept anyway."""

    def save(self, state: State) -> None:
        """Keep a state."""


class LocalReducer:
    """Where a training's nodes are: all in this process.

    The loop asks this for all that is summed over nodes; :mod:`fairmp.distributed` answers for
    nodes on several machines.
    """

    def seed(self, seed: int) -> int:
        """The seed of what is drawn node by node."""
        return seed

    def group_operator(self, sens: Tensor, population: Tensor) -> GroupOperator:
        """Δ of all nodes."""
        return group_operator(sens, population)

    def count(self, mask: Tensor) -> int:
        """How many nodes are in a mask, everywhere."""
        return int(mask.sum())

    def cross_entropy(self, logits: Tensor, y: Tensor, count: int) -> Tensor:
        """The share of the nodes here in the mean over all ``count``."""
        return cross_entropy(logits, y)

    def totals(self, *shares: Tensor) -> list[float]:
        """Numbers of all nodes, from the shares of the nodes here."""
        return [float(share) for share in shares]

    def once(self, penalty: Tensor) -> Tensor:
        """The share here of a number that is everywhere the same, and counts once."""
        return penalty

    def add_gradients(self, network: Network) -> None:
        """Add to the gradients what nodes elsewhere say."""


def told(
    network: Network, sens: Tensor, population: Tensor, nodes: LocalReducer
) -> tuple[Tensor | GroupOperator, Tensor | None]:
    """What a network is told of groups and population: Δ, made once, where it is fair."""
    fair = isinstance(network.propagation, FMP)
    return (nodes.group_operator(sens, population), None) if fair else (sens, population)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw torch's random numbers from a seed, and leave the caller's generators as they were."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


def fit(
    network: Network,
    data: Data,
    graph: Graph,
    *,
    epochs: int = 300,
    lr: float = 1e-3,
    weight_decay: float = 1e-5,
    select: Select = "accuracy",
    patience: int | None = None,
    eval_every: int = 1,
    temperature: Temperature | None = None,
    strategy: Strategy | None = None,
    seed: int = 0,
    progress: bool | None = None,
    nodes: LocalReducer | None = None,
    checkpoints: Checkpoints | None = None,
) -> History:
    """Train a network in place, and keep the weights of its best epoch.

    Adam on the cross-entropy of the training nodes, all nodes at once. The population of a fair
    propagation is the training nodes while gradients flow, and the validation nodes when the epoch
    is judged. **The epoch kept is the one with the highest validation accuracy; among equals, the
    one with the lowest validation loss, then the earliest** (``select="loss"``: the lowest
    validation loss; ``"last"``: the last epoch, whatever it is worth). Epochs before a strategy is
    at work are not kept. Mind that a strategy that gives up accuracy epoch by epoch, such as an
    adversary, has its least fair epochs kept where accuracy or loss decides. The test nodes are
    never looked at.

    Args:
        network: the network; its weights are changed.
        data: a graph with ``train_mask`` and ``val_mask``, checked by
            :func:`fairmp.datasets.check`.
        graph: the same graph as networks read it.
        epochs: most epochs to train.
        lr: Adam's learning rate.
        weight_decay: Adam's weight decay.
        select: what the best epoch is best at.
        patience: stop when that many epochs brought nothing better; ``None`` for never.
        eval_every: look at the validation nodes every so many epochs.
        temperature: τ of a fair propagation when the validation nodes are looked at.
        strategy: what else the loss asks for.
        seed: of dropout, and of whatever else is drawn in training.
        progress: show a bar; by default where standard error is a terminal.
        nodes: where they are, here by default.
        checkpoints: where to keep the training, and to go on from; nowhere by default. What a
            strategy remembers is not kept.
    """
    _check(epochs, lr, weight_decay, select, patience, eval_every)
    strategy = strategy or Vanilla()
    warmup = strategy.warmup
    if epochs <= warmup:
        raise InputError(
            "epochs",
            f"{epochs} end before the strategy is at work, after {warmup}",
            "give more epochs, or a shorter pretraining (Adversary's pretrain_classifier)",
        )
    nodes = nodes or LocalReducer()
    train, known = data.train_mask, known_groups(data.sens)
    delta = (
        None if isinstance(strategy, Vanilla) else nodes.group_operator(data.sens, train & known)
    )
    groups = told(network, data.sens, train & known, nodes)
    judged = told(network, data.sens, data.val_mask & known, nodes)
    counts = nodes.count(train), nodes.count(data.val_mask)
    penalise = strategy.begin()
    optimiser = torch.optim.Adam(network.parameters(), lr=lr, weight_decay=weight_decay)
    with seeded(nodes.seed(seed)), bar(epochs, "training", show=progress) as advance:
        state = _resumed(checkpoints, network, optimiser)
        for _ in range(state.epoch):
            advance("resumed")
        start = time.perf_counter() - state.seconds
        for epoch in range(state.epoch + 1, (state.epoch if state.finished else epochs) + 1):
            network.train()
            optimiser.zero_grad()
            logits = network(data.x, graph, *groups)
            loss = nodes.cross_entropy(logits[train], data.y[train], counts[0])
            penalty = None if delta is None else penalise(logits, delta)
            share = loss if penalty is None else loss + nodes.once(penalty)
            whole, mean = nodes.totals(share.detach(), loss.detach())
            if not math.isfinite(whole):
                raise InputError(
                    "lr",
                    f"the loss is no longer finite in epoch {epoch} with lr={lr:g}",
                    "lower the learning rate, or scale the features",
                )
            share.backward()
            nodes.add_gradients(network)
            optimiser.step()
            state.epoch = epoch
            if epoch % eval_every == 0 or epoch == epochs:
                val = _look(network, data, graph, nodes, judged, counts[1], temperature)
                record = Epoch(epoch, mean, *val)
                state.seen.append(record)
                if epoch <= warmup:
                    pass
                elif state.best is None or _better(record, state.best, select):
                    state.best, state.kept = record, deepcopy(network.state_dict())
                elif patience is not None and epoch - state.best.epoch >= patience:
                    state.finished = True
            state.finished = state.finished or epoch == epochs
            state.seconds = time.perf_counter() - start
            if checkpoints is not None and (state.finished or checkpoints.due(epoch)):
                state.network, state.optimiser = network.state_dict(), optimiser.state_dict()
                state.random = _generators()
                checkpoints.save(state)
            advance(f"validation {100 * state.seen[-1].val_accuracy:.1f} %" if state.seen else "")
            if state.finished:
                break
    assert state.best is not None  # the last epoch is looked at, and comes after any warm-up
    network.load_state_dict(state.kept)
    network.eval()
    return History(tuple(state.seen), state.best, state.seconds)


def _resumed(
    checkpoints: Checkpoints | None, network: Network, optimiser: torch.optim.Optimizer
) -> State:
    state = None if checkpoints is None else checkpoints.load()
    if state is None:
        return State()
    network.load_state_dict(state.network)
    optimiser.load_state_dict(state.optimiser)
    torch.set_rng_state(state.random[0])
    if len(state.random) > 1:
        torch.cuda.set_rng_state_all(state.random[1:])
    return state


def _generators() -> list[Tensor]:
    on_gpu = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return [torch.get_rng_state(), *on_gpu]


def _look(
    network: Network,
    data: Data,
    graph: Graph,
    nodes: LocalReducer,
    groups: tuple[Tensor | GroupOperator, Tensor | None],
    count: int,
    temperature: Temperature | None,
) -> tuple[float, float]:
    """Accuracy and loss of the validation nodes."""
    val = data.val_mask
    network.eval()
    with torch.no_grad():
        logits, y = network(data.x, graph, *groups, temperature=temperature)[val], data.y[val]
        right = (logits.argmax(1) == y).double().sum() / count
        accuracy, loss = nodes.totals(right, nodes.cross_entropy(logits, y, count))
    return accuracy, loss


def _better(new: Epoch, old: Epoch, select: Select) -> bool:
    if select == "last":
        return True
    if select == "loss":
        return new.val_loss < old.val_loss
    return (new.val_accuracy, -new.val_loss) > (old.val_accuracy, -old.val_loss)


def _check(
    epochs: int,
    lr: float,
    weight_decay: float,
    select: str,
    patience: int | None,
    eval_every: int,
) -> None:
    for name, count in (("epochs", epochs), ("eval_every", eval_every)):
        if count < 1:
            raise InputError(name, f"{count} is too few", "give a whole number, 1 or more")
    if patience is not None and patience < 1:
        raise InputError("patience", f"{patience} epochs is too few", "give 1 or more, or None")
    if not lr > 0:
        raise InputError(
            "lr", f"{lr} is not a learning rate", "give a number above 0, such as 1e-3"
        )
    if not weight_decay >= 0:
        raise InputError("weight_decay", f"{weight_decay} is negative", "give 0 or more")
    if select not in get_args(Select):
        raise InputError("select", f"{select!r} is unknown", "choose 'accuracy', 'loss' or 'last'")

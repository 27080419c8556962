"""The only training loop."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch_geometric.data import Data

from fairmp.errors import InputError
from fairmp.incidence import incidence
from fairmp.models import Graph, Network
from fairmp.progress import bar
from fairmp.strategies import Strategy, Vanilla

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
    sharpness: float | None = None,
    strategy: Strategy | None = None,
    seed: int = 0,
    progress: bool | None = None,
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
        sharpness: τ of a fair propagation when the validation nodes are looked at.
        strategy: what else the loss asks for.
        seed: of dropout, and of whatever else is drawn in training.
        progress: show a bar; by default where standard error is a terminal.
    """
    _check(epochs, lr, weight_decay, select, patience, eval_every)
    strategy = strategy or Vanilla()
    warmup = strategy.warmup
    if epochs <= warmup:
        raise InputError(
            f"epochs: {epochs} end before the strategy is at work, after {warmup}; give more "
            "epochs, or a shorter pretraining (Adversary's pretrain_classifier)"
        )
    train, known = data.train_mask, data.sens >= 0
    delta = None if isinstance(strategy, Vanilla) else incidence(data.sens, train & known)
    penalise = strategy.begin()
    optimiser = torch.optim.Adam(network.parameters(), lr=lr, weight_decay=weight_decay)
    kept: dict[str, Tensor] = {}
    best: Epoch | None = None
    seen: list[Epoch] = []
    start = time.perf_counter()
    with seeded(seed), bar(epochs, "training", show=progress) as advance:
        for epoch in range(1, epochs + 1):
            network.train()
            optimiser.zero_grad()
            logits = network(data.x, graph, data.sens, train & known)
            loss = cross_entropy(logits[train], data.y[train])
            penalty = None if delta is None else penalise(logits, delta)
            total = loss if penalty is None else loss + penalty
            if not bool(torch.isfinite(total)):
                raise InputError(
                    f"lr: the loss is no longer finite in epoch {epoch} with lr={lr:g}; "
                    "lower the learning rate, or scale the features"
                )
            total.backward()
            optimiser.step()
            if epoch % eval_every == 0 or epoch == epochs:
                record = _look(network, data, graph, epoch, float(loss.detach()), sharpness)
                seen.append(record)
                if epoch <= warmup:
                    pass
                elif best is None or _better(record, best, select):
                    best, kept = record, deepcopy(network.state_dict())
                elif patience is not None and epoch - best.epoch >= patience:
                    break
            advance(f"validation {100 * seen[-1].val_accuracy:.1f} %" if seen else "")
    assert best is not None  # the last epoch is looked at, and comes after any warm-up
    network.load_state_dict(kept)
    network.eval()
    return History(tuple(seen), best, time.perf_counter() - start)


def _look(
    network: Network,
    data: Data,
    graph: Graph,
    epoch: int,
    loss: float,
    sharpness: float | None,
) -> Epoch:
    val = data.val_mask
    network.eval()
    with torch.no_grad():
        logits = network(data.x, graph, data.sens, val & (data.sens >= 0), sharpness=sharpness)[val]
    y = data.y[val]
    accuracy = float((logits.argmax(1) == y).double().mean())
    return Epoch(epoch, loss, accuracy, float(cross_entropy(logits, y)))


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
            raise InputError(f"{name}: {count} is too few; give a whole number, 1 or more")
    if patience is not None and patience < 1:
        raise InputError(f"patience: {patience} epochs is too few; give 1 or more, or None")
    if not lr > 0:
        raise InputError(f"lr: {lr} is not a learning rate; give a number above 0, such as 1e-3")
    if not weight_decay >= 0:
        raise InputError(f"weight_decay: {weight_decay} is negative; give 0 or more")
    if select not in get_args(Select):
        raise InputError(f"select: {select!r} is unknown; choose 'accuracy', 'loss' or 'last'")

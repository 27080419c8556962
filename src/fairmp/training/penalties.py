"""Strategies: what a training loss asks for besides accuracy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fairmp.errors import InputError
from fairmp.groups import GroupOperator
from fairmp.kernels import softmax

Penalty = Callable[[Tensor, GroupOperator], Tensor | None]
"""Called once an epoch with the logits of all nodes (n×C) and the incidence of the training nodes;
returns what to add to the epoch's loss, or ``None``."""


class Strategy(Protocol):
    """A hook on the training loop: what to add to the loss."""

    @property
    def warmup(self) -> int:
        """Epochs before the strategy is at work; the weights of none of them are kept."""
        return 0

    def begin(self) -> Penalty:
        """Return the penalty for one fit; whatever it remembers is forgotten with the fit."""
        ...

    def config(self) -> dict[str, object]:
        """Name and arguments, for the record."""
        ...


@dataclass(frozen=True)
class Vanilla(Strategy):
    """Nothing but the loss."""

    def begin(self) -> Penalty:
        """Return a penalty that adds nothing."""
        return lambda logits, delta: None

    def config(self) -> dict[str, object]:
        """Name and arguments, for the record."""
        return {"name": "vanilla"}


@dataclass(frozen=True)
class Regulariser(Strategy):
    r"""The demographic regulariser :math:`h \cdot ½\|Δ \hat{p}\|_1`.

    For two classes and two groups that is :math:`h` times the gap of the mean predicted
    probability. It needs the groups in training alone, so it is the way where they may not be used
    at prediction.

    Example:
        >>> import torch
        >>> from fairmp.groups import group_operator
        >>> logits = torch.tensor([[0.0, 0.0], [0.0, 100.0]])
        >>> Regulariser(h=2.0).penalty(logits, group_operator(torch.tensor([0, 1])))
        tensor(1.)
    """

    h: float = 1.0

    def __post_init__(self) -> None:
        _check_strength(self.h)

    def begin(self) -> Penalty:
        """Return :meth:`penalty`: it remembers nothing."""
        return self.penalty

    def penalty(self, logits: Tensor, delta: GroupOperator) -> Tensor:
        """Return the weighted gap."""
        return self.h * delta.gap(softmax(logits)).abs().sum() / 2

    def config(self) -> dict[str, object]:
        """Name and arguments, for the record."""
        return {"name": "regulariser", "h": self.h}


@dataclass(frozen=True)
class Adversary(Strategy):
    r"""Adversarial debiasing: an adversary must not find the group in the predictions.

    A small network :math:`a` reads the predicted probabilities :math:`\hat{p}` of the training
    nodes of known group and predicts the group; the classifier minimises

    .. math::
        \mathrm{CE}(\hat{p}, y) - h \cdot \mathrm{CE}(a(\hat{p}), s).

    The first ``pretrain_classifier`` epochs train the classifier alone. Then the adversary takes
    ``pretrain_adversary`` steps while the classifier stands still; they come on top of the loop's
    epochs, which are the classifier's. From then on each epoch is one step of the adversary, on
    predictions held fixed, and one of the classifier against it. The epoch kept is one of these.
    With ``h = 0`` there is no adversary, and nothing to wait for. Like the regulariser it needs the
    groups in training alone. It works for any number of classes and groups.

    The two must keep pace: where the classifier is as quick as the adversary, the gap swings from
    one sign to the other. An adversary of ten times the classifier's learning rate is steadier.

    Args:
        h: strength.
        hidden: width of the adversary's one hidden layer.
        pretrain_classifier: epochs of the classifier alone.
        pretrain_adversary: steps of the adversary alone.
        lr: the adversary's learning rate (Adam).

    Example:
        >>> Adversary(h=2.0).warmup
        70
    """

    h: float = 1.0
    hidden: int = 64
    pretrain_classifier: int = 70
    pretrain_adversary: int = 30
    lr: float = 1e-3

    def __post_init__(self) -> None:
        _check_strength(self.h)
        for name, least in (("hidden", 1), ("pretrain_classifier", 0), ("pretrain_adversary", 0)):
            value = getattr(self, name)
            if value < least:
                raise InputError(
                    name, f"{value} is too few", f"give a whole number from {least} up"
                )
        if not self.lr > 0:
            raise InputError(
                "lr", f"{self.lr} is not a learning rate", "give a number above 0, such as 1e-3"
            )

    @property
    def warmup(self) -> int:
        """The classifier's epochs without the adversary; 0 where there is none."""
        return self.pretrain_classifier if self.h > 0 else 0

    def begin(self) -> Penalty:
        """Return a penalty with an adversary of its own, yet to be trained; none for h = 0."""
        return _Contest(self) if self.h > 0 else Vanilla().begin()

    def config(self) -> dict[str, object]:
        """Name and arguments, for the record; the adversary's weights are not part of it."""
        return {"name": "adversary", **asdict(self)}


class _Contest:
    """An adversary in the middle of a fit."""

    def __init__(self, setting: Adversary) -> None:
        self.setting = setting
        self.epoch = 0

    def __call__(self, logits: Tensor, delta: GroupOperator) -> Tensor | None:
        self.epoch += 1
        first = self.setting.pretrain_classifier + 1
        if self.epoch < first:
            return None
        if self.epoch == first:
            self._enter(logits, delta)
        p = softmax(logits)[delta.population]
        steps = 1 + (self.setting.pretrain_adversary if self.epoch == first else 0)
        for _ in range(steps):
            self.optimiser.zero_grad()
            cross_entropy(self.adversary(p.detach()), self.sens).backward()
            self.optimiser.step()
        return -self.setting.h * cross_entropy(self.adversary(p), self.sens)

    def _enter(self, logits: Tensor, delta: GroupOperator) -> None:
        hidden = self.setting.hidden
        self.adversary = nn.Sequential(
            nn.Linear(logits.size(1), hidden), nn.ReLU(), nn.Linear(hidden, delta.num_groups)
        ).to(logits)
        self.optimiser = torch.optim.Adam(self.adversary.parameters(), lr=self.setting.lr)
        self.sens = delta.membership[delta.population].argmax(1)


def _check_strength(h: float) -> None:
    if not h >= 0:
        raise InputError("h", f"{h!r} is not a strength", "give a number, 0 or more")

"""Strategies: what a training loss asks for besides accuracy."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fairmp.errors import InputError
from fairmp.incidence import Incidence
from fairmp.kernels import softmax


class Strategy(Protocol):
    """A hook on the training loop: what to add to the loss."""

    @property
    def warmup(self) -> int:
        """Epochs before the strategy is at work; the weights of none of them are kept."""
        return 0

    def begin(self) -> Strategy:
        """Return the strategy for one fit; one with a state returns a fresh one each time."""
        return self

    def penalty(self, logits: Tensor, delta: Incidence) -> Tensor | None:
        """Return what to add to this epoch's loss, or ``None``.

        Args:
            logits: the network's, for all nodes (n×C).
            delta: the incidence of the training nodes.
        """
        ...

    def config(self) -> dict[str, object]:
        """Name and arguments, for the record."""
        ...


@dataclass(frozen=True)
class Vanilla(Strategy):
    """Nothing but the loss."""

    def penalty(self, logits: Tensor, delta: Incidence) -> Tensor | None:
        """Add nothing."""
        return None

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
        >>> from fairmp.incidence import incidence
        >>> logits = torch.tensor([[0.0, 0.0], [0.0, 100.0]])
        >>> Regulariser(h=2.0).penalty(logits, incidence(torch.tensor([0, 1])))
        tensor(1.)
    """

    h: float = 1.0

    def __post_init__(self) -> None:
        _check_strength(self.h)

    def penalty(self, logits: Tensor, delta: Incidence) -> Tensor | None:
        """Add the weighted gap."""
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
    ``pretrain_adversary`` steps while the classifier stands still: they come on top of the loop's
    epochs, which are the classifier's. From then on each epoch is one step of the adversary, and
    one of the classifier against it. The epoch kept is one of these, unless ``h`` is 0, when
    nothing is waited for. Like the regulariser, it needs the groups in training alone. It works
    for any number of classes and groups.

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
                raise InputError(f"{name}: {value} is too few; give a whole number from {least} up")
        if not self.lr > 0:
            raise InputError(
                f"lr: {self.lr} is not a learning rate; give a number above 0, such as 1e-3"
            )

    @property
    def warmup(self) -> int:
        """The classifier's epochs without the adversary; 0 where it has no say anyway."""
        return self.pretrain_classifier if self.h > 0 else 0

    def begin(self) -> Strategy:
        """Return the strategy with an adversary of its own, yet to be trained."""
        return _Debiasing(**asdict(self))

    def penalty(self, logits: Tensor, delta: Incidence) -> Tensor | None:
        """Refuse: the adversary is :meth:`begin`'s."""
        raise InputError("strategy: an Adversary is trained along; call begin() once a fit first")

    def config(self) -> dict[str, object]:
        """Name and arguments, for the record; the adversary's weights are not part of it."""
        return {"name": "adversary", **asdict(self)}


class _Debiasing(Adversary):
    """An adversary in the middle of a fit."""


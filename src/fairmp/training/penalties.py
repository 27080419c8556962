"""Fairness penalties: what a training loss asks for besides accuracy."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fairmp.errors import check_integer, check_number
from fairmp.groups import GroupOperator
from fairmp.kernels import softmax
from fairmp.training import defaults


class Penalty:
    """What a strategy adds to the loss in one fit; by itself nothing."""

    def __call__(self, logits: Tensor, groups: GroupOperator) -> Tensor | None:
        """Return what to add to the loss in this epoch, or ``None``.

        Args:
            logits: of all nodes (n×C).
            groups: the group operator of the training nodes.
        """
        return None


@dataclass(frozen=True)
class Strategy:
    """A hook on the training loop that adds to the loss; by itself it adds nothing.

    Without a strategy the loss is the cross-entropy alone.
    """

    warmup = 0
    """Epochs before the strategy is active; their weights are never kept."""

    def begin(self) -> Penalty:
        """Return the penalty for one fit; its state ends with the fit."""
        return Penalty()

    def config(self) -> dict[str, object]:
        """Return name and arguments."""
        return {"name": type(self).__name__.lower(), **asdict(self)}


@dataclass(frozen=True)
class Regulariser(Strategy):
    r"""The demographic regulariser :math:`h \cdot ½\|Δ \hat{p}\|_1`.

    For two classes and two groups that is :math:`h` times the gap of the mean predicted
    probability. It needs the groups in training only, so it suits cases in which they may not be
    used at prediction.

    Example:
        >>> import torch
        >>> from fairmp.groups import group_operator
        >>> logits = torch.tensor([[0.0, 0.0], [0.0, 100.0]])
        >>> Regulariser(h=2.0).begin()(logits, group_operator(torch.tensor([0, 1])))
        tensor(1.)
    """

    h: float = defaults.H

    def __post_init__(self) -> None:
        check_number("h", self.h, "give a strength, 0 or more", low=0)

    def begin(self) -> Penalty:
        """Return the weighted gap, which has no state."""
        return _GapPenalty(self.h)


class _GapPenalty(Penalty):
    def __init__(self, weight: float) -> None:
        self.weight = weight

    def __call__(self, logits: Tensor, groups: GroupOperator) -> Tensor:
        return self.weight * groups.gap(softmax(logits)).abs().sum() / 2


@dataclass(frozen=True)
class Adversary(Strategy):
    r"""Adversarial debiasing: an adversary must not find the group in the predictions.

    A small network :math:`a` reads the predicted probabilities :math:`\hat{p}` of the training
    nodes of known group and predicts the group; the classifier minimises

    .. math::
        \mathrm{CE}(\hat{p}, y) - h \cdot \mathrm{CE}(a(\hat{p}), s).

    The classifier trains alone at first; then the adversary catches up, in steps that are not
    epochs of the loop. From then on each epoch is one step of the adversary and one of the
    classifier against it; the epoch kept is one of these. Groups are needed in training only. If
    the classifier learns as fast as the adversary, the gap oscillates: an adversary with ten times
    its learning rate is more stable.

    Args:
        h: strength; with 0 there is no adversary and no warm-up.
        hidden: width of the adversary's hidden layer.
        pretrain_classifier: epochs of the classifier alone.
        pretrain_adversary: steps of the adversary alone.
        lr: learning rate of the adversary (Adam).

    Example:
        >>> Adversary(h=2.0).warmup
        70
    """

    h: float = defaults.H
    hidden: int = 64
    pretrain_classifier: int = defaults.PRETRAIN
    pretrain_adversary: int = 30
    lr: float = 1e-3

    def __post_init__(self) -> None:
        check_number("h", self.h, "give a strength, 0 or more", low=0)
        for name, low in (("hidden", 1), ("pretrain_classifier", 0), ("pretrain_adversary", 0)):
            check_integer(name, getattr(self, name), f"give a whole number, {low} or more", low=low)
        check_number("lr", self.lr, "give a number above 0, such as 1e-3", low=0, above=True)

    @property
    def warmup(self) -> int:  # type: ignore[override]
        """Epochs of the classifier without the adversary; 0 if there is none."""
        return self.pretrain_classifier if self.h > 0 else 0

    def begin(self) -> Penalty:
        """Return a penalty with an untrained adversary; none for h = 0."""
        return _AdversarialPenalty(self) if self.h > 0 else Penalty()


class _AdversarialPenalty(Penalty):
    def __init__(self, setting: Adversary) -> None:
        self.setting, self.epoch = setting, 0

    def __call__(self, logits: Tensor, groups: GroupOperator) -> Tensor | None:
        self.epoch += 1
        setting, steps = self.setting, 1
        if self.epoch <= setting.pretrain_classifier:
            return None
        if self.epoch == setting.pretrain_classifier + 1:
            layers = nn.Linear(logits.size(1), setting.hidden), nn.ReLU()
            last = nn.Linear(setting.hidden, groups.num_groups)
            self.adversary = nn.Sequential(*layers, last).to(logits)
            self.optimiser = torch.optim.Adam(self.adversary.parameters(), lr=setting.lr)
            self.sens = groups.membership[groups.population].argmax(1)
            steps += setting.pretrain_adversary
        p = softmax(logits)[groups.population]
        for _ in range(steps):
            self.optimiser.zero_grad()
            cross_entropy(self.adversary(p.detach()), self.sens).backward()
            self.optimiser.step()
        return -setting.h * cross_entropy(self.adversary(p), self.sens)

"""Strategies: what a training loss asks for besides accuracy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from fairmp.errors import InputError
from fairmp.incidence import Incidence
from fairmp.kernels import softmax


class Strategy(Protocol):
    """A hook on the training loop: what to add to the loss."""

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
class Vanilla:
    """Nothing but the loss."""

    def penalty(self, logits: Tensor, delta: Incidence) -> Tensor | None:
        """Add nothing."""
        return None

    def config(self) -> dict[str, object]:
        """Name and arguments, for the record."""
        return {"name": "vanilla"}


@dataclass(frozen=True)
class Regulariser:
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
        if not self.h >= 0:
            raise InputError(f"h: {self.h!r} is not a strength; give a number, 0 or more")

    def penalty(self, logits: Tensor, delta: Incidence) -> Tensor | None:
        """Add the weighted gap."""
        return self.h * delta.gap(softmax(logits)).abs().sum() / 2

    def config(self) -> dict[str, object]:
        """Name and arguments, for the record."""
        return {"name": "regulariser", "h": self.h}

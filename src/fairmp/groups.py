"""Groups of nodes, given as codes (n; −1 unknown) or as probabilities (n×G; zeros unknown)."""

from __future__ import annotations

import torch
from torch import Tensor

from fairmp.errors import InputError

_CERTAIN = 1e-6


def soft(sens: Tensor) -> bool:
    """Whether groups are probabilities.

    Example:
        >>> soft(torch.tensor([[0.3, 0.7]])), soft(torch.tensor([0, 1, -1]))
        (True, False)
    """
    return sens.dim() == 2 and sens.is_floating_point()


def known(sens: Tensor) -> Tensor:
    """Where something is known of the group (n, bool).

    Example:
        >>> known(torch.tensor([[0.3, 0.7], [0.0, 0.0]]))
        tensor([ True, False])
    """
    return sens.sum(1) > 0 if soft(sens) else sens >= 0


def likeliest(sens: Tensor) -> Tensor:
    """The most probable group of each node, −1 where nothing is known (n).

    Example:
        >>> likeliest(torch.tensor([[0.3, 0.7], [0.0, 0.0]]))
        tensor([ 1, -1])
    """
    return torch.where(known(sens), sens.argmax(1), -1) if soft(sens) else sens


def certain(sens: Tensor) -> Tensor:
    """The group of each node where one has probability 1, else −1 (n).

    Example:
        >>> certain(torch.tensor([[0.3, 0.7], [0.0, 1.0]]))
        tensor([-1,  1])
    """
    if not soft(sens):
        return sens
    top, group = sens.max(1)
    return torch.where(top >= 1 - _CERTAIN, group, -1)


def check_probabilities(name: str, sens: Tensor, n: int) -> None:
    """Refuse probabilities that are none.

    Example:
        >>> check_probabilities("data.sens", torch.tensor([[0.3, 0.6]]), 1)
        Traceback (most recent call last):
        fairmp.errors.InputError: data.sens: the probabilities of node 0 sum to 0.9, not 1; ...
    """
    if sens.size(0) != n or sens.size(1) < 2:
        raise InputError(
            f"{name}: probabilities of shape {tuple(sens.shape)}; give {n} rows, one a node, and a "
            "column a group, two or more"
        )
    wrong = ~torch.isfinite(sens) | (sens < 0)
    if bool(wrong.any()):
        node = int(wrong.any(1).nonzero()[0])
        raise InputError(
            f"{name}: node {node} has {sens[node][wrong[node]][0].item():g} for a probability; "
            "give numbers from 0 to 1, a row of zeros where nothing is known"
        )
    total = sens.double().sum(1)
    wrong = ((total - 1).abs() > 1e-3) & (total != 0)
    if bool(wrong.any()):
        node = int(wrong.nonzero()[0])
        raise InputError(
            f"{name}: the probabilities of node {node} sum to {total[node].item():.4g}, not 1; "
            "normalise the rows (a row of zeros where nothing is known)"
        )

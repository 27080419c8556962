"""The softmax of each row."""

from __future__ import annotations

from torch import Tensor

FEW = 16


def softmax(f: Tensor) -> Tensor:
    """Take the softmax of each row, as ``f.softmax(1)`` does.

    torch works row by row on the last dimension, which for a handful of classes is mostly
    overhead; along the other dimension it runs over all nodes at once.

    Example:
        >>> import torch
        >>> softmax(torch.zeros(1, 2))
        tensor([[0.5000, 0.5000]])
    """
    return f.softmax(1) if f.size(1) > FEW else f.T.contiguous().softmax(0).T

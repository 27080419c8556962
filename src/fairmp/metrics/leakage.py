"""What predictions tell about the group of a node."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Leakage:
    """How well a group can be guessed from predictions.

    Attributes:
        balanced_accuracy: of the best guess from the decision alone, mean over the groups; guessing
            at random has 1/G.
        auc: of the probability of class 1, for the two groups it separates best; 0.5 says nothing.
            Nan for more than two classes.
    """

    balanced_accuracy: float
    auc: float


def group_leakage(
    logits: NDArray[np.floating], sens: NDArray[np.integer], num_groups: int
) -> Leakage:
    """Measure what predictions (n×C) tell about groups (n, −1 unknown).

    Example:
        >>> logits = np.array([[0, 2], [0, 1], [0, -1], [0, -2.0]])
        >>> group_leakage(logits, np.array([1, 1, 0, 0]), num_groups=2)
        Leakage(balanced_accuracy=1.0, auc=1.0)
        >>> group_leakage(logits, np.array([1, 0, 1, 0]), num_groups=2)
        Leakage(balanced_accuracy=0.5, auc=0.75)
    """
    from sklearn.metrics import roc_auc_score

    classes = logits.shape[1]
    present = [g for g in range(num_groups) if (sens == g).any()]
    decided = logits.argmax(1)
    rates = np.array([np.bincount(decided[sens == g], minlength=classes) for g in present])
    rates = rates / rates.sum(1, keepdims=True)
    auc = math.nan
    if classes == 2 and len(present) > 1:
        margin, aucs = logits[:, 1] - logits[:, 0], []
        for low, high in combinations(present, 2):
            rows = (sens == low) | (sens == high)
            pair = float(roc_auc_score(sens[rows] == high, margin[rows]))
            aucs.append(max(pair, 1 - pair))
        auc = max(aucs)
    return Leakage(float(rates.max(0).sum() / len(present)), auc)

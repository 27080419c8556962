"""Whether a correction for single nodes is worth applying, judged on held-out nodes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from fairmp.groups import is_soft
from fairmp.metrics import demographic_parity

MIN_GROUP = 4  # nodes of a group, so that both halves have some
MAX_NODES = 20_000  # from there on a correction is as good as exact
REPEATS = 3


def correction_helps(
    logits: Tensor, sens: Tensor, find_shift: Callable[[Tensor, Tensor], Tensor], *, seed: int = 0
) -> bool:
    """Whether a shift found on one half of some nodes makes the other half fairer.

    The gap of decisions that the shift leaves on the other half is compared with the gap there
    without one, on average over both halves of three random cuts. With few nodes per group the
    shift is mostly noise, and can leave a larger gap than none.

    Args:
        logits: uncorrected, of nodes that did not train the model (m×C).
        sens: their groups (m), −1 unknown.
        find_shift: from logits and groups to what is subtracted from those of each group (G×C).
        seed: of the halves.
    """
    if is_soft(sens):
        return True
    has_group = sens >= 0
    logits, sens = logits[has_group], sens[has_group]
    sizes = torch.bincount(sens)
    if len(sens) > MAX_NODES or int(sizes.min()) < MIN_GROUP:
        return True
    rng = np.random.default_rng(seed)
    with_shift, without = [], []
    for _ in range(REPEATS):
        is_first = torch.from_numpy(_first_half(sens.cpu().numpy(), rng)).to(sens.device)
        for fitted, judged in ((is_first, ~is_first), (~is_first, is_first)):
            shift = find_shift(logits[fitted], sens[fitted])
            corrected = logits[judged] - shift[sens[judged]]
            with_shift.append(demographic_parity(corrected.argmax(1), sens[judged]))
            without.append(demographic_parity(logits[judged].argmax(1), sens[judged]))
    return float(np.mean(with_shift)) < float(np.mean(without))


def _first_half(sens: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A random half of each group."""
    order = np.lexsort((rng.random(len(sens)), sens))
    is_first = np.zeros(len(sens), dtype=bool)
    is_first[order[::2]] = True
    return is_first

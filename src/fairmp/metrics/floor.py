"""The gap that sampling alone leaves, however good a correction is."""

from __future__ import annotations

import math
from collections.abc import Sequence


def sampling_floor(counts: Sequence[int], rate: float) -> float:
    r"""Mean gap that groups of some sizes show by chance, if all have the same rate.

    .. math:: 0.8 \sqrt{r (1 - r) \sum_g 1 / n_g}

    For two groups it is the normal approximation, where 0.8 stands for the root of 2/π.

    Args:
        counts: nodes per group, n_g; empty groups are left out.
        rate: of the decision, r.

    Example:
        >>> round(sampling_floor([100, 100], 0.5), 3)
        0.057
    """
    inverse = sum(1 / count for count in counts if count)
    return 0.8 * math.sqrt(rate * (1 - rate) * inverse)

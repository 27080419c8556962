"""The incidence Δ of nodes on several ranks."""

from __future__ import annotations

import torch
from torch import Tensor

from fairmp.distributed.ranks import Ranks
from fairmp.groups import GroupOperator, mean_rows


class ShardedIncidence(GroupOperator):
    """This rank's columns of Δ; what is summed over nodes is summed over all ranks' nodes."""

    is_local = False

    def __init__(
        self, ranks: Ranks, population: Tensor, rows: Tensor, codes: Tensor, dtype: torch.dtype
    ) -> None:
        super().__init__(None, population, rows, codes=codes, blocks=(rows.size(0),), dtype=dtype)
        self.ranks, self.rank = ranks, ranks.rank

    def total(self, part: Tensor) -> Tensor:
        """Sum over all ranks."""
        return self.ranks.total(part)

    def largest(self, part: Tensor) -> Tensor:
        """Take the largest over all ranks."""
        return self.ranks.largest(part)


def sharded_incidence(
    sens: Tensor, population: Tensor, groups: int, ranks: Ranks, dtype: torch.dtype = torch.float32
) -> ShardedIncidence:
    """Build the incidence of all ranks' nodes, as :func:`fairmp.groups.incidence` does.

    Args:
        sens: group of each node here (n, −1 = unknown).
        population: nodes here that the gap is measured on.
        groups: number of groups, over all ranks.
        ranks: the ranks; all of them call at the same time.
        dtype: floating-point type of the predictions it will meet.

    Example:
        >>> population = torch.ones(4, dtype=torch.bool)
        >>> delta = sharded_incidence(torch.tensor([0, 0, 1, -1]), population, 2, Ranks())
        >>> delta.matrix
        tensor([[-0.5000, -0.5000,  1.0000,  0.0000]], dtype=torch.float64)
    """
    population = population & (sens >= 0)
    counts = ranks.total(torch.bincount(sens[population], minlength=groups).double())
    return ShardedIncidence(ranks, population, mean_rows(counts), sens.int(), dtype)

"""Matrices, groups and dual problems for the kernels' tests."""

from __future__ import annotations

import torch
from torch import Tensor

from fairmp.groups import group_operator
from fairmp.kernels.types import CSR, BinaryGroups, BinaryProblem, Matrix


def compressed(degrees: list[int], columns: int, seed: int = 0) -> CSR:
    """Rows of the given lengths with random columns: isolated nodes, hubs, repeated edges."""
    row = torch.tensor([0, *degrees]).cumsum(0)
    generator = torch.Generator().manual_seed(seed)
    col = torch.randint(columns, (int(row[-1]),), generator=generator, dtype=torch.int32)
    return CSR(row, col)


def unscaled(rows: CSR, columns: int, dtype: torch.dtype = torch.float32) -> Matrix:
    """A matrix whose scales are 1."""
    return Matrix(
        rows, torch.ones(rows.row.numel() - 1, dtype=dtype), torch.ones(columns, dtype=dtype)
    )


def dense(matrix: Matrix, columns: int) -> Tensor:
    """The matrix itself, in float64, by its definition edge by edge."""
    row, col, weight = matrix.rows
    receiver = torch.repeat_interleave(row.long().diff())
    value = torch.ones(col.numel(), dtype=torch.float64, device=col.device)
    value = value if weight is None else weight.double()
    out = torch.zeros(row.numel() - 1, columns, dtype=torch.float64, device=col.device)
    out.index_put_((receiver, col.long()), value, accumulate=True)
    return matrix.left.double().unsqueeze(1) * out * matrix.right.double()


def random_codes(n: int, groups: int, seed: int = 0) -> Tensor:
    """The group of each node, some of them −1."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(-1, groups, (n,), generator=generator, dtype=torch.int32)
    codes[:groups] = torch.arange(groups)
    return codes


def two_groups(n: int, seed: int = 0) -> BinaryGroups:
    """Two groups of different size; some nodes are of neither, some outside the population."""
    generator = torch.Generator().manual_seed(seed)
    sens = (torch.rand(n, generator=generator) < 0.3).long()
    sens[torch.rand(n, generator=generator) < 0.2] = -1
    sens[:4] = torch.tensor([0, 1, 0, 1])
    population = torch.rand(n, generator=generator) < 0.7
    population[:4] = True
    groups = group_operator(sens, population).binary
    assert groups is not None
    return groups


def binary_problem(
    n: int,
    *,
    margins: bool = False,
    scale: float = 1.0,
    target: float = 0.02,
    temperature: float = 0.7,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> BinaryProblem:
    """Logits (or margins) whose second class is likelier in the second group."""
    groups = two_groups(n, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    z = scale * torch.randn(n, 2, generator=generator, dtype=torch.float64)
    z[:, 1] += scale * (groups.column > 0)
    z = (z[:, 1:] - z[:, :1] if margins else z).to(dtype)
    return BinaryProblem(z, groups, temperature, target, 1e-7 if dtype == torch.float32 else 1e-12)


def gap_at(problem: BinaryProblem, w: float) -> float:
    """The gap at the dual w of the scaled problem, by its definition."""
    z = problem.z.double()
    margin = (z[:, 0] if z.size(1) == 1 else z[:, 1] - z[:, 0]) / problem.temperature
    inside = problem.groups.codes >= 0
    delta = problem.groups.weight[problem.groups.codes[inside].long()]
    return problem.groups.scale * float((delta * (margin[inside] - delta * w).sigmoid()).sum())

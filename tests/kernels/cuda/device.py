"""Where the Triton kernels run: on a GPU, or in Triton's interpreter on the CPU."""

from __future__ import annotations

import os
from dataclasses import fields, replace

import pytest
import torch
from torch import Tensor

from fairmp.kernels.types import CSR, BinaryGroups, BinaryProblem, Matrix
from tests.kernels import problems

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
LARGE = not INTERPRETED
on_device = pytest.mark.interpreted if INTERPRETED else pytest.mark.gpu
both_types = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
few_and_many_classes = pytest.mark.parametrize("classes", [1, 2, 3, 7, 20] if LARGE else [2, 3])


def random(*shape: int, dtype: torch.dtype, scale: float = 1.0, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(*shape, dtype=dtype, generator=generator).to(DEVICE)


def graph(
    rows: int,
    columns: int,
    hub: int = 0,
    types: tuple[torch.dtype, torch.dtype] = (torch.int64, torch.int32),
) -> CSR:
    """About 6 neighbours per row, none for the first, one hub."""
    generator = torch.Generator().manual_seed(1)
    length = torch.randint(0, 13, (rows,), generator=generator)
    length[0], length[rows // 2] = 0, hub
    matrix = problems.compressed(length.tolist(), columns, seed=2)
    return CSR(matrix.row.to(DEVICE, types[0]), matrix.col.to(DEVICE, types[1]))


def unscaled(rows: CSR, columns: int, dtype: torch.dtype = torch.float32) -> Matrix:
    left = torch.ones(rows.row.numel() - 1, dtype=dtype, device=DEVICE)
    return Matrix(rows, left, torch.ones(columns, dtype=dtype, device=DEVICE))


def product(matrix: Matrix, f: Tensor, x: Tensor | None = None, gamma: float = 0.0) -> Tensor:
    """The definition, in float64."""
    there = problems.dense(matrix, f.size(0)) @ f.double()
    return there if x is None else gamma * x.double() + (1 - gamma) * there


def binary_problem(n: int, **options: object) -> BinaryProblem:
    problem = problems.binary_problem(n, **options)  # type: ignore[arg-type]
    moved = {
        entry.name: getattr(problem.groups, entry.name).to(DEVICE)
        for entry in fields(BinaryGroups)
        if isinstance(getattr(problem.groups, entry.name), Tensor)
    }
    groups = replace(problem.groups, **moved, cache={})
    return replace(problem, z=problem.z.to(DEVICE), groups=groups)


def relative_error(result: Tensor, expected: Tensor) -> float:
    assert result.shape == expected.shape
    assert result.is_contiguous()
    scale = expected.double().abs().max().clamp_min(1e-300)
    return float((result.double() - expected.double()).abs().max() / scale)

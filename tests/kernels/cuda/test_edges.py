"""Sums over neighbours on a GPU against their definition."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from fairmp.kernels.cuda import primitives as cuda
from fairmp.kernels.types import CSR, Matrix
from tests.kernels.cuda.device import (
    DEVICE,
    LARGE,
    both_types,
    few_and_many_classes,
    graph,
    on_device,
    product,
    random,
    relative_error,
    unscaled,
)


@on_device
@both_types
@few_and_many_classes
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("hub", [0, 300, 9000] if LARGE else [9000])
def test_aggregate_equals_its_definition(
    dtype: torch.dtype, classes: int, weighted: bool, hub: int
) -> None:
    row, col, _ = graph(70, 50, hub)
    weight = random(col.numel(), dtype=dtype).abs() if weighted else None
    left, right = random(70, dtype=dtype, seed=2).abs(), random(50, dtype=dtype, seed=3).abs()
    matrix = Matrix(CSR(row, col, weight), left, right)
    f, x = random(50, classes, dtype=dtype, seed=4), random(70, classes, dtype=dtype, seed=5)
    bound = 1e-6 if dtype == torch.float32 else 1e-13
    for skip, gamma in ((x, 0.3), (None, 0.0)):
        result = cuda.aggregate(matrix, f, skip, gamma)
        assert result.dtype == dtype
        assert relative_error(result, product(matrix, f, skip, gamma)) < bound


@on_device
@pytest.mark.parametrize("row_type", [torch.int32, torch.int64])
@pytest.mark.parametrize("col_type", [torch.int32, torch.int64] if LARGE else [torch.int64])
def test_aggregate_takes_any_integers(row_type: torch.dtype, col_type: torch.dtype) -> None:
    matrix = unscaled(graph(40, 40, 5000, (row_type, col_type)), 40)
    f = random(40, 2, dtype=torch.float32)
    assert relative_error(cuda.aggregate(matrix, f, None, 0.0), product(matrix, f)) < 1e-6


@on_device
def test_aggregate_takes_views_and_does_not_modify_them() -> None:
    matrix = unscaled(graph(40, 40), 40)
    wide = random(40, 4, dtype=torch.float32)
    odd = random(81, dtype=torch.float32)[1:].view(40, 2)
    for f, x in ((wide[:, 1:3], wide[:, ::2]), (odd, odd)):
        before = f.clone()
        result = cuda.aggregate(matrix, f, x, 0.5)
        assert relative_error(result, product(matrix, f, x, 0.5)) < 1e-6
        assert torch.equal(f, before)


@on_device
def test_aggregate_without_rows_or_edges() -> None:
    none = torch.zeros(0, dtype=torch.int64, device=DEVICE)
    f = random(3, 2, dtype=torch.float32)
    no_rows = Matrix(CSR(none.new_zeros(1), none), f[:0, 0], f[:, 0])
    assert cuda.aggregate(no_rows, f, None, 0.0).shape == (0, 2)
    no_edges = Matrix(CSR(none.new_zeros(4), none), f[:, 0], f[:, 0])
    assert torch.equal(cuda.aggregate(no_edges, f, f, 0.25), 0.25 * f)


@on_device
def test_aggregate_vjp_equals_its_definition() -> None:
    matrix = unscaled(graph(40, 40), 40, torch.float64)
    grad, x, propagated = (random(40, 3, dtype=torch.float64, seed=s) for s in range(3))
    gradient = cuda.aggregate_vjp(matrix, grad, 0.3, x, propagated)
    assert relative_error(gradient.f, 0.7 * product(matrix, grad)) < 1e-13
    assert torch.equal(gradient.x, 0.3 * grad)
    assert float(gradient.away) == pytest.approx(float((grad * (x - propagated)).sum()))


@pytest.mark.gpu
@pytest.mark.parametrize("classes", [2, 5])
def test_aggregate_of_a_hub_of_a_million_and_a_heavy_tail(classes: int) -> None:
    n = 300_000
    length = (4 / torch.rand(n, device="cuda")).long().clamp_max(50_000)
    length[7] = 1_000_000
    row = torch.cat([length.new_zeros(1), length.cumsum(0)])
    col = torch.randint(0, n, (int(row[-1]),), device="cuda", dtype=torch.int32)
    scale = (1 + length).float().rsqrt()
    f = torch.randn(n, classes, device="cuda") + 1
    result = cuda.aggregate(Matrix(CSR(row, col), scale, scale), f, f, 0.2)
    expected = torch.zeros(n, classes, dtype=torch.float64, device="cuda")
    neighbours = scale.double()[col.long()].unsqueeze(1) * f.double()[col.long()]
    expected.index_add_(0, torch.repeat_interleave(length), neighbours)
    expected = 0.2 * f + 0.8 * scale.double().unsqueeze(1) * expected
    assert float(((result - expected).abs() / expected.abs().clamp_min(1e-2)).max()) < 1e-5

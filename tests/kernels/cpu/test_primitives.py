"""The host's side of the CPU kernels: shapes, types, and the passes of the MLP."""

from __future__ import annotations

import pytest
import torch

from fairmp.kernels import reference
from fairmp.kernels.cpu import primitives as cpu
from fairmp.kernels.types import CSR
from tests.kernels.problems import compressed, unscaled


@pytest.mark.parametrize("classes", [2, 3])
def test_passes_over_no_nodes(classes: int) -> None:
    z, codes = torch.zeros(0, classes), torch.zeros(0, dtype=torch.int32)
    table = torch.zeros(2, classes, dtype=torch.float64)
    assert not cpu.moments(z, codes, table, 1.0).any()
    assert not cpu.segment_sum(z, codes, 2).any()
    assert cpu.softmax_vjp(z, z, codes, table, 1.0, table).shape == (0, classes)
    assert cpu.shift(z, codes, table).shape == (0, classes)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("columns", [1, 2, 3])
def test_gather_and_spread_equal_the_reference(columns: int, dtype: torch.dtype) -> None:
    x, order = torch.randn(7, columns, dtype=dtype), torch.randperm(7)
    assert torch.equal(cpu.gather_rows(x, order), reference.gather_rows(x, order))
    if columns == 2:
        margins = cpu.gather_margins(x, order, 0.5)
        assert torch.equal(margins, reference.gather_margins(x, order, 0.5))
        spread = cpu.spread_margins(margins, order, 3.0)
        assert torch.equal(spread, reference.spread_margins(margins, order, 3.0))


def test_a_matrix_serves_logits_of_any_precision() -> None:
    matrix = unscaled(compressed([2, 3, 1], 3), 3)
    f = torch.randn(3, 2, dtype=torch.float64)
    double = cpu.aggregate(matrix, f, None, 0.0)
    assert double.dtype == torch.float64
    single = cpu.aggregate(matrix, f.float(), None, 0.0)
    torch.testing.assert_close(single, double.float())
    torch.testing.assert_close(cpu.aggregate(matrix, f, None, 0.0), double)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("classes", [1, 2, 16])
def test_linear_relu_backward_equals_the_reference(classes: int, dtype: torch.dtype) -> None:
    n, units = 2 * cpu.BACKWARD_ROWS + 5, 24
    g = torch.randn(n, classes, dtype=dtype)
    h = torch.randn(n, units, dtype=dtype).relu()
    weight = torch.randn(classes, units, dtype=dtype)
    ours = cpu.linear_relu_backward(g, h, weight)
    expected = reference.linear_relu_backward(g, h, weight)
    for part, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(part, other, rtol=1e-4, atol=1e-4 * float(other.abs().max()))


def test_sums_of_gradients_keep_their_digits() -> None:
    """Chunks of rows add up in float64: a sum of four million in float32 would not."""
    n = 4000 * cpu.BACKWARD_ROWS
    g, h = torch.full((n, 1), 0.1), torch.ones(n, 1)
    _, total, pairs = cpu.linear_relu_backward(g, h, torch.ones(1, 1))
    expected = n * float(g[0])
    assert float(total) == pytest.approx(expected, rel=1e-5)
    assert float(pairs) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sparse_linear_equals_the_reference(dtype: torch.dtype, relu: bool) -> None:
    rows = compressed([*range(9), *[0] * cpu.SPARSE_ROWS, 3], 11)
    matrix = CSR(rows.row, rows.col, torch.randn(rows.col.numel(), dtype=dtype))
    weight, bias = torch.randn(11, 5, dtype=dtype), torch.randn(5, dtype=dtype)
    ours = cpu.sparse_linear(matrix, weight, bias, relu=relu)
    torch.testing.assert_close(ours, reference.sparse_linear(matrix, weight, bias, relu=relu))
    weight[0, 0] = torch.nan
    assert ours.shape == cpu.sparse_linear(matrix, weight, bias, relu=relu).shape
    assert cpu.sparse_linear(matrix, weight, bias, relu=relu).isnan().any()

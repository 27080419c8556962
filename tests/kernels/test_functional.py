"""The differentiable primitives against torch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fairmp.kernels import gather, relative_to_largest, segment_sum, shift, softmax, spmm
from fairmp.kernels.types import CSR, Matrix
from tests.kernels.problems import dense

CODES = torch.tensor([0, -1, 1, 0], dtype=torch.int32)


@pytest.mark.parametrize("classes", [2, 3, 16, 17])
def test_softmax_equals_torch(classes: int) -> None:
    f = torch.randn(9, classes, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(softmax(f), f.softmax(1))
    assert torch.autograd.gradcheck(softmax, (f,))


def test_softmax_of_extreme_logits_is_finite() -> None:
    assert softmax(torch.tensor([[1e30, -1e30]])).tolist() == [[1.0, 0.0]]


def test_relative_to_largest_keeps_the_softmax_and_its_gradient() -> None:
    z = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    moved = relative_to_largest(z)
    assert torch.equal(moved.amax(1), torch.zeros(5, dtype=z.dtype))
    gradients = [torch.autograd.grad(part.softmax(1)[:, 0].sum(), z)[0] for part in (z, moved)]
    torch.testing.assert_close(*gradients)


def test_segment_sum_and_gather_leave_out_unknown_groups() -> None:
    values = torch.arange(8.0).view(4, 2)
    assert segment_sum(values, CODES, 2).tolist() == [[6, 8], [4, 5]]
    table = torch.tensor([[1.0], [2.0]])
    assert gather(table, CODES).flatten().tolist() == [1, 0, 2, 1]


def test_segment_sum_and_gather_have_gradients_of_gradients() -> None:
    values = torch.randn(4, 2, dtype=torch.float64, requires_grad=True)
    table = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)

    def squares(values: Tensor) -> Tensor:
        return segment_sum(values.square(), CODES, 2)

    assert torch.autograd.gradcheck(squares, (values,))
    assert torch.autograd.gradgradcheck(squares, (values,))
    assert torch.autograd.gradcheck(lambda t: gather(t.square(), CODES), (table,))
    assert torch.autograd.gradgradcheck(lambda t: gather(t.square(), CODES), (table,))


def test_spmm_equals_a_dense_product_with_gradients_of_gradients() -> None:
    rows = CSR(torch.tensor([0, 2, 3]), torch.tensor([0, 2, 1]))
    columns = CSR(torch.tensor([0, 1, 2, 3]), torch.tensor([0, 1, 0]))
    left, right = torch.rand(2, dtype=torch.float64), torch.rand(3, dtype=torch.float64)
    matrix, transposed = Matrix(rows, left, right), Matrix(columns, right, left)
    x = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(spmm(matrix, transposed, x), dense(matrix, 3) @ x)
    product = lambda x: spmm(matrix, transposed, x.sin())  # noqa: E731
    assert torch.autograd.gradcheck(product, (x,))
    assert torch.autograd.gradgradcheck(product, (x,))


def test_shift_has_gradients_for_logits_and_table() -> None:
    z = torch.randn(4, 2, dtype=torch.float64, requires_grad=True)
    table = torch.randn(2, 2, dtype=torch.float64, requires_grad=True)
    moved = shift(z, table, CODES)
    torch.testing.assert_close(moved, z - gather(table, CODES))
    assert torch.equal(moved[1], z[1])
    assert torch.autograd.gradcheck(lambda z, table: shift(z, table, CODES), (z, table))

"""The reference primitives on numbers worked out by hand, and against autograd."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fairmp.kernels import reference
from fairmp.kernels.types import CSR, Clip, Matrix
from tests.kernels.problems import binary_problem, dense, gap_at

CODES = torch.tensor([0, -1, 1], dtype=torch.int32)
ZERO = torch.zeros(2, 2, dtype=torch.float64)


def small_matrix() -> Matrix:
    rows = CSR(torch.tensor([0, 2, 3]), torch.tensor([0, 1, 1]), torch.tensor([1.0, 2.0, 3.0]))
    return Matrix(rows, torch.tensor([0.5, 2.0]), torch.tensor([1.0, 3.0]))


def test_aggregate_multiplies_and_adds_the_skip() -> None:
    f, x = torch.tensor([[1.0], [3.0]]), torch.tensor([[10.0], [20.0]])
    product = dense(small_matrix(), 2).float() @ f
    assert product.flatten().tolist() == [9.5, 54.0]
    assert torch.equal(reference.aggregate(small_matrix(), f, None, 0.0), product)
    assert torch.equal(reference.aggregate(small_matrix(), f, None, 0.5), product / 2)
    mixed = reference.aggregate(small_matrix(), f, x, 0.25)
    torch.testing.assert_close(mixed, 0.25 * x + 0.75 * product)


@pytest.mark.parametrize("types", [(torch.int32, torch.int64), (torch.int64, torch.int32)])
def test_aggregate_takes_any_integers(types: tuple[torch.dtype, torch.dtype]) -> None:
    rows = small_matrix().rows
    moved = CSR(rows.row.to(types[0]), rows.col.to(types[1]), rows.weight)
    f = torch.tensor([[1.0], [3.0]])
    result = reference.aggregate(Matrix(moved, torch.ones(2), torch.ones(2)), f, None, 0.0)
    assert result.flatten().tolist() == [7.0, 9.0]


def test_aggregate_vjp_returns_both_gradients_and_the_distance() -> None:
    matrix = small_matrix()
    grad, x, propagated = torch.randn(3, 2, 2).unbind()
    gradient = reference.aggregate_vjp(matrix, grad, 0.25, x, propagated)
    torch.testing.assert_close(gradient.f, 0.75 * reference.aggregate(matrix, grad, None, 0.0))
    torch.testing.assert_close(gradient.x, 0.25 * grad)
    assert float(gradient.away) == pytest.approx(float((grad * (x - propagated)).sum()), abs=1e-6)
    assert reference.aggregate_vjp(matrix, grad, 0.25).away == 0


def test_gather_and_spread_follow_an_order() -> None:
    x, order = torch.tensor([[1.0, 2.0], [5.0, 3.0], [0.0, 4.0]]), torch.tensor([2, 0, 1])
    assert reference.gather_rows(x, order).tolist() == [[0, 4], [1, 2], [5, 3]]
    margins = reference.gather_margins(x, order, 0.5)
    assert margins.flatten().tolist() == [2, 0.5, -1]
    assert reference.spread_margins(margins, order, 2.0).tolist() == [[-1, 1], [2, -2], [-4, 4]]


def test_moments_of_one_node() -> None:
    z = torch.tensor([[0.0, 0.0], [5.0, 9.0]])
    moments = reference.moments(z, CODES[:2], ZERO, 1.0)
    assert float(moments[0]) == pytest.approx(float(torch.tensor(2.0).log()))
    assert moments[1:5].tolist() == [0.5, 0.5, 0.0, 0.0]
    assert moments[5:9].tolist() == [0.25] * 4


def test_shift_and_sums_leave_out_unknown_groups() -> None:
    z = torch.tensor([[0.0, 0.0], [5.0, 9.0], [0.0, 3.0]])
    assert reference.shift(z, CODES, ZERO + 1).tolist() == [[-1, -1], [5, 9], [-1, 2]]
    assert reference.segment_sum(z, CODES, 2).tolist() == [[0, 0], [0, 3]]
    w = torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    added = reference.softmax_vjp(torch.zeros_like(z), z, CODES, ZERO, 1.0, w)
    assert added.tolist() == [[0.25, -0.25], [0, 0], [0, 0]]


def test_shift_of_extreme_logits_is_relative_to_the_largest() -> None:
    z = torch.tensor([[1e6, 1e6 + 2, -4e6]], dtype=torch.float64)
    table = torch.tensor([[0.0, 1.0, 0.0]], dtype=torch.float64)
    code = torch.zeros(1, dtype=torch.int32)
    far = reference.shift(z, code, table, Clip(limit=1e3, floor=1e7))
    assert far.tolist() == [[-1.0, 0.0, -5e6 - 1]]
    # A shift about as large as the floor clips what is farther below the largest.
    clipped = reference.shift(z, code, 1e3 * table, Clip(limit=1e3, floor=2e3))
    assert clipped.tolist() == [[0.0, -998.0, -1998.0]]
    unknown = reference.shift(z, code - 1, table, Clip(limit=1e3, floor=2e3))
    assert torch.equal(unknown, z)


@pytest.mark.parametrize("margins", [False, True])
@pytest.mark.parametrize("target", [0.0, 0.05, 1.0])
def test_binary_root_meets_the_target(margins: bool, target: float) -> None:
    problem = binary_problem(200, margins=margins, target=target)
    root = reference.binary_root(problem, None)
    w = problem.groups.scale * float(root.u)
    assert abs(gap_at(problem, w)) <= target + 1e-11
    assert (w == 0) == (target == 1.0)
    step = 1e-5
    slope = (gap_at(problem, w - step) - gap_at(problem, w + step)) / (2 * step)
    assert problem.groups.scale * float(root.curvature) == pytest.approx(slope, rel=1e-5)
    assert int(reference.binary_root(problem, root.u).passes) == 1


@pytest.mark.parametrize("margins", [False, True])
def test_shift_margins_and_its_gradient_equal_autograd(margins: bool) -> None:
    """The dual moves with the logits: that is what the second half of the gradient is."""
    problem = binary_problem(40, margins=margins)
    z, groups, tau = problem.z.clone().requires_grad_(), problem.groups, problem.temperature
    root = reference.binary_root(problem, None)
    margin = z[:, 0] if margins else z[:, 1] - z[:, 0]
    inside = groups.codes >= 0
    delta = torch.where(inside, groups.weight[groups.codes.long()], 0.0)
    # One Newton step from the solution has the derivative of the solution.
    gap = (delta * (margin / tau - delta * groups.scale * root.u).sigmoid()).sum()
    u = root.u + (gap - gap.detach()) / (groups.scale * root.curvature)
    clip = Clip(1e9, 1e9)
    shifted = reference.shift_margins(z, groups, tau * u, clip)
    grad = torch.randn_like(shifted)
    (expected,) = torch.autograd.grad(shifted, z, grad)
    factor = -1 / (z.size(1) * groups.scale * root.curvature)
    result = reference.shift_margins_vjp(grad, groups, root.slope, factor)
    torch.testing.assert_close(result, expected)


def test_linear_relu_backward() -> None:
    h, weight = torch.tensor([[0.0, 2.0]]), torch.tensor([[3.0, 5.0]])
    gradients = reference.linear_relu_backward(torch.ones(1, 1), h, weight)
    assert [part.tolist() for part in gradients] == [[[0, 5]], [0, 5], [[0, 2]]]


def test_sparse_linear() -> None:
    rows = CSR(torch.tensor([0, 1, 1]), torch.tensor([1]), torch.tensor([2.0]))
    weight, bias = torch.tensor([[9.0], [-3.0]]), torch.tensor([1.0])

    def product(*, relu: bool) -> Tensor:
        return reference.sparse_linear(rows, weight, bias, relu=relu)

    assert product(relu=False).tolist() == [[-5.0], [1.0]]
    assert product(relu=True).tolist() == [[0.0], [1.0]]

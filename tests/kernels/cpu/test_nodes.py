"""Passes over the nodes against SciPy, NumPy and the reference."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special
from torch import Tensor

from fairmp.kernels import reference
from fairmp.kernels.cpu import primitives as cpu
from fairmp.kernels.cpu.nodes import BLOCK_NODES, UNDERFLOW, exp_minus
from fairmp.kernels.cpu.threads import Array, Chunked
from fairmp.kernels.types import Clip
from tests.kernels.problems import binary_problem, gap_at, random_codes, two_groups

NAN, INF = float("nan"), float("inf")


@Chunked
def _exp_minus_all(t: Array, out: Array) -> None:
    for i in range(t.size):
        out[i] = exp_minus(t[i])


def test_exp_minus_has_all_digits_but_the_last() -> None:
    t = np.concatenate([np.linspace(0, 1, 1000), np.geomspace(1e-300, UNDERFLOW, 1000)])
    out = np.empty_like(t)
    _exp_minus_all(1, t, out)
    np.testing.assert_allclose(out, np.exp(-t), rtol=5e-16)
    edge = np.array([UNDERFLOW + 1, 1e4, INF])
    _exp_minus_all(1, edge, out[:3])
    assert out[:3].tolist() == [0, 0, 0]


def expected_moments(z: Tensor, codes: Tensor, shift: Tensor, temperature: float) -> np.ndarray:
    """The moments in float64, by group, by SciPy."""
    value, sums, seconds = 0.0, [], []
    for group, offset in enumerate(shift.numpy()):
        logits = (z[codes == group].double().numpy() - offset) / temperature
        q = special.softmax(logits, axis=1)
        value += temperature * special.logsumexp(logits, axis=1).sum()
        second = q.T @ q
        np.fill_diagonal(second, 0.0)
        seconds.append(second + np.diag(second.sum(1)))
        sums.append(q.sum(0))
    return np.concatenate([[value], np.ravel(sums), np.ravel(seconds)])


@pytest.mark.parametrize("classes", [1, 2, 3, 5, 8, 64])
@pytest.mark.parametrize("groups", [1, 3])
def test_moments_equal_scipy(classes: int, groups: int) -> None:
    n = 5001
    z, codes = 3 * torch.randn(n, classes), random_codes(n, groups)
    shift = torch.randn(groups, classes, dtype=torch.float64)
    ours = cpu.moments(z, codes, shift, 0.7)
    assert ours.dtype == torch.float64
    expected = expected_moments(z, codes, shift, 0.7)
    np.testing.assert_allclose(ours.numpy(), expected, rtol=1e-12, atol=1e-10)
    torch.testing.assert_close(ours, reference.moments(z, codes, shift, 0.7))


@given(
    data=st.data(),
    classes=st.integers(1, 5),
    groups=st.integers(1, 4),
    temperature=st.floats(1e-3, 1e3),
)
@settings(max_examples=60)
def test_moments_of_any_logits(
    data: st.DataObject, classes: int, groups: int, temperature: float
) -> None:
    number = st.floats(-1e6, 1e6, width=32)
    rows = data.draw(st.lists(st.lists(number, min_size=classes, max_size=classes), max_size=20))
    z = torch.tensor(rows, dtype=torch.float32).view(-1, classes)
    codes = torch.tensor([data.draw(st.integers(-1, groups - 1)) for _ in rows]).int()
    entry = st.floats(-100, 100)
    table = [[data.draw(entry) for _ in range(classes)] for _ in range(groups)]
    shift = torch.tensor(table, dtype=torch.float64)
    ours = cpu.moments(z, codes, shift, temperature).numpy()
    # Logits of 1e6 at a temperature of 1e-3 are known to 1e-7 after the division.
    expected = expected_moments(z, codes, shift, temperature)
    np.testing.assert_allclose(ours, expected, rtol=1e-11, atol=1e-6)
    sums = ours[1 : 1 + groups * classes].reshape(groups, -1).sum(1)
    counted = np.bincount(codes[codes >= 0].numpy(), minlength=groups)
    np.testing.assert_allclose(sums, counted)


@pytest.mark.parametrize("classes", [2, 3])
def test_moments_keep_their_digits_where_probabilities_are_near_one(classes: int) -> None:
    z = torch.zeros(1, classes, dtype=torch.float64)
    z[0, 0] = 40.0
    codes, shift = torch.zeros(1, dtype=torch.int32), torch.zeros(1, classes).double()
    second = cpu.moments(z, codes, shift, 1.0)[1 + classes :].view(classes, classes)
    # 1 − q has none left in float64, but q(1 − q) has.
    rare = math.exp(-40.0)
    assert second[0, 0].item() == pytest.approx((classes - 1) * rare, rel=1e-12, abs=0)
    assert second[1, 0].item() == pytest.approx(rare, rel=1e-12, abs=0)


@pytest.mark.parametrize("classes", [2, 3])
def test_moments_stay_finite_at_the_ends_of_float32(classes: int) -> None:
    z = torch.full((4, classes), 3e38)
    z[1] = -3e38
    z[2, 0] = z[3, 1] = -3e38
    codes, shift = torch.zeros(4, dtype=torch.int32), torch.zeros(1, classes).double()
    ours = cpu.moments(z, codes, shift, 1.0)
    torch.testing.assert_close(ours, reference.moments(z, codes, shift, 1.0))


@pytest.mark.parametrize("classes", [2, 3])
def test_moments_of_nan_are_nan_in_its_group_alone(classes: int) -> None:
    z = torch.zeros(2, classes)
    z[0, 0] = NAN
    codes, shift = torch.tensor([1, 0]).int(), torch.zeros(2, classes).double()
    _, *sums = cpu.moments(z, codes, shift, 1.0)[: 1 + 2 * classes].tolist()
    assert not np.isnan(sums[:classes]).any()
    assert np.isnan(sums[classes:]).all()


@pytest.mark.parametrize("classes", [1, 2, 3])
def test_nodes_without_a_group_may_have_any_logits(classes: int) -> None:
    n = 600
    z, g = torch.full((n, classes), NAN), torch.randn(n, classes)
    z[::2] = INF
    nowhere = torch.full((n,), -1, dtype=torch.int32)
    table = torch.randn(2, classes, dtype=torch.float64)
    assert not cpu.moments(z, nowhere, table, 1.0).any()
    assert not cpu.segment_sum(z, nowhere, 2).any()
    assert torch.equal(cpu.softmax_vjp(g, z, nowhere, table, 1.0, table), g)
    assert torch.equal(cpu.shift(g, nowhere, table), g)


@pytest.mark.parametrize("classes", [1, 2, 3, 8])
def test_softmax_vjp_equals_the_derivative(classes: int) -> None:
    n, groups = 700, 3
    z, g = 4 * torch.randn(n, classes), torch.randn(n, classes)
    codes, shift = random_codes(n, groups), torch.randn(groups, classes, dtype=torch.float64)
    w = torch.randn(groups, classes, dtype=torch.float64)
    inside, number = codes >= 0, codes[codes >= 0].long()
    logits = z.double().requires_grad_()
    q = ((logits[inside] - shift[number]) / 0.5).softmax(1)
    (derivative,) = torch.autograd.grad((q * w[number]).sum(), logits)
    ours = cpu.softmax_vjp(g, z, codes, shift, 0.5, w)
    # The Jacobian of the softmax has a factor 1/T, which the primitive has not.
    torch.testing.assert_close(ours, (g.double() + 0.5 * derivative).float())
    torch.testing.assert_close(ours, reference.softmax_vjp(g, z, codes, shift, 0.5, w))


@pytest.mark.parametrize("classes", [2, 3])
def test_softmax_vjp_of_large_logits_is_finite(classes: int) -> None:
    z = 1e6 * torch.randn(50, classes)
    codes, table = random_codes(50, 2), torch.randn(2, classes, dtype=torch.float64)
    ours = cpu.softmax_vjp(torch.zeros_like(z), z, codes, table, 1.0, table)
    assert ours.isfinite().all()
    assert ours.abs().max() < 1e-6


@pytest.mark.parametrize("classes", [1, 2, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_shift_and_segment_sum_equal_numpy(classes: int, dtype: torch.dtype) -> None:
    n, groups = 5000, 3
    z, codes = torch.randn(n, classes, dtype=dtype), random_codes(n, groups)
    shift = torch.randn(groups, classes, dtype=torch.float64)
    inside, number = (codes >= 0).numpy(), codes[codes >= 0].numpy()
    expected, sums = z.double().numpy().copy(), np.zeros((groups, classes))
    np.add.at(sums, number, expected[inside])
    expected[inside] -= shift.numpy()[number]
    ours = cpu.shift(z, codes, shift)
    assert ours.dtype == dtype
    rtol = 1e-7 if dtype == torch.float32 else 1e-15
    np.testing.assert_allclose(ours.double().numpy(), expected, rtol=rtol, atol=rtol)
    np.testing.assert_allclose(cpu.segment_sum(z, codes, groups).numpy(), sums, rtol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("classes", [2, 3, 5])
@pytest.mark.parametrize("floor", [1e4, 1e7])
def test_shift_of_extreme_logits_equals_the_reference(
    classes: int, dtype: torch.dtype, floor: float
) -> None:
    """Differences of large logits are taken in float64, whatever their type."""
    z, codes = (1e5 * torch.randn(300, classes)).to(dtype), random_codes(300, 3)
    z[::3] /= 1e6  # ordinary rows among them
    table = 1e4 * torch.randn(3, classes, dtype=torch.float64)
    table[2] = 0.0  # a group that is not shifted
    clip = Clip(limit=100.0, floor=floor)
    ours, expected = (k.shift(z, codes, table, clip) for k in (cpu, reference))
    assert torch.equal(ours, expected)
    assert torch.equal(ours[codes < 0], z[codes < 0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("margins", [False, True])
@pytest.mark.parametrize("scale", [1.0, 3e4])
@pytest.mark.parametrize("floor", [1e4, 1e7])
def test_shift_margins_equals_the_reference(
    margins: bool, dtype: torch.dtype, scale: float, floor: float
) -> None:
    problem = binary_problem(5000, margins=margins, scale=scale, dtype=dtype)
    amount, clip = 2e4 / problem.groups.scale, Clip(limit=100.0, floor=floor)
    for by in (0.0, amount / 1e4, amount):
        ours, expected = (
            k.shift_margins(problem.z, problem.groups, by, clip) for k in (cpu, reference)
        )
        rtol = 1e-6 if dtype == torch.float32 else 1e-14
        torch.testing.assert_close(ours, expected, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("columns", [1, 2])
def test_shift_margins_vjp_equals_the_reference(columns: int, dtype: torch.dtype) -> None:
    for n in (5, 4099):  # not a multiple of the lanes
        groups, grad = two_groups(n), torch.randn(n, columns, dtype=dtype)
        slope = torch.rand(n, dtype=dtype)
        ours, expected = (k.shift_margins_vjp(grad, groups, slope, 0.3) for k in (cpu, reference))
        torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("margins", [False, True])
@pytest.mark.parametrize("scale", [0.1, 3.0, 300.0, 1e8])
@pytest.mark.parametrize("target", [0.0, 0.05])
def test_binary_root_equals_the_reference(
    margins: bool, dtype: torch.dtype, scale: float, target: float
) -> None:
    for n in (4, 3 * BLOCK_NODES + 1, 9001):
        problem = binary_problem(n, margins=margins, scale=scale, target=target, dtype=dtype)
        for start in (None, 1e12, -2.0 / problem.groups.scale):
            ours, expected = (k.binary_root(problem, start) for k in (cpu, reference))
            w = problem.groups.scale * float(ours.u)
            assert ours.residual <= max(problem.tolerance, float(expected.residual))
            assert ours.passes == expected.passes
            assert ours.curvature == pytest.approx(float(expected.curvature), rel=1e-8, abs=1e-12)
            torch.testing.assert_close(ours.slope, expected.slope, rtol=1e-5, atol=1e-9)
            if scale < 1e5:  # beyond it margins are clipped
                assert abs(gap_at(problem, w)) <= target + problem.tolerance + 1e-12


def test_binary_root_of_an_empty_population_is_zero() -> None:
    problem = binary_problem(20, target=0.1)
    problem.groups.codes.fill_(-1)
    empty = type(problem.groups)(
        scale=1.0,
        weight=problem.groups.weight,
        column=problem.groups.column,
        codes=problem.groups.codes,
        nodes=problem.groups.nodes[:0],
        starts=torch.zeros_like(problem.groups.starts),
    )
    for kernels in (cpu, reference):
        nothing = type(problem)(problem.z, empty, 1.0, 0.1, 1e-12)
        root = kernels.binary_root(nothing, None)
        assert (root.u, root.residual) == (0, 0)
        assert not root.slope.any()

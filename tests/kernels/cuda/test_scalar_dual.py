"""One gap between two classes on a GPU against the reference."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from fairmp.kernels import reference
from fairmp.kernels.cuda import primitives as cuda
from fairmp.kernels.types import Clip
from tests.kernels.cuda.device import (
    DEVICE,
    LARGE,
    binary_problem,
    both_types,
    on_device,
    random,
    relative_error,
)
from tests.kernels.problems import gap_at


@on_device
@both_types
@pytest.mark.parametrize("margins", [False, True])
@pytest.mark.parametrize("scale", [0.1, 3.0, 300.0] if LARGE else [3.0, 300.0])
@pytest.mark.parametrize("target", [0.0, 0.05] if LARGE else [0.05])
def test_binary_root_meets_the_target(
    dtype: torch.dtype, margins: bool, scale: float, target: float
) -> None:
    for n in (5, 100_000, 1_500_000) if LARGE else (600,):
        problem = binary_problem(n, margins=margins, scale=scale, target=target, dtype=dtype)
        for start in (None, -2.0, 1e12, float("nan")) if LARGE else (None, 1e12):
            guess = None
            if start is not None:
                guess = torch.tensor([start], dtype=torch.float64, device=DEVICE)
            root = cuda.binary_root(problem, guess)
            w = problem.groups.scale * float(root.u)
            before, after = gap_at(problem, 0.0), gap_at(problem, w)
            if abs(before) <= target:
                assert (w, float(root.residual)) == (0, 0)
            else:
                assert w * before > 0
                aim = target if before > 0 else -target
                assert abs(after - aim) <= problem.tolerance + 1e-12
            assert 1 <= int(root.passes) <= 60
            expected = reference.binary_root(problem, float(root.u))
            assert float(root.curvature) == pytest.approx(float(expected.curvature), rel=1e-8)
            assert relative_error(root.slope, expected.slope) < 1e-5


@on_device
def test_binary_root_starts_where_the_last_one_ended() -> None:
    problem = binary_problem(500, scale=2.0, target=0.01)
    first = cuda.binary_root(problem, None)
    again = cuda.binary_root(problem, first.u)
    assert int(first.passes) > 1
    assert int(again.passes) == 1
    assert float(again.u) == pytest.approx(float(first.u), rel=1e-14)


@on_device
@both_types
@pytest.mark.parametrize("margins", [False, True])
@pytest.mark.parametrize("scale", [1.0, 3e4])
@pytest.mark.parametrize("floor", [1e4, 1e7] if LARGE else [1e4])
def test_shift_margins_equals_the_reference(
    dtype: torch.dtype, margins: bool, scale: float, floor: float
) -> None:
    problem = binary_problem(2000 if LARGE else 90, margins=margins, scale=scale, dtype=dtype)
    clip, rounding = Clip(limit=100.0, floor=floor), 1e-6 if dtype == torch.float32 else 1e-13
    for amount in (0.0, 2.0, 2e4):
        by = torch.tensor([amount / problem.groups.scale], dtype=torch.float64, device=DEVICE)
        result = cuda.shift_margins(problem.z, problem.groups, by, clip)
        expected = reference.shift_margins(problem.z, problem.groups, by, clip)
        assert relative_error(result, expected) < rounding


@on_device
@both_types
@pytest.mark.parametrize("margins", [False, True])
def test_shift_margins_vjp_equals_the_reference(dtype: torch.dtype, margins: bool) -> None:
    n = 100_003 if LARGE else 91
    problem = binary_problem(n, margins=margins, dtype=dtype)
    grad, slope = random(*problem.z.shape, dtype=dtype), random(n, dtype=dtype, seed=1).abs()
    factor = torch.tensor([0.3], dtype=torch.float64, device=DEVICE)
    result = cuda.shift_margins_vjp(grad, problem.groups, slope, factor)
    expected = reference.shift_margins_vjp(grad, problem.groups, slope, factor)
    assert relative_error(result, expected) < (1e-5 if dtype == torch.float32 else 1e-12)

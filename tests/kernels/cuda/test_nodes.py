"""Passes over the nodes on a GPU against the reference."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed")

from fairmp.kernels import reference
from fairmp.kernels.cuda import primitives as cuda
from fairmp.kernels.types import Clip
from tests.kernels.cuda.device import (
    DEVICE,
    LARGE,
    both_types,
    few_and_many_classes,
    on_device,
    random,
    relative_error,
)
from tests.kernels.problems import random_codes


def nodes(
    n: int, groups: int, classes: int, dtype: torch.dtype, scale: float = 3.0
) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, codes and a shift per group."""
    shift = random(groups, classes, dtype=torch.float64, seed=7)
    z = random(n, classes, dtype=dtype, scale=scale, seed=8)
    return z, random_codes(n, groups).to(DEVICE), shift


@on_device
@both_types
@few_and_many_classes
@pytest.mark.parametrize("groups", [1, 2, 5] if LARGE else [2])
def test_passes_equal_the_reference(dtype: torch.dtype, classes: int, groups: int) -> None:
    n = 100_001 if LARGE else 77
    z, codes, shift = nodes(n, groups, classes, dtype)
    g, w = random(n, classes, dtype=dtype, seed=9), random(groups, classes, dtype=torch.float64)
    rounding = 1e-6 if dtype == torch.float32 else 1e-13
    moments = reference.moments(z, codes, shift, 0.7)
    assert relative_error(cuda.moments(z, codes, shift, 0.7), moments) < 1e-12
    shifted = reference.shift(z, codes, shift)
    assert relative_error(cuda.shift(z, codes, shift), shifted) < rounding
    sums = reference.segment_sum(g, codes, groups)
    assert relative_error(cuda.segment_sum(g, codes, groups), sums) < 1e-12
    pulled = reference.softmax_vjp(g, z, codes, shift, 0.7, w)
    assert relative_error(cuda.softmax_vjp(g, z, codes, shift, 0.7, w), pulled) < rounding


@on_device
def test_passes_over_no_nodes() -> None:
    z, codes, shift = nodes(9, 2, 3, torch.float32)
    codes.fill_(-1)
    assert not cuda.moments(z, codes, shift, 1.0).any()
    assert not cuda.segment_sum(z, codes, 2).any()
    assert torch.equal(cuda.shift(z, codes, shift), z)
    assert torch.equal(cuda.softmax_vjp(z, z, codes, shift, 1.0, shift), z)
    assert not cuda.moments(z[:0], codes[:0], shift, 1.0).any()
    assert cuda.shift(z[:0], codes[:0], shift).shape == (0, 3)


@on_device
def test_moments_keep_their_digits_where_probabilities_are_near_one() -> None:
    z = torch.tensor([[0.0, 40.0]], device=DEVICE)
    codes = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    shift = torch.zeros(1, 2, dtype=torch.float64, device=DEVICE)
    second = cuda.moments(z, codes, shift, 1.0)[3:].cpu()
    torch.testing.assert_close(second * torch.tensor(40.0).double().exp(), torch.ones(4).double())


@on_device
@both_types
@pytest.mark.parametrize("floor", [1e4, 1e7])
def test_shift_of_extreme_logits_equals_the_reference(dtype: torch.dtype, floor: float) -> None:
    z, codes, shift = nodes(60, 3, 3, dtype, scale=1e5)
    z[::3] /= 1e6  # ordinary rows among them
    shift *= 1e4
    shift[2] = 0.0
    clip = Clip(limit=100.0, floor=floor)
    result, expected = (k.shift(z, codes, shift, clip) for k in (cuda, reference))
    assert torch.equal(result, expected)

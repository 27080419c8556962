"""The host's side of the Triton kernels, and all of them in Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed")

from fairmp.kernels.cuda import primitives as cuda
from fairmp.kernels.types import Clip
from tests.kernels.cuda.device import (
    DEVICE,
    INTERPRETED,
    LARGE,
    binary_problem,
    graph,
    on_device,
    product,
    random,
    relative_error,
    unscaled,
)
from tests.kernels.problems import random_codes


@pytest.mark.skipif(INTERPRETED, reason="this is the interpreter")
def test_kernels_in_the_interpreter() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "interpreted"]
    command += [str(Path(__file__).parent), "-p", "no:cacheprovider", "-p", "no:xdist"]
    command += ["-o", "addopts=", "-o", "markers=interpreted: in Triton's interpreter"]
    done = subprocess.run(
        [*command, "-o", "filterwarnings="],
        env=environment,
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    # Triton up to 3.6 takes arrays of one number for numbers, which NumPy refuses from 2.4 on.
    if torch.cuda.is_available() and "only 0-dimensional arrays can be converted" in done.stdout:
        pytest.skip("the interpreter of this Triton does not work with this NumPy")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout


@on_device
def test_hubs_are_found_again_when_row_pointers_change() -> None:
    rows = graph(40, 40, 9000)
    matrix, f = unscaled(rows, 40), random(40, 2, dtype=torch.float32)
    for change in (False, True):
        if change:
            rows.row[1:20] = rows.row[20]  # the first row takes the next ones' edges
        result = cuda.aggregate(matrix, f, None, 0.0)
        assert relative_error(result, product(matrix, f)) < 1e-6


@on_device
def test_same_bits_every_time() -> None:
    matrix, f = unscaled(graph(60, 60, 9000), 60), random(60, 2, dtype=torch.float32)
    n = 200_000 if LARGE else 300
    z, codes = random(n, 2, dtype=torch.float32), random_codes(n, 3).to(DEVICE)
    shift = random(3, 2, dtype=torch.float64)
    problem = binary_problem(n, dtype=torch.float32)
    results = [
        (
            cuda.aggregate(matrix, f, f, 0.3),
            cuda.moments(z, codes, shift, 1.0),
            cuda.segment_sum(z, codes, 3),
            *cuda.binary_root(problem, None),
        )
        for _ in range(5 if LARGE else 2)
    ]
    for other in results[1:]:
        pairs = zip(results[0], other, strict=True)
        assert all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in pairs)


@pytest.mark.gpu
def test_a_step_can_be_captured() -> None:
    """Nothing waits for the host: a step is replayed on other numbers."""
    matrix, problem = unscaled(graph(5000, 5000, 9000), 5000), binary_problem(5000)
    z, groups = problem.z, problem.groups

    def step() -> Tensor:
        agg = cuda.aggregate(matrix, z, z, 0.3)
        root = cuda.binary_root(type(problem)(agg, groups, 1.0, 0.01, 1e-7), None)
        f = cuda.shift_margins(agg, groups, root.u, Clip(1e6, 1e6))
        return cuda.shift_margins_vjp(f, groups, root.slope, 1 / root.curvature)

    step()
    recording = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recording):
        result = step()
    z.mul_(0.5)
    recording.replay()
    assert torch.equal(result, step())

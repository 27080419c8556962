"""The Triton passes of ``paper`` and ``papc``: on a GPU, and in Triton's interpreter on the CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

from fairmp.kernels import reference, use

pytest.importorskip("triton", reason="Triton is not installed")

from fairmp.kernels.cuda import primitives as cuda
from fairmp.kernels.cuda.graphs import CUDAGraphCache

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
LARGE = not INTERPRETED
on_device = pytest.mark.interpreted if INTERPRETED else pytest.mark.gpu
GAMMA = 0.3


@pytest.mark.skipif(INTERPRETED, reason="this is the interpreter")
def test_in_the_interpreter() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "interpreted", __file__]
    command += ["-p", "no:cacheprovider", "-p", "no:xdist", "-o", "addopts="]
    command += ["-o", "markers=interpreted: in Triton's interpreter", "-o", "filterwarnings="]
    done = subprocess.run(
        command,
        env=environment,
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout


class Nodes:
    """A random step: probabilities, logits, gradients, codes and tables."""

    def __init__(self, n: int, classes: int, cells: int, dtype: torch.dtype) -> None:
        generator = torch.Generator().manual_seed(classes + 31 * cells)

        def random(rows: int, dtype: torch.dtype) -> Tensor:
            made = 2 * torch.randn(rows, classes, dtype=torch.float64, generator=generator)
            return made.to(DEVICE, dtype)

        def codes() -> Tensor:
            return torch.randint(-1, cells, (n,), generator=generator).int().to(DEVICE)

        self.p, self.agg, self.g = random(n, dtype).softmax(1), random(n, dtype), random(n, dtype)
        self.reach, self.measured = codes(), codes()
        self.before, self.after, self.w = (random(cells, torch.float64) for _ in range(3))

    def passes(self, kernels: ModuleType) -> list[Tensor]:
        """All that the four passes return."""
        codes = self.reach, self.measured
        q, sums = kernels.predicted(self.p, self.agg, *codes, self.before, GAMMA)
        corrected = kernels.corrected(self.p, self.agg, self.reach, self.after, GAMMA)
        felt = kernels.coupling_pulls(self.p, self.g, self.reach, len(self.w))
        back = kernels.coupling_back(self.p, q, self.g, *codes, self.before, self.after, self.w)
        return [q, sums, *corrected, felt, *back]


@on_device
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("classes", "cells"),
    [(1, 1), (2, 1), (2, 2), (2, 5), (3, 11), (7, 2), (20, 3)] if LARGE else [(2, 2), (3, 11)],
)
def test_equal_the_reference(dtype: torch.dtype, classes: int, cells: int) -> None:
    nodes = Nodes(100_001 if LARGE else 77, classes, cells, dtype)
    rounding = 1e-6 if dtype == torch.float32 else 1e-12
    for found, wanted in zip(nodes.passes(cuda), nodes.passes(reference), strict=True):
        assert found.dtype == wanted.dtype
        assert found.shape == wanted.shape
        assert found.is_contiguous()
        scale = wanted.abs().max() + 1e-3
        assert float((found.double() - wanted.double()).abs().max() / scale) < rounding


@on_device
def test_nodes_that_do_not_count_may_have_any_logits() -> None:
    nodes = Nodes(90, 3, 2, torch.float64)
    nodes.reach[::3] = nodes.measured[::3] = -1
    plain = nodes.passes(cuda)
    assert torch.equal(plain[2][::3], nodes.agg[::3])
    nodes.p[::3] = nodes.agg[::3] = float("nan")
    odd = nodes.passes(cuda)
    for k in (1, 4, 5, 6, 7):  # all but predictions and corrections
        assert torch.equal(odd[k], plain[k])


@on_device
def test_nobody() -> None:
    nodes = Nodes(9, 3, 2, torch.float32)
    nodes.reach.fill_(-1)
    nodes.measured.fill_(-1)
    q, sums, corrected, _, felt, a, e, felt_before = nodes.passes(cuda)
    assert not any(part.any() for part in (q, sums, felt, e, felt_before))
    assert torch.equal(corrected, nodes.agg)
    assert torch.equal(a, nodes.g)
    empty = Nodes(0, 3, 2, torch.float32).passes(cuda)
    assert not any(part.any() for part in empty)


@on_device
def test_same_bits_every_time() -> None:
    nodes = Nodes(1_000_003 if LARGE else 77, 2, 3, torch.float32)
    first = nodes.passes(cuda)
    for _ in range(5 if LARGE else 1):
        again = nodes.passes(cuda)
        assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("solver", ["paper", "papc"])
@pytest.mark.parametrize(("classes", "groups"), [(2, 2), (3, 4)])
def test_steps_recorded_equal_the_reference(solver: str, classes: int, groups: int) -> None:
    from fairmp.graph import normalise
    from fairmp.groups import group_operator
    from fairmp.nn import functional as solvers

    torch.manual_seed(0)
    n = 5000
    half = torch.randint(n, (2, 20_000))
    graph = normalise(torch.cat([half, half.flip(0)], 1), n).to("cuda")
    sens = torch.randint(-1, groups, (n,))
    delta = group_operator(sens.cuda(), (torch.rand(n) < 0.5).cuda())
    recordings, options = CUDAGraphCache(), {"K": 4, "lambda_s": 3.0, "lambda_f": 2.0}
    weights = torch.randn(n, classes, device="cuda")
    for turn in range(4):  # the second makes a recording, the others replay it
        x = torch.randn(n, classes, device="cuda", requires_grad=True)
        found = []
        for kernels in ("fastest", "reference"):
            with use(kernels):
                solution = getattr(solvers, solver)(
                    x, graph, delta, **options, cuda_graphs=recordings
                )
                loss = (solution.f * weights).sum()
                if turn % 2:
                    loss = loss + solution.duals.square().mean()
                found.append((solution.f, solution.duals, *torch.autograd.grad(loss, x)))
        for ours, theirs in zip(*found, strict=True):
            error = float((ours - theirs).detach().abs().max())
            assert error < 1e-5 * float(theirs.detach().abs().max())


@pytest.mark.gpu
def test_the_host_never_waits() -> None:
    from fairmp.graph import normalise
    from fairmp.groups import group_operator
    from fairmp.nn.functional import papc

    n = 5000
    x = torch.randn(n, 2, device="cuda", requires_grad=True)
    graph = normalise(torch.randint(n, (2, 20_000)), n).to("cuda")
    delta = group_operator(torch.arange(n, device="cuda") % 2)
    for mode in ("default", "error"):  # the first time kernels are compiled and hubs looked for
        torch.cuda.set_sync_debug_mode(mode)
        try:
            f = papc(x, graph, delta, K=3, lambda_s=1.0, lambda_f=1.0).f
            f.sum().backward()
        finally:
            torch.cuda.set_sync_debug_mode("default")

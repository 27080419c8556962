"""The Triton kernels: on a GPU, and in Triton's interpreter on the CPU, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fairmp.kernels import reference, use

pytest.importorskip("triton", reason="Triton is not installed")

from fairmp.kernels.cuda import graphs
from fairmp.kernels.cuda import primitives as cuda
from fairmp.kernels.cuda.graphs import CUDAGraphCache, Recording

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
LARGE = not INTERPRETED
on_device = pytest.mark.interpreted if INTERPRETED else pytest.mark.gpu
both_types = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
classes_few_and_many = pytest.mark.parametrize("classes", [1, 2, 3, 7, 20] if LARGE else [2, 3])


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
    # Triton up to 3.6 takes arrays of one number for numbers, which NumPy refuses from 2.4 on.
    if torch.cuda.is_available() and "only 0-dimensional arrays can be converted" in done.stdout:
        pytest.skip("the interpreter of this Triton does not work with this NumPy")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout


def random(*shape: int, dtype: torch.dtype, scale: float = 1.0, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(*shape, dtype=dtype, generator=generator).to(DEVICE)


def graph(
    rows: int, columns: int, hub: int = 0, types: tuple[torch.dtype, torch.dtype] | None = None
) -> tuple[Tensor, Tensor]:
    """Row pointers and columns: about 6 neighbours per row, none for the first, one hub."""
    generator = torch.Generator().manual_seed(1)
    length = torch.randint(0, 13, (rows,), generator=generator)
    length[0], length[rows // 2] = 0, hub
    row = torch.cat([torch.zeros(1, dtype=torch.int64), length.cumsum(0)])
    col = torch.randint(0, columns, (int(row[-1]),), generator=generator)
    row_type, col_type = types or (torch.int64, torch.int32)
    return row.to(DEVICE, row_type), col.to(DEVICE, col_type)


def error(found: Tensor, wanted: Tensor) -> float:
    assert found.shape == wanted.shape
    assert found.is_contiguous()
    scale = wanted.double().abs().max().clamp_min(1e-300)
    return float((found.double() - wanted.double()).abs().max() / scale)


def precise(
    row: Tensor,
    col: Tensor,
    weight: Tensor | None,
    left: Tensor,
    right: Tensor,
    f: Tensor,
    x: Tensor | None,
    gamma: float,
) -> Tensor:
    """The definition, edge by edge, in float64."""
    there = torch.repeat_interleave(row.long().diff())
    value = right.double()[col.long()] if weight is None else weight.double() * right[col.long()]
    product = torch.zeros(left.numel(), f.size(1), dtype=torch.float64, device=f.device)
    product.index_add_(0, there, value.unsqueeze(1) * f.double()[col.long()])
    product *= left.double().unsqueeze(1)
    return product if x is None else gamma * x.double() + (1 - gamma) * product


@on_device
@both_types
@classes_few_and_many
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("hub", [0, 300, 9000] if LARGE else [9000])
def test_aggregate(dtype: torch.dtype, classes: int, weighted: bool, hub: int) -> None:
    row, col = graph(70, 50, hub)
    weight = random(col.numel(), dtype=dtype).abs() if weighted else None
    left, right = random(70, dtype=dtype, seed=2).abs(), random(50, dtype=dtype, seed=3).abs()
    f, x = random(50, classes, dtype=dtype, seed=4), random(70, classes, dtype=dtype, seed=5)
    bound = 1e-6 if dtype == torch.float32 else 1e-13
    for skip, gamma in ((x, 0.3), (None, 0.0)):
        found = cuda.aggregate((row, col, weight, left, right), f, skip, gamma)
        assert found.dtype == dtype
        assert error(found, precise(row, col, weight, left, right, f, skip, gamma)) < bound


@on_device
@pytest.mark.parametrize("row_type", [torch.int32, torch.int64])
@pytest.mark.parametrize("col_type", [torch.int32, torch.int64] if LARGE else [torch.int64])
def test_aggregate_takes_any_integers(row_type: torch.dtype, col_type: torch.dtype) -> None:
    row, col = graph(40, 40, 5000, (row_type, col_type))
    one = torch.ones(40, device=DEVICE)
    f = random(40, 2, dtype=torch.float32)
    found = cuda.aggregate((row, col, None, one, one), f, None, 0.0)
    assert error(found, precise(row, col, None, one, one, f, None, 0.0)) < 1e-6


@on_device
def test_aggregate_of_tensors_that_are_views() -> None:
    row, col = graph(40, 40)
    one = torch.ones(40, device=DEVICE)
    wide = random(40, 4, dtype=torch.float32)
    odd = random(81, dtype=torch.float32)[1:].view(40, 2)
    for f, x in ((wide[:, 1:3], wide[:, ::2]), (odd, odd)):
        kept = f.clone()
        found = cuda.aggregate((row, col, None, one, one), f, x, 0.5)
        assert error(found, precise(row, col, None, one, one, f, x, 0.5)) < 1e-6
        assert torch.equal(f, kept)


@on_device
def test_aggregate_without_rows_or_edges() -> None:
    empty = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    none = torch.zeros(0, dtype=torch.int64, device=DEVICE)
    f = random(3, 2, dtype=torch.float32)
    assert cuda.aggregate((empty, none, None, f[:0, 0], f[:, 0]), f, None, 0.0).shape == (0, 2)
    alone = torch.zeros(4, dtype=torch.int64, device=DEVICE)
    found = cuda.aggregate((alone, none, None, f[:, 0], f[:, 0]), f, f, 0.25)
    assert torch.equal(found, 0.25 * f)


@on_device
def test_hubs_are_found_again_when_pointers_change() -> None:
    row, col = graph(40, 40, 9000)
    one, f = torch.ones(40, device=DEVICE), random(40, 2, dtype=torch.float32)
    for change in (0, 1):
        if change:
            row[1:20] = row[20]  # the first row takes the next ones' edges
        found = cuda.aggregate((row, col, None, one, one), f, None, 0.0)
        assert error(found, precise(row, col, None, one, one, f, None, 0.0)) < 1e-6


def nodes(
    n: int, groups: int, classes: int, dtype: torch.dtype, scale: float = 3.0
) -> tuple[Tensor, Tensor, Tensor]:
    codes = torch.randint(-1, groups, (n,), generator=torch.Generator().manual_seed(6))
    shift = random(groups, classes, dtype=torch.float64, seed=7)
    return random(n, classes, dtype=dtype, scale=scale, seed=8), codes.int().to(DEVICE), shift


@on_device
@both_types
@classes_few_and_many
@pytest.mark.parametrize("groups", [1, 2, 5] if LARGE else [2])
def test_passes_over_nodes(dtype: torch.dtype, classes: int, groups: int) -> None:
    n = 100_001 if LARGE else 77
    z, codes, shift = nodes(n, groups, classes, dtype)
    g, w = random(n, classes, dtype=dtype, seed=9), random(groups, classes, dtype=torch.float64)
    rounding = 1e-6 if dtype == torch.float32 else 1e-13
    assert (
        error(cuda.moments(z, codes, shift, 0.7), reference.moments(z, codes, shift, 0.7)) < 1e-12
    )
    assert error(cuda.shift(z, codes, shift), reference.shift(z, codes, shift)) < rounding
    sums = reference.segment_sum(g, codes, groups)
    assert error(cuda.segment_sum(g, codes, groups), sums) < 1e-12
    pulled = reference.softmax_vjp(g, z, codes, shift, 0.7, w)
    assert error(cuda.softmax_vjp(g, z, codes, shift, 0.7, w), pulled) < rounding
    gradients = cuda.coupling_backward(g, z, codes, w)
    for ours, wanted in zip(gradients, reference.coupling_backward(g, z, codes, w), strict=True):
        assert error(ours, wanted) < rounding


@on_device
def test_passes_over_no_nodes() -> None:
    z, codes, shift = nodes(9, 2, 3, torch.float32)
    codes.fill_(-1)
    assert not cuda.moments(z, codes, shift, 1.0).any()
    assert not cuda.segment_sum(z, codes, 2).any()
    assert torch.equal(cuda.shift(z, codes, shift), z)
    assert torch.equal(cuda.softmax_vjp(z, z, codes, shift, 1.0, shift), z)
    assert not any(part.any() for part in cuda.coupling_backward(z, z, codes, shift))
    empty = z[:0], codes[:0]
    assert not cuda.moments(*empty, shift, 1.0).any()
    assert cuda.shift(*empty, shift).shape == (0, 3)


@on_device
def test_curvature_keeps_its_digits_where_probabilities_are_near_one() -> None:
    z = torch.tensor([[0.0, 40.0]], device=DEVICE)
    codes = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    shift = torch.zeros(1, 2, dtype=torch.float64, device=DEVICE)
    second = cuda.moments(z, codes, shift, 1.0)[3:]
    torch.testing.assert_close(
        second.cpu() * torch.tensor(40.0).double().exp(), torch.ones(4).double()
    )


def two_groups(n: int, scale: float, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    z, codes, _ = nodes(n, 2, 2, dtype, scale)
    codes[:2] = torch.tensor([0, 1], dtype=torch.int32)
    z[:, 1] += scale * codes.clamp_min(0)
    counts = torch.stack([(codes == g).sum() for g in (0, 1)]).double()
    return z, codes, torch.stack([-1 / counts[0], 1 / counts[1]])


def gap(z: Tensor, codes: Tensor, spread: Tensor, w: float, temperature: float) -> float:
    """The definition, in plain torch."""
    inside = codes >= 0
    z, m = z[inside].double(), spread[codes[inside].long()]
    margin = (z[:, 1] - z[:, 0]) / temperature
    return float((m * torch.sigmoid(margin - m / spread.abs().max() * w)).sum())


@on_device
@both_types
@pytest.mark.parametrize("scale", [0.1, 3.0, 300.0] if LARGE else [3.0, 300.0])
@pytest.mark.parametrize("target", [0.0, 0.05] if LARGE else [0.05])
@pytest.mark.parametrize("start", [0.0, -2.0, 1e9, float("nan")] if LARGE else [0.0, 1e9])
def test_binary_root(dtype: torch.dtype, scale: float, target: float, start: float) -> None:
    tolerance = 1e-7 if dtype == torch.float32 else 1e-12
    for n in (5, 100_000, 1_500_000) if LARGE else (600,):
        z, codes, spread = two_groups(n, scale, dtype)
        guess = torch.tensor([start], dtype=torch.float64, device=DEVICE)
        found = cuda.binary_root(z, codes, spread, guess, target, tolerance, 0.7)
        root, residual, passes, there, slope = found.tolist()
        before, after = (gap(z, codes, spread, w, 0.7) for w in (0.0, root))
        assert after == pytest.approx(there, abs=1e-12)
        if abs(before) <= target:
            assert (root, residual) == (0, 0)
        else:
            assert root * before > 0
            assert abs(after - (target if before > 0 else -target)) <= tolerance
        assert 1 <= passes <= 60
        step = 1e-4
        across = gap(z, codes, spread, root - step, 0.7) - gap(z, codes, spread, root + step, 0.7)
        assert slope == pytest.approx(across / (2 * step), rel=1e-3, abs=1e-9)


@on_device
def test_binary_root_starts_where_the_last_one_ended() -> None:
    z, codes, spread = two_groups(500, 2.0, torch.float64)
    zero = torch.zeros(1, dtype=torch.float64, device=DEVICE)
    first = cuda.binary_root(z, codes, spread, zero, 0.01, 1e-12, 1.0)
    again = cuda.binary_root(z, codes, spread, first[:1], 0.01, 1e-12, 1.0)
    assert int(first[2]) > 1
    assert int(again[2]) == 1
    assert float(again[0]) == float(first[0])


@on_device
@pytest.mark.parametrize("target", [0.0, 0.05, 0.95] if LARGE else [0.05])
@pytest.mark.parametrize("temperature", [1.0, 0.3] if LARGE else [0.3])
def test_binary_gradient(target: float, temperature: float) -> None:
    z, codes, spread = two_groups(8, 1.0, torch.float64)
    z[2] = torch.tensor([3e6, 3e6 + 0.5])
    z[3] = torch.tensor([-1.5e6, 1.0])
    reach = codes.clone()
    reach[codes < 0] = 1
    g = random(8, 2, dtype=torch.float64)
    outer = torch.tensor([0.7], dtype=torch.float64, device=DEVICE)
    zero = torch.zeros(1, dtype=torch.float64, device=DEVICE)

    def solved(z: Tensor) -> tuple[Tensor, Tensor]:
        root = cuda.binary_root(z, codes, spread, zero, target, 1e-15, temperature)
        return cuda.binary_shift(z, reach, spread, root, temperature), root

    here, root = solved(z)

    def loss(z: Tensor) -> float:
        f, root = solved(z)
        # From here: the sum of what is large would lose the digits of what changes.
        return float(((f - here) * g).sum() + outer[0] * root[0])

    found = cuda.binary_vjp(g, z, codes, reach, spread, root, target, temperature, outer)
    for i in range(8):
        for c in range(2):
            step = torch.zeros_like(z)
            step[i, c] = 1e-5 if abs(float(z[i, c])) < 1e3 else 2.0**-6
            slope = (loss(z + step) - loss(z - step)) / (2 * float(step[i, c]))
            assert float(found[i, c]) == pytest.approx(slope, abs=2e-5)


@on_device
@pytest.mark.parametrize("target", [0.0, 1.0])
@pytest.mark.parametrize("temperature", [0.01, 0.001])
def test_a_small_temperature_clips_only_corrected_nodes(temperature: float, target: float) -> None:
    """As the steps on the host, logits thousands of τ apart included."""
    n = 20_000 if LARGE else 200
    z, codes, spread = two_groups(n, 3.0, torch.float32)
    zero = torch.zeros(1, dtype=torch.float64, device=DEVICE)
    root = cuda.binary_root(z, codes, spread, zero, target, 1e-7, temperature)
    f = cuda.binary_shift(z, codes, spread, root, temperature)
    d = spread[codes.clamp_min(0).long()] / spread.abs().max() * (codes >= 0)
    half = (temperature * root[0] * d / 2).unsqueeze(1)
    wanted = (z.double() + torch.cat([half, -half], 1)).softmax(1)
    torch.testing.assert_close(f.double().softmax(1), wanted, atol=1e-5, rtol=0)
    assert target or float(half.abs().max()) > 0


@on_device
@both_types
def test_binary_equals_the_general_primitives(dtype: torch.dtype) -> None:
    """Shift and gradient are those of the primitives for any number of classes and gaps."""
    z, codes, spread = two_groups(300, 1.0, dtype)
    tau, g = 0.6, random(300, 2, dtype=dtype)
    start = torch.zeros(1, dtype=torch.float64, device=DEVICE)
    root = cuda.binary_root(z, codes, spread, start, 0.02, 1e-9, tau)
    d = spread / spread.abs().max()
    shift = tau * root[0] * torch.stack([-d / 2, d / 2], 1)
    rounding = 1e-6 if dtype == torch.float32 else 1e-12
    found = cuda.binary_shift(z, codes, spread, root, tau)
    assert error(found, reference.shift(z, codes, shift)) < rounding
    sums = reference.segment_sum(g, codes, 2)
    pull = -(d * (sums[:, 1] - sums[:, 0])).sum() / 2 * spread.abs().max() / root[4]
    w = pull * torch.stack([-d / 2, d / 2], 1)
    wanted = reference.softmax_vjp(g, z, codes, shift, tau, w)
    found = cuda.binary_vjp(g, z, codes, codes, spread, root, 0.02, tau)
    assert error(found, wanted) < rounding


@on_device
def test_same_bits_every_time() -> None:
    row, col = graph(60, 60, 9000)
    one, f = torch.ones(60, device=DEVICE), random(60, 2, dtype=torch.float32)
    z, codes, shift = nodes(200_000 if LARGE else 300, 3, 2, torch.float32)
    _, _, spread = two_groups(50, 1.0, torch.float32)
    start = torch.zeros(1, dtype=torch.float64, device=DEVICE)
    two = codes.clamp_max(1)
    found = [
        (
            cuda.aggregate((row, col, None, one, one), f, f, 0.3),
            cuda.moments(z, codes, shift, 1.0),
            cuda.segment_sum(z, codes, 3),
            cuda.binary_root(z, two, spread, start, 0.0, 1e-7, 1.0),
        )
        for _ in range(5 if LARGE else 2)
    ]
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("classes", [2, 5])
def test_a_hub_of_a_million_and_a_heavy_tail(classes: int) -> None:
    torch.manual_seed(0)
    n = 300_000
    length = (4 / torch.rand(n, device="cuda")).long().clamp_max(50_000)
    length[7] = 1_000_000
    row = torch.cat([length.new_zeros(1), length.cumsum(0)])
    col = torch.randint(0, n, (int(row[-1]),), device="cuda", dtype=torch.int32)
    scale = (1 + length).float().rsqrt()
    f = torch.randn(n, classes, device="cuda") + 1
    found = cuda.aggregate((row, col, None, scale, scale), f, f, 0.2)
    wanted = precise(row, col, None, scale, scale, f, f, 0.2)
    assert float(((found - wanted).abs() / wanted.abs().clamp_min(1e-2)).max()) < 1e-5


@pytest.mark.gpu
def test_in_a_cuda_graph() -> None:
    """Nothing waits for the host: a step can be captured, and replayed on other numbers."""
    row, col = graph(5000, 5000, 9000)
    one = torch.ones(5000, device=DEVICE)
    z, codes, spread = two_groups(5000, 2.0, torch.float32)
    start = torch.zeros(1, dtype=torch.float64, device=DEVICE)

    def step() -> Tensor:
        f = cuda.aggregate((row, col, None, one, one), z, z, 0.3)
        root = cuda.binary_root(f, codes, spread, start, 0.01, 1e-7, 1.0)
        shifted = cuda.binary_shift(f, codes, spread, root, 1.0)
        return cuda.binary_vjp(shifted, f, codes, codes, spread, root, 0.01, 1.0)

    step()
    recording = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recording):
        found = step()
    z.mul_(0.5)
    recording.replay()
    assert torch.equal(found, step())


def squared(w: Tensor) -> tuple[Any, Any]:
    """f = wx², and the sum of x; with their gradient."""
    return (
        lambda x: ((w * x.square(), x.sum(0)), x),
        lambda x, gradients: (2 * w * x * gradients[0] + gradients[1],),
    )


@pytest.mark.gpu
def test_a_recording_is_the_function_and_its_gradient() -> None:
    w = torch.randn(4, 2, device=DEVICE)
    recording = Recording((torch.zeros(4, 2, device=DEVICE),), *squared(w))
    inputs = [random(4, 2, dtype=torch.float32, seed=seed) for seed in range(3)]
    calls = [recording.forward(x) for x in inputs]
    # In another order than they were called, with and without a gradient of the second result.
    for k in (2, 0, 1):
        x = inputs[k].clone().requires_grad_()
        first, second = w * x.square(), x.sum(0)
        assert torch.equal(calls[k][0][0], first)
        assert torch.equal(calls[k][0][1], second)
        g, h = torch.randn_like(first), torch.randn_like(second)
        (wanted,) = torch.autograd.grad(
            (g * first).sum() + (h * second).sum(), x, retain_graph=True
        )
        (found,) = recording.backward(calls[k][1], (inputs[k],), (g, h))
        torch.testing.assert_close(found, wanted)
        (wanted,) = torch.autograd.grad((g * first).sum(), x)
        (found,) = recording.backward(calls[k][1], (inputs[k],), (g, None))
        torch.testing.assert_close(found, wanted)


class Counted:
    """In place of a recording, which needs a device."""

    def __init__(self, inputs: tuple[Tensor, ...], *_: Any) -> None:
        self.inputs = inputs


def test_recordings_are_made_on_the_second_call_and_few_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(graphs, "Recording", Counted)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    recordings, x = CUDAGraphCache(size=2), torch.ones(4, 2)
    things = [object() for _ in range(9)]

    def ask(k: int, number: float = 1.0, x: Tensor = x) -> Any:
        return recordings.get((things[k],), (number,), (x,), *squared(x))

    assert ask(0) is None
    first = ask(0)
    assert ask(0) is first is not None
    assert ask(0, 2.0) is None
    assert ask(0, x=x[:2]) is None
    assert ask(0, x=x.double()) is None
    # Functions met only once do not evict a recording; two other recordings do.
    for k in range(1, 9):
        assert ask(k) is None
    assert ask(0) is first
    assert ask(1) is None  # forgotten
    for k in (7, 8):
        ask(k)
        assert ask(k) is not None
    assert ask(0) is None


def test_recordings_are_not_copied() -> None:
    assert deepcopy(CUDAGraphCache(size=7)).size == 7


@pytest.mark.gpu
@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("solver", ["paper", "papc"])
@pytest.mark.parametrize(("classes", "groups"), [(2, 2), (3, 4)])
def test_steps_recorded_equal_the_reference(
    solver: str, classes: int, groups: int, learned: bool
) -> None:
    from fairmp.graph import normalise
    from fairmp.groups import group_operator
    from fairmp.nn import functional

    torch.manual_seed(0)
    n = 5000
    half = torch.randint(n, (2, 20_000))
    graph = normalise(torch.cat([half, half.flip(0)], 1), n).to("cuda")
    sens = torch.randint(-1, groups, (n,))
    delta = group_operator(sens.cuda(), (torch.rand(n) < 0.5).cuda())
    recordings, options = CUDAGraphCache(), {"K": 4, "lambda_f": 2.0}
    strength = torch.full((4,), 3.0, device="cuda", requires_grad=True) if learned else 3.0
    weights = torch.randn(n, classes, device="cuda")
    for call in range(4):  # the second makes a recording, the others replay it
        x = torch.randn(n, classes, device="cuda", requires_grad=True)
        found = []
        for kernels in ("fastest", "reference"):
            with use(kernels):
                solution = getattr(functional, solver)(
                    x, graph, delta, lambda_s=strength, **options, cuda_graphs=recordings
                )
                loss = (solution.f * weights).sum()
                if call % 2:
                    loss = loss + solution.duals.square().mean()
                leaves = [x, strength] if isinstance(strength, Tensor) else [x]
                found.append((solution.f, solution.duals, *torch.autograd.grad(loss, leaves)))
        for ours, theirs in zip(*found, strict=True):
            error = float((ours - theirs).detach().abs().max())
            assert error < 1e-5 * float(theirs.detach().abs().max())


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_the_host_never_waits() -> None:
    from fairmp.graph import normalise
    from fairmp.groups import group_operator
    from fairmp.nn.solvers import papc

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

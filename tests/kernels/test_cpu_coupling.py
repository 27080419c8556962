"""The CPU's passes of ``paper`` and ``papc``, and the plain torch ones, against autograd."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

numba = pytest.importorskip("numba")

from fairmp.kernels import reference  # noqa: E402
from fairmp.kernels.cpu import primitives as cpu  # noqa: E402

GAMMA = 0.3


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def problem(
    n: int, classes: int, cells: int, *, seed: int = 0, scale: float = 2.0
) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    found = {
        name: scale * torch.randn(rows, classes, dtype=torch.float64, generator=generator)
        for rows, names in ((n, ("f", "agg", "g")), (cells, ("before", "after", "w")))
        for name in names
    }
    for name in ("reach", "measured"):
        found[name] = torch.randint(-1, cells, (n,), generator=generator).int()
    return found


def one_hot(codes: Tensor, cells: int) -> Tensor:
    return (codes.unsqueeze(1) == torch.arange(cells)).double()


def wanted(problem: dict[str, Tensor]) -> dict[str, Tensor]:
    """What the passes return, from the definitions and by autograd."""
    cells = len(problem["w"])
    reach, measured = (one_hot(problem[name], cells) for name in ("reach", "measured"))
    f, agg, before, after = (
        problem[name].clone().requires_grad_() for name in ("f", "agg", "before", "after")
    )
    p = f.softmax(1)

    def push(table: Tensor) -> Tensor:
        (pushed,) = torch.autograd.grad(
            (p * (reach @ table)).sum(), f, create_graph=True, retain_graph=True
        )
        return agg - GAMMA * pushed

    q = push(before).softmax(1)
    sums, corrected = measured.T @ q, push(after)
    loss = (corrected * problem["g"]).sum() + (sums * problem["w"]).sum()
    of_f, of_agg, of_before, of_after = torch.autograd.grad(loss, (f, agg, before, after))
    return {
        "q": q.detach() * measured.sum(1, keepdim=True),
        "sums": sums.detach(),
        "corrected": corrected.detach(),
        "soft": corrected.detach().softmax(1),
        "felt": -of_after / GAMMA,
        "a": of_agg,
        "e": of_f / GAMMA,
        "felt before": -of_before / GAMMA,
    }


def passes(
    kernels: ModuleType, problem: dict[str, Tensor], dtype: torch.dtype
) -> dict[str, Tensor]:
    p = problem["f"].softmax(1).to(dtype)
    agg, g = problem["agg"].to(dtype), problem["g"].to(dtype)
    reach, measured, before, after, w = (
        problem[name] for name in ("reach", "measured", "before", "after", "w")
    )
    q, sums = kernels.predicted(p, agg, reach, measured, before, GAMMA)
    corrected, soft = kernels.corrected(p, agg, reach, after, GAMMA)
    felt = kernels.coupling_pulls(p, g, reach, len(w))
    a, e, felt_before = kernels.coupling_back(p, q, g, reach, measured, before, after, w)
    found = {"q": q, "sums": sums, "corrected": corrected, "soft": soft, "felt": felt}
    return {**found, "a": a, "e": e, "felt before": felt_before}


def assert_near(found: dict[str, Tensor], wanted: dict[str, Tensor], bound: float) -> None:
    for name, theirs in wanted.items():
        ours = found[name]
        assert ours.shape == theirs.shape
        assert ours.is_contiguous()
        error = (ours.double() - theirs).abs().max() if ours.numel() else 0.0
        assert error <= bound * (theirs.abs().max() + 1 if ours.numel() else 1.0), name


@settings(max_examples=40)
@given(
    n=st.sampled_from([1, 7, 256, 300, 2049]),
    classes=st.sampled_from([1, 2, 3, 6]),
    cells=st.integers(1, 5),
    scale=st.sampled_from([0.1, 2.0, 20.0]),
    seed=st.integers(0, 2**20),
)
def test_equal_autograd(n: int, classes: int, cells: int, scale: float, seed: int) -> None:
    made = problem(n, classes, cells, seed=seed, scale=scale)
    theirs = wanted(made)
    for kernels in (cpu, reference):
        found = passes(kernels, made, torch.float64)
        assert_near(found, theirs, 1e-11)
        assert not found["e"][made["reach"] < 0].any()


@pytest.mark.parametrize("classes", [2, 5])
def test_of_single_precision(classes: int) -> None:
    made = problem(3000, classes, 3)
    found = passes(cpu, made, torch.float32)
    assert found["e"].dtype == torch.float32
    assert found["felt"].dtype == torch.float64
    assert_near(found, wanted(made), 1e-6)


@pytest.mark.parametrize("classes", [2, 3])
def test_bits_do_not_depend_on_the_number_of_threads(classes: int) -> None:
    made = problem(10_000, classes, 3)
    p, q = made["f"].softmax(1), made["agg"].softmax(1)
    others = [made[name] for name in ("g", "reach", "measured", "before", "after", "w")]
    torch.set_num_threads(1)
    alone = cpu.coupling_back(p, q, *others)
    torch.set_num_threads(2)
    for ours, theirs in zip(cpu.coupling_back(p, q, *others), alone, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("kernels", [cpu, reference])
@pytest.mark.parametrize("classes", [2, 3])
def test_nodes_that_do_not_count_may_have_any_logits(kernels: ModuleType, classes: int) -> None:
    made = problem(40, classes, 2)
    made["reach"][::4] = -1
    made["measured"][::4] = -1
    plain = passes(kernels, made, torch.float64)
    assert torch.equal(plain["corrected"][::4], made["agg"][::4])
    assert torch.equal(plain["a"][::4], made["g"][::4])
    made["f"][::4] = float("nan")
    made["agg"][::4] = float("nan")
    odd = passes(kernels, made, torch.float64)
    for name in ("sums", "felt", "a", "e", "felt before"):
        assert torch.equal(odd[name], plain[name])


@pytest.mark.parametrize("kernels", [cpu, reference])
@pytest.mark.parametrize("classes", [2, 3])
def test_what_is_not_a_number_stays_so(kernels: ModuleType, classes: int) -> None:
    made = problem(40, classes, 2)
    made["reach"][3] = made["measured"][3] = 1
    made["agg"][3, 1] = float("nan")
    found = passes(kernels, made, torch.float64)
    assert found["sums"][1].isnan().all()
    assert found["soft"][3].isnan().all()


@pytest.mark.parametrize("kernels", [cpu, reference])
@pytest.mark.parametrize("classes", [2, 3])
def test_stay_finite_where_predictions_are_certain(kernels: ModuleType, classes: int) -> None:
    made = problem(40, classes, 2, scale=1e6)
    found = passes(kernels, made, torch.float64)
    assert all(bool(part.isfinite().all()) for part in found.values())
    counted = made["measured"] >= 0
    torch.testing.assert_close(found["q"][counted].sum(1), torch.ones(int(counted.sum())).double())


@pytest.mark.parametrize("kernels", [cpu, reference])
def test_no_nodes_at_all(kernels: ModuleType) -> None:
    found = passes(kernels, problem(0, 2, 2), torch.float64)
    assert all(part.shape == (0, 2) for name in ("q", "soft", "a", "e") for part in (found[name],))
    assert not any(found[name].any() for name in ("sums", "felt", "felt before"))


def test_takes_what_is_not_contiguous_and_changes_nothing() -> None:
    made = problem(50, 2, 2)
    for name in ("f", "agg", "g"):
        made[name] = made[name].T.contiguous().T
    before = {name: part.clone() for name, part in made.items()}
    assert_near(passes(cpu, made, torch.float64), wanted(made), 1e-11)
    assert all(torch.equal(made[name], before[name]) for name in made)

"""The CPU kernels against SciPy and NumPy in float64, and against the reference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse, special
from torch import Tensor

numba = pytest.importorskip("numba")

from fairmp.kernels import reference  # noqa: E402
from fairmp.kernels.cpu import primitives as cpu  # noqa: E402
from fairmp.kernels.reference import Matrix  # noqa: E402

CUT = 8192  # rows and edges in a chunk
NAN, INF = float("nan"), float("inf")


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def compressed(degrees: list[int], columns: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Rows of the given lengths with random columns: isolated nodes, hubs, repeated edges."""
    row = torch.tensor([0, *degrees]).cumsum(0)
    generator = torch.Generator().manual_seed(seed)
    col = torch.randint(columns, (int(row[-1]),), generator=generator, dtype=torch.int32)
    return row, col


def network(columns: int = 500) -> tuple[Tensor, Tensor]:
    """Hubs longer than a chunk, a chunk's worth of isolated nodes, and ordinary rows."""
    rng = np.random.default_rng(0)
    degrees = rng.integers(0, 12, 3000)
    degrees[[0, 700, 2999]] = 3 * CUT, 20_000, CUT + 1
    return compressed([*degrees.tolist(), *[0] * (CUT + 500), 5, 0], columns)


def product(matrix: Matrix, f: Tensor, x: Tensor | None, gamma: float) -> np.ndarray:
    """The propagation in float64, by SciPy."""
    row, col, weight, left, right = matrix
    value = np.ones(col.numel()) if weight is None else weight.double().numpy()
    values = sparse.csr_matrix(
        (value, col.numpy(), row.numpy()), shape=(row.numel() - 1, f.size(0))
    )
    scaled = left.double().numpy()[:, None] * (
        values @ (right.double().numpy()[:, None] * f.double().numpy())
    )
    return scaled if x is None else gamma * x.double().numpy() + (1 - gamma) * scaled


def close(ours: Tensor, oracle: np.ndarray, rtol: float) -> None:
    assert ours.shape == oracle.shape
    assert ours.is_contiguous()
    scale = np.abs(oracle).max(initial=0.0)
    np.testing.assert_allclose(ours.double().numpy(), oracle, rtol=rtol, atol=rtol * scale)


def random_arguments(
    classes: int, dtype: torch.dtype, weighted: bool, index: tuple[torch.dtype, torch.dtype]
) -> tuple[Any, ...]:
    columns = 500
    row, col = network(columns)
    rows = row.numel() - 1
    torch.manual_seed(classes)
    matrix = (
        row.to(index[0]),
        col.to(index[1]),
        torch.rand(col.numel(), dtype=dtype) if weighted else None,
        torch.rand(rows, dtype=dtype),
        torch.rand(columns, dtype=dtype),
    )
    return (
        matrix,
        torch.rand(columns, classes, dtype=dtype),
        torch.randn(rows, classes, dtype=dtype),
        0.3,
    )


class TestAggregate:
    @pytest.mark.parametrize("classes", [1, 2, 3, 4, 5, 6, 7, 8, 10, 64])
    def test_equals_scipy_for_any_number_of_classes(self, classes: int) -> None:
        arguments = random_arguments(classes, torch.float32, False, (torch.int64, torch.int32))
        close(cpu.aggregate(*arguments), product(*arguments), 2e-6)

    @pytest.mark.parametrize(
        ("classes", "dtype", "weighted", "index"),
        [
            (2, torch.float64, True, (torch.int32, torch.int32)),
            (2, torch.float32, False, (torch.int64, torch.int64)),
            (7, torch.float64, False, (torch.int64, torch.int64)),
            (3, torch.float32, True, (torch.int64, torch.int32)),
        ],
    )
    def test_equals_scipy_for_any_types(
        self,
        classes: int,
        dtype: torch.dtype,
        weighted: bool,
        index: tuple[torch.dtype, torch.dtype],
    ) -> None:
        arguments = random_arguments(classes, dtype, weighted, index)
        ours = cpu.aggregate(*arguments)
        assert ours.dtype == dtype
        close(ours, product(*arguments), 2e-6 if dtype == torch.float32 else 1e-12)

    @pytest.mark.parametrize("classes", [2, 3])
    def test_without_a_skip_it_is_the_product_alone(self, classes: int) -> None:
        *rest, _, _ = random_arguments(classes, torch.float32, False, (torch.int64, torch.int32))
        close(cpu.aggregate(*rest, None, 0.0), product(*rest, None, 0.0), 2e-6)

    def test_equals_the_reference(self) -> None:
        row, col = compressed([3, 0, 2, 5], 4)
        half, f = torch.full((4,), 0.5), torch.randn(4, 2)
        arguments = ((row, col, None, half, half), f, f, 0.25)
        torch.testing.assert_close(cpu.aggregate(*arguments), reference.aggregate(*arguments))

    @pytest.mark.parametrize(("rows", "columns"), [(0, 3), (4, 0), (4, 3)])
    def test_without_edges_only_the_skip_is_left(self, rows: int, columns: int) -> None:
        row, col = torch.zeros(rows + 1, dtype=torch.int64), torch.zeros(0, dtype=torch.int32)
        x = torch.randn(rows, 2)
        matrix = row, col, None, torch.rand(rows), torch.rand(columns)
        ours = cpu.aggregate(matrix, torch.rand(columns, 2), x, 0.5)
        assert torch.equal(ours, x / 2)

    def test_a_hub_of_a_million_edges_keeps_its_digits(self) -> None:
        row, col = compressed([3, 1_000_000, 3], 1000)
        f = torch.rand(1000, 2)
        ones = torch.ones(1000)
        arguments = ((row, col, None, torch.ones(3), ones), f, None, 0.0)
        close(cpu.aggregate(*arguments), product(*arguments), 5e-7)

    @given(
        degrees=st.lists(
            st.sampled_from([0, 1, 2, CUT - 3, CUT - 2, CUT - 1, CUT, CUT + 1, 2 * CUT - 1]),
            max_size=12,
        ),
        threads=st.sampled_from([1, 2]),
    )
    @settings(max_examples=60)
    def test_wherever_a_row_is_cut(self, degrees: list[int], threads: int) -> None:
        torch.set_num_threads(threads)
        row, col = compressed(degrees, 7)
        # Whole numbers: sums are exact in any order, so nothing may be lost or counted twice.
        f = torch.arange(14.0).view(7, 2)
        arguments = ((row, col, None, torch.ones(len(degrees)), torch.ones(7)), f, None, 0.0)
        assert np.array_equal(cpu.aggregate(*arguments).double().numpy(), product(*arguments))

    def test_takes_non_contiguous_input_and_does_not_modify_it(self) -> None:
        row, col = compressed([2, 3, 1], 3)
        f = torch.randn(2, 3).T.requires_grad_()
        half = torch.rand(3, 2)[:, 0]
        before = [t.detach().clone() for t in (row, col, half, f)]
        arguments = ((row, col, None, half, half), f, f, 0.1)
        ours = cpu.aggregate(*arguments)
        close(ours, product((row, col, None, half, half), f.detach(), f.detach(), 0.1), 1e-6)
        assert not ours.requires_grad
        assert all(map(torch.equal, before, (row, col, half, f)))


def random_codes(n: int, groups: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-1, groups, (n,), generator=generator, dtype=torch.int32)


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


class TestMoments:
    @pytest.mark.parametrize("classes", [1, 2, 3, 4, 5, 6, 7, 8, 64])
    @pytest.mark.parametrize("groups", [1, 3])
    def test_equal_scipy(self, classes: int, groups: int) -> None:
        torch.manual_seed(classes)
        n = 5001
        z, codes = 3 * torch.randn(n, classes), random_codes(n, groups)
        shift = torch.randn(groups, classes, dtype=torch.float64)
        ours = cpu.moments(z, codes, shift, 0.7)
        assert ours.dtype == torch.float64
        np.testing.assert_allclose(
            ours.numpy(), expected_moments(z, codes, shift, 0.7), rtol=1e-12, atol=1e-10
        )
        torch.testing.assert_close(ours, reference.moments(z, codes, shift, 0.7))

    @pytest.mark.parametrize("classes", [2, 3])
    def test_of_double_precision(self, classes: int) -> None:
        z, codes = torch.randn(300, classes, dtype=torch.float64), random_codes(300, 2)
        shift = torch.randn(2, classes, dtype=torch.float64)
        np.testing.assert_allclose(
            cpu.moments(z, codes, shift, 1.0).numpy(),
            expected_moments(z, codes, shift, 1.0),
            rtol=1e-13,
        )

    @given(
        data=st.data(),
        classes=st.integers(1, 5),
        groups=st.integers(1, 4),
        temperature=st.floats(1e-3, 1e3),
    )
    @settings(max_examples=60)
    def test_hold_for_all_logits(
        self, data: st.DataObject, classes: int, groups: int, temperature: float
    ) -> None:
        number = st.floats(-1e6, 1e6, width=32)
        rows = data.draw(
            st.lists(st.lists(number, min_size=classes, max_size=classes), max_size=20)
        )
        z = torch.tensor(rows, dtype=torch.float32).view(-1, classes)
        codes = torch.tensor(
            [data.draw(st.integers(-1, groups - 1)) for _ in rows], dtype=torch.int32
        )
        entry = st.floats(-100, 100)
        shift = torch.tensor(
            [[data.draw(entry) for _ in range(classes)] for _ in range(groups)],
            dtype=torch.float64,
        )
        oracle = expected_moments(z, codes, shift, temperature)
        ours = cpu.moments(z, codes, shift, temperature).numpy()
        assert np.isfinite(ours).all()
        # Logits of 1e6 at a temperature of 1e-3 are known to 1e-7 after the division.
        np.testing.assert_allclose(ours, oracle, rtol=1e-11, atol=1e-6)
        size = groups * classes
        counted = np.bincount(codes[codes >= 0].numpy(), minlength=groups)
        np.testing.assert_allclose(ours[1 : 1 + size].reshape(groups, -1).sum(1), counted)

    @pytest.mark.parametrize("classes", [2, 3])
    def test_keep_their_digits_where_probabilities_are_near_one(self, classes: int) -> None:
        z = torch.zeros(1, classes, dtype=torch.float64)
        z[0, 0] = 40.0
        codes, shift = torch.zeros(1, dtype=torch.int32), torch.zeros(1, classes).double()
        second = cpu.moments(z, codes, shift, 1.0)[1 + classes :].view(classes, classes)
        # 1 − q has none left in float64, but q(1 − q) has.
        rare = np.exp(-40.0)
        assert second[0, 0].item() == pytest.approx((classes - 1) * rare, rel=1e-12, abs=0)
        assert second[1, 0].item() == pytest.approx(rare, rel=1e-12, abs=0)

    @pytest.mark.parametrize("classes", [2, 3])
    def test_stay_finite_at_the_ends_of_float32(self, classes: int) -> None:
        z = torch.full((4, classes), 3e38)
        z[1] = -3e38
        z[2, 0] = z[3, 1] = -3e38
        codes, shift = torch.zeros(4, dtype=torch.int32), torch.zeros(1, classes).double()
        ours = cpu.moments(z, codes, shift, 1.0)
        torch.testing.assert_close(ours, reference.moments(z, codes, shift, 1.0))

    @pytest.mark.parametrize("classes", [2, 3])
    def test_of_nan_are_nan(self, classes: int) -> None:
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
    size = 1 + 2 * classes * (1 + classes)
    assert torch.equal(cpu.moments(z, nowhere, table, 1.0), torch.zeros(size).double())
    assert torch.equal(cpu.segment_sum(z, nowhere, 2), torch.zeros(2, classes).double())
    assert torch.equal(cpu.softmax_vjp(g, z, nowhere, table, 1.0, table), g)
    assert torch.equal(cpu.shift(g, nowhere, table), g)
    assert not any(part.any() for part in cpu.coupling_backward(g, z, nowhere, table))


@pytest.mark.parametrize("classes", [2, 3])
def test_no_nodes_at_all(classes: int) -> None:
    z, codes = torch.zeros(0, classes), torch.zeros(0, dtype=torch.int32)
    table = torch.zeros(2, classes, dtype=torch.float64)
    assert not cpu.moments(z, codes, table, 1.0).any()
    assert not cpu.segment_sum(z, codes, 2).any()
    assert cpu.softmax_vjp(z, z, codes, table, 1.0, table).shape == (0, classes)
    assert cpu.shift(z, codes, table).shape == (0, classes)
    assert not cpu.coupling_backward(z, z, codes, table)[1].any()


@pytest.mark.parametrize("classes", [1, 2, 3, 8])
def test_softmax_vjp_equals_the_derivative(classes: int) -> None:
    n, groups = 700, 3
    z, g = 4 * torch.randn(n, classes), torch.randn(n, classes)
    codes, shift = random_codes(n, groups), torch.randn(groups, classes, dtype=torch.float64)
    w = torch.randn(groups, classes, dtype=torch.float64)
    counts, number = codes >= 0, codes[codes >= 0].long()
    logits = z.double().requires_grad_()
    q = ((logits[counts] - shift[number]) / 0.5).softmax(1)
    (derivative,) = torch.autograd.grad((q * w[number]).sum(), logits)
    ours = cpu.softmax_vjp(g, z, codes, shift, 0.5, w)
    # The Jacobian of the softmax has a factor 1/T, which the primitive has not.
    torch.testing.assert_close(ours, (g.double() + 0.5 * derivative).float())
    torch.testing.assert_close(ours, reference.softmax_vjp(g, z, codes, shift, 0.5, w))


@pytest.mark.parametrize("classes", [1, 2, 3, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_coupling_backward_equals_the_derivative(classes: int, dtype: torch.dtype) -> None:
    n, groups = 5000, 3
    z, g = 4 * torch.randn(n, classes, dtype=dtype), torch.randn(n, classes, dtype=dtype)
    codes, zero = random_codes(n, groups), torch.zeros(groups, classes, dtype=torch.float64)
    w = torch.randn(groups, classes, dtype=torch.float64, requires_grad=True)
    logits = z.double().requires_grad_()
    coupled = reference.softmax_vjp(torch.zeros_like(logits), logits, codes, zero, 1.0, w)
    derivatives = torch.autograd.grad((g * coupled).sum(), (logits, w))
    for kernels in (cpu, reference):
        ours = kernels.coupling_backward(g, z, codes, w.detach())
        assert ours[0].dtype == dtype
        for part, derivative in zip(ours, derivatives, strict=True):
            torch.testing.assert_close(part.double(), derivative, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("classes", [2, 3])
def test_softmax_vjp_stays_finite(classes: int) -> None:
    z = 1e6 * torch.randn(50, classes)
    codes, table = random_codes(50, 2), torch.randn(2, classes, dtype=torch.float64)
    ours = cpu.softmax_vjp(torch.zeros_like(z), z, codes, table, 1.0, table)
    assert ours.isfinite().all()
    assert ours.abs().max() < 1e-6


@pytest.mark.parametrize("classes", [1, 2, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_shifts_and_sums_equal_numpy(classes: int, dtype: torch.dtype) -> None:
    n, groups = 5000, 3
    z, codes = torch.randn(n, classes, dtype=dtype), random_codes(n, groups)
    shift = torch.randn(groups, classes, dtype=torch.float64)
    counts, number = (codes >= 0).numpy(), codes[codes >= 0].numpy()
    oracle = z.double().numpy().copy()
    sums = np.zeros((groups, classes))
    np.add.at(sums, number, oracle[counts])
    oracle[counts] -= shift.numpy()[number]
    ours = cpu.shift(z, codes, shift)
    assert ours.dtype == dtype
    close(ours, oracle, 1e-7 if dtype == torch.float32 else 1e-15)
    np.testing.assert_allclose(cpu.segment_sum(z, codes, groups).numpy(), sums, rtol=1e-11)

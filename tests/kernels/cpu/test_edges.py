"""Sums over neighbours against SciPy, in float64."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from torch import Tensor

from fairmp.kernels import reference
from fairmp.kernels.cpu import edges
from fairmp.kernels.cpu import primitives as cpu
from fairmp.kernels.cpu.edges import CHUNK_LENGTH
from fairmp.kernels.types import CSR, Matrix
from tests.kernels.problems import compressed, unscaled

COLUMNS = 500


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def network() -> CSR:
    """Hubs longer than a chunk, a chunk's worth of isolated nodes, and ordinary rows."""
    degrees = np.random.default_rng(0).integers(0, 12, 3000)
    degrees[[0, 700, 2999]] = 3 * CHUNK_LENGTH, 20_000, CHUNK_LENGTH + 1
    return compressed([*degrees.tolist(), *[0] * (CHUNK_LENGTH + 500), 5, 0], COLUMNS)


def random_matrix(dtype: torch.dtype, *, weighted: bool = False) -> Matrix:
    rows = network()
    weight = torch.rand(rows.col.numel(), dtype=dtype) if weighted else None
    left, right = torch.rand(rows.row.numel() - 1, dtype=dtype), torch.rand(COLUMNS, dtype=dtype)
    return Matrix(CSR(rows.row, rows.col, weight), left, right)


def product(matrix: Matrix, f: Tensor) -> np.ndarray:
    """The product in float64, by SciPy."""
    row, col, weight = matrix.rows
    value = np.ones(col.numel()) if weight is None else weight.double().numpy()
    values = sparse.csr_matrix(
        (value, col.numpy(), row.numpy()), shape=(row.numel() - 1, f.size(0))
    )
    scaled = matrix.right.double().numpy()[:, None] * f.double().numpy()
    return matrix.left.double().numpy()[:, None] * (values @ scaled)


def assert_close(ours: Tensor, expected: np.ndarray, rtol: float) -> None:
    assert ours.shape == expected.shape
    assert ours.is_contiguous()
    scale = np.abs(expected).max(initial=0.0)
    np.testing.assert_allclose(ours.double().numpy(), expected, rtol=rtol, atol=rtol * scale)


@pytest.mark.parametrize("classes", [1, 2, 3, 4, 5, 8, 10, 64])
def test_aggregate_equals_scipy_for_any_number_of_classes(classes: int) -> None:
    matrix, f = random_matrix(torch.float32), torch.rand(COLUMNS, classes)
    x = torch.randn(matrix.left.numel(), classes)
    expected = 0.3 * x.double().numpy() + 0.7 * product(matrix, f)
    assert_close(cpu.aggregate(matrix, f, x, 0.3), expected, 2e-6)
    assert_close(cpu.aggregate(matrix, f, None, 0.0), product(matrix, f), 2e-6)


@pytest.mark.parametrize(
    ("classes", "dtype", "weighted", "row_type", "col_type"),
    [
        (1, torch.float32, True, torch.int64, torch.int32),
        (2, torch.float64, True, torch.int32, torch.int32),
        (2, torch.float32, False, torch.int64, torch.int64),
        (7, torch.float64, False, torch.int64, torch.int64),
        (3, torch.float32, True, torch.int64, torch.int32),
    ],
)
def test_aggregate_equals_scipy_for_any_types(
    classes: int,
    dtype: torch.dtype,
    weighted: bool,
    row_type: torch.dtype,
    col_type: torch.dtype,
) -> None:
    matrix = random_matrix(dtype, weighted=weighted)
    rows = CSR(matrix.rows.row.to(row_type), matrix.rows.col.to(col_type), matrix.rows.weight)
    f = torch.rand(COLUMNS, classes, dtype=dtype)
    ours = cpu.aggregate(Matrix(rows, matrix.left, matrix.right), f, None, 0.0)
    assert ours.dtype == dtype
    assert_close(ours, product(matrix, f), 2e-6 if dtype == torch.float32 else 1e-12)


@pytest.mark.parametrize(("rows", "columns"), [(0, 3), (4, 0), (4, 3)])
def test_aggregate_without_edges_leaves_the_skip(rows: int, columns: int) -> None:
    none = CSR(torch.zeros(rows + 1, dtype=torch.int64), torch.zeros(0, dtype=torch.int32))
    x = torch.randn(rows, 2)
    matrix = Matrix(none, torch.rand(rows), torch.rand(columns))
    assert torch.equal(cpu.aggregate(matrix, torch.rand(columns, 2), x, 0.5), x / 2)


@pytest.mark.parametrize("classes", [1, 2, 3])
def test_aggregate_of_a_hub_of_a_million_edges_keeps_its_digits(classes: int) -> None:
    """Pieces of a row add up in float64: in float32 a sum of a million has three digits less."""
    matrix, f = unscaled(compressed([3, 1_000_000, 3], 1000), 1000), torch.rand(1000, classes)
    assert_close(cpu.aggregate(matrix, f, None, 0.0), product(matrix, f), 5e-7)


@given(
    degrees=st.lists(
        st.sampled_from(
            [0, 1, 2, *(CHUNK_LENGTH + d for d in (-3, -2, -1, 0, 1)), 2 * CHUNK_LENGTH - 1]
        ),
        max_size=12,
    ),
    threads=st.sampled_from([1, 2]),
)
@settings(max_examples=60)
def test_aggregate_wherever_a_row_is_cut(degrees: list[int], threads: int) -> None:
    torch.set_num_threads(threads)
    # Whole numbers: sums are exact in any order, so nothing may be lost or counted twice.
    matrix, f = unscaled(compressed(degrees, 7), 7), torch.arange(14.0).view(7, 2)
    ours = cpu.aggregate(matrix, f, None, 0.0)
    assert np.array_equal(ours.double().numpy(), product(matrix, f))


@pytest.mark.parametrize("classes", [1, 2])
def test_aggregate_of_many_nodes_asks_for_neighbours_early(classes: int) -> None:
    """Above FAR_BYTES of logits, which changes nothing but the time it takes."""
    columns = edges.FAR_BYTES // (4 * classes) + 1000
    matrix = unscaled(compressed([3, 0, 700, 20], columns), columns)
    f = torch.arange(float(columns * classes)).view(columns, classes) % 8
    ours = cpu.aggregate(matrix, f, None, 0.0)
    assert np.array_equal(ours.double().numpy(), product(matrix, f))


def test_aggregate_takes_views_and_does_not_modify_its_input() -> None:
    rows = compressed([2, 3, 1], 3)
    f, half = torch.randn(2, 3).T.requires_grad_(), torch.rand(3, 2)[:, 0]
    before = [part.detach().clone() for part in (rows.row, rows.col, half, f)]
    ours = cpu.aggregate(Matrix(rows, half, half), f, f, 0.1)
    expected = reference.aggregate(Matrix(rows, half, half), f.detach(), f.detach(), 0.1)
    torch.testing.assert_close(ours, expected)
    assert not ours.requires_grad
    assert all(map(torch.equal, before, (rows.row, rows.col, half, f)))


@pytest.mark.parametrize("classes", [1, 2, 3])
@pytest.mark.parametrize("learned", [False, True])
def test_aggregate_vjp_equals_the_reference(classes: int, learned: bool) -> None:
    n = 2 * CHUNK_LENGTH + 100  # several chunks of nodes
    degrees = torch.randint(0, 5, (n,)).tolist()
    matrix = unscaled(compressed(degrees, n), n, torch.float64)
    grad, x, propagated = torch.randn(3, n, classes, dtype=torch.float64).unbind()
    inputs = (x, propagated) if learned else (None, None)
    ours = cpu.aggregate_vjp(matrix, grad, 0.3, *inputs)
    expected = reference.aggregate_vjp(matrix, grad, 0.3, *inputs)
    torch.testing.assert_close(ours.f, expected.f)
    torch.testing.assert_close(ours.x, expected.x)
    assert float(ours.away) == pytest.approx(float(expected.away), rel=1e-10)

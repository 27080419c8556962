"""The dense problems of a Newton step, against scipy, NumPy and their defining properties."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from fairmp.nn.quadratic import Array, complement, penalised_minimum, pseudo_solve, span


def semidefinite(size: int, rank: int, seed: int) -> Array:
    """A random symmetric matrix whose curvatures are of the order of 1."""
    vectors = np.linalg.qr(np.random.default_rng(seed).standard_normal((size, rank)))[0]
    return np.asarray(vectors @ np.diag(np.linspace(0.5, 2, rank)) @ vectors.T)


def split(size: int) -> Array:
    """Moves of the plain ℓ₁ penalty: every entry up, and down."""
    return np.hstack([np.eye(size), -np.eye(size)])


def pairs(size: int) -> Array:
    """Moves of a block: one entry up by as much as another goes down."""
    identity = np.eye(size)
    return np.array([a - b for a in identity for b in identity if a is not b]).T


class TestPenalisedMinimum:
    @given(
        size=st.integers(2, 5),
        missing=st.integers(0, 2),
        block=st.booleans(),
        penalty=st.sampled_from([1e-3, 0.1, 1.0]),
        seed=st.integers(0, 2**20),
    )
    def test_scipy_finds_no_lower_objective(
        self, size: int, missing: int, block: bool, penalty: float, seed: int
    ) -> None:
        hessian = semidefinite(size, max(size - missing, 1), seed)
        basis = span(hessian)
        linear = hessian @ np.random.default_rng(seed + 1).standard_normal(size)
        moves = pairs(size) if block else split(size)
        x = penalised_minimum(hessian, linear, basis, moves, penalty)

        def objective(w: Array) -> tuple[float, Array]:
            slope = hessian @ (moves @ w) - linear
            value = (moves @ w) @ (slope - linear) / 2 + penalty * w.sum()
            return float(value), moves.T @ slope + penalty

        start, bounds = np.zeros(moves.shape[1]), [(0, None)] * moves.shape[1]
        options = {"maxiter": 10_000, "ftol": 1e-15, "gtol": 1e-10}
        oracle = minimize(objective, start, jac=True, bounds=bounds, options=options)
        # The cheapest way to make x: ℓ₁, of which a block's moves take two parts at a time.
        cost = penalty * np.abs(x).sum() / (2 if block else 1)
        value = x @ (hessian @ x) / 2 - linear @ x + cost
        assert value <= oracle.fun + 1e-8
        if block:
            assert abs(x.sum()) <= 1e-9

    def test_one_entry_is_soft_thresholded(self) -> None:
        """The minimum of ½hx² − bx + t|x| is sign(b)·max(|b| − t, 0)/h."""
        for b, expected in ((3.0, 1.0), (-3.0, -1.0), (0.9, 0.0), (1.0, 0.0)):
            x = penalised_minimum(np.array([[2.0]]), np.array([b]), np.eye(1), split(1), 1.0)
            np.testing.assert_allclose(x, [expected], atol=1e-12)

    @pytest.mark.parametrize("unit", [1e-4, 1e4])
    def test_unit_of_the_objective_does_not_matter(self, unit: float) -> None:
        hessian, linear = semidefinite(4, 4, 0), np.array([2.0, -1.0, 0.3, 0.0])
        one = penalised_minimum(hessian, linear, np.eye(4), split(4), 0.4)
        other = penalised_minimum(unit * hessian, unit * linear, np.eye(4), split(4), 0.4 * unit)
        np.testing.assert_allclose(other, one, atol=1e-6)

    def test_rare_class_moves_its_whole_step(self) -> None:
        hessian, linear = np.diag([1.0, 1e-9]), np.array([1.0, 2e-9])
        x = penalised_minimum(hessian, linear, np.eye(2), split(2), 1e-15)
        np.testing.assert_allclose(x, [1.0, 2.0], rtol=1e-3)

    def test_direction_without_curvature_is_bounded(self) -> None:
        """Rounding gives an entry that does not curve a slope; it must not run away."""
        hessian, linear = np.diag([1.0, 0.0]), np.array([2.0, 1e-13])
        x = penalised_minimum(hessian, linear, np.eye(2), split(2), 1e-14)
        np.testing.assert_allclose(x, [2.0, 0.0], atol=1e-2)


class TestPseudoSolve:
    @given(size=st.integers(1, 6), missing=st.integers(0, 5), seed=st.integers(0, 2**20))
    def test_solution_in_the_range_is_that_of_the_pseudo_inverse(
        self, size: int, missing: int, seed: int
    ) -> None:
        """What H leaves undetermined is chosen in other units, and H does not see it."""
        h = semidefinite(size, max(size - missing, 1), seed)
        b = h @ np.random.default_rng(seed + 1).standard_normal(size)
        x = pseudo_solve(h, b)
        np.testing.assert_allclose(h @ x, h @ (np.linalg.pinv(h, hermitian=True) @ b), atol=1e-8)

    def test_equal_diagonals_give_the_pseudo_inverse(self) -> None:
        h = np.array([[2.0, -1.0, -1.0], [-1.0, 2.0, -1.0], [-1.0, -1.0, 2.0]])
        b = np.array([1.0, 2.0, 4.0])
        np.testing.assert_allclose(pseudo_solve(h, b), np.linalg.pinv(h) @ b, atol=1e-12)

    def test_rare_class_is_solved_for(self) -> None:
        """A small curvature is not an undetermined one."""
        h = np.diag([1.0, 1e-9])
        np.testing.assert_allclose(pseudo_solve(h, np.array([1.0, 1e-9])), [1.0, 1.0])

    def test_pseudo_solve_keeps_flat_directions_at_zero(self) -> None:
        """A probability of 1e-12 is the rounding of one of 1."""
        np.testing.assert_array_equal(pseudo_solve(5e-13 * np.eye(2), np.ones(2)), [0.0, 0.0])
        x = pseudo_solve(np.diag([2.0, 5e-13]), np.ones(2))
        np.testing.assert_allclose(x, [0.5, 0.0])
        np.testing.assert_allclose(pseudo_solve(2e-12 * np.eye(1), np.array([2e-12])), [1.0])

    def test_rows_that_are_nearly_alike_are_told_apart(self) -> None:
        """A difference in the eleventh digit is none of rounding."""
        h = np.array([[1.0, 1.0 - 1e-11], [1.0 - 1e-11, 1.0]])
        x = pseudo_solve(h, h @ np.array([1.0, 2.0]))
        np.testing.assert_allclose(x, [1.0, 2.0], rtol=1e-3)

    def test_rounding_error_of_a_singular_matrix_is_not_inverted(self) -> None:
        h = np.array([[1.0, -1.0], [-1.0, 1.0 + 1e-15]])
        np.testing.assert_allclose(pseudo_solve(h, np.array([1.0, -1.0])), [0.5, -0.5])


class TestComplement:
    @given(
        rows=st.integers(2, 4),
        classes=st.integers(1, 3),
        seed=st.integers(0, 2**20),
    )
    def test_columns_span_held_entries_orthogonal_to_the_constraints(
        self, rows: int, classes: int, seed: int
    ) -> None:
        rng = np.random.default_rng(seed)
        weight = np.zeros((rows + 1, 1))
        weight[:rows, 0] = rng.uniform(0.2, 1, rows)  # a block, and a row on its own
        constraints = np.kron(weight, np.eye(classes))
        held = rng.random(constraints.shape[0]) < 0.7
        columns = complement(constraints, held)
        np.testing.assert_allclose(columns.T @ columns, np.eye(columns.shape[1]), atol=1e-12)
        np.testing.assert_allclose(constraints.T @ columns, 0, atol=1e-12)
        assert not columns[~held].any()
        rank = np.linalg.matrix_rank(constraints[held])
        assert columns.shape[1] == held.sum() - rank

    def test_without_constraints_every_held_entry_is_free(self) -> None:
        held = np.array([True, False, True])
        np.testing.assert_array_equal(complement(np.zeros((3, 0)), held), np.eye(3)[:, held])


@given(size=st.integers(1, 6), missing=st.integers(0, 5), seed=st.integers(0, 2**20))
def test_span_projects_onto_the_range(size: int, missing: int, seed: int) -> None:
    rank = max(size - missing, 1)
    gram = semidefinite(size, rank, seed)
    columns = span(gram)
    assert columns.shape == (size, rank)
    np.testing.assert_allclose(columns.T @ columns, np.eye(rank), atol=1e-12)
    np.testing.assert_allclose(columns @ (columns.T @ gram), gram, atol=1e-12)


def test_span_keeps_directions_far_above_rounding() -> None:
    """A group of few nodes beside one of many: its gap is small in nodes, not undetermined."""
    assert span(np.diag([1.0, 1e-9])).shape == (2, 2)
    assert span(np.diag([1.0, 1e-11])).shape == (2, 1)
